package patch

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"unsafe"

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
						checkCopy(t, kernel.Copy, dt, cols, step)
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

// Every tier gathers what Go gathers, and reads and writes nothing else.
//
//check:in arm64
func TestGather(t *testing.T) {
	for tier, kernel := range Registry.All() {
		for _, dt := range []snug.DType{snug.F32, snug.F16, snug.BF16} {
			for step := 1; step <= 3; step++ {
				for n := 1; n <= PieceLen; n++ {
					const channels, at = 3, 2
					all := (PieceLen-1)*step + 1
					src := alone(t, dt, kerneltest.Normal(1, at+channels*all))
					pieces := []Piece{
						NewPiece(0, 0, n, 0, n, step), NewPiece(all-1-(n-1)*step, 40, n, 0, n, step), NewPiece(0, 80, n, n/2, n, step),
						NewPiece(all-1-n/3*step, 120, n, 0, n/3+1, step), NewPiece(1, 160, n, n, n, step), {Dst: 200},
					}
					pieces[5].Join(n/3, n/6, n/3)
					pieces[5].Join(n-n/3, (n-n/3)/2, n-n/3)
					const next = 6 * 40
					want, got := make([]float32, channels*next), vector[float32](t, channels*next)
					for i := range want {
						want[i], got[i] = -77, -77
					}
					gather(copyRows)(want, src, at, pieces, channels, all, next, step)
					kernel.Gather(got, src, at, pieces, channels, all, next, step)
					require.Equal(t, want, got, "%v %v, step %d, %d elements", tier, dt, step, n)
					if dt != snug.BF16 || kernel.Words == nil || step > 2 {
						continue
					}
					words := vector[uint16](t, len(want))
					for i := range words {
						words[i] = uint16(snug.ToBFloat16(-77))
					}
					x := src.BFloat16s()
					kernel.Words(words, unsafe.Slice((*uint16)(unsafe.Pointer(&x[0])), len(x)), at, pieces, channels, all, next, step)
					for i, w := range words {
						require.Equal(t, want[i], snug.BFloat16(w).Float32(), "step %d, %d elements, element %d", step, n, i)
					}
				}
			}
		}
	}
}

// Every tier computes what Go computes, and reads and writes nothing else.
//
//check:in arm64
func TestTapsAndDots(t *testing.T) {
	for tier, k := range Registry.All() {
		for cols := 1; cols < 200; cols += 1 + cols/30 {
			for _, count := range []int{1, 3, 9} {
				const rows = 7
				rowSrc, rowDst := cols+4, cols+2
				offsets := make([]int, count)
				for i := range offsets {
					offsets[i] = (i*7 + 1) % (2 * rowSrc)
				}
				src, w, y := vector[float32](t, (rows+1)*rowSrc+cols+15), kerneltest.Normal(2, count), vector[float32](t, rows*rowDst)
				copy(src, kerneltest.Normal(1, len(src)))
				for _, add := range []bool{false, true} {
					want, got := kerneltest.Normal(3, rows*rowDst), y
					copy(got, want)
					taps(want, src, w, offsets, rows, cols, rowSrc, rowDst, 0.5, add)
					k.Taps(got, src, w, offsets, rows, cols, rowSrc, rowDst, 0.5, add)
					require.InDeltaSlice(t, want, got, 1e-5, "%v, %d columns", tier, cols)
				}
				if count < DotTaps {
					continue
				}
				want, got := make([]float32, DotTaps), make([]float32, DotTaps*DotLanes)
				dots(want, y, src, offsets, rows, cols, rowDst, rowSrc)
				k.Dots(got, y, src[:(rows-1)*rowSrc+slices.Max(offsets[:DotTaps])+cols], offsets, rows, cols, rowDst, rowSrc)
				for i, x := range want {
					var sum float32
					for _, v := range got[i*k.Lanes:][:k.Lanes] {
						sum += v
					}
					require.InDelta(t, x, sum, 1e-2, "%v, %d columns", tier, cols)
				}
			}
		}
	}
}

// Every tier computes across channels what Go computes, and reads and writes nothing else. What lies before and after the source
// where a tap reads 0 there is not read.
//
//check:in arm64
func TestAcross(t *testing.T) {
	for tier, k := range Registry.All() {
		for _, a := range []Across{{Taps: 1, Step: 1}, {Taps: 2, Step: 1}, {Taps: 3, Step: 1}, {Taps: 3, Step: 2}} {
			t.Run(fmt.Sprintf("%v/%d taps, step %d", tier, a.Taps, a.Step), func(t *testing.T) {
				for a.Cols = range 20 {
					t.Run(fmt.Sprint(a.Cols), func(t *testing.T) { checkEdges(t, k, a) })
				}
			})
		}
	}
}

