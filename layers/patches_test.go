package layers_test

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/conv"
	"github.com/snug-ml/snug/layers"
	"github.com/snug-ml/snug/train"
)

// patchNumbers returns n numbers.
func patchNumbers(n int) []float32 {
	rng, x := rand.New(rand.NewPCG(3, uint64(n))), make([]float32, n)
	for i := range x {
		x[i] = float32(rng.NormFloat64())
	}
	return x
}

// TestPatches: rows are what the documentation of Patches says.
func TestPatches(t *testing.T) {
	const images, in, width = 3, 6, 4
	grid := conv.ResizeShape{Size: [3]int{2, 3}, Out: [3]int{3, 1}, Interpolation: conv.Cubic}
	for name, of := range map[string]struct {
		class, registers int
		resize           *conv.ResizeShape
	}{"with a class token": {class: 1}, "with two tokens": {class: 2}, "without": {}, "registers": {class: 1, registers: 2}, "another size": {class: 1, registers: 1, resize: &grid}, "another size alone": {resize: &grid}} {
		t.Run(name, func(t *testing.T) {
			e := layers.NewPatches("e", in, width, 6+of.class, of.class > 0)
			if of.class == 2 {
				e.Class = append(e.Class, &layers.Param{Name: "e.second", Shape: []int{1, width}, Trains: true})
			}
			patches := 6
			if of.registers > 0 {
				e.Registers = &layers.Param{Name: "e.registers", Shape: []int{of.registers, width}, Trains: true}
			}
			if e.Resize = of.resize; e.Resize != nil {
				patches = 3
			}
			m, err := layers.NewModel(in, layers.MSE{}, layers.Options{Seed: 4}, e)
			require.NoError(t, err)
			for i := range e.Project.Bias.Value.Float32s() {
				e.Project.Bias.Value.Float32s()[i] = float32(i + 1)
			}
			positions := slices.Clone(e.Positions.Value.Float32s())
			if of.resize != nil {
				s := grid
				s.Batch, s.Channels, s.Dims, s.Layout = 1, width, 2, conv.ChannelsLast
				small := make([]float32, s.YLen())
				require.NoError(t, conv.Resize(small, positions[of.class*width:], s, make([]float32, s.WorkspaceLen())))
				positions = append(positions[:of.class*width], small...)
			}
			zeros, rows := of.class+of.registers, of.class+of.registers+patches
			x := patchNumbers(images * rows * in)
			for i := range images {
				clear(x[i*rows*in:][:zeros*in])
			}
			if of.class == 2 {
				copy(e.Class[1].Value.Float32s(), patchNumbers(width))
			}
			if of.registers > 0 {
				copy(e.Registers.Value.Float32s(), patchNumbers(of.registers*width))
			}
			got := make([]float32, images*rows*width)
			require.NoError(t, m.Predict(context.Background(), got, layers.Sample{X: x, Sequences: images}))
			w, bias := e.Project.Weight.Value.Float32s(), e.Project.Bias.Value.Float32s()
			for r := range images * rows {
				for j := range width {
					want := 0.
					switch at := r % rows; {
					case at < of.class:
						want = float64(positions[at*width+j]) + float64(e.Class[at].Value.Float32s()[j])
					case at < zeros:
						want = float64(e.Registers.Value.Float32s()[(at-of.class)*width+j])
					default:
						want = float64(positions[(at-of.registers)*width+j]) + float64(bias[j])
						for k := range in {
							want += float64(w[j*in+k]) * float64(x[r*in+k])
						}
					}
					require.InDelta(t, want, got[r*width+j], 1e-5, "row %d, element %d", r, j)
				}
			}
			require.NoError(t, train.CheckGradients(context.Background(), m, layers.Sample{X: x, Sequences: images, Y: patchNumbers(images * rows * width)}))
			for _, s := range []layers.Sample{{X: x, Sequences: 1}, {X: x[:rows*in], Starts: []int{0, rows}}} {
				err := m.Predict(context.Background(), make([]float32, len(s.X)/in*width), s)
				require.ErrorIs(t, err, snug.ErrShape)
			}
		})
	}
	for name, grid := range map[string]conv.ResizeShape{"other positions": {Size: [3]int{2, 2}, Out: [3]int{3, 1}}, "no grid": {}, "most": {Size: [3]int{2, 3}, Out: [3]int{1 << 30, 1 << 30}}} {
		e := layers.NewPatches("e", in, width, 6, false)
		e.Resize = &grid
		_, err := layers.NewModel(in, layers.MSE{}, layers.Options{}, e)
		require.ErrorIs(t, err, snug.ErrShape, name)
	}
}

