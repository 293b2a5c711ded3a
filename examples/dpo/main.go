// Command dpo tunes a small language model to preferences, by Direct Preference Optimization (Rafailov et al., 2023). Of
// two answers to a prompt one was chosen and one rejected; the model learns to give the chosen one the higher
// probability.
//
// It does so twice, from the same weights and on the same pairs: once with the logits of a whole batch in memory, whose
// log-softmax and gradient are plain loops, and once with package fused, where the logits of a few rows and words exist
// at a time. It prints the losses of both, how often the chosen answer is ahead, and the memory of both.
package main

import (
	"fmt"
	"log"
	"math"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/quant8"
)

// settings are the sizes of the vocabulary, of a word's vector, of the model's output and of a batch, and the steps.
type settings struct{ vocab, embed, cols, pairs, steps int }

func (s settings) rows() int { return 2 * s.pairs * length }

func main() {
	log.SetFlags(0)
	run(settings{vocab: 4096, embed: 32, cols: 64, pairs: 32, steps: 50})
}

// run tunes the model in both forms, prints what they give and returns their results.
func run(s settings) (all, some result) {
	batches, p, c := draw(s), newPlain(s), newChunked(s, 128, 512)
	all, some = tune(newModel(s), p, batches), tune(newModel(s), c, batches)

	fmt.Printf("%d pairs a step, %d rows, %d words\n", s.pairs, s.rows(), s.vocab)
	fmt.Println("   steps   loss: all logits        fused   chosen ahead")
	for i := 0; i < s.steps; i += 10 {
		end := min(i+10, s.steps)
		fmt.Printf("%2d to %2d %18.6f %12.6f %12.1f %%\n", i+1, end, mean(all.losses[i:end]), mean(some.losses[i:end]), 100*mean(some.ahead[i:end]))
	}
	fmt.Printf("The losses of a step differ by at most %.1g.\n", apart(all.losses, some.losses))
	logits, space := float64(len(p.logits)), float64(len(c.ws)+len(c.lse))
	fmt.Printf("All logits take %.2f MiB, workspace and lse of fused %.2f MiB: %.0f times less.\n", 4*logits/(1<<20), 4*space/(1<<20), logits/space)
	return all, some
}

// result has for each batch, before the step on it, the loss and the share of pairs with the chosen answer ahead.
type result struct{ losses, ahead []float64 }

// tune takes a step on each batch.
func tune(m *model, h head, batches []batch) (r result) {
	ask := func(logp []float32, b batch) []float32 {
		m.forward(b.words)
		h.forward(logp, m.y, m.out.w, b.targets)
		return logp
	}
	// The reference is the model at the start. All batches are known, so their log-probabilities are computed now, before
	// the weights change.
	var refs [][]float32
	for _, b := range batches {
		refs = append(refs, ask(make([]float32, m.rows()), b))
	}
	// With 32 bits the two forms differ by the rounding of gradients only. 8 bits take a quarter of the state.
	opt, err := quant8.New(quant8.AdamW{}, quant8.Options{Bits: 32})
	check(err)
	for name, p := range m.params() {
		check(opt.Add(name, len(p.w)))
	}
	logp, dlogp := make([]float32, m.rows()), make([]float32, m.rows())
	for i, b := range batches {
		loss, ahead := prefer(dlogp, ask(logp, b), refs[i])
		r.losses, r.ahead = append(r.losses, loss), append(r.ahead, ahead)
		h.backward(m.dy, m.out.grad, dlogp, m.y, m.out.w, b.targets)
		m.backward(b.words)
		opt.Advance(0.01)
		for name, p := range m.params() {
			check(opt.Step(name, snug.ViewOf(p.w), snug.ViewOf(p.grad), 1))
		}
	}
	return r
}

// beta weighs how near the policy, which is the model that learns, stays to the reference.
const beta = 0.3

