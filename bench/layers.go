package main

import (
	"fmt"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/fused"
)

// vocabulary is the rows of embedding tables and output layers.
const vocabulary = 16384

// layers are the fused layers of a transformer, on activations in the caches
// and beyond.
func layers(o options) (all []work) {
	type shape struct{ rows, cols int }
	sizes, loss := []shape{{128, 512}, {1024, 1024}, {32768, 1024}}, shape{1024, 512}
	if o.short {
		sizes, loss = []shape{{128, 512}}, shape{128, 128}
	}
	kinds := []func(dt snug.DType, rows, cols int) []work{layerNorms, rmsNorms, gelus, swiGLUs, additions, rotaries, dropouts, embeddings}
	for _, kind := range kinds {
		var group []work // of which each kernel comes with all its shapes
		for _, dt := range both {
			for _, s := range sizes {
				group = append(group, kind(dt, s.rows, s.cols)...)
			}
		}
		all = append(all, byKernel(group)...)
	}
	var group []work
	for _, dt := range both {
		group = append(group, crossEntropies(dt, loss.rows, loss.cols)...)
	}
	return append(all, byKernel(group)...)
}

// byKernel sorts a group by the kernels' first appearance.
func byKernel(group []work) (sorted []work) {
	seen := map[string]bool{}
	for _, first := range group {
		if seen[first.kernel] {
			continue
		}
		seen[first.kernel] = true
		for _, w := range group {
			if w.kernel == first.kernel {
				sorted = append(sorted, w)
			}
		}
	}
	return sorted
}

// layer is an elementwise layer: how many tensors of rows × cols it reads and
// writes, and its operations an element.
func layer(kernel string, dt snug.DType, rows, cols int, reads, writes, ops float64, prepare preparation) work {
	n := rows * cols
	return work{
		kernel: kernel, dtype: dt.String(), shape: fmt.Sprintf("rows=%d cols=%d", rows, cols),
		reads: reads * size(dt, n), writes: writes * size(dt, n), ops: ops * float64(n),
		peers: []string{torch, torchCompile}, prepare: prepare,
	}
}

func layerNorms(dt snug.DType, rows, cols int) []work {
	n := rows * cols
	setup := func() (forward, backward func() error) {
		x, dy, out := operand(dt, n), operand(dt, n), empty(dt, n)
		gamma, beta := operand(dt, cols), operand(dt, cols)
		mean, rstd := empty(snug.F32, rows), empty(snug.F32, rows)
		dgamma, dbeta := empty(snug.F32, cols), empty(snug.F32, cols)
		ws := empty(snug.F32, fused.LayerNormWorkspaceLen(rows, cols))
		return func() error { return fused.LayerNorm(out, mean, rstd, x, gamma, beta, 1e-5) },
			func() error {
				return fused.LayerNormBackward(out, dgamma, dbeta, dy, x, mean, rstd, gamma, fused.Grads{}, ws)
			}
	}
	return []work{
		layer("layernorm", dt, rows, cols, 1, 1, 8, forwardOf(setup)),
		layer("layernorm backward", dt, rows, cols, 2, 1, 14, backwardOf(setup)),
	}
}

func rmsNorms(dt snug.DType, rows, cols int) []work {
	n := rows * cols
	setup := func() (forward, backward func() error) {
		x, dy, out, gamma, rstd := operand(dt, n), operand(dt, n), empty(dt, n), operand(dt, cols), empty(snug.F32, rows)
		dgamma, ws := empty(snug.F32, cols), empty(snug.F32, fused.RMSNormWorkspaceLen(rows, cols))
		return func() error { return fused.RMSNorm(out, rstd, x, gamma, 1e-5) },
			func() error { return fused.RMSNormBackward(out, dgamma, dy, x, rstd, gamma, fused.Grads{}, ws) }
	}
	return []work{
		layer("rmsnorm", dt, rows, cols, 1, 1, 4, forwardOf(setup)),
		layer("rmsnorm backward", dt, rows, cols, 2, 1, 10, backwardOf(setup)),
	}
}

func gelus(dt snug.DType, rows, cols int) []work {
	n := rows * cols
	setup := func() (forward, backward func() error) {
		x, dy, out, bias := operand(dt, n), operand(dt, n), empty(dt, n), operand(dt, cols)
		dbias, ws := empty(snug.F32, cols), empty(snug.F32, fused.BiasGELUWorkspaceLen(rows, cols))
		return func() error { return fused.BiasGELU(out, x, bias) },
			func() error { return fused.BiasGELUBackward(out, dbias, dy, x, bias, fused.Into{}, ws) }
	}
	return []work{
		layer("bias+gelu", dt, rows, cols, 1, 1, 20, forwardOf(setup)),
		layer("bias+gelu backward", dt, rows, cols, 2, 1, 30, backwardOf(setup)),
	}
}

func additions(dt snug.DType, rows, cols int) []work {
	n := rows * cols
	return []work{layer("add", dt, rows, cols, 2, 1, 1, func() (run, done func() error, err error) {
		a, b, out := operand(dt, n), operand(dt, n), empty(dt, n)
		return func() error { return fused.Add(out, a, b) }, nil, nil
	})}
}

