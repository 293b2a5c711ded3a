package half

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/kerneltest"
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
		Store(v, 2, []float32{7, -2, 7})
		StoreStream(v, 2, []float32{1, -2, 0.5})
		got := make([]float32, 9)
		Load(got, v, 0)
		require.Equal(t, []float32{0, 0, 1, -2, 0.5, 0, 0, 0, 0}, got)
		Load(got[:2], v, 3)
		require.Equal(t, []float32{-2, 0.5}, got[:2])
	}
}

// everyKernels yields the kernels of every tier, through the caches and around
// them.
func everyKernels(yield func(name string, k *Kernels) bool) {
	for _, r := range []struct {
		name string
		of   *cpu.Registry[Kernels]
	}{{"cached", &Registry}, {"streamed", &Streams}} {
		for tier, k := range r.of.All() {
			if !yield(r.name+" "+tier.String(), k) {
				return
			}
		}
	}
}

// Every length and alignment gives the Go tier's bits and touches nothing
// else.
func TestEveryLength(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	src := make([]float32, 180)
	for i := range src {
		src[i] = math.Float32frombits(rng.Uint32())
	}
	f16, bf16 := make([]snug.Float16, len(src)), make([]snug.BFloat16, len(src))
	reference.F32ToF16(f16, src)
	reference.F32ToBF16(bf16, src)
	for name, k := range everyKernels {
		for n := range 131 {
			lo := n % 37
			hi := lo + n
			same(t, name, lo, hi, k.F32ToF16, reference.F32ToF16, src)
			same(t, name, lo, hi, k.F32ToBF16, reference.F32ToBF16, src)
			same(t, name, lo, hi, k.F16ToF32, reference.F16ToF32, f16)
			same(t, name, lo, hi, k.BF16ToF32, reference.BF16ToF32, bf16)
			same(t, name, lo, hi, k.F16ToBF16, reference.F16ToBF16, f16)
			same(t, name, lo, hi, k.BF16ToF16, reference.BF16ToF16, bf16)
		}
	}
}

// TestStochastic has every code with every part of the way to the next one at
// the edges: x goes up just if the draw and its own lower half carry.
func TestStochastic(t *testing.T) {
	var src []float32
	var draws []uint16
	for code := range uint32(1 << 16) {
		for _, low := range []uint32{0, 1, 0x8000, 0xffff} {
			src = append(src, math.Float32frombits(code<<16|low))
			draws = append(draws, uint16(0xffff-low+code&1))
		}
	}
	for name, k := range everyKernels {
		for _, n := range []int{len(src), 1, 15, 16, 17, 33} {
			got := make([]snug.BFloat16, n+1)
			got[n] = 77
			k.F32ToBF16Stochastic(got[:n], src[:n], draws[:n])
			require.Equal(t, snug.BFloat16(77), got[n])
			for i, x := range src[:n] {
				code, low := math.Float32bits(x)>>16, math.Float32bits(x)&0xffff
				want := snug.BFloat16(code)
				switch {
				case x != x:
					want |= 0x40
				case low > 0 && code&1 == 1:
					want++
				}
				if want != got[i] {
					t.Fatalf("%s: %x with %x: want %x, got %x", name, math.Float32bits(x), draws[i], want, got[i])
				}
			}
		}
	}
}

