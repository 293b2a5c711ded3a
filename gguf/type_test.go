package gguf_test

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/gguf"
	"github.com/snug-ml/snug/internal/kerneltest"
)

// TestTypes: names, numbers and sizes of blocks.
func TestTypes(t *testing.T) {
	known := 0
	for n := range gguf.Type(100) {
		elements, bytes := n.Block()
		if elements == 0 {
			require.Zero(t, bytes)
			require.Contains(t, n.String(), "type ")
			_, err := n.Bytes(0)
			require.ErrorIs(t, err, snug.ErrDType)
			continue
		}
		known++
		for _, name := range []string{n.String(), strings.ToUpper(n.String())} {
			got, err := gguf.ParseType(name)
			require.NoError(t, err)
			require.Equal(t, n, got)
		}
		got, err := n.Bytes(3 * elements)
		require.NoError(t, err)
		require.EqualValues(t, 3*bytes, got)
		for _, bad := range []int{-1, -elements, elements + 1, math.MaxInt} {
			if _, err := n.Bytes(bad); bad%elements != 0 || bad < 0 {
				require.ErrorIs(t, err, snug.ErrShape)
			}
		}
	}
	require.Equal(t, 34, known)
	for _, name := range []string{"", "q4", "Q4_K_M", " f16", "type 99"} {
		_, err := gguf.ParseType(name)
		require.ErrorIs(t, err, snug.ErrDType)
		kerneltest.Error(t, "gguf.ParseType", err)
	}
}

// TestLengths: wrong lengths and types are errors before anything is written.
func TestLengths(t *testing.T) {
	for _, typ := range decoded {
		elements, bytes := typ.Block()
		x, b := make([]float32, 2*elements), make([]byte, 2*bytes)
		for i := range x {
			x[i] = 5
		}
		for _, c := range []struct{ x, b int }{{2 * elements, bytes}, {elements, 2 * bytes}, {0, bytes}, {elements, 0}, {elements, bytes - 1}, {elements - 1, bytes}, {2*elements - 1, 2 * bytes}} {
			if c.x == c.b/bytes*elements && c.b%bytes == 0 {
				continue // elements of one
			}
			require.ErrorIs(t, typ.Decode(x[:c.x], b[:c.b]), snug.ErrShape, "%s %v", typ, c)
			if err := typ.Encode(b[:c.b], x[:c.x]); !isDType(err) {
				require.ErrorIs(t, err, snug.ErrShape, "%s %v", typ, c)
			}
		}
		require.NoError(t, typ.Decode(nil, nil))
		for _, v := range x {
			require.EqualValues(t, 5, v)
		}
		for _, v := range b {
			require.Zero(t, v)
		}
	}
	for _, typ := range []gguf.Type{9, 16, 24, 99} {
		err := typ.Decode(nil, nil)
		require.ErrorIs(t, err, snug.ErrDType)
		kerneltest.Error(t, "gguf.Decode", err)
		require.ErrorIs(t, typ.Encode(nil, nil), snug.ErrDType)
	}
}

func isDType(err error) bool { return strings.Contains(err.Error(), snug.ErrDType.Error()) }

// TestNonFinite: what scales cannot hold is an error that names the element, and nothing is written.
func TestNonFinite(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(-1))
	for _, typ := range encoded {
		elements, bytes := typ.Block()
		for _, bad := range []float32{nan, inf, -65504.01, 65520, math.MaxFloat32} {
			x, b := make([]float32, 2*elements), make([]byte, 2*bytes)
			x[elements] = bad
			err := typ.Encode(b, x)
			if elements == 1 || typ == gguf.MXFP4 && bad == bad && !math.IsInf(float64(bad), 0) {
				require.NoError(t, err, "%s %v", typ, bad)
				continue
			}
			require.ErrorIs(t, err, snug.ErrNonFinite, "%s %v", typ, bad)
			require.Equal(t, make([]byte, len(b)), b)
			kerneltest.Error(t, "gguf.Encode", err)
		}
		x, b := make([]float32, elements), make([]byte, bytes)
		x[0] = 65504
		require.NoError(t, typ.Encode(b, x))
		require.NoError(t, typ.Decode(x, b))
		require.InDelta(t, 65504, x[0], 65504.0/3.9, "%s", typ) // mxfp4 has no values between 6 and 8
	}
}

// TestTinyAndExtremeRows: blocks of subnormal, alternating and extreme elements decode to finite numbers near them.
func TestTinyAndExtremeRows(t *testing.T) {
	for _, typ := range encoded {
		elements, bytes := typ.Block()
		for name, at := range map[string]func(i int) float32{
			"zeros":       func(int) float32 { return 0 },
			"minus zeros": func(int) float32 { return float32(math.Copysign(0, -1)) },
			"subnormals":  func(i int) float32 { return math.Float32frombits(uint32(i)) },
			"small":       func(i int) float32 { return float32(i-7) * 1e-20 },
			"halves":      func(i int) float32 { return float32(i-7) * 1e-8 },
			"extremes":    func(i int) float32 { return 65504 * float32(1-i%2*2) },
			"one of many": func(i int) float32 { return float32(i / 31 % 2 * 1000) },
			"below zero":  func(i int) float32 { return -1000 - float32(i) },
			"above zero":  func(i int) float32 { return 1000 + float32(i) },
		} {
			x, b := make([]float32, elements), make([]byte, bytes)
			top := 0.0
			for i := range x {
				x[i] = at(i)
				top = max(top, math.Abs(float64(x[i])))
			}
			y := make([]float32, elements)
			require.NoError(t, typ.Encode(b, x), "%s %s", typ, name)
			require.NoError(t, typ.Decode(y, b))
			for i := range y {
				require.InDelta(t, x[i], y[i], max(top/3.9, 4e-5), "%s %s: element %d of %v", typ, name, i, top)
			}
		}
	}
}

// TestEncodeAllocatesNothing, and Decode.
func TestEncodeAllocatesNothing(t *testing.T) {
	x := gaussian(4096, 1)
	y := make([]float32, len(x))
	for _, typ := range encoded {
		n, err := typ.Bytes(len(x))
		require.NoError(t, err)
		b := make([]byte, n)
		kerneltest.NoAllocs(t, func() {
			if typ.Encode(b, x) != nil || typ.Decode(y, b) != nil {
				t.Fail()
			}
		})
	}
}

// TestAnyRows: blocks of any finite elements within a scale's reach decode to numbers near them, as far as scales in binary16 go.
func TestAnyRows(t *testing.T) {
	rng := rand.New(rand.NewPCG(8, 9))
	for _, typ := range encoded {
		elements, bytes := typ.Block()
		x, y, b := make([]float32, elements), make([]float32, elements), make([]byte, bytes)
		for i := range 4000 {
			if !kerneltest.Taken(i, 20) {
				continue
			}
			high, spread := rng.IntN(143), 1+rng.IntN(40) // exponents up to that of 65504
			for i := range x {
				e := uint32(max(high-rng.IntN(spread), 0))
				x[i] = math.Float32frombits(rng.Uint32()&0x807fffff | e<<23)
				if rng.IntN(8) == 0 {
					x[i] = x[rng.IntN(elements)]
				}
				x[i] = min(max(x[i], -65504), 65504)
			}
			top := 0.0
			for _, v := range x {
				top = max(top, math.Abs(float64(v)))
			}
			require.NoError(t, typ.Encode(b, x))
			require.NoError(t, typ.Decode(y, b))
			for i := range y {
				require.InDelta(t, x[i], y[i], top/2.2+1e-4, "%s: element %d of %v", typ, i, top)
			}
		}
	}
}
