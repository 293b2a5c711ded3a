//go:build unix

package main

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/stretchr/testify/require"
)

// ranksVariable has the arguments of snug in a process that mpiexec starts.
const ranksVariable = "SNUG_TUNE_RANKS"

// TestTuneRanksJob is snug in such a process.
//
//check:in ranks
func TestTuneRanksJob(t *testing.T) {
	text := os.Getenv(ranksVariable)
	if text == "" {
		return
	}
	var args []string
	require.NoError(t, json.Unmarshal([]byte(text), &args))
	os.Exit(run(args, os.Stdin, os.Stdout, os.Stderr))
}

// onRanks returns a command that runs snug on ranks, without a time limit of mpiexec's own.
func onRanks(t *testing.T, ranks int, args ...string) (c *exec.Cmd, out, errs *strings.Builder) {
	t.Helper()
	launcher := mpiexec(t)
	text, err := json.Marshal(args)
	require.NoError(t, err)
	c = exec.Command(launcher, "-n", strconv.Itoa(ranks), os.Args[0], "-test.run=^TestTuneRanksJob$")
	c.Env = append(append(os.Environ(), openMPI...), ranksVariable+"="+string(text))
	out, errs = &strings.Builder{}, &strings.Builder{}
	c.Stdout, c.Stderr = out, errs
	return c, out, errs
}

// Ranks have the losses of one process, up to rounding. Only rank 0 prints, and it writes the output.
//
//check:in ranks
func TestTuneRanks(t *testing.T) {
	model, data := publish(t), chats(t, 40)
	for _, flags := range [][]string{{"-lora", "2"}, {"-full"}, {"-lora", "2", "-base", "nf4", "-disk", "100MB", "-memory", "64MiB"},
		{"-full", "-shard", "gradients"}, {"-full", "-shard", "weights"}, {"-lora", "2", "-base", "nf4", "-shard", "weights"},
		{"-lora", "2", "-base", "bf16", "-shard", "weights"}} {
		t.Run(strings.Join(flags, " "), func(t *testing.T) {
			args := append([]string{"tune", "-model", model, "-data", data, "-steps", "8", "-batch", "6", "-compute", "f32", "-json"}, flags...)
			alone := filepath.Join(t.TempDir(), "out")
			whole := args
			if i := slices.Index(args, "-shard"); i >= 0 {
				whole = slices.Delete(slices.Clone(args), i, i+2)
			}
			status, text, errs := snugged(append(whole, "-o", alone)...)
			require.Zero(t, status, errs)
			want := lastLine(t, text)
			for _, n := range []int{1, 2, 4} {
				if n != 2 && (slices.Contains(flags, "bf16") || slices.Contains(flags, "gradients")) {
					continue
				}
				dir := filepath.Join(t.TempDir(), "out")
				c, out, errs := onRanks(t, n, append(args, "-o", dir)...)
				require.NoError(t, c.Run(), "%s%s", out, errs)
				got := lastLine(t, out.String())
				require.InDelta(t, want.Loss, got.Loss, 1e-6, "%v, %d ranks", flags, n)
				require.InDelta(t, want.LossLast, got.LossLast, 1e-6)
				require.Equal(t, want.Tokens, got.Tokens)
				require.Equal(t, 1, strings.Count(out.String(), "peak memory"), out)
				left, err := filepath.Glob(dir + ".pages*")
				require.NoError(t, err)
				require.Empty(t, left)
				entries, err := os.ReadDir(dir)
				require.NoError(t, err)
				before, err := os.ReadDir(alone)
				require.NoError(t, err)
				require.Len(t, entries, len(before))
				if slices.Contains(flags, "-full") {
					requireNear(t, filepath.Join(alone, "model.safetensors"), filepath.Join(dir, "model.safetensors"))
				}
			}
		})
	}
	c, _, errs := onRanks(t, 2, "tune", "-model", model, "-data", data, "-o", filepath.Join(t.TempDir(), "out"), "-optimizer", "mezo")
	require.Error(t, c.Run())
	require.Contains(t, errs.String(), "rank 0 of 2: tune: a launcher of MPI does not go with the optimizer mezo: it has no gradients")

	// A rank whose command line is wrong ends the job; so do ranks with other data.
	other := chats(t, 20)
	for want, flags := range map[string][]string{
		"tune: flag provided but not defined: -bogus": {"-bogus"},
		"the data: not the same on all ranks: rank 1": {"-data", other},
		"lr is 0.0002 there, 0.5 here":                {"-lr", "0.5"},
	} {
		t.Run(want, func(t *testing.T) {
			args := []string{"tune", "-model", model, "-data", data, "-steps", "4", "-batch", "6", "-compute", "f32", "-o", filepath.Join(t.TempDir(), "out")}
			began := time.Now()
			c, out, errs := onRanks(t, 1, args...)
			more := slices.Clone(args)
			if at := slices.Index(more, flags[0]); at >= 0 { // an input comes once
				more[at+1] = flags[1]
			} else {
				more = append(more, flags...)
			}
			second, err := json.Marshal(more)
			require.NoError(t, err)
			c.Args = append(c.Args, ":", "-n", "1", "env", ranksVariable+"="+string(second), os.Args[0], "-test.run=^TestTuneRanksJob$")
			require.Error(t, c.Run(), "%s%s", out, errs)
			require.Contains(t, errs.String(), want)
			require.Less(t, time.Since(began), 30*time.Second)
		})
	}
}

