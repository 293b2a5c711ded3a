package main

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/snug-ml/snug/internal/console"
	"github.com/snug-ml/snug/internal/svgtest"
	"github.com/snug-ml/snug/internal/text"
	"github.com/snug-ml/snug/meter"
	"github.com/stretchr/testify/require"
)

// asProgram makes the test binary run the program instead, so that tests can
// start it in a process of its own.
const asProgram = "GPT_TEST_RUN"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	os.Exit(m.Run())
}

func command(t *testing.T, args ...string) *exec.Cmd {
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(self, args...)
	cmd.Env = append(os.Environ(), asProgram+"=1")
	return cmd
}

// textFile writes a text of n lines and returns its name.
func textFile(t *testing.T, n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString([]string{"the cat", "a dog", "some bird", "no fish"}[text.Mix(uint64(i))%4])
		b.WriteString([]string{" sat", " ran", " sang"}[text.Mix(uint64(i)+99)%3] + " on the mat\n")
	}
	name := filepath.Join(t.TempDir(), "text")
	require.NoError(t, os.WriteFile(name, []byte(b.String()), 0o600))
	return name
}

func runArgs(args ...string) (status int, stdout, stderr string) {
	var out, errs bytes.Buffer
	status = run(console.Stop{After: context.Background(), Now: context.Background()}, args, &out, &errs)
	return status, out.String(), errs.String()
}

func TestTrainingLowersTheLossAndReportsIt(t *testing.T) {
	text := textFile(t, 500)
	for _, off := range []string{"", "all", "amp,offload"} {
		status, out, errs := runArgs("-preset", "tiny", "-text", text, "-json", "-off", off)
		require.Zero(t, status, errs)
		lines := strings.Split(strings.TrimSpace(out), "\n")
		var r map[string]any
		require.NoError(t, json.Unmarshal([]byte(lines[len(lines)-1]), &r))
		for _, key := range []string{"preset", "params", "steps", "tokens", "loss_first", "loss_last", "tokens_per_s",
			"peak_rss_bytes", "predicted_peak_bytes", "measured_peak_bytes", "techniques"} {
			require.Contains(t, r, key)
		}
		require.Less(t, r["loss_last"], r["loss_first"].(float64)-1)
		require.Contains(t, out, "predicted peak memory")
		require.Contains(t, out, "step 20/20")
		require.Contains(t, out, "the model writes")
	}
}

func TestBadInputIsOneLineAndStatus2(t *testing.T) {
	dir := t.TempDir()
	empty := filepath.Join(dir, "empty")
	short := filepath.Join(dir, "short")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	require.NoError(t, os.WriteFile(short, []byte("too short"), 0o600))
	for _, args := range [][]string{
		{"-text", filepath.Join(dir, "missing")}, {"-text", empty}, {"-text", short},
		{"-preset", "huge"}, {"-off", "amp,magic"}, {"-steps", "0"}, {"-steps", "x"}, {"-dtype", "f8"}, {"-nonsense"}, {"extra"},
		{"-save-every", "0"}, {"-keep", "0"}, {"-steps", "100000000"}, {"-o", "x.svg"}, {"-compare", "-off", "amp"}, {"-compare", "-o", filepath.Join(dir, "x.png")},
		{"-compare", "-o", filepath.Join(dir, "none", "x.svg")}, {"-compare", "-checkpoint", dir},
		{"-checkpoint", filepath.Join(short, "below-a-file")},
		{"-memory", "x"}, {"-memory", "0"}, {"-memory", "1QiB"}, {"-memory", "8MiB", "-off", "accum"}, {"-memory", "100KiB"},
		{"-host-memory", "1KiB"}, {"-host-memory", "-1"}, {"-host-memory", "1MiB", "-off", "offload"},
		{"-timeline", filepath.Join(dir, "x.png")}, {"-timeline", filepath.Join(dir, "none", "x.csv")}, {"-compare", "-timeline", "x.csv"},
		{"-inject-nan", "-1"}, {"-inject-nan", "21"}, {"-compare", "-memory", "1MiB"}, {"-compare", "-inject-nan", "2"},
	} {
		status, out, errs := runArgs(append([]string{"-preset", "tiny"}, args...)...)
		require.Equal(t, 2, status, "%v: %s", args, errs)
		require.Equal(t, 1, strings.Count(errs, "\n"), "%v: one line, not %q", args, errs)
		require.Empty(t, out, "%v", args)
	}
	status, out, _ := runArgs("-h")
	require.Zero(t, status)
	require.Contains(t, out, "-preset")
}

