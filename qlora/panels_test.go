package qlora

import (
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/kerneltest"
)

// newPanels returns a wholeProduct whose Linear has a tile of the given number of elements.
func newPanels(t *testing.T, dev *snug.Device, dt snug.DType, out, in int, opt Options, elements int) wholeProduct {
	p := newWholeProduct(t, dev, dt, out, in, opt, 0, false)
	l, err := NewLinear(p.l.w, dt, elements)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	p.l = l
	return p
}

// TestPanels compares products by panels with float64: panels that are cut within groups of 256 blocks and that do not
// divide W, a last panel of one row, W within a panel, results of all types between guard words, and sums beside the
// tile, whose rows come at once or in parts.
//
//check:in ordered
//check:not checked
func TestPanels(t *testing.T) {
	openLibraries(t, func(t *testing.T, dev *snug.Device, d *libraryDevice) {
		backend := kerneltest.Backend{Name: "library", Dev: dev}
		for n, tc := range []struct {
			out, in   int
			opt       Options
			tile      int
			rows      int
			back      string // the kernel of Backward to 16 bits
			backParts int
		}{
			{1500, 64, Options{}, 700 * 64, 512, "qlora.product", 1},
			{1031, 96, Options{Type: FP4, Block: 32}, 650*96 + 95, 513, "qlora.product", 1},
			{513, 32, Options{Block: 32, Single: true}, 512 * 32, 512, "qlora.product", 1},
			{512, 32, Options{Type: FP4, Block: 32}, 0, 530, "qlora.panels", 1},
			{700, 160, Options{Type: MXFP4}, 0, 515, "qlora.panels", 1},
			{2100, 32, Options{Block: 32}, 2048 * 32, 512, "qlora.panels", 1},
			{2100, 32, Options{Block: 32}, 2048 * 32, 1023, "qlora.product", 1},
			{2100, 32, Options{Block: 32}, 2048 * 32, 1025, "qlora.product", 1},
			{2100, 32, Options{Block: 32}, 2048 * 32, 1024, "qlora.panels", 2},
		} {
			for i, back := range []bool{false, true} {
				dt, to, beta := floatTypes[1+(n+i)%2], floatTypes[(n+n/3)%3], []float32{0, 0.5, 1}[(n+i)%3]
				types := []snug.DType{to, floatTypes[(n+n/3+1)%3]}
				if !kerneltest.Full() {
					types = types[:1]
				}
				for _, to := range types {
					t.Run(fmt.Sprintf("%d×%d×%d/%v/%v/%v", tc.rows, tc.out, tc.in, dt, to, back), func(t *testing.T) {
						p := newPanels(t, dev, dt, tc.out, tc.in, tc.opt, tc.tile)
						p.rows, p.back = tc.rows, back
						c, k := p.shape()
						a := on(t, dev, dt, kerneltest.Normal(2, tc.rows*k))
						first := values(t, on(t, dev, to, kerneltest.Normal(3, tc.rows*c)))
						if beta == 0 {
							first[0] = float32(math.NaN())
						}
						y := kerneltest.PutFloats(t, backend, to, first)
						allocs := d.allocs
						d.jobs()
						require.NoError(t, p.run(y.View, a, beta))
						var products []string
						for _, k := range d.jobs() {
							if k == "qlora.product" || k == "qlora.panels" {
								products = append(products, k)
							}
						}
						want := []string{"qlora.panels"}
						if back && to != snug.F32 {
							want = nil
							for range tc.backParts {
								want = append(want, tc.back)
							}
						}
						require.Equal(t, want, products)
						require.Equal(t, allocs, d.allocs)
						p.check(t, y.Get(), first, values(t, a), beta, to)
					})
				}
			}
		}
	})
}

// TestPanelsRound: a dx of 16 bits of several panels is that of float32, rounded once.
func TestPanelsRound(t *testing.T) {
	const out, in, rows = 2100, 32, 512
	openLibraries(t, func(t *testing.T, dev *snug.Device, d *libraryDevice) {
		for _, dt := range floatTypes[1:] {
			p := newPanels(t, dev, dt, out, in, Options{Block: 32}, 2048*in)
			dy := on(t, dev, dt, kerneltest.Normal(2, rows*out))
			exact, dx := on(t, dev, snug.F32, make([]float32, rows*in)), on(t, dev, dt, make([]float32, rows*in))
			d.jobs()
			require.NoError(t, p.l.Backward(exact, dy, 0))
			require.NoError(t, p.l.Backward(dx, dy, 0))
			require.Equal(t, []string{"qlora.panels", "qlora.panels", "amp.cast"}, d.jobs())
			want, _, err := snug.MakeView(snug.CPU(), dt, rows*in)
			require.NoError(t, err)
			half.Store(want, 0, values(t, exact))
			sameBits(t, values(t, want), values(t, dx))
			for _, to := range []snug.View{exact, dx} {
				require.NoError(t, p.l.Backward(part(to, in, rows*in), part(dy, out, rows*out), 0.5))
				require.Equal(t, []string{"qlora.product"}, d.jobs(), "511 rows")
			}
		}
	})
}

