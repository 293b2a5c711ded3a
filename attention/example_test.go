package attention_test

import (
	"fmt"
	"log"

	"github.com/snug-ml/snug/attention"
)

// Two causal queries: the first sees only the first key and copies its value.
func ExampleForward() {
	c := attention.Config{Batch: 1, Heads: 1, SeqQ: 2, SeqK: 2, Dim: 2, Causal: true}
	q := []float32{1, 0, 0, 1}
	k := []float32{1, 0, 0, 1}
	v := []float32{10, 20, 30, 40}
	out, lse := make([]float32, 4), make([]float32, 2)
	if err := attention.Forward(out, lse, q, k, v, c); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("out %.3f\nlse %.3f\n", out, lse)
	// Output:
	// out [10.000 20.000 23.395 33.395]
	// lse [0.707 1.108]
}

func ExampleBackward() {
	c := attention.Config{Batch: 1, Heads: 1, SeqQ: 2, SeqK: 2, Dim: 2, Causal: true}
	q := []float32{1, 0, 0, 1}
	k := []float32{1, 0, 0, 1}
	v := []float32{10, 20, 30, 40}
	out, lse := make([]float32, 4), make([]float32, 2)
	if err := attention.Forward(out, lse, q, k, v, c); err != nil {
		log.Fatal(err)
	}
	dout := []float32{1, 1, 1, 1} // the loss is the sum of out
	dq, dk, dv := make([]float32, 4), make([]float32, 4), make([]float32, 4)
	ws := make([]float32, c.WorkspaceLen())
	if err := attention.Backward(dq, dk, dv, dout, q, k, v, out, lse, c, ws); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("dq %.3f\ndk %.3f\ndv %.3f\n", dq, dk, dv)
	// Output:
	// dq [0.000 0.000 -6.256 6.256]
	// dk [0.000 -6.256 0.000 6.256]
	// dv [1.330 1.330 0.670 0.670]
}

// One tensor [batch, seq, 3, heads, dim], as a projection writes it.
func ExamplePackedQKV() {
	const batch, seq, heads, dim = 2, 5, 3, 4
	c := attention.PackedQKV(attention.Config{Batch: batch, Heads: heads, SeqQ: seq, Dim: dim, Causal: true})
	qkv := make([]float32, batch*seq*3*heads*dim)
	for i := range qkv {
		qkv[i] = float32(i%7) - 3
	}
	out := make([]float32, batch*seq*heads*dim) // [batch, seq, heads, dim]
	err := attention.Forward(out, []float32(nil), qkv, qkv[heads*dim:], qkv[2*heads*dim:], c)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("the first query copies the first value:", out[:dim], qkv[2*heads*dim:][:dim])
	// Output: the first query copies the first value: [0 1 2 3] [0 1 2 3]
}

// Grouped-query attention with a cache: one new query at the end of 100 keys,
// and 8 query heads on 2 key heads.
func ExampleConfig() {
	c := attention.Config{Batch: 1, Heads: 8, KVHeads: 2, SeqQ: 1, SeqK: 100, Dim: 64, Causal: true}
	fmt.Println("valid:", c.Validate() == nil)
	fmt.Println("workspace of Backward in elements:", c.WorkspaceLen())
	// Output:
	// valid: true
	// workspace of Backward in elements: 8
}
