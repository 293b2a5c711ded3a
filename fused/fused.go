// Package fused holds the layers between the matmuls of a transformer, each
// as one pass over memory, with a forward and a backward function that keep
// little between them:
//
//	function       keeps for backward, beside its input x
//	LayerNorm      8 bytes a row: mean and 1/σ
//	RMSNorm        4 bytes a row: 1/rms
//	BiasAdd        nothing, not even its input
//	BiasGELU,
//	BiasGELUErf    nothing
//	SwiGLU         nothing, beside its inputs gate and up
//	Rotary         nothing, not even its input
//	Dropout        nothing, not even its input: the mask comes from its name
//	Embedding      nothing, its input is the tokens
//	Add            nothing
//	CrossEntropy   nothing: loss and gradients come from one call
//
// [CrossEntropyBackward] is the largest saving: it multiplies by the output
// matrix, takes the softmax and forms both gradients for a few rows at a time,
// so that the logits of a batch never exist.
//
// # Types
//
// All matrices are row-major and dense. Vectors of one call that share the
// type parameter V have one element type: float32, binary16 or bfloat16; views
// must agree too. Arithmetic is float32, results are rounded once, to nearest
// even; for bfloat16 some functions compute no more digits than that needs, as
// they state. Gradients of parameters and the statistics of rows are float32 and
// enter the caller's accumulators directly, as [snug.Into] says.
//
// # Results
//
// Results do not depend on GOMAXPROCS, bit for bit. NaN and infinities pass
// through as the equations have it; nothing panics and nothing is replaced.
//
// # Memory
//
// Nothing is allocated on the CPU. Each running worker holds a few rows of
// float32 in a reused buffer, as each function states. Results of 16 MiB and more
// are written around the caches, unless they take the place of an operand by
// design, as Rotary's do. Functions that sum over rows take a workspace, a
// float32 vector on the device of the operands with at least the length that the
// function's WorkspaceLen returns; its contents mean nothing before or after the
// call.
//
// On a device other than the CPU tokens and targets, which are host slices,
// are uploaded for the call: 4 bytes each, freed when the kernel has run. A loss
// comes back through 8 bytes there.
//
// # Errors
//
// Arguments are checked in this order, before anything is written:
// configuration ([snug.ErrConfig]), element types ([snug.ErrDType]), lengths
// and indices ([snug.ErrShape]), devices ([snug.ErrDevice]). Unless a
// function's doc says that operands may be the same vector, outputs overlap no
// other operand; this is not checked.
package fused

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/vexp"
)

// GradsInto says how the gradients of a layer enter their accumulators. The zero
// value overwrites them all.
type GradsInto struct {
	// Input is for dx. In a pre-norm block, where dx is the gradient of the
	// residual stream, snug.Into{Beta: 1} adds to it.
	Input snug.Into
	// Params is for the gradients of the parameters.
	Params snug.Into
}

// addInto computes acc = Beta·acc + Alpha·g.
func addInto(o snug.Into, acc, g []float32) {
	k := vexp.Registry.Best()
	if o.Beta == 0 {
		k.Scale(acc, g, o.Alpha)
	} else {
		k.Axpby(acc, g, o.Alpha, o.Beta)
	}
}