// TestPanelsGradients: Backward is the gradient of Forward: Σ dy·(x·Wᵀ) = Σ (dy·W)·x.
//
//check:in tiers arm64
func TestPanelsGradients(t *testing.T) {
	const out, in, rows = 1100, 64, 520
	openLibraries(t, func(t *testing.T, dev *snug.Device, d *libraryDevice) {
		p := newPanels(t, dev, snug.BF16, out, in, Options{}, 600*in)
		x, dy := on(t, dev, snug.BF16, kerneltest.Normal(2, rows*in)), on(t, dev, snug.BF16, kerneltest.Normal(3, rows*out))
		y, dx := on(t, dev, snug.F32, make([]float32, rows*out)), on(t, dev, snug.F32, make([]float32, rows*in))
		d.jobs()
		require.NoError(t, p.l.Forward(y, x, 0))
		require.NoError(t, p.l.Backward(dx, dy, 0))
		require.Equal(t, []string{"qlora.panels", "qlora.panels"}, d.jobs())
		dot := func(a, b snug.View) (sum, bound float64) {
			va, vb := values(t, a), values(t, b)
			for i := range va {
				sum += float64(va[i]) * float64(vb[i])
				bound += math.Abs(float64(va[i]) * float64(vb[i]))
			}
			return sum, bound
		}
		loss, bound := dot(dy, y)
		gradient, _ := dot(dx, x)
		require.InDelta(t, loss, gradient, 1e-6*bound)
		require.Greater(t, bound, 1e5)
	})
}

// TestPanelsRule: which products go to the library, and that a Linear without such products makes no tile for them.
func TestPanelsRule(t *testing.T) {
	openLibraries(t, func(t *testing.T, dev *snug.Device, d *libraryDevice) {
		for what, c := range map[string]struct {
			out, in, tile, rows int
			dt                  snug.DType
			bytes               int64
			want                string
		}{
			"512 rows":           {512, 64, 0, 512, snug.BF16, 2 * 512 * 64, "qlora.panels"},
			"511 rows":           {512, 64, 0, 511, snug.BF16, 2 * 512 * 64, "qlora.product"},
			"few rows":           {512, 64, 0, 32, snug.F16, 2 * 512 * 64, "qlora.few"},
			"float32":            {512, 64, 0, 512, snug.F32, 0, "qlora.product"},
			"511 outputs":        {511, 64, 0, 512, snug.F16, 0, "qlora.product"},
			"a tile of a row":    {512, 64, 1, 512, snug.BF16, 0, "qlora.product"},
			"a tile of 511 rows": {600, 64, 512*64 - 1, 512, snug.BF16, 0, "qlora.product"},
			"a tile of 512 rows": {900, 64, 512 * 64, 512, snug.BF16, 2 * (512 + 256) * 64, "qlora.panels"},
			"parts of blocks":    {512, 48, 0, 512, snug.BF16, 2 * 512 * 48, "qlora.dequantize"},
		} {
			t.Run(what, func(t *testing.T) {
				l := newPanels(t, dev, c.dt, c.out, c.in, Options{}, c.tile).l
				require.Equal(t, c.bytes, l.Bytes())
				x, y := on(t, dev, c.dt, make([]float32, c.rows*c.in)), on(t, dev, c.dt, make([]float32, c.rows*c.out))
				d.jobs()
				require.NoError(t, l.Forward(part(y, 0, 0), part(x, 0, 0), 0), "no rows")
				require.NoError(t, l.Backward(part(x, 0, 0), part(y, 0, 0), 0), "no rows")
				require.Empty(t, d.jobs())
				require.NoError(t, l.Forward(y, x, 0))
				require.Equal(t, c.want, d.jobs()[0])
			})
		}
	})
}

// TestPanelsNaN: a scale that is not a number reaches the elements it belongs to and no others.
func TestPanelsNaN(t *testing.T) {
	const out, in, rows, row, block = 1100, 64, 512, 700, 1
	openLibraries(t, func(t *testing.T, dev *snug.Device, d *libraryDevice) {
		p := newPanels(t, dev, snug.BF16, out, in, Options{Block: 32, Single: true}, 520*in)
		require.NoError(t, snug.Copy(part(p.l.w.absmax.View(), row*2+block, row*2+block+1), []float32{float32(math.NaN())}))
		x, dy := on(t, dev, snug.BF16, kerneltest.Normal(2, rows*in)), on(t, dev, snug.BF16, kerneltest.Normal(3, rows*out))
		y, dx := on(t, dev, snug.BF16, make([]float32, rows*out)), on(t, dev, snug.F32, make([]float32, rows*in))
		d.jobs()
		require.NoError(t, p.l.Forward(y, x, 0))
		require.NoError(t, p.l.Backward(dx, dy, 0))
		require.Equal(t, []string{"qlora.panels", "qlora.panels"}, d.jobs())
		for i, v := range values(t, y) {
			require.Equal(t, i%out == row, v != v, "output %d", i)
		}
		for i, v := range values(t, dx) {
			require.Equal(t, i%in/32 == block, v != v, "input %d", i)
		}
	})
}

