package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/remat"
)

// longText writes a text file whose samples have the given number of tokens.
func longText(t testing.TB, samples, tokens int) string {
	t.Helper()
	rng := rand.New(rand.NewPCG(1, 2))
	var b strings.Builder
	for range samples {
		text := make([]byte, tokens-1)
		for i := range text {
			text[i] = letters[rng.IntN(5)]
		}
		fmt.Fprintf(&b, "{\"text\": %q}\n", text)
	}
	name := filepath.Join(t.TempDir(), "text.jsonl")
	require.NoError(t, os.WriteFile(name, []byte(b.String()), 0o600))
	return name
}

// TestTuneTiles: a run in tiles takes less and learns the same, and the plan chooses tiles where memory lacks.
//
//check:not bits32
func TestTuneTiles(t *testing.T) {
	model, data := publish(t), longText(t, 3, 4500)
	run := func(flags ...string) (result, string) {
		out := filepath.Join(t.TempDir(), "out")
		status, stdout, errs := snugged(append([]string{"tune", "-model", model, "-data", data, "-o", out, "-steps", "2", "-context", "4500", "-batch", "1", "-held-out", "0", "-json"}, flags...)...)
		require.Zero(t, status, "%v: %s", flags, errs)
		return lastLine(t, stdout), stdout
	}
	for _, form := range [][]string{{"-base", "nf4"}, {"-full", "-compute", "f32"}} {
		whole, _ := run(form...)
		tiles, out := run(append(form, "-tiles", "3")...)
		require.Less(t, tiles.Measured, whole.Measured)
		require.LessOrEqual(t, tiles.Measured, tiles.Predicted, out)
		require.Greater(t, float64(tiles.Measured), 0.9*float64(tiles.Predicted), out)
		require.InDelta(t, whole.Loss, tiles.Loss, 1e-4)
	}

	dry := func(flags ...string) (r planJSON) {
		status, out, errs := snugged(append([]string{"tune", "-model", model, "-data", data, "-context", "4500", "-batch", "1", "-held-out", "0", "-dry-run", "-json"}, flags...)...)
		require.Zero(t, status, "%v: %s", flags, errs)
		lines := strings.Split(strings.TrimSpace(out), "\n")
		require.NoError(t, json.Unmarshal([]byte(lines[len(lines)-1]), &r))
		return r
	}
	require.Equal(t, 1, dry().Run.Tiles)
	require.Equal(t, 1, dry("-tiles", "auto").Run.Tiles, "whole MLPs are faster")
	require.Equal(t, 5, dry("-tiles", "5").Run.Tiles)
	for flags, hint := range map[string]string{"": ", or less with -disk and -tiles auto", "-disk=1GiB": ", or less with -tiles auto", "-tiles=auto": ", or less with -disk"} {
		t.Run(flags, func(t *testing.T) {
			args := []string{"tune", "-model", model, "-data", data, "-context", "4500", "-held-out", "0", "-memory", "1KiB", "-dry-run"}
			if flags != "" {
				args = append(args, flags)
			}
			status, _, errs := snugged(args...)
			require.Equal(t, 1, status)
			require.True(t, strings.HasSuffix(errs, hint+"\n"), errs)
		})
	}
	for _, bad := range []string{"0", "-1", "x", "", "1.5", "99999999999"} {
		status, _, errs := snugged("tune", "-model", model, "-data", data, "-dry-run", "-tiles="+bad)
		require.Equal(t, 2, status, bad)
		require.Contains(t, errs, "-tiles")
	}
}

// TestTuneCheckpointsOnDisk: activations that wait on the disk change no bits, and nothing stays of them.
//
//check:not bits32
func TestTuneCheckpointsOnDisk(t *testing.T) {
	for _, j := range pagedJobs(t) {
		memory := j.tuning(t)
		require.NoError(t, memory.runPaged())
		d := j
		d.Out = filepath.Join(t.TempDir(), "out")
		r := d.tuning(t)
		costs, err := r.plan.Task.Costs(r.plan.Run)
		require.NoError(t, err)
		r.plan.Run.Remat, err = remat.HRevolve(costs, 0, len(costs.Stages), remat.Disk)
		require.NoError(t, err)
		r.plan.Prediction, err = r.plan.Task.Predict(r.plan.Run)
		require.NoError(t, err)
		require.Positive(t, r.plan.Peak[meter.OnDisk][meter.Activations])
		r.disk = r.plan.Peak[meter.OnDisk].Total()
		require.NoError(t, r.runPaged())
		require.Positive(t, r.checkpoints.Stats().HostPeak)
		require.NoDirExists(t, r.pagesDir())
		require.Equal(t, j.outputs(t), d.outputs(t))
	}
}
