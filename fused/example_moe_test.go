package fused_test

import (
	"fmt"

	"github.com/snug-ml/snug/fused"
)

// A layer of four experts, two for each row, forward and backward. The experts here multiply by a number.
//
//check:in tiers race
func ExampleRoute() {
	const rows, cols = 3, 2
	r := fused.Router{Experts: 4, Chosen: 2, Normalize: true}
	x := []float32{1, 2, 3, 4, 5, 6}
	logits := []float32{0, 1, 2, 3, 3, 0, 0, 3, 1, 2, 0, 0}
	factors := []float32{1, 10, 100, 1000}

	experts, weights := make([]int32, rows*r.Chosen), make([]float32, rows*r.Chosen)
	err := fused.Route(r, experts, weights, logits, nil)
	check(err)
	of, pairs, starts := make([]int32, len(experts)), make([]int32, len(experts)), make([]int32, r.Experts+1)
	check(fused.Group(of, pairs, starts, experts, r.Chosen))
	fmt.Printf("experts %v, weights %.2f\n", experts, weights)

	y, h := make([]float32, rows*cols), make([]float32, rows*cols)
	forward := func(e int) []float32 { // the outputs of an expert for its rows
		h := h[:cols*int(starts[e+1]-starts[e])]
		check(fused.Embedding(h, x, of[starts[e]:starts[e+1]], nil, nil, cols))
		for i := range h {
			h[i] *= factors[e]
		}
		return h
	}
	for e := range r.Experts {
		check(fused.AddRows(y, forward(e), weights, pairs[starts[e]:starts[e+1]], r.Chosen, cols))
	}
	fmt.Printf("y %.1f\n", y)

	dy, dx, dweights := []float32{1, 0, 1, 0, 1, 0}, make([]float32, rows*cols), make([]float32, len(weights))
	for e := range r.Experts {
		own := pairs[starts[e]:starts[e+1]]
		out := forward(e) // again: it was not kept
		check(fused.AddRowsBackward(out, dweights, dy, out, weights, own, r.Chosen, cols))
		for i := range out {
			out[i] *= factors[e]
		}
		check(fused.AddRows(dx, out, []float32(nil), own, r.Chosen, cols))
	}
	dlogits := logits
	check(fused.RouteBackward(r, dlogits, dweights, logits, experts, nil))
	fmt.Printf("dx %.1f\ndlogits %.1f\n", dx, dlogits)
	// Output:
	// experts [3 2 0 3 1 0], weights [0.73 0.27 0.50 0.50 0.73 0.27]
	// y [758.0 1515.9 1501.5 2002.0 37.9 45.5]
	// dx [758.0 0.0 500.5 0.0 7.6 0.0]
	// dlogits [0.0 0.0 -177.0 177.0 -749.2 0.0 0.0 749.2 -8.8 8.8 0.0 0.0]
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// The loss that balances experts, over two layers, and its gradient in the logits of one.
//
//check:in tiers race
func ExampleAuxLoss() {
	r := fused.Router{Experts: 2, Chosen: 1}
	layers := [][]float32{{3, 0, 2, 0}, {1, 0, 0, 1}} // logits of two rows
	experts, weights := make([]int32, 2), make([]float32, 2)
	sums, counts, ws := make([]float32, 2), make([]int64, 2), make([]float32, r.WorkspaceLen(2))
	for _, logits := range layers {
		check(fused.Route(r, experts, weights, logits, nil))
		check(fused.AddScores(r, sums, logits, ws))
		for _, e := range experts {
			counts[e]++
		}
	}
	aux := make([]float32, 2)
	loss, err := fused.AuxLoss(aux, sums, counts, 4, 0.01)
	check(err)
	dlogits := make([]float32, 4)
	check(fused.RouteBackward(r, dlogits, []float32(nil), layers[0], experts, aux))
	fmt.Printf("%v %.3f\n%.5f\n", counts, loss, dlogits)
	// Output:
	// [3 1] 1.208
	// [0.00011 -0.00011 0.00026 -0.00026]
}

//check:in tiers race
func ExampleUpdateBias() {
	bias := []float32{0, 0, 0}
	check(fused.UpdateBias(bias, []int64{7, 1, 4}, 0.001))
	fmt.Println(bias)
	// Output: [-0.001 0.001 0]
}

//check:in tiers race
func ExampleClampedSwiGLU() {
	gate, up := []float32{-1, 0, 1, 8}, []float32{10, 2, 1, -10}
	out := make([]float32, 4)
	check(fused.ClampedSwiGLU(out, gate, up, 1.702, 7))
	fmt.Printf("%.3f\n", out)
	// Output: [-1.234 0.000 1.692 -42.000]
}
