package remat_test

import (
	"fmt"

	"github.com/snug-ml/snug/remat"
)

// The gradient through 31 steps of x ← x + x(1-x)/8 with few states in memory and a
// few more on a disk, where a transfer takes as long as five steps.
func ExampleHRevolve() {
	step := func(x float64) float64 { return x + x*(1-x)/8 }
	slope := func(x float64) float64 { return 1 + (1-2*x)/8 }

	levels := remat.Levels{Memory: 3, Disk: 5, Write: 5, Read: 5}
	plan, err := remat.HRevolve(31, levels)
	if err != nil {
		fmt.Println(err)
		return
	}
	rep, _ := plan.Simulate(levels)
	fmt.Printf("%s: makespan %g, %d extra steps, %d writes, %d reads\n", plan.Name, rep.Makespan, rep.Extra, rep.Writes, rep.Reads)
	alone, _ := remat.HRevolve(31, remat.Levels{Memory: 3})
	rep, _ = alone.Simulate(levels)
	fmt.Printf("%s: makespan %g\n", alone.Name, rep.Makespan)

	memory, disk := map[int]float64{}, map[int]float64{} // the disk would be files
	x, dx := 0.25, 1.0
	for _, op := range plan.Ops {
		switch op.Kind {
		case remat.Advance:
			x = step(x)
		case remat.Reverse:
			dx *= slope(x)
		case remat.StoreMemory:
			memory[op.Stage] = x
		case remat.StoreDisk:
			disk[op.Stage] = x
		case remat.LoadMemory:
			x = memory[op.Stage]
		case remat.LoadDisk:
			x = disk[op.Stage]
		case remat.DropMemory:
			delete(memory, op.Stage)
		case remat.DropDisk:
			delete(disk, op.Stage)
		}
	}
	fmt.Printf("dx = %.6f\n", dx)
	// Output:
	// hrevolve(3,5): makespan 115, 74 extra steps, 1 writes, 1 reads
	// hrevolve(3,0): makespan 120
	// dx = 0.299534
}
