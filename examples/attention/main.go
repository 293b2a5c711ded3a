// Attention shows what tiled attention saves: it runs causal self-attention
// forward and backward over one long sequence, in the packed layout that a
// query-key-value projection writes, and compares the output and the bytes with
// plain attention, which stores a matrix of scores. Then it computes the same in parts, as
// a ring of devices does, and packs sequences of several lengths without padding.
//
//	go run ./examples/attention -seq 65536    # takes less than 1 GB
package main

import (
	"flag"
	"fmt"
	"log"
	"math"
	"math/rand/v2"
	"runtime"
	"time"

	"github.com/snug-ml/snug/attention"
)

func main() {
	log.SetFlags(0)
	seq := flag.Int("seq", 4096, "length of the sequence")
	heads := flag.Int("heads", 2, "heads")
	dim := flag.Int("dim", 32, "elements of a head")
	flag.Parse()
	for _, part := range []func(seq, heads, dim int) error{long, ring, packing} {
		if err := part(*seq, *heads, *dim); err != nil {
			log.Fatal(err)
		}
	}
}

// long is one sequence.
func long(seq, heads, dim int) error {
	c := attention.PackedQKV(attention.Options{Batch: 1, Heads: heads, SeqQ: seq, Dim: dim, Causal: true})
	if err := c.Validate(); err != nil {
		return err
	}

	// qkv is [seq, 3, heads, dim]; q, k and v start at its first row.
	width := heads * dim
	qkv, dqkv := make([]float32, seq*3*width), make([]float32, seq*3*width)
	out, dout := make([]float32, seq*width), make([]float32, seq*width)
	random(qkv, dout)
	lse, ws := make([]float32, heads*seq), make([]float32, c.WorkspaceLen())

	start := time.Now()
	if err := attention.Forward(out, lse, qkv, qkv[width:], qkv[2*width:], c); err != nil {
		return err
	}
	forward := time.Since(start)
	start = time.Now()
	err := attention.Backward(dqkv, dqkv[width:], dqkv[2*width:], dout, qkv, qkv[width:], qkv[2*width:], out, lse, c, ws)
	if err != nil {
		return err
	}
	backward := time.Since(start)

	scores := 4 * heads * seq * seq
	extra := 4*(len(lse)+len(ws)) + runtime.GOMAXPROCS(0)*int(c.ScratchBytes())
	fmt.Printf("causal self-attention, %d heads, %d queries and keys, dim %d, float32\n", heads, seq, dim)
	fmt.Printf("matrix of scores that never exists: %d bytes\n", scores)
	fmt.Printf("extra memory of forward and backward: %d bytes, %.0f times less\n", extra, float64(scores)/float64(extra))
	fmt.Printf("largest difference from plain attention: %.1e\n", difference(qkv, out, seq, heads, dim))
	fmt.Printf("forward %v, backward %v\n", forward.Round(time.Millisecond), backward.Round(time.Millisecond))
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	fmt.Printf("memory of the process: %.0f MB\n", float64(mem.Sys)/1e6)
	return nil
}

func random(vectors ...[]float32) {
	for _, x := range vectors {
		for i := range x {
			x[i] = float32(rand.NormFloat64())
		}
	}
}

// difference compares some rows of out with plain attention in float64.
func difference(qkv, out []float32, seq, heads, dim int) float64 {
	row := func(i, part, h int) []float32 { return qkv[((i*3+part)*heads+h)*dim:][:dim] }
	worst := 0.0
	for i := 0; i < seq; i += seq/16 + 1 {
		for h := range heads {
			want, sum := make([]float64, dim), 0.0
			for j := range i + 1 {
				score := 0.0
				for d, x := range row(i, 0, h) {
					score += float64(x) * float64(row(j, 1, h)[d])
				}
				p := math.Exp(score / math.Sqrt(float64(dim)))
				sum += p
				for d, x := range row(j, 2, h) {
					want[d] += p * float64(x)
				}
			}
			for d, x := range want {
				worst = max(worst, math.Abs(x/sum-float64(out[(i*heads+h)*dim+d])))
			}
		}
	}
	return worst
}
