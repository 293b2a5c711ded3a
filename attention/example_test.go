package attention_test

import (
	"fmt"
	"log"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/attention"
)

// Two causal queries: the first sees only the first key and copies its value.
//
//check:in tiers race
func ExampleForward() {
	c := attention.Options{Batch: 1, Heads: 1, SeqQ: 2, SeqK: 2, Dim: 2, Causal: true}
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

//check:in tiers race
func ExampleBackward() {
	c := attention.Options{Batch: 1, Heads: 1, SeqQ: 2, SeqK: 2, Dim: 2, Causal: true}
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
//
//check:in tiers race
func ExamplePackedQKV() {
	const batch, seq, heads, dim = 2, 5, 3, 4
	c := attention.PackedQKV(attention.Options{Batch: batch, Heads: heads, SeqQ: seq, Dim: dim, Causal: true})
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
//
//check:in tiers race
func ExampleOptions() {
	c := attention.Options{Batch: 1, Heads: 8, KVHeads: 2, SeqQ: 1, SeqK: 100, Dim: 64, Causal: true}
	fmt.Println("valid:", c.Validate() == nil)
	fmt.Println("workspace of Backward in elements:", c.WorkspaceLen())
	// Output:
	// valid: true
	// workspace of Backward in elements: 8
}

// A sliding window, a soft cap, a sink for every head and dropout, together.
//
//check:in tiers race
func ExampleOptions_features() {
	const heads, seq, dim = 2, 6, 4
	sinks, dsinks := []float32{0.5, -0.5}, make([]float32, heads)
	c := attention.Options{
		Batch: 1, Heads: heads, SeqQ: seq, SeqK: seq, Dim: dim, Causal: true,
		Window:  attention.Window{Left: 3},
		Softcap: 30,
		Sinks:   attention.Sinks{X: snug.ViewOf(sinks), Grad: snug.ViewOf(dsinks)},
		Dropout: attention.Dropout{P: 0.1, Seed: 1},
	}
	n := heads * seq * dim
	q, k, v, dout := make([]float32, n), make([]float32, n), make([]float32, n), make([]float32, n)
	for i := range q {
		q[i], k[i], v[i], dout[i] = float32(i%5), float32(i%3), float32(i%7), 1
	}
	out, lse := make([]float32, n), make([]float32, heads*seq)
	if err := attention.Forward(out, lse, q, k, v, c); err != nil {
		log.Fatal(err)
	}
	dq, dk, dv := make([]float32, n), make([]float32, n), make([]float32, n)
	err := attention.Backward(dq, dk, dv, dout, q, k, v, out, lse, c, make([]float32, c.WorkspaceLen()))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("gradients in the sinks %.3f\n", dsinks)
	// Output: gradients in the sinks [-1.924 -0.163]
}

// Three documents of different lengths in one tensor, without padding.
//
//check:in tiers race
func ExampleOptions_packed() {
	starts := []int{0, 2, 2, 5} // the second is empty
	c := attention.Options{Batch: 3, Heads: 1, SeqQ: 5, SeqK: 5, Dim: 1, Causal: true, QStarts: starts}
	zero, v := make([]float32, 5), []float32{1, 3, 10, 20, 30}
	out := make([]float32, 5)
	if err := attention.Forward(out, []float32(nil), zero, zero, v, c); err != nil {
		log.Fatal(err)
	}
	fmt.Println("means of what was seen:", out)
	// Output: means of what was seen: [1 2 10 15 20]
}

// A bias for every head and distance, broadcast over the batch, and its gradient.
//
//check:in tiers race
func ExampleBias() {
	const seq = 3
	bias, dbias := make([]float32, seq*seq), make([]float32, seq*seq)
	bias[1] = 5 // the first query prefers the second key
	c := attention.Options{Batch: 2, Heads: 1, SeqQ: seq, SeqK: seq, Dim: 1}
	c.Bias = attention.Bias{X: snug.ViewOf(bias), Dims: [4]int{1, 1, seq, seq}, Grad: snug.ViewOf(dbias)}
	q, v, dout := make([]float32, 6), []float32{1, 2, 3, 1, 2, 3}, []float32{1, 1, 1, 1, 1, 1}
	out, lse, d := make([]float32, 6), make([]float32, 6), make([]float32, 18)
	if err := attention.Forward(out, lse, q, q, v, c); err != nil {
		log.Fatal(err)
	}
	err := attention.Backward(d[:6], d[6:12], d[12:], dout, q, q, v, out, lse, c, make([]float32, c.WorkspaceLen()))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("first query: out %.3f, gradient in its bias %.3f\n", out[0], dbias[:seq])
	// Output: first query: out 2.000, gradient in its bias [-0.013 0.000 0.013]
}

// A mask of documents: queries see the keys of their own.
//
//check:in tiers race
func ExampleNewMask() {
	document := func(i int) int { return i / 1000 }
	m, err := attention.NewMask(1, 1, 4000, 4000, func(b, h, i, j int) bool { return document(i) == document(j) && j <= i })
	if err != nil {
		log.Fatal(err)
	}
	none, all, some := m.Tiles()
	fmt.Printf("tiles of %d: %d cost nothing, %d as without a mask, %d have bits; %d KiB\n",
		attention.MaskTile, none, all, some, m.Bytes()>>10)
	// Output: tiles of 64: 3394 cost nothing, 421 as without a mask, 154 have bits; 92 KiB
}

// Two parts of the keys give what all of them give.
//
//check:in tiers race
func ExampleMerge() {
	c := attention.Options{Batch: 1, Heads: 1, SeqQ: 1, SeqK: 2, Dim: 1}
	q, k, v := []float32{1}, []float32{1, 2, 3, 4}, []float32{10, 20, 30, 40}
	out, lse := make([]float32, 1), make([]float32, 1)
	some, someLSE := make([]float32, 1), make([]float32, 1)
	for _, err := range []error{
		attention.Forward(out, lse, q, k[:2], v[:2], c),
		attention.Forward(some, someLSE, q, k[2:], v[2:], c),
		attention.Merge(out, lse, out, lse, some, someLSE, c),
	} {
		if err != nil {
			log.Fatal(err)
		}
	}
	c.SeqK = 4
	if err := attention.Forward(some, someLSE, q, k, v, c); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("merged %.3f, whole %.3f\n", out[0], some[0])
	// Output: merged 34.927, whole 34.927
}

// A loss of the merged output, 1·out: its gradients in the outputs of two parts of the keys.
//
//check:in tiers race
func ExampleMergeBackward() {
	c := attention.Options{Batch: 1, Heads: 1, SeqQ: 1, SeqK: 2, Dim: 1, Causal: true, Align: attention.BottomRight}
	out, lse := make([]float32, 1), make([]float32, 1)
	out1, lse1 := []float32{10}, []float32{0} // the results of Forward for each part
	out2, lse2 := []float32{20}, []float32{float32(math.Log(3))}
	if err := attention.Merge(out, lse, out1, lse1, out2, lse2, c); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("out %.2f\n", out[0])
	dout, dout1, dlse1 := []float32{1}, make([]float32, 1), make([]float32, 1)
	if err := attention.MergeBackward(dout1, dlse1, dout, out, lse, out1, lse1, c); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("dout1 %.3f, dlse1 %.3f\n", dout1[0], dlse1[0])
	if err := attention.MergeBackward(dout1, dlse1, dout, out, lse, out2, lse2, c); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("dout2 %.3f, dlse2 %.3f\n", dout1[0], dlse1[0])
	// Output:
	// out 17.50
	// dout1 0.250, dlse1 -1.875
	// dout2 0.750, dlse2 1.875
}

// One new query of two sequences, whose keys are in pages of 4 rows and 8 bits.
//
//check:in tiers race
func ExampleForwardCached() {
	const dim, pages, size = 2, 3, 4
	rows := make([]float32, pages*size*dim)
	for i := range rows {
		rows[i] = float32(i % 9)
	}
	kv := attention.Cache{Pages: [][]int{{2, 0}, {1}}, PageSize: size} // the numbers of the pages
	codes, scales := make([]uint8, len(rows)), make([]float32, pages*size)
	if err := attention.QuantizeRows(codes, scales, rows, dim); err != nil {
		log.Fatal(err)
	}
	kv.K, kv.KScale = snug.SliceView(codes), snug.ViewOf(scales)
	kv.V, kv.VScale = kv.K, kv.KScale
	c := attention.Options{Batch: 2, Heads: 1, SeqQ: 1, SeqK: 8, Dim: dim, KLens: []int{6, 3}}
	out := make([]float32, 2*dim)
	if err := attention.ForwardCached(out, []float32(nil), []float32{0, 0, 0, 0}, &kv, c); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("means of 6 and of 3 rows: %.2f\n", out)
	// Output: means of 6 and of 3 rows: [2.50 3.50 4.00 2.00]
}
