package gomlx_test

import (
	"errors"
	"testing"

	"github.com/gomlx/gomlx/pkg/core/dtypes"
	"github.com/gomlx/gomlx/pkg/core/graph"
	"github.com/gomlx/gomlx/pkg/core/shapes"
	"github.com/gomlx/gomlx/pkg/core/tensors"
	"github.com/gomlx/gomlx/pkg/ml/context"
	"github.com/gomlx/gomlx/pkg/ml/context/checkpoints"
	"github.com/gomlx/gomlx/pkg/ml/context/initializers"
	"github.com/gomlx/gomlx/pkg/ml/train/optimizers"
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/integrations/gomlx"
	"github.com/snug-ml/snug/plan"
	"github.com/stretchr/testify/require"
)

// counter returns a number that does not train.
func counter(ctx *context.Context, name string) *context.Variable {
	return ctx.In(name).Checked(false).WithInitializer(initializers.Zero).VariableWithShape("n", shapes.Make(dtypes.Float32)).SetTrainable(false)
}

// bump adds 1 to a number.
func bump(v *context.Variable, x []*graph.Node) {
	v.SetValueGraph(graph.AddScalar(v.ValueGraph(x[0].Graph()), 1))
}

// withSpec is a batch with another Spec.
func withSpec(b gomlx.Batch, spec any) gomlx.Batch {
	b.Spec = spec
	return b
}

// TestLaterGraphs: a graph with other variables than that of New is refused and leaves nothing, and training goes on.
func TestLaterGraphs(t *testing.T) {
	model := func(ctx *context.Context, s any, x []*graph.Node) []*graph.Node {
		used := counter(ctx, "used").ValueGraph(x[0].Graph())
		switch s {
		case "changes":
			bump(counter(ctx, "used"), x)
		case "makes":
			bump(counter(ctx, "later"), x)
		case "makes frozen":
			x = []*graph.Node{graph.Add(x[0], counter(ctx, "later").ValueGraph(x[0].Graph()))}
		case "uses":
			x = []*graph.Node{graph.Add(x[0], counter(ctx, "there").ValueGraph(x[0].Graph()))}
		case "fails":
			counter(ctx, "later")
			panic("half a graph")
		case "nil":
			return nil
		case "other graph":
			return []*graph.Node{graph.Const(graph.NewGraph(backend(t), "other"), float32(1))}
		case "trains":
			w := ctx.In("later").Checked(false).WithInitializer(initializers.One).VariableWithShape("w", shapes.Make(dtypes.Float32))
			x = []*graph.Node{graph.Mul(x[0], w.ValueGraph(x[0].Graph()))}
		}
		return noisy(ctx, s, []*graph.Node{graph.Add(x[0], used)})
	}
	clean, ctx := newTrainer(t, model, batch(0, 0, rows), gomlx.Options{})
	trainTo(t, clean, 6)
	want := values(t, ctx)

	o := gomlx.Options{Checkpoints: gomlx.Checkpoints{Dir: t.TempDir()}}
	tr, ctx := newTrainer(t, model, batch(0, 0, rows), o)
	trainTo(t, tr, 3)
	there, err := ctx.In("there").VariableWithValue("n", float32(0)).SetTrainable(false).Value()
	require.NoError(t, err)
	require.True(t, there.Ok())
	before := values(t, ctx)
	for spec, says := range map[string]string{"changes": `changes variable "/used/n"`, "makes": `makes variable "/later/n"`, "makes frozen": `makes variable "/later/n"`,
		"uses": `uses variable "/there/n"`, "fails": "half a graph", "nil": "", "other graph": "", "trains": `makes variable "/later/w"`} {
		for range 2 {
			_, err := tr.Train(t.Context(), []gomlx.Batch{batch(3, 0, rows), withSpec(batch(3, 0, rows), spec)})
			require.ErrorIs(t, err, snug.ErrConfig, spec)
			require.ErrorContains(t, err, says, spec)
			require.Equal(t, before, values(t, ctx), spec)
		}
	}
	// GoMLX's checkpoints, for which every variable needs a value, work, too.
	theirs, err := checkpoints.Build(ctx).Dir(t.TempDir()).Done()
	require.NoError(t, err)
	require.NoError(t, theirs.Save())
	// A Spec and shapes for which the model uses the same variables or fewer are legal.
	for tr.Step() < 6 {
		_, err := tr.Train(t.Context(), []gomlx.Batch{withSpec(batch(tr.Step(), 0, rows), tr.Step())})
		require.NoError(t, err)
	}
	after := values(t, ctx)
	delete(after, "/there/n")
	require.Equal(t, want, after)
	require.NoError(t, tr.Save(t.Context()))
	require.NoError(t, tr.Close())
	tr, _ = newTrainer(t, model, batch(0, 0, rows), o)
	require.Equal(t, 6, tr.Step())
}

// TestManyShapes: GoMLX's limit of graphs does not end training.
func TestManyShapes(t *testing.T) {
	tr, _ := newTrainer(t, perceptron, batch(0, 0, rows), gomlx.Options{})
	for n := 1; n <= 40; n++ {
		x, y := numbers(0, n)
		_, err := tr.Train(t.Context(), []gomlx.Batch{{Inputs: []*tensors.Tensor{tensors.FromFlatDataAndDimensions(x, n, in)},
			Labels: []*tensors.Tensor{tensors.FromFlatDataAndDimensions(y, n, 1)}}})
		require.NoError(t, err, "shape %d", n)
	}
}

