package layers

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/conv"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/qlora"
	"github.com/snug-ml/snug/remat"
	"github.com/snug-ml/snug/train"
)

const modelWidth, modelTokens = 8, 11

// everything returns a model with all layers, with a head that is its table, and a sample of two sequences.
func everything(t testing.TB, o Options) (*Model, Sample) {
	t.Helper()
	table := NewEmbedding("table", modelTokens, modelWidth)
	a := NewAttention("attention", modelWidth, 2, 1)
	a.Rope = NewAngles(Rope{Kind: RopeDefault, Theta: 100, Dim: 4}, o.Device)
	e := NewExperts("experts", modelWidth, 6, 3, 2)
	e.Balance = &Balance{Factor: 0.1}
	m, err := NewModel(0, &CrossEntropy{Head: table.Table}, o, table, a, Dropout{P: 0.3, Number: 1}, NewMLP("mlp", modelWidth, 12, SiLU, true), e,
		Residual{Sequential{NewLayerNorm("norm", modelWidth), NewLinear("linear", modelWidth, modelWidth, true), GELU}})
	require.NoError(t, err)
	s := Sample{Sequences: 2, Draw: 7}
	rng := rand.New(rand.NewPCG(1, 1))
	for range 10 {
		s.Tokens, s.Labels = append(s.Tokens, int32(rng.IntN(modelTokens))), append(s.Labels, int32(rng.IntN(modelTokens+1)-1))
	}
	return m, s
}

// gradientsOf returns what a call of Backprop adds to a window.
func gradientsOf(t testing.TB, m *Model, s Sample) gradients {
	t.Helper()
	g := gradients{}
	for name, v := range m.Trainable() {
		g[name] = make([]float32, v.Len())
	}
	_, err := m.Backprop(context.Background(), s, 1, g)
	require.NoError(t, err)
	require.Zero(t, m.pass.Used())
	return g
}

// TestModelRecomputes: under every budget that a plan meets, a model has the same gradients to the bit, dropout included, and holds
// exactly what the plan says.
func TestModelRecomputes(t *testing.T) {
	for _, dt := range []snug.DType{snug.F32, snug.BF16, snug.F16} {
		t.Run(dt.String(), func(t *testing.T) {
			m, s := everything(t, Options{DType: dt, Seed: 3})
			want := gradientsOf(t, m, s)
			costs, err := m.Costs(2, 5)
			require.NoError(t, err)
			for i := range costs.Stages { // 20 rows choose among 3 experts: the largest group may be longer than twice the mean
				require.Positive(t, costs.Stages[i].Saved)
			}
			all, err := remat.KeepAll(costs)
			require.NoError(t, err)
			kept, err := all.Simulate(costs)
			require.NoError(t, err)
			for _, share := range []int64{100, 90, 80, 70, 60} {
				plan, predicted, err := remat.Planner{}.Plan(costs, kept.Peak*share/100)
				if err != nil {
					continue
				}
				require.NoError(t, m.SetPlan(plan))
				require.Equal(t, want, gradientsOf(t, m, s), "%d %%", share)
				require.Empty(t, m.Report.Mismatches)
				require.LessOrEqual(t, m.Report.Peak, predicted.Peak) // which has twice the mean of rows for an expert
				require.Greater(t, m.Report.Peak, predicted.Peak*9/10)
			}
		})
	}
}

// TestStageNames: a stage has the name of its layer's parameters, by which a plan selects it.
func TestStageNames(t *testing.T) {
	m, err := NewModel(8, MSE{}, Options{Seed: 1}, NewMLP("blocks.0.mlp", 8, 16, SiLU, true), Dropout{P: 0.1}, NewLinear("head", 8, 8, true),
		Sequential{NewLinear("a", 8, 8, false), NewLinear("b", 8, 8, false)}, NewMLP("blocks.1.mlp", 8, 16, SiLU, true))
	require.NoError(t, err)
	costs, err := m.Costs(1, 4)
	require.NoError(t, err)
	var names []string
	for _, c := range costs.Stages {
		names = append(names, c.Name)
	}
	require.Equal(t, []string{"blocks.0.mlp", "layers.1", "head", "layers.3", "blocks.1.mlp"}, names)
	for name, again := range map[string]int{"mlp": 1, "blocks.0": 1, "head": 1} { // the last stage is saved in any case
		plan, err := remat.Only(costs, name)
		require.NoError(t, err)
		report, err := plan.Simulate(costs)
		require.NoError(t, err)
		require.Equal(t, again, report.Extra, name)
	}
}

