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
			fmt.Printf("%d bytes: %q needs %d, out of memory: %t\n", budget, small.Operation, small.Minimum, errors.Is(err, snug.ErrNoMemory))
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

// What the policies decide on four operations of a layer.
func ExamplePolicy_values() {
	ops := []tape.Op{
		{Name: "linear", Class: tape.MatMul, Value: "q"},
		{Name: "product", Class: tape.BatchMatMul, Value: "scores"},
		{Name: "gelu", Value: "hidden"},
		{Name: "add"},
	}
	for _, p := range []struct {
		name   string
		policy tape.Policy
	}{
		{"SaveAll", tape.SaveAll()},
		{"SaveNone", tape.SaveNone()},
		{"SaveMatMuls", tape.SaveMatMuls()},
		{"not SaveMatMuls", tape.SaveMatMuls().Not()},
		{"SaveAllBut hidden", tape.SaveAllBut("hidden")},
		{"SaveNamedBut hidden", tape.SaveNamedBut("hidden")},
		{"SaveAndOffload q, scores", tape.SaveAndOffload([]string{"q"}, []string{"scores"})},
	} {
		var decisions []tape.Decision
		for _, op := range ops {
			d, err := p.policy.Decide(op)
			if err != nil {
				fmt.Println(err)
				return
			}
			decisions = append(decisions, d)
		}
		fmt.Printf("%-24s %q\n", p.name, decisions)
	}
	// Output:
	// SaveAll                  "\x00\x00\x00\x00"
	// SaveNone                 "\x02\x02\x02\x02"
	// SaveMatMuls              "\x00\x00\x02\x02"
	// not SaveMatMuls          "\x02\x02\x00\x00"
	// SaveAllBut hidden        "\x00\x00\x02\x00"
	// SaveNamedBut hidden      "\x00\x00\x02\x02"
	// SaveAndOffload q, scores "\x00\x01\x02\x02"
}

// A recurrent loop whose result is one half of its state. Without Banish the Tape keeps the
// graph of all steps.
func ExampleTape_Banish() {
	ctx := context.Background()
	t, err := tape.New(tape.Options[[]float64]{Bytes: func(v []float64) int64 { return int64(8 * len(v)) }})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer t.Close()
	state, err := t.Input(ctx, "state", []float64{1, 1})
	if err != nil {
		fmt.Println(err)
		return
	}
	fibonacci := func(_ context.Context, in [][]float64) ([]float64, error) {
		return []float64{in[0][1], in[0][0] + in[0][1]}, nil
	}
	for range 20 {
		next, err := t.Do(ctx, tape.Op{Name: "fibonacci", Bytes: 16, Cost: 1}, fibonacci, state)
		if err == nil {
			err = t.Banish(ctx, state)
		}
		if err != nil {
			fmt.Println(err)
			return
		}
		state = next
	}
	latest, err := t.Alias("latest", state, func(v []float64) []float64 { return v[1:] })
	if err != nil {
		fmt.Println(err)
		return
	}
	v, done, err := t.Get(ctx, latest)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer done()
	fmt.Println(v, t.Stats().Values, "value,", t.Stats().Peak, "bytes")
	// Output:
	// [17711] 1 value, 32 bytes
}

// A budget with which a program would do little but recompute is an error, not a slow run.
func ExampleThrashError() {
	ctx := context.Background()
	t, err := tape.New(tape.Options[int]{Bytes: func(int) int64 { return 1 }, Budget: 3, Heuristic: tape.LRU, MaxRecompute: 2})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer t.Close()
	y, err := t.Input(ctx, "x", 0)
	var all []*tape.Value[int]
	for range 30 {
		if err == nil {
			y, err = t.Do(ctx, tape.Op{Name: "next", Bytes: 1, Cost: 1}, func(_ context.Context, in []int) (int, error) { return in[0] + 1, nil }, y)
			all = append(all, y)
		}
	}
	for i := len(all) - 1; i >= 0 && err == nil; i-- {
		var done func()
		if _, done, err = t.Get(ctx, all[i]); err == nil {
			done()
		}
	}
	var thrash *tape.ThrashError
	fmt.Println(errors.As(err, &thrash), errors.Is(err, snug.ErrNoMemory))
	fmt.Println(err)
	// Output:
	// true true
	// tape: operation "next": 61 recomputations of cost 61 are more than 2 times the 30 of first computations, under a budget of 3 bytes: snug: out of memory
}
