package layers

import (
	"context"
	"math"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/remat"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestArena: no two blocks share a byte, and when all are free, each piece is one block again.
func TestArena(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var a arena
		if n := rapid.Int64Range(0, 1<<16).Draw(t, "reserved"); n > 0 {
			require.NoError(t, a.grow(snug.CPU(), n))
		}
		type taken struct {
			block
			bytes []uint8
			mark  uint8
		}
		var list []taken
		put := func(i int) {
			for _, b := range list[i].bytes {
				require.Equal(t, list[i].mark, b)
			}
			a.put(list[i].block)
			list = append(list[:i], list[i+1:]...)
		}
		for mark := range rapid.IntRange(1, 200).Draw(t, "operations") {
			if len(list) > 0 && rapid.Bool().Draw(t, "free") {
				put(rapid.IntRange(0, len(list)-1).Draw(t, "which"))
				continue
			}
			n := rapid.Int64Range(0, 5000).Draw(t, "bytes")
			b, err := a.take(snug.CPU(), n)
			require.NoError(t, err)
			require.Zero(t, b.lo%alignment)
			v := snug.Host[uint8](a.view(b, int(n)))
			require.Len(t, v, int(n))
			for i := range v {
				v[i] = uint8(mark)
			}
			list = append(list, taken{b, v, uint8(mark)})
		}
		for len(list) > 0 {
			put(len(list) - 1)
		}
		require.Len(t, a.free, len(a.pieces))
		for i, b := range a.free {
			require.Equal(t, block{i, 0, a.pieces[i].all.Len()}, b)
		}
		require.NoError(t, a.close())
		require.Zero(t, a.held())
	})
}

// TestGrowingBatches: memory of batches that grow does not add up, where nothing is reserved.
func TestGrowingBatches(t *testing.T) {
	m, err := NewModel(64, MSE{}, Options{}, NewLinear("a", 64, 64, true), GELU, NewLinear("b", 64, 64, true))
	require.NoError(t, err)
	for rows := 1; rows <= 300; rows++ {
		_, err := m.Evaluate(context.Background(), Sample{X: make([]float32, 64*rows), Y: make([]float32, 64*rows)})
		require.NoError(t, err)
		require.LessOrEqual(t, m.pass.Held(), 2*m.pass.Peak()+1<<17)
	}
}

// TestHugeTensors: a tensor of more bytes than there are numbers for is an error, and the next one is as ever.
func TestHugeTensors(t *testing.T) {
	p, err := NewPass(Options{})
	require.NoError(t, err)
	for _, width := range []int{math.MaxInt, math.MaxInt / 4, math.MaxInt/12 + 1, math.MaxInt/2 + 1} {
		require.NoError(t, p.Batch.Shape(3, 1, nil))
		p.Begin()
		require.Zero(t, p.Get(width).Len())
		require.ErrorIs(t, p.Failed(), snug.ErrNoMemory)
		x := p.Get(5)
		require.Equal(t, 15, x.Len())
		p.Put(x)
	}
}

// TestHeldIsThePeak: a model whose widths change holds little more than its tensors take at the peak, with and without recomputation,
// and no more in later batches that are not longer.
func TestHeldIsThePeak(t *testing.T) {
	var list []Layer
	width := 4096
	for i := range 10 {
		next := 256 + 300*(i*7%10)
		list = append(list, NewLinear(string(rune('a'+i)), width, next, false), GELU)
		width = next
	}
	m, err := NewModel(4096, MSE{}, Options{}, list...)
	require.NoError(t, err)
	costs, err := m.Costs(1, 64)
	require.NoError(t, err)
	for _, planned := range []func(remat.Costs) (remat.Plan, error){remat.KeepAll, remat.Chen, remat.RecomputeAll} {
		require.NoError(t, m.pass.pool.close())
		plan, err := planned(costs)
		require.NoError(t, err)
		require.NoError(t, m.SetPlan(plan))
		held := int64(0)
		for _, rows := range []int{64, 10, 64, 33} {
			if held == 0 {
				held = m.pass.Held()
				require.LessOrEqual(t, held, m.pass.Peak()*105/100)
			}
			require.Equal(t, held, m.pass.Held(), rows)
		}
	}
}
