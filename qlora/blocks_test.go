package qlora

import (
	"fmt"
	"io"
	"math"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/gguf"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/ggml"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/kerneltest"
)

// blockTypes are all types of blocks.
var blockTypes = []gguf.Type{
	gguf.Q4_0, gguf.Q4_1, gguf.Q5_0, gguf.Q5_1, gguf.Q8_0, gguf.Q2_K, gguf.Q3_K, gguf.Q4_K, gguf.Q5_K, gguf.Q6_K,
	gguf.IQ4_NL, gguf.IQ4_XS, gguf.MXFP4,
}

// scalesOf says where in a block the scales in binary16 lie.
var scalesOf = map[gguf.Type][]int{
	gguf.Q4_0: {0}, gguf.Q4_1: {0, 2}, gguf.Q5_0: {0}, gguf.Q5_1: {0, 2}, gguf.Q8_0: {0},
	gguf.Q2_K: {80, 82}, gguf.Q3_K: {108}, gguf.Q4_K: {0, 2}, gguf.Q5_K: {0, 2}, gguf.Q6_K: {208},
	gguf.IQ4_NL: {0}, gguf.IQ4_XS: {0},
}

// encode returns blocks of normal numbers.
func encode(t testing.TB, typ gguf.Type, n int) []byte {
	size, err := typ.Bytes(n)
	require.NoError(t, err)
	blocks := make([]byte, size)
	require.NoError(t, typ.Encode(blocks, kerneltest.Normal(uint64(typ), n)))
	return blocks
}

// newBlocksOf returns a weight, and its elements by [gguf.Type.Decode].
func newBlocksOf(t testing.TB, typ gguf.Type, shape ...int) (*Weight, []float32) {
	n := 1
	for _, d := range shape {
		n *= d
	}
	blocks, x := encode(t, typ, n), make([]float32, n)
	require.NoError(t, typ.Decode(x, blocks))
	w, err := NewBlocks(typ, shape, blocks)
	require.NoError(t, err)
	return w, x
}

// TestBlocks: a weight is what it was made of, and its elements have the bits of package gguf, rounded once.
//
//check:in tiers
func TestBlocks(t *testing.T) {
	require.Len(t, blockTypes, int(ggml.Formats))
	for _, typ := range blockTypes {
		for _, shape := range [][]int{{3, 256}, {70, 512}, {2, 3, 256}, {0, 256}, {256}} {
			w, want := newBlocksOf(t, typ, shape...)
			elements, _ := typ.Block()
			size, err := typ.Bytes(len(want))
			require.NoError(t, err)
			require.Equal(t, shape, w.Shape())
			require.Equal(t, []any{GGUF, typ, elements, len(want), snug.F32, size, false},
				[]any{w.Type(), w.Blocks(), w.Block(), w.Len(), w.DType(), w.Bytes(), w.Double()})
			require.Equal(t, encode(t, typ, len(want)), snug.Host[uint8](w.Packed()))
			for _, dt := range floatTypes {
				dst := on(t, snug.CPU(), dt, make([]float32, len(want)))
				require.NoError(t, w.Dequantize(dst))
				sameBits(t, values(t, on(t, snug.CPU(), dt, want)), values(t, dst))
			}
			absmax, err := w.Absmax()
			require.NoError(t, err)
			require.Empty(t, absmax)
		}
		w, _ := newBlocksOf(t, typ, 64, 768)
		dst := snug.ViewOf(make([]snug.BFloat16, w.Len()))
		kerneltest.NoAllocs(t, func() { _ = w.Dequantize(dst) })
	}
}

// reference returns a·Wᵀ, or a·W if back is set, in float64, and the sums of the magnitudes.
func reference(rows, out, in int, a, w []float32, back bool) (want, bound []float64) {
	n := out
	if back {
		n = in
	}
	want, bound = make([]float64, rows*n), make([]float64, rows*n)
	for r := range rows {
		for o := range out {
			for i, v := range w[o*in : (o+1)*in] {
				from, to := r*in+i, r*out+o
				if back {
					from, to = to, from
				}
				product := float64(a[from]) * float64(v)
				want[to] += product
				bound[to] += math.Abs(product)
			}
		}
	}
	return want, bound
}

