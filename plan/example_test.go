package plan_test

import (
	"errors"
	"fmt"
	"log"

	"github.com/snug-ml/snug/plan"
)

// A model of 2 billion parameters on a card of 24 GB: what is chosen, and what it takes.
func ExampleTask_Fit() {
	model, err := plan.ModelNamed("llama-2b", 0)
	if err != nil {
		log.Fatal(err)
	}
	device, err := plan.DeviceNamed("24GB")
	if err != nil {
		log.Fatal(err)
	}
	p, err := plan.Task{Model: model, Device: device, Batch: 32}.Fit(0)
	if err != nil {
		log.Fatal(err) // says by how much it misses and what is cheapest to change
	}
	fmt.Printf("%d micro-batches of %d, %v, state in %d bits\n", p.Run.Window, p.Run.Micro, p.Run.Compute, p.Run.StateBits)
	fmt.Println(plan.FormatBytes(p.Peak[plan.OnDevice].Total()), "of", plan.FormatBytes(p.Limit))
	// Output:
	// 32 micro-batches of 1, bf16, state in 8 bits
	// 22.22 GiB of 23.50 GiB
}

// When nothing fits, the error says what would.
func ExampleMissError() {
	model, err := plan.ModelNamed("llama-7b", 0)
	if err != nil {
		log.Fatal(err)
	}
	device, err := plan.DeviceNamed("24GB")
	if err != nil {
		log.Fatal(err)
	}
	_, err = plan.Task{Model: model, Device: device, Batch: 32}.Fit(0)
	var miss *plan.MissError
	if errors.As(err, &miss) {
		fmt.Println("it misses by", plan.FormatBytes(miss.Missing()))
		for _, c := range miss.Changes {
			fmt.Printf("%s: %.0f s a step\n", c.What, c.Seconds)
		}
	}
	// Output:
	// it misses by 23.12 GiB
	// train adapters of rank 16: 23 s a step
	// 100.41 GiB of host memory: 40 s a step
	// 37.85 GiB of disk: 130 s a step
}
