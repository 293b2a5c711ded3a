package quant8

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/internal/philox"
	"github.com/snug-ml/snug/internal/rounding"
)

// The maps of 4 bits: torchao's create_dynamic_map(True, 3, 4), and linear.
var (
	signed16   = [16]float32{-0.8875, -0.6625, -0.4375, -0.2125, -0.0775, -0.0325, -0.0055, 0, 0.0055, 0.0325, 0.0775, 0.2125, 0.4375, 0.6625, 0.8875, 1}
	unsigned16 = [16]float32{1. / 16, 2. / 16, 3. / 16, 4. / 16, 5. / 16, 6. / 16, 7. / 16, 8. / 16, 9. / 16, 10. / 16, 11. / 16, 12. / 16, 13. / 16, 14. / 16, 15. / 16, 1}
)

func TestMaps4(t *testing.T) {
	require.InDeltaSlice(t, signed16[:], signed4().Values[:], 1e-7)
	require.Equal(t, unsigned16, unsigned4().Values)
}

// decoded returns state i of the n elements of a chunk in 4, 16 or 32 bits.
func decoded(l layout, blob []byte, n, i int, signed bool) []float32 {
	x := make([]float32, n)
	switch l.bits {
	case 32:
		s := l.split32(blob, n)
		copy(x, s[i])
	case 16:
		s := l.split16(blob, n)
		for k, v := range s[i] {
			x[k] = v.Float32()
		}
	case 4:
		s := l.split8(blob, n)
		for k := range x {
			code := s.codes[i][k/2] >> (4 - k%2*4) & 15
			x[k] = values4(signed)[code] * s.absmax[i][k/l.block]
		}
	}
	return x
}

func values4(signed bool) *[16]float32 {
	if signed {
		return &signed4().Values
	}
	return &unsigned4().Values
}

// quantized4 returns x after it was stored in 4 bits.
func quantized4(x []float32, signed bool, block int) []float32 {
	m, y := values4(signed), make([]float32, len(x))
	for lo := 0; lo < len(x); lo += block {
		hi, absmax := min(lo+block, len(x)), float32(0)
		for _, v := range x[lo:hi] {
			absmax = max(absmax, float32(math.Abs(float64(v))))
		}
		for i := lo; i < hi && absmax > 0; i++ {
			best, q := m[0], float64(x[i]/absmax)
			for _, v := range m {
				if math.Abs(float64(v)-q) < math.Abs(float64(best)-q) {
					best = v
				}
			}
			y[i] = best * absmax
		}
	}
	return y
}

// quantized16 returns x after it was stored in bfloat16, rounded at random.
func quantized16(x []float32, seed uint64, name string) []float32 {
	return quantized16By(x, philox.Stream{Seed: seed, Tensor: rounding.Tensor(name)}, 0)
}

// quantized16By takes the random numbers of a stream from one on.
func quantized16By(x []float32, stream philox.Stream, first uint64) []float32 {
	draws := stream.Halves(make([]uint32, len(x)/2+2), first/2)[first%2:]
	y := make([]float32, len(x))
	for i, v := range x {
		y[i] = math.Float32frombits((math.Float32bits(v) + uint32(draws[i])) &^ 0xffff)
	}
	return y
}

// TestTies4: states at the limits between two codes, and next to them, get the codes of
// the nearest values on every backend, the lower of two as near.
func TestTies4(t *testing.T) {
	const block = 64
	for name, limits := range map[string][16]float32{"Momentum": signed4().Limits, "Adagrad": unsigned4().Limits} {
		signed := name == "Momentum"
		g, x := []float32{1}, []float32{1} // the gradients of a first step and the states after it
		for _, limit := range limits[1:] {
			root := limit
			if !signed {
				root = float32(math.Sqrt(float64(limit)))
			}
			for _, v := range []float32{math.Nextafter32(root, -2), root, math.Nextafter32(root, 2)} {
				g = append(g, v)
				if !signed {
					v *= v
				}
				x = append(x, v)
			}
		}
		found := 0
		for _, limit := range limits[1:] {
			if slices.Contains(x, limit) {
				found++
			}
		}
		require.Greater(t, found, 7, "%s: no ties", name)
		kerneltest.Each(t, func(t *testing.T, backend kerneltest.Backend) {
			a := newOf(t, name, Options{Bits: 4, MinSize: 1, Block: block}, map[string]int{"w": len(g)})
			advance(a)
			require.NoError(t, a.Step("w", kerneltest.Put(t, backend, make([]float32, len(g))).View, kerneltest.Put(t, backend, g).View, 1))
			require.Equal(t, quantized4(x, signed, block), statesOf(t, a, "w")[0], name)
		})
	}
}