func finalLosses(t *testing.T, out string) (first, last float64) {
	var r report
	lines := strings.Split(strings.TrimSpace(out), "\n")
	require.NoError(t, json.Unmarshal([]byte(lines[len(lines)-1]), &r))
	return r.LossFirst, r.LossLast
}

// snapshot returns the contents of all files of a folder.
func snapshot(t *testing.T, dir string) map[string]string {
	files := map[string]string{}
	require.NoError(t, filepath.Walk(dir, func(name string, info os.FileInfo, err error) error {
		if err != nil || info.IsDir() {
			return err
		}
		b, err := os.ReadFile(name)
		files[name] = string(b)
		return err
	}))
	return files
}

func TestCompare(t *testing.T) {
	t.Setenv(asProgram, "1")
	chart := filepath.Join(t.TempDir(), "out.svg")
	status, out, errs := runArgs("-compare", "-preset", "tiny", "-steps", "3", "-text", textFile(t, 500), "-o", chart, "-json")
	require.Zero(t, status, errs)
	for _, set := range sets() {
		require.Contains(t, out, set.String())
	}
	var reports []report
	lines := strings.Split(strings.TrimSpace(out), "\n")
	require.NoError(t, json.Unmarshal([]byte(lines[len(lines)-1]), &reports))
	require.Len(t, reports, len(sets()))
	for _, r := range reports {
		for name, b := range r.ByComponent {
			require.InDelta(t, b.Predicted, b.Measured, 0.05*float64(b.Predicted), "%v: %s", r.Techniques, name)
		}
	}
	svg, err := os.ReadFile(chart)
	require.NoError(t, err)
	require.Contains(t, string(svg), "quant8")
	svgtest.TextsFit(t, svg)
	for _, column := range []string{"counted", "resident"} {
		require.Contains(t, out, column)
		require.Contains(t, string(svg), column)
	}
	for _, r := range reports {
		require.Contains(t, string(svg), ">"+meter.FormatBytes(r.Measured)+"<")
		require.Contains(t, string(svg), ">"+resident(r.PeakRSS)+"<")
		if runtime.GOOS == "linux" {
			require.Positive(t, r.BaseRSS)
			require.Less(t, r.BaseRSS, r.PeakRSS)
		}
	}
}

// TestOptimizers trains with each, and measures what is predicted.
func TestOptimizers(t *testing.T) {
	text := textFile(t, 500)
	for _, name := range []string{"adamw", "apollo", "apollo-mini", "galore", "schedule-free"} {
		for _, off := range []string{"offload", "all"} {
			status, out, errs := runArgs("-preset", "tiny", "-text", text, "-json", "-off", off, "-optimizer", name)
			require.Zero(t, status, errs)
			var r report
			lines := strings.Split(strings.TrimSpace(out), "\n")
			require.NoError(t, json.Unmarshal([]byte(lines[len(lines)-1]), &r))
			require.Less(t, r.LossLast, r.LossFirst-1)
			for component, b := range r.ByComponent {
				require.InDelta(t, b.Predicted, b.Measured, 0.05*float64(b.Predicted), "%s: %s", name, component)
			}
		}
	}
	for _, args := range [][]string{{"-optimizer", "sgd"}, {"-optimizer", "apollo"}, {"-optimizer", "galore", "-compare"}} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			status, _, errs := runArgs(append([]string{"-preset", "tiny"}, args...)...)
			require.Equal(t, 2, status, errs)
			require.Contains(t, errs, "-optimizer "+strings.ReplaceAll(args[1], "sgd", `"sgd"`))
		})
	}
}

// TestMemoryLimitKeepsTheBatch trains under limits: micro-batches shrink, the
// batch and the losses stay, and the peak is below the limit and as predicted.
func TestMemoryLimitKeepsTheBatch(t *testing.T) {
	text := textFile(t, 500)
	var losses []float64
	for limit, micros := range map[string]string{"2MiB": "1 micro-batch of at most 4", "380KiB": "2 micro-batches of at most 2", "346KiB": "4 micro-batches of at most 1"} {
		t.Run(limit, func(t *testing.T) {
			status, out, errs := runArgs("-preset", "tiny", "-steps", "6", "-text", text, "-json", "-memory", limit)
			require.Zero(t, status, errs)
			require.Contains(t, out, "4 sequences of 32 tokens a step, in "+micros, limit)
			var r report
			lines := strings.Split(strings.TrimSpace(out), "\n")
			require.NoError(t, json.Unmarshal([]byte(lines[len(lines)-1]), &r))
			bytes, err := meter.ParseBytes(limit)
			require.NoError(t, err)
			require.LessOrEqual(t, r.Measured, bytes)
			require.InEpsilon(t, r.Predicted, r.Measured, 1e-3)
			losses = append(losses, r.LossLast)
		})
	}
	require.InDelta(t, losses[0], losses[1], 0.05)
	require.InDelta(t, losses[0], losses[2], 0.05)
}

