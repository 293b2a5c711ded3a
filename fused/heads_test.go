package fused

import (
	"math"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

// TestHeads copies and adds elements of heads, one by one, as the layouts say.
func TestHeads(t *testing.T) {
	const rows, heads, dim = 700, 3, 5
	wide, narrow := Heads{Row: 31, Head: 9}, Heads{Row: 7}
	for _, dt := range floatTypes {
		t.Run(dt.String(), func(t *testing.T) {
			cpu := kerneltest.Backends(t)[0]
			src := normals(newRand(1), dt, rows*31, 0, 1)
			psrc := kerneltest.PutFloats(t, cpu, dt, src)
			for name, from := range map[string]Heads{"each": wide, "shared": narrow} {
				dst := kerneltest.PutFloats(t, cpu, dt, fill(rows*31, 1.5))
				require.NoError(t, CopyHeads(dst.View, psrc.View, wide, from, rows, heads, dim))
				want := fill(rows*31, 1.5)
				for r := range rows {
					for h := range heads {
						copy(want[r*31+h*9:][:dim], src[r*from.Row+h*from.Head:])
					}
				}
				require.Equal(t, want, dst.Get(), name)
			}
			dst := kerneltest.PutFloats(t, cpu, dt, fill(rows*7, 1.5))
			require.NoError(t, SumHeads(dst.View, psrc.View, narrow, wide, rows, heads, dim))
			for i, v := range dst.Get() {
				r, e := i/7, i%7
				if e >= dim {
					require.EqualValues(t, 1.5, v)
					continue
				}
				sum := src[r*31+e] + src[r*31+9+e] + src[r*31+18+e]
				require.InDelta(t, sum, v, roundoff(dt, math.Abs(float64(sum)))+1e-30)
			}
		})
	}
	x := make([]float32, 40)
	for name, c := range map[string]struct {
		to, from         Heads
		rows, heads, dim int
	}{
		"a layout beyond src": {Heads{20, 10}, Heads{20, 16}, 2, 2, 5},
		"a layout beyond dst": {Heads{40, 10}, Heads{20, 10}, 2, 2, 5},
		"heads that overlap":  {Heads{20, 4}, Heads{20, 10}, 2, 2, 5},
		"rows that overlap":   {Heads{10, 10}, Heads{20, 10}, 2, 2, 5},
		"negative rows":       {Heads{20, 10}, Heads{20, 10}, -1, 2, 5},
		"no heads":            {Heads{20, 10}, Heads{20, 10}, 2, 0, 5},
		"an overflow":         {Heads{20, math.MaxInt}, Heads{20, 10}, 2, 2, 5},
		"many rows":           {Heads{20, 10}, Heads{20, 10}, math.MaxInt, 2, 5},
	} {
		t.Run(name, func(t *testing.T) {
			require.ErrorIs(t, CopyHeads(make([]float32, 40), x, c.to, c.from, c.rows, c.heads, c.dim), snug.ErrShape)
		})
	}
	require.ErrorIs(t, SumHeads(make([]float32, 40), x, Heads{Row: 4}, Heads{20, 10}, 2, 2, 5), snug.ErrShape)
	require.ErrorIs(t, CopyHeads(snug.ViewOf(x), snug.SliceView(make([]int32, 40)), Heads{}, Heads{}, 1, 1, 1), snug.ErrDType)
	require.NoError(t, CopyHeads(x, x, Heads{}, Heads{}, 0, 1, 1))
}
