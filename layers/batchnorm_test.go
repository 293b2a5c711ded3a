package layers

import (
	"context"
	"encoding/json"
	"math"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/conv"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/remat"
	"github.com/snug-ml/snug/train"
)

// goldenNumbers are those that make.py draws.
func goldenNumbers(number, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		word := (uint64(i)*2654435761 + uint64(number)*97531) % (1 << 32)
		x[i] = float32(float64(word)/(1<<31) - 1)
	}
	return x
}

// toLast moves the channels of rows behind the positions.
func toLast(x []float32, channels, positions int) []float32 {
	y := make([]float32, len(x))
	for i, v := range x {
		row, c, at := i/positions/channels, i/positions%channels, i%positions
		y[(row*positions+at)*channels+c] = v
	}
	return y
}

// near fails unless all numbers are equal within 1e-5 of the largest.
func near(t testing.TB, want, got []float32, what string) {
	t.Helper()
	require.Len(t, got, len(want), what)
	largest := 0.0
	for _, x := range want {
		largest = max(largest, math.Abs(float64(x)))
	}
	for i := range want {
		require.InDelta(t, want[i], got[i], 1e-5*largest, "%s of %d", what, i)
	}
}

// TestBatchNormGolden: outputs, gradients and averages are PyTorch's, in both layouts.
func TestBatchNormGolden(t *testing.T) {
	data, err := os.ReadFile("testdata/torch/golden.json")
	require.NoError(t, err)
	var all []struct {
		Name                                   string
		Shape                                  []int
		Momentum, Eps                          float32
		Y, DX, DWeight, DBias, Mean, Var, Eval []float32
	}
	require.NoError(t, json.Unmarshal(data, &all))
	for _, g := range all {
		for _, last := range []bool{false, true} {
			t.Run(g.Name, func(t *testing.T) {
				rows, channels, positions := g.Shape[0], g.Shape[1], 1
				for _, n := range g.Shape[2:] {
					positions *= n
				}
				order := func(x []float32) []float32 {
					if last {
						return toLast(x, channels, positions)
					}
					return x
				}
				n := NewBatchNorm("norm", channels, positions)
				if n.ChannelsLast = last; g.Momentum > 0 {
					n.Momentum, n.Eps = g.Momentum, g.Eps
				}
				width := channels * positions
				m, err := NewModel(width, MSE{}, Options{}, n)
				require.NoError(t, err)
				copy(n.Weight.Value.Float32s(), goldenNumbers(1, channels))
				copy(n.Bias.Value.Float32s(), goldenNumbers(2, channels))
				p := m.pass
				var x *Tensor
				for step := range 3 {
					g2 := gradients{"norm.weight": make([]float32, channels), "norm.bias": make([]float32, channels)}
					require.NoError(t, p.Batch.Shape(rows, 0, nil))
					p.Begin()
					p.Window = g2
					x = p.Get(width)
					for i, v := range order(goldenNumbers(3+step, rows*width)) {
						x.Float32s()[i] = v*float32(1+step) + float32(step)
					}
					y, s := n.ForwardSave(p, x)
					require.NoError(t, p.Failed())
					dy := p.Get(width)
					for i, v := range order(goldenNumbers(9, rows*width)) {
						dy.Float32s()[i] = v * v
					}
					out := slices.Clone(y.Float32s())
					dx := n.Backward(p, x, s, dy)
					require.NoError(t, p.Failed())
					if step == 2 {
						near(t, order(g.Y), out, "y")
						near(t, order(g.DX), dx.Float32s(), "dx")
						near(t, g.DWeight, g2["norm.weight"], "dweight")
						near(t, g.DBias, g2["norm.bias"], "dbias")
						near(t, g.Mean, n.Mean.Value.Float32s(), "mean")
						near(t, g.Var, n.Var.Value.Float32s(), "var")
						p.Window = nil
						near(t, order(g.Eval), n.Forward(p, x).Float32s(), "evaluation")
						near(t, g.Var, n.Var.Value.Float32s(), "var after evaluation")
					}
				}
				require.NoError(t, p.Failed())
			})
		}
	}
}

func conv3(name string, in, out, side, stride int) *Conv {
	return NewConv(name, conv.Shape{In: in, Out: out, Dims: 2, Size: [3]int{side, side}, Kernel: [3]int{3, 3}, Stride: [3]int{stride, stride},
		PadBefore: [3]int{1, 1}, PadAfter: [3]int{1, 1}}, false)
}

