package amp

import (
	"fmt"
	"math"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/internal/measure"
	"github.com/stretchr/testify/require"
)

// TestJoinedSweeps: sweeps that are one launch find and write the same bits as one launch for each gradient.
//
//check:in late nan
func TestJoinedSweeps(t *testing.T) {
	types := []snug.DType{snug.F32, snug.F16, snug.BF16}
	for _, p := range kerneltest.Backends(t)[2:] {
		for name, pass := range map[string]pass{
			"measure": {factor: 1, limit: noLimit}, "scale": {factor: 0.37, limit: noLimit}, "cut": {factor: 1, limit: 0.3},
		} {
			t.Run(p.Name+" "+name, func(t *testing.T) {
				var grads [2][]kerneltest.Named
				for i := range 2 * measure.MaxVectors {
					x := kerneltest.Uniform(uint64(i), []int{1, 5, 100, 2047, 2049, 0, 5000}[i%7])
					if i == 44 || i == 45 {
						x[len(x)/2], x[len(x)-1] = nan, inf
					}
					for side := range grads {
						v := kerneltest.PutFloats(t, p, types[i/3%3], x).View
						grads[side] = append(grads[side], kerneltest.Named{Name: fmt.Sprint(i), View: v})
					}
				}
				for side := range grads { // the same memory twice
					grads[side] = append(grads[side], grads[side][2])
				}
				before := device.Launches(p.Dev)
				pass.op = "test"
				s := traversals.Get().(*traversal)
				s.pass = pass
				require.NoError(t, s.run(kerneltest.Walk(grads[0]...)))
				joined := device.Launches(p.Dev) - before
				got := s.found.Total
				s.release()

				var want measure.Gather
				for i, g := range grads[1] {
					if g.View.Len() == 0 {
						continue
					}
					records, err := want.On(g.View)
					require.NoError(t, err)
					require.NoError(t, device.Run(p.Dev, sweepJob{grad: g.View, records: records, factor: pass.factor, limit: pass.limit, ordinal: int64(i + 1)}))
				}
				require.NoError(t, want.Collect())
				if math.IsNaN(want.Total.Squares) { // of any payload
					require.True(t, math.IsNaN(got.Squares))
				} else {
					require.Equal(t, math.Float64bits(want.Total.Squares), math.Float64bits(got.Squares))
				}
				got.Squares, want.Total.Squares = 0, 0
				require.True(t, sameValue(got.Value, want.Total.Value))
				got.Value, want.Total.Value = 0, 0
				require.Equal(t, want.Total, got)
				for i := range grads[0] {
					require.Equal(t, hostBytes(t, grads[1][i].View), hostBytes(t, grads[0][i].View), "gradient %d", i)
				}
				if p.Name == "emu:0" {
					require.LessOrEqual(t, joined, int64(6), "two of at most 100 gradients, and the repeated one")
				}
			})
		}
	}
}

func sameValue(a, b float32) bool { return a == b || a != a && b != b }

func hostBytes(t *testing.T, v snug.View) []byte {
	if v.Len() == 0 {
		return nil
	}
	host, _, err := snug.MakeView(snug.CPU(), v.DType(), v.Len())
	require.NoError(t, err)
	require.NoError(t, snug.Copy(host, v))
	return device.Mem(&host).Bytes()
}

// TestJoinedPieces: a launch has no more pieces than there are records for, and no memory twice.
func TestJoinedPieces(t *testing.T) {
	p := kerneltest.Backends(t)[2]
	job := func(addr uintptr, n int) *sweepJob {
		return &sweepJob{grad: device.View(p.Dev, driver.Mem{Addr: addr, Size: 4 * n}, snug.F32, n), factor: 2, limit: noLimit}
	}
	const long = 1 << 23 // elements, in 1024 pieces
	first := job(1<<30, long)
	for i := 1; i < measure.MaxParts/1024; i++ {
		require.False(t, first.Join(job(1<<30+4*long-4, 10)), "it begins in another")
		require.True(t, first.Join(job(uintptr(1+i)<<30, long)))
	}
	require.False(t, first.Join(job(1<<30, 1)), "one piece more")
	require.Len(t, first.joined.Rest(), measure.MaxParts/1024-1)
	few := job(1<<30, 1)
	other := job(2<<30, 1)
	other.factor = 3
	require.False(t, few.Join(other))
	for i := range measure.MaxVectors - 1 {
		require.True(t, few.Join(job(uintptr(2+i)<<30, 1)))
	}
	require.False(t, few.Join(job(1<<30, 1)), "one vector more")
}