// requireNear requires that two files have the same tensors, up to rounding.
func requireNear(t *testing.T, want, got string) {
	t.Helper()
	a, err := amp.OpenWeights(want)
	require.NoError(t, err)
	b, err := amp.OpenWeights(got)
	require.NoError(t, err)
	for _, tensor := range a.Tensors() {
		n := 1
		for _, d := range tensor.Shape {
			n *= d
		}
		x, y := make([]float32, n), make([]float32, n)
		require.NoError(t, a.Load(tensor.Name, snug.ViewOf(x)))
		require.NoError(t, b.Load(tensor.Name, snug.ViewOf(y)))
		require.InDeltaSlice(t, x, y, 1e-3, tensor.Name)
	}
	require.NoError(t, errors.Join(a.Close(), b.Close()))
}

// A run whose ranks are killed goes on from its last checkpoint to the bits of one that was not, and with another
// number of ranks to its end.
//
//check:in ranks
func TestTuneRanksGoOn(t *testing.T) {
	t.Run("adapters", func(t *testing.T) { ranksGoOn(t, "adapter_model.safetensors", "-lora", "2") })
	t.Run("weights", func(t *testing.T) { ranksGoOn(t, "model.safetensors", "-full", "-shard", "weights") })
}

func ranksGoOn(t *testing.T, file string, flags ...string) {
	model, data := publish(t), chats(t, 60)
	args := func(dir string) []string {
		return append([]string{"tune", "-model", model, "-data", data, "-steps", "60", "-batch", "6", "-compute", "f32", "-save-every", "5",
			"-checkpoint", filepath.Join(dir, "saved"), "-o", filepath.Join(dir, "out")}, flags...)
	}
	weights := func(dir string) []byte {
		b, err := os.ReadFile(filepath.Join(dir, "out", file))
		require.NoError(t, err)
		return b
	}
	whole := t.TempDir()
	c, out, errs := onRanks(t, 2, args(whole)...)
	require.NoError(t, c.Run(), "%s%s", out, errs)
	for _, n := range []int{2, 3} {
		dir := t.TempDir()
		c, out, errs := onRanks(t, 2, args(dir)...)
		require.NoError(t, c.Start())
		for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(time.Millisecond) {
			if found, _ := filepath.Glob(filepath.Join(dir, "saved", "step-*")); len(found) > 0 {
				break
			}
		}
		require.NoError(t, c.Process.Kill()) // which ends the ranks too
		require.Error(t, c.Wait(), "%s%s", out, errs)
		time.Sleep(time.Second)
		c, out, errs = onRanks(t, n, args(dir)...)
		require.NoError(t, c.Run(), "%s%s", out, errs)
		require.Contains(t, out.String(), "going on from step")
		if n == 2 {
			require.Equal(t, weights(whole), weights(dir))
		} else {
			require.Len(t, weights(dir), len(weights(whole)))
		}
	}
}
