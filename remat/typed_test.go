package remat

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
)

// lookup turns a token into its row of a table.
type lookup struct {
	table [][]float64
	grads [][]float64
}

func (l *lookup) String() string { return "lookup" }

func (l *lookup) Forward(_ context.Context, token int) ([]float64, error) {
	return append([]float64(nil), l.table[token]...), nil
}

func (l *lookup) ForwardSave(ctx context.Context, token int) ([]float64, []float64, error) {
	y, err := l.Forward(ctx, token)
	return y, y, err
}

func (l *lookup) Backward(_ context.Context, token int, _ []float64, dy []float64) (int, error) {
	for i, d := range dy {
		l.grads[token][i] += d
	}
	return 0, nil
}

// norm2 is the sum of squares of a vector.
type norm2 struct{ fail error }

func (norm2) Forward(_ context.Context, x []float64) (float32, error) {
	sum := 0.0
	for _, v := range x {
		sum += v * v
	}
	return float32(sum), nil
}

func (n norm2) ForwardSave(ctx context.Context, x []float64) (float32, float32, error) {
	y, _ := n.Forward(ctx, x)
	return y, y, n.fail
}

func (norm2) Backward(_ context.Context, x []float64, _ float32, dy float32) ([]float64, error) {
	dx := make([]float64, len(x))
	for i, v := range x {
		dx[i] = 2 * v * float64(dy)
	}
	return dx, nil
}

func sizeOf(x any) int64 {
	switch x := x.(type) {
	case []float64:
		return 8 * int64(len(x))
	case float32:
		return 4
	}
	return 8
}

// TestTyped: a chain whose activations are a token, a vector and a number has the gradient of the definition in every plan.
func TestTyped(t *testing.T) {
	l := &lookup{table: [][]float64{{9, 9}, {3, -4}}, grads: [][]float64{make([]float64, 2), make([]float64, 2)}}
	chain := Chain[any, any]{Stages: []Stage[any, any]{Typed(l), Typed(norm2{})}, Bytes: sizeOf, SavedBytes: sizeOf}
	loss := func(y any) (any, error) {
		require.Equal(t, float32(25), y)
		return float32(1), nil
	}
	costs, err := chain.MeasureCosts(t.Context(), 1, loss, 1)
	require.NoError(t, err)
	require.Equal(t, "lookup", costs.Stages[0].Name)
	l.grads[1] = make([]float64, 2)
	for i, make := range []func(Costs) (Plan, error){KeepAll, RecomputeAll} {
		plan, err := make(costs)
		require.NoError(t, err)
		_, _, err = chain.Run(t.Context(), plan, 1, loss)
		require.NoError(t, err)
		require.Equal(t, [][]float64{{0, 0}, {6 * float64(i+1), -8 * float64(i+1)}}, l.grads)
	}
}

// TestTypedRefuses: an operand of another type is an error with the stage's name, and so is the stage's own error.
func TestTypedRefuses(t *testing.T) {
	stage := Typed(&lookup{table: [][]float64{{1}}, grads: [][]float64{{0}}})
	_, err := stage.Forward(t.Context(), "0")
	require.ErrorIs(t, err, snug.ErrConfig)
	require.EqualError(t, err, `remat: stage "lookup": the input is a string, want int: `+snug.ErrConfig.Error())
	_, _, err = stage.ForwardSave(t.Context(), nil)
	require.ErrorContains(t, err, "the input is a <nil>, want int")
	_, err = stage.Backward(t.Context(), 0, 1, []float64{1})
	require.ErrorContains(t, err, "the saved set is a int, want []float64")
	_, err = stage.Backward(t.Context(), 0, []float64{1}, []float32{1})
	require.ErrorContains(t, err, "the gradient of the output is a []float32, want []float64")
	require.Nil(t, Typed[int, int, int](nil))
	fail := errors.New("full")
	y, s, err := Typed(norm2{fail}).ForwardSave(t.Context(), []float64{1})
	require.ErrorIs(t, err, fail)
	require.Nil(t, y)
	require.Nil(t, s)
}