// residuals returns a small residual network with all that a batch norm may be in, and a sample.
func residuals(t testing.TB, o Options, most int) (*Model, Sample) {
	const side, channels = 8, 4
	shortcut := NewConv("down.short", conv.Shape{In: channels, Out: 6, Dims: 2, Size: [3]int{side, side}, Kernel: [3]int{1, 1}, Stride: [3]int{2, 2}}, false)
	list := []Layer{
		Sequential{conv3("stem", 2, channels, side, 1), NewBatchNorm("stem.norm", channels, side*side), ReLU},
		Residual{Sequential{conv3("a", channels, channels, side, 1), NewBatchNorm("a.norm", channels, side*side), ReLU, conv3("b", channels, channels, side, 1),
			NewBatchNorm("b.norm", channels, side*side)}},
		NewBatchNorm("alone", channels, side*side), ReLU,
		Sequential{Sum{Sequential{conv3("down.a", channels, 6, side, 2), NewBatchNorm("down.a.norm", 6, 16), LeakyReLU(0.1), conv3("down.b", 6, 6, 4, 1), NewBatchNorm("down.b.norm", 6, 16)},
			Sequential{shortcut, NewBatchNorm("down.norm", 6, 16)}}, ReLU},
		AvgPool{conv.PoolShape{Channels: 6, Dims: 2, Size: [3]int{4, 4}, Adaptive: [3]int{1, 1}}}, NewBatchNorm("last", 6, 1), NewLinear("head", 6, 3, true),
	}
	m, err := NewModel(2*side*side, MSE{}, o, list[:min(most, len(list))]...)
	require.NoError(t, err)
	s := Sample{X: kerneltest.Normal(1, 5*2*side*side), Y: kerneltest.Normal(2, 5*3)}
	return m, s
}

// averages returns copies of the buffers of a model.
func averages(m *Model) map[string][]float32 {
	all := map[string][]float32{}
	for name, v := range m.Buffers() {
		all[name] = slices.Clone(v.Float32s())
	}
	return all
}

// TestBatchNormPlans: under every plan a model has the same gradients and averages to the bit, and holds what the plan says.
func TestBatchNormPlans(t *testing.T) {
	for _, dt := range []snug.DType{snug.F32, snug.BF16, snug.F16} {
		t.Run(dt.String(), func(t *testing.T) {
			m, s := residuals(t, Options{DType: dt, Seed: 3}, 100)
			begin := averages(m)
			require.Len(t, begin, 16)
			restore := func() {
				for name, v := range m.Buffers() {
					copy(v.Float32s(), begin[name])
				}
			}
			want := gradientsOf(t, m, s)
			changed := averages(m)
			for name := range begin {
				require.NotEqual(t, begin[name], changed[name])
			}
			_, err := m.Evaluate(context.Background(), s)
			require.NoError(t, err)
			require.Equal(t, changed, averages(m))
			costs, err := m.Costs(5, 1)
			require.NoError(t, err)
			all, err := remat.KeepAll(costs)
			require.NoError(t, err)
			kept, err := all.Simulate(costs)
			require.NoError(t, err)
			plans := []remat.Plan{all}
			for _, make := range []func(remat.Costs) (remat.Plan, error){remat.RecomputeAll, remat.Chen} {
				plan, err := make(costs)
				require.NoError(t, err)
				plans = append(plans, plan)
			}
			for _, share := range []int64{90, 80, 70} {
				if plan, _, err := (remat.Planner{}).Plan(costs, kept.Peak*share/100); err == nil {
					plans = append(plans, plan)
				}
			}
			require.Greater(t, len(plans), 4)
			for _, plan := range plans {
				predicted, err := plan.Simulate(costs)
				require.NoError(t, err)
				require.NoError(t, m.SetPlan(plan))
				restore()
				require.Equal(t, want, gradientsOf(t, m, s))
				require.Equal(t, changed, averages(m))
				require.Empty(t, m.Report.Mismatches)
				require.Equal(t, predicted.Peak, m.Report.Peak)
			}
		})
	}
}

