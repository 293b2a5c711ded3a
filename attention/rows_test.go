package attention

import (
	"fmt"
	"math"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

// Rows are copied from any layout to any other, with a cast, and added, and nothing else is written.
func TestRows(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, backend kerneltest.Backend) {
		for _, dims := range [][4]int{{2, 3, 5, 7}, {1, 1, 1, 2500}, {1, 2, 3, 1024}, {3, 1, 40, 1}, {2, 2, 0, 3}} {
			for i, types := range [][2]snug.DType{
				{snug.F32, snug.F32}, {snug.F32, snug.F16}, {snug.F32, snug.BF16}, {snug.F16, snug.F32}, {snug.BF16, snug.F32}, {snug.F16, snug.F16}, {snug.BF16, snug.BF16},
			} {
				for _, mode := range []string{"copy", "add", "clear"} {
					if mode == "add" && types[0] != snug.F32 {
						continue
					}
					t.Run(fmt.Sprint(dims, types, mode), func(t *testing.T) { checkRows(t, backend, dims, types, mode, i%2 == 0) })
				}
			}
		}
	})
}

func checkRows(t *testing.T, backend kerneltest.Backend, dims [4]int, types [2]snug.DType, mode string, swap bool) {
	batch, heads, n, dim := dims[0], dims[1], dims[2], dims[3]
	spread := Strides{Batch: n * heads * (dim + 2), Head: dim + 2, Row: heads * (dim + 2)}
	to, from := headMajor(heads, n, dim), spread
	if swap {
		to, from = from, to
	}
	length := operand{batch: batch, heads: heads, n: n, dim: dim, strides: spread}.extent() + 3
	x, y := kerneltest.Uniform(1, length), kerneltest.Uniform(2, length)
	x[0] = float32(math.Inf(1))
	src, dst := kerneltest.PutFloats(t, backend, types[1], x), kerneltest.PutFloats(t, backend, types[0], y)
	x, want := src.Get(), dst.Get()
	for b := range batch {
		for h := range heads {
			for i := range n {
				for d := range dim {
					w := &want[to.start(b, h, i)+d]
					switch v := x[from.start(b, h, i)+d]; mode {
					case "copy":
						*w = v
						if types[0] != types[1] {
							*w = kerneltest.PutFloats(t, kerneltest.Backend{}, types[0], []float32{v}).Get()[0]
						}
					case "add":
						*w += v
					case "clear":
						*w = 0
					}
				}
			}
		}
	}
	dev := backend.Dev
	if dev == nil {
		dev = snug.CPU()
	}
	j := rowsJob{dst: dst.View, src: src.View, to: to, from: from, batch: batch, heads: heads, n: n, dim: dim, add: mode == "add"}
	if mode == "clear" {
		j.src = snug.View{}
	}
	require.NoError(t, j.run(dev))
	require.Equal(t, want, dst.Get())
}

// A workspace is handed out in parts at multiples of 16 bytes, and never more than there is.
func TestRegions(t *testing.T) {
	var r regions
	a, b, c := r.take(snug.F32, 3), r.take(snug.BF16, 3, 3), r.take(snug.F16)
	require.Equal(t, region{0, 4, 3, snug.F32}, a)
	require.Equal(t, region{4, 8, 9, snug.BF16}, b)
	require.Equal(t, region{12, 4, 1, snug.F16}, c)
	require.Equal(t, 16, r.words)
	ws := snug.SliceView(make([]float32, 16))
	require.Equal(t, snug.BF16, b.of(ws).DType())
	require.Equal(t, 9, b.of(ws).Len())
	require.False(t, r.overflow)
	for _, dims := range [][]int{{math.MaxInt, 2}, {math.MaxInt}, {unlimited - 10}} {
		more := r
		require.Zero(t, more.take(snug.F32, dims...))
		require.True(t, more.overflow)
	}
}