// TestHostMemory: the state that the limit leaves no room for is on disk, and the losses are
// those of a run that has it in memory.
func TestHostMemory(t *testing.T) {
	text := textFile(t, 500)
	run := func(args ...string) (report, [2]float64) {
		status, out, errs := runArgs(append([]string{"-preset", "tiny", "-steps", "6", "-text", text, "-json"}, args...)...)
		require.Zero(t, status, errs)
		var r report
		lines := strings.Split(strings.TrimSpace(out), "\n")
		require.NoError(t, json.Unmarshal([]byte(lines[len(lines)-1]), &r))
		return r, [2]float64{r.LossFirst, r.LossLast}
	}
	_, want := run("-off", "offload")
	for _, limit := range []int64{32 << 10, 100 << 10} {
		r, got := run("-host-memory", fmt.Sprint(limit))
		require.Equal(t, want, got)
		require.LessOrEqual(t, r.ByComponent["optimizer state"].Measured, limit)
		require.InEpsilon(t, r.Predicted, r.Measured, 0.01) // how many pages are in memory depends on time
	}
}

// TestTimeline: the samples of a run are those that its report has the peak of.
func TestTimeline(t *testing.T) {
	dir, text := t.TempDir(), textFile(t, 500)
	for _, name := range []string{"out.csv", "out.svg"} {
		path := filepath.Join(dir, name)
		status, out, errs := runArgs("-preset", "tiny", "-steps", "4", "-text", text, "-json", "-timeline", path)
		require.Zero(t, status, errs)
		b, err := os.ReadFile(path)
		require.NoError(t, err)
		if name == "out.svg" {
			require.Regexp(t, `pages of [0-9.]+ KiB on disk, up to [0-9.]+ KiB in memory<`, string(b))
			svgtest.TextsFit(t, b)
			continue
		}
		rows, err := csv.NewReader(bytes.NewReader(b)).ReadAll()
		require.NoError(t, err)
		require.Len(t, rows, 1+4)
		var r report
		lines := strings.Split(strings.TrimSpace(out), "\n")
		require.NoError(t, json.Unmarshal([]byte(lines[len(lines)-1]), &r))
		at := slices.Index(rows[0], "device_peak_bytes")
		most := 0
		for _, row := range rows[1:] {
			n, err := strconv.Atoi(row[at])
			require.NoError(t, err)
			most = max(most, n)
		}
		require.EqualValues(t, r.Measured, most)
		for _, tier := range []string{"host", "disk"} { // the pages are there
			n, err := strconv.Atoi(rows[4][slices.Index(rows[0], tier+"_optimizer_state_bytes")])
			require.NoError(t, err)
			require.Positive(t, n, tier)
		}
	}
}

// TestSmallestMemoryLimit: the limit that the error names works, with all activations planned
// for it or none, and with a hundredth of a KiB less the error is the same.
func TestSmallestMemoryLimit(t *testing.T) {
	text := textFile(t, 500)
	for _, off := range []string{"", "remat", "remat,offload,attention", "amp"} {
		args := []string{"-preset", "tiny", "-steps", "2", "-text", text, "-json", "-off", off, "-memory"}
		status, out, errs := runArgs(append(args, "200KiB")...)
		require.Equal(t, 2, status)
		require.Empty(t, out)
		require.Regexp(t, `^gpt: -memory 200\.00 KiB: a micro-batch of one sequence takes at least \d+\.\d\d KiB\n$`, errs)
		_, size, _ := strings.Cut(strings.TrimSpace(errs), "at least ")
		smallest, err := meter.ParseBytes(strings.ReplaceAll(size, " ", ""))
		require.NoError(t, err)

		status, out, errs = runArgs(append(args, fmt.Sprint(smallest))...)
		require.Zero(t, status, errs)
		var r report
		lines := strings.Split(strings.TrimSpace(out), "\n")
		require.NoError(t, json.Unmarshal([]byte(lines[len(lines)-1]), &r))
		require.LessOrEqual(t, r.Measured, smallest)
		status, _, errs = runArgs(append(args, fmt.Sprint(smallest-11))...)
		require.Equal(t, 2, status)
		require.Contains(t, errs, "at least "+size)
	}
}