func swiGLUs(dt snug.DType, rows, cols int) []work {
	n := rows * cols
	setup := func() (forward, backward func() error) {
		gate, up, dy, out, dup := operand(dt, n), operand(dt, n), operand(dt, n), empty(dt, n), empty(dt, n)
		return func() error { return fused.SwiGLU(out, gate, up) },
			func() error { return fused.SwiGLUBackward(out, dup, dy, gate, up) }
	}
	return []work{
		layer("swiglu", dt, rows, cols, 2, 1, 15, forwardOf(setup)),
		layer("swiglu backward", dt, rows, cols, 3, 2, 20, backwardOf(setup)),
	}
}

// rotaries turn heads of 64 elements. The backward pass is the same work.
func rotaries(dt snug.DType, rows, cols int) []work {
	const context, dim = 512, 64
	return []work{layer("rotary", dt, rows, cols, 1, 1, 3, func() (run, done func() error, err error) {
		x, angles, positions := operand(dt, rows*cols), make([]float32, context*dim), tokens(rows, context)
		c := fused.RotaryConfig{Heads: cols / dim, Dim: dim}
		view := snug.ViewOf(angles)
		return func() error { return fused.Rotary(x, view, positions, c) }, nil, fused.RotaryAngles(angles, dim, 10000)
	})}
}

// dropouts have the same work in both passes.
func dropouts(dt snug.DType, rows, cols int) []work {
	n := rows * cols
	return []work{layer("dropout", dt, rows, cols, 1, 1, 2, func() (run, done func() error, err error) {
		x, out, mask := operand(dt, n), empty(dt, n), fused.DropoutMask{P: 0.1}
		return func() error {
			mask.Tensor++
			return fused.Dropout(out, x, mask)
		}, nil, nil
	})}
}

func embeddings(dt snug.DType, rows, cols int) []work {
	n := rows * cols
	setup := func() (forward, backward func() error) {
		const context = 512
		table, pos, out := operand(dt, vocabulary*cols), operand(dt, context*cols), operand(dt, n)
		ids, positions, dtable := tokens(rows, vocabulary), tokens(rows, context), empty(snug.F32, vocabulary*cols)
		return func() error { return fused.Embedding(out, table, ids, pos, positions, cols) },
			func() error { return fused.EmbeddingBackward(dtable, out, ids, cols, 1) }
	}
	forward := layer("embedding", dt, rows, cols, 2, 1, 1, forwardOf(setup))
	backward := layer("embedding backward", dt, rows, cols, 1, 0, 2, backwardOf(setup))
	backward.reads += size(snug.F32, n)
	backward.writes += size(snug.F32, n)
	return []work{forward, backward}
}

// crossEntropies are linear + softmax cross-entropy without logits.
func crossEntropies(dt snug.DType, rows, cols int) []work {
	setup := func() (forward, backward func() error) {
		c := fused.CrossEntropy{Vocab: vocabulary, Cols: cols}
		// Logits of deviation 1: larger ones would give denormal probabilities.
		x, w, dx := operand(dt, rows*cols), scaled(dt, vocabulary*cols, 1/math.Sqrt(float64(cols))), empty(dt, rows*cols)
		dw, targets, ws := empty(snug.F32, vocabulary*cols), tokens(rows, vocabulary), empty(snug.F32, c.WorkspaceLen(rows))
		return func() error { _, err := fused.CrossEntropyLoss(c, x, w, targets, ws); return err },
			func() error {
				_, err := fused.CrossEntropyBackward(c, dx, dw, x, w, targets, 1/float32(rows), fused.Into{}, ws)
				return err
			}
	}
	var all []work
	weights, product := size(dt, vocabulary*cols), 2*float64(rows)*float64(cols)*vocabulary
	for _, w := range []work{
		layer("cross-entropy", dt, rows, cols, 1, 0, 0, forwardOf(setup)),
		layer("cross-entropy backward", dt, rows, cols, 1, 1, 0, backwardOf(setup)),
	} {
		w.shape += fmt.Sprintf(" vocab=%d", vocabulary)
		w.bf16 = dt == snug.BF16
		w.peers = append(w.peers, withoutAMX(dt)...)
		w.reads += weights
		w.products = product
		if w.writes > 0 {
			w.writes += size(snug.F32, vocabulary*cols)
			w.products = 3 * product
		}
		w.ops = w.products
		all = append(all, w)
	}
	return all
}

// forwardOf and backwardOf prepare one of two passes. The forward pass runs
// once before the backward pass, which needs its statistics.
func forwardOf(setup func() (forward, backward func() error)) preparation {
	return func() (run, done func() error, err error) {
		forward, _ := setup()
		return forward, nil, nil
	}
}

func backwardOf(setup func() (forward, backward func() error)) preparation {
	return func() (run, done func() error, err error) {
		forward, backward := setup()
		return backward, nil, forward()
	}
}
