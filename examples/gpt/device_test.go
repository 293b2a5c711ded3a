package main

import (
	"bytes"
	"context"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
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

// lossesOn returns the losses of two steps.
func lossesOn(t *testing.T, p kerneltest.Backend, c config) (losses []float64) {
	tr, err := newTrainer(p.Dev, c, words13(400), t.TempDir(), &checkpoints{})
	require.NoError(t, err)
	for range 2 {
		loss, err := tr.train(context.Background())
		require.NoError(t, err)
		losses = append(losses, loss)
	}
	held, err := tr.heldOutLoss(context.Background())
	require.NoError(t, err)
	var weights bytes.Buffer
	require.NoError(t, tr.writePart("weights", &weights))
	require.NotZero(t, weights.Len())
	require.NoError(t, tr.Close())
	return append(losses, held)
}
