package remat_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/remat"
)

// square is the stage y = x² + x/2 over a slice. It saves its output only.
type square struct{}

func (square) Forward(_ context.Context, x []float64) ([]float64, error) {
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = v*v + v/2
	}
	return y, nil
}

func (s square) ForwardSave(ctx context.Context, x []float64) (y, saved []float64, err error) {
	y, err = s.Forward(ctx, x)
	return y, y, err
}

func (square) Backward(_ context.Context, x, _, dy []float64) ([]float64, error) {
	for i, v := range x {
		dy[i] *= 2*v + 0.5
	}
	return dy, nil
}

func chain(n int) *remat.Chain[[]float64, []float64] {
	size := func(x []float64) int64 { return int64(8 * len(x)) }
	c := &remat.Chain[[]float64, []float64]{Bytes: size, SavedBytes: size}
	for range n {
		c.Stages = append(c.Stages, square{})
	}
	return c
}

func costs(n int) remat.Costs {
	c := remat.Costs{Input: 16, Stages: make([]remat.Cost, n)}
	for i := range c.Stages {
		c.Stages[i] = remat.Cost{Output: 16, Saved: 16, ForwardTime: 1, BackwardTime: 1}
	}
	return c
}

// The gradient of a chain of 10 stages, with all activations and with few.
//
//check:in race
func ExampleChain_Run() {
	ctx := context.Background()
	c := chain(10)
	loss := func(y []float64) ([]float64, error) { // L = Σy
		dy := make([]float64, len(y))
		for i := range dy {
			dy[i] = 1
		}
		return dy, nil
	}
	keep, _ := remat.KeepAll(costs(10))
	few, _ := remat.Revolve(costs(10), 3)
	var bits [2]uint64
	for i, plan := range []remat.Plan{keep, few} {
		dx, rep, err := c.Run(ctx, plan, []float64{0.25, -0.125}, loss)
		if err != nil {
			fmt.Println(err)
			return
		}
		bits[i] = math.Float64bits(dx[0])
		fmt.Printf("%s: peak %d bytes, %d extra forward steps\n", plan.Name, rep.Peak, rep.Extra)
	}
	fmt.Println("same bits:", bits[0] == bits[1])
	// Output:
	// keep-all: peak 192 bytes, 0 extra forward steps
	// revolve(3): peak 96 bytes, 15 extra forward steps
	// same bits: true
}

// Evaluation needs no plan and holds two values at most.
//
//check:in race
func ExampleChain_Eval() {
	y, err := chain(3).Eval(context.Background(), []float64{0.5, 1})
	fmt.Println(y, err)
	// Output: [0.5 10.5] <nil>
}

//check:in race
func ExamplePlan_Simulate() {
	c := costs(4)
	plan, _ := remat.Chen(c)
	rep, _ := plan.Simulate(c)
	fmt.Println(plan)
	fmt.Printf("peak %d bytes at operation %d, %d extra forward steps, time %g\n", rep.Peak, rep.PeakOp, rep.Extra, rep.Time)
	// Output:
	// F0 F1 -F0 S2 S3 B3 B2 -F1 S0 S1 B1 B0
	// peak 80 bytes at operation 4, 2 extra forward steps, time 10
}

// The fastest plan under a budget, and the answer when there is none.
//
//check:in race
func ExampleFit() {
	c := costs(64)
	for _, budget := range []int64{1 << 20, 400, 100, 50} {
		plan, err := remat.Fit(c, budget)
		var short *remat.BudgetError
		if errors.As(err, &short) {
			fmt.Printf("%d bytes: at least %d are needed, out of memory: %t\n", budget, short.Minimum, errors.Is(err, snug.ErrNoMemory))
			continue
		}
		rep, _ := plan.Simulate(c)
		fmt.Printf("%d bytes: %s, peak %d, %d extra forward steps\n", budget, plan.Name, rep.Peak, rep.Extra)
	}
	// Output:
	// 1048576 bytes: keep-all, peak 1056, 0 extra forward steps
	// 400 bytes: every(3), peak 400, 42 extra forward steps
	// 100 bytes: rotor, peak 96, 233 extra forward steps
	// 50 bytes: at least 64 are needed, out of memory: true
}

