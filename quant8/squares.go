package quant8

import (
	"cmp"
	"math"

	"github.com/snug-ml/snug/internal/optim"
)

// RMSpropOptions configures [NewRMSprop]. A zero field means its default.
type RMSpropOptions struct {
	Alpha       float32 // decay of the mean of squares, in (0,1), default 0.99
	Eps         float32 // added to its root, default 1e-8
	WeightDecay float32 // L2: WeightDecay·p is added to the gradient; default 0
	StateOptions
}

// NewRMSprop returns the optimizer of Tieleman and Hinton 2012, "Lecture 6.5: RMSProp"
// (Coursera), as torch.optim.RMSprop computes it, without parameters:
//
//	g ← g + wd·p
//	v ← α·v + (1-α)·g²
//	p ← p - lr·g/(√v + ε)
//
// The state is v, in 8 bits by the signed map, as in bitsandbytes, and otherwise without a
// sign: with 8 bits n + 4·⌈n/Block⌉ bytes for n elements, 1.02 a parameter at blocks of
// 256; with 4 bits 0.53 at blocks of 128; 2 with 16 bits and 4 with 32, and 4n for n below
// Min8bit, whatever Bits is.
//
// The error wraps [snug.ErrConfig].
func NewRMSprop(o RMSpropOptions) (*Optimizer, error) {
	alpha, eps := cmp.Or(o.Alpha, 0.99), cmp.Or(o.Eps, 1e-8)
	return newOptimizer(options{
		name: "RMSprop", StateOptions: o.withDefaults(optim.RMSprop),
		hyper:   optim.Hyper{Rule: optim.RMSprop, Beta1: float64(alpha), Eps: float64(eps), WeightDecay: float64(o.WeightDecay)},
		numbers: []number{{"Alpha", alpha, 1}, {"Eps", eps, math.MaxFloat32}},
	})
}

// AdagradOptions configures [NewAdagrad]. A zero field means its default.
type AdagradOptions struct {
	Eps         float32 // added to the root of the sum of squares, default 1e-10
	WeightDecay float32 // L2: WeightDecay·p is added to the gradient; default 0
	StateOptions
}

// NewAdagrad returns the optimizer of Duchi, Hazan and Singer 2011, "Adaptive
// Subgradient Methods for Online Learning and Stochastic Optimization", as
// torch.optim.Adagrad computes it, without parameters:
//
//	g ← g + wd·p
//	v ← v + g²
//	p ← p - lr·g/(√v + ε)
//
// A sum in 8 bits does not grow by a g² of less than half the distance of two codes,
// which near the absmax of a block is 1/142 of that, and in 4 bits 1/32; long runs want
// 16 bits, which round at random, or 32. A sum that exceeds float32, 3.4e38, spoils its
// block.
//
// The state is v, in 8 bits by the signed map, as in bitsandbytes, and otherwise without a
// sign: with 8 bits n + 4·⌈n/Block⌉ bytes for n elements, 1.02 a parameter at blocks of
// 256; with 4 bits 0.53 at blocks of 128; 2 with 16 bits and 4 with 32, and 4n for n below
// Min8bit, whatever Bits is.
//
// The error wraps [snug.ErrConfig].
func NewAdagrad(o AdagradOptions) (*Optimizer, error) {
	eps := cmp.Or(o.Eps, 1e-10)
	return newOptimizer(options{
		name: "Adagrad", StateOptions: o.withDefaults(optim.Adagrad),
		hyper:   optim.Hyper{Rule: optim.Adagrad, Eps: float64(eps), WeightDecay: float64(o.WeightDecay)},
		numbers: []number{{"Eps", eps, math.MaxFloat32}},
	})
}