// TestStochasticF16 compares with the definition in float64: the fraction of the
// gap to the next binary16, in units of 2^-16 and cut off, and the draw have a
// sum of 2^16 or more just if x goes away from zero.
func TestStochasticF16(t *testing.T) {
	var src []float32
	var draws []uint16
	add := func(x float32, draw uint16) { src, draws = append(src, x, -x), append(draws, draw, draw) }
	for code := range snug.Float16(0x7c00) {
		x := F16ToFloat32(code)
		gap := max(math.Exp2(math.Floor(math.Log2(max(float64(x), 0x1p-14)))-10), 0x1p-24)
		for _, part := range []float64{0, 1.0 / 8192, 0.25, 0.5, 8191.0 / 8192} {
			y := float32(float64(x) + part*gap)
			fraction := uint32(math.Floor((float64(y) - float64(x)) / gap * 65536))
			add(y, uint16(65535-fraction)) // stays
			if fraction > 0 {
				add(y, uint16(65536-fraction)) // goes
			}
		}
	}
	for _, special := range []float32{0, 65504, 65520, 65535.99, 65536, 1e30, float32(math.Inf(1)), float32(math.NaN()), 1e-45, 0x1p-126, 0x1p-25, 0x1.fffp-25, 0x1p-39, 0x1p-40, 0x1p-41} {
		for _, draw := range []uint16{0, 1, 0x7fff, 0xffff} {
			add(special, draw)
		}
	}
	for name, k := range everyKernels {
		for _, n := range []int{len(src), 1, 15, 16, 17, 33} {
			got := make([]snug.Float16, n+1)
			got[n] = 77
			k.F32ToF16Stochastic(got[:n], src[:n], draws[:n])
			require.Equal(t, snug.Float16(77), got[n])
			for i, x := range src[:n] {
				if want := f16Definition(x, draws[i]); want != got[i] {
					t.Fatalf("%s: %g (%x) with %x: want %x, got %x", name, x, math.Float32bits(x), draws[i], want, got[i])
				}
			}
		}
	}
}

func f16Definition(x float32, draw uint16) snug.Float16 {
	sign := snug.Float16(math.Float32bits(x) >> 16 & 0x8000)
	a := math.Abs(float64(x))
	switch {
	case x != x:
		return Float32ToF16(x)
	case a >= 65536:
		return sign | 0x7c00
	}
	lower := Float32ToF16(float32(a))
	if lower == 0x7c00 || float64(F16ToFloat32(lower)) > a {
		lower--
	}
	down := float64(F16ToFloat32(lower))
	up := 65536.0
	if lower < 0x7bff {
		up = float64(F16ToFloat32(lower + 1))
	}
	if math.Floor((a-down)/(up-down)*65536)+float64(draw) >= 65536 {
		lower++
	}
	return sign | lower
}

func TestLimit(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	x := []float32{0, float32(math.Copysign(0, -1)), 1, -1, 65504, -65504, 65505, -1e30, inf, -inf, nan, 1e-45}
	for range 3 {
		x = append(x, x...)
	}
	for name, k := range everyKernels {
		for _, n := range []int{0, 1, 15, 16, 33, len(x)} {
			for _, most := range []float32{0, 1, 65504, math.MaxFloat32} {
				got := slices.Clone(x)
				k.Limit(got[:n], x[:n], most)
				for i, v := range x {
					want := v
					if i < n && v == v {
						want = float32(math.Copysign(math.Min(math.Abs(float64(v)), float64(most)), float64(v)))
					}
					if math.Float32bits(want) != math.Float32bits(got[i]) && want == want {
						t.Fatalf("%s: element %d of %d, limit %v: want %v, got %v", name, i, n, most, want, got[i])
					}
					require.Equal(t, v != v, got[i] != got[i])
				}
			}
		}
	}
}

// same converts elements lo to hi-1 by two functions.
func same[D, S snug.Element](t *testing.T, name string, lo, hi int, got, want func([]D, []S), src []S) {
	t.Helper()
	x, y := make([]D, len(src)), make([]D, len(src))
	got(x[lo:hi], src[lo:hi])
	want(y[lo:hi], src[lo:hi])
	require.Equal(t, bytesOf(y), bytesOf(x), "%s: elements %d to %d", name, lo, hi)
}

func bytesOf[T snug.Element](x []T) []byte {
	view := snug.SliceView(x)
	return device.Mem(&view).Bytes()
}

