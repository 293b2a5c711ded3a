package train_test

import (
	"context"
	"fmt"

	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/train"
	"github.com/snug-ml/snug/transformer"
)

// rollout is text that a model has written, with a number for each token: what is better than expected is above 0.
type rollout struct {
	transformer.Batch
	advantages []float32
}

// policy is a model that learns from rollouts.
type policy struct{ *transformer.Model }

var _ train.Model[rollout] = policy{}

func (p policy) Weight(r rollout) float64 { return r.Batch.Weight() }

// Backprop adds the gradients of the mean of −advantage·log p over the tokens.
func (p policy) Backprop(ctx context.Context, r rollout, scale float32, w train.Window) (loss fused.Loss, err error) {
	n := r.Weight()
	err = p.BackpropLogProbs(ctx, r.Batch, scale, func(logp, dlogp []float32) error {
		loss = fused.Loss{Targets: int(n), Weight: n}
		for i, a := range r.advantages {
			loss.Sum -= float64(a * logp[i])
			dlogp[i] = -a / float32(n)
		}
		return nil
	}, w)
	return loss, err
}

func (p policy) Evaluate(ctx context.Context, r rollout) (loss fused.Loss, err error) {
	logp := make([]float32, len(r.Tokens))
	err = p.LogProbs(ctx, logp, r.Batch)
	loss = fused.Loss{Targets: int(r.Weight()), Weight: r.Weight()}
	for i, a := range r.advantages {
		loss.Sum -= float64(a * logp[i])
	}
	return loss, err
}

// A policy gradient: the model learns that after token 1 token 2 is good and token 3 is not.
func ExampleModel() {
	model, err := transformer.New(&transformer.Config{
		Family: "llama", Vocab: 8, Dim: 16, Hidden: 32, Layers: 1, Heads: 2, KVHeads: 2, HeadDim: 8, Context: 8, NormEps: 1e-6,
		Activation: transformer.SiLU, Gated: true, Windows: []int{0}, ScoreScale: 0.35, EmbeddingScale: 1, InitStd: 0.1,
		Rope: transformer.Rope{Kind: transformer.RopeDefault, Theta: 10000, Dim: 8},
	}, transformer.Options{Seed: 1})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer model.Close()
	t, err := train.New(policy{model}, train.Options{Schedule: train.Constant(0.01), Clip: 1})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer t.Close()
	r := rollout{transformer.Batch{Tokens: []int32{1, 1}, Labels: []int32{2, 3}, Sequences: 2, Temperature: 1}, []float32{1, -1}}
	for range 30 {
		if _, err := t.Train(context.Background(), []rollout{r}); err != nil {
			fmt.Println(err)
			return
		}
	}
	logp := make([]float32, 2)
	if err := model.LogProbs(context.Background(), logp, r.Batch); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(logp[0] > -0.5, logp[1] < -4)
	// Output: true true
}
