package tape_test

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/remat/tape"
)

// gradient runs 64 layers and their backward pass, which writes every gradient over
// the one before. Nothing in it depends on the budget.
func gradient(budget int64) (dx []float64, stats tape.Stats, err error) {
	ctx := context.Background()
	t, err := tape.New(tape.Options[[]float64]{
		Bytes:  func(v []float64) int64 { return int64(8 * len(v)) },
		Budget: budget,
	})
	if err != nil {
		return nil, stats, err
	}
	defer t.Close()

	x, err := t.Input(ctx, "x", []float64{0.25, -0.125})
	if err != nil {
		return nil, stats, err
	}
	forward := tape.Op{Name: "square", Bytes: 16, Cost: 1}
	a := []*tape.Value[[]float64]{x}
	for i := range 64 {
		y, err := t.Do(ctx, forward, func(ctx context.Context, in [][]float64) ([]float64, error) {
			y := make([]float64, len(in[0]))
			for i, x := range in[0] {
				y[i] = x*x + x/2
			}
			return y, nil
		}, a[i])
		if err != nil {
			return nil, stats, err
		}
		a = append(a, y)
	}

	loss := tape.Op{Name: "sum backward", Bytes: 16, Cost: 1}
	d, err := t.Do(ctx, loss, func(context.Context, [][]float64) ([]float64, error) { return []float64{1, 1}, nil })
	if err != nil {
		return nil, stats, err
	}
	backward := tape.Op{Name: "square backward", Bytes: 16, Cost: 2}
	for i := 63; i >= 0; i-- {
		if err := t.Free(a[i+1]); err != nil { // the backward pass is done with it
			return nil, stats, err
		}
		d, err = t.Overwrite(ctx, backward, func(ctx context.Context, dy []float64, in [][]float64) error {
			for i, x := range in[0] {
				dy[i] *= 2*x + 0.5
			}
			return nil
		}, d, a[i])
		if err != nil {
			return nil, stats, err
		}
	}
	dx, err = t.Take(ctx, d)
	return dx, t.Stats(), err
}

// The gradient of a graph that nobody planned, under smaller and smaller budgets.
func ExampleTape() {
	want, _, err := gradient(0)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, budget := range []int64{0, 512, 256, 48} {
		dx, stats, err := gradient(budget)
		var small *tape.BudgetError
		if errors.As(err, &small) {
			fmt.Printf("%d bytes: %q needs %d, out of memory: %t\n", budget, small.Operation, small.Smallest, errors.Is(err, snug.ErrNoMemory))
			continue
		}
		if err != nil {
			fmt.Println(err)
			return
		}
		same := math.Float64bits(dx[0]) == math.Float64bits(want[0])
		fmt.Printf("%d bytes: peak %d, %d recomputations, same bits: %t\n", budget, stats.Peak, stats.Recomputed, same)
	}
	// Output:
	// 0 bytes: peak 1056, 0 recomputations, same bits: true
	// 512 bytes: peak 512, 34 recomputations, same bits: true
	// 256 bytes: peak 256, 51 recomputations, same bits: true
	// 48 bytes: "square" needs 64, out of memory: true
}

// What becomes of the values of a transformer's layer: products with weights are
// kept, scores go to the host, all else is computed again.
func ExamplePolicy() {
	policy := tape.SaveWeightMatMuls().Or(tape.SaveNames("scores").Offloaded()).MustRecompute()
	for _, op := range []tape.Op{
		{Name: "linear", Class: tape.MatMul},
		{Name: "product", Class: tape.BatchMatMul, Value: "scores"},
		{Name: "product", Class: tape.BatchMatMul, Value: "context"},
		{Name: "gelu"},
	} {
		d, err := policy.Decide(op)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Printf("%s %q: %v\n", op.Name, op.Value, d)
	}

	// Two parts that bind cannot disagree.
	both := tape.SaveNames("scores").MustSave().And(tape.SaveOps("linear").MustRecompute())
	_, err := both.Decide(tape.Op{Name: "product", Value: "scores"})
	fmt.Println(err)
	// Output:
	// linear "": prefer save
	// product "scores": offload
	// product "context": must recompute
	// gelu "": must recompute
	// tape: policy: operation "product", value "scores": one part decides must save, another must recompute: snug: invalid configuration
}
