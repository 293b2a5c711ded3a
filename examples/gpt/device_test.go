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

// TestCalls: without pages a step waits once for the loss of each micro-batch and once for the norm of all gradients. It
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
			micros := int64(len(tr.batches(0)))
			require.Equal(t, c.window, int(micros))
			require.Equal(t, driver.Counts{Waits: micros + 1, ToHost: micros + 1, ToDevice: r.Calls.ToDevice}, r.Calls.Counts)
			var out strings.Builder
			printCalls(&out, p.Dev, r.Calls)
			require.Contains(t, out.String(), fmt.Sprintf("in a step: 3 waits; %d kernels; copies: 3 to the host, ", r.Calls.Launches))
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
