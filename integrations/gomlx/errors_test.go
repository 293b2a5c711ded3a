package gomlx_test

import (
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/gomlx/gomlx/pkg/core/dtypes"
	"github.com/gomlx/gomlx/pkg/core/dtypes/bfloat16"
	"github.com/gomlx/gomlx/pkg/core/graph"
	"github.com/gomlx/gomlx/pkg/core/shapes"
	"github.com/gomlx/gomlx/pkg/core/tensors"
	"github.com/gomlx/gomlx/pkg/ml/context"
	gotrain "github.com/gomlx/gomlx/pkg/ml/train"
	"github.com/gomlx/gomlx/pkg/ml/train/losses"
	"github.com/gomlx/gomlx/pkg/ml/train/optimizers"
	"github.com/gomlx/gomlx/pkg/ml/train/optimizers/cosineschedule"
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/integrations/gomlx"
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/quant8"
	"github.com/snug-ml/snug/train"
	"github.com/stretchr/testify/require"
	"github.com/x448/float16"
)

// TestView: tensors and views have the same memory, and the same numbers.
func TestView(t *testing.T) {
	sums := []float64{}
	for _, tensor := range []*tensors.Tensor{
		tensors.FromFlatDataAndDimensions([]float32{1, -2.5, 65280}, 3),
		tensors.FromFlatDataAndDimensions([]float16.Float16{float16.Fromfloat32(1), float16.Fromfloat32(-2.5), float16.Fromfloat32(65280)}, 3),
		tensors.FromFlatDataAndDimensions([]bfloat16.BFloat16{bfloat16.FromFloat32(1), bfloat16.FromFloat32(-2.5), bfloat16.FromFloat32(65280)}, 3),
	} {
		require.NoError(t, gomlx.View(tensor, func(v snug.View) error {
			require.Equal(t, 3, v.Len())
			require.Equal(t, int(tensor.Shape().Memory()), v.Bytes())
			got := make([]float64, 3)
			var err error
			switch v.DType() {
			case snug.F32:
				err = snug.ToFloat64(got, v.Float32s())
				v.Float32s()[2] = 2
			case snug.F16:
				err = snug.ToFloat64(got, v.Float16s())
				v.Float16s()[2] = float16.Fromfloat32(2)
			case snug.BF16:
				err = snug.ToFloat64(got, v.BFloat16s())
				v.BFloat16s()[2] = snug.ToBFloat16(2)
			}
			require.Equal(t, []float64{1, -2.5, 65280}, got)
			return err
		}))
		sum := 0.0
		tensor.MustConstFlatData(func(flat any) {
			switch flat := flat.(type) {
			case []float32:
				sum = float64(flat[0] + flat[1] + flat[2])
			case []float16.Float16:
				sum = float64(flat[0].Float32() + flat[1].Float32() + flat[2].Float32())
			case []bfloat16.BFloat16:
				sum = float64(flat[0].Float32() + flat[1].Float32() + flat[2].Float32())
			}
		})
		sums = append(sums, sum)
	}
	require.Equal(t, []float64{0.5, 0.5, 0.5}, sums)

	whole := tensors.FromFlatDataAndDimensions([]int32{1}, 1)
	require.ErrorIs(t, gomlx.View(whole, func(snug.View) error { return nil }), snug.ErrDType)
	require.ErrorIs(t, gomlx.View(nil, func(snug.View) error { return nil }), snug.ErrConfig)
	require.ErrorIs(t, gomlx.View(whole, nil), snug.ErrConfig)
	require.NoError(t, whole.FinalizeAll())
	require.ErrorIs(t, gomlx.View(whole, func(snug.View) error { return nil }), snug.ErrConfig)
}