// checkEdges compares with taps outside and without.
func checkEdges(t *testing.T, k *Kernels, a Across) {
	for edges := range 4 {
		a.Before, a.After = a.Taps > 1 && edges&1 != 0, a.Taps > 1 && edges&2 != 0
		for _, a.Channels = range []int{AcrossLanes, 3 * AcrossLanes} {
			for rows := range 5 {
				checkAcross(t, k, a, rows)
			}
		}
	}
}

// checkAcross compares for a number of rows of the kernel, for 2 lines.
func checkAcross(t *testing.T, k *Kernels, a Across, count int) {
	channels := a.Channels
	a.Lines, a.StepSrc, a.StepDst = 2, channels+2, channels+3
	span := (a.Cols-1)*a.Step + a.Taps // positions of a line of src that there are
	first := 0
	if a.Before {
		span, first = span-1, -a.StepSrc
	}
	if a.After {
		span--
	}
	if span <= 0 || a.Cols == 0 {
		return
	}
	a.LineSrc, a.LineDst, a.StepW = span*a.StepSrc, a.Cols*a.StepDst, channels+1
	rows := make([]AcrossRow, count)
	for i := range rows {
		rows[i] = AcrossRow{Src: first + i*a.LineSrc, W: i * a.Taps * a.StepW}
	}
	src := vector[float32](t, max(count, 1)*a.LineSrc+span*a.StepSrc-2)
	copy(src, kerneltest.Normal(1, len(src)))
	w := vector[float32](t, max(count, 1)*a.Taps*a.StepW-1)
	copy(w, kerneltest.Normal(2, len(w)))
	bias := vector[float32](t, channels)
	copy(bias, kerneltest.Normal(3, channels))
	want := kerneltest.Normal(4, a.LineDst+(a.Cols-1)*a.StepDst+channels)
	got := vector[float32](t, len(want))
	copy(got, want)
	tapsAcross(want, src, w, bias, rows, a)
	k.TapsAcross(got, src, w, bias, rows, a)
	require.InDeltaSlice(t, want, got, 1e-5, "%+v, %d rows", a, count)
	if a.Taps == 2 || a.Cols == 1 && a.Before && a.After {
		return
	}
	want = kerneltest.Normal(5, len(w))
	sums := vector[float32](t, len(w))
	copy(sums, want)
	dotsAcross(want, got, src, rows, a)
	k.DotsAcross(sums, got, src, rows, a)
	require.InDeltaSlice(t, want, sums, 1e-3, "%+v, %d rows", a, count)
}

// Every tier rounds what Go rounds, and reads and writes nothing else.
//
//check:in arm64
func TestStore(t *testing.T) {
	for tier, k := range Registry.All() {
		for _, dt := range []snug.DType{snug.F16, snug.BF16} {
			for cols := 1; cols < 40; cols++ {
				const rows, at = 3, 1
				rowSrc, rowDst := cols+1, cols+2
				src := vector[float32](t, (rows-1)*rowSrc+cols)
				copy(src, kerneltest.Normal(1, len(src)))
				src[cols/2] = float32(math.NaN())
				old := kerneltest.Normal(2, at+(rows-1)*rowDst+cols)
				want, got := alone(t, dt, old), alone(t, dt, old)
				store(want, at, src, rows, cols, rowSrc, rowDst)
				k.Store(got, at, src, rows, cols, rowSrc, rowDst)
				a, b := make([]float32, len(old)), make([]float32, len(old))
				half.Load(a, want, 0)
				half.Load(b, got, 0)
				require.Equal(t, kerneltest.Bits(a), kerneltest.Bits(b), "%v %v, %d columns", tier, dt, cols)
			}
		}
	}
}

// Every tier spreads what Go spreads, and writes nothing else.
//
//check:in arm64
func TestSpread(t *testing.T) {
	for tier, k := range Registry.All() {
		for n := 1; n < 70; n++ {
			for step := 1; step < 4; step++ {
				const rows = 3
				rowSrc, rowDst := n+1, n*step+2
				src := vector[float32](t, (rows-1)*rowSrc+n)
				copy(src, kerneltest.Normal(1, len(src)))
				want := kerneltest.Normal(2, (rows-1)*rowDst+(n-1)*step+1)
				got := vector[float32](t, len(want))
				copy(got, want)
				spread(want, src, rows, n, rowSrc, rowDst, step)
				k.Spread(got, src, rows, n, rowSrc, rowDst, step)
				require.Equal(t, want, got, "%v, %d floats, step %d", tier, n, step)
			}
		}
	}
}
