package mpi

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/accum"
	"github.com/snug-ml/snug/attention"
)

// TestAttention: attention over ranks has the bits that it has over the ranks of Local.
func TestAttention(t *testing.T) {
	eachLauncher(t, func(t *testing.T, launcher string, env ...string) {
		for _, n := range []int{1, 2, 3} {
			r := launch(t, launcher, n, "attention", env...)
			require.NoError(t, r.err, "%d ranks: %s%s", n, r.out, r.errs)
			require.Equal(t, n, strings.Count(r.out, "equal"), "%s%s", r.out, r.errs)
		}
	})
}

// TestAttentionDiffers: ranks whose Options differ get an error, and go on with Options that do not.
func TestAttentionDiffers(t *testing.T) {
	eachLauncher(t, func(t *testing.T, launcher string, env ...string) {
		r := launch(t, launcher, 2, "unlike", env...)
		require.NoError(t, r.err, "%s%s", r.out, r.errs)
		require.Equal(t, 4, strings.Count(r.out, "attention: ranks 0 and 1 differ in Dropout: "), "%s%s", r.out, r.errs)
	})
}

// unlike computes attention with another seed on each rank.
func unlike(w *World) error {
	for _, do := range overRanks {
		_, err := do(w, snug.F32, uint64(w.Rank()))
		if !errors.Is(err, snug.ErrConfig) {
			return fmt.Errorf("no error of Options that differ, but: %w", err)
		}
		first, _, _ := strings.Cut(err.Error(), "\n") // forward, and then backward
		fmt.Println(first)
		if _, err := do(w, snug.F32, 5); err != nil {
			return err
		}
	}
	return nil
}

var (
	_ attention.SendReceiver = (*World)(nil)
	_ attention.AllToAller   = (*World)(nil)
)

// overRanks are the two ways.
var overRanks = []func(r accum.Reducer, dt snug.DType, seed uint64) ([]snug.View, error){overRing, overHeads}

// attend computes attention by MPI and by Local.
func attend(w *World) error {
	rank, size := w.Rank(), w.Size()
	for _, dt := range []snug.DType{snug.F32, snug.BF16, snug.F16} {
		for i, do := range overRanks {
			const seed = 5
			got, err := do(w, dt, seed)
			if err != nil {
				return err
			}
			var failed error
			want := together(size, rank, func(r accum.Reducer, at int) []snug.View {
				views, err := do(r, dt, seed)
				if err != nil && at == rank {
					failed = err
				}
				return views
			})
			if failed != nil {
				return failed
			}
			for n := range want {
				if string(hostBytes(got[n])) != string(hostBytes(want[n])) {
					return fmt.Errorf("result %d of %s, %s, differs from Local", n, []string{"the ring", "Ulysses"}[i], dt)
				}
			}
		}
	}
	fmt.Println("equal")
	return nil
}

// tensors returns vectors of normal numbers of a rank.
func tensors(r accum.Reducer, dt snug.DType, lengths ...int) (all []snug.View) {
	rng := rand.New(rand.NewPCG(uint64(r.Rank()), 11))
	for _, n := range lengths {
		v, _, err := snug.MakeView(snug.CPU(), dt, n)
		if err != nil {
			panic(err)
		}
		x := make([]float64, n)
		for i := range x {
			x[i] = rng.NormFloat64()
		}
		if err := snug.FromFloat64(v, x); err != nil {
			panic(err)
		}
		all = append(all, v)
	}
	return all
}

// overRing returns out, lse, dq, dk and dv of a rank.
func overRing(r accum.Reducer, dt snug.DType, seed uint64) ([]snug.View, error) {
	ranks := r.(attention.SendReceiver)
	c := attention.Options{Batch: 2, Heads: 4, KVHeads: 2, SeqQ: 101, Dim: 8, Causal: true, Dropout: attention.Dropout{P: 0.2, Seed: seed}}
	n := 0
	for _, rows := range attention.RingRows(c.SeqQ, r.Rank(), r.Size()) {
		n += rows.Len()
	}
	q, k := c.Batch*c.Heads*n*c.Dim, c.Batch*c.KVHeads*n*c.Dim
	x := tensors(r, dt, q, k, k, q, q, q, k, k) // q, k, v, dout, and results
	lse := snug.SliceView(make([]float32, c.Batch*c.Heads*n))
	forward, backward := c.RingWorkspaceLen(r.Size(), dt)
	ws := snug.SliceView(make([]float32, max(forward, backward)))
	err := errors.Join(
		attention.RingForward(ranks, x[4], lse, x[0], x[1], x[2], c, ws),
		attention.RingBackward(ranks, x[5], x[6], x[7], x[3], x[0], x[1], x[2], x[4], lse, c, ws),
	)
	return append(x[4:], lse), err
}

// overHeads returns out, lse, dq, dk and dv of a rank.
func overHeads(r accum.Reducer, dt snug.DType, seed uint64) ([]snug.View, error) {
	ranks := r.(attention.AllToAller)
	c := attention.Options{Batch: 2, Heads: 6, KVHeads: 1, SeqQ: 96, Dim: 8, Causal: true, Dropout: attention.Dropout{P: 0.2, Seed: seed}}
	n := c.SeqQ / r.Size()
	q, k := c.Batch*c.Heads*n*c.Dim, c.Batch*c.KVHeads*n*c.Dim
	x := tensors(r, dt, q, k, k, q, q, q, k, k) // q, k, v, dout, and results
	lse := snug.SliceView(make([]float32, c.Batch*c.Heads*n))
	forward, backward := c.UlyssesWorkspaceLen(r.Size(), dt)
	ws := snug.SliceView(make([]float32, max(forward, backward)))
	err := errors.Join(
		attention.UlyssesForward(ranks, x[4], lse, x[0], x[1], x[2], c, ws),
		attention.UlyssesBackward(ranks, x[5], x[6], x[7], x[3], x[0], x[1], x[2], x[4], lse, c, ws),
	)
	return append(x[4:], lse), err
}
