package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTune: each run is a process, and what it holds is reported.
func TestTune(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	status, stdout, stderr := invoke(t, "-short", "-only", "^tune", "-json")
	require.Zero(t, status, stderr)
	require.Contains(t, stderr, "tune qlora nf4 model=tiny tokens=1x64 rank=4: snug, run 1: ")
	var rows []result
	require.NoError(t, json.Unmarshal([]byte(lastLine(stdout)), &rows))
	require.Len(t, rows, 6)
	for i, kernel := range []string{"tune qlora", "tune lora", "tune full", "tune full paged", "tune lora long", "tune lora long"} {
		r := rows[i]
		require.Equal(t, kernel, r.Kernel)
		require.NotNil(t, r.Tune)
		own := r.Tune.Own
		require.Nil(t, r.Tune.Peer)
		require.InEpsilon(t, 7.6, own.Loss, 0.01, "of 2000 tokens that nothing is known about")
		require.InEpsilon(t, float64(r.Tune.Tokens)/r.Median, own.Speed.Median, 1e-9)
		require.Positive(t, own.Predicted)
		require.Positive(t, own.Counted)
		require.Equal(t, own.Peak, r.RSS)
		if runtime.GOOS == "linux" {
			require.Less(t, own.Base, own.Loaded)
			require.Less(t, own.Loaded, own.Peak)
		}
		require.Equal(t, i > 3, r.Tune.Longest > 0)
	}
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)
}

// againstFake returns the row of LoRA against a peer that prints a line.
func againstFake(t *testing.T, line string) ([]result, error) {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	t.Setenv("BENCH_TEST_AS", "trainer")
	t.Setenv("BENCH_TEST_OUTPUT", line)
	o := options{device: "cpu", short: true, only: regexp.MustCompile("tune")}
	all := tunes(o.sizes())
	w := all[1]
	require.Equal(t, "tune lora", w.kernel)
	defer func() { require.NoError(t, removeFolders(all)) }()
	return w.measure(t.Context(), o, known(), &opponents{ctx: t.Context(), device: "cpu", python: self, threads: 1})
}

func TestTuneAgainstAPeer(t *testing.T) {
	rows, err := againstFake(t, `{"seconds": [3, 5], "loss": 7.6, "base_rss_bytes": 1, "loaded_rss_bytes": 2, "peak_rss_bytes": 1073741824, "mapped_rss_bytes": 3145728}`)
	require.NoError(t, err)
	require.Len(t, rows, 1)
	r := rows[0]
	require.InDelta(t, 4, *r.PeerMedian, 0)
	require.InDelta(t, 16, r.Tune.Peer.Speed.Median, 1e-9)
	require.InEpsilon(t, 4/r.Median, r.Tune.Speed.Median, 1e-9)
	require.InEpsilon(t, float64(r.RSS)/(1<<30), r.Tune.Memory.Median, 1e-9)
	require.EqualValues(t, 1<<30, r.PeerRSS)
	text := strings.Join(r.Tune.lines(), "\n")
	require.Regexp(t, `transformers +16 +16–16 +0 KiB +0 KiB +1024 MiB +3 MiB`, text)
	require.Contains(t, text, "snug/peer")

	_, err = againstFake(t, `{"seconds": [1], "loss": 7.8, "peak_rss_bytes": 1}`)
	require.ErrorIs(t, err, errDiffer)
	for _, line := range []string{`{"seconds": [], "loss": 7.6, "peak_rss_bytes": 1}`, `{"seconds": [1], "loss": 7.6}`, `Killed`} {
		rows, err = againstFake(t, line)
		require.NoError(t, err)
		require.Error(t, rows[0].missing)
		require.Nil(t, rows[0].Tune.Peer)
	}
}

