package rowwise

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func widened(x []uint16) []float32 {
	y := make([]float32, len(x))
	for i, b := range x {
		y[i] = snug.BFloat16(b).Float32()
	}
	return y
}

func narrowed(x []float32) []uint16 {
	y := make([]uint16, len(x))
	for i, v := range x {
		y[i] = uint16(snug.ToBFloat16(v))
	}
	return y
}

// layer runs layer number n and reports its properties.
func layer[T float32 | uint16](n int, k *Layers[T], h [][]T, f [][]float32, a [4]float32) (name string, sums, exact bool, scalars []float32) {
	stream := a[0] > 0
	switch n {
	case 0:
		k.Add(h[0], h[1], h[2], stream)
		return "Add", false, true, nil
	case 1:
		k.AddScaled(f[0], h[0], a[0], f[0], h[0])
		return "AddScaled", false, true, nil
	case 2:
		k.GELU(h[0], h[1], h[2], stream)
		return "GELU", false, false, nil
	case 3:
		k.GELUGrad(h[0], f[0], h[1], h[2], h[3], stream)
		return "GELUGrad", true, false, nil
	case 4:
		k.SiLUMul(h[0], h[1], h[2], stream)
		return "SiLUMul", false, false, nil
	case 5:
		k.SiLUMulGrad(h[0], h[1], h[2], h[3], h[4], stream)
		return "SiLUMulGrad", false, false, nil
	case 6:
		mean, rstd := k.LayerNorm(h[0], h[1], h[2], h[3], 0.1, stream)
		return "LayerNorm", false, false, []float32{mean, rstd}
	case 7:
		k.LayerNormGrad(h[0], f[0], f[1], h[1], h[2], h[3], a[0], a[1], a[2], a[3], stream)
		return "LayerNormGrad", true, false, nil
	case 8:
		return "RMSNorm", false, false, []float32{k.RMSNorm(h[0], h[1], h[2], 0.1, stream)}
	case 9:
		k.RMSNormGrad(h[0], f[0], h[1], h[2], h[3], a[1], a[2], 0, stream)
		return "RMSNormGrad", true, false, nil
	case 10:
		words := make([]uint32, len(f[0]))
		for i, x := range f[0] {
			words[i] = math.Float32bits(x)
		}
		k.Dropout(h[0], h[1], words, math.Float32bits(0.25), a[1], stream)
		return "Dropout", false, true, nil
	case 11:
		k.Rotate(h[0], h[1], f[0], f[1], a[3], 1, 0)
		return "Rotate", false, true, nil
	case 12:
		half := len(h[0]) / 2
		k.RotatePairs(f[0][:half], f[1][:half], h[0][:2*half], a[3])
		return "RotatePairs", false, true, nil
	case 13:
		k.GELUErf(h[0], h[1], h[2], stream)
		return "GELUErf", false, false, nil
	case 14:
		k.GELUErfGrad(h[0], f[0], h[1], h[2], h[3], stream)
		return "GELUErfGrad", true, false, nil
	case 15:
		k.GELUMul(h[0], h[1], h[2], stream)
		return "GELUMul", false, false, nil
	case 16:
		k.GELUMulGrad(h[0], h[1], h[2], h[3], h[4], stream)
		return "GELUMulGrad", false, false, nil
	case 17:
		k.AddNext(h[0], h[1], h[2], h[1], nil, stream)
		return "AddNext", false, true, nil
	case 18:
		k.ClampedMul(h[0], h[1], h[2], 1.702, 2, stream)
		return "ClampedMul", false, false, nil
	case 19:
		k.ClampedMulGrad(h[0], h[1], h[2], h[3], h[4], 1.702, 2, stream)
		return "ClampedMulGrad", false, false, nil
	case 20:
		k.Ramp(h[0], h[1], a[1], 1.5, a[2], stream)
		return "Ramp", false, true, nil
	case 21:
		k.RampMul(h[0], h[1], a[1], a[2], 1.5, a[3], stream)
		return "RampMul", false, true, nil
	case 22:
		k.Leaky(h[0], h[1], a[1], stream)
		return "Leaky", false, true, nil
	case 23:
		k.Sigmoid(h[0], h[1], stream)
		return "Sigmoid", false, false, nil
	case 24:
		k.Slopes(h[0], h[1], h[2], a[1], 1, 0, a[2], a[3], 1.5, stream)
		return "Slopes", false, true, nil
	case 25:
		k.OutputSlopes(h[0], h[1], h[2], a[1], a[2], stream)
		return "OutputSlopes", false, true, nil
	}
	return "", false, false, nil
}

