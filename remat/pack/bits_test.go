package pack_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/remat/pack"
	"github.com/stretchr/testify/require"
	"github.com/x448/float16"
	"pgregory.net/rapid"
)

// aligned is how many elements after the start of a kerneltest.Buf an address is a
// multiple of 16 elements.
const aligned = 9

// vector is elements on a backend, with others before them that nobody may write.
type vector[T snug.Element] struct {
	snug.View
	buf  *kerneltest.Buf[T]
	lead int
}

func put[T snug.Element](t testing.TB, p kerneltest.Backend, lead int, vals []T) vector[T] {
	buf := kerneltest.Put(t, p, append(make([]T, lead), vals...))
	v, err := buf.Slice(lead, lead+len(vals))
	require.NoError(t, err)
	return vector[T]{v, buf, lead}
}

func (v vector[T]) get(t testing.TB) []T {
	whole := v.buf.Get()
	for _, x := range whole[:v.lead] {
		require.Zero(t, x, "an element before the vector")
	}
	return append([]T{}, whole[v.lead:]...) // not nil when empty
}

// element is how a test sees an element type.
type element[T snug.Element] struct {
	of      func(bits uint32) T
	bits    func(T) uint32
	value   func(T) float32
	special []uint32 // bits
}

var (
	f32s = element[float32]{
		math.Float32frombits, math.Float32bits, func(x float32) float32 { return x },
		[]uint32{0, 1 << 31, 1, 1<<31 | 1, 0x7fffff, 0x7f800000, 0xff800000, 0x7f800001, 0xff800001, 0x7fffffff, 0xffffffff, 0x3f800000},
	}
	f16s = element[snug.Float16]{
		func(b uint32) snug.Float16 { return snug.Float16(b) }, func(x snug.Float16) uint32 { return uint32(x) }, snug.Float16.Float32,
		[]uint32{0, 1 << 15, 1, 1<<15 | 1, 0x3ff, 0x7c00, 0xfc00, 0x7c01, 0xfc01, 0x7fff, 0xffff, 0x3c00},
	}
	bf16s = element[snug.BFloat16]{
		func(b uint32) snug.BFloat16 { return snug.BFloat16(b) }, func(x snug.BFloat16) uint32 { return uint32(x) }, snug.BFloat16.Float32,
		[]uint32{0, 1 << 15, 1, 1<<15 | 1, 0x7f, 0x7f80, 0xff80, 0x7f81, 0xff81, 0x7fff, 0xffff, 0x3f80},
	}
	u8s = element[uint8]{
		func(b uint32) uint8 { return uint8(b) }, func(x uint8) uint32 { return uint32(x) }, func(x uint8) float32 { return float32(x) },
		[]uint32{0, 1, 0x7f, 0x80, 0xff},
	}
	i32s = element[int32]{
		func(b uint32) int32 { return int32(b) }, func(x int32) uint32 { return uint32(x) }, func(x int32) float32 { return float32(x) },
		[]uint32{0, 1, 1 << 31, math.MaxInt32, math.MaxUint32},
	}
)

// draw returns n elements, a third of them special.
func (e element[T]) draw(n int) []T {
	rng := rand.New(rand.NewPCG(1, uint64(n)))
	x := make([]T, n)
	for i := range x {
		bits := rng.Uint32()
		if rng.IntN(3) == 0 {
			bits = e.special[rng.IntN(len(e.special))]
		}
		x[i] = e.of(bits)
	}
	return x
}

// packed is the mask of n elements by definition.
func packed(n int, set func(i int) bool) []uint8 {
	mask := make([]uint8, (n+7)/8)
	for i := range n {
		if set(i) {
			mask[i/8] |= 1 << (i % 8)
		}
	}
	return mask
}

func isSet(mask []uint8, i int) bool { return mask[i/8]>>(i%8)&1 != 0 }

// lengths covers all remainders of groups, the tail of a wide access, and several
// chunks and blocks.
func lengths(p kerneltest.Backend) []int {
	n := []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 127, 129, 8191}
	if !p.Emulated {
		n = append(n, 1<<16+13)
	}
	return n
}

// each calls test on every backend for several lengths, with vectors and masks that
// are aligned and with some that are not.
func each(t *testing.T, test func(t *testing.T, p kerneltest.Backend, n, lead, maskLead int)) {
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
		for _, n := range lengths(p) {
			for _, leads := range [][2]int{{0, 0}, {aligned, aligned}, {aligned, 0}, {0, aligned}} {
				if n <= 1<<13 || leads[0] == leads[1] {
					test(t, p, n, leads[0], leads[1])
				}
			}
		}
	})
}