// TestModelPeak: layers that change the width of rows hold exactly what a plan predicts, by the pool's own count, whatever is computed
// again; and so does a model whose costs were never asked for.
func TestModelPeak(t *testing.T) {
	square := func(channels, side int) conv.PoolShape {
		return conv.PoolShape{Channels: channels, Dims: 2, Size: [3]int{side, side}, Kernel: [3]int{2, 2}}
	}
	kernel := func(name string, in, out, side int) Layer {
		return NewConv(name, conv.Shape{In: in, Out: out, Dims: 2, Size: [3]int{side, side}, Kernel: [3]int{3, 3}}.Same(), true)
	}
	list := []Layer{kernel("a", 1, 6, 8), ReLU, MaxPool{square(6, 8)}, kernel("b", 6, 12, 4), NewGroupNorm("norm", 2, 12, 16), Concat{kernel("c", 12, 2, 4)},
		AvgPool{square(14, 4)}, NewLinear("wide", 56, 200, true), Tiled{NewLinear("narrow", 200, 3, true), 2}}
	s := Sample{X: make([]float32, 7*64), Y: make([]float32, 7*3)}
	m, err := NewModel(64, MSE{}, Options{Seed: 4}, list...)
	require.NoError(t, err)
	want := gradientsOf(t, m, s)
	whole := m.Report.Peak
	require.Equal(t, m.pass.Peak(), whole)
	costs, err := m.Costs(7, 1)
	require.NoError(t, err)
	for _, make := range []func(remat.Costs) (remat.Plan, error){remat.KeepAll, remat.RecomputeAll, remat.Chen} {
		plan, err := make(costs)
		require.NoError(t, err)
		predicted, err := plan.Simulate(costs)
		require.NoError(t, err)
		require.NoError(t, m.SetPlan(plan))
		require.Equal(t, want, gradientsOf(t, m, s))
		require.Empty(t, m.Report.Mismatches)
		require.Equal(t, predicted.Peak, m.Report.Peak)
		require.LessOrEqual(t, m.pass.Peak(), predicted.Peak)
		require.Greater(t, m.pass.Peak(), predicted.Peak*97/100)
	}
}

// TestModelMonitor: a Monitor counts weights, activations and workspace of a model, by layer and phase, and nothing after Close.
func TestModelMonitor(t *testing.T) {
	monitor, err := meter.New(meter.Options{History: 1 << 12})
	require.NoError(t, err)
	m, s := everything(t, Options{Seed: 3, Monitor: monitor})
	costs, err := m.Costs(2, 5)
	require.NoError(t, err)
	plan, err := remat.RecomputeAll(costs)
	require.NoError(t, err)
	require.NoError(t, m.SetPlan(plan))
	gradientsOf(t, m, s)
	var weights int64
	for _, w := range m.Params() {
		weights += int64(w.Value.Bytes())
	}
	now, peak := monitor.Held()
	require.Equal(t, weights, now[meter.OnDevice][meter.Weights])
	require.Zero(t, now[meter.OnDevice][meter.Activations])
	require.Equal(t, m.pass.WorkspaceBytes(), now[meter.OnDevice][meter.Workspace])
	require.Equal(t, m.pass.Peak(), peak[meter.OnDevice][meter.Activations])
	var trace strings.Builder
	require.NoError(t, monitor.WriteTrace(&trace))
	for _, name := range []string{"mlp", "experts", "input and loss", "recompute", "backward"} {
		require.True(t, strings.Contains(trace.String(), `"name":"`+name+`"`), name)
	}
	require.NoError(t, m.Close())
	now, _ = monitor.Held()
	require.Zero(t, now[meter.OnDevice])
}