// TestErrorsAreSentences: sizes are for people, and no kind of error follows a sentence.
func TestErrorsAreSentences(t *testing.T) {
	for args, want := range map[string]string{
		"-host-memory 1KiB": "gpt: -host-memory 1.00 KiB: want at least 32.00 KiB, a few pages\n",
		"-memory x":         "gpt: -memory: meter: \"x\" is not a size, want one such as 512KiB, 1.5GiB or 64MB\n",
		"-device cpu:7":     "gpt: snug: device \"cpu:7\": there is one CPU device, cpu\n",
	} {
		t.Run(args, func(t *testing.T) {
			status, out, errs := runArgs(append([]string{"-preset", "tiny", "-text", textFile(t, 500)}, strings.Fields(args)...)...)
			require.Equal(t, 2, status)
			require.Empty(t, out)
			require.Equal(t, want, errs)
		})
	}
}

// TestInjectedNaNIsFound names the weight, the element and the micro-batch. With
// a loss scale the step is skipped; without, the run ends.
func TestInjectedNaNIsFound(t *testing.T) {
	args := []string{"-preset", "tiny", "-steps", "4", "-text", textFile(t, 500), "-inject-nan", "3"}
	status, out, errs := runArgs(args...)
	require.Zero(t, status, errs)
	require.Contains(t, out, "step 3 is skipped: model.layers.1.mlp.up_proj.weight[1365] = NaN, from micro-batch 2; the loss scale was 65536 and is 32768")
	require.Equal(t, 1, strings.Count(out, "skipped"))
	status, _, errs = runArgs(append(args, "-off", "amp")...)
	require.Equal(t, 1, status)
	require.Contains(t, errs, "step 3: model.layers.1.mlp.up_proj.weight[1365] = NaN, from micro-batch 2")
}

// TestFinishedRun: the same command after the last step trains no more and names no rate.
func TestFinishedRun(t *testing.T) {
	args := []string{"-preset", "tiny", "-steps", "1", "-text", textFile(t, 500), "-json", "-checkpoint", t.TempDir()}
	status, out, errs := runArgs(args...)
	require.Zero(t, status, errs)
	require.Contains(t, out, "after 1 step; ")
	require.Contains(t, out, "tokens/s on ")
	first, last := finalLosses(t, out)
	status, out, errs = runArgs(args...)
	require.Zero(t, status, errs)
	require.Contains(t, out, "resuming from step 1 of 1\n")
	require.Contains(t, out, "after 1 step\n")
	require.NotContains(t, out, "tokens/s")
	again, end := finalLosses(t, out)
	require.Equal(t, []float64{first, last}, []float64{again, end})
}

// TestTimelineOfInterruptedRun: what is known until then is written.
func TestTimelineOfInterruptedRun(t *testing.T) {
	text := textFile(t, 500)
	for _, name := range []string{"out.csv", "out.svg"} {
		path := filepath.Join(t.TempDir(), name)
		args := []string{"-preset", "tiny", "-text", text, "-timeline", path}
		var errs bytes.Buffer
		require.Equal(t, 1, runUntil(2, args, &errs))
		require.Regexp(t, `^gpt: interrupted after step [2-9] of 20, and nothing is saved without -checkpoint\n$`, errs.String())
		b, err := os.ReadFile(path)
		require.NoError(t, err)
		if name == "out.svg" {
			svgtest.TextsFit(t, b)
			continue
		}
		rows, err := csv.NewReader(bytes.NewReader(b)).ReadAll()
		require.NoError(t, err)
		require.Greater(t, len(rows), 2)
	}
}

// runUntil runs args, and asks the run to end when it has shown the given number of steps.
func runUntil(steps int, args []string, errs io.Writer) (status int) {
	after, ask := context.WithCancel(context.Background())
	defer ask()
	return run(console.Stop{After: after, Now: context.Background()}, args, &stepLines{steps, ask}, errs)
}

// stepLines calls full when as many lines of steps as left are written.
type stepLines struct {
	left int
	full func()
}

func (s *stepLines) Write(b []byte) (int, error) {
	if s.left -= len(regexp.MustCompile(`(?m)^step \d+/`).FindAll(b, -1)); s.left <= 0 {
		s.full()
	}
	return len(b), nil
}
