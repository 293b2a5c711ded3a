package fused_test

import (
	"errors"
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/accum"
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/remat/pack"
)

//check:in tiers race
func ExampleLayerNorm() {
	x := []float32{1, 2, 3, 10, 20, 60} // 2 rows of 3
	gamma, beta := []float32{1, 1, 1}, []float32{0, 0, 10}
	out, mean, rstd := make([]float32, 6), make([]float32, 2), make([]float32, 2)
	if err := fused.LayerNorm(out, mean, rstd, x, gamma, beta, 1e-5); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%.3f\n%.3f %.3f\n", out, mean, rstd)
	// Output:
	// [-1.225 0.000 11.225 -0.926 -0.463 11.389]
	// [2.000 30.000] [1.225 0.046]
}

// In a pre-norm block the gradient of the norm's input is added to that of the
// residual stream, and the gradients of the parameters to those of earlier
// micro-batches.
//
//check:in tiers race
func ExampleLayerNormBackward() {
	const rows, cols = 2, 3
	x, gamma, beta := []float32{1, 2, 3, 10, 20, 60}, []float32{1, 1, 1}, make([]float32, cols)
	out, mean, rstd := make([]float32, rows*cols), make([]float32, rows), make([]float32, rows)
	if err := fused.LayerNorm(out, mean, rstd, x, gamma, beta, 1e-5); err != nil {
		fmt.Println(err)
		return
	}
	residual, dy := []float32{5, 5, 5, 5, 5, 5}, []float32{1, 0, 0, 0, 1, 0}
	dgamma, dbeta := []float32{1, 1, 1}, []float32{1, 1, 1}
	ws := make([]float32, fused.LayerNormWorkspaceLen(rows, cols))
	add := snug.Into{Beta: 1}
	err := fused.LayerNormBackward(residual, dgamma, dbeta, dy, x, mean, rstd, gamma, fused.GradsInto{Input: add, Params: add}, ws)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%.3f\n%.3f %.3f\n", residual, dgamma, dbeta)
	// Output:
	// [5.204 4.592 5.204 4.978 5.028 4.994]
	// [-0.225 0.537 1.000] [2.000 2.000 1.000]
}

// Two rows of three classes, the second padding. gradScale makes the gradient that of the mean.
//
//check:in tiers race
func ExampleElementwiseBackward() {
	x, targets := []float32{0, 2, -1, 9, 9, 9}, []float32{0, 1, 0, 0, 0, 0}
	c := fused.Elementwise{Form: fused.BCE, PosWeight: []float32{1, 2, 1}, Weights: []float32{1, 0}}
	dx := make([]float32, 6)
	loss, err := fused.ElementwiseBackward(c, dx, x, targets, 1./3)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%.4f of %d elements\n%.4f\n", loss.Mean(), loss.Targets, dx)
	// Output:
	// 0.4201 of 3 elements
	// [0.1667 -0.0795 0.0896 0.0000 0.0000 0.0000]
}

//check:in tiers race
func ExampleDiceBackward() {
	x, mask, dx := []float32{4, 4, -4, -4}, []float32{1, 1, 1, 0}, make([]float32, 4)
	loss, err := fused.DiceBackward(fused.Dice{Cols: 4}, dx, x, mask, 1)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%.4f\n%.4f\n", loss.Sum, dx)
	// Output:
	// 0.1727
	// [-0.0035 -0.0035 -0.0035 0.0024]
}

//check:in tiers race
func ExampleGroupNorm() {
	s := fused.Image{Batch: 1, Channels: 4, Positions: 2}
	x := []float32{1, 2, 3, 4, 10, 20, 30, 40} // 4 channels of 2 positions
	gamma, beta := []float32{1, 1, 1, 2}, []float32{0, 0, 0, 0}
	out, mean, rstd := make([]float32, 8), make([]float32, 2), make([]float32, 2)
	ws := make([]float32, fused.GroupNormWorkspaceLen(s))
	if err := fused.GroupNorm(out, mean, rstd, x, gamma, beta, s, 2, 1e-5, ws); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%.2f\n%.1f\n", out, mean)
	// Output:
	// [-1.34 -0.45 0.45 1.34 -1.34 -0.45 0.89 2.68]
	// [2.5 25.0]
}