// TestNewErrors: what a model throws, and what the package does not support, are errors.
func TestNewErrors(t *testing.T) {
	type model = gotrain.ModelFn
	plain := gomlx.Options{}
	for name, c := range map[string]struct {
		model model
		o     gomlx.Options
		want  error
		says  string
	}{
		"nil model": {nil, plain, snug.ErrConfig, "nil"},
		"a text":    {func(*context.Context, any, []*graph.Node) []*graph.Node { panic("a text") }, plain, snug.ErrConfig, "a text"},
		"an error":  {func(*context.Context, any, []*graph.Node) []*graph.Node { panic(io.ErrNoProgress) }, plain, snug.ErrConfig, "multiple Read"},
		"nil pointer": {func(*context.Context, any, []*graph.Node) []*graph.Node {
			var n *graph.Node
			return []*graph.Node{graph.Add(n, n)}
		}, plain, snug.ErrConfig, ""},
		"other shapes": {func(_ *context.Context, _ any, x []*graph.Node) []*graph.Node {
			return []*graph.Node{graph.Reshape(x[0], 7)}
		}, plain, snug.ErrConfig, ""},
		"no variables": {func(_ *context.Context, _ any, x []*graph.Node) []*graph.Node {
			return []*graph.Node{graph.ReduceAndKeep(x[0], graph.ReduceSum, 1)}
		}, plain, snug.ErrConfig, "no variable"},
		"two of a name": {func(ctx *context.Context, s any, x []*graph.Node) []*graph.Node {
			perceptron(ctx, s, x)
			return perceptron(ctx, s, x)
		}, plain, snug.ErrConfig, "already exists"},
		"wide variables": {wide, plain, snug.ErrDType, "float64"},
		"changes its own": {func(ctx *context.Context, s any, x []*graph.Node) []*graph.Node {
			y := perceptron(ctx, s, x)
			v := ctx.GetVariableByScopeAndName("/out/dense", "biases")
			v.SetValueGraph(graph.MulScalar(v.ValueGraph(x[0].Graph()), 2))
			return y
		}, plain, snug.ErrConfig, `changes the variable "/out/dense/biases"`},
		"update after each step": {func(ctx *context.Context, s any, x []*graph.Node) []*graph.Node {
			gotrain.AddPerStepUpdateGraphFn(ctx.In("out"), x[0].Graph(), func(*context.Context, *graph.Graph) {})
			return perceptron(ctx, s, x)
		}, plain, snug.ErrConfig, "after each step"},
		"rate in the graph": {func(ctx *context.Context, s any, x []*graph.Node) []*graph.Node {
			cosineschedule.New(ctx, x[0].Graph(), dtypes.Float32).PeriodSteps(10).Done()
			return perceptron(ctx, s, x)
		}, plain, snug.ErrConfig, "set Schedule"},
		"MeZO":            {perceptron, gomlx.Options{Optimizer: quant8.MeZO{}}, snug.ErrConfig, "MeZO"},
		"two passes":      {noisy, gomlx.Options{Gradients: plan.InBackward, Clip: 1}, snug.ErrConfig, "twice"},
		"negative Clip":   {perceptron, gomlx.Options{Clip: -1}, snug.ErrConfig, "Clip"},
		"no matrix rules": {steady, gomlx.Options{Optimizer: quant8.GaLore{Rank: -1}}, snug.ErrConfig, ""},
	} {
		t.Run(name, func(t *testing.T) {
			tr, err := gomlx.New(backend(t), seeded(t), c.model, losses.MeanSquaredError, batch(0, 0, rows), c.o)
			require.ErrorIs(t, err, c.want)
			require.ErrorContains(t, err, "gomlx: New: ")
			require.ErrorContains(t, err, c.says)
			require.Nil(t, tr)
		})
	}
	_, err := gomlx.New(backend(t), seeded(t), perceptron, nil, batch(0, 0, rows), plain)
	require.ErrorContains(t, err, "no loss")
	for _, b := range []gomlx.Batch{{}, {Inputs: []*tensors.Tensor{nil}}} {
		_, err = gomlx.New(backend(t), seeded(t), perceptron, losses.MeanSquaredError, b, plain)
		require.ErrorIs(t, err, snug.ErrConfig)
	}
	_, err = gomlx.New(nil, nil, perceptron, losses.MeanSquaredError, batch(0, 0, rows), plain)
	require.ErrorIs(t, err, snug.ErrConfig)
	wrong := seeded(t)
	wrong.SetParam("learning_rate", []string{"fast"})
	_, err = gomlx.New(backend(t), wrong, perceptron, losses.MeanSquaredError, batch(0, 0, rows), plain)
	require.ErrorIs(t, err, snug.ErrConfig)
}

// wide has a variable of float64.
func wide(ctx *context.Context, s any, x []*graph.Node) []*graph.Node {
	w := ctx.VariableWithShape("w", shapes.Make(dtypes.Float64, in, 1))
	return []*graph.Node{graph.ConvertDType(graph.Dot(graph.ConvertDType(x[0], dtypes.Float64), w.ValueGraph(x[0].Graph())), dtypes.Float32)}
}