const (
	layerCount  = 26
	halfOperand = 5
	fullOperand = 2
)

// guarded returns a copy of x between guards, off by some elements.
func guarded[T float32 | uint16](x []T, off int) (whole, inner []T) {
	whole = make([]T, len(x)+2*guard+off)
	for i := range whole {
		whole[i] = 77
	}
	copy(whole[guard+off:], x)
	return whole, whole[guard+off:][:len(x):len(x)]
}

func requireGuards[T float32 | uint16](t require.TestingT, whole []T, n, off int, name string) {
	for i, x := range whole {
		if i < guard+off || i >= guard+off+n {
			require.Equal(t, T(77), x, "%s wrote element %d around %d", name, i, n)
		}
	}
}

// compareBF16 compares a layer of bfloat16 with the Go loops on float32.
func compareBF16(t require.TestingT, number int, half [][]uint16, full [][]float32, a [4]float32) {
	var f32 *Layers[float32]
	for _, k := range F32.All() {
		f32 = k
		break
	}
	for tier, k := range BF16.All() {
		var h, wholeH [][]uint16
		var f, wholeF, wantH, wantF [][]float32
		for i, x := range half {
			whole, inner := guarded(x, i)
			wholeH, h, wantH = append(wholeH, whole), append(h, inner), append(wantH, widened(x))
		}
		for i, x := range full {
			whole, inner := guarded(x, i)
			wholeF, f, wantF = append(wholeF, whole), append(f, inner), append(wantF, append([]float32(nil), x...))
		}
		name, _, exact, scalars := layer(number, k, h, f, a)
		_, sums, _, wantScalars := layer(number, f32, wantH, wantF, a)
		for i := range h {
			requireGuards(t, wholeH[i], len(h[i]), i, name)
			for j, b := range h[i] {
				got, want := snug.BFloat16(b).Float32(), wantH[i][j]
				if exact || want != want {
					requireHalf(t, want, b, "%v %s: row %d, element %d of %d", tier, name, i, j, len(h[i]))
					continue
				}
				require.InDelta(t, want, got, 0x1p-8*math.Abs(float64(want))+2e-4*(1+math.Abs(float64(want))), "%v %s: row %d, element %d of %d", tier, name, i, j, len(h[i]))
			}
		}
		for i := range f {
			requireGuards(t, wholeF[i], len(f[i]), i, name)
			want := wantF[i]
			if sums && k.Order != nil {
				ordered := make([]float32, len(f[i]))
				k.Order(ordered, f[i])
				if i > 0 && name != "LayerNormGrad" { // not an operand
					ordered = f[i]
				}
				// What was there before has the order of memory on both sides.
				for j := range ordered {
					ordered[j] -= orderedStart(k, full[i], j, i > 0 && name != "LayerNormGrad")
					want[j] -= full[i][j]
				}
				f[i] = ordered
			}
			for j, w := range want {
				if exact {
					require.Equal(t, math.Float32bits(w), math.Float32bits(f[i][j]), "%v %s", tier, name)
				} else if w == w {
					require.InDelta(t, w, f[i][j], 2e-4*(1+math.Abs(float64(w))), "%v %s: sums %d, element %d of %d", tier, name, i, j, len(want))
				}
			}
		}
		for i, w := range wantScalars {
			require.InEpsilon(t, w+10, scalars[i]+10, 1e-5, name)
		}
	}
}

// orderedStart returns what Order makes of element j of x.
func orderedStart(k *Layers[uint16], x []float32, j int, plain bool) float32 {
	if plain {
		return x[j]
	}
	y := make([]float32, len(x))
	k.Order(y, x)
	return y[j]
}

