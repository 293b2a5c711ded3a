package gomlx_test

import (
	"io"
	"math/rand/v2"
	"testing"

	"github.com/gomlx/gomlx/backends"
	"github.com/gomlx/gomlx/backends/simplego"
	"github.com/gomlx/gomlx/pkg/core/dtypes"
	"github.com/gomlx/gomlx/pkg/core/graph"
	"github.com/gomlx/gomlx/pkg/core/shapes"
	"github.com/gomlx/gomlx/pkg/core/tensors"
	"github.com/gomlx/gomlx/pkg/ml/context"
	"github.com/gomlx/gomlx/pkg/ml/context/initializers"
	"github.com/gomlx/gomlx/pkg/ml/layers"
	"github.com/gomlx/gomlx/pkg/ml/layers/activations"
	"github.com/gomlx/gomlx/pkg/ml/train/losses"
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/integrations/gomlx"
	"github.com/stretchr/testify/require"
)

const (
	rows, in, hidden = 32, 16, 64
)

func backend(t testing.TB) backends.Backend {
	t.Helper()
	b, err := simplego.New("ops_sequential") // its other way to run has data races
	require.NoError(t, err)
	return b
}

func seeded(t testing.TB) *context.Context {
	t.Helper()
	ctx := context.New()
	ctx.SetParam(context.ParamInitialSeed, int64(7))
	ctx.SetParam("learning_rate", 0.01)
	require.NoError(t, ctx.SetRNGStateFromSeed(7))
	return ctx
}

// perceptron has two hidden layers in the type of its inputs.
func perceptron(ctx *context.Context, _ any, inputs []*graph.Node) []*graph.Node {
	x := inputs[0]
	for i := range 2 {
		x = activations.Relu(layers.Dense(ctx.Inf("hidden%d", i), x, true, hidden))
	}
	return []*graph.Node{layers.Dense(ctx.In("out"), x, true, 1)}
}

// noisy is steady with dropout.
func noisy(ctx *context.Context, _ any, inputs []*graph.Node) []*graph.Node {
	return normalized(ctx, inputs[0], 0.2)
}

// steady changes a variable that does not train.
func steady(ctx *context.Context, _ any, inputs []*graph.Node) []*graph.Node {
	return normalized(ctx, inputs[0], 0)
}

// normalized subtracts means over batches, and running averages of them where it does not train, as batch normalization
// does, for which simplego has no kernel.
func normalized(ctx *context.Context, x *graph.Node, dropout float64) []*graph.Node {
	x = layers.Dense(ctx.In("in"), x, true, hidden)
	average := ctx.In("norm").WithInitializer(initializers.Zero).VariableWithShape("average", shapes.Make(x.DType(), 1, hidden)).SetTrainable(false)
	mean := average.ValueGraph(x.Graph())
	if ctx.IsTraining(x.Graph()) {
		now := graph.ReduceAndKeep(x, graph.ReduceMean, 0)
		average.SetValueGraph(graph.Add(graph.MulScalar(mean, 0.9), graph.MulScalar(graph.StopGradient(now), 0.1)))
		mean = now
	}
	x = graph.Sub(x, mean)
	x = layers.DropoutStatic(ctx.In("drop"), activations.Relu(x), dropout)
	return []*graph.Node{layers.Dense(ctx.In("out"), x, true, 1)}
}

// numbers are those of the batch of a step: points and the values of a function of them.
func numbers(step, n int) (x, y []float32) {
	r := rand.New(rand.NewPCG(uint64(step), 1))
	for range n {
		sum := float32(0)
		for i := range in {
			v := float32(r.NormFloat64())
			x = append(x, v)
			sum += v * float32(i%5-2) / 4
		}
		y = append(y, sum*sum/4+sum)
	}
	return x, y
}

// batch returns rows lo to hi of the batch of a step.
func batch(step, lo, hi int) gomlx.Batch {
	x, y := numbers(step, rows)
	return gomlx.Batch{
		Inputs: []*tensors.Tensor{tensors.FromFlatDataAndDimensions(x[lo*in:hi*in], hi-lo, in)},
		Labels: []*tensors.Tensor{tensors.FromFlatDataAndDimensions(y[lo:hi], hi-lo, 1)},
	}
}

// low is a batch of bfloat16.
func low(t testing.TB, step int) gomlx.Batch {
	t.Helper()
	b := batch(step, 0, rows)
	for _, list := range [][]*tensors.Tensor{b.Inputs, b.Labels} {
		t32 := list[0]
		shape := t32.Shape().Clone()
		shape.DType = dtypes.BFloat16
		list[0] = tensors.FromShape(shape)
		require.NoError(t, gomlx.View(t32, func(from snug.View) error {
			return gomlx.View(list[0], func(to snug.View) error { return amp.Cast(to, from) })
		}))
	}
	return b
}

func newTrainer(t testing.TB, model func(*context.Context, any, []*graph.Node) []*graph.Node, first gomlx.Batch, o gomlx.Options) (*gomlx.Trainer, *context.Context) {
	t.Helper()
	ctx := seeded(t)
	tr, err := gomlx.New(backend(t), ctx, model, losses.MeanSquaredError, first, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, tr.Close()) })
	return tr, ctx
}

// trainTo trains with one micro-batch in each step, and returns the losses.
func trainTo(t testing.TB, tr *gomlx.Trainer, end int) (list []float64) {
	t.Helper()
	for tr.Step() < end {
		r, err := tr.Train(t.Context(), []gomlx.Batch{batch(tr.Step(), 0, rows)})
		require.NoError(t, err)
		list = append(list, r.Loss)
	}
	return list
}

// values returns all variables of a context, by name.
func values(t testing.TB, ctx *context.Context) map[string][]byte {
	t.Helper()
	all := map[string][]byte{}
	for v := range ctx.IterVariables() {
		value, err := v.Value()
		require.NoError(t, err)
		require.NoError(t, value.ConstBytes(func(b []byte) { all[v.ScopeAndName()] = append([]byte{}, b...) }))
	}
	return all
}

// stream is a dataset of so many batches.
type stream struct{ at, end int }

func (s *stream) Name() string { return "stream" }
func (s *stream) Reset()       { s.at = 0 }
func (s *stream) Yield() (any, []*tensors.Tensor, []*tensors.Tensor, error) {
	if s.at == s.end {
		return nil, nil, nil, io.EOF
	}
	s.at++
	b := batch(s.at-1, 0, rows)
	return nil, b.Inputs, b.Labels, nil
}