// TestSchedule: a model with a rate in its graph trains at that of Schedule.
func TestSchedule(t *testing.T) {
	model := func(ctx *context.Context, s any, x []*graph.Node) []*graph.Node {
		cosineschedule.New(ctx, x[0].Graph(), dtypes.Float32).PeriodSteps(10).Done()
		return perceptron(ctx, s, x)
	}
	tr, _ := newTrainer(t, model, batch(0, 0, rows), gomlx.Options{Schedule: train.Cosine(0.5, 1, 10)})
	r, err := tr.Train(t.Context(), []gomlx.Batch{batch(0, 0, rows)})
	require.NoError(t, err)
	require.Equal(t, train.Cosine(0.5, 1, 10)(0), r.Rate)
	tr, _ = newTrainer(t, perceptron, batch(0, 0, rows), gomlx.Options{})
	r, err = tr.Train(t.Context(), []gomlx.Batch{batch(0, 0, rows)})
	require.NoError(t, err)
	require.Equal(t, float32(0.01), r.Rate)
}

// TestStepErrors: after an error in a step all variables are as before it, and training goes on with the same bits.
func TestStepErrors(t *testing.T) {
	model := func(ctx *context.Context, s any, x []*graph.Node) []*graph.Node {
		if x[0].Shape().Dimensions[0] == 3 {
			panic(io.ErrNoProgress)
		}
		if x[0].Shape().Dimensions[0] == 5 {
			ctx.In("more").VariableWithShape("w", shapes.Make(dtypes.Float32, 1)).ValueGraph(x[0].Graph())
		}
		return noisy(ctx, s, x)
	}
	clean, ctx := newTrainer(t, noisy, batch(0, 0, rows), gomlx.Options{Optimizer: adamW})
	trainTo(t, clean, 6)
	want := values(t, ctx)

	tr, ctx := newTrainer(t, model, batch(0, 0, rows), gomlx.Options{Optimizer: adamW})
	trainTo(t, tr, 3)
	before := values(t, ctx)
	poisoned := batch(3, 0, rows)
	poisoned.Labels[0].MustMutableFlatData(func(flat any) { flat.([]float32)[0] = float32(math.NaN()) })
	for name, bad := range map[string]struct {
		batches []gomlx.Batch
		want    error
	}{
		"panic":          {[]gomlx.Batch{batch(3, 0, rows), batch(3, 0, 3)}, snug.ErrConfig},
		"not finite":     {[]gomlx.Batch{poisoned}, snug.ErrNonFinite},
		"no batches":     {nil, snug.ErrConfig},
		"no inputs":      {[]gomlx.Batch{{}}, snug.ErrConfig},
		"negative":       {[]gomlx.Batch{{Inputs: batch(3, 0, rows).Inputs, Weight: -2}}, snug.ErrConfig},
		"no labels":      {[]gomlx.Batch{{Inputs: batch(3, 0, rows).Inputs}}, snug.ErrConfig},
		"unhashable":     {[]gomlx.Batch{{Spec: []int{1}, Inputs: batch(3, 0, rows).Inputs}}, snug.ErrConfig},
		"new parameters": {[]gomlx.Batch{batch(3, 0, 5)}, snug.ErrConfig},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := tr.Train(t.Context(), bad.batches)
			require.ErrorIs(t, err, bad.want)
			require.Equal(t, before, values(t, ctx))
		})
	}
	require.Equal(t, 3, tr.Step())
	_, err := tr.Train(nil, []gomlx.Batch{batch(3, 0, rows)}) //lint:ignore SA1012 it must be an error
	require.ErrorIs(t, err, snug.ErrConfig)
	_, err = tr.Evaluate(nil, each(batch(3, 0, rows))) //lint:ignore SA1012 it must be an error
	require.ErrorIs(t, err, snug.ErrConfig)
	trainTo(t, tr, 6)
	require.Equal(t, want, values(t, ctx))

	v := ctx.GetVariableByScopeAndName("/out/dense", "biases")
	require.NoError(t, v.SetValue(tensors.FromFlatDataAndDimensions([]float32{1}, 1)))
	_, err = tr.Train(t.Context(), []gomlx.Batch{batch(6, 0, rows)})
	require.ErrorContains(t, err, `variable "/out/dense/biases" has got another tensor`)

	_, err = gomlx.Next(nil)
	require.ErrorIs(t, err, snug.ErrConfig)
	_, err = gomlx.Next(failing{})
	require.ErrorIs(t, err, errFailing)
}

var errFailing = errors.New("no data")

type failing struct{ *stream }

func (failing) Yield() (any, []*tensors.Tensor, []*tensors.Tensor, error) { panic(errFailing) }

