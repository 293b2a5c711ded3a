package conv_test

import (
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/conv"
)

// A 3×3 kernel that finds vertical edges, over an image whose right half is bright. Zeros around the image keep its
// size, and are an edge too.
//
//check:in tiers race
func ExampleForward() {
	s := conv.Shape{Batch: 1, In: 1, Out: 1, Dims: 2, Size: [3]int{3, 6}, Kernel: [3]int{3, 3}}.Same()
	x := []float32{
		0, 0, 0, 1, 1, 1,
		0, 0, 0, 1, 1, 1,
		0, 0, 0, 1, 1, 1,
	}
	w := []float32{
		-1, 0, 1,
		-1, 0, 1,
		-1, 0, 1,
	}
	y := make([]float32, s.YLen())
	if err := conv.Forward(y, x, w, nil, s); err != nil {
		fmt.Println(err)
		return
	}
	for row := range 3 {
		fmt.Println(y[row*6:][:6])
	}
	// Output:
	// [0 0 2 2 0 -2]
	// [0 0 3 3 0 -3]
	// [0 0 2 2 0 -2]
}

// One step of a layer that learns: forward, then the gradients of its input, its weights and its bias.
//
//check:in tiers race
func ExampleBackwardWeight() {
	s := conv.Shape{Batch: 2, In: 1, Out: 2, Dims: 1, Size: [3]int{4}, Kernel: [3]int{2}}
	x, w, bias := []float32{1, 2, 3, 4, 0, 1, 0, 1}, []float32{1, -1, 0.5, 0.5}, []float32{0, 10}
	y := make([]float32, s.YLen()) // [2, 2, 3]
	if err := conv.Forward(y, x, w, bias, s); err != nil {
		fmt.Println(err)
		return
	}
	dy := []float32{1, 0, 0, 0, 1, 0, 0, 0, 1, 1, 0, 0}
	dx, dw, db, ws := make([]float32, s.XLen()), make([]float32, s.WLen()), make([]float32, s.Out), make([]float32, s.WorkspaceLen())
	if err := conv.BackwardInput(dx, dy, w, s, snug.Into{}); err != nil {
		fmt.Println(err)
		return
	}
	if err := conv.BackwardWeight(dw, db, x, dy, s, snug.Into{}, ws); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(y)
	fmt.Println(dx)
	fmt.Println(dw, db)
	// Output:
	// [-1 -1 -1 11.5 12.5 13.5 -1 1 -1 10.5 10.5 10.5]
	// [1 -0.5 0.5 0 0.5 0.5 1 -1]
	// [1 3 2 4] [2 2]
}