func TestTuneRunsWhereItIsNamed(t *testing.T) {
	for _, c := range []struct {
		args  []string
		model string
		long  int // rows of longer sequences
	}{
		{nil, "", 0},
		{[]string{"-only", "bf16", "-long"}, "", 0},
		{[]string{"-only", "tune"}, "1.1b", 3},
		{[]string{"-only", "tune", "-long"}, "1.1b", 4},
		{[]string{"-only", "tune", "-short"}, "tiny", 2},
		{[]string{"-only", "tune full", "-model", "125m"}, "125m", 2},
		{[]string{"-only", "tune", "-device", "cuda:0"}, "", 0},
	} {
		o, err := parse(c.args)
		require.NoError(t, err)
		long := 0
		for _, w := range allWork(o) {
			if w.tune == nil {
				continue
			}
			require.Equal(t, c.model, w.tune.Model, c.args)
			if w.tune.Limit > 0 {
				long++
				require.Equal(t, w.tune.Tokens <= w.tune.shape.most, len(w.peers) == 1)
			}
		}
		require.Equal(t, c.long, long, c.args)
	}
}

// TestTuneModel: the largest has the parameters of its name, and room for long sequences.
func TestTuneModel(t *testing.T) {
	m, err := tuneModelNamed("1.1b")
	require.NoError(t, err)
	p, err := m.config().Plan(m.tokens)
	require.NoError(t, err)
	require.InEpsilon(t, 1.1e9, float64(p.Parameters()), 0.001)
	products := m.flops(tuneFull, 512) / 512 / 6
	require.InEpsilon(t, float64(p.Parameters()-32000*2048+22*2048*513), products, 0.001, "all but the embedding, and attention")
	require.InEpsilon(t, 2./3, m.flops(tuneLoRA, 1)/m.flops(tuneFull, 1), 0.001)

	j := tuneJob{Method: tuneLoRA, Rank: m.rank, Limit: m.limit}
	n, err := j.longest(&m, 4096)
	require.NoError(t, err)
	require.Greater(t, n, longest)
	j.Limit = 1 << 30
	n, err = j.longest(&m, 4096)
	require.NoError(t, err)
	require.Zero(t, n, "the weights alone take more")
}

// TestTuneBatch: both sides have the same tokens; these are what the peer's script makes.
func TestTuneBatch(t *testing.T) {
	b := tuneModels[0].batch(6, 1)
	require.Equal(t, []int32{1567, 1090, 60, 1010, 1429, 779}, b.Tokens)
	require.Equal(t, append(b.Tokens[1:6:6], -1), b.Labels)
}

func TestTuneWorkerFails(t *testing.T) {
	for job, want := range map[string]string{
		`{`:               "unexpected end",
		`{"model": "7b"}`: "want tiny, 125m or 1.1b",
		`{"model": "tiny", "dir": "missing", "method": "lora", "tokens": 8, "rank": 4}`:               "no such file",
		`{"model": "tiny", "dir": "missing", "method": "lora", "tokens": 8, "rank": 4, "limit": 100}`: "nothing fits in 100 B",
		`{"model": "tiny", "dir": "missing", "method": "lora", "rank": 4}`:                            "0 tokens",
	} {
		var out, errs bytes.Buffer
		require.Equal(t, 1, tuneWorker(t.Context(), job, &out, &errs), job)
		require.Contains(t, errs.String(), want, job)
		require.Empty(t, out.String())
	}
}

func TestTuneLines(t *testing.T) {
	own := &tuneSide{reports: []tuneReport{{Seconds: []float64{1, 3}, Loss: 7, Loaded: 1 << 20, Peak: 3 << 20, Counted: 2 << 20}, {Seconds: []float64{4}, Peak: 5 << 20}}}
	peer := &tuneSide{reports: []tuneReport{{Seconds: []float64{8}, Peak: 10 << 20}, {Seconds: []float64{8}, Peak: 10 << 20}}}
	got := newTuned(tuneJob{Tokens: 8, Limit: 7 << 20}, own, peer)
	got.Longest = 64
	require.Equal(t, quartiles{2.5, 3, 3.5}, got.Own.Speed)
	require.Equal(t, quartiles{2.5, 3, 3.5}, *got.Speed)
	require.Equal(t, quartiles{0.35, 0.4, 0.45}, *got.Memory)
	text := fmt.Sprint(got.lines())
	require.Contains(t, text, "of 7 MiB: snug fits, transformers takes 3 MiB more; snug is predicted to fit 64 tokens")
	require.NoError(t, sameLoss(10.5, 10.45))
	require.True(t, errors.Is(sameLoss(10.5, 10.3), errDiffer))
}