// TestCheckpointErrors: a checkpoint of another model, with other frozen variables or with damage is refused.
func TestCheckpointErrors(t *testing.T) {
	frozen := func(value float32) gotrain.ModelFn {
		return func(ctx *context.Context, s any, x []*graph.Node) []*graph.Node {
			v := ctx.In("scale").VariableWithValue("value", value).SetTrainable(false)
			return noisy(ctx, s, []*graph.Node{graph.Mul(x[0], v.ValueGraph(x[0].Graph()))})
		}
	}
	o := gomlx.Options{Checkpoints: gomlx.Checkpoints{Dir: t.TempDir()}}
	open := func(model gotrain.ModelFn) error {
		tr, err := gomlx.New(backend(t), seeded(t), model, losses.MeanSquaredError, batch(0, 0, rows), o)
		if err != nil {
			return err
		}
		return tr.Close()
	}
	tr, _ := newTrainer(t, frozen(2), batch(0, 0, rows), o)
	trainTo(t, tr, 1)
	require.NoError(t, tr.Save(t.Context()))
	require.NoError(t, tr.Close())
	require.NoError(t, open(frozen(2)))
	err := open(frozen(3))
	require.ErrorIs(t, err, snug.ErrConfig)
	require.ErrorContains(t, err, "/scale/value")
	err = open(func(ctx *context.Context, s any, x []*graph.Node) []*graph.Node {
		optimizers.IncrementGlobalStepGraph(ctx.In("count"), x[0].Graph(), dtypes.Float32)
		return frozen(2)(ctx, s, x)
	})
	require.ErrorIs(t, err, snug.ErrConfig)
	require.ErrorContains(t, err, "/count/global_step")
	err = open(noisy)
	require.ErrorIs(t, err, snug.ErrConfig)
	require.ErrorContains(t, err, `used variable "/scale/value"`)
	err = open(func(ctx *context.Context, s any, x []*graph.Node) []*graph.Node {
		return frozen(2)(ctx, s, []*graph.Node{graph.Add(x[0], counter(ctx, "more").ValueGraph(x[0].Graph()))})
	})
	require.ErrorIs(t, err, snug.ErrConfig)
	require.ErrorContains(t, err, `uses variable "/more/n"`)
	require.ErrorIs(t, open(perceptron), snug.ErrConfig)

	files, err := filepath.Glob(filepath.Join(o.Dir, "*", "model"))
	require.NoError(t, err)
	require.Len(t, files, 1)
	text, err := os.ReadFile(files[0])
	require.NoError(t, err)
	text[len(text)-40] ^= 1
	require.NoError(t, os.WriteFile(files[0], text, 0o666))
	require.ErrorIs(t, open(frozen(2)), snug.ErrCorrupt)
}

// TestFrozenAfterNew: a variable that does not train is compared as it is when the checkpoint is written.
func TestFrozenAfterNew(t *testing.T) {
	model := func(ctx *context.Context, s any, x []*graph.Node) []*graph.Node {
		v := ctx.In("scale").Checked(false).VariableWithValue("value", float32(2)).SetTrainable(false)
		return perceptron(ctx, s, []*graph.Node{graph.Mul(x[0], v.ValueGraph(x[0].Graph()))})
	}
	o := gomlx.Options{Checkpoints: gomlx.Checkpoints{Dir: t.TempDir()}}
	tr, ctx := newTrainer(t, model, batch(0, 0, rows), o)
	require.NoError(t, ctx.GetVariableByScopeAndName("/scale", "value").SetValue(tensors.FromScalar(float32(3))))
	trainTo(t, tr, 1)
	require.NoError(t, tr.Save(t.Context()))
	require.NoError(t, tr.Close())
	_, err := gomlx.New(backend(t), seeded(t), model, losses.MeanSquaredError, batch(0, 0, rows), o) // the value is 2
	require.ErrorIs(t, err, snug.ErrConfig)
	require.ErrorContains(t, err, "other values")
	ctx = seeded(t)
	ctx.In("scale").VariableWithValue("value", float32(3)).SetTrainable(false)
	tr, err = gomlx.New(backend(t), ctx, model, losses.MeanSquaredError, batch(0, 0, rows), o)
	require.NoError(t, err)
	require.Equal(t, 1, tr.Step())
	require.NoError(t, tr.Close())
}

