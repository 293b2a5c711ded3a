// Package fused computes the layers between the matmuls of a transformer, and between the convolutions of
// an image network. Each layer is one pass over memory, with a forward and a backward function that keep little between them:
//
//	err := fused.RMSNorm(out, rstd, x, gamma, 1e-6)    // out, x: [rows, cols]; rstd: [rows] of float32
//	err = fused.RMSNormBackward(dx, dgamma, dy, x, rstd, gamma, fused.GradsInto{}, ws)
//
//	function       keeps for backward, in addition to its input x
//	LayerNorm      8 bytes a row: mean and 1/σ
//	RMSNorm        4 bytes a row: 1/rms
//	GroupNorm      8 bytes a group of an image: mean and 1/σ
//	BatchNorm      8 bytes a channel: mean and 1/σ
//	ChannelNorm    8 bytes a position: mean and 1/σ
//	BiasAdd        nothing, not even its input
//	BiasGELU,
//	BiasGELUErf    nothing
//	SwiGLU, GeGLU,
//	ClampedSwiGLU  nothing more than their inputs gate and up
//	Activate       nothing more than its input or, of some, its output
//	Rotary         nothing, not even its input
//	Dropout        nothing, not even its input: backward redraws the mask
//	Embedding      nothing; its input is the tokens
//	Add            nothing
//	Route          4 bytes a chosen expert: its index
//	AddRows        its input x, or nothing where weights get no gradient
//	CrossEntropy,
//	Distill,
//	Elementwise,
//	Dice           nothing: one call computes loss and gradients
//	LogProbs       4 bytes a row: the logarithm of the sum of the exponentials of its logits
//
// [CrossEntropyBackward] saves the most memory. It multiplies by the output matrix, takes the
// softmax and forms both gradients for a few rows at a time, so the logits of a batch are never
// stored. [LogProbsBackward] does so for losses of log-probabilities, and [DistillBackward] for the
// divergence from another model.
//
// [Route], [Group], [AddRows] and [AuxLoss] are the parts of a mixture of experts other than the matrix products of the
// experts. The example of Route joins them.
//
// Functions of an [Image] take activations of convolutions, with the channels first or last, as package conv has them.
//
// # Types
//
// All matrices are row-major and dense. The vectors V of one call have one element type:
// float32, binary16 or bfloat16. This holds for views too. Arithmetic is float32, and results
// are rounded once, to nearest even. Some functions compute bfloat16 results with only the
// digits that bfloat16 needs, and say so. Gradients of parameters and statistics of rows are
// float32. Gradients of parameters enter the caller's accumulators directly, see [snug.Into];
// accum's Window.Into returns such an accumulator and its Into.
//
// In Go's terms the vectors V of one call have one Go type, such as []snug.BFloat16 or
// snug.View; so have the accumulators G; and so have the statistics and the workspace L. A
// View of an accumulator therefore goes with slices elsewhere. For a frozen parameter, whose
// gradient is left out, pass []float32(nil): Go cannot infer G from nil alone.
//
// # Results
//
// Results do not depend on GOMAXPROCS, bit for bit. NaN and infinities propagate by the
// equations; nothing panics and nothing is replaced.
//
// # Memory
//
// Nothing is allocated on the CPU. Each running worker holds a few rows of float32 in a reused
// buffer; each function states their size. Results of 16 MiB and more are written around the
// caches, unless a function works in place by design, as Rotary does. Functions that sum over
// rows take a workspace: a float32 vector on the device of the operands, at least as long as the
// function's WorkspaceLen returns. Its contents mean nothing before or after the call.
//
// Tokens, targets, experts and pairs are host slices. A device other than the CPU uploads them for the call, 4
// bytes each, into memory that it lends until the kernel has run. It keeps such memory for later calls with as many, and
// gives it back when it is closed or when an array needs it. So it does with the weights of losses of elements, and lends 4 bytes for
// each part of their sum, of up to 1,024, or for each row of Dice. The loss comes back through 8 bytes.
//
// # Errors
//
// Arguments are checked in this order, before anything is written: options
// ([snug.ErrConfig]), element types ([snug.ErrDType]), lengths and indices ([snug.ErrShape]),
// devices ([snug.ErrDevice]). Outputs must not overlap other operands, unless a function's doc
// allows it; this is not checked.
package fused

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/rowwise"
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
	k := rowwise.Registry.Best()
	if o.Beta == 0 {
		k.Scale(acc, g, o.Alpha)
	} else {
		k.Axpby(acc, g, o.Alpha, o.Beta)
	}
}
