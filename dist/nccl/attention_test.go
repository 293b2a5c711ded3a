//go:build linux

package nccl

import (
	"errors"
	"fmt"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/accum"
	"github.com/snug-ml/snug/attention"
	"github.com/snug-ml/snug/internal/ranks"
	"github.com/stretchr/testify/require"
)

var (
	_ attention.SendReceiver = (*World)(nil)
	_ attention.AllToAller   = (*World)(nil)
)

// attend returns an operation that computes attention of n rows a rank over the ring, or by heads, and its gradients.
func attend(c attention.Options, dt snug.DType, byHeads bool) operation {
	const n = 12
	at := func(size int) (attention.Options, int, int) {
		c := c
		c.SeqQ = n * size
		forward, backward := c.RingWorkspaceLen(size, dt)
		if byHeads {
			forward, backward = c.UlyssesWorkspaceLen(size, dt)
		}
		return c, n, max(forward, backward)
	}
	return operation{
		vectors: func(rank, size int) (all []snug.View) {
			c, n, ws := at(size)
			q, k := c.Batch*c.Heads*n*c.Dim, c.Batch*c.KVHeads*n*c.Dim
			for i, length := range []int{q, q, k, k, q, k, k, q} { // out, and dq, dk, dv, q, k, v, dout
				x := make([]float64, length)
				for j := range x {
					x[j] = float64((j*7+i*5+rank*3)%11-5) / 4
				}
				v, _, err := snug.MakeView(snug.CPU(), dt, length)
				if err == nil {
					err = snug.FromFloat64(v, x)
				}
				if err != nil {
					panic(err)
				}
				all = append(all, v)
			}
			return append(all, snug.ViewOf(make([]float32, c.Batch*c.Heads*n)), snug.ViewOf(make([]float32, ws)))
		},
		do: func(r accum.Reducer, v []snug.View) error {
			c, _, _ := at(r.Size())
			lse, ws := v[8], v[9]
			if byHeads {
				ranks := r.(attention.AllToAller)
				if err := attention.UlyssesForward(ranks, v[0], lse, v[4], v[5], v[6], c, ws); err != nil {
					return err
				}
				return attention.UlyssesBackward(ranks, v[1], v[2], v[3], v[7], v[4], v[5], v[6], v[0], lse, c, ws)
			}
			ranks := r.(attention.SendReceiver)
			if err := attention.RingForward(ranks, v[0], lse, v[4], v[5], v[6], c, ws); err != nil {
				return err
			}
			return attention.RingBackward(ranks, v[1], v[2], v[3], v[7], v[4], v[5], v[6], v[0], lse, c, ws)
		},
	}
}

var attended = attention.Options{Batch: 2, Heads: 6, KVHeads: 6, Dim: 4, Causal: true}

// TestAttention: attention over ranks with devices has the bits that it has over the ranks of Local, and moves nothing
// through host memory.
func TestAttention(t *testing.T) {
	for size := 1; size <= 3; size++ {
		j := start(t, size, nil)
		for _, dt := range []snug.DType{snug.F32, snug.BF16} {
			for _, byHeads := range []bool{false, true} {
				o := attend(attended, dt, byHeads)
				for _, err := range j.each(func(rank int) error {
					want, err := alone(size, rank, o)
					if err != nil {
						return err
					}
					got := o.vectors(rank, size)
					if err := onDevice(j.devs[rank], got, func(v []snug.View) error { return o.do(j.worlds[rank], v) }); err != nil {
						return err
					}
					for i := range got[:9] {
						if !sameBits(got[i], want[i]) {
							return fmt.Errorf("vector %d of %s, by heads %t, differs from Local", i, dt, byHeads)
						}
					}
					return nil
				}) {
					require.NoError(t, err)
				}
			}
		}
		for _, w := range j.worlds {
			require.Zero(t, w.engine.Stages[ranks.StageVector].Size)
		}
	}
}

// TestAttentionDiffers: ranks whose Options differ get an error, and go on with Options that do not. What they compare lies
// on the device.
func TestAttentionDiffers(t *testing.T) {
	for _, byHeads := range []bool{false, true} {
		j := start(t, 2, nil)
		for _, err := range j.each(func(rank int) error {
			one, other := attended, attended
			other.Dropout = attention.Dropout{P: 0.5, Seed: uint64(rank)}
			o := attend(other, snug.BF16, byHeads)
			err := onDevice(j.devs[rank], o.vectors(rank, 2), func(v []snug.View) error { return o.do(j.worlds[rank], v) })
			if !errors.Is(err, snug.ErrConfig) || err.Error() != "attention: ranks 0 and 1 differ in Dropout: "+snug.ErrConfig.Error() {
				return fmt.Errorf("no error of Dropout but: %w", err)
			}
			o = attend(one, snug.BF16, byHeads)
			return onDevice(j.devs[rank], o.vectors(rank, 2), func(v []snug.View) error { return o.do(j.worlds[rank], v) })
		}) {
			require.NoError(t, err)
		}
		for _, w := range j.worlds {
			require.Zero(t, w.engine.Stages[ranks.StageVector].Size)
		}
	}
}
