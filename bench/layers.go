package main

import (
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/fused"
)

// layers are the fused layers of a transformer, on activations in the caches
// and beyond.
func layers(s sizes) (all []work) {
	kinds := []func(dt snug.DType, rows, cols int) []work{layerNorms, rmsNorms, gelus, swiGLUs, additions, rotaries, dropouts, s.embeddings}
	for _, kind := range kinds {
		var group []work // sorted below, so that each kernel comes with all its shapes
		for _, dt := range both {
			for _, activations := range s.layers {
				group = append(group, kind(dt, activations.rows, activations.cols)...)
			}
		}
		all = append(all, byKernel(group)...)
	}
	var group []work
	for _, dt := range both {
		group = append(group, s.heads(dt, s.loss.rows, s.loss.cols)...)
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
	setup := func(mem *memory) (forward, backward func() error) {
		x, dy, out := mem.operand(dt, n), mem.operand(dt, n), mem.empty(dt, n)
		gamma, beta := mem.operand(dt, cols), mem.operand(dt, cols)
		mean, rstd := mem.empty(snug.F32, rows), mem.empty(snug.F32, rows)
		dgamma, dbeta := mem.empty(snug.F32, cols), mem.empty(snug.F32, cols)
		ws := mem.empty(snug.F32, fused.LayerNormWorkspaceLen(rows, cols))
		return func() error { return fused.LayerNorm(out, mean, rstd, x, gamma, beta, 1e-5) },
			func() error {
				return fused.LayerNormBackward(out, dgamma, dbeta, dy, x, mean, rstd, gamma, fused.GradsInto{}, ws)
			}
	}
	return []work{
		layer("layernorm", dt, rows, cols, 1, 1, 8, forwardOf(setup)),
		layer("layernorm backward", dt, rows, cols, 2, 1, 14, backwardOf(setup)),
	}
}

func rmsNorms(dt snug.DType, rows, cols int) []work {
	n := rows * cols
	setup := func(mem *memory) (forward, backward func() error) {
		x, dy, out, gamma, rstd := mem.operand(dt, n), mem.operand(dt, n), mem.empty(dt, n), mem.operand(dt, cols), mem.empty(snug.F32, rows)
		dgamma, ws := mem.empty(snug.F32, cols), mem.empty(snug.F32, fused.RMSNormWorkspaceLen(rows, cols))
		return func() error { return fused.RMSNorm(out, rstd, x, gamma, 1e-5) },
			func() error { return fused.RMSNormBackward(out, dgamma, dy, x, rstd, gamma, fused.GradsInto{}, ws) }
	}
	return []work{
		layer("rmsnorm", dt, rows, cols, 1, 1, 4, forwardOf(setup)),
		layer("rmsnorm backward", dt, rows, cols, 2, 1, 10, backwardOf(setup)),
	}
}

func gelus(dt snug.DType, rows, cols int) []work {
	n := rows * cols
	setup := func(mem *memory) (forward, backward func() error) {
		x, dy, out, bias := mem.operand(dt, n), mem.operand(dt, n), mem.empty(dt, n), mem.operand(dt, cols)
		dbias, ws := mem.empty(snug.F32, cols), mem.empty(snug.F32, fused.BiasGELUWorkspaceLen(rows, cols))
		return func() error { return fused.BiasGELU(out, x, bias) },
			func() error { return fused.BiasGELUBackward(out, dbias, dy, x, bias, snug.Into{}, ws) }
	}
	return []work{
		layer("bias+gelu", dt, rows, cols, 1, 1, 20, forwardOf(setup)),
		layer("bias+gelu backward", dt, rows, cols, 2, 1, 30, backwardOf(setup)),
	}
}

func additions(dt snug.DType, rows, cols int) []work {
	n := rows * cols
	return []work{layer("add", dt, rows, cols, 2, 1, 1, func(mem *memory) (run, done func() error, err error) {
		a, b, out := mem.operand(dt, n), mem.operand(dt, n), mem.empty(dt, n)
		return func() error { return fused.Add(out, a, b) }, nil, nil
	})}
}

func swiGLUs(dt snug.DType, rows, cols int) []work {
	n := rows * cols
	setup := func(mem *memory) (forward, backward func() error) {
		gate, up, dy, out, dup := mem.operand(dt, n), mem.operand(dt, n), mem.operand(dt, n), mem.empty(dt, n), mem.empty(dt, n)
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
	turn := layer("rotary", dt, rows, cols, 1, 1, 3, func(mem *memory) (run, done func() error, err error) {
		table := make([]float32, context*dim)
		if err := fused.RotaryAngles(table, dim, 10000); err != nil {
			return nil, nil, err
		}
		x, angles, positions := mem.operand(dt, rows*cols), mem.put(snug.ViewOf(table)), tokens(rows, context)
		c := fused.RotaryOptions{Heads: cols / dim, Dim: dim}
		return func() error { return fused.Rotary(x, angles, positions, c) }, nil, nil
	})
	turn.inPlace = true
	return []work{turn}
}

// dropouts have the same work in both passes.
func dropouts(dt snug.DType, rows, cols int) []work {
	n := rows * cols
	return []work{layer("dropout", dt, rows, cols, 1, 1, 2, func(mem *memory) (run, done func() error, err error) {
		x, out, mask := mem.operand(dt, n), mem.empty(dt, n), fused.DropoutMask{P: 0.1}
		return func() error {
			mask.Tensor++
			return fused.Dropout(out, x, mask)
		}, nil, nil
	})}
}

func (s sizes) embeddings(dt snug.DType, rows, cols int) []work {
	n := rows * cols
	setup := func(mem *memory) (forward, backward func() error) {
		const context = 512
		table, pos, out := mem.operand(dt, s.vocab*cols), mem.operand(dt, context*cols), mem.operand(dt, n)
		ids, positions, dtable := tokens(rows, s.vocab), tokens(rows, context), mem.empty(snug.F32, s.vocab*cols)
		return func() error { return fused.Embedding(out, table, ids, pos, positions, cols) },
			func() error { return fused.EmbeddingBackward(dtable, out, ids, cols, snug.Into{Beta: 1}) }
	}
	forward := layer("embedding", dt, rows, cols, 2, 1, 1, forwardOf(setup))
	backward := layer("embedding backward", dt, rows, cols, 1, 0, 2, backwardOf(setup))
	backward.reads += size(snug.F32, n)
	backward.writes += size(snug.F32, n)
	backward.inPlace = true
	return []work{forward, backward}
}

// forwardOf and backwardOf prepare one of two passes. The forward pass runs
// once before the backward pass, which needs its statistics.
func forwardOf(setup func(mem *memory) (forward, backward func() error)) preparation {
	return func(mem *memory) (run, done func() error, err error) {
		forward, _ := setup(mem)
		return forward, nil, nil
	}
}

func backwardOf(setup func(mem *memory) (forward, backward func() error)) preparation {
	return func(mem *memory) (run, done func() error, err error) {
		forward, backward := setup(mem)
		return backward, nil, forward()
	}
}