// A step of training and an evaluation.
//
//check:in tiers race
func ExampleBatchNorm() {
	s := fused.Image{Batch: 2, Channels: 1, Positions: 2}
	x, dy := []float32{1, 2, 3, 4}, []float32{1, 0, 0, 0}
	gamma, beta := []float32{2}, []float32{1}
	runningMean, runningVar := []float32{0}, []float32{1}
	out, mean, m2, rstd := make([]float32, 4), make([]float32, 1), make([]float32, 1), make([]float32, 1)
	ws, n := make([]float32, fused.BatchNormWorkspaceLen(s)), s.Batch*s.Positions
	err := errors.Join(
		fused.BatchMoments(mean, m2, x, s, ws),
		fused.BatchRstd(rstd, m2, n, 1e-5),
		fused.BatchNorm(out, x, mean, rstd, gamma, beta, s),
		fused.UpdateRunning(runningMean, runningVar, mean, m2, n, 0.1))
	fmt.Printf("%.2f, running %.2f %.3f\n", out, runningMean, runningVar)

	dx, sums, dgamma, dbeta := make([]float32, 4), make([]float32, 2), make([]float32, 1), make([]float32, 1)
	err = errors.Join(err,
		fused.BatchNormSums(sums, dgamma, dbeta, dy, x, mean, rstd, s, snug.Into{}, ws),
		fused.BatchNormBackward(dx, dy, x, mean, rstd, sums, gamma, s, n, snug.Into{}))
	fmt.Printf("%.2f %.2f %.2f\n", dx, dgamma, dbeta)

	err = errors.Join(err,
		fused.BatchRstd(rstd, runningVar, 1, 1e-5),
		fused.BatchNorm(out, x, runningMean, rstd, gamma, beta, s))
	fmt.Printf("%.2f %v\n", out, err)
	// Output:
	// [-1.68 0.11 1.89 3.68], running [0.25] [1.067]
	// [0.54 -0.72 -0.18 0.36] [-1.34] [1.00]
	// [2.45 4.39 6.33 8.26] <nil>
}

//check:in tiers race
func ExampleActivate() {
	x := []float32{-2, -1, 0, 3, 8}
	if err := fused.Activate(x, x, fused.ReLU6); err != nil { // in place: backward takes the output
		fmt.Println(err)
		return
	}
	dy, dx := []float32{1, 1, 1, 1, 1}, make([]float32, 5)
	if err := fused.ActivateBackward(dx, dy, x, fused.ReLU6); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(x, dx)
	// Output: [0 0 0 3 6] [0 0 0 1 0]
}

// Of a ReLU whose output no other layer keeps, one bit an element is enough for the backward pass.
//
//check:in tiers race
func ExampleActivateBackward_bits() {
	x, dy := []float32{-2, -1, 0, 3, 8}, []float32{1, 2, 3, 4, 5}
	mask := make([]uint8, pack.BitsLen(len(x)))
	if err := errors.Join(pack.Signs(mask, x), fused.Activate(x, x, fused.ReLU), pack.ApplyBits(dy, dy, mask, 1)); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(x, dy, len(mask), "byte kept")
	// Output: [0 0 0 3 8] [0 0 0 4 5] 1 byte kept
}

//check:in tiers race
func ExampleBiasGELU() {
	x := []snug.BFloat16{snug.ToBFloat16(-1), snug.ToBFloat16(1), snug.ToBFloat16(2), snug.ToBFloat16(3)} // 2 rows of 2
	bias := []snug.BFloat16{snug.ToBFloat16(1), snug.ToBFloat16(-1)}
	if err := fused.BiasGELU(x, x, bias); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(x)
	// Output: [0 0 3 1.953125]
}

