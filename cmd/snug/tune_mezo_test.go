package main

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug/internal/kerneltest"
)

// TestTuneMeZO: forward passes alone lower the loss, and hold what evaluation does: no gradients and no state.
//
//check:not bits32
func TestTuneMeZO(t *testing.T) {
	model, data := publish(t), chats(t, 60)
	type run struct {
		rate  string
		flags []string
	}
	for i, c := range []run{
		{"1e-3", []string{"-full", "-compute", "f32"}}, {"1e-3", []string{"-full"}}, {"3e-3", []string{"-base", "nf4"}},
		{"3e-4", []string{"-adapter", "pissa", "-modules-to-save", "norm", "-loraplus-ratio", "2", "-compute", "f32"}},
		{"3e-3", []string{"-adapter", "dora", "-base", "int8", "-disk", "1GiB", "-memory", "1GiB"}},
	} {
		if !kerneltest.Taken(i, 4) {
			continue
		}
		out := filepath.Join(t.TempDir(), "out")
		status, stdout, errs := snugged(append([]string{"tune", "-optimizer", "mezo", "-model", model, "-data", data, "-o", out, "-steps", "100",
			"-lr", c.rate, "-batch", "6", "-held-out", "0.3", "-json"}, c.flags...)...)
		require.Zero(t, status, "%v: %s", c.flags, errs)
		r := lastLine(t, stdout)
		t.Logf("%v: %.4f %.4f, %d of %d bytes", c.flags, r.LossFirst, r.LossLast, r.Measured, r.Predicted)
		require.Less(t, r.LossLast, r.LossFirst, c.flags)
		require.LessOrEqual(t, r.Measured, r.Predicted, "%v: %s", c.flags, stdout)
		require.Greater(t, float64(r.Measured), 0.9*float64(r.Predicted), "%v: %s", c.flags, stdout)
	}
}

// TestTuneProdigy: the optimizer finds the rate, for adapters and for all weights, and takes the predicted memory.
//
//check:not bits32
func TestTuneProdigy(t *testing.T) {
	model, data := publish(t), chats(t, 60)
	for i, flags := range [][]string{{"-full"}, {"-base", "nf4"}} {
		if !kerneltest.Taken(i, 2) {
			continue
		}
		out := filepath.Join(t.TempDir(), "out")
		status, stdout, errs := snugged(append([]string{"tune", "-optimizer", "prodigy", "-model", model, "-data", data, "-o", out, "-steps", "120",
			"-batch", "6", "-held-out", "0.3", "-json"}, flags...)...)
		require.Zero(t, status, "%v: %s", flags, errs)
		r := lastLine(t, stdout)
		require.Less(t, r.LossLast, r.LossFirst, flags)
		require.LessOrEqual(t, r.Measured, r.Predicted, "%v: %s", flags, stdout)
		require.Greater(t, float64(r.Measured), 0.9*float64(r.Predicted), "%v: %s", flags, stdout)
	}
}
