package plan_test

import (
	"errors"
	"fmt"
	"log"
	"os"

	"github.com/snug-ml/snug/meter"
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
	p, err := plan.Best(plan.Task{Model: model, Device: device, Batch: 32}.Fit(0))
	if err != nil {
		log.Fatal(err) // says by how much it misses and what is cheapest to change
	}
	fmt.Printf("%d micro-batches of %d, %v, state in %d bits\n", p.Run.Window, p.Run.Micro, p.Run.Compute, p.Run.StateBits)
	fmt.Println(meter.FormatBytes(p.Peak[meter.OnDevice].Total()), "of", meter.FormatBytes(p.Limit))
	// Output:
	// 32 micro-batches of 1, bf16, state in 8 bits
	// 22.26 GiB of 23.50 GiB
}

// When nothing fits, the error says what would.
func ExampleMissError() {
	model, err := plan.ModelNamed("llama-7b", 0)
	if err != nil {
		log.Fatal(err)
	}
	device, err := plan.DeviceNamed("40GB")
	if err != nil {
		log.Fatal(err)
	}
	_, err = plan.Best(plan.Task{Model: model, Device: device, Batch: 8}.Fit(0))
	var miss *plan.MissError
	if errors.As(err, &miss) {
		fmt.Println("it misses by", meter.FormatBytes(miss.Missing()))
		fmt.Println("with", miss.Changes[0].What, "it fits")
	}
	// Output:
	// it misses by 2.91 GiB
	// with gradients folded into the state (no master weights) it fits
}

// The table of a plan: what each component takes, and what each choice saves.
func ExamplePlan_WriteTable() {
	model, err := plan.ModelNamed("gpt-34m", 0)
	if err != nil {
		log.Fatal(err)
	}
	device, err := plan.DeviceNamed("8GB")
	if err != nil {
		log.Fatal(err)
	}
	p, err := plan.Best(plan.Task{Model: model, Device: device, Batch: 32}.Fit(1 << 30))
	if err != nil {
		log.Fatal(err)
	}
	if err := p.WriteTable(os.Stdout); err != nil {
		log.Fatal(err)
	}
	// Output:
	// gpt-34m, 33850368 parameters, on 8GB: 32 sequences of 512 tokens a step in 3 micro-batches of at most 11
	//
	//                         without         with     share
	//            weights   129.13 MiB    64.56 MiB    50.0 %
	//     master weights          0 B    64.56 MiB         –
	//          gradients   129.13 MiB   129.13 MiB   100.0 %
	//    optimizer state   258.26 MiB    65.77 MiB    25.5 %
	//        activations     4.69 GiB   475.06 MiB     9.9 %
	//          workspace    64.02 MiB    64.02 MiB   100.0 %
	//          allowance   243.30 MiB    26.95 MiB    11.1 %
	//              total     5.49 GiB   890.06 MiB    15.8 %
	//
	// the limit is 1.00 GiB; a step takes about 180 ms, without techniques 422 ms, at the speed of 8GB:
	// 10.2 TFLOP/s in f32, 20.3 in 16 bits, 358 GB/s of memory, 12 of the link, 2 of the disk
	//
	//                   instead       device   activations     step
	//         the batch at once     1.80 GiB      1.35 GiB   177 ms
	//            f32 throughout     1.35 GiB    948.06 MiB   356 ms
	//       full master weights   954.62 MiB    475.06 MiB   180 ms
	//          state in 32 bits     1.06 GiB    475.06 MiB   181 ms
	//    attention not in tiles     1.23 GiB    825.69 MiB   232 ms
	//              no technique     5.49 GiB      4.69 GiB   422 ms
	//                (the plan)   890.06 MiB    475.06 MiB   180 ms
	//
	// micro-batch: 11 of 32, 3 in a step, saves 952.28 MiB: it does not fit without it; a step would be 1.5 % faster without it
	// precision: bf16, saves 496.65 MiB: it does not fit without it; a step would be 97.9 % slower without it
	// master weights: split, saves 64.56 MiB: it would fit without it; a step would be 0.2 % slower without it
	// gradients: f32: it fits, and nothing else that fits is faster
	// optimizer state: 8 bits, saves 192.49 MiB: it does not fit without it; a step would be 0.6 % slower without it
	// attention: tiled, saves 368.16 MiB: it does not fit without it; a step would be 29.0 % slower without it
	// rematerialization: keep all: it fits, and nothing else that fits is faster
	// placement: state on device, gradients on device, weights on device: it fits, and nothing else that fits is faster
}

// Networks for images: the parameters of ResNet-50 and of ViT-B/16.
func ExampleCNN() {
	resnet, err := plan.CNN{Image: 224, Classes: 1000, Blocks: []int{3, 4, 6, 3}, Bottleneck: true}.Model()
	if err != nil {
		log.Fatal(err)
	}
	vit, err := plan.ViT{Image: 224, Patch: 16, Classes: 1000, Dim: 768, Layers: 12, Heads: 12}.Model()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(resnet.Parameters(), vit.Parameters())
	// Output: 25557032 86567656
}