// requireHalf wants x rounded to bfloat16, or any NaN for a NaN.
func requireHalf(t require.TestingT, want float32, got uint16, args ...any) {
	if want != want {
		g := snug.BFloat16(got).Float32()
		require.True(t, g != g, args...)
		return
	}
	require.Equal(t, uint16(snug.ToBFloat16(want)), got, args...)
}

func operands(rng *rand.Rand, n int) (half [][]uint16, full [][]float32) {
	for range halfOperand {
		half = append(half, narrowed(normals(rng, n)))
	}
	for range fullOperand {
		full = append(full, normals(rng, n))
	}
	return half, full
}

//check:not race
func TestBF16EveryLength(t *testing.T) {
	rng := rand.New(rand.NewPCG(11, 12))
	for number := range layerCount {
		for n := 1; n < 131; n++ {
			half, full := operands(rng, n)
			compareBF16(t, number, half, full, [4]float32{float32(rng.NormFloat64()), 1.25, -0.5, 0.25})
		}
	}
}

func TestBF16NoElements(t *testing.T) {
	for _, number := range []int{0, 1, 2, 3, 4, 5, 10, 11, 12} {
		half, full := operands(rand.New(rand.NewPCG(1, 1)), 0)
		compareBF16(t, number, half, full, [4]float32{1, 1, 1, 1})
	}
}

// Every rounding: sums of any two numbers, and every number with itself.
//
//check:not race
func TestBF16AnyBits(t *testing.T) {
	rng := rand.New(rand.NewPCG(13, 14))
	all := make([]uint16, 1<<16)
	for i := range all {
		all[i] = uint16(i)
	}
	for _, k := range BF16.All() {
		for range 20 {
			other, got := append([]uint16(nil), all...), make([]uint16, len(all))
			rng.Shuffle(len(other), func(i, j int) { other[i], other[j] = other[j], other[i] })
			k.Add(got, all, other, false)
			for i, b := range got {
				requireHalf(t, snug.BFloat16(all[i]).Float32()+snug.BFloat16(other[i]).Float32(), b, "%x + %x", all[i], other[i])
			}
		}
		words, got := make([]uint32, len(all)), make([]uint16, len(all))
		for _, scale := range []float32{1, 1.0 / 3, 1e-38, 3e38} {
			k.Dropout(got, all, words, 0, scale, true)
			for i, b := range got {
				requireHalf(t, scale*snug.BFloat16(all[i]).Float32(), b, "%x · %g", all[i], scale)
			}
		}
	}
}

