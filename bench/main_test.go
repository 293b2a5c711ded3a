package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/snug-ml/snug/internal/cpu"
	"github.com/stretchr/testify/require"
)

// TestMain lets the test program stand for others: for bench itself, where it
// runs itself again, and for a peer.
func TestMain(m *testing.M) {
	if os.Getenv(tuneVariable) != "" {
		os.Exit(run(context.Background(), nil, os.Stdout, os.Stderr))
	}
	switch os.Getenv("BENCH_TEST_AS") {
	case "echo":
		fmt.Printf("SNUG_CPU=%s %v\n", os.Getenv(tierVariable), os.Args[1:])
		fmt.Fprintln(os.Stderr, "stderr")
		os.Exit(3)
	case "peer":
		fakePeer()
		os.Exit(0)
	case "trainer":
		fmt.Println("step 1/1")
		fmt.Println(os.Getenv("BENCH_TEST_OUTPUT"))
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// invoke runs the program and returns what it did.
func invoke(t *testing.T, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	var out, errs bytes.Buffer
	status = run(t.Context(), args, &out, &errs)
	return status, out.String(), errs.String()
}

func TestRun(t *testing.T) {
	t.Setenv(tierVariable, "go")
	dir := t.TempDir()
	status, stdout, stderr := invoke(t, "-short", "-threads", "1", "-only", "^(cast f32-bf16|accumulate f32) n=16384$",
		"-json", "-o", filepath.Join(dir, "out.svg"))
	require.Zero(t, status, stderr)
	require.Empty(t, stderr, "no progress without a terminal")
	require.Contains(t, stdout, "limits with 1 threads, tier go")
	require.Regexp(t, `(?m)^cast +f32-bf16 +n=16384 .* µs .* GB/s .*(% of|above) .* 0$`, stdout)

	var rows []map[string]any
	require.NoError(t, json.Unmarshal([]byte(lastLine(stdout)), &rows))
	require.Len(t, rows, 2)
	require.Equal(t, "cast", rows[0]["kernel"])
	require.Equal(t, "go", rows[0]["tier"])
	require.EqualValues(t, 1, rows[0]["threads"])
	require.Equal(t, "cpu", rows[0]["device"])
	require.EqualValues(t, 0, rows[0]["allocs"])
	require.Nil(t, rows[0]["peer"])
	for _, row := range rows {
		for _, key := range []string{"median_s", "rate", "limit", "fraction"} {
			require.Greater(t, row[key], 0.0, key)
		}
	}
	svg, err := os.ReadFile(filepath.Join(dir, "out.svg"))
	require.NoError(t, err)
	require.Contains(t, string(svg), "<svg")
	require.Contains(t, string(svg), ">accumulate<")
}

func TestTierRunsTheProgramAgain(t *testing.T) {
	t.Setenv("BENCH_TEST_AS", "echo")
	t.Setenv(tierVariable, "")
	status, stdout, stderr := invoke(t, "-tier", "go", "-short")
	require.Equal(t, 3, status, "that of the second run")
	require.Equal(t, "SNUG_CPU=go [-tier go -short]\n", stdout)
	require.Equal(t, "stderr\n", stderr)
}

func TestNothingToMeasure(t *testing.T) {
	status, stdout, stderr := invoke(t, "-only", "nothing like this")
	require.Equal(t, 1, status)
	require.Empty(t, stdout)
	require.Equal(t, "bench: -only nothing like this matches no kernel\n", stderr)
}

func TestHelp(t *testing.T) {
	status, stdout, _ := invoke(t, "-h")
	require.Zero(t, status)
	require.Equal(t, usage, stdout)
}

func TestBadFlags(t *testing.T) {
	missing := cpu.NEON
	if missing.Has() {
		missing = cpu.AVX2
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"extra"}, `unexpected argument "extra"`},
		{[]string{"-what"}, "-what"},
		{[]string{"-only", "("}, "-only: "},
		{[]string{"-tier", "mmx"}, `-tier "mmx": want go, avx2`},
		{[]string{"-tier", missing.String()}, "lacks the instructions"},
		{[]string{"-threads", "0"}, "-threads 0: want 1 to"},
		{[]string{"-threads", "100000"}, "-threads 100000: want 1 to"},
		{[]string{"-threads", "many"}, "many"},
		{[]string{"-model", "7b"}, `-model "7b": want tiny, 125m or 1.1b`},
		{[]string{"-short", "-long"}, "-short does not go with -long"},
		{[]string{"-device", "cuda:0", "-tier", "go"}, "-tier is of the cpu"},
		{[]string{"-device", "metal:0", "-peers"}, "not on metal:0"},
		{[]string{"-device", "emu:0", "-o", "a"}, "-o: emu:0 is emulated"},
	} {
		status, stdout, stderr := invoke(t, c.args...)
		require.Equal(t, 2, status, c.args)
		require.Empty(t, stdout, c.args)
		require.Contains(t, stderr, c.want)
		require.Regexp(t, `^bench: [^\n]+\n$`, stderr, "one line")
	}
	t.Setenv(tierVariable, "mmx")
	status, _, stderr := invoke(t)
	require.Equal(t, 2, status)
	require.Contains(t, stderr, "SNUG_CPU=mmx")
}

func TestBadFile(t *testing.T) {
	status, stdout, stderr := invoke(t, "-o", filepath.Join(t.TempDir(), "no", "file"), "-short")
	require.Equal(t, 1, status)
	require.Empty(t, stdout, "before anything is measured")
	require.Contains(t, stderr, "bench: open ")
}

func TestParse(t *testing.T) {
	o, err := parse([]string{"-only", "cast", "-tier", "go", "-threads", "1", "-json", "-o", "b", "-peers", "-short"})
	require.NoError(t, err)
	require.Equal(t, options{
		only: regexp.MustCompile("cast"), tier: "go", threads: 1, device: "cpu", json: true, output: "b", peers: true, pairs: 3, short: true,
	}, o)
	o, err = parse(nil)
	require.NoError(t, err)
	require.Equal(t, options{threads: runtime.NumCPU(), device: "cpu", pairs: 3}, o)
}

func TestUsageNamesEveryFlag(t *testing.T) {
	for _, name := range []string{"only", "tier", "threads", "device", "json", "o", "peers", "pairs", "model", "short", "long"} {
		require.Contains(t, usage, "\n  -"+name+" ")
	}
	require.Equal(t, 14, strings.Count(usage, "\n"))
}