// prefer returns the mean over pairs of −log σ(margin), with σ(z) = 1/(1 + exp(−z)), and the share of pairs whose margin
// is above 0:
//
//	margin = beta·((log policy(chosen) − log ref(chosen)) − (log policy(rejected) − log ref(rejected)))
//
// The log-probability of a text is the sum over its words, and the loss depends only on that sum. So dlogp, the
// derivatives of the loss by the words' log-probabilities, has one value for all words of the chosen text, and its
// negative for all words of the rejected one. Ignored words get it too; it is not read there.
func prefer(dlogp, logp, ref []float32) (loss, ahead float64) {
	pairs := float64(len(logp) / (2 * length))
	for at := 0; at < len(logp); at += 2 * length {
		margin := 0.0
		for c := at; c < at+length; c++ {
			r := c + length
			margin += beta * (float64(logp[c]-ref[c]) - float64(logp[r]-ref[r]))
		}
		loss += (max(0, -margin) + math.Log1p(math.Exp(-math.Abs(margin)))) / pairs // the exponential cannot overflow
		if margin > 0 {
			ahead += 1 / pairs
		}
		slope := float32(-beta / (1 + math.Exp(margin)) / pairs)
		for c := at; c < at+length; c++ {
			dlogp[c], dlogp[c+length] = slope, -slope
		}
	}
	return loss, ahead
}

// head computes the log-probability of each row's target, 0 for a target of -1. backward takes the derivatives of a loss
// by these log-probabilities, and computes the gradients of x and w.
type head interface {
	forward(logp, x, w []float32, targets []int32)
	backward(dx, dw, dlogp, x, w []float32, targets []int32)
}

// plain keeps all logits from forward to backward.
type plain struct {
	settings
	logits []float32 // [rows, vocab]
}

func newPlain(s settings) plain { return plain{s, make([]float32, s.rows()*s.vocab)} }

func (p plain) forward(logp, x, w []float32, targets []int32) {
	check(amp.MatMul(p.logits, x, w, amp.MatMulOptions{M: p.rows(), N: p.vocab, K: p.cols, TransB: true}))
	for r, t := range targets {
		if t < 0 {
			logp[r] = 0
			continue
		}
		z, sum := p.logits[r*p.vocab:][:p.vocab], 0.0
		largest := slices.Max(z)
		for _, x := range z {
			sum += math.Exp(float64(x - largest))
		}
		lse := float64(largest) + math.Log(sum)
		for j, x := range z {
			z[j] = float32(float64(x) - lse) // log-softmax
		}
		logp[r] = z[t]
	}
}

func (p plain) backward(dx, dw, dlogp, x, w []float32, targets []int32) {
	for r, t := range targets {
		z := p.logits[r*p.vocab:][:p.vocab]
		if t < 0 {
			clear(z)
			continue
		}
		for j := range z { // the derivative of logp by logit j is [j = t] − softmax[j]
			z[j] = -dlogp[r] * float32(math.Exp(float64(z[j])))
		}
		z[t] += dlogp[r]
	}
	check(amp.MatMul(dw, p.logits, x, amp.MatMulOptions{M: p.vocab, N: p.cols, K: p.rows(), TransA: true}))
	check(amp.MatMul(dx, p.logits, w, amp.MatMulOptions{M: p.rows(), N: p.cols, K: p.vocab}))
}

// chunked keeps lse, 4 bytes a row. backward computes the logits again, which is one product more.
type chunked struct {
	fused.CrossEntropy
	lse, ws []float32
}

// newChunked returns a head that computes the logits of so many rows and words at a time.
func newChunked(s settings, rows, words int) chunked {
	c := fused.CrossEntropy{Vocab: s.vocab, Cols: s.cols, Chunk: rows, Tile: words}
	return chunked{c, make([]float32, s.rows()), make([]float32, c.WorkspaceLen(s.rows()))}
}

func (c chunked) forward(logp, x, w []float32, targets []int32) {
	check(fused.LogProbs(c.CrossEntropy, logp, c.lse, x, w, targets, c.ws))
}

func (c chunked) backward(dx, dw, dlogp, x, w []float32, targets []int32) {
	check(fused.LogProbsBackward(c.CrossEntropy, dx, dw, dlogp, nil, c.lse, x, w, targets, snug.Into{}, c.ws))
}

func mean(list []float64) (sum float64) {
	for _, x := range list {
		sum += x / float64(len(list))
	}
	return sum
}

// apart returns how far two lists lie apart.
func apart(a, b []float64) (most float64) {
	for i := range a {
		most = max(most, math.Abs(a[i]-b[i]))
	}
	return most
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
