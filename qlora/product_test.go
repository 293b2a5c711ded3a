package qlora

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/internal/kerneltest"
)

// devices are the backends where products need no tile.
func devices(t *testing.T) []kerneltest.Backend { return backends(t)[1:] }

// ownKernels reports whether amp.MatMul does not go to a vendor's library.
func ownKernels(backend kerneltest.Backend) bool { return backend.Name == "opaque" || backend.Emulated }

// wholeProduct is a product with a weight, decoded in float64, and its bound.
type wholeProduct struct {
	l     *Linear
	whole snug.View // W, decoded to the type of activations
	rows  int
	back  bool
}

func newWholeProduct(t *testing.T, dev *snug.Device, dt snug.DType, out, in int, opt Options, rows int, back bool) wholeProduct {
	w, err := NewWeight(on(t, dev, snug.F32, kerneltest.Normal(1, out*in)), []int{out, in}, opt)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.Close()) })
	l, err := NewLinear(w, dt, 0)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	whole := on(t, dev, dt, make([]float32, out*in))
	require.NoError(t, w.Dequantize(whole))
	return wholeProduct{l, whole, rows, back}
}

// shape returns the columns of the result and those of the activations.
func (p *wholeProduct) shape() (n, k int) {
	if p.back {
		return p.l.in, p.l.out
	}
	return p.l.out, p.l.in
}

// run is Forward or Backward.
func (p *wholeProduct) run(c, a snug.View, beta float32) error {
	if p.back {
		return p.l.Backward(c, a, beta)
	}
	return p.l.product("forward", p.rows, c, a, beta, false) // also of few rows
}

// matMul is the same with the decoded W.
func (p *wholeProduct) matMul(c, a snug.View, beta float32) error {
	n, k := p.shape()
	return amp.MatMul(c, a, p.whole, amp.MatMulOptions{M: p.rows, N: n, K: k, TransB: !p.back, Into: snug.Into{Beta: beta}})
}

// check compares with float64, within the bound of amp.MatMul on devices.
func (p *wholeProduct) check(t *testing.T, got, first, a []float32, beta float32, to snug.DType) {
	n, k := p.shape()
	w := values(t, p.whole)
	if p.back {
		turned := make([]float32, len(w))
		for i, v := range w {
			turned[i%p.l.in*p.l.out+i/p.l.in] = v
		}
		w = turned
	}
	require.Len(t, got, p.rows*n)
	for i, v := range got {
		x, y := a[i/n*k:][:k], w[i%n*k:][:k]
		want, bound := 0.0, 0.0
		for l := range x {
			product := float64(x[l]) * float64(y[l])
			want += product
			bound += math.Abs(product)
		}
		if beta != 0 {
			want += float64(beta) * float64(first[i])
			bound += math.Abs(float64(beta) * float64(first[i]))
		}
		most := 2 * float64(k+3) * 0x1p-24 * bound
		most += roundings[to]*(math.Abs(want)+most) + 0x1p-25
		if !(math.Abs(want-float64(v)) <= most) {
			require.InDelta(t, want, float64(v), most, "%d rows, back %v, beta %v: element %d", p.rows, p.back, beta, i)
		}
	}
}