//check:in tiers race
func ExampleBiasGELUErf() {
	x := []float32{-1, 1, 2, 3} // 2 rows of 2
	bias := []float32{1, -1}
	out, dx, dbias := make([]float32, 4), make([]float32, 4), make([]float32, 2)
	ws := make([]float32, fused.BiasGELUWorkspaceLen(2, 2))
	if err := fused.BiasGELUErf(out, x, bias); err != nil {
		fmt.Println(err)
		return
	}
	dy := []float32{1, 1, 1, 1}
	if err := fused.BiasGELUErfBackward(dx, dbias, dy, x, bias, snug.Into{}, ws); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%.3f\n%.3f %.3f\n", out, dx, dbias)
	// Output:
	// [0.000 0.000 2.996 1.954]
	// [0.500 0.500 1.012 1.085] [1.512 1.585]
}

//check:in tiers race
func ExampleBiasAdd() {
	x, bias := []float32{1, 2, 3, 4}, []float32{10, 20} // 2 rows of 2
	if err := fused.BiasAdd(x, x, bias); err != nil {
		fmt.Println(err)
		return
	}
	dy, dbias := []float32{1, 2, 3, 4}, make([]float32, 2) // dy is also the gradient of x
	ws := make([]float32, fused.BiasAddWorkspaceLen(2, 2))
	if err := fused.BiasAddBackward(dbias, dy, snug.Into{}, ws); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(x, dbias)
	// Output: [11 22 13 24] [4 6]
}

//check:in tiers race
func ExampleEmbedding() {
	table := []float32{0, 0, 1, 1, 2, 2}  // 3 tokens
	pos := []float32{0.1, 0.2, 0.3, 0.4}  // 2 positions
	out := make([]float32, 3*2)           // 3 rows of 2
	tokens := []int32{2, 0, 2}            // two sequences,
	positions := []int32{0, 1, 0}         // of two tokens and of one
	dtable := make([]float32, len(table)) // the gradient of the table
	if err := fused.Embedding(out, table, tokens, pos, positions, 2); err != nil {
		fmt.Println(err)
		return
	}
	if err := fused.EmbeddingBackward(dtable, out, tokens, 2, snug.Into{Beta: 1}); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%.1f\n%.1f\n", out, dtable)
	fmt.Println(fused.Embedding(out, table, []int32{2, 3, 0}, nil, nil, 2))
	// Output:
	// [2.1 2.2 0.3 0.4 2.1 2.2]
	// [0.3 0.4 0.0 0.0 4.2 4.4]
	// fused: Embedding: tokens[1] is 3, table has 3 rows: snug: shape mismatch
}

//check:in tiers race
func ExampleAdd() {
	x := []float32{1, 2, 3}
	if err := fused.Add(x, x, []float32{10, 20, 30}); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(x)
	// Output: [11 22 33]
}

// The mean loss of three rows and its gradients, with the logits of two rows in
// memory at a time. The second row has no target.
// A step of two micro-batches waits for their losses once.
//
//check:in tiers race
func ExampleLosses() {
	losses := &fused.Losses{}
	head := fused.CrossEntropy{Vocab: 2, Cols: 1, Losses: losses}
	w := []float32{1, -1}
	ws := make([]float32, head.WorkspaceLen(2))
	var all fused.Loss
	for _, micro := range []struct {
		x       []float32
		targets []int32
	}{{[]float32{1, 2}, []int32{0, 1}}, {[]float32{0, 3}, []int32{1, 0}}} {
		loss, err := fused.CrossEntropyLoss(head, micro.x, w, micro.targets, ws)
		if err != nil {
			fmt.Println(err)
			return
		}
		all = all.Plus(loss)
	}
	sum, err := losses.Take()
	if err != nil {
		fmt.Println(err)
		return
	}
	all.Sum += sum
	fmt.Printf("%.4f of %d\n", all.Mean(), all.Targets)
	// Output: 1.2102 of 4
}

//check:in tiers race
func ExampleCrossEntropyBackward() {
	head := fused.CrossEntropy{Vocab: 4, Cols: 2, Chunk: 2}
	x := []float32{1, 0, 0, 1, 2, 2}
	w := []float32{1, 0, 0, 1, -1, 0, 0, -1}
	targets := []int32{0, -1, 1}
	dx, dw := make([]float32, len(x)), make([]float32, len(w))
	ws := make([]float32, head.WorkspaceLen(len(targets)))
	loss, err := fused.CrossEntropyBackward(head, dx, dw, x, w, targets, 1.0/2, snug.Into{}, ws)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%.4f of %d\n%.3f\n%.3f\n", loss.Mean(), loss.Targets, dx, dw)
	// Output:
	// 0.6689 of 2
	// [-0.269 0.000 0.000 0.000 0.241 -0.259]
	// [0.258 0.491 -0.411 -0.509 0.045 0.009 0.107 0.009]
}

