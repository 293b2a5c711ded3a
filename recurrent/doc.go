// Package recurrent computes the layers that carry a state along a sequence in place of attention's keys and values, forward and
// backward: the causal depthwise convolution, the gated delta rule with its gates, and the selective state space of Mamba-2 with its gated
// norm.
//
//	c := recurrent.Conv{Batch: recurrent.Batch{Rows: n}, Channels: d, Taps: 4, SiLU: true}
//	err := recurrent.ConvForward(y, x, w, bias, c)                                  // y_t = silu(bias + Σ_j w_j·x_(t−3+j))
//	err = recurrent.ConvBackward(dx, dw, db, dy, x, w, bias, c, snug.Into{})
//
//	r := recurrent.Delta{Batch: recurrent.Batch{Rows: n}, KeyHeads: 16, Heads: 32, KeyDim: 128, Dim: 128, Normalize: true}
//	err = recurrent.GatesForward(g, beta, a, b, aLog, bias, 32)                     // decays and step sizes, of logits a and b
//	err = recurrent.DeltaForward(out, q, k, v, g, beta, states, r)                  // r.StatesLen() float32
//	err = recurrent.DeltaBackward(dq, dk, dv, dg, dbeta, dout, q, k, v, g, beta, states, r)
//
//	s := recurrent.SSD{Batch: recurrent.Batch{Rows: n}, Groups: 1, Heads: 24, StateDim: 128, Dim: 64}
//	err = recurrent.SSDForward(y, x, b, c, dt, aLog, skip, bias, states, s)         // s.StatesLen() float32
//	err = recurrent.SSDBackward(grads, dy, x, b, c, dt, aLog, skip, bias, states, workspace, s)
//
// Rows of all sequences lie one after the other, the channels or the heads of a row side by side. The state is 0 at the first
// row of each sequence, or Initial, and Final takes what it is behind the last: with one row a sequence that is a step of
// generation. Initial and Final may be the same memory.
//
// # Memory
//
// All keep nothing of a sequence but its rows, and the delta rule and the state space a state for every [SegmentRows] rows after the first
// of them; the backward pass computes the states between from that. Each running worker has tiles in a reused buffer; see
// [Conv.ScratchBytes], [Delta.ScratchBytes], [SSD.ScratchBytes] and [GatedNorm.ScratchBytes]. Nothing else is allocated.
//
// # Types
//
// The vectors V of one call have one element type: float32, binary16 or bfloat16. They are widened to float32, which is exact,
// and results are rounded once, to nearest even. States, decays, gradients of weights and all sums are float32. Results do not
// depend on GOMAXPROCS, bit for bit.
//
// # Errors
//
// Arguments are checked before anything is written: the shape ([snug.ErrShape], [snug.ErrConfig]), element types
// ([snug.ErrDType]), lengths ([snug.ErrShape]), devices ([snug.ErrDevice]). All are computed on the CPU: for vectors of
// another device the error wraps [snug.ErrDevice]. Results may not overlap operands, which is not checked.
package recurrent