// TestProductPlaces compares products without a tile with those of the decoded W in
// float64, and with the bits of amp.MatMul by it where that does not go to a vendor's
// library. Activations begin at a multiple of 16 bytes and where they do not; the result
// lies between guard words, and does not count where beta is 0.
//
//check:in tiers arm64 ordered
//check:not checked
func TestProductBackends(t *testing.T) {
	for _, backend := range devices(t) {
		for n, tc := range []struct {
			out, in int
			opt     Options
			rows    []int
		}{
			{1, 32, Options{Type: FP4, Block: 32, Single: true}, []int{1, 70}},
			{40, 96, Options{Type: NF4, Block: 32}, []int{3, 17, 65}}, // parts of tiles and of steps
			{33, 64, Options{Type: FP4}, []int{16, 37}},               // rows that are not aligned
			{150, 320, Options{Type: NF4, Block: 32}, []int{18}},      // more than 256 blocks
			{24, 128, Options{Type: NF4, Block: 128, Single: true}, []int{34}},
			{40, 160, Options{Type: MXFP4}, []int{33}},
		} {
			for i, rows := range tc.rows {
				for d, dt := range floatTypes {
					for b, back := range []bool{false, true} {
						to, beta := floatTypes[(i+n+d)%3], []float32{0, 1, 0.5}[(i+n+d+b)%3]
						t.Run(fmt.Sprintf("%s/%dx%dx%d/%v/%v/%v", backend.Name, rows, tc.out, tc.in, dt, to, back), func(t *testing.T) {
							p := newWholeProduct(t, backend.Dev, dt, tc.out, tc.in, tc.opt, rows, back)
							c, k := p.shape()
							a := on(t, backend.Dev, dt, kerneltest.Normal(uint64(rows), rows*k))
							if (n+d)%3 == 1 {
								a = kerneltest.PutFloats(t, backend, dt, values(t, a)).View
							}
							first := values(t, on(t, backend.Dev, to, kerneltest.Normal(3, rows*c)))
							if beta == 0 {
								first[0] = float32(math.NaN())
							}
							y := kerneltest.PutFloats(t, backend, to, first)
							require.NoError(t, p.run(y.View, a, beta))
							got := y.Get()
							p.check(t, got, first, values(t, a), beta, to)
							if ownKernels(backend) {
								whole := kerneltest.PutFloats(t, backend, to, first)
								require.NoError(t, p.matMul(whole.View, a, beta))
								sameBits(t, whole.Get(), got)
							}
							require.Zero(t, p.l.Bytes(), "no tile")
						})
					}
				}
			}
		}
	}
}

// TestProductManyTiles: products of so many tiles that they fill a GPU take other kernels.
//
//check:in ordered
//check:not checked
func TestProductManyTiles(t *testing.T) {
	const rows, many, few = 70, 3080, 32
	for _, backend := range devices(t) {
		for _, back := range []bool{false, true} {
			out, in := many, few
			if back {
				out, in = few, many/few*few
			}
			p := newWholeProduct(t, backend.Dev, snug.F32, out, in, Options{Block: 32}, rows, back)
			n, k := p.shape()
			a, y := on(t, backend.Dev, snug.F32, kerneltest.Normal(2, rows*k)), on(t, backend.Dev, snug.F32, make([]float32, rows*n))
			require.NoError(t, p.run(y, a, 0))
			p.check(t, values(t, y), nil, values(t, a), 0, snug.F32)
			if ownKernels(backend) {
				whole := on(t, backend.Dev, snug.F32, make([]float32, rows*n))
				require.NoError(t, p.matMul(whole, a, 0))
				sameBits(t, values(t, whole), values(t, y))
			}
		}
	}
}

// TestProductNaN: NaN and infinity reach the elements they belong to and no others, also
// where a block of threads has parts of a tile.
func TestProductNaN(t *testing.T) {
	const rows, out, in = 20, 24, 32
	for _, backend := range devices(t) {
		for _, dt := range floatTypes {
			for _, back := range []bool{false, true} {
				p := newWholeProduct(t, backend.Dev, dt, out, in, Options{}, rows, back)
				n, k := p.shape()
				a := kerneltest.Normal(2, rows*k)
				a[3*k+k-1], a[rows*k-1] = float32(math.NaN()), float32(math.Inf(1))
				c := on(t, backend.Dev, snug.F32, make([]float32, rows*n))
				require.NoError(t, p.run(c, on(t, backend.Dev, dt, a), 0))
				for i, v := range values(t, c) {
					row := i / n
					finite := v-v == 0
					require.Equal(t, row != 3 && row != rows-1, finite, "%s, %v, back %v: element %d,%d is %v", backend.Name, dt, back, row, i%n, v)
				}
			}
		}
	}
}

