// Package attention computes exact softmax attention and its gradients tile by tile. It never
// stores the matrix of scores, so its memory grows with the sequence length N instead of N².
//
//	c := attention.Options{Batch: b, Heads: h, SeqQ: n, Dim: d, Causal: true}
//	err := attention.Forward(out, lse, q, k, v, c)                                 // out = softmax(q·kᵀ/√d)·v
//	err = attention.Backward(dq, dk, dv, dout, q, k, v, out, lse, c, workspace)    // c.WorkspaceLen() float32
//
// q, k, v, out and their gradients are [b, h, n, d] of float32, float16 or bfloat16; lse is
// [b, h, n] of float32. Slices are computed on the CPU, arrays on their device. [SequenceMajor]
// and [PackedQKV] give other layouts. Packed sequences, grouped heads, windows, masks, biases,
// sinks, a soft cap and dropout are fields of [Options].
//
// # Definition
//
// For every batch element and head, with query i of Nq and key j of Nk,
//
//	s_ij  = Scale·(q_i · k_j)
//	s_ij  ← Softcap·tanh(s_ij/Softcap)           with a Softcap
//	s_ij  ← s_ij − slope·|i + Nk − Nq − j|       with Slopes, for BottomRight
//	s_ij  ← s_ij + bias_ij                       with a Bias
//	s_ij  ← Score(s_ij, b, h, i, j)              with a Score
//	p_ij  = exp(s_ij) / (exp(sink) + sum_j' exp(s_ij'))    over the keys that query i sees
//	out_i = sum_j p_ij·keep_ij v_j               keep_ij: 1, or with Dropout 0 or 1/(1-P)
//	lse_i = log (exp(sink) + sum_j exp(s_ij))
//
// [Forward] is the online softmax of Dao, "FlashAttention-2" (2023): for each tile of queries
// it walks over tiles of keys and keeps a running maximum and sum. [Backward] recomputes p from
// lse and redraws keep from its random numbers. All features of [Options] can be combined, in
// both directions and on every device; only Score needs the CPU.
//
// # Masks
//
// Without a mask every query sees every key. Causal hides the keys after the position of a
// query; Align defines that position. Window hides the keys far from it, Mask hides any keys,
// and KLens hides the unused keys at the end of a sequence. A query that sees no key has
// out 0, lse −Inf, or the sink, and zero gradients. So does a query whose scores all overflow
// to −Inf.
//
// Tiles of keys that no query of the tile sees are skipped. A hidden key has no effect: a NaN
// or an infinity in it reaches only the queries that see it.
//
// # Long sequences in parts
//
// [Merge] joins the results for two parts of the keys, as in ring attention. The gradients of a
// part need only the merged out and lse. Shift, Dropout.Query and Dropout.Key locate a part in
// the whole sequence.
//
// # Over ranks
//
// Ranks, which are processes or goroutines, can divide the rows of a sequence:
//
//	rows := attention.RingRows(n, ranks.Rank(), ranks.Size()) // of the sequence: two ranges
//	err := attention.RingForward(ranks, out, lse, q, k, v, c, workspace)
//
// In [RingForward] and [RingBackward] keys and values pass from rank to rank while each rank
// computes. They take any number of rows, heads and ranks. In [UlyssesForward] and
// [UlyssesBackward] the ranks exchange rows for heads. Each rank computes whole heads, with the
// bits of one process, but the number of ranks must divide the heads. accum.Local has ranks in one
// process, and package dist/mpi has ranks in several.
//
// # Generating
//
// [ForwardCached] reads keys and values from pages and from 8-bit integers.
//
// # Kernels
//
// The first kernel of this list that supports a call computes it:
//
//	CUDA, capability 9.0, TMA and wgmma   16 bits; Dim and DimV multiples of 8 up to 256; rows at
//	                                      multiples of 16 bytes; no feature but Causal and GradLSE;
//	                                      Scale above 0
//	CUDA and Metal, matrix units          the same, with any Scale
//	CUDA and Metal, plain                 any type and size; no feature but Causal and GradLSE
//	CUDA and Metal, with features         everything but Score
//	CPU                                   everything
//
// The environment variable SNUG_CUDA=80, read when a device is opened, switches the first one
// off.
//
// # Few queries
//
// A GPU computes the query heads that share a key head together for one query of a sequence, so
// that it reads a key once. Not for packed sequences, nor with Slopes, Bias, Mask or Dropout.
//
// If that leaves multiprocessors without a tile of queries, and a sequence has at least 4 keys for
// each query, Forward cuts the keys that a tile sees into up to 64 splits. A block computes each
// split, and a second launch joins them in float32 (Flash-Decoding, Dao et al. 2023). All kernels
// above but the first have splits, with every feature. The number of splits depends on shapes and
// lengths, the kernel, and the multiprocessors that the driver reports, 32 for Metal. So results
// repeat, but their last bits differ between GPUs with other numbers of multiprocessors, and
// with the size of the batch. They do not for a sequence that attends to itself, as in training: it is never split.
//
// A call with splits borrows up to 4 MiB of the device's memory, which later calls use again. If
// the device has none left, the call returns an error. Graphs cannot borrow: a captured call has
// no splits, and its last bits may differ from those of a call.
//
// # Precision
//
// 16-bit inputs are widened to float32, which is exact. Products, the softmax and all sums are
// float32, and outputs are rounded once, at the end. Results are the same bit for bit for every
// GOMAXPROCS. On a CPU a weight below 2^-100 of the largest weight that its query has met
// counts as 0.
//
// CPUs that multiply bfloat16 in hardware (AMX, AVX512_BF16) take bfloat16 inputs as they are.
// They round the weights p and the gradients ds to bfloat16 before they multiply, as
// FlashAttention does. This adds at most 2^-8 of each term to the error, and subnormal numbers
// may count as 0. The matrix units of GPUs do the same for bfloat16 and float16. In float16 the
// added error is 2^-11 of each term, or 2^-25 of the number that multiplies p or ds/Scale if
// that is more, and a ds/Scale beyond 65504 overflows. A loss scale avoids both.
//
// For ds, Backward uses dout_i · out_i with the rounded out, as FlashAttention does. For
// gradients of a bias or of sinks it uses the weighted mean of dout_i · v_j instead, at the cost
// of two more products per tile. It recovers p from a float32 lse with a relative error of about
// (|s|+|lse|)·2⁻²³.
package attention