// TestBlocksProducts compares with products in float64, for tiles that begin at any row.
//
//check:in tiers
func TestBlocksProducts(t *testing.T) {
	const out = 45
	for _, typ := range blockTypes {
		elements, _ := typ.Block()
		in := 3 * elements
		w, elem := newBlocksOf(t, typ, out, in)
		for _, dt := range floatTypes {
			rounding := map[snug.DType]float64{snug.F32: 4e-6, snug.F16: 0x1p-11 + 4e-6, snug.BF16: 0x1p-8 + 4e-6}[dt]
			own, err := NewLinear(w, dt, 7*in)
			require.NoError(t, err)
			whole, err := own.Share(w)
			require.NoError(t, err)
			for _, rows := range []int{1, 2, 3, 5, 8, 9, 40} {
				what := fmt.Sprintf("%s as %s, %d rows", typ, dt, rows)
				x, dy := on(t, snug.CPU(), dt, kerneltest.Normal(2, rows*in)), on(t, snug.CPU(), dt, kerneltest.Normal(3, rows*out))
				want, bound := reference(rows, out, in, values(t, x), elem, false)
				y, dx := snug.ViewOf(make([]float32, rows*out)), snug.ViewOf(slices.Repeat([]float32{2}, rows*in))
				require.NoError(t, own.Forward(y, x, 0))
				near(t, want, bound, y.Float32s(), rounding, what)
				want, bound = reference(rows, out, in, values(t, dy), elem, true)
				for i := range want {
					want[i]++
				}
				require.NoError(t, whole.Backward(dx, dy, 0.5))
				near(t, want, bound, dx.Float32s(), rounding, what)
				low := on(t, snug.CPU(), snug.BF16, make([]float32, rows*out))
				require.NoError(t, own.Forward(low, x, 0))
				sameBits(t, values(t, on(t, snug.CPU(), snug.BF16, y.Float32s())), values(t, low))
			}
			require.NoError(t, own.Close())
		}
	}
}

// TestBlocksFew: few rows have the same bits with one worker, with NaNs in the result where beta is 0, and allocate nothing.
//
//check:in tiers
func TestBlocksFew(t *testing.T) {
	const out, in = 1300, 2304
	for _, typ := range []gguf.Type{gguf.Q4_K, gguf.Q8_0, gguf.Q2_K} {
		w, _ := newBlocksOf(t, typ, out, in)
		for _, dt := range floatTypes {
			l, err := NewLinear(w, dt, 0)
			require.NoError(t, err)
			for _, rows := range []int{1, 3, 8} {
				x, dy := on(t, snug.CPU(), dt, kerneltest.Normal(2, rows*in)), on(t, snug.CPU(), dt, kerneltest.Normal(3, rows*out))
				var ys, dxs [2][]float32
				for i, procs := range []int{1, 2} {
					before := runtime.GOMAXPROCS(procs)
					y, dx := slices.Repeat([]float32{float32(math.NaN())}, rows*out), slices.Repeat([]float32{float32(math.NaN())}, rows*in)
					require.NoError(t, l.Forward(snug.ViewOf(y), x, 0))
					require.NoError(t, l.Backward(snug.ViewOf(dx), dy, 0))
					runtime.GOMAXPROCS(before)
					ys[i], dxs[i] = y, dx
				}
				sameBits(t, ys[0], ys[1])
				sameBits(t, dxs[0], dxs[1])
				require.True(t, ys[0][0] == ys[0][0] && dxs[0][0] == dxs[0][0])
				kerneltest.NoAllocs(t, func() { _ = l.Forward(snug.ViewOf(ys[0]), x, 1) })
				kerneltest.NoAllocs(t, func() { _ = l.Backward(snug.ViewOf(dxs[0]), dy, 1) })
			}
		}
	}
}