// TestProductUnaligned: codes need not begin at a multiple of 16 bytes.
func TestProductUnaligned(t *testing.T) {
	const rows, out, in = 19, 21, 64
	for _, backend := range devices(t) {
		for _, dt := range floatTypes {
			for _, back := range []bool{false, true} {
				p := newWholeProduct(t, backend.Dev, dt, out, in, Options{}, rows, back)
				n, k := p.shape()
				a := on(t, backend.Dev, dt, kerneltest.Normal(2, rows*k))
				c := on(t, backend.Dev, snug.F32, make([]float32, rows*n))
				require.NoError(t, p.run(c, a, 0))
				want := values(t, c)
				moved, err := snug.Make[uint8](backend.Dev, out*in/2+1)
				require.NoError(t, err)
				defer moved.Close()
				codes, err := moved.Slice(1, moved.Len())
				require.NoError(t, err)
				require.NoError(t, snug.Copy(codes.View(), p.l.w.packed.View()))
				aligned := p.l.w.packed
				p.l.w.packed = codes
				require.NoError(t, p.run(c, a, 0))
				sameBits(t, want, values(t, c))
				p.l.w.packed = aligned
			}
		}
	}
}

// TestProductTile: what needs a tile makes it once, and products refuse what they cannot
// make.
func TestProductTile(t *testing.T) {
	const rows, out, in = 40, 48, 64
	for _, backend := range devices(t) {
		t.Run(backend.Name, func(t *testing.T) {
			w, err := NewWeight(on(t, backend.Dev, snug.F32, kerneltest.Normal(1, out*in)), []int{out, in}, Options{})
			require.NoError(t, err)
			l, err := NewLinear(w, snug.F32, 10*in)
			require.NoError(t, err)
			x, y := on(t, backend.Dev, snug.F32, kerneltest.Normal(2, rows*in)), on(t, backend.Dev, snug.F32, make([]float32, rows*out))
			bytes, _, err := snug.MakeView(backend.Dev, snug.U8, rows*out)
			require.NoError(t, err)
			require.ErrorIs(t, l.Forward(y, x, float32(math.NaN())), snug.ErrConfig)
			require.ErrorIs(t, l.Forward(bytes, x, 0), snug.ErrDType)
			require.ErrorIs(t, l.Backward(x, y, float32(math.Inf(1))), snug.ErrConfig)
			both := on(t, backend.Dev, snug.F32, make([]float32, rows*(in+out-1)))
			require.ErrorIs(t, l.Backward(part(both, 0, rows*in), part(both, rows*(in-1), both.Len()), 0), snug.ErrConfig)
			require.Zero(t, l.Bytes())

			norms := on(t, backend.Dev, snug.F32, make([]float32, out))
			if backend.Name == "opaque" {
				free, _, err := backend.Dev.Memory()
				require.NoError(t, err)
				all, err := snug.Make[uint8](backend.Dev, int(free))
				require.NoError(t, err)
				require.ErrorIs(t, l.Norms(norms, nil), snug.ErrNoMemory)
				require.NoError(t, l.Forward(y, x, 0))
				require.NoError(t, all.Close())
				require.NoError(t, backend.Dev.Sync())
			}
			require.NoError(t, l.Norms(norms, nil))
			require.Positive(t, values(t, norms)[out-1])
			held := l.Bytes()
			require.Positive(t, held)
			free, _, err := backend.Dev.Memory()
			require.NoError(t, err)
			require.NoError(t, l.Norms(norms, nil))
			require.Equal(t, held, l.Bytes())
			if backend.Name == "opaque" { // others share their memory
				again, _, err := backend.Dev.Memory()
				require.NoError(t, err)
				require.Equal(t, free, again)
			}

			before := values(t, x)
			require.NoError(t, w.Close())
			require.ErrorIs(t, l.Forward(y, x, 0), snug.ErrDevice)
			require.ErrorIs(t, l.Backward(x, y, 0), snug.ErrDevice)
			sameBits(t, before, values(t, x))
			require.NoError(t, l.Close())
		})
	}
}