// TestTiledSequences: an attention runs in tiles of whole sequences, in the memory of one, with the gradients of all at once.
func TestTiledSequences(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 5))
	s := Sample{Sequences: 6, X: make([]float32, 6*5*8), Y: make([]float32, 6*5*8)}
	for i := range s.X {
		s.X[i], s.Y[i] = float32(rng.NormFloat64()), float32(rng.NormFloat64())
	}
	block := func() Sequential {
		a := NewAttention("attention", 8, 2, 1)
		a.Rope = NewAngles(Rope{Kind: RopeDefault, Theta: 100, Dim: 4}, nil)
		return Sequential{a, NewMLP("mlp", 8, 32, GELU, false), NewLinear("out", 8, 8, true)}
	}
	run := func(o Options, l Layer) (*Model, gradients) {
		m, err := NewModel(8, MSE{}, o, NewLinear("in", 8, 8, false), l)
		require.NoError(t, err)
		costs, err := m.Costs(6, 5)
		require.NoError(t, err)
		plan, err := remat.KeepAll(costs)
		require.NoError(t, err)
		require.NoError(t, m.SetPlan(plan))
		g := gradientsOf(t, m, s)
		require.Empty(t, m.Report.Mismatches)
		return m, g
	}
	whole, want := run(Options{Seed: 2}, block())
	for _, rows := range []int{5, 10, 20, 30, 100} {
		tiled, got := run(Options{Seed: 2, Tiles: 3}, Tiled{block(), rows})
		for name, g := range want {
			require.InDeltaSlice(t, g, got[name], 1e-6, name)
		}
		if rows == 5 {
			require.Less(t, tiled.Report.Peak, whole.Report.Peak/2)
		}
	}
	_, err := NewModel(8, MSE{}, Options{}, Tiled{Residual{Dropout{P: 0.5}}, 4})
	require.ErrorIs(t, err, snug.ErrConfig)
}

// TestTiledLimit: a limit that is reached anywhere in a Tiled is an error, after which the next batch has the bits of the first.
func TestTiledLimit(t *testing.T) {
	const limit = 1 << 20
	monitor, err := meter.New(meter.Options{Limits: [meter.Tiers]int64{meter.OnDevice: limit}})
	require.NoError(t, err)
	m, err := NewModel(8, MSE{}, Options{Monitor: monitor}, NewLinear("a", 8, 8, true), Tiled{NewMLP("b", 8, 12, SiLU, false), 2})
	require.NoError(t, err)
	s := Sample{X: kerneltest.Normal(1, 5*8), Y: kerneltest.Normal(2, 5*8)}
	want, failed := gradientsOf(t, m, s), 0
	now, _ := monitor.Held()
	for room := int64(0); room < 1<<11; room += 32 {
		other := limit - now[meter.OnDevice].Total() - room
		monitor.Add(meter.OnDevice, meter.State, other)
		if _, _, err := train.Gradients(context.Background(), m, s); err != nil {
			require.ErrorIs(t, err, snug.ErrNoMemory)
			failed++
		}
		monitor.Add(meter.OnDevice, meter.State, -other)
		require.Equal(t, want, gradientsOf(t, m, s))
	}
	require.Greater(t, failed, 20)
	require.Less(t, failed, 60)
}

// TestBalance: the loss of Backprop is that of Evaluate without dropout and the balancing loss, and its gradients are those of
// differences.
func TestBalance(t *testing.T) {
	e := NewExperts("experts", 4, 6, 3, 2)
	e.Balance = &Balance{Factor: 0.5}
	m, err := NewModel(4, MSE{}, Options{Seed: 1}, e)
	require.NoError(t, err)
	rng := rand.New(rand.NewPCG(1, 1))
	var s Sample
	for range 4 * 12 {
		s.X, s.Y = append(s.X, float32(rng.NormFloat64())), append(s.Y, 0)
	}
	loss := func() float64 {
		g := gradients{}
		for name, v := range m.Trainable() {
			g[name] = make([]float32, v.Len())
		}
		l, err := m.Backprop(context.Background(), s, 1, g)
		require.NoError(t, err)
		return l.Mean()
	}
	plain, err := m.Evaluate(context.Background(), s)
	require.NoError(t, err)
	require.Greater(t, loss(), plain.Mean())
	router, g := e.Router.Weight.Value.Float32s(), gradientsOf(t, m, s)["experts.router.weight"]
	for i, w := range router {
		const h = 1e-4 // within which no row changes its experts
		router[i] = w + h
		up := loss()
		router[i] = w - h
		down := loss()
		router[i] = w
		require.InDelta(t, (up-down)/(2*h), g[i], 5e-3)
	}
}

// watched is a layer that counts its forward steps, and those that are first passes.
type watched struct {
	*Linear
	runs, first int
}

func (w *watched) count(p *Pass) {
	p.Do(func() error {
		if w.runs++; p.FirstPass() {
			w.first++
		}
		return nil
	})
}