// TestBadBatches: a micro-batch that no graph takes is an error beside good ones, too, and changes nothing.
func TestBadBatches(t *testing.T) {
	tr, ctx := newTrainer(t, noisy, batch(0, 0, rows), gomlx.Options{})
	trainTo(t, tr, 1)
	before := values(t, ctx)
	gone, lost, heavy := batch(1, 0, rows), batch(1, 0, rows), batch(1, 0, rows)
	gone.Inputs[0].MustFinalizeAll()
	lost.Labels[0].MustFinalizeAll()
	heavy.Weight = math.Inf(1)
	for name, b := range map[string]gomlx.Batch{"empty": {}, "finalized": gone, "nil tensor": {Inputs: []*tensors.Tensor{nil}},
		"finalized labels": lost, "infinite weight": heavy} {
		_, err := tr.Train(t.Context(), []gomlx.Batch{batch(0, 0, rows), b})
		require.ErrorIs(t, err, snug.ErrConfig, name)
		require.ErrorContains(t, err, "micro-batch 1", name)
		_, err = tr.Evaluate(t.Context(), each(batch(0, 0, rows), b))
		require.ErrorIs(t, err, snug.ErrConfig, name)
	}
	require.Equal(t, before, values(t, ctx))
}

// TestNoWeight: a micro-batch whose labels do not count is left out.
func TestNoWeight(t *testing.T) {
	one, ctx := newTrainer(t, noisy, batch(0, 0, rows), gomlx.Options{})
	trainTo(t, one, 2)
	two, other := newTrainer(t, noisy, batch(0, 0, rows), gomlx.Options{})
	masked := batch(1, 0, rows)
	masked.Weight = gomlx.NoWeight
	for step := range 2 {
		r, err := two.Train(t.Context(), []gomlx.Batch{masked, batch(step, 0, rows)})
		require.NoError(t, err)
		require.Equal(t, rows, r.Targets)
	}
	require.Equal(t, values(t, ctx), values(t, other))
	want, err := one.Evaluate(t.Context(), each(batch(9, 0, rows)))
	require.NoError(t, err)
	got, err := two.Evaluate(t.Context(), each(masked, batch(9, 0, rows)))
	require.NoError(t, err)
	require.Equal(t, want, got)
	_, err = two.Train(t.Context(), []gomlx.Batch{masked})
	require.ErrorIs(t, err, snug.ErrConfig)
}

// TestEvaluate: an evaluation leaves the random numbers as they are.
func TestEvaluate(t *testing.T) {
	tr, ctx := newTrainer(t, func(ctx *context.Context, _ any, x []*graph.Node) []*graph.Node {
		noise := ctx.RandomNormal(x[0].Graph(), x[0].Shape())
		return perceptron(ctx, nil, []*graph.Node{graph.Add(x[0], noise)})
	}, batch(0, 0, rows), gomlx.Options{})
	before := values(t, ctx)
	first, err := tr.Evaluate(t.Context(), each(batch(0, 0, rows)))
	require.NoError(t, err)
	second, err := tr.Evaluate(t.Context(), each(batch(0, 0, rows)))
	require.NoError(t, err)
	require.Equal(t, first, second)
	require.Equal(t, before, values(t, ctx))
	trainTo(t, tr, 1)
	third, err := tr.Evaluate(t.Context(), each(batch(0, 0, rows)))
	require.NoError(t, err)
	require.NotEqual(t, first, third)
}

// TestGoMLXEvaluates: GoMLX's own Trainer evaluates the variables, and batches may have other shapes.
func TestGoMLXEvaluates(t *testing.T) {
	b, ctx := backend(t), seeded(t)
	tr, err := gomlx.New(b, ctx, noisy, losses.MeanSquaredError, batch(0, 0, rows), gomlx.Options{Optimizer: adamW})
	require.NoError(t, err)
	defer tr.Close()
	for _, n := range []int{rows, 8, 17, rows} {
		_, err := tr.Train(t.Context(), []gomlx.Batch{batch(0, 0, n)})
		require.NoError(t, err)
	}
	held := batch(3, 0, rows)
	got, err := tr.Evaluate(t.Context(), each(held))
	require.NoError(t, err)
	theirs := gotrain.NewTrainer(b, ctx.Checked(false), noisy, losses.MeanSquaredError, optimizers.Adam().Done(), nil, nil)
	metrics, err := theirs.EvalStep(nil, held.Inputs, held.Labels)
	require.NoError(t, err)
	require.InDelta(t, float64(metrics[0].Value().(float32)), got.Mean(), 1e-6)
	_, err = tr.Train(t.Context(), []gomlx.Batch{held})
	require.NoError(t, err)
}