// TestBatchNormByHand: without a chain a Sequential updates averages once too, and the gradient of another micro-batch than the last
// is an error.
func TestBatchNormByHand(t *testing.T) {
	m, s := residuals(t, Options{}, 1)
	p, l, n := m.pass, m.layers[0], m.layers[0].(Sequential)[1].(*BatchNorm)
	want := func() []float32 {
		gradientsOf(t, m, Sample{X: s.X, Y: make([]float32, 5*4*64)})
		return averages(m)["stem.norm.running_mean"]
	}()
	clear(n.Mean.Value.Float32s())
	require.NoError(t, p.Batch.Shape(5, 0, nil))
	p.Begin()
	p.Start(context.Background()).Window = gradients{"stem.weight": make([]float32, 72), "stem.norm.weight": make([]float32, 4), "stem.norm.bias": make([]float32, 4)}
	x := p.Get(128)
	copy(x.Float32s(), s.X)
	y, set := l.ForwardSave(p, x)
	p.Put(l.Backward(p, x, set, p.Get(p.width(y))))
	require.NoError(t, p.Failed())
	require.Equal(t, want, n.Mean.Value.Float32s())
	_, first := n.ForwardSave(p, y)
	n.ForwardSave(p, y)
	n.Backward(p, y, first, p.Get(p.width(y)))
	require.ErrorIs(t, p.Failed(), snug.ErrConfig)
	require.ErrorContains(t, p.Failed(), "another micro-batch")
}

// TestBatchNormFrozen: the averages take the place of statistics, in training too, do not change, and go with a Tiled.
func TestBatchNormFrozen(t *testing.T) {
	frozen := func(rows int) (*Model, *BatchNorm, Sample) {
		n := NewBatchNorm("norm", 3, 4)
		n.Frozen = true
		l := Layer(Sequential{NewConv("conv", conv.Shape{In: 3, Out: 3, Dims: 1, Size: [3]int{4}, Kernel: [3]int{1}}, false), n, ReLU})
		if rows > 0 {
			l = Tiled{l, rows}
		}
		m, err := NewModel(12, MSE{}, Options{Seed: 1}, l)
		require.NoError(t, err)
		copy(n.Mean.Value.Float32s(), []float32{0.1, 0.2, 0.3})
		copy(n.Var.Value.Float32s(), []float32{0.5, 1, 2})
		return m, n, Sample{X: kerneltest.Normal(1, 4*12), Y: kerneltest.Normal(2, 4*12)}
	}
	m, n, s := frozen(0)
	require.NoError(t, train.CheckGradients(context.Background(), m, s))
	require.Equal(t, []float32{0.5, 1, 2}, n.Var.Value.Float32s())
	tiled, _, _ := frozen(2)
	for name, g := range gradientsOf(t, m, s) {
		near(t, g, gradientsOf(t, tiled, s)[name], name)
	}
	n.Weight.Trains, n.Bias.Trains = false, false
	require.Len(t, gradientsOf(t, m, s), 1)
}

// TestBatchNormErrors: what would go wrong without a word is refused.
func TestBatchNormErrors(t *testing.T) {
	n := NewBatchNorm("norm", 3, 4)
	_, err := NewModel(12, MSE{}, Options{}, Tiled{Sequential{n}, 2})
	require.ErrorIs(t, err, snug.ErrConfig)
	require.ErrorContains(t, err, "a Tiled of a BatchNorm, whose statistics are those of all rows")
	_, err = NewModel(12, MSE{}, Options{}, n, n)
	require.ErrorIs(t, err, snug.ErrConfig)
	require.ErrorContains(t, err, "twice")
	_, err = NewModel(12, MSE{}, Options{}, Sequential{conv1(6), n})
	require.ErrorIs(t, err, snug.ErrShape)
	n.Mean.Trains = true
	_, err = NewModel(12, MSE{}, Options{}, n)
	require.ErrorContains(t, err, "trains")
	for _, change := range []func(n *BatchNorm){
		func(n *BatchNorm) { n.Mean.Buffer = false }, func(n *BatchNorm) { n.Var = nil }, func(n *BatchNorm) { n.Momentum = 2 },
		func(n *BatchNorm) { n.Eps = float32(math.NaN()) }, func(n *BatchNorm) { n.Positions = 0 }, func(n *BatchNorm) { n.Bias.Shape = []int{2} },
	} {
		n := NewBatchNorm("norm", 3, 4)
		change(n)
		_, err := NewModel(12, MSE{}, Options{}, n)
		require.ErrorIs(t, err, snug.ErrConfig)
	}
	m, err := NewModel(3, MSE{}, Options{}, NewBatchNorm("norm", 3, 1))
	require.NoError(t, err)
	_, err = m.Backprop(context.Background(), Sample{X: make([]float32, 3), Y: make([]float32, 3)}, 1, gradients{})
	require.ErrorIs(t, err, snug.ErrShape)
	require.ErrorContains(t, err, "norm.weight: a channel of the micro-batch has one element")
	before := averages(m)
	g := gradients{"norm.weight": make([]float32, 3), "norm.bias": make([]float32, 3)}
	_, err = m.Backprop(context.Background(), Sample{X: []float32{1, 2, 3, float32(math.Inf(1)), 5, 6}, Y: make([]float32, 6)}, 1, g)
	require.NoError(t, err)
	require.Equal(t, before, averages(m))
	require.True(t, math.IsNaN(float64(g["norm.weight"][0])))
}

