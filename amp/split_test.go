package amp

import (
	"math"
	"testing"
	"unsafe"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

// halvesOf takes a float32 apart as the documentation of SplitMaster says.
func halvesOf(x float32) (upper snug.BFloat16, rest int16) {
	b := math.Float32bits(x)
	if x != x {
		return snug.BFloat16(b>>16 | 0x40), 0
	}
	rest = int16(b)
	return snug.BFloat16(int32(b>>16) + int32(uint16(rest)>>15)), rest
}

// everyUpper has every upper half of a float32 with lower ones at which rounding
// changes.
func everyUpper() []float32 {
	var x []float32
	for code := range uint32(1 << 16) {
		for _, low := range []uint32{0, 1, 0x7fff, 0x8000, 0xffff} {
			x = append(x, math.Float32frombits(code<<16|low))
		}
	}
	return x
}

func TestSplitAndJoin(t *testing.T) {
	exhaustive := everyUpper()
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
		splitAfter(t, p, exhaustive, skips[1])
		for _, n := range []int{0, 1, 7, 8, 130, castChunk + 5, castFew + 5} {
			for _, skip := range skips {
				splitAfter(t, p, append(append(make([]float32, skip), special...), kerneltest.Uniform(1, n)...)[:skip+n], skip)
			}
		}
	})
}

// splitAfter takes x apart from element skip on, and joins it.
func splitAfter(t *testing.T, p kerneltest.Backend, x []float32, skip int) {
	n := len(x)
	w, upper := kerneltest.Put(t, p, x), kerneltest.Put(t, p, make([]snug.BFloat16, n))
	rest := kerneltest.Put(t, p, make([]uint8, splitSize*n+guardSkew))
	restView, err := rest.Slice(guardSkew+splitSize*skip, rest.Len())
	require.NoError(t, err)
	require.NoError(t, splitJob{w: kerneltest.After(t, w.View, skip), upper: kerneltest.After(t, upper.View, skip), rest: restView, apart: true}.do())
	gotUpper, low := upper.Get(), rest.Get()[guardSkew:]
	want := make([]float32, n)
	for i, x := range x[skip:] {
		i += skip
		wantUpper, wantRest := halvesOf(x)
		gotRest := *(*int16)(unsafe.Pointer(&low[splitSize*i]))
		if wantUpper != gotUpper[i] || wantRest != gotRest {
			t.Fatalf("%d elements after %d: element %d, %x: got %x and %d, want %x and %d", n, skip, i,
				math.Float32bits(x), gotUpper[i], gotRest, wantUpper, wantRest)
		}
		if want[i] = x; x != x {
			want[i] = wantUpper.Float32()
		}
	}
	back := kerneltest.Put(t, p, make([]float32, n))
	require.NoError(t, splitJob{w: kerneltest.After(t, back.View, skip), upper: kerneltest.After(t, upper.View, skip), rest: restView}.do())
	for i, x := range back.Get() {
		if math.Float32bits(want[i]) != math.Float32bits(x) {
			t.Fatalf("%d elements after %d: element %d: want %x, got %x", n, skip, i, math.Float32bits(want[i]), math.Float32bits(x))
		}
	}
}

// guardSkew is how many bytes of a kerneltest.Buf, which starts after 7, come
// before 16-bit integers, so that these are aligned as those of a Buf of their own.
const guardSkew = 7

func TestSplitAcrossDevices(t *testing.T) {
	away := kerneltest.PutFloats(t, kerneltest.Backends(t)[2], snug.BF16, make([]float32, 8)).View
	rest := snug.SliceView(make([]uint8, splitSize*8))
	require.ErrorIs(t, splitJob{w: snug.ViewOf(make([]float32, 8)), upper: away, rest: rest, apart: true}.do(), snug.ErrDevice)
}

// BenchmarkSplit joins chunks of vectors far beyond the last cache and takes them
// apart again, as [Master] does around an update: it reads 4 bytes of an element
// and writes 4.
func BenchmarkSplit(b *testing.B) {
	const n, parts, chunk = 1 << 22, 16, 1 << 16
	w := snug.ViewOf(make([]float32, chunk))
	upper, rest := snug.ViewOf(make([]snug.BFloat16, n*parts)), snug.SliceView(make([]uint8, splitSize*n*parts))
	kerneltest.OfCopy(b, parts, 8*n, func(part int) {
		for lo := part * n; lo < (part+1)*n; lo += chunk {
			high, _ := upper.Slice(lo, lo+chunk)
			low, _ := rest.Slice(splitSize*lo, splitSize*(lo+chunk))
			_ = splitJob{w: w, upper: high, rest: low}.do()
			_ = splitJob{w: w, upper: high, rest: low, apart: true}.do()
		}
	})
}