// A plan is saved as JSON with a checksum.
//
//check:in race
func ExampleParsePlan() {
	plan, _ := remat.Every(costs(3), 2)
	data, _ := json.Marshal(plan)
	fmt.Println(string(data))
	back, err := remat.ParsePlan(data)
	fmt.Println(back, err)
	data[50] ^= 1
	_, err = remat.ParsePlan(data)
	fmt.Println(errors.Is(err, snug.ErrCorrupt))
	// Output:
	// {"version":1,"name":"every(2)","stages":3,"ops":"F0 S1 -F0 S2 B2 S0 B1 B0","crc32":"d54b58b8"}
	// F0 S1 -F0 S2 B2 S0 B1 B0 <nil>
	// true
}

// A stage that draws random numbers from a sequence gives another output when it
// is computed again. With Hash the run says so instead of returning a gradient of
// no function.
//
//check:in race
func ExampleRecomputeError() {
	c := chain(3)
	draws := 0.0
	c.Stages[1] = dropout{&draws}
	c.Hash = func(x []float64) (uint64, error) { return math.Float64bits(x[0]), nil }
	plan, err := remat.RecomputeAll(costs(3))
	if err != nil {
		panic(err)
	}
	_, _, err = c.Run(context.Background(), plan, []float64{1, 2}, func(y []float64) ([]float64, error) { return []float64{1, 1}, nil })
	var differs *remat.RecomputeError
	fmt.Println(errors.As(err, &differs), "stage", differs.Stage)
	// Output: true stage 1
}

// dropout scales by numbers from a sequence.
type dropout struct{ draws *float64 }

func (d dropout) Forward(_ context.Context, x []float64) ([]float64, error) {
	*d.draws++
	return []float64{x[0] * *d.draws, x[1]}, nil
}

func (d dropout) ForwardSave(ctx context.Context, x []float64) (y, saved []float64, err error) {
	y, err = d.Forward(ctx, x)
	return y, y, err
}

func (d dropout) Backward(_ context.Context, _, _, dy []float64) ([]float64, error) { return dy, nil }

// The memory of a plan over its operations, for a spreadsheet.
//
//check:in race
func ExampleReport_WriteCSV() {
	plan, err := remat.KeepAll(costs(2))
	if err != nil {
		panic(err)
	}
	rep, err := plan.Simulate(costs(2))
	if err == nil {
		err = rep.WriteCSV(os.Stdout, plan)
	}
	fmt.Println(err)
	// Output:
	// number,operation,stage,peak_bytes,held_bytes,host_bytes,disk_bytes
	// 0,S0,0,48,48,0,0
	// 1,S1,1,64,64,0,0
	// 2,B1,1,64,48,0,0
	// 3,B0,0,48,32,0,0
	// <nil>
}

// The same two layers at every one of ten time steps, with room for few of them.
//
//check:in race
func ExampleRepeat() {
	loop, err := costs(2).Repeat(10)
	if err != nil {
		panic(err)
	}
	c := chain(0)
	if c.Stages, err = remat.Repeat[[]float64, []float64](10, square{}, square{}); err != nil {
		panic(err)
	}
	plan, err := remat.Revolve(loop, 4)
	if err != nil {
		panic(err)
	}
	_, rep, err := c.Run(context.Background(), plan, []float64{0.25, -0.125}, func(y []float64) ([]float64, error) { return []float64{1, 1}, nil })
	fmt.Println(rep.Peak, "bytes,", rep.Extra, "extra forward steps", err)
	// Output: 112 bytes, 39 extra forward steps <nil>
}

