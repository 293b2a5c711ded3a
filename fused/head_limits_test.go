package fused

import (
	"fmt"
	"math"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

// What a row gives has the same bits in every chunk of more than 8 rows, whatever rows are beside it.
func TestChunksOfAnySize(t *testing.T) {
	for _, dt := range floatTypes {
		for _, size := range []struct{ rows, vocab, cols int }{{36, 200, 40}, {34, 300, 106}, {39, 4, 122}} {
			t.Run(fmt.Sprint(dt, size), func(t *testing.T) {
				rows, vocab, cols := size.rows, size.vocab, size.cols
				rng := newRand(4)
				view := func(x []float32) snug.View {
					v, _, err := snug.MakeView(snug.CPU(), dt, len(x))
					require.NoError(t, err)
					require.NoError(t, snug.FromFloat64(v, float64s(x)))
					return v
				}
				x, w := view(normals(rng, dt, rows*cols, 0, 1)), view(normals(rng, dt, vocab*cols, 0, 1))
				targets, dlogp := tokens(rng, rows, vocab), normals(rng, snug.F32, rows, 0, 1)
				results := func(chunk int) (logp, lse []float32, dx []float64, sums [2]float64) {
					c := CrossEntropy{Vocab: vocab, Cols: cols, Chunk: chunk}
					teacher := CrossEntropy{Vocab: vocab, Cols: cols, Temperature: 2}
					logp, lse, dx = make([]float32, rows), make([]float32, rows), make([]float64, rows*cols)
					ws := snug.SliceView(make([]float32, DistillWorkspaceLen(c, teacher, rows)))
					require.NoError(t, LogProbs(c, snug.SliceView(logp), snug.SliceView(lse), x, w, targets, ws))
					grads := view(make([]float32, rows*cols))
					require.NoError(t, LogProbsBackward(c, grads, snug.View{}, snug.SliceView(dlogp), snug.View{}, snug.SliceView(lse), x, w, targets, snug.Into{}, ws))
					require.NoError(t, snug.ToFloat64(dx, grads))
					loss, err := CrossEntropyLoss(c, x, w, targets, ws)
					require.NoError(t, err)
					away, err := Distill(c, teacher, x, w, x, w, ws)
					require.NoError(t, err)
					return logp, lse, dx, [2]float64{loss.Sum, away.Sum}
				}
				logp, lse, dx, sums := results(rows)
				for chunk := 9; chunk < rows; chunk++ {
					if last := rows % chunk; 0 < last && last <= 8 {
						continue
					}
					p, l, d, s := results(chunk)
					requireBits(t, fmt.Sprint("logp, Chunk ", chunk), logp, p)
					requireBits(t, fmt.Sprint("lse, Chunk ", chunk), lse, l)
					require.Equal(t, dx, d, "dx, Chunk %d", chunk)
					require.Equal(t, sums, s, "the losses, Chunk %d", chunk)
				}
			})
		}
	}
}

// The divergence is infinite where the student excludes a class that the teacher has, and a class that neither has
// counts nothing, whatever the tiles are.
func TestDistillInfinite(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
		put := func(v ...float32) snug.View { return kerneltest.Put(t, p, v).View }
		inf := float32(math.Inf(1))
		for _, tile := range []int{0, 1, 2} {
			for _, c := range []struct {
				teacher float32 // its bias of the class that the student excludes
				want    float64
			}{{0, math.Inf(1)}, {-60, math.Inf(1)}, {-2000, 0}} {
				student := CrossEntropy{Vocab: 4, Cols: 1, Tile: tile, Bias: put(-inf, 0, 0, 0)}
				teacher := CrossEntropy{Vocab: 4, Cols: 1, Bias: put(c.teacher, 0, 0, 0)}
				x, w, ws := put(1), put(1, 1, 1, 1), put(fill(DistillWorkspaceLen(student, teacher, 1), 0)...)
				loss, err := Distill(student, teacher, x, w, x, w, ws)
				require.NoError(t, err)
				require.Equal(t, c.want, loss.Sum, "Tile %d, bias %v", tile, c.teacher)
			}
		}
	})
}

// A cap and a temperature whose quotient is beyond what either may be are refused.
func TestCapAndTemperatureFarApart(t *testing.T) {
	for _, c := range []struct{ limit, temperature float32 }{{0x1p70, 0x1p-60}, {0x1p-70, 0x1p60}, {0x1p-100, 0x1p100}} {
		call := newCall()
		call.config.Cap, call.config.Temperature = c.limit, c.temperature
		for _, name := range []string{"CrossEntropyBackward", "LogProbs", "Distill"} {
			requireRefused(t, name, call, snug.ErrConfig, "Cap/Temperature")
		}
		call.config.Temperature = 1
		require.NoError(t, functions["LogProbs"](call))
	}
}

// The classes of a row whose logits are all −Inf have no probability, as in torch.
func TestLogProbsOfNoClass(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
		put := func(v ...float32) *kerneltest.Buf[float32] { return kerneltest.Put(t, p, v) }
		inf := float32(math.Inf(1))
		for _, tile := range []int{0, 1} {
			c := CrossEntropy{Vocab: 2, Cols: 1, Tile: tile, Bias: put(-inf, -inf).View}
			logp, lse, ws := put(7), put(7), put(fill(c.WorkspaceLen(1), 0)...)
			require.NoError(t, LogProbs(c, logp.View, lse.View, put(1).View, put(1, 2).View, []int32{0}, ws.View))
			require.True(t, math.IsNaN(float64(logp.Get()[0])))
			require.Equal(t, -inf, lse.Get()[0])
		}
	})
}