// The activations of all numbers keep their stated bounds, and a rounding.
func TestBF16ActivationError(t *testing.T) {
	var x []uint16
	for i := range 1 << 16 {
		if v := snug.BFloat16(i).Float32(); math.Abs(float64(v)) < 1e30 {
			x = append(x, uint16(i))
		}
	}
	n := len(x)
	zeros, ones := make([]uint16, n), narrowed(make([]float32, n))
	for i := range ones {
		ones[i] = 0x3f80
	}
	for _, k := range BF16.All() {
		y, slope, dup, sums := make([]uint16, n), make([]uint16, n), make([]uint16, n), make([]float32, n)
		check := func(name string, of func(float64) (float64, float64), bound, slopeBound func(v, want float64) float64) {
			for i, b := range x {
				v := float64(snug.BFloat16(b).Float32())
				want, wantSlope := of(v)
				require.InDelta(t, want, snug.BFloat16(y[i]).Float32(), 0x1.01p-8*math.Abs(want)+0x1p-134+bound(v, want), "%s(%g)", name, v)
				require.InDelta(t, wantSlope, snug.BFloat16(slope[i]).Float32(), 0x1.01p-8*math.Abs(wantSlope)+0x1p-134+slopeBound(v, wantSlope), "%s′(%g)", name, v)
			}
		}
		k.GELU(y, x, zeros, false)
		k.GELUGrad(slope, sums, ones, x, zeros, false)
		check("gelu", gelu64,
			func(v, _ float64) float64 { return 1.2e-5 * min(max(1, math.Abs(v)), 8) },
			func(_, _ float64) float64 { return 5e-6 })
		k.GELUErf(y, x, zeros, false)
		k.GELUErfGrad(slope, sums, ones, x, zeros, false)
		check("erf gelu", geluErf64,
			func(v, _ float64) float64 { return 1.2e-7 * max(1, math.Abs(v)) },
			func(_, _ float64) float64 { return 2e-7 })
		k.SiLUMul(y, x, ones, false)
		k.SiLUMulGrad(slope, dup, ones, x, ones, false)
		relative := func(_, want float64) float64 { return 0x1p-13*math.Abs(want) + 2e-36 }
		check("silu", silu64, relative, func(_, _ float64) float64 { return 5e-6 })
		copy(y, dup)
		check("silu of the gradient", silu64, relative, func(_, _ float64) float64 { return 5e-6 })
		k.Sigmoid(y, x, false)
		sigmoid := func(v float64) float64 { return 1 / (1 + math.Exp(-v)) }
		check("sigmoid", func(v float64) (float64, float64) { _, slope := silu64(v); return sigmoid(v), slope },
			func(_, want float64) float64 { return 0x1p-13*want + 2e-38 }, func(_, _ float64) float64 { return 5e-6 })
		k.GELUMul(y, x, ones, false)
		k.GELUMulGrad(slope, dup, ones, x, ones, false)
		exact := func(v, _ float64) float64 { return 1.2e-7 * max(1, math.Abs(v)) }
		check("gated gelu", gelu64, exact, func(_, _ float64) float64 { return 2e-7 })
		copy(y, dup)
		check("gated gelu of the gradient", gelu64, exact, func(_, _ float64) float64 { return 2e-7 })
	}
}

func TestBF16ActivationLimits(t *testing.T) {
	x := narrowed([]float32{-inf, -math.MaxFloat32 / 2, -200, 200, math.MaxFloat32 / 2, inf, nan})
	n := len(x)
	zeros, ones := make([]uint16, n), []uint16{0x3f80, 0x3f80, 0x3f80, 0x3f80, 0x3f80, 0x3f80, 0x3f80}
	for _, k := range BF16.All() {
		y, slope, sums := make([]uint16, n), make([]uint16, n), make([]float32, n)
		check := func() {
			for i := range 3 {
				require.Equal(t, uint16(0x8000), y[i])
				require.Zero(t, slope[i]&0x7fff, "%v", i)
				require.Equal(t, x[3+i], y[3+i])
				require.Equal(t, uint16(0x3f80), slope[3+i])
			}
			require.Greater(t, y[6]&0x7fff, uint16(0x7f80))
			require.Greater(t, slope[6]&0x7fff, uint16(0x7f80))
		}
		k.GELU(y, x, zeros, false)
		k.GELUGrad(slope, sums, ones, x, zeros, false)
		check()
		k.GELUErf(y, x, zeros, false)
		k.GELUErfGrad(slope, sums, ones, x, zeros, false)
		check()
		k.SiLUMul(y, x, ones, false)
		k.SiLUMulGrad(slope, make([]uint16, n), ones, x, ones, false)
		check()
		k.GELUMul(y, x, ones, false)
		k.GELUMulGrad(slope, make([]uint16, n), ones, x, ones, false)
		check()
	}
}

// bf16Agrees compares any layer of any length on moderate numbers.
func bf16Agrees(t *rapid.T) {
	n := rapid.IntRange(1, 300).Draw(t, "n")
	rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
	half, full := operands(rng, n)
	compareBF16(t, rapid.IntRange(0, layerCount-1).Draw(t, "layer"), half, full,
		[4]float32{rapid.Float32Range(-1, 1).Draw(t, "scalar"), 1.5, -0.25, 0.5})
}

func TestBF16Agrees(t *testing.T) { rapid.Check(t, bf16Agrees) }
func FuzzBF16Agrees(f *testing.F) { f.Fuzz(rapid.MakeFuzz(bf16Agrees)) }
