package quant8

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/internal/safetensors"
)

// golden is a file that testdata/bitsandbytes/make.py has written.
type golden struct {
	t    testing.TB
	h    *safetensors.Header
	file []byte
}

func openGolden(t testing.TB, name string) golden {
	t.Helper()
	file, err := os.ReadFile("testdata/bitsandbytes/" + name + ".safetensors")
	require.NoError(t, err)
	return parseGolden(t, file)
}

func parseGolden(t testing.TB, file []byte) golden {
	t.Helper()
	h, err := safetensors.Read(bytes.NewReader(file), int64(len(file)))
	require.NoError(t, err)
	return golden{t, h, file}
}

// bytes returns a copy of the data of a tensor.
func (g golden) bytes(name string) []byte {
	g.t.Helper()
	tensor := g.h.Find(name)
	require.NotNil(g.t, tensor, name)
	return bytes.Clone(g.file[g.h.Data+tensor.Begin : g.h.Data+tensor.End])
}

func (g golden) floats(name string) []float32 {
	g.t.Helper()
	x := make([]float32, len(g.bytes(name))/4)
	_, err := binary.Decode(g.bytes(name), binary.LittleEndian, x)
	require.NoError(g.t, err)
	return x
}

// vector returns a tensor of any floating-point type as a host view.
func (g golden) vector(name string) snug.View {
	g.t.Helper()
	switch dtype, b := g.h.Find(name).DType, g.bytes(name); dtype {
	case "F16":
		x := make([]snug.Float16, len(b)/2)
		_, _ = binary.Decode(b, binary.LittleEndian, x)
		return snug.SliceView(x)
	case "BF16":
		x := make([]snug.BFloat16, len(b)/2)
		_, _ = binary.Decode(b, binary.LittleEndian, x)
		return snug.SliceView(x)
	}
	return snug.SliceView(g.floats(name))
}

func (g golden) goldenMap(name string) *Map {
	g.t.Helper()
	return (*Map)(g.floats(name))
}

func toFloats(v snug.View) []float32 {
	x := make([]float32, v.Len())
	half.Load(x, v, 0)
	return x
}

// TestGoldenDynamicMaps compares with bitsandbytes' maps, which torch's vector
// code computed.
//
//check:in tiers arm64 arm64-go
func TestGoldenDynamicMaps(t *testing.T) {
	g := openGolden(t, "maps")
	for name, isSigned := range map[string]bool{"dynamic.signed": true, "dynamic.unsigned": false} {
		want, got := g.goldenMap(name), DynamicMap(isSigned)
		require.NoError(t, want.check())
		for c := range want {
			require.InDelta(t, want[c], got[c], math.Abs(float64(want[c]))*0x1p-22, "%s, code %d", name, c)
		}
	}
}

