package accum

import (
	"fmt"
	"math"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/internal/measure"
	"github.com/stretchr/testify/require"
)

// TestJoined: jobs that are one launch write and find the same bits as one launch for each vector.
func TestJoined(t *testing.T) {
	const vectors = 130 // more than a launch takes
	for _, p := range kerneltest.Backends(t)[2:] {
		for _, beta := range []float32{0, 0.75} {
			for _, kind := range []string{"sums", "decays", "measured", "measured only", "rounded", "rounded decays"} {
				t.Run(fmt.Sprint(p.Name, " ", kind, " ", beta), func(t *testing.T) {
					var accs [2][]snug.View
					var totals [2]measure.Record
					var launches [2]int64
					for side := range accs {
						var found measure.Gather
						var gs []snug.View
						for i := range vectors {
							n := []int{1, 7, 300, 2048, 5001}[i%5]
							x, y := kerneltest.Uniform(uint64(i), n), kerneltest.Uniform(uint64(i+1000), n)
							if i == 50 || i == 51 {
								x[n-1], x[0] = nan, inf
							}
							dt := snug.F32
							if kind[0] == 'r' {
								dt = snug.BF16
							}
							accs[side], gs = append(accs[side], onDevice(t, p.Dev, dt, y)), append(gs, onDevice(t, p.Dev, floats[i%3], x))
						}
						accs[side], gs = append(accs[side], accs[side][1]), append(gs, gs[1]) // the same memory again
						before := device.Launches(p.Dev)
						if side == 1 {
							device.Hold(p.Dev)
						}
						for i, acc := range accs[side] {
							g := gs[i]
							var err error
							switch kind {
							case "sums":
								err = accumulateJob{acc: acc, g: g, alpha: 0.3, beta: beta}.launch(p.Dev)
							case "decays":
								err = accumulateJob{acc: acc, beta: beta}.launch(p.Dev)
							case "rounded":
								err = roundedJob{acc: acc, g: g, alpha: 0.3, beta: beta, seed: 9, tensor: uint64(i)}.launch(p.Dev)
							case "rounded decays":
								err = roundedJob{acc: acc, beta: beta, seed: 9, tensor: uint64(i)}.launch(p.Dev)
							default:
								j := measuredJob{acc: acc, g: g, alpha: 0.3, beta: beta, ordinal: int64(i + 1)}
								if kind == "measured only" {
									j.acc = snug.View{}
								}
								j.records, err = found.On(g)
								require.NoError(t, err)
								err = j.launch(p.Dev)
							}
							require.NoError(t, err)
						}
						if side == 1 {
							require.NoError(t, device.Release(p.Dev))
						}
						launches[side] = device.Launches(p.Dev) - before
						require.NoError(t, found.Collect())
						totals[side] = found.Total
					}
					if p.Name == "emu:0" {
						require.EqualValues(t, vectors+1, launches[0])
						require.LessOrEqual(t, launches[1], int64(6))
					}
					for i := range vectors {
						require.Equal(t, hostBytes(t, accs[0][i]), hostBytes(t, accs[1][i]), "vector %d", i)
					}
					require.Equal(t, bitsOf(totals[0]), bitsOf(totals[1]))
				})
			}
		}
	}
}

func onDevice(t *testing.T, dev *snug.Device, dt snug.DType, x []float32) snug.View {
	v, free, err := snug.MakeView(dev, dt, len(x))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, free()) })
	require.NoError(t, snug.Copy(v, kerneltest.PutFloats(t, kerneltest.Backend{}, dt, x).View))
	return v
}

func hostBytes(t *testing.T, v snug.View) []byte {
	host, _, err := snug.MakeView(snug.CPU(), v.DType(), v.Len())
	require.NoError(t, err)
	require.NoError(t, snug.Copy(host, v))
	return device.Mem(&host).Bytes()
}

// bitsOf returns a record with numbers that are equal when their bits are.
func bitsOf(r measure.Record) [5]uint64 {
	return [5]uint64{math.Float64bits(r.Squares), uint64(r.NonFinite), uint64(r.Ordinal), uint64(r.Index), uint64(math.Float32bits(r.Value))}
}
