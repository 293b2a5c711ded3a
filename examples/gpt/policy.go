package main

import (
	"cmp"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/plan"
)

// This file decides in which element types the model computes. The policy names the low
// type, and torch's rules for autocast on the CPU say which operations take it. The weights
// that the forward pass reads are copies in the low type, cast once a step.

// policyOf returns the policy of a run: float32 parameters and logits, and, with mixed
// precision, low types between them.
func policyOf(on techniques, low snug.DType) amp.Policy {
	p := amp.Policy{Params: snug.F32, Compute: snug.F32, Output: snug.F32}
	if on[useAMP] {
		p.Compute = low
	}
	return p
}

// rules are torch's: matrix products and attention compute in the policy's low type, a loss
// in float32, and norms, GELU, sums and embeddings in the type of their inputs.
var rules = amp.CPUOps()

// typeOf returns the type in which an operation, by torch's name, computes from inputs of
// some types.
func (o *ops) typeOf(op string, inputs ...snug.DType) snug.DType {
	t, err := rules.Type(op, o.policy.Compute, inputs...)
	o.err = cmp.Or(o.err, err)
	return t
}

// result returns an activation of the given width for the result of an operation on x.
func (o *ops) result(op string, width int, x *tensor) *tensor {
	if o.err != nil || o.pool.err != nil { // then there may be no x
		return o.alloc(o.policy.Compute, width)
	}
	return o.alloc(o.typeOf(op, x.DType()), width)
}

// alloc returns an activation of the given type and width. A gradient has the type of the
// value that it belongs to.
func (o *ops) alloc(t snug.DType, width int) *tensor {
	return o.pool.get(plan.Activations, t, o.rows*width)
}
