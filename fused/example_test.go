package fused_test

import (
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/fused"
)

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
	add := fused.Into{Beta: 1}
	err := fused.LayerNormBackward(residual, dgamma, dbeta, dy, x, mean, rstd, gamma, fused.Grads{Input: add, Params: add}, ws)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%.3f\n%.3f %.3f\n", residual, dgamma, dbeta)
	// Output:
	// [5.204 4.592 5.204 4.978 5.028 4.994]
	// [-0.225 0.537 1.000] [2.000 2.000 1.000]
}

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
	if err := fused.EmbeddingBackward(dtable, out, tokens, 2, 1); err != nil {
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
func ExampleCrossEntropyBackward() {
	head := fused.CrossEntropy{Vocab: 4, Cols: 2, Chunk: 2}
	x := []float32{1, 0, 0, 1, 2, 2}
	w := []float32{1, 0, 0, 1, -1, 0, 0, -1}
	targets := []int32{0, -1, 1}
	dx, dw := make([]float32, len(x)), make([]float32, len(w))
	ws := make([]float32, head.WorkspaceLen(len(targets)))
	loss, err := fused.CrossEntropyBackward(head, dx, dw, x, w, targets, 1.0/2, fused.Into{}, ws)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%.4f of %d\n%.3f\n%.3f\n", loss.Sum/float64(loss.Targets), loss.Targets, dx, dw)
	// Output:
	// 0.6689 of 2
	// [-0.269 0.000 0.000 0.000 0.241 -0.259]
	// [0.258 0.491 -0.411 -0.509 0.045 0.009 0.107 0.009]
}