func (w *watched) Forward(p *Pass, x *Tensor) *Tensor {
	w.count(p)
	return w.Linear.Forward(p, x)
}

func (w *watched) ForwardSave(p *Pass, x *Tensor) (*Tensor, Saved) {
	w.count(p)
	return w.Linear.ForwardSave(p, x)
}

// TestFirstPass: each layer has one first pass in a micro-batch, however often the plan runs it.
func TestFirstPass(t *testing.T) {
	var all []*watched
	var list []Layer
	for i := range 6 {
		w := &watched{Linear: NewLinear(fmt.Sprint(i), 4, 4, true)}
		all, list = append(all, w), append(list, w)
	}
	m, err := NewModel(4, MSE{}, Options{}, list...)
	require.NoError(t, err)
	costs, err := m.Costs(1, 3)
	require.NoError(t, err)
	plan, err := remat.RecomputeAll(costs)
	require.NoError(t, err)
	require.NoError(t, m.SetPlan(plan))
	gradientsOf(t, m, Sample{X: make([]float32, 12), Y: make([]float32, 12)})
	require.Greater(t, all[0].runs, 1)
	for i, w := range all {
		require.Equal(t, 1, w.first, i)
	}
}

// TestModelAllocatesLittle: after a step, none allocates tensors.
func TestModelAllocatesLittle(t *testing.T) {
	m, s := everything(t, Options{})
	gradientsOf(t, m, s)
	held := m.pass.Held()
	gradientsOf(t, m, s)
	require.Equal(t, held, m.pass.Held())
}

// TestFrozenInFourBits: a model whose matrices are in 4 bits and have adapters trains the adapters alone, and its output is that of
// the decoded matrices.
func TestFrozenInFourBits(t *testing.T) {
	const width, rows = 64, 1
	outputs := map[bool][]float32{}
	for _, decoded := range []bool{false, true} {
		l := NewLinear("linear", width, width, false)
		x := make([]float32, width*width)
		rng := rand.New(rand.NewPCG(1, 2))
		for i := range x {
			x[i] = float32(rng.NormFloat64())
		}
		w, err := qlora.NewWeight(x, []int{width, width}, qlora.Options{Type: qlora.NF4})
		require.NoError(t, err)
		l.Weight.Trains = false
		if decoded {
			require.NoError(t, w.Dequantize(snug.ViewOf(x)))
			l.Weight.Value = snug.ViewOf(x)
		} else {
			l.Weight.Quantized = w
			l.Frozen, err = qlora.NewLinear(w, snug.F32, 0)
			require.NoError(t, err)
		}
		a, b := slices.Repeat([]float32{0.1}, 2*width), slices.Repeat([]float32{0.2}, 2*width)
		l.Adapter = &Adapter{LoRA: &qlora.LoRA{In: width, Out: width, Rank: 2, Scale: 1, A: snug.ViewOf(a), B: snug.ViewOf(b)}, ParamA: newParam("A", 0, 2, width), ParamB: newParam("B", 0, width, 2)}
		l.Adapter.ParamA.Value, l.Adapter.ParamB.Value = l.Adapter.A, l.Adapter.B
		m, err := NewModel(width, MSE{}, Options{}, Residual{l})
		require.NoError(t, err)
		s := Sample{X: slices.Clone(a[:width]), Y: slices.Clone(b[:width])}
		g := gradientsOf(t, m, s)
		require.Len(t, g, 2)
		require.NotZero(t, slices.Max(g["A"]))
		outputs[decoded] = make([]float32, rows*width)
		require.NoError(t, m.Predict(context.Background(), outputs[decoded], s))
		require.NoError(t, m.Close())
	}
	for i, v := range outputs[true] {
		require.InDelta(t, v, outputs[false][i], 1e-3)
	}
}