//check:in tiers race
func ExampleRMSNorm() {
	x := []float32{3, 4, 0, 0, 6, 8, 0, 0} // 2 rows of 4
	gamma := []float32{1, 2, 1, 1}
	out, rstd := make([]float32, 8), make([]float32, 2)
	if err := fused.RMSNorm(out, rstd, x, gamma, 0); err != nil {
		fmt.Println(err)
		return
	}
	dx, dgamma := make([]float32, 8), make([]float32, 4)
	ws := make([]float32, fused.RMSNormWorkspaceLen(2, 4))
	if err := fused.RMSNormBackward(dx, dgamma, out, x, rstd, gamma, fused.GradsInto{}, ws); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%.2f\n%.2f\n%.2f\n", out, rstd, dgamma)
	// Output:
	// [1.20 3.20 0.00 0.00 1.20 3.20 0.00 0.00]
	// [0.40 0.20]
	// [2.88 10.24 0.00 0.00]
}

//check:in tiers race
func ExampleSwiGLU() {
	gate, up := []float32{-1, 0, 1, 8}, []float32{10, 10, 10, 10}
	out := make([]float32, 4)
	if err := fused.SwiGLU(out, gate, up); err != nil {
		fmt.Println(err)
		return
	}
	dgate, dup, dy := make([]float32, 4), make([]float32, 4), []float32{1, 1, 1, 1}
	if err := fused.SwiGLUBackward(dgate, dup, dy, gate, up); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%.3f\n%.3f\n%.3f\n", out, dgate, dup)
	// Output:
	// [-2.689 0.000 7.311 79.973]
	// [0.723 5.000 9.277 10.023]
	// [-0.269 0.000 0.731 7.997]
}

// Gemma's MLP has the gate of GELU.
//
//check:in tiers race
func ExampleGeGLU() {
	gate, up := []float32{-1, 0, 1, 8}, []float32{10, 10, 10, 10}
	out := make([]float32, 4)
	if err := fused.GeGLU(out, gate, up); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%.3f\n", out)
	// Output: [-1.588 0.000 8.412 80.000]
}

// One row of three heads: a query, a key and a value. The query and the key at
// position 1 are turned; the value is not, and lies in the stride.
//
//check:in tiers race
func ExampleRotary() {
	c := fused.RotaryOptions{Heads: 2, Dim: 2, Stride: 6}
	angles := make([]float32, 4*2) // 4 positions
	if err := fused.RotaryAngles(angles, 2, 10000); err != nil {
		fmt.Println(err)
		return
	}
	qkv := []float32{1, 0, 0, 1, 5, 5}
	if err := fused.Rotary(qkv, angles, []int32{1}, c); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%.3f\n", qkv)
	if err := fused.RotaryBackward(qkv, angles, []int32{1}, c); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%.3f\n", qkv)
	// Output:
	// [0.540 0.841 -0.841 0.540 5.000 5.000]
	// [1.000 0.000 0.000 1.000 5.000 5.000]
}

//check:in tiers race
func ExampleDropout() {
	mask := fused.DropoutMask{P: 0.5, Seed: 42, Tensor: 7}
	x := []float32{1, 2, 3, 4, 5, 6, 7, 8}
	if err := fused.Dropout(x, x, mask); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(x)
	// The same mask for the gradient, in two calls.
	dy := []float32{1, 1, 1, 1, 1, 1, 1, 1}
	rest := mask
	rest.First = 3
	if err := fused.DropoutBackward(dy[:3], dy[:3], mask); err != nil {
		fmt.Println(err)
		return
	}
	if err := fused.DropoutBackward(dy[3:], dy[3:], rest); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(dy)
	// Output:
	// [0 4 0 0 10 0 14 0]
	// [0 2 0 0 2 0 2 0]
}