// The fastest plan of all under a budget, for a short chain.
//
//check:in race
func ExampleExact() {
	plan, err := remat.Exact(costs(8), 80)
	if err != nil {
		fmt.Println(err)
		return
	}
	rep, _ := plan.Simulate(costs(8))
	fmt.Printf("peak %d bytes, %d extra forward steps\n", rep.Peak, rep.Extra)
	// Output:
	// peak 80 bytes, 7 extra forward steps
}

// The method of a command line.
//
//check:in race
func ExampleParseMethod() {
	method, err := remat.ParseMethod("rotor")
	fmt.Println(method, err)
	_, rep, err := remat.Planner{Method: method}.Plan(costs(8), 80)
	fmt.Println(rep.Peak, "bytes", err)
	_, err = remat.ParseMethod("rotar")
	fmt.Println(errors.Is(err, snug.ErrConfig))
	// Output:
	// rotor <nil>
	// 80 bytes <nil>
	// true
}

// A run that compares the hash of every value that is computed again.
//
//check:in emulated race
func ExampleHashView() {
	c := chain(8)
	float32s := func(x []float64) (uint64, error) { // of values in any element type, on any device
		y := make([]float32, len(x))
		for i, v := range x {
			y[i] = float32(v)
		}
		return remat.HashView(snug.ViewOf(y))
	}
	c.Hash, c.HashSaved = float32s, float32s
	plan, err := remat.RecomputeAll(costs(8))
	if err != nil {
		fmt.Println(err)
		return
	}
	_, rep, err := c.Run(context.Background(), plan, []float64{0.25, -0.125}, func([]float64) ([]float64, error) { return []float64{1, 1}, nil })
	fmt.Println(rep.Extra, "extra forward steps", err)
	// Output:
	// 28 extra forward steps <nil>
}

// noise adds a number that depends on the round of the loop, as dropout would.
type noise struct{ square }

func (n noise) Forward(ctx context.Context, x []float64) ([]float64, error) {
	y, err := n.square.Forward(ctx, x)
	for i := range y {
		y[i] += float64(remat.Iteration(ctx)) // the same when it is computed again
	}
	return y, err
}

func (n noise) ForwardSave(ctx context.Context, x []float64) (y, saved []float64, err error) {
	y, err = n.Forward(ctx, x)
	return y, y, err
}

//check:in race
func ExampleIteration() {
	stages, err := remat.Repeat[[]float64, []float64](3, noise{})
	if err != nil {
		fmt.Println(err)
		return
	}
	c := chain(0)
	c.Stages = stages
	fmt.Println(c.Eval(context.Background(), []float64{0}))
	// Output:
	// [3.5] <nil>
}

// A stage whose elements do not depend on each other runs on two at a time. It keeps its output alone.
//
//check:in race
func ExampleTiles() {
	part := func(x []float64, i int) []float64 { return x[2*i : min(2*i+2, len(x))] }
	c := chain(1)
	c.Stages[0] = &remat.Tiles[[]float64, []float64]{
		Stage:  square{},
		Count:  func(x []float64) int { return (len(x) + 1) / 2 },
		Part:   part,
		Clone:  func(x []float64) ([]float64, error) { return append([]float64(nil), x...), nil },
		Output: func(x []float64) ([]float64, error) { return make([]float64, len(x)), nil },
		Put:    func(y []float64, i int, x []float64) error { copy(part(y, i), x); return nil },
		Keep:   func(y []float64) []float64 { return y },
	}
	cost, err := remat.TiledCost(remat.Cost{Output: 24, Saved: 24}, 2)
	if err != nil {
		fmt.Println(err)
		return
	}
	plan, err := remat.KeepAll(remat.Costs{Input: 24, Stages: []remat.Cost{cost}})
	if err != nil {
		fmt.Println(err)
		return
	}
	dx, _, err := c.Run(context.Background(), plan, []float64{1, 2, 3}, func(y []float64) ([]float64, error) {
		fmt.Println(y)
		return []float64{1, 1, 1}, nil
	})
	fmt.Println(dx, err)
	// Output:
	// [1.5 5 10.5]
	// [2.5 4.5 6.5] <nil>
}
