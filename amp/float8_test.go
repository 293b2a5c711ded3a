package amp

import (
	"encoding/json"
	"hash/crc32"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/device"
	"github.com/stretchr/testify/require"
)

// float8Golden is what testdata/torch/float8.py has written.
type float8Golden struct {
	BFloat16, Edges uint32
	Back            map[string]uint32
}

func crcOf(v snug.View) uint32 { return crc32.ChecksumIEEE(device.Mem(&v).Bytes()) }

// TestFloat8IsTorch casts every bfloat16 number, the numbers around all roundings, and every code back.
//
//check:in tiers arm64 arm64-go
func TestFloat8IsTorch(t *testing.T) {
	var golden struct {
		Torch      string
		E4M3, E5M2 float8Golden
	}
	data, err := os.ReadFile("testdata/torch/float8.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, &golden))
	every := make([]snug.BFloat16, 1<<16)
	for i := range every {
		every[i] = snug.BFloat16(i)
	}
	for _, c := range []struct {
		dt   snug.DType
		top  int // the code of the largest number
		want float8Golden
	}{{snug.F8E4M3, 0x7e, golden.E4M3}, {snug.F8E5M2, 0x7b, golden.E5M2}} {
		to := func(src snug.View) snug.View {
			dst, _, err := snug.MakeView(snug.CPU(), c.dt, src.Len())
			require.NoError(t, err)
			require.NoError(t, Cast(dst, src))
			return dst
		}
		require.Equal(t, c.want.BFloat16, crcOf(to(snug.ViewOf(every))), c.dt)
		codes, _, err := snug.MakeView(snug.CPU(), c.dt, 256)
		require.NoError(t, err)
		for i, b := 0, device.Mem(&codes).Bytes(); i < len(b); i++ {
			b[i] = uint8(i)
		}
		back := func(dt snug.DType) snug.View {
			v, _, err := snug.MakeView(snug.CPU(), dt, 256)
			require.NoError(t, err)
			require.NoError(t, Cast(v, codes))
			return v
		}
		values := back(snug.F32).Float32s()
		var edges []float32
		for i := range c.top {
			mean := (values[i] + values[i+1]) / 2
			edges = append(edges, math.Nextafter32(mean, 0), mean, math.Nextafter32(mean, 1e9))
		}
		for _, x := range edges {
			edges = append(edges, -x)
		}
		require.Equal(t, c.want.Edges, crcOf(to(snug.ViewOf(edges))), c.dt)
		b, f := back(snug.BF16), back(snug.F16)
		for i, x := range values {
			if x != x {
				require.NotEqual(t, b.BFloat16s()[i].Float32(), b.BFloat16s()[i].Float32())
				require.True(t, f.Float16s()[i].IsNaN())
				values[i], b.BFloat16s()[i], f.Float16s()[i] = 0, 0, 0
			}
		}
		require.Equal(t, map[string]uint32{"float32": crcOf(snug.ViewOf(values)), "bfloat16": crcOf(b), "float16": crcOf(f)}, c.want.Back, c.dt)
	}
}

func TestFloat8Casts(t *testing.T) {
	src := []float32{1, -0.3, 1e9, float32(math.Inf(-1)), 500, 1e-9}
	for dt, want := range map[snug.DType][2][]float32{
		snug.F8E4M3: {{1, -0.3125, 448, -448, 448, 0}, {1, -0.3125, 448, -448, 448, 0}},
		snug.F8E5M2: {{1, -0.3125, float32(math.Inf(1)), float32(math.Inf(-1)), 512, 0}, {1, -0.3125, 57344, -57344, 512, 0}},
	} {
		for i, saturate := range []bool{false, true} {
			dst, _, err := snug.MakeView(snug.CPU(), dt, len(src))
			require.NoError(t, err)
			require.NoError(t, CastWith(dst, src, CastOptions{Saturate: saturate}))
			back := make([]float32, len(src))
			require.NoError(t, Cast(back, dst))
			require.Equal(t, want[i], back, "%v %v", dt, saturate)
			require.ErrorIs(t, CastWith(dst, src, CastOptions{Stochastic: true}), snug.ErrDType)
		}
	}
	other := snug.SliceView(make([]snug.Float8E5M2, 2))
	require.NoError(t, Cast(other, snug.SliceView([]snug.Float8E4M3{snug.ToFloat8E4M3(448), snug.ToFloat8E4M3(0x1p-9)})))
	require.Equal(t, []snug.Float8E5M2{snug.ToFloat8E5M2(448), snug.ToFloat8E5M2(0x1p-9)}, snug.Host[snug.Float8E5M2](other))
}

func TestFloat8Files(t *testing.T) {
	values := make([]float32, 3*staged/2)
	for i := range values {
		values[i] = float32(i%97)/8 - 6
	}
	narrow, _, err := snug.MakeView(snug.CPU(), snug.F8E4M3, len(values))
	require.NoError(t, err)
	require.NoError(t, Cast(narrow, values))
	path := filepath.Join(t.TempDir(), "model.safetensors")
	require.NoError(t, SaveWeights(path, func(yield func(Tensor, snug.View) bool) {
		shape := []int{len(values)}
		_ = yield(Tensor{Name: "a", Shape: shape}, narrow) && yield(Tensor{Name: "b", DType: "F8_E5M2", Shape: shape}, snug.ViewOf(values))
	}, nil))
	w, err := OpenWeights(path)
	require.NoError(t, err)
	defer func() { require.NoError(t, w.Close()) }()
	a, _ := w.Tensor("a")
	require.Equal(t, "F8_E4M3", a.DType)
	require.Equal(t, snug.F8E4M3, a.ElementType())
	same, _, err := snug.MakeView(snug.CPU(), snug.F8E4M3, len(values))
	require.NoError(t, err)
	require.NoError(t, w.Load("a", same))
	require.Equal(t, crcOf(narrow), crcOf(same))
	got, want := make([]float32, len(values)), make([]float32, len(values))
	require.NoError(t, w.Load("a", snug.ViewOf(got)))
	require.NoError(t, Cast(want, narrow))
	require.Equal(t, want, got)
	require.NoError(t, w.Load("b", snug.ViewOf(got)))
	for i, x := range values {
		require.Equal(t, snug.ToFloat8E5M2(x).Float32(), got[i])
	}
}
