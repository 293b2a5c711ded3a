package attention_test

import (
	"context"
	"fmt"
	"log"
	"sync"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/accum"
	"github.com/snug-ml/snug/attention"
)

// twoRanks calls f for each of two ranks, goroutines here. Package dist/mpi has ranks in processes.
func twoRanks[R any](f func(ranks R)) {
	ranks, err := accum.Local(context.Background(), 2)
	if err != nil {
		log.Fatal(err)
	}
	var wait sync.WaitGroup
	for _, r := range ranks {
		wait.Go(func() { f(r.(R)) })
	}
	wait.Wait()
}

// Two ranks have half of a causal sequence each: pieces 0 and 3 of four, and 1 and 2.
//
//check:in tiers race
func ExampleRingForward() {
	const n = 8
	v := []float32{1, 2, 3, 4, 5, 6, 7, 8}
	c := attention.Options{Batch: 1, Heads: 1, SeqQ: n, Dim: 1, Causal: true} // of the whole sequence
	means := make([]float32, n)
	twoRanks(func(ranks attention.SendReceiver) {
		rows := attention.RingRows(n, ranks.Rank(), ranks.Size())
		var own []float32 // values of this rank
		for _, r := range rows {
			own = append(own, v[r.Lo:r.Hi]...)
		}
		zero, out, lse := make([]float32, len(own)), make([]float32, len(own)), make([]float32, len(own))
		workspace, _ := c.RingWorkspaceLen(ranks.Size(), snug.F32)
		err := attention.RingForward(ranks, out, lse, zero, zero, own, c, make([]float32, workspace))
		if err != nil {
			log.Fatal(err)
		}
		copy(means[rows[0].Lo:rows[0].Hi], out)
		copy(means[rows[1].Lo:rows[1].Hi], out[rows[0].Len():])
	})
	fmt.Printf("means of what was seen: %.1f\n", means)
	// Output: means of what was seen: [1.0 1.5 2.0 2.5 3.0 3.5 4.0 4.5]
}

// The gradients of the sum of out in the values.
//
//check:in tiers race
func ExampleRingBackward() {
	const n = 8
	c := attention.Options{Batch: 1, Heads: 1, SeqQ: n, Dim: 1, Causal: true}
	grad := make([]float32, n)
	twoRanks(func(ranks attention.SendReceiver) {
		rows := attention.RingRows(n, ranks.Rank(), ranks.Size())
		own := rows[0].Len() + rows[1].Len()
		zero, ones, out, lse := make([]float32, own), make([]float32, own), make([]float32, own), make([]float32, own)
		for i := range ones {
			ones[i] = 1
		}
		forward, backward := c.RingWorkspaceLen(ranks.Size(), snug.F32)
		workspace := make([]float32, max(forward, backward))
		if err := attention.RingForward(ranks, out, lse, zero, zero, ones, c, workspace); err != nil {
			log.Fatal(err)
		}
		dq, dk, dv := make([]float32, own), make([]float32, own), make([]float32, own)
		err := attention.RingBackward(ranks, dq, dk, dv, ones, zero, zero, ones, out, lse, c, workspace)
		if err != nil {
			log.Fatal(err)
		}
		copy(grad[rows[0].Lo:rows[0].Hi], dv)
		copy(grad[rows[1].Lo:rows[1].Hi], dv[rows[0].Len():])
	})
	fmt.Printf("dv %.3f\n", grad)
	// Output: dv [2.718 1.718 1.218 0.885 0.635 0.435 0.268 0.125]
}

// The first piece of a sequence and the last belong to rank 0.
//
//check:in tiers race
func ExampleRingRows() {
	for rank := range 3 {
		rows := attention.RingRows(20, rank, 3)
		fmt.Println("rank", rank, "has", rows[0], "and", rows[1])
	}
	// Output:
	// rank 0 has {0 4} and {17 20}
	// rank 1 has {4 8} and {14 17}
	// rank 2 has {8 11} and {11 14}
}

// Two ranks have half of the rows each, in order, of two heads. Each computes one head.
//
//check:in tiers race
func ExampleUlyssesForward() {
	const n, heads = 4, 2
	c := attention.Options{Batch: 1, Heads: heads, SeqQ: n, Dim: 1, Causal: true} // of the whole sequence
	twoRanks(func(ranks attention.AllToAller) {
		own := []float32{1, 3, 10, 30} // the same rows on both ranks, of head 0 and of head 1
		zero, out, lse := make([]float32, 4), make([]float32, 4), make([]float32, 4)
		workspace, _ := c.UlyssesWorkspaceLen(ranks.Size(), snug.F32)
		err := attention.UlyssesForward(ranks, out, lse, zero, zero, own, c, make([]float32, workspace))
		if err != nil {
			log.Fatal(err)
		}
		if ranks.Rank() == 1 {
			fmt.Printf("rows 2 and 3: head 0 %.2f, head 1 %.2f\n", out[:2], out[2:])
		}
	})
	// Output: rows 2 and 3: head 0 [1.67 2.00], head 1 [16.67 20.00]
}

// The gradients of the sum of out in the values.
//
//check:in tiers race
func ExampleUlyssesBackward() {
	const n, heads = 4, 2
	c := attention.Options{Batch: 1, Heads: heads, SeqQ: n, Dim: 1, Causal: true}
	twoRanks(func(ranks attention.AllToAller) {
		zero, ones := make([]float32, 4), []float32{1, 1, 1, 1}
		out, lse, dq, dk, dv := make([]float32, 4), make([]float32, 4), make([]float32, 4), make([]float32, 4), make([]float32, 4)
		forward, backward := c.UlyssesWorkspaceLen(ranks.Size(), snug.F32)
		workspace := make([]float32, max(forward, backward))
		if err := attention.UlyssesForward(ranks, out, lse, zero, zero, ones, c, workspace); err != nil {
			log.Fatal(err)
		}
		err := attention.UlyssesBackward(ranks, dq, dk, dv, ones, zero, zero, ones, out, lse, c, workspace)
		if err != nil {
			log.Fatal(err)
		}
		if ranks.Rank() == 0 {
			fmt.Printf("rows 0 and 1: dv of head 0 %.3f, of head 1 %.3f\n", dv[:2], dv[2:])
		}
	})
	// Output: rows 0 and 1: dv of head 0 [2.083 1.083], of head 1 [2.083 1.083]
}