func TestBits(t *testing.T) {
	t.Run("f32", func(t *testing.T) { testBits(t, f32s) })
	t.Run("f16", func(t *testing.T) { testBits(t, f16s) })
	t.Run("bf16", func(t *testing.T) { testBits(t, bf16s) })
	t.Run("u8", func(t *testing.T) { testBits(t, u8s) })
	t.Run("i32", func(t *testing.T) { testBits(t, i32s) })
}

func testBits[T snug.Element](t *testing.T, e element[T]) {
	each(t, func(t *testing.T, p kerneltest.Backend, n, lead, maskLead int) {
		vals := e.draw(n)
		want := packed(n, func(i int) bool { return e.value(vals[i]) != 0 })
		x, mask := put(t, p, lead, vals), put(t, p, maskLead, make([]uint8, pack.BitsLen(n)))
		require.NoError(t, pack.Bits(mask.View, x.View))
		require.Equal(t, want, mask.get(t), "%d elements", n)

		require.NoError(t, pack.UnpackBits(x.View, mask.View))
		for i, v := range x.get(t) {
			if set := isSet(want, i); e.value(v) != 0 != set || set && e.value(v) != 1 {
				require.Fail(t, "wrong", "element %d of %d: %v, bit %t", i, n, v, set)
			}
		}
	})
}

func TestSigns(t *testing.T) {
	t.Run("f32", func(t *testing.T) { testSigns(t, f32s) })
	t.Run("f16", func(t *testing.T) { testSigns(t, f16s) })
	t.Run("bf16", func(t *testing.T) { testSigns(t, bf16s) })
}

func testSigns[T snug.Element](t *testing.T, e element[T]) {
	each(t, func(t *testing.T, p kerneltest.Backend, n, lead, maskLead int) {
		vals := e.draw(n)
		x, mask := put(t, p, lead, vals), put(t, p, maskLead, make([]uint8, pack.BitsLen(n)))
		require.NoError(t, pack.Signs(mask.View, x.View))
		require.Equal(t, packed(n, func(i int) bool { return e.value(vals[i]) > 0 }), mask.get(t), "%d elements", n)
	})
}

// TestAllCodes packs every element of 16 bits.
func TestAllCodes(t *testing.T) {
	t.Run("f16", func(t *testing.T) { testAllCodes(t, f16s) })
	t.Run("bf16", func(t *testing.T) { testAllCodes(t, bf16s) })
}

func testAllCodes[T snug.Element](t *testing.T, e element[T]) {
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
		vals := make([]T, 1<<16)
		for i := range vals {
			vals[i] = e.of(uint32(i))
		}
		x, mask := put(t, p, aligned, vals), put(t, p, 0, make([]uint8, 1<<13))
		require.NoError(t, pack.Signs(mask.View, x.View))
		require.Equal(t, packed(len(vals), func(i int) bool { return e.value(vals[i]) > 0 }), mask.get(t))
		require.NoError(t, pack.Bits(mask.View, x.View))
		require.Equal(t, packed(len(vals), func(i int) bool { return e.value(vals[i]) != 0 }), mask.get(t))
	})
}

func TestApplyBits(t *testing.T) {
	t.Run("f32", func(t *testing.T) { testApplyBits(t, f32s) })
	t.Run("f16", func(t *testing.T) { testApplyBits(t, f16s) })
	t.Run("bf16", func(t *testing.T) { testApplyBits(t, bf16s) })
}

func testApplyBits[T snug.Element](t *testing.T, e element[T]) {
	each(t, func(t *testing.T, p kerneltest.Backend, n, lead, maskLead int) {
		vals, bits := e.draw(n), u8s.draw(pack.BitsLen(n))
		mask := put(t, p, maskLead, bits)
		for _, scale := range []float32{1, 1 / 0.9, -3e38, 0} {
			dy, dx := put(t, p, lead, vals), put(t, p, lead, make([]T, n))
			require.NoError(t, pack.ApplyBits(dx.View, dy.View, mask.View, scale))
			got := dx.get(t)
			require.NoError(t, pack.ApplyBits(dy.View, dy.View, mask.View, scale))
			inPlace := dy.get(t)
			for i, y := range vals {
				set := isSet(bits, i)
				if !isScaled(e, got[i], y, scale, set) || !isScaled(e, inPlace[i], y, scale, set) {
					require.Fail(t, "wrong", "scale %g: element %d of %d: %#x, in place %#x, of %#x",
						scale, i, n, e.bits(got[i]), e.bits(inPlace[i]), e.bits(y))
				}
			}
		}
		require.Equal(t, bits, mask.get(t))
	})
}

