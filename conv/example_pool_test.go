package conv_test

import (
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/conv"
)

// The largest of each four elements, and the gradient through them. The index takes 2 bits an element.
func ExampleMaxPool() {
	p := conv.PoolShape{Batch: 1, Channels: 1, Dims: 2, Size: [3]int{2, 4}, Kernel: [3]int{2, 2}}
	x := []float32{
		1, 2, 5, 3,
		4, 3, 0, 1,
	}
	y, index, dx := make([]float32, p.YLen()), make([]byte, p.IndexLen()), make([]float32, p.XLen())
	must(conv.MaxPool(y, index, x, p))
	must(conv.MaxPoolBackward(dx, []float32{10, 20}, index, p, snug.Into{}))
	fmt.Println(y, len(index), dx)
	// Output: [4 5] 1 [0 0 20 0 10 0 0 0]
}

// The mean of a channel, whatever its size.
func ExampleAvgPool() {
	p := conv.PoolShape{Batch: 1, Channels: 2, Dims: 2, Size: [3]int{2, 2}, Adaptive: [3]int{1, 1}}
	y := make([]float32, p.YLen())
	must(conv.AvgPool(y, []float32{1, 2, 3, 4, 5, 6, 7, 8}, p))
	fmt.Println(y)
	// Output: [2.5 6.5]
}

// A row shrinks to half, by a filter as wide as its new elements.
func ExampleResize() {
	s := conv.ResizeShape{Batch: 1, Channels: 1, Dims: 1, Size: [3]int{6}, Out: [3]int{3}, Interpolation: conv.Linear, Antialias: true}
	y, ws := make([]float32, s.YLen()), make([]float32, s.WorkspaceLen())
	must(conv.Resize(y, []float32{0, 0, 8, 8, 0, 0}, s, ws))
	fmt.Println(y)
	// Output: [1.1428572 6 1.1428572]
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
