package remat_test

import (
	"context"
	"fmt"
	"math"

	"github.com/snug-ml/snug/remat"
)

// The gradient through 31 steps with few states in memory and a few more on a disk, where
// a transfer takes as long as two steps.
//
//check:in race
func ExampleHRevolve() {
	c := costs(31)
	c.Disk = remat.Rates{Write: 8, Read: 8} // bytes in the time of a step
	plan, err := remat.HRevolve(c, 3, 5, remat.Disk)
	if err != nil {
		fmt.Println(err)
		return
	}
	rep, _ := plan.Simulate(c)
	fmt.Printf("%s: %d extra steps, %d bytes on disk\n", plan.Name, rep.Extra, rep.Disk)
	alone, _ := remat.Revolve(c, 3)
	rep, _ = alone.Simulate(c)
	fmt.Printf("%s: %d extra steps\n", alone.Name, rep.Extra)

	chain := chain(31)
	chain.Output = func(saved []float64) []float64 { return saved }
	chain.Store = func(_ context.Context, _ remat.Tier, y []float64) (remat.Copy[[]float64], error) {
		return onDisk(append([]float64(nil), y...)), nil // in a program, a file
	}
	chain.StoreSaved = chain.Store
	loss := func(y []float64) ([]float64, error) { return []float64{1, 1}, nil }
	var bits [2]uint64
	for i, p := range []remat.Plan{plan, alone} {
		dx, _, err := chain.Run(context.Background(), p, []float64{0.25, -0.125}, loss)
		if err != nil {
			fmt.Println(err)
			return
		}
		bits[i] = math.Float64bits(dx[0])
	}
	fmt.Println("same bits:", bits[0] == bits[1])
	// Output:
	// hrevolve(3,5): 53 extra steps, 64 bytes on disk
	// revolve(3): 89 extra steps
	// same bits: true
}

// onDisk is a copy that is complete at once.
type onDisk []float64

func (d onDisk) Bytes() int64                            { return int64(8 * len(d)) }
func (d onDisk) Stored(context.Context) error            { return nil }
func (d onDisk) Load(context.Context) ([]float64, error) { return append([]float64(nil), d...), nil }
func (d onDisk) Loaded(context.Context) error            { return nil }
func (d onDisk) Release()                                {}