// TestGoldenQuantization compares codes, absmax and values with bitsandbytes'
// on the CPU. Ours are the nearest codes. Its quantizer looks codes up in a table
// of the nearest codes of 65536 equidistant points from -1 to 1: it gives an
// element the code of the point next to x/absmax. So only elements with a midpoint
// between them and their point may differ, that is one at a distance of 1/65535
// at most. Codes that are nearest to no point it cannot give at all.
//
//check:in tiers arm64 arm64-go
func TestGoldenQuantization(t *testing.T) {
	g, dynamic := openGolden(t, "blockwise"), openGolden(t, "maps")
	for _, c := range []struct {
		name   string
		differ int // elements whose code is another than bitsandbytes'
	}{
		{"normal", 2},
		{"normal.unsigned", 0},
		{"uniform", 0},
		{"uniform.unsigned", 0},
		{"magnitudes", 518},
		{"float16", 1},
		{"bfloat16", 20},
		{"small", 0},
		{"special", 144},
	} {
		t.Run(c.name, func(t *testing.T) {
			var kind string
			var block int
			_, err := fmt.Sscan(g.h.Metadata[c.name], &kind, &block)
			require.NoError(t, err)
			m := dynamic.goldenMap("dynamic." + kind)
			x, codes, absmax := g.vector(c.name+".x"), g.bytes(c.name+".codes"), g.floats(c.name+".absmax")
			values := toFloats(g.vector(c.name + ".values"))
			kerneltest.Each(t, func(t *testing.T, backend kerneltest.Backend) {
				src := kerneltest.PutFloats(t, backend, x.DType(), toFloats(x))
				gotCodes := kerneltest.Put(t, backend, make([]uint8, len(codes)))
				gotAbsmax := kerneltest.Put(t, backend, make([]float32, len(absmax)))
				require.NoError(t, Quantize(gotCodes.View, gotAbsmax.View, src.View, m, block))
				require.Equal(t, absmax, gotAbsmax.Get())
				require.Equal(t, c.differ, compareCodes(t, m, src.Get(), gotCodes.Get(), codes, absmax, block))

				require.NoError(t, Dequantize(src.View, kerneltest.Put(t, backend, codes).View, gotAbsmax.View, m, block))
				require.Equal(t, kerneltest.Bits(values), kerneltest.Bits(src.Get()), "values of bitsandbytes' codes")
			})
		})
	}
}

// compareCodes returns how many codes differ, after a check that they may.
func compareCodes(t *testing.T, m *Map, x []float32, ours, theirs []uint8, absmax []float32, block int) int {
	differ := 0
	for i, v := range x {
		a := absmax[i/block]
		if a == 0 {
			require.Equal(t, nearest(m, 0), ours[i])
			require.Zero(t, theirs[i], "element %d: bitsandbytes gives code 0 to a block of zeros", i)
			differ++
			continue
		}
		q := v / a
		require.Equal(t, nearest(m, q), ours[i], "element %d: ours is nearest", i)
		const rounding = 0x1p-22 // of its arithmetic, before the table
		low, high := nearest(m, point65536(q-rounding)), nearest(m, point65536(q+rounding))
		require.Contains(t, []uint8{low, high}, theirs[i], "element %d: %g", i, q)
		if ours[i] != theirs[i] {
			differ++
			require.LessOrEqual(t, toMidpoint(m, q), 1.0/65535+rounding, "element %d: %g", i, q)
		}
	}
	return differ
}

// point65536 returns the nearest of 65536 equidistant points from -1 to 1.
func point65536(x float32) float32 {
	i := min(max(math.Round((float64(x)+1)*32767.5), 0), 65535)
	return float32(i/32767.5 - 1)
}

// toMidpoint returns the distance of x from the next midpoint of a map.
func toMidpoint(m *Map, x float32) float64 {
	d := math.Inf(1)
	for c := range 255 {
		d = min(d, math.Abs(float64(x)-(float64(m[c])+float64(m[c+1]))/2))
	}
	return d
}

// TestUnreachableCodes counts the codes of the dynamic maps that bitsandbytes'
// quantizer on the CPU cannot give to values in the range of the map, and ours
// can.
func TestUnreachableCodes(t *testing.T) {
	for isSigned, want := range map[bool][]int{
		true:  {124, 125, 126, 127, 128, 129, 130},
		false: {0, 1, 2, 3, 4, 5, 6, 8, 9, 11, 13},
	} {
		m, reached := DynamicMap(isSigned), map[int]bool{}
		for i := range 65536 {
			if p := float32(float64(i)/32767.5 - 1); isSigned || p >= 0 {
				reached[int(nearer(m, p))] = true
			}
		}
		var missing []int
		for c := range m {
			if !reached[c] {
				missing = append(missing, c)
			}
		}
		require.Equal(t, want, missing)
		codes, absmax := make([]uint8, 256), make([]float32, 1)
		require.NoError(t, Quantize(codes, absmax, m[:], m, 256))
		for c := range m {
			require.EqualValues(t, c, codes[c])
		}
	}
}
