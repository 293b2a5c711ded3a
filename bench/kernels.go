package main

import (
	"fmt"

	"github.com/snug-ml/snug"
)

// allWork returns everything that can be measured, in the order of the table.
func allWork(o options) []work {
	var all []work
	for _, group := range []func(options) []work{
		casts, gradients, matmuls, attentions, optimizers, quantizers, layers, steps,
	} {
		all = append(all, group(o)...)
	}
	return all
}

// lens returns the lengths of vectors: in a core's cache, in the shared cache,
// and beyond.
func (o options) lens() []int {
	if o.short {
		return []int{1 << 14, 1 << 20}
	}
	return []int{1 << 14, 1 << 20, 1 << 26}
}

// largest returns the working set that stands for memory.
func (o options) largest() int {
	if o.short {
		return largestShort
	}
	return largest
}

func lenShape(n int) string { return fmt.Sprintf("n=%d", n) }

var floats = []snug.DType{snug.F32, snug.F16, snug.BF16}

// both are the types that models train in.
var both = []snug.DType{snug.F32, snug.BF16}
