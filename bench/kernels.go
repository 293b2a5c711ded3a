package main

import (
	"fmt"
	"slices"

	"github.com/snug-ml/snug"
)

// allWork returns everything that can be measured, in the order of the table.
// On a device other than the CPU these are all kernels, also those that the
// device may lack, but not what works in host memory only.
func allWork(o options) []work {
	var all []work
	if !o.onCPU() {
		all = append(all, launches()...)
		all = append(all, frozens(o.sizes())...)
	}
	for _, group := range []func(sizes) []work{
		casts, gradients, checksums, matmuls, attentions, attentionFeatures, optimizers, quantizers, layers, convs, rematerializations, steps, tunes,
	} {
		all = append(all, group(o.sizes())...)
	}
	return slices.DeleteFunc(all, func(w work) bool { return w.host && !o.onCPU() })
}

func lenShape(n int) string { return fmt.Sprintf("n=%d", n) }

var floats = []snug.DType{snug.F32, snug.F16, snug.BF16}

// both are the types that models train in.
var both = []snug.DType{snug.F32, snug.BF16}