func TestModelErrors(t *testing.T) {
	linear := func(in, out int) *Linear { return NewLinear(fmt.Sprint(in, out), in, out, false) }
	for name, c := range map[string]struct {
		width int
		loss  Loss
		o     Options
		list  []Layer
		want  error
	}{
		"no loss":       {2, nil, Options{}, []Layer{linear(2, 2)}, snug.ErrConfig},
		"no layers":     {2, MSE{}, Options{}, nil, snug.ErrConfig},
		"a nil layer":   {2, MSE{}, Options{}, []Layer{nil}, snug.ErrConfig},
		"widths":        {2, MSE{}, Options{}, []Layer{linear(2, 3), linear(4, 2)}, snug.ErrShape},
		"a residual":    {2, MSE{}, Options{}, []Layer{Residual{linear(2, 3)}}, snug.ErrShape},
		"the same name": {2, MSE{}, Options{}, []Layer{linear(2, 2), linear(2, 2)}, snug.ErrConfig},
		"a type":        {2, MSE{}, Options{DType: 99}, []Layer{linear(2, 2)}, snug.ErrDType},
		"tiles":         {2, MSE{}, Options{Tiles: -1}, []Layer{linear(2, 2)}, snug.ErrConfig},
		"a head":        {2, NewCrossEntropy("head", 5, 3), Options{}, []Layer{linear(2, 2)}, snug.ErrShape},
		"a gate alone":  {2, MSE{}, Options{}, []Layer{NewMLP("mlp", 2, 3, ClampedSwiGLU(1, 7), false)}, snug.ErrConfig},
		"no gate":       {2, MSE{}, Options{}, []Layer{NewMLP("mlp", 2, 3, GELU, true)}, snug.ErrConfig},
		"heads":         {6, MSE{}, Options{}, []Layer{NewAttention("attention", 6, 3, 2)}, snug.ErrConfig},
		"a source": {6, MSE{}, Options{}, []Layer{func() Layer {
			a := NewAttention("attention", 6, 3, 3)
			a.Source = &Source{Rows: 2, X: &Tensor{View: snug.ViewOf(make([]float32, 11))}}
			return a
		}()}, snug.ErrShape},
		"experts":            {2, MSE{}, Options{}, []Layer{NewExperts("experts", 2, 2, 2, 3)}, snug.ErrConfig},
		"a rate of dropout":  {2, MSE{}, Options{}, []Layer{Dropout{P: 1}}, snug.ErrConfig},
		"a negative width":   {-1, MSE{}, Options{}, []Layer{linear(2, 2)}, snug.ErrConfig},
		"a value's length":   {2, MSE{}, Options{}, []Layer{&Linear{Weight: &Param{Name: "w", Shape: []int{2, 2}, Value: snug.ViewOf(make([]float32, 3))}, In: 2, Out: 2}}, snug.ErrShape},
		"Elementwise of nil": {2, MSE{}, Options{}, []Layer{Elementwise(nil, nil)}, snug.ErrConfig},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := NewModel(c.width, c.loss, c.o, c.list...)
			require.ErrorIs(t, err, c.want)
			kerneltest.Prefixed(t, "layers.NewModel", err)
		})
	}
	m, err := NewModel(2, MSE{}, Options{}, linear(2, 2))
	require.NoError(t, err)
	g := gradients{"22.weight": make([]float32, 4)}
	ctx := context.Background()
	for name, c := range map[string]struct {
		s     Sample
		scale float32
		w     Window
		want  error
	}{
		"no rows":      {Sample{}, 1, g, snug.ErrShape},
		"half a row":   {Sample{X: make([]float32, 3), Y: make([]float32, 3)}, 1, g, snug.ErrShape},
		"targets":      {Sample{X: make([]float32, 4), Y: make([]float32, 3)}, 1, g, snug.ErrShape},
		"sequences":    {Sample{X: make([]float32, 4), Y: make([]float32, 4), Sequences: 3}, 1, g, snug.ErrShape},
		"starts":       {Sample{X: make([]float32, 4), Y: make([]float32, 4), Starts: []int{0, 3}}, 1, g, snug.ErrShape},
		"no window":    {Sample{X: make([]float32, 4), Y: make([]float32, 4)}, 1, nil, snug.ErrConfig},
		"accumulators": {Sample{X: make([]float32, 4), Y: make([]float32, 4)}, 1, gradients{}, snug.ErrShape},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := m.Backprop(ctx, c.s, c.scale, c.w)
			require.ErrorIs(t, err, c.want)
			require.Zero(t, slices.Max(g["22.weight"]))
			require.Zero(t, m.pass.Used())
		})
	}
	require.ErrorIs(t, m.Predict(ctx, make([]float32, 3), Sample{X: make([]float32, 4)}), snug.ErrShape)
	require.NoError(t, m.Close())
	_, err = m.Evaluate(ctx, Sample{X: make([]float32, 4), Y: make([]float32, 4)})
	require.ErrorIs(t, err, snug.ErrConfig)

	m, err = NewModel(2, NewCrossEntropy("head", 3, 2), Options{}, linear(2, 2)) // whose Weight counts labels alone
	require.NoError(t, err)
	require.NoError(t, m.Close())
	_, err = m.Backprop(ctx, Sample{X: make([]float32, 2), Labels: []int32{1}}, 1, g)
	require.ErrorIs(t, err, snug.ErrConfig)
}

