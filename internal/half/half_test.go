package half

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/stretchr/testify/require"
	"github.com/x448/float16"
)

func TestAllF16Codes(t *testing.T) {
	src := make([]snug.Float16, 1<<16)
	for i := range src {
		src[i] = snug.Float16(i)
	}
	for tier, k := range Registry.All() {
		dst := make([]float32, len(src))
		k.F16ToF32(dst, src)
		back := make([]snug.Float16, len(src))
		k.F32ToF16(back, dst)
		for i, h := range src {
			require.Equal(t, math.Float32bits(h.Float32()), math.Float32bits(dst[i]), "%v: code %#x", tier, i)
			require.Equal(t, float16.Fromfloat32(dst[i]), back[i], "%v: code %#x", tier, i)
		}
	}
}

func TestAllBF16Codes(t *testing.T) {
	src := make([]snug.BFloat16, 1<<16)
	for i := range src {
		src[i] = snug.BFloat16(i)
	}
	for tier, k := range Registry.All() {
		dst := make([]float32, len(src))
		k.BF16ToF32(dst, src)
		back := make([]snug.BFloat16, len(src))
		k.F32ToBF16(back, dst)
		for i, h := range src {
			require.Equal(t, uint32(i)<<16, math.Float32bits(dst[i]), "%v: code %#x", tier, i)
			want := h
			if dst[i] != dst[i] {
				want |= 0x40
			}
			require.Equal(t, want, back[i], "%v: code %#x", tier, i)
		}
	}
}

// edges are float32 bits around every value at which rounding to 16 bits
// changes, and random ones.
func edges() []float32 {
	var out []float32
	for code := range uint32(1 << 16) {
		for _, base := range []uint32{code << 16, math.Float32bits(F16ToFloat32(snug.Float16(code)))} {
			for _, step := range []uint32{0x7fff, 0x8000, 0x8001, 0xfff, 0x1000, 0x1001, 1} {
				out = append(out, math.Float32frombits(base+step), math.Float32frombits(base-step))
			}
		}
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for range 1 << 18 {
		out = append(out, math.Float32frombits(rng.Uint32()))
	}
	return out
}

func TestRoundingAgainstOracles(t *testing.T) {
	src := edges()
	for tier, k := range Registry.All() {
		f := make([]snug.Float16, len(src))
		k.F32ToF16(f, src)
		b := make([]snug.BFloat16, len(src))
		k.F32ToBF16(b, src)
		for i, x := range src {
			if want := float16.Fromfloat32(x); want != f[i] {
				t.Fatalf("%v: f16(%x = %g) = %#x, want %#x", tier, math.Float32bits(x), x, f[i], want)
			}
			if want := bf16Oracle(x); want != b[i] {
				t.Fatalf("%v: bf16(%x = %g) = %#x, want %#x", tier, math.Float32bits(x), x, b[i], want)
			}
		}
	}
}

// bf16Oracle rounds by comparing the distances to both neighbours in float64.
func bf16Oracle(x float32) snug.BFloat16 {
	bits := math.Float32bits(x)
	down := snug.BFloat16(bits >> 16)
	if math.IsNaN(float64(x)) {
		return down | 0x40
	}
	if math.IsInf(float64(x), 0) {
		return down
	}
	up := down + 1
	value := func(h snug.BFloat16) float64 {
		if h&0x7fff == 0x7f80 { // infinity stands for the next power of two
			return math.Copysign(0x1p128, float64(h.Float32()))
		}
		return float64(h.Float32())
	}
	dd, du := math.Abs(float64(x)-value(down)), math.Abs(value(up)-float64(x))
	if dd < du || dd == du && down&1 == 0 {
		return down
	}
	return up
}

func TestLoadStore(t *testing.T) {
	for _, v := range []snug.View{
		snug.ViewOf(make([]float32, 9)), snug.ViewOf(make([]snug.Float16, 9)), snug.ViewOf(make([]snug.BFloat16, 9)),
	} {
		Store(v, 2, []float32{1, -2, 0.5})
		got := make([]float32, 9)
		Load(got, v, 0)
		require.Equal(t, []float32{0, 0, 1, -2, 0.5, 0, 0, 0, 0}, got)
		Load(got[:2], v, 3)
		require.Equal(t, []float32{-2, 0.5}, got[:2])
	}
}

func BenchmarkConvert(b *testing.B) {
	f := make([]float32, 1<<16)
	h := make([]snug.Float16, len(f))
	bf := make([]snug.BFloat16, len(f))
	for i := range f {
		f[i] = float32(i) * 0.01
	}
	for tier, k := range Registry.All() {
		for name, do := range map[string]func(){
			"f32-f16": func() { k.F32ToF16(h, f) }, "f16-f32": func() { k.F16ToF32(f, h) },
			"f32-bf16": func() { k.F32ToBF16(bf, f) }, "bf16-f32": func() { k.BF16ToF32(f, bf) },
		} {
			b.Run(tier.String()+"/"+name, func(b *testing.B) {
				b.SetBytes(int64(6 * len(f)))
				for b.Loop() {
					do()
				}
			})
		}
	}
}

// Every length and alignment gives the Go tier's bits and touches nothing
// else.
func TestEveryLength(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	src := make([]float32, 140)
	for i := range src {
		src[i] = math.Float32frombits(rng.Uint32())
	}
	for tier, k := range Registry.All() {
		for n := range 131 {
			lo := n % 5
			in := src[lo : lo+n]
			h, wantH := make([]snug.Float16, n+lo+1), make([]snug.Float16, n+lo+1)
			k.F32ToF16(h[lo:lo+n], in)
			reference.F32ToF16(wantH[lo:lo+n], in)
			require.Equal(t, wantH, h, "%v %d", tier, n)
			b, wantB := make([]snug.BFloat16, n+lo+1), make([]snug.BFloat16, n+lo+1)
			k.F32ToBF16(b[lo:lo+n], in)
			reference.F32ToBF16(wantB[lo:lo+n], in)
			require.Equal(t, wantB, b, "%v %d", tier, n)

			f, wantF := make([]float32, n+lo+1), make([]float32, n+lo+1)
			k.F16ToF32(f[lo:lo+n], h[lo:lo+n])
			reference.F16ToF32(wantF[lo:lo+n], h[lo:lo+n])
			requireBits(t, wantF, f)
			k.BF16ToF32(f[lo:lo+n], b[lo:lo+n])
			reference.BF16ToF32(wantF[lo:lo+n], b[lo:lo+n])
			requireBits(t, wantF, f)
		}
	}
}

func requireBits(t *testing.T, want, got []float32) {
	t.Helper()
	for i := range want {
		require.Equal(t, math.Float32bits(want[i]), math.Float32bits(got[i]), "element %d", i)
	}
}