func TestBetweenHalves(t *testing.T) {
	f16, bf16 := make([]snug.Float16, 1<<16), make([]snug.BFloat16, 1<<16)
	for i := range f16 {
		f16[i], bf16[i] = snug.Float16(i), snug.BFloat16(i)
	}
	for name, k := range everyKernels {
		wide, wantF16, wantBF16 := make([]float32, 1<<16), make([]snug.Float16, 1<<16), make([]snug.BFloat16, 1<<16)
		reference.BF16ToF32(wide, bf16)
		reference.F32ToF16(wantF16, wide)
		reference.F16ToF32(wide, f16)
		reference.F32ToBF16(wantBF16, wide)
		gotF16, gotBF16 := make([]snug.Float16, 1<<16), make([]snug.BFloat16, 1<<16)
		k.BF16ToF16(gotF16, bf16)
		k.F16ToBF16(gotBF16, f16)
		require.True(t, slices.Equal(wantF16, gotF16), name)
		require.True(t, slices.Equal(wantBF16, gotBF16), name)
	}
}

func TestConvert(t *testing.T) {
	views := func() []snug.View {
		return []snug.View{
			snug.ViewOf([]float32{1, -2, 0.5, 3}), snug.ViewOf([]snug.Float16{0x3c00, 0xc000, 0x3800, 0x4200}),
			snug.ViewOf([]snug.BFloat16{0x3f80, 0xc000, 0x3f00, 0x4040}),
		}
	}
	for _, stream := range []bool{false, true} {
		for _, src := range views() {
			for _, dst := range views() {
				if src.DType() == dst.DType() {
					continue
				}
				Store(dst, 0, make([]float32, 4))
				Convert(dst, src, 1, 3, stream)
				got := make([]float32, 4)
				Load(got, dst, 0)
				require.Equal(t, []float32{0, -2, 0.5, 0}, got, "%v to %v", src.DType(), dst.DType())
			}
		}
	}
}

// BenchmarkConvert has vectors far beyond the last cache, in chunks of 64 Ki
// elements.
func BenchmarkConvert(b *testing.B) {
	const n, parts, chunk = 1 << 22, 16, 1 << 16
	type args struct {
		dst, src snug.View
		part     int
		stream   bool
	}
	task := cpu.NewTask(func(a *args, item int) {
		lo, hi := cpu.Chunk(n*parts, chunk, item+a.part*n/chunk)
		Convert(a.dst, a.src, lo, hi, a.stream)
	})
	f32, f16, bf16 := make([]float32, n*parts), make([]snug.Float16, n*parts), make([]snug.BFloat16, n*parts)
	for i := range f32 {
		f32[i] = float32(i&0xffff) + 0.3
	}
	F32, F16, BF16 := snug.ViewOf(f32), snug.ViewOf(f16), snug.ViewOf(bf16)
	for _, pair := range [][2]snug.View{{F16, F32}, {BF16, F32}, {F32, F16}, {F32, BF16}, {BF16, F16}, {F16, BF16}} {
		for _, stream := range []bool{false, true} {
			b.Run(fmt.Sprintf("%v-%v/stream=%v", pair[1].DType(), pair[0].DType(), stream), func(b *testing.B) {
				kerneltest.OfCopy(b, parts, n*(pair[0].DType().Size()+pair[1].DType().Size()), func(part int) {
					task.Run(n/chunk, args{pair[0], pair[1], part, stream})
				})
			})
		}
	}
}

// A row of float32 may become bfloat16 at its own start, up to Chunk elements.
func TestNarrowInPlace(t *testing.T) {
	for tier, k := range Registry.All() {
		for n := range Chunk + 1 {
			src := make([]float32, n)
			for i := range src {
				src[i] = float32(i)*1.01 - 300
			}
			want := make([]snug.BFloat16, n)
			f32ToBF16(want, src)
			got := unsafe.Slice((*snug.BFloat16)(unsafe.Pointer(unsafe.SliceData(src))), n)
			k.F32ToBF16(got, src)
			require.Equal(t, want, got, "%v, %d elements", tier, n)
		}
	}
}