func conv1(positions int) *Conv {
	return NewConv("conv", conv.Shape{In: 2, Out: 2, Dims: 1, Size: [3]int{positions}, Kernel: [3]int{1}}, false)
}

// TestBatchNormResumes: a run that is interrupted after five steps of ten, and in a micro-batch of the sixth, goes on with the same
// bits of parameters and averages.
func TestBatchNormResumes(t *testing.T) {
	for _, dt := range []snug.DType{snug.F32, snug.BF16} {
		values := func(m *Model) map[string][]float32 {
			all := map[string][]float32{}
			for _, w := range m.Params() {
				all[w.Name] = make([]float32, w.Len())
				require.NoError(t, amp.Cast(all[w.Name], w.Value))
			}
			return all
		}
		run := func(dir string, from, to int, m *Model, s Sample) *train.Trainer[Sample] {
			tr, err := train.New(m, train.Options{StateBits: 8, Schedule: train.Constant(1e-2), Checkpoints: train.Checkpoints{Dir: dir}})
			require.NoError(t, err)
			require.Equal(t, from, tr.Step())
			for tr.Step() < to {
				s.X[0] = float32(tr.Step())
				_, err := tr.Train(context.Background(), []Sample{s, s})
				require.NoError(t, err)
			}
			return tr
		}
		whole, s := residuals(t, Options{DType: dt}, 100)
		require.NoError(t, run("", 0, 10, whole, s).Close())
		dir := t.TempDir()
		first, s := residuals(t, Options{DType: dt}, 100)
		tr := run(dir, 0, 5, first, s)
		_, err := tr.Train(context.Background(), []Sample{s, {X: s.X, Y: s.Y[1:]}})
		require.Error(t, err)
		require.NoError(t, tr.Save(context.Background()))
		require.NoError(t, tr.Close())
		second, s := residuals(t, Options{DType: dt, Seed: 7}, 100)
		require.NoError(t, run(dir, 5, 10, second, s).Close())
		require.Equal(t, values(whole), values(second))
	}
}

// TestBatchNormInBackward: a step that measures the norm of gradients in a pass of its own updates averages once.
func TestBatchNormInBackward(t *testing.T) {
	m, s := residuals(t, Options{}, 100)
	gradientsOf(t, m, s)
	want := averages(m)
	m, s = residuals(t, Options{}, 100)
	tr, err := train.New(m, train.Options{Gradients: plan.InBackward, Clip: 1, Schedule: train.Constant(0)})
	require.NoError(t, err)
	_, err = tr.Train(context.Background(), []Sample{s})
	require.NoError(t, err)
	require.Equal(t, want, averages(m))
	require.NoError(t, tr.Close())
}