// TestPanelsShare: Share makes the tile that the largest of all needs, with its sums, and nothing is allocated later, so
// that products can be captured. What is refused writes nothing.
func TestPanelsShare(t *testing.T) {
	const in, rows = 32, 512
	openLibraries(t, func(t *testing.T, dev *snug.Device, d *libraryDevice) {
		var all []*Linear
		for i, c := range []struct {
			out, in int
			bytes   int64
		}{
			{100, in, 0},
			{500, in + 1, 2 * 500 * (in + 1)}, // no kernel decodes it on the way
			{600, in, 2 * 600 * in},
			{2200, in, 2*2200*in + 4*512*in},
			{2200, in, 2*2200*in + 4*512*in},
			{2049, in + 1, 2*2200*in + 4*512*in},
			{2300, 2 * in, 2*2200*in + 4*512*in}, // 8 bits
		} {
			o := Options{Block: 32}
			if c.in == 2*in {
				o = Options{Type: FP8}
			}
			w, err := NewWeight(on(t, dev, snug.F32, kerneltest.Normal(1, c.out*c.in)), []int{c.out, c.in}, o)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, w.Close()) })
			var l *Linear
			if i == 0 {
				l, err = NewLinear(w, snug.BF16, 2048*in)
				t.Cleanup(func() { require.NoError(t, l.Close()) })
			} else {
				l, err = all[0].Share(w)
			}
			require.NoError(t, err)
			require.Equal(t, c.bytes, l.Bytes(), "%d×%d", c.out, c.in)
			all = append(all, l)
		}
		for _, l := range all {
			x, dy := on(t, dev, snug.BF16, kerneltest.Normal(2, rows*l.in)), on(t, dev, snug.BF16, kerneltest.Normal(3, rows*l.out))
			y, dx := on(t, dev, snug.BF16, make([]float32, rows*l.out)), on(t, dev, snug.BF16, make([]float32, rows*l.in))
			require.ErrorIs(t, l.Backward(dx, dy, float32(math.Inf(1))), snug.ErrConfig)
			require.ErrorIs(t, l.Backward(part(dy, 0, rows*l.in), dy, 0), snug.ErrConfig)
			require.NoError(t, dev.Sync())
			addr, bytes := l.tile.View, l.Bytes()
			_, err := dev.Capture(func() error {
				return errors.Join(l.Forward(y, x, 0), l.Backward(dx, dy, 0))
			})
			require.NoError(t, err)
			require.Equal(t, bytes, l.Bytes())
			require.Equal(t, addr, l.tile.View)
		}
		require.Contains(t, d.jobs(), "qlora.panels")

		w, err := NewWeight(on(t, dev, snug.F32, kerneltest.Normal(1, 64)), []int{1, 64}, Options{})
		require.NoError(t, err)
		defer w.Close()
		d.err = kerneltest.ErrFault
		_, err = NewLinear(w, snug.BF16, 0)
		require.ErrorIs(t, err, kerneltest.ErrFault)
		l, err := NewLinear(w, snug.F32, 0)
		require.NoError(t, err, "does not ask")
		require.NoError(t, l.Close())
	})
}

// TestPanelsBackends: products of many rows on the devices of the build, with the library where there is one, and
// without where the tile is a row. Graphs of devices that have a library give the bits of the products that they
// record.
//
//check:in tiers arm64 ordered
//check:not checked
func TestPanelsBackends(t *testing.T) {
	const out, in, rows = 1600, 64, 520
	for _, backend := range devices(t) {
		library, err := device.HasProducts(backend.Dev)
		require.NoError(t, err)
		tiles := []int{0, 1, 768 * in}
		if !library {
			tiles = tiles[:1]
		}
		for _, tile := range tiles {
			for _, back := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%d/%v", backend.Name, tile, back), func(t *testing.T) {
					p := newPanels(t, backend.Dev, snug.BF16, out, in, Options{}, tile)
					p.rows, p.back = rows, back
					require.Equal(t, library && tile != 1, p.l.usesPanels())
					c, k := p.shape()
					a := on(t, backend.Dev, snug.BF16, kerneltest.Normal(2, rows*k))
					first := values(t, on(t, backend.Dev, snug.BF16, kerneltest.Normal(3, rows*c)))
					y, again := on(t, backend.Dev, snug.BF16, first), on(t, backend.Dev, snug.BF16, first)
					require.NoError(t, p.run(y, a, 0.5))
					p.check(t, values(t, y), first, values(t, a), 0.5, snug.BF16)
					if library {
						g, err := backend.Dev.Capture(func() error { return p.run(again, a, 0.5) })
						require.NoError(t, err)
						sameBits(t, first, values(t, again))
						require.NoError(t, g.Launch())
						sameBits(t, values(t, y), values(t, again))
						require.NoError(t, g.Close())
					}
				})
			}
		}
	}
}
