package remat_test

import (
	"context"
	"fmt"

	"github.com/snug-ml/snug/remat"
)

// The costs of real stages, and a plan with half of the memory that keeping all
// would take.
//
//check:in race
func ExampleChain_MeasureCosts() {
	ctx := context.Background()
	c := chain(20)
	x := []float64{0.25, -0.125}
	loss := func(y []float64) ([]float64, error) { return []float64{1, 1}, nil } // L = Σy
	costs, err := c.MeasureCosts(ctx, x, loss, 5)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("input %d bytes, %d stages, the first saves %d bytes\n", costs.Input, len(costs.Stages), costs.Stages[0].Saved)

	all, _ := remat.KeepAll(costs)
	most, _ := all.Simulate(costs)
	plan, err := remat.Fit(costs, most.Peak/2) // which one depends on the times
	if err != nil {
		fmt.Println(err)
		return
	}
	c.Costs = &costs
	_, rep, err := c.Run(ctx, plan, x, loss)
	fmt.Printf("all %d bytes, half of that: %t, %v\n", most.Peak, rep.Peak <= most.Peak/2, err)
	fmt.Println("values of other sizes than measured:", len(rep.Mismatches))
	// Output:
	// input 16 bytes, 20 stages, the first saves 16 bytes
	// all 352 bytes, half of that: true, <nil>
	// values of other sizes than measured: 0
}
