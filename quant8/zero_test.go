package quant8

import (
	"errors"
	"math"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
)

// TestZeroOptimizer calls every method of an optimizer that no constructor has made, and
// of one without parameters, with zero values and with numbers at the ends of their range.
// None panics, and the first returns errors.
func TestZeroOptimizer(t *testing.T) {
	made := func() *Optimizer {
		a, err := New(AdamW{}, Options{})
		require.NoError(t, err)
		return a
	}
	kind := reflect.TypeFor[*Optimizer]()
	for i := range kind.NumMethod() {
		m := kind.Method(i)
		for _, number := range []int64{0, -1, math.MinInt64, math.MaxInt64} {
			for k, a := range []*Optimizer{new(Optimizer), made()} {
				args := []reflect.Value{reflect.ValueOf(a)}
				for j := 1; j < m.Type.NumIn(); j++ {
					arg := reflect.New(m.Type.In(j)).Elem()
					if arg.CanInt() {
						arg.SetInt(number)
					}
					args = append(args, arg)
				}
				call := m.Func.Call
				if m.Type.IsVariadic() {
					call = m.Func.CallSlice
				}
				var results []reflect.Value
				require.NotPanics(t, func() { results = call(args) }, m.Name)
				if n := m.Type.NumOut(); n == 0 || m.Type.Out(n-1) != reflect.TypeFor[error]() || k > 0 || m.Name == "Close" {
					continue
				}
				err, _ := results[len(results)-1].Interface().(error)
				require.Error(t, err, m.Name)
				require.True(t, errors.Is(err, snug.ErrConfig) || errors.Is(err, snug.ErrShape), "%s: %v", m.Name, err)
				kerneltest.Error(t, "quant8."+m.Name, err)
			}
		}
	}
}

// TestZeroFunctions has zero and extreme arguments of all functions.
func TestZeroFunctions(t *testing.T) {
	kerneltest.Zero(t, new(Optimizer), new(ZerothOrder), new(LostUpdates), NewZerothOrder, Quantize[[]uint8, []float32, []float32], Dequantize[[]float32, []uint8, []float32],
		Quantize[snug.View, snug.View, snug.View], Dequantize[snug.View, snug.View, snug.View], QuantileMap, LinearMap, DynamicMap, Blocks)
	var x []float32
	var b []uint8
	for _, block := range []int{math.MinInt, -1, 0, MinBlock, MaxBlock, math.MaxInt} {
		require.ErrorIs(t, Quantize(b, x, x, nil, block), snug.ErrConfig)
		require.ErrorIs(t, Dequantize(x, b, x, nil, block), snug.ErrConfig)
		require.ErrorIs(t, Quantize(b, x, x, new(Map), block), snug.ErrConfig)
		require.Error(t, Quantize(snug.View{}, snug.View{}, snug.View{}, DynamicMap(true), block))
		require.Error(t, Dequantize(snug.View{}, snug.View{}, snug.View{}, DynamicMap(true), block))
		for _, n := range []int{math.MinInt, -1, 0, 1, math.MaxInt} {
			require.GreaterOrEqual(t, Blocks(n, block), 0)
			for _, bits := range widths {
				require.GreaterOrEqual(t, StateBytes(AdamW{}, Options{Bits: bits, Block: block}, n), int64(0), "%d elements, blocks of %d", n, block)
			}
		}
	}
	_, err := QuantileMap(nil)
	require.ErrorIs(t, err, snug.ErrConfig)
	for _, o := range []Options{{Chunk: math.MaxInt}, {Chunk: math.MinInt}, {Block: math.MaxInt}, {Block: math.MinInt}, {Block: 33, Chunk: math.MaxInt / 33 * 33}, {MinSize: math.MinInt}} {
		for name, build := range rules {
			_, err := build(o)
			require.ErrorIs(t, err, snug.ErrConfig, "%s %+v", name, o)
		}
	}
	a := newAdamW(t, Options{}, nil)
	for _, n := range [][2]int{{math.MaxInt, math.MaxInt}, {-1, 1}, {1, -1}, {math.MinInt, math.MinInt}, {-1, -1}} {
		require.ErrorIs(t, a.AddMatrix("w", n[0], n[1]), snug.ErrShape)
		require.ErrorIs(t, a.AddShard("w", 4096, n[0], n[1]), snug.ErrShape)
	}
}