// TestForwardUsed: rows that are read have the bits that they have in Forward of all, and other rows are left where a format has loops.
//
//check:in tiers
func TestForwardUsed(t *testing.T) {
	const out, in = 130, 512
	var all []*Weight
	for _, typ := range []gguf.Type{gguf.Q4_0, gguf.Q4_1, gguf.Q5_0, gguf.Q5_1, gguf.Q8_0, gguf.Q4_K, gguf.Q5_K, gguf.Q6_K, gguf.Q2_K} {
		w, _ := newBlocksOf(t, typ, out, in)
		all = append(all, w)
	}
	nf4, err := NewWeight(kerneltest.Normal(1, out*in), []int{out, in}, Options{})
	require.NoError(t, err)
	for i, w := range append(all, nf4) {
		l, err := NewLinear(w, snug.BF16, 0)
		require.NoError(t, err)
		for _, rows := range []int{1, 5, 8, 12} {
			x, before := on(t, snug.CPU(), snug.BF16, kerneltest.Normal(2, rows*in)), kerneltest.Normal(3, rows*out)
			want := slices.Clone(before)
			require.NoError(t, l.Forward(snug.ViewOf(want), x, 0.5))
			for used := 1; used <= rows; used++ {
				y := slices.Clone(before)
				require.NoError(t, l.ForwardUsed(used, snug.ViewOf(y), x, 0.5))
				sameBits(t, want[:used*out], y[:used*out])
				if used < rows && rows <= 8 && w.rowsAlike() {
					sameBits(t, before[used*out:], y[used*out:])
				} else {
					sameBits(t, want, y)
				}
			}
			for _, used := range []int{-1, 0, rows + 1, math.MinInt} {
				require.ErrorIs(t, l.ForwardUsed(used, snug.ViewOf(want), x, 0), snug.ErrShape)
			}
		}
		require.Equal(t, i < 8 && ggml.Registry.Tier() != cpu.Go, w.rowsAlike())
	}
}

// TestBlocksManyRows has more rows of activations, and more tiles.
func TestBlocksManyRows(t *testing.T) {
	const out, in = 160, 512
	for _, rows := range []int{127, 600} {
		for _, typ := range []gguf.Type{gguf.Q4_K, gguf.Q8_0} {
			w, elem := newBlocksOf(t, typ, out, in)
			l, err := NewLinear(w, snug.F32, 1<<15)
			require.NoError(t, err)
			x, y, dx := kerneltest.Normal(2, rows*in), make([]float32, rows*out), make([]float32, rows*in)
			want, bound := reference(rows, out, in, x, elem, false)
			require.NoError(t, l.Forward(snug.ViewOf(y), snug.ViewOf(x), 0))
			near(t, want, bound, y, 4e-6, typ.String())
			want, bound = reference(rows, out, in, y, elem, true)
			require.NoError(t, l.Backward(snug.ViewOf(dx), snug.ViewOf(y), 0))
			near(t, want, bound, dx, 4e-6, typ.String())
		}
	}
}

// TestBlocksEverywhere: adapters, norms and merging work, and a weight in a Storage has the bits that it had before.
func TestBlocksEverywhere(t *testing.T) {
	const out, in = 40, 512
	for _, typ := range blockTypes {
		w, elem := newBlocksOf(t, typ, out, in)
		for _, rows := range []int{1, 20} {
			own, _ := newBlocksOf(t, typ, out, in)
			want, size := products(t, own, rows), own.Bytes()
			s := newLender()
			require.NoError(t, own.Page(s, "w"))
			require.Equal(t, size, own.Bytes())
			require.Equal(t, want, products(t, own, rows))
			require.Zero(t, own.Packed().Len())
			require.NoError(t, own.Close())
			require.ErrorIs(t, own.Dequantize(snug.ViewOf(elem)), snug.ErrDevice)
		}
		a := &LoRA{In: in, Out: out, Rank: 1, Scale: 2, Magnitude: snug.ViewOf(make([]float32, out))}
		a.A, a.B = snug.ViewOf(kerneltest.Normal(1, in)), snug.ViewOf(kerneltest.Normal(2, out))
		l, err := NewLinear(w, snug.F32, 5*in)
		require.NoError(t, err)
		require.NoError(t, l.Norms(a.Magnitude, a))
		d, err := NewDoRA(l, a)
		require.NoError(t, err)
		sum, merged := make([]float32, out*in), make([]float32, out*in)
		_, err = Merge(snug.ViewOf(merged), w, a, 0)
		require.NoError(t, err)
		for i := range sum {
			sum[i] = elem[i] + 2*a.A.Float32s()[i%in]*a.B.Float32s()[i/in]
		}
		require.InDeltaSlice(t, sum, merged, 1e-4) // magnitudes are the norms
		x, y, added, u := kerneltest.Normal(3, 3*in), make([]float32, 3*out), make([]float32, 3*out), make([]float32, 3)
		require.NoError(t, d.Forward(snug.ViewOf(y), snug.ViewOf(added), snug.ViewOf(u), snug.ViewOf(x), Dropout{}))
		want, bound := reference(3, out, in, x, sum, false)
		near(t, want, bound, y, 1e-5, typ.String())
		require.NoError(t, d.Close())
	}
}

