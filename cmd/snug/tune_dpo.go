package main

import (
	"context"
	"fmt"
	"io"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/dataset"
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/internal/console"
	"github.com/snug-ml/snug/internal/fault"
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/train"
	"github.com/snug-ml/snug/transformer"
)

// maxBeta is the largest -dpo.
const maxBeta = 1000

// pairLength is the number of sequences of a pair: the chosen answer and the rejected one, each with its prompt.
const pairLength = 2

// preferenceRules are what does not go with -dpo.
func (f *tuneFlags) preferenceRules() []fault.Rule {
	return []fault.Rule{
		{f.beta > 0 && f.zLoss != 0, "-z-loss is a term of the loss of tokens, and -dpo has a loss of pairs"},
		{f.beta > 0 && f.smoothing >= 0.5, fmt.Sprintf("-label-smoothing %v: with -dpo want less than 0.5, the share of pairs whose answers are exchanged", f.smoothing)},
	}
}

// sequences returns the number of sequences of a sample.
func (t *tuning) sequences() int {
	if t.beta > 0 {
		return pairLength
	}
	return 1
}

// describePairs tells package plan that a sample is a pair.
func (t *tuning) describePairs(m plan.Model) plan.Model {
	if t.beta == 0 {
		return m
	}
	m = m.Samples(pairLength)
	m.Head.LogProbs = true
	return m
}

// preferences is a model that learns to prefer the chosen answer of a pair: Direct Preference Optimization (Rafailov et
// al. 2023, arXiv:2305.18290). With the margin of a pair
//
//	m = beta·((log p(chosen) − log ref(chosen)) − (log p(rejected) − log ref(rejected)))
//
// the loss is the mean over pairs of −(1−s)·log σ(m) − s·log σ(−m), where σ(m) = 1/(1+exp(−m)), and s is the label
// smoothing (Mitchell 2023, "A note on DPO with noisy preferences & relationship to IPO"). Without it the loss is the
// sigmoid loss of TRL's DPOTrainer.
type preferences struct {
	*transformer.Model
	beta, smoothing float64
	refs            [][pairLength]float32 // log-probabilities before the first step, by number of the pair
	logp            []float32             // of tokens, outside of the backward pass
	scores          scores                // of pairs since the last call of taken
}

// scores are sums over the pairs that Evaluate has seen.
type scores struct {
	pairs, ahead int // pairs, and those whose margin is above 0
	margin       float64
}

// preference is what a run reports about held-out pairs.
type preference struct {
	Accuracy float64 `json:"accuracy"` // share of the pairs whose margin is above 0
	Margin   float64 `json:"margin"`   // mean
}

// taken returns the means over the pairs since the last call, or nil if there were none.
func (p *preferences) taken() *preference {
	if p == nil {
		return nil
	}
	s := p.scores
	if p.scores = (scores{}); s.pairs == 0 {
		return nil
	}
	return &preference{float64(s.ahead) / float64(s.pairs), s.margin / float64(s.pairs)}
}

func (p *preferences) Weight(b dataset.Batch) float64 { return float64(len(b.Pairs)) }

func (p *preferences) Backprop(ctx context.Context, b dataset.Batch, scale float32, w train.Window) (loss fused.Loss, err error) {
	n := len(b.Pairs)
	err = p.BackpropLogProbs(ctx, b.Batch, scale, func(logp, dlogp []float32) error {
		loss = fused.Loss{Targets: n, Weight: float64(n)}
		for i, pair := range b.Pairs {
			of, slope := p.prefer(p.margin(pair, answersOf(b, i, logp)))
			loss.Sum += of
			for side, sign := range [pairLength]float64{1, -1} {
				lo, hi := answer(b, i, side)
				d := float32(sign * p.beta * slope / float64(n))
				for row := lo; row < hi; row++ {
					dlogp[row] = d
				}
			}
		}
		return nil
	}, w)
	return loss, err
}

func (p *preferences) Evaluate(ctx context.Context, b dataset.Batch) (fused.Loss, error) {
	logp, err := p.logProbs(ctx, b)
	if err != nil {
		return fused.Loss{}, err
	}
	loss := fused.Loss{Targets: len(b.Pairs), Weight: float64(len(b.Pairs))}
	for i, pair := range b.Pairs {
		margin := p.margin(pair, answersOf(b, i, logp))
		of, _ := p.prefer(margin)
		loss.Sum += of
		p.scores.pairs++
		p.scores.margin += margin
		if margin > 0 {
			p.scores.ahead++
		}
	}
	return loss, nil
}

