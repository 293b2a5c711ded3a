package main

import (
	"errors"
	"maps"
	"math/rand/v2"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/half"
)

// memory allocates the operands of one kernel on a device.
type memory struct {
	dev  *snug.Device
	free []func() error
	err  error // the first; what is allocated after it is empty
}

// operand returns n elements of a floating-point type, normally distributed
// with standard deviation 1.
func (m *memory) operand(dt snug.DType, n int) snug.View { return m.scaled(dt, n, 1) }

// scaled is operand with another standard deviation. The elements repeat after
// some thousands, which no kernel can use.
func (m *memory) scaled(dt snug.DType, n int, deviation float64) snug.View {
	const period = 1<<14 + 9
	rng := rand.New(rand.NewPCG(1, uint64(n)))
	values := make([]float32, min(period, n))
	for i := range values {
		values[i] = float32(deviation * rng.NormFloat64())
	}
	v := hostVector(dt, n)
	for lo := 0; lo < n; lo += period {
		half.Store(v, lo, values[:min(period, n-lo)])
	}
	return m.put(v)
}

// put returns a vector of the host where the device has it.
func (m *memory) put(v snug.View) snug.View {
	if m.dev.IsCPU() {
		return v
	}
	there := m.empty(v.DType(), v.Len())
	if m.err == nil {
		m.err = snug.Copy(there, v)
	}
	return there
}

// empty returns n zeros of any type.
func (m *memory) empty(dt snug.DType, n int) snug.View {
	if m.err != nil {
		return snug.View{}
	}
	v, free, err := snug.MakeView(m.dev, dt, n)
	if m.err = err; err == nil {
		m.free = append(m.free, free)
	}
	return v
}

// close frees what was allocated.
func (m *memory) close() error {
	var errs []error
	for _, free := range m.free {
		errs = append(errs, free())
	}
	return errors.Join(errs...)
}

// hostVector returns n zeros of a floating-point type.
func hostVector(dt snug.DType, n int) snug.View {
	switch dt {
	case snug.F16:
		return snug.ViewOf(make([]snug.Float16, n))
	case snug.BF16:
		return snug.ViewOf(make([]snug.BFloat16, n))
	}
	return snug.ViewOf(make([]float32, n))
}

// tokens returns n indices below limit.
func tokens(n, limit int) []int32 {
	rng := rand.New(rand.NewPCG(2, uint64(n)))
	s := make([]int32, n)
	for i := range s {
		s[i] = rng.Int32N(int32(limit))
	}
	return s
}

// size returns the bytes of n elements.
func size(dt snug.DType, n int) float64 { return float64(dt.Size()) * float64(n) }

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
