package main

import (
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug/plan"
)

// A run keeps the micro-batches, the form of its weights and of its state when less memory is free for the
// process that goes on, and takes less by other means.
//
//check:not bits32
func TestTuneKeepsItsChoices(t *testing.T) {
	model, data := publish(t), chats(t, 30)
	for _, full := range []bool{false, true} {
		f := tuneFlags{dir: model, files: data, full: full, batch: 8, compute: "bf16", adapterFlags: adapterFlags{rank: 4}, dryRun: true, seed: 1, saveEvery: 1}
		require.NoError(t, f.check())
		m, err := f.gather()
		require.NoError(t, err)
		choose := func(more int, begun *choices) (choices, error) {
			r := &tuning{tuneFlags: f, material: m, process: plan.Process{Base: 1 << 30}, begun: begun}
			r.memory = r.process.Base + int64(more)
			err := r.choose()
			return choicesOf(r.plan), err
		}
		const step = 4 << 10
		ample, err := choose(8<<20, nil)
		require.NoError(t, err)
		require.Equal(t, 8, ample.Micro)
		least := step * sort.Search(4<<10, func(i int) bool { _, err := choose(i*step, &ample); return err == nil })
		other, err := choose(least, nil)
		require.NoError(t, err)
		require.NotEqual(t, ample, other, "a new run does otherwise in this memory")
		same, err := choose(least, &ample)
		require.NoError(t, err)
		require.Equal(t, ample, same)
	}
}

// A run goes on under another limit, to the same bits, and not with other flags. Adapters of all kinds do.
func TestTuneGoesOnWithLessMemory(t *testing.T) {
	for _, kind := range kindNames() {
		testTuneGoesOn(t, kind)
	}
}

func testTuneGoesOn(t *testing.T, kind string) {
	model, data, dir := publish(t), chats(t, 60), t.TempDir()
	run := func(out string, flags ...string) (int, string, string) {
		if !strings.HasPrefix(flags[len(flags)-1], "-modules-to-save") {
			flags = append(flags, "-modules-to-save", "norm")
		}
		return snugged(append([]string{"tune", "-model", model, "-data", data, "-steps", "6", "-batch", "6", "-lora", "2", "-save-every", "3", "-adapter", kind,
			"-o", filepath.Join(dir, out)}, flags...)...)
	}
	saved := filepath.Join(dir, "saved")
	status, _, errs := run("one", "-checkpoint", saved)
	require.Zero(t, status, errs)
	require.NoError(t, os.RemoveAll(filepath.Join(saved, "step-00000006")))
	status, out, errs := run("two", "-checkpoint", saved, "-memory", "1GiB")
	require.Zero(t, status, errs)
	require.Contains(t, out, "going on from step 3 of 6")
	one, err := os.ReadFile(filepath.Join(dir, "one", "adapter_model.safetensors"))
	require.NoError(t, err)
	two, err := os.ReadFile(filepath.Join(dir, "two", "adapter_model.safetensors"))
	require.NoError(t, err)
	require.Equal(t, one, two)
	if kind != "lora" {
		return
	}
	for flag, want := range map[string]string{"-base=nf4": `base is "" there, "nf4" here`, "-adapter=dora": "dora", "-adapter=vera": "adapter", "-loraplus-ratio=2": "loraplus-ratio", "-modules-to-save=lm_head": "modules-to-save", "-lr=1": "lr", "-z-loss=1": "z-loss", "-tiles=2": "tiles"} {
		status, out, errs = run("three", "-checkpoint", saved, flag)
		require.Equal(t, 1, status)
		require.Contains(t, errs, "it is of another run: "+want)
		require.Equal(t, 1, strings.Count(errs, "\n"), errs)
		require.Empty(t, out, "nothing is planned")
		require.NoDirExists(t, filepath.Join(dir, "three"))
	}
}

// A run with an optimizer goes on with that one only.
//
//check:not bits32
func TestTuneKeepsItsOptimizer(t *testing.T) {
	model, data, dir := publish(t), chats(t, 20), t.TempDir()
	run := func(out string, flags ...string) (int, string, string) {
		return snugged(append([]string{"tune", "-model", model, "-data", data, "-steps", "4", "-full", "-lr", "1e-4", "-save-every", "2",
			"-checkpoint", filepath.Join(dir, "saved"), "-o", filepath.Join(dir, out)}, flags...)...)
	}
	status, _, errs := run("one", "-optimizer", "apollo-mini")
	require.Zero(t, status, errs)
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "saved", "step-00000004")))
	for _, flags := range [][]string{{}, {"-optimizer", "apollo"}} {
		status, _, errs = run("two", flags...)
		require.Equal(t, 1, status)
		require.Contains(t, errs, "it is of another run: optimizer")
	}
	status, out, errs := run("two", "-optimizer", "apollo-mini")
	require.Zero(t, status, errs)
	require.Contains(t, out, "going on from step 2 of 4")
	one, err := os.ReadFile(filepath.Join(dir, "one", "model.safetensors"))
	require.NoError(t, err)
	two, err := os.ReadFile(filepath.Join(dir, "two", "model.safetensors"))
	require.NoError(t, err)
	require.Equal(t, one, two)
}
