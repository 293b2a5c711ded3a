package transformer_test

import (
	"cmp"
	"context"
	"fmt"
	"iter"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/train"
	"github.com/snug-ml/snug/transformer"
)

const width, features = 16, 4 // of the language model, and of an image

// projector is a train.Model: a matrix between the features of images and a frozen language model.
type projector struct {
	lm               *transformer.Model
	w, vectors, grad []float32 // w is [width, features]; there is one image at a time in this example
}

// captioned is a text whose first token is a placeholder, and the features of the image in its place.
type captioned struct {
	text     transformer.Batch
	features []float32
}

func (p *projector) Trainable() iter.Seq2[string, snug.View] { // and those of lm, if it trains
	return func(yield func(string, snug.View) bool) { yield("projector.weight", snug.ViewOf(p.w)) }
}

func (p *projector) Weight(c captioned) float64 { return p.lm.Weight(c.text) }

// with returns the text with features·wᵀ in place of the placeholder's embedding.
func (p *projector) with(c captioned) (transformer.Batch, error) {
	c.text.Embeddings = transformer.Embeddings{Rows: []int32{0}, Values: snug.ViewOf(p.vectors), Grad: snug.ViewOf(p.grad)}
	return c.text, amp.MatMul(p.vectors, c.features, p.w, amp.MatMulOptions{M: 1, N: width, K: features, TransB: true})
}

func (p *projector) Evaluate(ctx context.Context, c captioned) (fused.Loss, error) {
	text, err := p.with(c)
	if err != nil {
		return fused.Loss{}, err
	}
	return p.lm.Evaluate(ctx, text)
}

func (p *projector) Backprop(ctx context.Context, c captioned, scale float32, w train.Window) (fused.Loss, error) {
	text, err := p.with(c)
	if err != nil {
		return fused.Loss{}, err
	}
	loss, err := p.lm.Backprop(ctx, text, scale, w) // which sets grad
	acc, into, wrong := w.Into("projector.weight")
	if err = cmp.Or(err, wrong); err != nil {
		return loss, err
	}
	return loss, amp.MatMul(acc.Float32s(), p.grad, c.features, amp.MatMulOptions{M: width, N: features, K: 1, TransA: true, Into: into})
}

// A projector trains in front of a frozen model with a tied head: the gradient of its vectors comes back through the model.
func ExampleBatch_embeddings() {
	lm, err := transformer.New(&transformer.Config{Family: transformer.Llama, Vocab: 8, Dim: width, Hidden: 24, Layers: 2, Heads: 2, KVHeads: 2,
		HeadDim: 8, Context: 16, NormEps: 1e-5, Activation: transformer.SiLU, Gated: true, Windows: []int{0, 0}, ScoreScale: 0.35, EmbeddingScale: 1,
		Rope: transformer.Rope{Kind: transformer.RopeDefault, Theta: 1e4, Dim: 8}, Tied: true, InitStd: 0.3},
		transformer.Options{Seed: 1, Train: func(string) bool { return false }})
	if err != nil {
		panic(err)
	}
	p := &projector{lm, make([]float32, width*features), make([]float32, width), make([]float32, width)}
	t, err := train.New(p, train.Options{StateBits: 32, Schedule: train.Constant(0.05)})
	if err != nil {
		panic(err)
	}
	for step := range 41 { // the micro-batches are two images, whose captions begin with the tokens 2 and 5
		report, err := t.Train(context.Background(), []captioned{
			{transformer.Batch{Tokens: []int32{7, 2, 1}, Labels: []int32{2, -100, -100}}, []float32{1, 0, 1, 0}},
			{transformer.Batch{Tokens: []int32{7, 5, 1}, Labels: []int32{5, -100, -100}}, []float32{0, 1, 0, 1}}})
		if err != nil {
			panic(err)
		}
		if step%40 == 0 {
			fmt.Printf("loss %.1f ", report.Loss)
		}
	}
	// Output: loss 2.1 loss 0.3
}