import "github.com/snug-ml/snug"

// Forward computes out and lse from q, k and v, on their device.
//
// Shapes: q is [Batch, Heads, SeqQ, Dim], k is [Batch, KVHeads, SeqK, Dim], v
// is [Batch, KVHeads, SeqK, DimV] and out is [Batch, Heads, SeqQ, DimV], each
// in the layout that c's strides give. Query head h reads key head
// h·KVHeads/Heads, rounded down. lse is contiguous [Batch, Heads, SeqQ], or
// empty when no backward pass follows, such as []float32(nil).
//
// q, k, v and out have one element type: F32, F16 or BF16. Only the elements
// that the strides address are read or written. out and lse must not overlap
// the inputs or each other.
//
// It allocates nothing. CPU workers use pooled tiles, see [Options.ScratchBytes]; a GPU
// needs no memory, or for few queries up to 4 MiB, see the package's documentation.
//
// Errors, with nothing written: the errors of [Options.Validate]; ErrDType for other or
// mixed element types; ErrShape for a vector too short for its strides and an lse of the
// wrong length; ErrDevice for operands on different devices; [snug.ErrNoMemory] from a GPU.
func Forward[V snug.Vector, L snug.Vector32](out V, lse L, q, k, v V, c Options) error {
	return forward(forwardJob{
		out: snug.ViewOf(out), lse: snug.ViewOf(lse),
		q: snug.ViewOf(q), k: snug.ViewOf(k), v: snug.ViewOf(v), c: c,
	})
}

// Backward computes the gradients of a loss in q, k and v from dout, its gradient in out,
// and from the operands and results of [Forward]:
//
//	dv_j = sum_i p_ij·keep_ij dout_i
//	ds_ij = p_ij (keep_ij·dout_i · v_j − dout_i · out_i + dlse_i)
//	dq_i = Scale·sum_j ds_ij k_j
//	dk_j = Scale·sum_i ds_ij q_i
//	dbias = sum ds_ij    over what the bias is broadcast to
//	dsink = −sum_i exp(sink − lse_i)·(dout_i · out_i − dlse_i)
//
// without Softcap and Score, whose derivatives multiply ds in dq and dk. dlse is GradLSE.
// Gradients in a bias and in sinks go to Bias.Grad and Sinks.Grad.
//
// dk and dv sum over the query heads that share a key head. dq, dk and dv have the shapes
// and strides of q, k and v, and dout has the shape and strides of out. Backward overwrites the addressed
// elements of dq, dk and dv; in a packed layout the three may interleave in one vector.
// They must not overlap any other operand.
//
// lse is the result of Forward. ws is a workspace of at least [Options.WorkspaceLen]
// elements; its contents mean nothing before or after. Backward allocates nothing. CPU
// workers use pooled tiles, see [Options.ScratchBytes]; a GPU needs no other memory.
//
// Errors: the errors of Forward, and ErrShape for a ws that is too short.
func Backward[V snug.Vector, L snug.Vector32](dq, dk, dv V, dout, q, k, v, out V, lse L, c Options, ws L) error {
	return backward(backwardJob{
		dq: snug.ViewOf(dq), dk: snug.ViewOf(dk), dv: snug.ViewOf(dv), dout: snug.ViewOf(dout),
		q: snug.ViewOf(q), k: snug.ViewOf(k), v: snug.ViewOf(v), out: snug.ViewOf(out),
		lse: snug.ViewOf(lse), delta: snug.ViewOf(ws), c: c,
	})
}