// isScaled reports whether x is ApplyBits's result for y, by definition.
func isScaled[T snug.Element](e element[T], x, y T, scale float32, set bool) bool {
	switch product := scale * e.value(y); {
	case !set:
		return e.bits(x) == 0
	case scale == 1:
		return e.bits(x) == e.bits(y)
	case product != product:
		return e.value(x) != e.value(x)
	default:
		return e.bits(x) == e.bits(rounded[T](product))
	}
}

func rounded[T snug.Element](x float32) T {
	var out T
	switch to := any(&out).(type) {
	case *float32:
		*to = x
	case *snug.Float16:
		*to = float16.Fromfloat32(x)
	case *snug.BFloat16:
		*to = snug.ToBFloat16(x)
	}
	return out
}

// TestBitsSlices uses the types of hosts that are not views.
func TestBitsSlices(t *testing.T) {
	kept := []bool{true, false, false, true, true, false, true, false, true}
	mask := make([]uint8, pack.BitsLen(len(kept)))
	require.NoError(t, pack.Bits(mask, kept))
	require.Equal(t, []uint8{0b01011001, 1}, mask)
	got := make([]bool, len(kept))
	require.NoError(t, pack.UnpackBits(got, mask))
	require.Equal(t, kept, got)

	onDevice := snug.FromSlice(mask)
	bytes := make([]uint8, len(kept))
	require.NoError(t, pack.UnpackBits(bytes, onDevice))
	require.Equal(t, []uint8{1, 0, 0, 1, 1, 0, 1, 0, 1}, bytes)
	require.NoError(t, pack.Bits(onDevice, snug.FromSlice(bytes)))

	f32, f16, bf16 := []float32{2, 0, -1}, []snug.Float16{1, 0, 2}, []snug.BFloat16{3, 0, 4}
	for name, pack := range map[string]func() error{
		"[]float32":       func() error { return pack.Bits(mask[:1], f32) },
		"[]Float16":       func() error { return pack.Bits(mask[:1], f16) },
		"[]BFloat16":      func() error { return pack.Bits(mask[:1], bf16) },
		"Array[float32]":  func() error { return pack.Bits(mask[:1], snug.FromSlice(f32)) },
		"Array[Float16]":  func() error { return pack.Bits(mask[:1], snug.FromSlice(f16)) },
		"Array[BFloat16]": func() error { return pack.Bits(mask[:1], snug.FromSlice(bf16)) },
		"View":            func() error { return pack.Bits(mask[:1], snug.ViewOf(f32)) },
	} {
		t.Run(name, func(t *testing.T) {
			mask[0] = 0
			require.NoError(t, pack(), name)
			require.Equal(t, uint8(0b101), mask[0], name)
		})
	}
}

func TestBitsLen(t *testing.T) {
	for n, want := range map[int]int{math.MinInt: 0, -1: 0, 0: 0, 1: 1, 7: 1, 8: 1, 9: 2, 16: 2, math.MaxInt: math.MaxInt/8 + 1} {
		require.Equal(t, want, pack.BitsLen(n), n)
	}
}