// logProbs returns the log-probabilities of the labels, in memory of p that the next call overwrites.
func (p *preferences) logProbs(ctx context.Context, b dataset.Batch) ([]float32, error) {
	if len(p.logp) < len(b.Tokens) {
		p.logp = make([]float32, len(b.Tokens))
	}
	logp := p.logp[:len(b.Tokens)]
	return logp, p.LogProbs(ctx, logp, b.Batch)
}

// answer returns the rows of an answer of the batch's pair i.
func answer(b dataset.Batch, i, side int) (lo, hi int) {
	return b.Starts[pairLength*i+side], b.Starts[pairLength*i+side+1]
}

// answersOf returns the log-probabilities of both answers of the batch's pair i: sums over their labels.
func answersOf(b dataset.Batch, i int, logp []float32) (list [pairLength]float32) {
	for side := range list {
		lo, hi := answer(b, i, side)
		sum := 0.0
		for _, x := range logp[lo:hi] { // 0 where a label is ignored
			sum += float64(x)
		}
		list[side] = float32(sum)
	}
	return list
}

func (p *preferences) margin(pair int, logp [pairLength]float32) float64 {
	ref := p.refs[pair]
	return p.beta * ((float64(logp[0]) - float64(ref[0])) - (float64(logp[1]) - float64(ref[1])))
}

// prefer returns the loss of a pair, and its derivative with respect to the margin.
func (p *preferences) prefer(margin float64) (loss, slope float64) {
	e := math.Exp(-math.Abs(margin)) // does not overflow
	tail := math.Log1p(e)
	loss = (1-p.smoothing)*(max(0, -margin)+tail) + p.smoothing*(max(0, margin)+tail)
	sigmoid := 1 / (1 + e) // of |margin|
	if margin < 0 {
		sigmoid = e / (1 + e)
	}
	return loss, sigmoid - (1 - p.smoothing)
}

// preferring returns the model with the reference, the log-probabilities of the pairs before the first step. A resumed
// run computes them again before the checkpoint is restored, while the model and its adapters have their first values.
// They have the same bits, because each pair is in the same micro-batch as before.
func (t *tuning) preferring() (learner, error) {
	p := &preferences{Model: t.model, beta: t.beta, smoothing: t.smoothing, refs: t.refs}
	first, _, _ := t.folder.Newest()
	began := false
	for b, err := range t.data.Once(first, t.stepCount(), t.batch, t.plan.Run.Micro) {
		if err != nil {
			return nil, err
		}
		if t.stop.Asked() {
			return nil, console.Interruption{Text: "interrupted before the first step of this process", Status: t.stop.Status()}
		}
		if !began {
			fmt.Fprintln(t.call.stdout, "\nreference: the log-probabilities of the answers before the first step")
			began = true
		}
		logp, err := p.logProbs(t.stop.Now, b)
		if err != nil {
			return nil, err
		}
		for i, pair := range b.Pairs {
			p.refs[pair] = answersOf(b, i, logp)
			for _, x := range p.refs[pair] {
				if x-x != 0 {
					return nil, fmt.Errorf("tune: the log-probability of an answer is %v before the first step, because a weight of %s is not finite or activations overflow%s: %w", x, t.dir, overflowRemedy(t.dtype), snug.ErrNonFinite)
				}
			}
		}
	}
	t.preferences = p
	return p, nil
}

// writePreferences prints the results on held-out pairs before and after training.
func (r *result) writePreferences(w io.Writer) {
	if r.Last == nil {
		return
	}
	accuracy, margin := "", ""
	if r.First != nil {
		accuracy, margin = fmt.Sprintf("%.1f %% before, ", 100*r.First.Accuracy), fmt.Sprintf("%.4f before, ", r.First.Margin)
	}
	fmt.Fprintf(w, "chosen answers ahead in held-out pairs: %s%.1f %% after; mean margin: %s%.4f after\n", accuracy, 100*r.Last.Accuracy, margin, r.Last.Margin)
}