// A norm's gradient goes straight into the accumulator of a window of micro-batches.
//
//check:in tiers race
func ExampleRMSNormBackward_window() {
	const rows, cols = 2, 4
	window, err := accum.New([]accum.Param{{Name: "gamma", Len: cols}}, accum.Options{Schedule: accum.Constant(2)})
	if err != nil {
		panic(err)
	}
	gamma, x, dy := []float32{1, 1, 1, 1}, []float32{1, -1, 1, -1, 2, 2, -2, -2}, []float32{1, 2, 3, 4, 5, 6, 7, 8}
	out, dx, rstd := make([]float32, rows*cols), make([]float32, rows*cols), make([]float32, rows)
	ws := make([]float32, fused.RMSNormWorkspaceLen(rows, cols))
	for range 2 { // micro-batches
		if err := fused.RMSNorm(out, rstd, x, gamma, 0); err != nil {
			panic(err)
		}
		if err := window.Begin(rows); err != nil {
			panic(err)
		}
		dgamma, into, err := window.Into("gamma")
		if err != nil {
			panic(err)
		}
		if err := fused.RMSNormBackward(dx, dgamma, dy, x, rstd, gamma, fused.GradsInto{Params: into}, ws); err != nil {
			panic(err)
		}
		if _, err := window.End(); err != nil {
			panic(err)
		}
	}
	for name, mean := range window.Gradients() {
		fmt.Println(name, mean.Float32s())
	}
	// Output: gamma [6 4 -4 -12]
}

// A policy gradient: the loss of a token is −advantage·log p, so its derivative is −advantage.
//
//check:in tiers race
func ExampleLogProbs() {
	const rows, vocab, cols = 3, 4, 2
	head := fused.CrossEntropy{Vocab: vocab, Cols: cols, Temperature: 0.5}
	x, w := []float32{1, 0, 0, 1, 1, 1}, []float32{1, 0, 0, 1, -1, 0, 0, -1}
	tokens, advantages := []int32{0, -1, 3}, []float32{2, 0, -1} // the second token is the prompt's
	logp, lse := make([]float32, rows), make([]float32, rows)
	ws := make([]float32, head.WorkspaceLen(rows))
	if err := fused.LogProbs(head, logp, lse, x, w, tokens, ws); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%.3f\n", logp)

	dlogp := make([]float32, rows)
	for i, a := range advantages {
		dlogp[i] = -a / 2 // the mean over two tokens
	}
	dx, dw := make([]float32, rows*cols), make([]float32, vocab*cols)
	err := fused.LogProbsBackward(head, dx, dw, dlogp, nil, lse, x, w, tokens, snug.Into{}, ws)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%.3f\n%.3f\n", dx, dw)
	// Output:
	// [-0.254 0.000 -4.711]
	// [-0.477 0.000 0.000 0.000 -0.482 -1.482]
	// [-0.939 -0.491 -0.281 -0.491 0.019 -0.009 1.201 0.991]
}

// A student learns the distribution of a teacher with other columns and another type.
//
//check:in tiers race
func ExampleDistillBackward() {
	const rows, vocab = 2, 3
	student := fused.CrossEntropy{Vocab: vocab, Cols: 2, Temperature: 2}
	teacher := fused.CrossEntropy{Vocab: vocab, Cols: 1, Temperature: 2}
	x, w := []float32{1, 0, 0, 1}, []float32{1, 0, 0, 1, -1, -1}
	tx, tw := []snug.BFloat16{snug.ToBFloat16(1), snug.ToBFloat16(-1)}, []snug.BFloat16{snug.ToBFloat16(2), snug.ToBFloat16(0), snug.ToBFloat16(-2)}
	dx, dw := make([]float32, len(x)), make([]float32, len(w))
	ws := make([]float32, fused.DistillWorkspaceLen(student, teacher, rows))
	const scale = 2 * 2 / float32(rows) // T² over the mean
	loss, err := fused.DistillBackward(student, teacher, dx, dw, x, w, tx, tw, scale, snug.Into{}, ws)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%.3f\n%.3f\n%.3f\n", loss.Mean(), dx, dw)
	// Output:
	// 0.309
	// [-0.255 -0.034 0.696 0.741]
	// [-0.159 0.217 0.062 0.262 0.096 -0.479]
}
