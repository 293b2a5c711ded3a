//go:build unix

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/transformer"
)

// A run that a signal ends is gone on with, to the bits of one that was not ended; a second process
// cannot take its folder.
func TestTuneGoesOn(t *testing.T) {
	caught := make(chan os.Signal, 9) // signals that come after a run
	signal.Notify(caught, syscall.SIGTERM)
	defer signal.Stop(caught)
	model, data := publish(t), chats(t, 60)
	run := func(dir string, signals int) []byte {
		args := []string{"tune", "-model", model, "-data", data, "-epochs", "6", "-batch", "6", "-lora", "2", "-checkpoint", filepath.Join(dir, "saved"), "-save-every", "5", "-o", filepath.Join(dir, "out")}
		for i := range signals {
			stop := make(chan struct{})
			go func() {
				for {
					found, _ := filepath.Glob(filepath.Join(dir, "saved", "step-*"))
					if len(found) > min(i, 1) {
						_ = syscall.Kill(os.Getpid(), syscall.SIGTERM)
						return
					}
					select {
					case <-stop:
						return
					case <-time.After(time.Millisecond):
					}
				}
			}()
			status, _, errs := snugged(args...)
			close(stop)
			if status == 0 {
				break // it was faster
			}
			require.Equal(t, 128+int(syscall.SIGTERM), status, errs)
			require.Contains(t, errs, "which is saved")
			require.NoDirExists(t, filepath.Join(dir, "out"))
		}
		if signals == 0 || !exists(filepath.Join(dir, "out")) {
			status, _, errs := snugged(args...)
			require.Zero(t, status, errs)
		}
		weights, err := os.ReadFile(filepath.Join(dir, "out", "adapter_model.safetensors"))
		require.NoError(t, err)
		return weights
	}
	require.Equal(t, run(t.TempDir(), 0), run(t.TempDir(), 3))
}

func exists(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}

const killedVariable = "SNUG_KILLED_JOB"

// TestTuneKilled: a run with pages that SIGKILL ends leaves its pages behind, and the next run with the
// same output takes their place.
//
//check:not bits32
func TestTuneKilled(t *testing.T) {
	for _, j := range pagedJobs(t) {
		text, err := json.Marshal(j)
		require.NoError(t, err)
		c := exec.Command(os.Args[0], "-test.run=^TestTuneKilledJob$")
		c.Env = append(os.Environ(), killedVariable+"="+string(text))
		var ended *exec.ExitError
		require.ErrorAs(t, c.Run(), &ended)
		require.Equal(t, syscall.SIGKILL, ended.Sys().(syscall.WaitStatus).Signal())
		require.NoDirExists(t, j.Out)
		require.FileExists(t, filepath.Join(j.Out+".pages", "snug.pages"))

		r := j.tuning(t)
		require.NoError(t, r.runPaged())
		require.NoDirExists(t, r.pagesDir())
		whole := j
		whole.Out = filepath.Join(t.TempDir(), "out")
		require.NoError(t, whole.tuning(t).runPaged())
		require.Equal(t, whole.outputs(t), j.outputs(t))
	}
}

// TestTuneKilledJob is the run that is killed, after a step.
//
//check:not bits32
func TestTuneKilledJob(t *testing.T) {
	text := os.Getenv(killedVariable)
	if text == "" {
		return
	}
	var j pagedJob
	require.NoError(t, json.Unmarshal([]byte(text), &j))
	r := j.tuning(t)
	_, err := r.open()
	require.NoError(t, err)
	batches, err := r.data.Batch(0, r.batch, r.plan.Run.Micro)
	require.NoError(t, err)
	_, err = r.trainer.Train(context.Background(), batches)
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGKILL))
	select {}
}

const limitedVariable = "SNUG_LIMITED_JOB"

// deepModel publishes a model of 8 layers, and texts of many lengths.
func deepModel(t *testing.T) (model, data string) {
	var b strings.Builder
	for i := range 80 {
		fmt.Fprintf(&b, `{"text": %q}`+"\n", strings.Repeat(letters[i%20:i%20+6], 1+i*7%80))
	}
	data = filepath.Join(t.TempDir(), "texts.jsonl")
	require.NoError(t, os.WriteFile(data, []byte(b.String()), 0o600))
	small := publish(t)
	config, err := transformer.ReadConfig(small)
	require.NoError(t, err)
	config.Layers, config.Windows, config.Hidden, config.Context = 8, make([]int, 8), 128, 512
	m, err := transformer.New(config, transformer.Options{})
	require.NoError(t, err)
	model = t.TempDir()
	require.NoError(t, m.Save(model, 0))
	require.NoError(t, copyCompanions(model, small, false, nil))
	return model, data
}

// limited runs a command in a process of its own.
func limited(t *testing.T, args ...string) (out string, err error) {
	text, err := json.Marshal(args)
	require.NoError(t, err)
	c := exec.Command(os.Args[0], "-test.run=^TestTuneLimitedJob$", "-test.v")
	c.Env = append(os.Environ(), limitedVariable+"="+string(text))
	b, err := c.Output()
	return string(b), err
}

// limitedResult returns the result of a command of limited, which must not fail.
func limitedResult(t *testing.T, args ...string) (r result) {
	out, err := limited(t, args...)
	require.NoError(t, err, "%s", out)
	_, line, found := strings.Cut(out, "{\"model\"")
	require.True(t, found, "%s", out)
	require.NoError(t, json.NewDecoder(strings.NewReader("{\"model\""+line)).Decode(&r))
	return r
}

