package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/console"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/train"
	"github.com/stretchr/testify/require"
)

// TestDevices trains on every device of this build and compares the losses with
// the CPU's. One device runs the CPU's own kernels on memory that Go cannot
// address, and must give its bits.
func TestDevices(t *testing.T) {
	backends := kerneltest.Backends(t)
	for _, off := range []string{"", "offload", "amp", "offload,amp,quant8,remat,accum"} {
		t.Run("without "+off, func(t *testing.T) {
			on, err := allTechniques().without(off)
			require.NoError(t, err)
			c := micro(on, snug.BF16)
			want := lossesOn(t, backends[1], c)
			for _, p := range backends[2:] {
				got := lossesOn(t, p, c)
				if p.Name == "opaque" {
					require.Equal(t, want, got)
					continue
				}
				require.InDeltaSlice(t, want, got, 2e-3, p.Name)
			}
		})
	}
}

// TestCalls: without pages a step waits once for the losses of its micro-batches and once for the norm of all gradients. It
// allocates nothing, and copies nothing to the device but tokens, positions and targets.
func TestCalls(t *testing.T) {
	on, err := allTechniques().without("offload")
	require.NoError(t, err)
	c := micro(on, snug.BF16)
	for _, p := range kerneltest.Backends(t)[2:] {
		t.Run(p.Name, func(t *testing.T) {
			tr, err := newTrainer(p.Dev, c, words13(400), t.TempDir(), nil)
			require.NoError(t, err)
			var stderr strings.Builder
			r, err := tr.run(console.Stop{Now: t.Context(), After: t.Context()}, false, console.NewProgress(io.Discard, &stderr, c.steps))
			require.NoError(t, err)
			require.Len(t, tr.batches(0), c.window)
			require.Equal(t, driver.Counts{Waits: 2, ToHost: 2, ToDevice: r.Calls.ToDevice}, r.Calls.Counts)
			var out strings.Builder
			printCalls(&out, p.Dev, r.Calls)
			require.Contains(t, out.String(), fmt.Sprintf("in a step: 2 waits; %d kernels; copies: 2 to the host, ", r.Calls.Launches))
			require.NoError(t, tr.Close())
		})
	}
}

// lossesOn returns the losses of two steps.
func lossesOn(t *testing.T, p kerneltest.Backend, c config) (losses []float64) {
	c.saveEvery = 2
	saved, err := train.OpenFolder(t.TempDir(), 0)
	require.NoError(t, err)
	tr, err := newTrainer(p.Dev, c, words13(400), t.TempDir(), saved)
	require.NoError(t, err)
	for range 2 {
		r, err := step(context.Background(), tr)
		require.NoError(t, err)
		losses = append(losses, r.Loss)
	}
	held, err := tr.Evaluate(context.Background(), tr.heldOut)
	require.NoError(t, err)
	require.NoError(t, tr.Close())
	require.NoError(t, saved.Close())
	return append(losses, held.Sum/float64(held.Targets))
}

// TestLossRowsOfDevices: the rows of logits that suit a device, and under a limit as many of them as fit beside the
// micro-batch that it allows with the preset's.
func TestLossRowsOfDevices(t *testing.T) {
	fit := func(args ...string) options {
		o, err := parse(append([]string{"-preset", "34m"}, args...))
		require.NoError(t, err)
		if o.memory > 0 {
			require.NoError(t, o.fitMemory())
		}
		before := o.fit
		require.NoError(t, o.fitLossRows())
		require.Equal(t, before, o.fit)
		return o
	}
	o := fit()
	require.Equal(t, 1024, o.lossRows)
	_, bytes, err := o.predict()
	require.NoError(t, err)
	require.Equal(t, int64(4*1024*(16384+5)), bytes[meter.Workspace])
	require.Equal(t, 1024, fit("-memory", "4GiB").lossRows)
	for limit, rows := range map[string]int{"460MiB": 256, "500MiB": 128, "480MiB": 64} {
		t.Run(limit, func(t *testing.T) {
			o := fit("-memory", limit)
			_, bytes, err := o.predict()
			require.NoError(t, err)
			require.LessOrEqual(t, bytes.Total(), o.memory)
			require.Equal(t, rows, o.lossRows, "%s: micro-batches of %d take %d", limit, o.fit.Micro, bytes.Total()>>20)
		})
	}
}