// TestStateBytes4And16 has odd lengths, partial blocks, and small parameters, which keep
// 32 bits.
func TestStateBytes4And16(t *testing.T) {
	for _, c := range []struct {
		n    int
		o    Options
		want int64
	}{
		{1 << 20, Options{Bits: 4}, 1<<20 + 8*1<<13},
		{5001, Options{Bits: 4}, 8*40 + 2*2501},
		{5001, Options{Bits: 4, Block: 4096}, 8*2 + 2*2501},
		{129, Options{Bits: 4, MinSize: 1}, 8*2 + 2*65},
		{1, Options{Bits: 4, MinSize: 1}, 8 + 2},
		{4095, Options{Bits: 4}, 8 * 4095},
		{5001, Options{Bits: 16}, 4 * 5001},
		{4095, Options{Bits: 16}, 8 * 4095},
		{0, Options{Bits: 4, MinSize: 1}, 0},
		{5001, Options{Bits: 4, Block: 33}, 0}, // is refused
	} {
		require.Equal(t, c.want, StateBytes(AdamW{}, c.o, c.n), "%d of %+v", c.n, c.o)
	}
}

// TestZeroBlocks: blocks of zeros stay zero, also those without signs, whose map has no 0.
func TestZeroBlocks(t *testing.T) {
	const n, block = 300, 32
	eachRule(t, func(t *testing.T, build func(Options, map[string]int) *Optimizer) {
		for _, bits := range []int{4, 16} {
			a := build(Options{Bits: bits, MinSize: 1, Block: block}, map[string]int{"w": n})
			g := kerneltest.Normal(1, n)
			clear(g[block : 2*block])
			for range 3 {
				advance(a)
				p := kerneltest.Normal(2, n) // coupled decay turns it into a gradient
				clear(p[block : 2*block])
				step(t, a, "w", p, g, 1)
				for _, x := range p[block : 2*block] {
					require.Zero(t, x)
				}
				for _, s := range statesOf(t, a, "w") {
					for _, x := range s[block : 2*block] {
						require.Zero(t, x)
					}
					if m, is := a.o.method.(*averaging); !is || m.Share != 1 { // at first x is z, and so y
						require.NotZero(t, s[0])
					}
				}
			}
		}
	})
}

// TestRandomOf16: the numbers that round states are those of neither the parameter nor
// another state, step, seed or name.
func TestRandomOf16(t *testing.T) {
	const n = 1 << 12
	x := kerneltest.Normal(1, n)
	stream := func(seed, step uint64, state int, name string) []float32 {
		return quantized16(x, rounding.Seed(rounding.Seed(seed, step), uint64(state)), name)
	}
	all := [][]float32{quantized16(x, rounding.Seed(1, 1), "w"),
		stream(1, 1, 0, "w"), stream(1, 1, 1, "w"), stream(1, 2, 0, "w"), stream(2, 1, 0, "w"), stream(1, 1, 0, "v")}
	for i := range all {
		for k := range i {
			differ := 0
			for e := range x {
				if all[i][e] != all[k][e] {
					differ++
				}
			}
			require.InDelta(t, n/3, differ, n/12, "%d and %d: the mean of 2f(1-f) for fractions f", i, k)
		}
	}
}

// TestSmallChangesOf16: a second moment with β2 = 0.999 grows as in float32, on average.
// Rounded to nearest it would stay where a step changes it by less than half the distance
// of two numbers.
func TestSmallChangesOf16(t *testing.T) {
	const n, steps = 1 << 12, 1000
	a := newOf(t, "Adam decoupled", Options{Bits: 16, MinSize: 1}, nil)
	a.o.hyper.Beta2 = 0.999
	require.NoError(t, a.Add("w", n))
	p, g := make([]float32, n), make([]float32, n)
	for i := range g {
		g[i] = 1
	}
	nearest := float32(0)
	for range steps {
		advance(a)
		step(t, a, "w", p, g, 1)
		nearest = snug.ToBFloat16(0.999*nearest + 0.001).Float32()
	}
	exact, sum := 1-math.Pow(0.999, steps), 0.0
	for _, x := range statesOf(t, a, "w")[1] {
		sum += float64(x)
	}
	require.InEpsilon(t, exact, sum/n, 2e-3)
	require.Less(t, float64(nearest), 0.6*exact)
}

// TestNarrowDrift makes 50 steps with random gradients and compares with 32 bits: the
// differences of the parameters, as a share of the ways they went, are 0.0007 to 0.006 on
// average with 16 bits, and 0.15 to 0.34 with 4.
func TestNarrowDrift(t *testing.T) {
	const n, steps = 1 << 12, 50
	for name := range rules {
		run := func(bits int) []float32 {
			a, p := newOf(t, name, Options{Bits: bits}, map[string]int{"w": n}), kerneltest.Normal(1, n)
			for i := range steps {
				advance(a)
				step(t, a, "w", p, kerneltest.Normal(uint64(i+2), n), 0.01)
			}
			return p
		}
		want, way := run(32), 0.0
		for i, x := range kerneltest.Normal(1, n) {
			way += math.Abs(float64(want[i] - x))
		}
		for bits, most := range map[int]float64{16: 0.008, 4: 0.4} {
			apart := 0.0
			for i, x := range run(bits) {
				apart += math.Abs(float64(want[i] - x))
			}
			require.Less(t, apart, most*way, "%s, %d bits", name, bits)
		}
	}
}

