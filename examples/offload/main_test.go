package main

import (
	"fmt"
	"math"
	"path/filepath"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/offload"
	"github.com/snug-ml/snug/quant8"
	"github.com/stretchr/testify/require"
)

// noise returns n numbers about 0 that depend on the seed.
func noise(n, seed int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(math.Sin(float64(i*(seed+3) + seed)))
	}
	return x
}

func requireSameBits(t *testing.T, want, got []float32) {
	t.Helper()
	require.Len(t, got, len(want))
	for i := range want {
		require.Equal(t, math.Float32bits(want[i]), math.Float32bits(got[i]), i)
	}
}

// rules are optimizers of quant8 over a Storage, or in memory for nil.
var rules = map[string]func(quant8.Storage) (*quant8.Optimizer, error){
	"adamw 8 bits": func(s quant8.Storage) (*quant8.Optimizer, error) {
		return quant8.New(quant8.AdamW{WeightDecay: 0.1}, quant8.Options{Chunk: 1024, Storage: s})
	},
	"adamw 32 bits": func(s quant8.Storage) (*quant8.Optimizer, error) {
		return quant8.New(quant8.AdamW{WeightDecay: 0.1}, quant8.Options{Chunk: 1024, Bits: 32, Storage: s})
	},
	"lion 8 bits": func(s quant8.Storage) (*quant8.Optimizer, error) {
		return quant8.New(quant8.Lion{}, quant8.Options{Chunk: 1024, Storage: s})
	},
	"ademamix 4 bits": func(s quant8.Storage) (*quant8.Optimizer, error) {
		return quant8.New(quant8.AdEMAMix{}, quant8.Options{Bits: 4, Chunk: 1024, Storage: s})
	},
}

// TestPagedRules compares the bits of quant8's optimizers in memory with those whose
// state, float32 weights and gradients are pages in a limit of a few, over a restart in
// the middle.
func TestPagedRules(t *testing.T) {
	sizes := []int{9000, 5001, 300}
	const limit = 8 * 4 * 1024
	for name, rule := range rules {
		t.Run(name, func(t *testing.T) {
			inMemory, err := rule(nil)
			require.NoError(t, err)
			want := make([][]float32, len(sizes))
			for i, n := range sizes {
				want[i] = noise(n, i)
				require.NoError(t, inMemory.Add(fmt.Sprint(i), n))
			}
			dir := t.TempDir()
			open := func() (*offload.Store, *offload.Updater) {
				s, err := offload.Open(dir, offload.Options{HostLimit: limit})
				require.NoError(t, err)
				opt, err := rule(s)
				require.NoError(t, err)
				u, err := offload.NewUpdater(s, opt, offload.UpdaterOptions{PageLen: 1024})
				require.NoError(t, err)
				for i, n := range sizes {
					first := noise(n, i)
					require.NoError(t, u.Add(fmt.Sprint(i), n, func(lo int, w []float32) error {
						copy(w, first[lo:])
						return nil
					}))
				}
				_, err = u.Resume()
				require.NoError(t, err)
				return s, u
			}
			s, u := open()
			for step := 1; step <= 6; step++ {
				inMemory.Advance(0.01)
				for i, n := range sizes {
					g := noise(n, 7*step+i)
					require.NoError(t, inMemory.Step(fmt.Sprint(i), snug.ViewOf(want[i]), snug.ViewOf(g), 0.5))
					require.NoError(t, u.Accumulate(fmt.Sprint(i), 0, snug.ViewOf(g), 1))
				}
				require.NoError(t, u.Step(0.01, 0.5))
				if step == 3 {
					require.NoError(t, u.Commit())
					require.LessOrEqual(t, s.Stats().HostPeak, int64(limit))
					require.NoError(t, s.Close())
					s, u = open()
					require.Equal(t, 3, u.Steps())
				}
			}
			for i, n := range sizes {
				w, err := u.Weights(fmt.Sprint(i))
				require.NoError(t, err)
				got := make([]float32, n)
				require.NoError(t, w.ReadAt(got, 0))
				requireSameBits(t, want[i], got)
			}
			require.LessOrEqual(t, s.Stats().HostPeak, int64(limit))
			require.NoError(t, s.Close())
		})
	}
}

// TestWeightsFromSafetensors pages a tensor of a file in, from bfloat16 to float32.
func TestWeightsFromSafetensors(t *testing.T) {
	const n, pageLen = 5000, 256
	low, want := make([]snug.BFloat16, n), make([]float32, n)
	require.NoError(t, amp.Cast(low, noise(n, 1)))
	require.NoError(t, amp.Cast(want, low))
	path := filepath.Join(t.TempDir(), "model.safetensors")
	require.NoError(t, amp.SaveWeights(path, func(yield func(amp.Tensor, snug.View) bool) {
		yield(amp.Tensor{Name: "w", Shape: []int{50, 100}}, snug.ViewOf(low))
	}, nil))

	w, err := amp.OpenWeights(path)
	require.NoError(t, err)
	defer func() { require.NoError(t, w.Close()) }()
	s, err := offload.Open(t.TempDir(), offload.Options{HostLimit: 4 * 4 * pageLen})
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	x, err := offload.Attach[float32](s, "w", w, "w", n, pageLen)
	require.NoError(t, err)
	got := make([]float32, n)
	for range 3 {
		require.NoError(t, x.ReadAt(got, 0))
		requireSameBits(t, want, got)
	}
	require.LessOrEqual(t, s.Stats().HostPeak, int64(4*4*pageLen))
}

// TestRun trains for a few steps, cut off and taken up in between, with every option.
func TestRun(t *testing.T) {
	var lines []string
	c := config{width: 256, steps: 3, commit: 2, limit: 2 * mib, view: func(format string, args ...any) {
		lines = append(lines, fmt.Sprintf(format, args...))
	}}
	for _, delayed := range []bool{false, true} {
		c.delayed = delayed
		lines = nil
		dir := t.TempDir()
		require.NoError(t, run(t.Context(), dir, c))
		require.Len(t, lines, 4)
		require.Contains(t, lines[2], "of 2.00 MiB")
		c.steps = 5
		c.commit = 5 // the run in memory has commits elsewhere, which end delayed updates
		if !c.delayed {
			require.NoError(t, run(t.Context(), dir, c))
			require.Contains(t, lines[4], "going on from step 3")
		}
		c.steps, c.commit = 3, 2
	}
}
