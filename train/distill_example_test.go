package train_test

import (
	"context"
	"fmt"

	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/train"
	"github.com/snug-ml/snug/transformer"
)

// student is a model that learns from a teacher as well as from labels.
type student struct {
	*transformer.Model
	transformer.Distillation
}

var _ train.Model[transformer.Batch] = student{}

func (s student) Weight(b transformer.Batch) float64 { return b.Weight() }

func (s student) Backprop(ctx context.Context, b transformer.Batch, scale float32, w train.Window) (fused.Loss, error) {
	return s.BackpropDistill(ctx, b, scale, s.Distillation, w)
}

// A model of one layer learns from a model of three what follows a token, by the divergence alone.
func ExampleModel_distillation() {
	open := func(layers int, seed uint64) *transformer.Model {
		m, err := transformer.New(&transformer.Config{
			Family: "llama", Vocab: 8, Dim: 16, Hidden: 32, Layers: layers, Heads: 2, KVHeads: 2, HeadDim: 8, Context: 8, NormEps: 1e-6,
			Activation: transformer.SiLU, Gated: true, Windows: make([]int, layers), ScoreScale: 0.35, EmbeddingScale: 1, InitStd: 0.3,
			Rope: transformer.Rope{Kind: transformer.RopeDefault, Theta: 10000, Dim: 8},
		}, transformer.Options{Seed: seed})
		if err != nil {
			panic(err)
		}
		return m
	}
	teacher, model := open(3, 1), open(1, 2)
	defer teacher.Close()
	defer model.Close()
	s := student{model, transformer.Distillation{Teacher: teacher, Weight: 1, Temperature: 2}}
	t, err := train.New(s, train.Options{Schedule: train.Constant(0.01)})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer t.Close()
	b := transformer.Batch{Tokens: []int32{1, 2, 3, 4, 5, 6}, Labels: []int32{2, 3, 4, 5, 6, 7}}
	before, err := model.Divergence(context.Background(), b, s.Distillation)
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 60 {
		if _, err := t.Train(context.Background(), []transformer.Batch{b}); err != nil {
			fmt.Println(err)
			return
		}
	}
	after, err := model.Divergence(context.Background(), b, s.Distillation)
	fmt.Println(after.Mean() < before.Mean()/20, err)
	// Output: true <nil>
}