// TestBlocksRefused: what is no weight in blocks is refused, and what makes no sense for one.
func TestBlocksRefused(t *testing.T) {
	blocks := make([]byte, 2*144)
	for _, typ := range []gguf.Type{gguf.F32, gguf.F16, gguf.BF16, 9, 16, 99} {
		_, err := NewBlocks(typ, []int{2, 256}, blocks)
		refused(t, err, snug.ErrDType, "qlora: new blocks: the type is", "q4_k")
	}
	large := math.MaxInt
	for _, shape := range [][]int{nil, {0}, {2, 128}, {512, 1}, {3, 256}, {1, 256}, {-2, 256}, {large, 256}, {large, large}} {
		_, err := NewBlocks(gguf.Q4_K, shape, blocks)
		require.ErrorIs(t, err, snug.ErrShape, "%v", shape)
	}
	for _, n := range []int{0, 143, 2*144 - 1} {
		_, err := NewBlocks(gguf.Q4_K, []int{2, 256}, blocks[:n])
		refused(t, err, snug.ErrShape, "qlora: new blocks:", "2 blocks of 144 bytes")
	}
	w, err := NewBlocks(gguf.Q4_K, []int{2, 256}, blocks)
	require.NoError(t, err)
	_, err = WriteWeights(io.Discard, one("w", w), nil)
	refused(t, err, snug.ErrConfig, "package gguf")
	_, err = NewWeight(make([]float32, 256), []int{1, 256}, Options{Type: GGUF})
	refused(t, err, snug.ErrConfig, "qlora: new weight:", "NewBlocks")
	require.Error(t, Quantize(make([]uint8, 32), make([]float32, 1), make([]float32, 64), GGUF, 64))
	_, err = ParseType("gguf")
	require.ErrorIs(t, err, snug.ErrConfig)
	require.Equal(t, "gguf", GGUF.String())
	require.Zero(t, GGUF.Bits())
	require.Zero(t, GGUF.Values())
	require.ErrorIs(t, w.Dequantize(snug.ViewOf(make([]float32, 511))), snug.ErrShape)
	for _, backend := range backends(t)[1:] { // which have no blocks
		require.ErrorIs(t, w.Dequantize(on(t, backend.Dev, snug.F32, make([]float32, 512))), snug.ErrDevice)
		l, err := NewLinear(w, snug.F32, 0)
		require.NoError(t, err)
		y, x := on(t, backend.Dev, snug.F32, make([]float32, 2)), on(t, backend.Dev, snug.F32, make([]float32, 256))
		require.ErrorIs(t, l.Forward(y, x, 0), snug.ErrDevice)
		made, err := NewWeight(on(t, backend.Dev, snug.F32, make([]float32, 512)), []int{2, 256}, Options{})
		require.NoError(t, err)
		other, err := NewLinear(made, snug.F32, 0)
		require.NoError(t, err)
		_, err = other.Share(w)
		require.ErrorIs(t, err, snug.ErrDevice)
	}
	require.NoError(t, w.Close())
	require.ErrorIs(t, w.Dequantize(snug.ViewOf(make([]float32, 512))), snug.ErrDevice)
}