// regression fits the weights of a linear regression to batches of 32 samples with
// noise, by AdamW with a learning rate that falls to 0, and returns the square of what
// they are off for each of the outputs, which is the loss above that of the noise.
func regression(t *testing.T, bits int, lr, noise float32) float64 {
	const inputs, outputs, batch, steps = 64, 32, 32, 300
	a := newAdamW(t, Options{Bits: bits, MinSize: 1}, map[string]int{"w": inputs * outputs})
	truth, w, g := kerneltest.Normal(1, inputs*outputs), make([]float32, inputs*outputs), make([]float32, inputs*outputs)
	for s := range steps {
		x, y := kerneltest.Normal(uint64(2+2*s), batch*inputs), kerneltest.Normal(uint64(3+2*s), batch*outputs)
		clear(g)
		for b := range batch {
			in := x[b*inputs:][:inputs]
			for o := range outputs {
				e, row := -noise*y[b*outputs+o], o*inputs
				for i, v := range in {
					e += v * (w[row+i] - truth[row+i])
				}
				for i, v := range in {
					g[row+i] += e * v / batch
				}
			}
		}
		a.Advance(lr * (1 - float32(s)/steps))
		step(t, a, "w", w, g, 1)
	}
	off := 0.0
	for i, x := range truth {
		off += float64(w[i]-x) * float64(w[i]-x) / outputs
	}
	return off
}

// TestNarrowRegression: where noise decides, the loss with 4 bits is 0.5 % above that with
// 32, and 15 % farther above that of the noise; 8 bits have 9 %. Where gradients point
// one way for long, and get small, these are 360 % and 18 %. 16 bits are as good as 32.
func TestNarrowRegression(t *testing.T) {
	kerneltest.Slow(t) // 2·4·300 steps
	for _, c := range []struct {
		lr, noise float32
		most      map[int]float64 // of the loss above that of the noise, relative to 32 bits
	}{
		{0.1, 1, map[int]float64{16: 1.01, 8: 1.15, 4: 1.25}},
		{0.03, 0.1, map[int]float64{16: 1.01, 8: 1.25, 4: 6}},
	} {
		exact := regression(t, 32, c.lr, c.noise)
		for bits, most := range c.most {
			got := regression(t, bits, c.lr, c.noise)
			require.Less(t, got, most*exact, "%d bits, noise %g", bits, c.noise)
			require.Greater(t, got, exact/most, "%d bits, noise %g", bits, c.noise)
		}
	}
}

// TestNarrowBitsAndBytes: bitsandbytes has neither width.
//
//check:in tiers arm64
func TestNarrowBitsAndBytes(t *testing.T) {
	params := map[string]int{"w": 5000, "b": 10}
	file := new(bytes.Buffer)
	_, err := newAdamW(t, Options{Block: 256}, params).WriteBitsAndBytes(file, BitsAndBytesFormat{})
	require.NoError(t, err)
	for _, bits := range []int{4, 16} {
		a := newAdamW(t, Options{Bits: bits, Block: 256}, params)
		advance(a)
		step(t, a, "w", kerneltest.Normal(1, 5000), kerneltest.Normal(2, 5000), 1)
		before := stateOf(t, a)
		n, err := a.WriteBitsAndBytes(io.Discard, BitsAndBytesFormat{})
		require.Zero(t, n)
		for _, err := range []error{err, a.ReadBitsAndBytes(bytes.NewReader(file.Bytes()), int64(file.Len()), "")} {
			require.ErrorIs(t, err, snug.ErrConfig)
			require.ErrorContains(t, err, fmt.Sprintf(`parameter "w": states of %d bits, bitsandbytes has 8 and 32`, bits))
		}
		require.Equal(t, before, stateOf(t, a))
		small := newAdamW(t, Options{Bits: bits}, map[string]int{"b": 10})
		_, err = small.WriteBitsAndBytes(io.Discard, BitsAndBytesFormat{})
		require.NoError(t, err, "parameters of 32 bits it has")
	}
}

// TestNarrowHeader: optimizers of other widths refuse the state.
func TestNarrowHeader(t *testing.T) {
	params := map[string]int{"w": 5000}
	for _, bits := range []int{4, 16} {
		a := newAdamW(t, Options{Bits: bits, Block: 128}, params)
		data := bytesOf(a.AppendBinary(nil))
		for _, other := range widths {
			b := newAdamW(t, Options{Bits: other, Block: 128}, params)
			err := b.UnmarshalBinary(data)
			if other == bits {
				require.NoError(t, err)
				continue
			}
			require.ErrorIs(t, err, snug.ErrConfig)
			require.ErrorContains(t, err, fmt.Sprintf("Bits = %d, this optimizer has %d", bits, other))
			require.ErrorIs(t, b.ReadShards(bytes.NewReader(data)), snug.ErrConfig)
		}
	}
}
