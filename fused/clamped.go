package fused

import (
	"github.com/snug-ml/snug"
)

// ClampedSwiGLU computes the gated activation of gpt-oss, which clamps its inputs gate and up (OpenAI, "gpt-oss-120b &
// gpt-oss-20b Model Card" (2025)):
//
//	out[i] = (u + 1)·g·σ(alpha·g)      g = min(gate[i], limit), u = min(max(up[i], −limit), limit)
//
// gpt-oss has an alpha of 1.702 and a limit of 7. Both must be from 1e-9 to 1e9 (else [snug.ErrConfig]). gpt-oss stores
// gate and up in one matrix whose columns alternate; here they are two vectors, as in [SwiGLU].
//
// Shapes, aliasing and errors are as for SwiGLU. alpha·g·σ(alpha·g) has the error bound of silu in SwiGLU; this bound
// divided by alpha and multiplied by |u + 1| is the bound of the output. In the backward pass the derivative has the
// error bound of the derivative of silu. A NaN in gate or up gives NaN: the clamp keeps it. Each worker holds 16 KiB.
func ClampedSwiGLU[V snug.Vector](out, gate, up V, alpha, limit float32) error {
	check := &checks{op: "ClampedSwiGLU"}
	checkClamp(check, alpha, limit)
	return gated(check, gatedJob{activation{clampedGate, alpha, limit}, snug.ViewOf(out), snug.ViewOf(gate), snug.ViewOf(up)})
}

// ClampedSwiGLUBackward computes the gradients of [ClampedSwiGLU] from the gradient dy of its output and from its
// inputs gate and up:
//
//	dgate[i] = dy[i]·(u + 1)·(σ(t) + t·σ(t)·(1 − σ(t)))      t = alpha·g; 0 where gate[i] ≥ limit
//	dup[i]   = dy[i]·g·σ(t)                                  0 where |up[i]| ≥ limit
//
// At the limit itself the gradients are 0, as in torch.clamp of PyTorch 2.15. Shapes, aliasing, errors and memory are
// as for [SwiGLUBackward].
func ClampedSwiGLUBackward[V snug.Vector](dgate, dup, dy, gate, up V, alpha, limit float32) error {
	check := &checks{op: "ClampedSwiGLUBackward"}
	checkClamp(check, alpha, limit)
	return gatedBackward(check, gatedBackwardJob{activation{clampedGate, alpha, limit}, snug.ViewOf(dgate), snug.ViewOf(dup), snug.ViewOf(dy), snug.ViewOf(gate), snug.ViewOf(up)})
}

// checkClamp refuses an alpha or a limit that is so large or so small that their product or an inverse might leave the
// range of float32.
func checkClamp(check *checks, alpha, limit float32) {
	const low, high = 1e-9, 1e9
	if !(alpha >= low && alpha <= high) {
		check.failf(snug.ErrConfig, "alpha is %v, want %g to %g", alpha, low, high)
	}
	if !(limit >= low && limit <= high) {
		check.failf(snug.ErrConfig, "limit is %v, want %g to %g", limit, low, high)
	}
}
