package quant8

import (
	"math"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

// TestWithin: the bits are those of a checked step, without its wait.
func TestWithin(t *testing.T) {
	const n = 5000
	kerneltest.Each(t, func(t *testing.T, backend kerneltest.Backend) {
		for _, bits := range widths {
			checked := newAdamW(t, Options{Bits: bits, MinSize: 1, Chunk: 1024}, map[string]int{"w": n})
			told := newAdamW(t, Options{Bits: bits, MinSize: 1, Chunk: 1024}, map[string]int{"w": n})
			p, q := kerneltest.Put(t, backend, kerneltest.Normal(1, n)), kerneltest.Put(t, backend, kerneltest.Normal(1, n))
			waits := func(a *Optimizer, p, g snug.View) (c driver.Counts) {
				if backend.Dev == nil {
					require.NoError(t, a.Step("w", p, g, 0.5))
					return c
				}
				before := device.Counts(backend.Dev)
				require.NoError(t, a.Step("w", p, g, 0.5))
				return device.Counts(backend.Dev).Minus(before)
			}
			for i := range 3 {
				g := kerneltest.Put(t, backend, gradient(n, uint64(i)))
				advance(checked)
				advance(told)
				told.Within(1e6)
				first, second := waits(checked, p.View, g.View), waits(told, q.View, g.View)
				if i > 0 && backend.Dev != nil && !backend.Dev.IsCPU() {
					require.Equal(t, driver.Counts{Waits: 1, ToHost: 1}, first, "memory is lent again")
					require.Zero(t, second)
				}
			}
			require.Equal(t, p.Get(), q.Get())
			require.Equal(t, stateOf(t, checked), stateOf(t, told))
		}
	})
}

// TestWithinNothing: a norm that rules nothing out, and one of a step before, leave the check.
func TestWithinNothing(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, backend kerneltest.Backend) {
		a := newAdamW(t, Options{MinSize: 1}, map[string]int{"w": 3})
		p := kerneltest.Put(t, backend, []float32{1, 2, 3})
		g := kerneltest.Put(t, backend, []float32{0, nan, 0})
		refused := func(scale float32) {
			t.Helper()
			err := a.Step("w", p.View, g.View, scale)
			require.ErrorIs(t, err, snug.ErrNonFinite)
			require.ErrorContains(t, err, "gradient 1")
			require.Equal(t, []float32{1, 2, 3}, p.Get())
		}
		advance(a)
		for _, norm := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), -1, 0x1p62} {
			a.Within(norm)
			refused(1)
		}
		a.Within(0x1p61)
		refused(-2)
		a.Within(1)
		advance(a)
		refused(1)
		a.Within(1)
		saved, err := a.AppendBinary(nil)
		require.NoError(t, err)
		require.NoError(t, a.UnmarshalBinary(saved))
		refused(1)
	})
}