// TestEvaluateChanges: what a graph of evaluation changes is as before afterwards, and it changes nothing that trains.
func TestEvaluateChanges(t *testing.T) {
	model := func(ctx *context.Context, s any, x []*graph.Node) []*graph.Node {
		evals := counter(ctx, "evals")
		_ = evals.ValueGraph(x[0].Graph())
		y := perceptron(ctx, s, x)
		if !ctx.IsTraining(x[0].Graph()) {
			bump(evals, x)
			optimizers.IncrementGlobalStepGraph(ctx, x[0].Graph(), dtypes.Float32)
			switch s {
			case "trains":
				v := ctx.GetVariableByScopeAndName("/out/dense", "biases")
				v.SetValueGraph(graph.AddScalar(v.ValueGraph(x[0].Graph()), 2))
			case "makes":
				bump(counter(ctx, "later"), x)
			}
		}
		return y
	}
	tr, ctx := newTrainer(t, model, batch(0, 0, rows), gomlx.Options{})
	trainTo(t, tr, 2)
	before := values(t, ctx)
	for range 3 {
		_, err := tr.Evaluate(t.Context(), each(batch(0, 0, rows), batch(0, 0, 5)))
		require.NoError(t, err)
		require.Equal(t, before, values(t, ctx))
		for spec, says := range map[string]string{"trains": `changes the variable "/out/dense/biases"`, "makes": `makes variable "/later/n"`} {
			_, err = tr.Evaluate(t.Context(), each(batch(0, 0, rows), withSpec(batch(0, 0, rows), spec)))
			require.ErrorIs(t, err, snug.ErrConfig)
			require.ErrorContains(t, err, says)
			require.Equal(t, before, values(t, ctx))
		}
		require.Panics(t, func() {
			_, _ = tr.Evaluate(t.Context(), func(yield func(gomlx.Batch) bool) {
				yield(batch(0, 0, rows))
				panic("the program's")
			})
		})
		require.Equal(t, before, values(t, ctx))
	}
	trainTo(t, tr, 3)
	require.EqualValues(t, 3, optimizers.GetGlobalStep(ctx))
}

// TestGlobalStep: a model that counts global_step itself leaves it as it was when a step fails.
func TestGlobalStep(t *testing.T) {
	model := func(ctx *context.Context, s any, x []*graph.Node) []*graph.Node {
		if s == "bad" {
			panic(errors.New("bad"))
		}
		optimizers.IncrementGlobalStepGraph(ctx, x[0].Graph(), dtypes.Float32)
		return perceptron(ctx, s, x)
	}
	tr, ctx := newTrainer(t, model, batch(0, 0, rows), gomlx.Options{})
	trainTo(t, tr, 2)
	_, err := tr.Train(t.Context(), []gomlx.Batch{batch(0, 0, rows), withSpec(batch(0, 0, rows), "bad")})
	require.ErrorContains(t, err, "bad")
	require.EqualValues(t, 2, optimizers.GetGlobalStep(ctx))
	trainTo(t, tr, 3)
	require.EqualValues(t, 3, optimizers.GetGlobalStep(ctx))
}

// TestKernelPanic: an operation that panics while it runs is an error, and leaves the variables that were lent to it.
func TestKernelPanic(t *testing.T) {
	model := func(ctx *context.Context, s any, x []*graph.Node) []*graph.Node {
		bump(counter(ctx, "count"), x)
		n := graph.ConvertDType(graph.ReduceAllMax(graph.StopGradient(x[0])), dtypes.Int32)
		one := graph.ConvertDType(graph.Div(graph.OnesLike(n), n), dtypes.Float32) // of whole numbers
		return perceptron(ctx, s, []*graph.Node{graph.Add(x[0], one)})
	}
	tr, ctx := newTrainer(t, model, batch(0, 0, rows), gomlx.Options{})
	trainTo(t, tr, 2)
	before := values(t, ctx)
	zero := batch(0, 0, rows)
	zero.Inputs[0] = tensors.FromShape(zero.Inputs[0].Shape())
	for range 2 {
		_, err := tr.Train(t.Context(), []gomlx.Batch{batch(2, 0, rows), zero})
		require.ErrorIs(t, err, snug.ErrConfig)
		require.Equal(t, before, values(t, ctx))
	}
	trainTo(t, tr, 4)
}

// TestFold: with Fold a step has one pass, so that Clip goes with random numbers; an error in it brings these back.
func TestFold(t *testing.T) {
	tr, ctx := newTrainer(t, noisy, batch(0, 0, rows), gomlx.Options{Gradients: plan.Folded, Clip: 1})
	trainTo(t, tr, 2)
	before := values(t, ctx)
	bad := batch(3, 0, rows)
	bad.Labels = nil
	_, err := tr.Train(t.Context(), []gomlx.Batch{batch(2, 0, rows), bad})
	require.ErrorIs(t, err, snug.ErrConfig)
	require.Equal(t, before["/#rngState"], values(t, ctx)["/#rngState"])
	require.Equal(t, before["/norm/average"], values(t, ctx)["/norm/average"])
}