// TestOverwrites: an activation that overwrites its input within a Sequential has the bits of one that is a stage.
func TestOverwrites(t *testing.T) {
	for _, a := range []Activation{ReLU, ReLU6, LeakyReLU(0), LeakyReLU(0.2), Sigmoid, SiLU} {
		for _, dt := range []snug.DType{snug.F32, snug.BF16} {
			list := func() []Layer {
				return []Layer{a, NewLinear("1", 6, 5, true), a, a, NewLayerNorm("2", 5), a, NewLinear("3", 5, 4, true), a}
			}
			s := Sample{X: kerneltest.Normal(1, 7*6), Y: kerneltest.Normal(2, 7*4)}
			stages, err := NewModel(6, MSE{}, Options{DType: dt}, list()...)
			require.NoError(t, err)
			one, err := NewModel(6, MSE{}, Options{DType: dt}, Sequential(list()))
			require.NoError(t, err)
			require.Equal(t, gradientsOf(t, stages, s), gradientsOf(t, one, s))
			want, got := make([]float32, 7*4), make([]float32, 7*4)
			require.NoError(t, stages.Predict(context.Background(), want, s))
			require.NoError(t, one.Predict(context.Background(), got, s))
			require.Equal(t, want, got)
		}
	}
}

// TestAddedActivation: the backward step of an activation that overwrites its input reads its output, which a Sum and a Residual change.
func TestAddedActivation(t *testing.T) {
	f := func(name string) Layer { return NewLinear(name, 6, 6, true) }
	for _, l := range []Layer{
		Residual{Sequential{f("1"), ReLU}},
		Residual{Sequential{f("1"), Sequential{NewLayerNorm("2", 6), LeakyReLU(0.2)}}},
		Sum{Sequential{f("1"), ReLU}, f("2")},
		Sum{f("1"), Sequential{f("2"), ReLU6}},
		Sequential{Sum{Sequential{f("1"), ReLU}, ReLU}, ReLU},
		Tiled{Residual{&Sequential{f("1"), ReLU}}, 2},
	} {
		m, err := NewModel(6, MSE{}, Options{Seed: 2}, f("first"), l, f("last"))
		require.NoError(t, err)
		_, err = m.Costs(5, 1)
		require.NoError(t, err)
		require.NoError(t, train.CheckGradients(context.Background(), m, Sample{X: kerneltest.Normal(1, 5*6), Y: kerneltest.Normal(2, 5*6)}))
		require.Empty(t, m.Report.Mismatches)
	}
}

// TestSum: a Sum is the sum of its layers, exact in costs, and refuses layers that do not fit.
func TestSum(t *testing.T) {
	f, g := NewLinear("f", 6, 4, true), NewLinear("g", 6, 4, false)
	m, err := NewModel(6, MSE{}, Options{Seed: 2}, Sum{Sequential{f, GELU}, g, Sequential{NewLinear("h", 6, 4, true)}})
	require.NoError(t, err)
	s := Sample{X: kerneltest.Normal(1, 7*6), Y: kerneltest.Normal(2, 7*4)}
	require.NoError(t, train.CheckGradients(context.Background(), m, s))
	_, err = m.Costs(7, 1)
	require.NoError(t, err)
	require.NoError(t, m.SetPlan(remat.Plan{}))
	gradientsOf(t, m, s)
	require.Empty(t, m.Report.Mismatches)
	costs, err := m.Costs(7, 1)
	require.NoError(t, err)
	require.Equal(t, int64(4*7*(4+4)), costs.Stages[0].Saved) // the input of GELU, and the output
	for _, l := range []Layer{Sum{}, Sum{nil}, Sum{f, (*Linear)(nil)}} {
		_, err := l.Width(6)
		require.ErrorIs(t, err, snug.ErrConfig)
	}
	for _, l := range []Layer{Sum{f, NewLinear("g", 6, 5, false)}, Sum{conv1(3), NewGroupNorm("n", 1, 3, 2)}} {
		_, err := l.Width(6)
		require.ErrorIs(t, err, snug.ErrShape)
	}
}

// TestFirst: the first layer of a model has the gradients that it has behind another, whose input's gradient it computes.
func TestFirst(t *testing.T) {
	s := Sample{X: kerneltest.Normal(1, 3*2*64), Y: kerneltest.Normal(2, 3*4*64)}
	model := func(before ...Layer) *Model {
		m, err := NewModel(2*64, MSE{}, Options{Seed: 1}, append(before, Sequential{Sequential{conv3("a", 2, 3, 8, 1), ReLU}, conv3("b", 3, 4, 8, 1)}, ReLU)...)
		require.NoError(t, err)
		return m
	}
	require.Equal(t, gradientsOf(t, model(Norm{}), s), gradientsOf(t, model(), s))
}