// TestModelOnDevices: a device computes what the CPU does, up to rounding, and gives its memory back.
//
//check:in emulated
func TestModelOnDevices(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
		m, s := everything(t, Options{Seed: 3, Device: p.Dev})
		host, _ := everything(t, Options{Seed: 3})
		want := gradientsOf(t, host, s)
		g := onDevice(t, m)
		_, err := m.Backprop(context.Background(), s, 1, g)
		require.NoError(t, err)
		g.requireNear(t, want)
		out, on := make([]float32, len(s.Tokens)*modelWidth), make([]float32, len(s.Tokens)*modelWidth)
		require.NoError(t, host.Predict(context.Background(), out, s))
		require.NoError(t, m.Predict(context.Background(), on, s))
		for i := range out {
			require.InDelta(t, out[i], on[i], 1e-4)
		}
		require.NoError(t, m.Close())
	})
}

// TestImagesOnDevices: so do layers for images.
//
//check:in emulated
func TestImagesOnDevices(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
		layer := func(name string, s conv.Shape) Layer {
			s.Dims, s.Kernel = 2, [3]int{3, 3}
			return NewConv(name, s.Same(), true)
		}
		window := conv.PoolShape{Channels: 4, Dims: 2, Size: [3]int{6, 6}, Kernel: [3]int{2, 2}}
		model := func(dev *snug.Device) *Model {
			m, err := NewModel(2*36, MSE{}, Options{Seed: 5, Device: dev},
				layer("a", conv.Shape{In: 2, Out: 4, Size: [3]int{6, 6}}), ReLU, MaxPool{window}, NewGroupNorm("norm", 2, 4, 9), NewBatchNorm("batch", 4, 9),
				layer("up", conv.Shape{In: 4, Out: 3, Size: [3]int{3, 3}, Stride: [3]int{2, 2}, Transposed: true}), SiLU,
				Resize{conv.ResizeShape{Channels: 3, Dims: 2, Size: [3]int{6, 6}, Out: [3]int{4, 5}, Interpolation: conv.Linear}},
				AvgPool{conv.PoolShape{Channels: 3, Dims: 2, Size: [3]int{4, 5}, Adaptive: [3]int{2, 2}}})
			require.NoError(t, err)
			return m
		}
		m, host := model(p.Dev), model(nil)
		s := Sample{X: kerneltest.Normal(1, 3*72), Y: kerneltest.Normal(2, 3*12)}
		want, g := gradientsOf(t, host, s), onDevice(t, m)
		_, err := m.Backprop(context.Background(), s, 1, g)
		require.NoError(t, err)
		g.requireNear(t, want)
		for name, v := range m.Buffers() {
			got := make([]float32, v.Len())
			require.NoError(t, snug.Copy(got, v))
			for other, want := range host.Buffers() {
				if other == name {
					require.InDeltaSlice(t, want.Float32s(), got, 1e-5, name)
				}
			}
		}
		require.NoError(t, m.Close())
	})
}

// gradientsOn is a window on a device.
type gradientsOn map[string]snug.View

// onDevice makes one of zeros for a model, which the end of the test frees.
func onDevice(t *testing.T, m *Model) gradientsOn {
	g := gradientsOn{}
	for name, v := range m.Trainable() {
		dev, free, err := snug.MakeView(v.Device(), snug.F32, v.Len())
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, free()) })
		require.NoError(t, snug.Copy(dev, make([]float32, v.Len())))
		g[name] = dev
	}
	return g
}

func (g gradientsOn) requireNear(t *testing.T, want gradients) {
	for name, v := range g {
		got := make([]float32, v.Len())
		require.NoError(t, snug.Copy(got, v))
		for i := range got {
			require.InDelta(t, want[name][i], got[i], 1e-4, "%s %d", name, i)
		}
	}
}

func (g gradientsOn) Into(name string) (snug.View, snug.Into, error) {
	return g[name], snug.Into{Beta: 1}, nil
}