// TestPooledGradients: gradients of a small vision transformer are those of differences, for every way to pool.
func TestPooledGradients(t *testing.T) {
	const images, in, width, rows = 3, 6, 8, 5
	for name, means := range map[string][]layers.Mean{
		"class token": {{To: 1}}, "all rows": {{}}, "patches": {{From: 1}}, "class token and patches": {{To: 1}, {From: 1}}, "some": {{From: 2, To: 4}},
	} {
		t.Run(name, func(t *testing.T) {
			loss := layers.NewCrossEntropy("head", 4, width*len(means))
			block := layers.NewAttention("block", width, 2, 2)
			block.Bidirectional = true
			block.Out[0] = *layers.NewLinear("block.out", width, width, true)
			m, err := layers.NewModel(in, layers.Pooled{Loss: loss, Means: means}, layers.Options{Seed: 5},
				layers.NewPatches("e", in, width, rows, true), block, layers.NewLayerNorm("norm", width))
			require.NoError(t, err)
			s := layers.Sample{X: patchNumbers(images * rows * in), Sequences: images, Labels: []int32{1, -1, 3}}
			require.Equal(t, 2., m.Weight(s))
			require.NoError(t, train.CheckGradients(context.Background(), m, s))
			loss2, err := m.Evaluate(context.Background(), s)
			require.NoError(t, err)

			// The definition of the loss, from the rows.
			y := make([]float32, images*rows*width)
			require.NoError(t, m.Predict(context.Background(), y, s))
			require.InDelta(t, pooledLoss(y, loss.Head.Value.Float32s(), s.Labels, means, rows, width), loss2.Mean(), 1e-5)
		})
	}
}

func TestPooledStarts(t *testing.T) {
	m, err := layers.NewModel(4, layers.Pooled{Loss: layers.MSE{}, Means: []layers.Mean{{}}}, layers.Options{Seed: 6}, layers.NewLinear("l", 4, 2, true))
	require.NoError(t, err)
	s := layers.Sample{X: patchNumbers(7 * 4), Starts: []int{0, 1, 5, 7}, Y: patchNumbers(3 * 2)}
	require.Equal(t, 3., m.Weight(s))
	require.NoError(t, train.CheckGradients(context.Background(), m, s))
}

func TestPooledErrors(t *testing.T) {
	head := layers.NewLinear("l", 4, 2, true)
	for name, c := range map[string]layers.Pooled{
		"no loss": {Means: []layers.Mean{{}}}, "no mean": {Loss: layers.MSE{}}, "no row": {Loss: layers.MSE{}, Means: []layers.Mean{{From: 2, To: 2}}},
		"negative": {Loss: layers.MSE{}, Means: []layers.Mean{{From: -1}}},
		"pooled":   {Loss: layers.Pooled{Loss: layers.MSE{}, Means: []layers.Mean{{}}}, Means: []layers.Mean{{}}},
		"pointer":  {Loss: &layers.Pooled{Loss: layers.MSE{}, Means: []layers.Mean{{}}}, Means: []layers.Mean{{}}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := layers.NewModel(4, c, layers.Options{}, head)
			require.ErrorIs(t, err, snug.ErrConfig)
		})
	}
	m, err := layers.NewModel(4, layers.Pooled{Loss: layers.MSE{}, Means: []layers.Mean{{From: 2}}}, layers.Options{}, head)
	require.NoError(t, err)
	_, err = m.Evaluate(context.Background(), layers.Sample{X: make([]float32, 4*4), Sequences: 2, Y: make([]float32, 4)})
	require.ErrorIs(t, err, snug.ErrShape)
	require.ErrorContains(t, err, "sequence 0 has 2 rows")
}

// pooledLoss is the mean cross-entropy of images with a label, in float64.
func pooledLoss(y, head []float32, labels []int32, means []layers.Mean, rows, width int) (mean float64) {
	n := 0.
	for i, label := range labels {
		if label < 0 {
			continue
		}
		var pooled []float64
		for _, m := range means {
			if m.To == 0 {
				m.To = rows
			}
			for j := range width {
				sum := 0.
				for r := m.From; r < m.To; r++ {
					sum += float64(y[(i*rows+r)*width+j])
				}
				pooled = append(pooled, sum/float64(m.To-m.From))
			}
		}
		sum, target := 0., 0.
		for c := range len(head) / len(pooled) {
			logit := 0.
			for j, v := range pooled {
				logit += v * float64(head[c*len(pooled)+j])
			}
			if sum += math.Exp(logit); c == int(label) {
				target = logit
			}
		}
		mean += math.Log(sum) - target
		n++
	}
	return mean / n
}