// pageNoise is the most by which the resident memory of equal processes differs: pages of the program that systems map differently.
const pageNoise = 1 << 20

// TestTuneKeepsItsLimit: a process of its own, whose samples have many lengths, stays within -memory.
//
//check:not bits32
func TestTuneKeepsItsLimit(t *testing.T) {
	kerneltest.Slow(t) // trains in processes of their own
	model, data := deepModel(t)
	const limit = 60 << 20 // the program takes 37 to 49 of it, by how the system maps its file, of which the server of snug serve is 2.5
	for _, flags := range [][]string{{"-lora", "4"}, {"-full"}, {"-lora", "4", "-report", filepath.Join(t.TempDir(), "run.html")}} {
		t.Run(strings.Join(flags, " "), func(t *testing.T) {
			r := limitedResult(t, append([]string{"tune", "-model", model, "-data", data, "-o", filepath.Join(t.TempDir(), "out"), "-batch", "16", "-epochs", "1", "-memory", "60MiB", "-json"}, flags...)...)
			require.LessOrEqual(t, r.PeakRSS, int64(limit+pageNoise), "%v", flags)
			require.Greater(t, r.Resident, int64(limit)*3/4, "the plan uses the memory")
		})
	}
}

// TestTuneNamesItsLimit: processes with the -memory that the error of a smaller one names train, and stay within it. The
// flag can be copied from the error.
//
//check:not bits32
func TestTuneNamesItsLimit(t *testing.T) {
	kerneltest.Slow(t) // trains in processes of their own
	model, data := deepModel(t)
	for _, flags := range [][]string{{"-full", "-context", "128"}, {"-lora", "4", "-base", "nf4", "-context", "256"}} {
		args := append([]string{"tune", "-model", model, "-data", data, "-batch", "4", "-steps", "2", "-json"}, flags...)
		out, err := limited(t, append(args, "-o", filepath.Join(t.TempDir(), "out"), "-memory", "8MiB")...)
		require.Error(t, err)
		named := regexp.MustCompile(`wants -memory ([0-9]+MiB)`).FindStringSubmatch(out)
		require.Len(t, named, 2, "%s", out)
		limit, err := meter.ParseBytes(named[1])
		require.NoError(t, err)
		for range 3 {
			r := limitedResult(t, append(args, "-o", filepath.Join(t.TempDir(), "out"), "-memory", named[1])...)
			require.LessOrEqual(t, r.PeakRSS, limit, "%v", flags)
		}
	}
}

//check:not bits32
func TestTuneLimitedJob(t *testing.T) {
	var args []string
	if text := os.Getenv(limitedVariable); text == "" {
		t.Skip("not a process of TestTuneKeepsItsLimit")
	} else {
		require.NoError(t, json.Unmarshal([]byte(text), &args))
	}
	status, out, errs := snugged(args...)
	fmt.Println(out)
	require.Zero(t, status, errs)
}

// TestPlanNamesWhatTuneKeeps: what plan says that fits in -memory, tune runs within it, and what plan says that does not
// fit, tune refuses, unless its data are small; both name a limit that is enough for tune.
//
//check:not bits32
func TestPlanNamesWhatTuneKeeps(t *testing.T) {
	kerneltest.Slow(t) // trains in processes of their own
	model, data := deepModel(t)
	named := regexp.MustCompile(`(plan|tune): -memory 8\.00 MiB: nothing fits: .* wants -memory ([0-9]+MiB)`)
	for _, c := range []struct{ plan, tune []string }{
		{[]string{"-context", "128"}, []string{"-full", "-context", "128"}},
		{[]string{"-lora", "4", "-base", "nf4", "-context", "256"}, []string{"-lora", "4", "-base", "nf4", "-context", "256"}},
	} {
		t.Run(strings.Join(c.tune, " "), func(t *testing.T) {
			planned := append([]string{"plan", "-batch", "4"}, c.plan...)
			tuned := append([]string{"tune", "-model", model, "-data", data, "-batch", "4", "-steps", "2", "-json"}, c.tune...)
			out, err := limited(t, append(planned, "-memory", "8MiB", model)...)
			require.Error(t, err)
			byPlan := named.FindStringSubmatch(out)
			require.Len(t, byPlan, 3, "%s", out)
			out, err = limited(t, append(tuned, "-o", filepath.Join(t.TempDir(), "out"), "-memory", "8MiB")...)
			require.Error(t, err)
			byTune := named.FindStringSubmatch(out)
			require.Len(t, byTune, 3, "%s", out)
			a, err := meter.ParseBytes(byPlan[2])
			require.NoError(t, err)
			b, err := meter.ParseBytes(byTune[2])
			require.NoError(t, err)
			require.GreaterOrEqual(t, a, b)
			require.LessOrEqual(t, a, b+readingBytes, "small data take less of readingBytes")
			out, err = limited(t, append(planned, "-memory", byPlan[2], model)...)
			require.NoError(t, err, "%s", out)
			r := limitedResult(t, append(tuned, "-o", filepath.Join(t.TempDir(), "out"), "-memory", byPlan[2])...)
			require.LessOrEqual(t, r.PeakRSS, a)
		})
	}
}