// TestBlocksScales: each scale of each block is looked at, and the error names the first block whose is no number.
//
//check:in race
func TestBlocksScales(t *testing.T) {
	const rows = 3*grain/8 + 5
	for _, typ := range blockTypes {
		elements, size := typ.Block()
		in := 8 * elements
		blocks := make([]byte, rows*8*size)
		for _, at := range scalesOf[typ] {
			for _, scale := range []uint16{0x7c00, 0xfc00, 0x7e01, 0x7c01} {
				for _, bad := range []int{0, 1, 2*grain + 3, rows*8 - 1} {
					low, high := &blocks[bad*size+at], &blocks[bad*size+at+1]
					*low, *high = byte(scale), byte(scale>>8)
					blocks[(rows*8-1)*size+at], blocks[(rows*8-1)*size+at+1] = byte(scale), byte(scale>>8)
					_, err := NewBlocks(typ, []int{rows, in}, blocks)
					refused(t, err, snug.ErrCorrupt, "qlora: new blocks:", fmt.Sprintf("block %d of %d ", bad, rows*8))
					clear(blocks)
				}
			}
			blocks[at], blocks[at+1] = 0xff, 0x7b // the largest finite one
		}
		_, err := NewBlocks(typ, []int{rows, in}, blocks)
		require.NoError(t, err)
	}
	blocks := make([]byte, 2*17)
	blocks[17] = 255
	_, err := NewBlocks(gguf.MXFP4, []int{2, 32}, blocks)
	refused(t, err, snug.ErrCorrupt, "block 1 of 2")
	blocks[17] = 254
	_, err = NewBlocks(gguf.MXFP4, []int{2, 32}, blocks)
	require.NoError(t, err)
}

// refused requires an error that wraps a sentinel and has some words.
func refused(t *testing.T, err, sentinel error, words ...string) {
	t.Helper()
	require.ErrorIs(t, err, sentinel)
	for _, w := range words {
		require.ErrorContains(t, err, w)
	}
}

// BenchmarkBlocks measures products of blocks beside those of NF4, in turn, and reports the ratio of the least times: above 1
// blocks are faster.
func BenchmarkBlocks(b *testing.B) {
	for _, s := range [][3]int{{512, 2048, 5632}, {512, 2048, 2048}, {8, 2048, 5632}, {2, 2048, 5632}, {1, 2048, 5632}} {
		rows, in, out := s[0], s[1], s[2]
		nf4, err := NewWeight(kerneltest.Normal(1, out*in), []int{out, in}, Options{})
		require.NoError(b, err)
		for _, typ := range blockTypes {
			w, _ := newBlocksOf(b, typ, out, in)
			for _, dt := range []snug.DType{snug.F32, snug.BF16} {
				x, _, err := snug.MakeView(snug.CPU(), dt, rows*in)
				require.NoError(b, err)
				half.Store(x, 0, kerneltest.Normal(2, rows*in))
				y, _, err := snug.MakeView(snug.CPU(), dt, rows*out)
				require.NoError(b, err)
				for _, direction := range []string{"forward", "backward"} {
					b.Run(fmt.Sprintf("%s/%dx%dx%d/%v/%v", direction, rows, in, out, dt, typ), func(b *testing.B) {
						var do [2]func() error
						for i, w := range []*Weight{nf4, w} {
							l, err := NewLinear(w, dt, 0)
							require.NoError(b, err)
							do[i] = func() error { return l.Forward(y, x, 0) }
							if direction == "backward" {
								do[i] = func() error { return l.Backward(x, y, 0) }
							}
						}
						least := [2]time.Duration{time.Hour, time.Hour}
						for b.Loop() {
							for i := range do {
								begin := time.Now()
								require.NoError(b, do[i]())
								least[i] = min(least[i], time.Since(begin))
							}
						}
						b.ReportMetric(float64(least[0])/float64(least[1]), "nf4/blocks")
						b.ReportMetric(float64(in*out)/float64(least[1]), "Gelements/s")
					})
				}
			}
		}
	}
}
