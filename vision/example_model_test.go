package vision_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/snug-ml/snug/layers"
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/qlora"
	"github.com/snug-ml/snug/train"
	"github.com/snug-ml/snug/transformer"
	"github.com/snug-ml/snug/vision"
)

// A new vision transformer learns to tell dark images from bright ones, with 8-bit AdamW that updates in the backward pass.
func ExampleTower() {
	t, err := vision.NewTower(vision.TowerConfig{
		Family: "vit", Image: 16, Patch: 4, Channels: 3, Width: 32, Hidden: 64, Layers: 2, Heads: 4, Activation: "gelu", Eps: 1e-6, QKVBias: true,
		Labels: []string{"dark", "bright"},
	}, vision.TowerOptions{Options: layers.Options{Seed: 1}})
	if err != nil {
		log.Fatal(err)
	}
	var images [][]float32 // as Processor.Process gives them: [3, 16, 16]
	var labels []int32
	for i := range 8 {
		x := make([]float32, 3*16*16)
		for j := range x {
			x[j] = float32(i%2) - 0.5 + float32((i*37+j*11)%16-8)/16
		}
		images, labels = append(images, x), append(labels, int32(i%2))
	}
	s, err := t.Sample(images, labels)
	if err != nil {
		log.Fatal(err)
	}
	trainer, err := train.New(t.Model, train.Options{Schedule: train.Constant(3e-3), StateBits: 8, Gradients: plan.InBackward})
	if err != nil {
		log.Fatal(err)
	}
	for range 30 {
		if _, err := trainer.Train(context.Background(), []layers.Sample{s}); err != nil {
			log.Fatal(err)
		}
	}
	logits := make([]float32, len(images)*2)
	if err := t.Logits(context.Background(), logits, s); err != nil {
		log.Fatal(err)
	}
	right := 0
	for i, label := range labels {
		if logits[2*i+int(label)] > logits[2*i+1-int(label)] {
			right++
		}
	}
	fmt.Println(right, "of", len(images))
	// Output:
	// 8 of 8
}

// QLoRA of a LLaVA: the text model's matrices in 4 bits with adapters, and the projector beside them. The folder that SaveAdapter writes
// loads in PEFT.
func ExampleModel() {
	m, err := vision.OpenModel("testdata/models/llava", vision.ModelOptions{
		Text: transformer.Options{Base: qlora.NF4, Adapter: &qlora.AdapterOptions{Rank: 8, Alpha: 16}},
	})
	if err != nil {
		log.Fatal(err)
	}
	c := m.Encoder.Config()
	b := vision.Batch{Images: []vision.Pixels{{Values: make([]float32, 3*c.Image*c.Image)}}} // of Processor.Process
	b.Text.Tokens = append(b.Text.Tokens, 1)
	rows, err := m.Rows(b.Images[0].Layout)
	if err != nil {
		log.Fatal(err)
	}
	for range rows { // Processor.Expand writes so many placeholders
		b.Text.Tokens = append(b.Text.Tokens, m.Token())
	}
	b.Text.Tokens = append(b.Text.Tokens, 7, 3, 2)
	b.Text.Labels = append(b.Text.Tokens[1:len(b.Text.Tokens):len(b.Text.Tokens)], -100)
	for i, next := range b.Text.Labels {
		if next == m.Token() {
			b.Text.Labels[i] = -100
		}
	}
	trainer, err := train.New(m, train.Options{Schedule: train.Constant(1e-2)})
	if err != nil {
		log.Fatal(err)
	}
	var first, last float64
	for step := range 10 {
		r, err := trainer.Train(context.Background(), []vision.Batch{b})
		if err != nil {
			log.Fatal(err)
		}
		if last = r.Loss; step == 0 {
			first = r.Loss
		}
	}
	dir, err := os.MkdirTemp("", "adapter")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := m.SaveAdapter(filepath.Join(dir, "tuned")); err != nil {
		log.Fatal(err)
	}
	fmt.Println(last < first/2)
	// Output:
	// true
}
