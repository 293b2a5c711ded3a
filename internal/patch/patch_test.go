package patch

import (
	"fmt"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

// Every tier copies what Go copies, writes nothing else, and reads nothing beyond the last element.
//
//check:in arm64
func TestCopy(t *testing.T) {
	for tier, kernel := range Registry.All() {
		for _, dt := range []snug.DType{snug.F32, snug.F16, snug.BF16} {
			for step := 1; step <= 3; step++ {
				t.Run(fmt.Sprintf("%v %v %d", tier, dt, step), func(t *testing.T) {
					for cols := range 70 {
						checkCopy(t, *kernel, dt, cols, step)
					}
				})
			}
		}
	}
}

// checkCopy compares for a number of columns.
func checkCopy(t *testing.T, kernel Copy, dt snug.DType, cols, step int) {
	const rows, at = 3, 2
	rowSrc, rowDst := cols*step+1, cols+5
	n := at + (rows-1)*rowSrc + max((cols-1)*step+1, 0)
	src := alone(t, dt, kerneltest.Normal(1, n))
	want, got := make([]float32, rows*rowDst), vector[float32](t, rows*rowDst)
	for i := range want {
		want[i] = -77
		got[i] = -77
	}
	copyRows(want, src, at, rows, cols, rowSrc, rowDst, step)
	kernel(got, src, at, rows, cols, rowSrc, rowDst, step)
	require.Equal(t, want, got, "%d columns", cols)
}

// alone returns numbers of a type.
func alone(t *testing.T, dt snug.DType, x []float32) snug.View {
	view := snug.SliceView(vector[float32](t, len(x)))
	switch dt {
	case snug.F16:
		view = snug.SliceView(vector[snug.Float16](t, len(x)))
	case snug.BF16:
		view = snug.SliceView(vector[snug.BFloat16](t, len(x)))
	}
	half.Store(view, 0, x)
	return view
}