func TestBitsErrors(t *testing.T) {
	opaque, err := snug.Open("opaque:0")
	require.NoError(t, err)
	defer opaque.Close()
	far, err := snug.Make[float32](opaque, 9)
	require.NoError(t, err)
	x, ints := make([]float32, 9), snug.SliceView(make([]int32, 9))
	mask := []uint8{77, 77}
	nan := float32(math.NaN())
	for _, c := range []struct {
		name string
		err  error
		want error
		says string
	}{
		{"signs of integers", pack.Signs(mask, ints), snug.ErrDType, "x holds i32"},
		{"mask of floats", pack.Signs(snug.ViewOf(x), x), snug.ErrDType, "mask holds f32"},
		{"short mask", pack.Signs(mask[:1], x), snug.ErrShape, "1 bytes, want 2 for the 9 elements of x"},
		{"long mask", pack.Bits(mask, x[:8]), snug.ErrShape, "2 bytes, want 1"},
		{"no mask", pack.Bits([]uint8(nil), x), snug.ErrShape, "0 bytes, want 2"},
		{"no elements", pack.Bits(mask, snug.View{}), snug.ErrShape, "want 0"},
		{"pack on two devices", pack.Bits(mask, far), snug.ErrDevice, "opaque:0"},
		{"unpack to a short vector", pack.UnpackBits(x[:8], mask), snug.ErrShape, "8 elements of dst"},
		{"unpack on two devices", pack.UnpackBits(far, mask), snug.ErrDevice, "opaque:0"},
		{"gradients of integers", pack.ApplyBits(ints, ints, mask, 1), snug.ErrDType, "dy holds i32"},
		{"gradients of two types", pack.ApplyBits(snug.SliceView(make([]snug.Float16, 9)), snug.ViewOf(x), mask, 1), snug.ErrDType, "dx holds f16"},
		{"gradients of two lengths", pack.ApplyBits(x[:8], x, mask, 1), snug.ErrShape, "dx has 8"},
		{"mask of other gradients", pack.ApplyBits(x[:8], x[:8], mask, 1), snug.ErrShape, "want 1"},
		{"scale NaN", pack.ApplyBits(x, x, mask, nan), snug.ErrConfig, "NaN"},
		{"scale infinite", pack.ApplyBits(x, x, mask, float32(math.Inf(-1))), snug.ErrConfig, "-Inf"},
		{"gradients on two devices", pack.ApplyBits(snug.ViewOf(x), far.View(), mask, 1), snug.ErrDevice, "opaque:0"},
	} {
		require.ErrorIs(t, c.err, c.want, c.name)
		require.ErrorContains(t, c.err, c.says, c.name)
	}
	require.Equal(t, []uint8{77, 77}, mask)
	require.Equal(t, make([]float32, 9), x)
}

func TestBitsAllocs(t *testing.T) {
	x, mask := make([]float32, 3000), make([]uint8, pack.BitsLen(3000))
	kerneltest.NoAllocs(t, func() {
		require.NoError(t, pack.Signs(mask, x))
		require.NoError(t, pack.Bits(mask, x))
		require.NoError(t, pack.ApplyBits(x, x, mask, 1))
		require.NoError(t, pack.ApplyBits(x, x, mask, 2))
		require.NoError(t, pack.UnpackBits(x, mask))
	})
}

// maskRoundTrip packs and unpacks any vector.
func maskRoundTrip(t *rapid.T) {
	kept := rapid.SliceOf(rapid.Bool()).Draw(t, "kept")
	mask := make([]uint8, pack.BitsLen(len(kept)))
	require.NoError(t, pack.Bits(mask, kept))
	ones := make([]float32, len(kept))
	require.NoError(t, pack.UnpackBits(ones, mask))
	again := make([]uint8, len(mask))
	require.NoError(t, pack.Signs(again, ones))
	require.Equal(t, mask, again)
	for i, k := range kept {
		require.Equal(t, k, ones[i] == 1, i)
	}
}

func TestBitsRoundTrip(t *testing.T) { rapid.Check(t, maskRoundTrip) }

func FuzzBitsRoundTrip(f *testing.F) { f.Fuzz(rapid.MakeFuzz(maskRoundTrip)) }

// The named types of a program.
type (
	namedMask   []uint8
	namedBools  []bool
	namedFloats []float32
	namedHalves []snug.Float16
	namedBrains []snug.BFloat16
)

func TestBitsNamedSlices(t *testing.T) {
	x, mask, bools := namedFloats{1, -1, 0, 2}, make(namedMask, 1), make(namedBools, 4)
	require.NoError(t, pack.Signs(mask, x))
	require.Equal(t, namedMask{0b1001}, mask)
	require.NoError(t, pack.UnpackBits(bools, mask))
	require.Equal(t, namedBools{true, false, false, true}, bools)
	require.NoError(t, pack.Bits(mask, namedHalves{0, 1, 0x8000, 2}))
	require.Equal(t, namedMask{0b1010}, mask)
	require.NoError(t, pack.Bits(mask, namedBrains{1, 1, 0, 0}))
	require.Equal(t, namedMask{0b0011}, mask)
	require.NoError(t, pack.Bits(mask, namedMask{0, 0, 9, 0}))
	require.Equal(t, namedMask{0b0100}, mask)
	require.NoError(t, pack.ApplyBits(x, x, mask, 1))
	require.Equal(t, namedFloats{0, 0, 0, 0}, x)
	require.NoError(t, pack.Int8(make(namedMask, 4), make(namedMask, 1), x))
	kerneltest.NoAllocs(t, func() {
		if pack.Bits(mask, bools) != nil || pack.UnpackBits(bools, mask) != nil || pack.Signs(mask, x) != nil {
			panic("failed")
		}
	})
}
