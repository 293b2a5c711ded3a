// Command tune shows how a Go program fine-tunes a language model: it opens a published folder, reads a file of prompts
// and completions, and trains under a limit of memory.
//
// The base is frozen in 4 bits, and adapters train on top of it (QLoRA). Package plan finds what fits before anything
// is allocated, and at the end the program prints the memory that it predicted and measured.
//
// base.go makes the model, so that nothing is downloaded: it trains a small one on the capitals of countries. Tuning
// teaches this model to answer questions, also about countries that the tuning leaves out.
package main

import (
	"cmp"
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/dataset"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/qlora"
	"github.com/snug-ml/snug/quant8"
	"github.com/snug-ml/snug/tokenizer"
	"github.com/snug-ml/snug/train"
	"github.com/snug-ml/snug/transformer"
)

const (
	memory = 3 << 20 // bytes that weights, gradients, state, activations and workspace may take together
	batch  = 16      // samples of a step
	steps  = 60
	rank   = 8
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("tune: ")
	dir, err := os.MkdirTemp("", "snug-tune-")
	if err != nil {
		log.Fatal(err)
	}
	err = run(context.Background(), dir, steps)
	os.RemoveAll(dir)
	if err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, dir string, steps int) error {
	if err := makeBase(ctx, dir, 4*steps); err != nil {
		return err
	}
	tok, err := tokenizer.Open(dir)
	if err != nil {
		return err
	}
	data, err := openData(dir, "questions.jsonl", tok, 1./8)
	if err != nil {
		return err
	}
	defer data.Close()

	// Find what fits, before there is a model.
	config, err := transformer.ReadConfig(dir)
	if err != nil {
		return err
	}
	shape, err := config.Plan(data.Longest())
	if err != nil {
		return err
	}
	device, err := plan.DeviceNamed("24GB") // its rates compare plans; its memory is not the limit
	if err != nil {
		return err
	}
	task := plan.Task{Model: shape, Device: device, Batch: batch, Rank: rank,
		Compute: []snug.DType{snug.BF16}, Frozen: []int{4}, Gradients: []plan.Gradient{plan.SumF32}}
	p, err := plan.Best(task.Fit(memory))
	if err != nil {
		return err // names the missing bytes and the cheapest change
	}
	fmt.Printf("plan: micro-batches of %d samples, recomputation: %s\n", p.Run.Micro, cmp.Or(p.Run.Remat.Name, "none"))

	model := transformer.Options{Adapter: &qlora.AdapterOptions{Alpha: 2 * rank}}
	training := train.Options{Optimizer: quant8.AdamW{WeightDecay: 0.01}, Clip: 1, Schedule: train.Cosine(3e-3, steps/10, steps)}
	if err := p.Apply(&model, &training); err != nil {
		return err
	}

	// Open the model. Its matrices are quantized while they are read, and each gets an adapter.
	m, err := transformer.Open(dir, model)
	if err != nil {
		return err
	}
	defer m.Close()
	t, err := train.New(train.Model[transformer.Batch](m), training)
	if err != nil {
		return err
	}
	defer t.Close()

	if err := show(ctx, "before", m, t, tok, data); err != nil {
		return err
	}
	var peak meter.Bytes
	for t.Step() < steps {
		report, err := step(ctx, t, data, p.Run.Micro)
		if err != nil {
			return err
		}
		if report.Step%20 == 0 {
			fmt.Printf("step %d: loss %.3f\n", report.Step, report.Loss)
		}
		now, model := t.Bytes(), m.Memory() // t.Bytes has gradients and the optimizer's state
		now[meter.Weights], now[meter.Activations], now[meter.Workspace] = model.Weights, model.Peak, model.Workspace
		for i, n := range now {
			peak[i] = max(peak[i], n)
		}
	}
	if err := show(ctx, "after", m, t, tok, data); err != nil {
		return err
	}
	printMemory(p.Peak[meter.OnDevice], peak)
	return m.SaveAdapter(filepath.Join(dir, "adapter")) // for PEFT, or Options.AdapterDir
}

// step trains on the samples of a step, which are packed into micro-batches without padding.
func step(ctx context.Context, t *train.Trainer[transformer.Batch], data *dataset.Set, micro int) (train.Report, error) {
	batches, err := data.Batch(t.Step(), batch, micro)
	if err != nil {
		return train.Report{}, err
	}
	var list []transformer.Batch
	for _, b := range batches {
		list = append(list, b.Batch)
	}
	return t.Train(ctx, list)
}

// show prints the loss of the held-out samples, and what the model answers to the first of them.
func show(ctx context.Context, when string, m *transformer.Model, t *train.Trainer[transformer.Batch], tok *tokenizer.Tokenizer, data *dataset.Set) error {
	var held []transformer.Batch
	for b, err := range data.HeldOut(1) {
		if err != nil {
			return err
		}
		held = append(held, b.Batch)
	}
	loss, err := t.Evaluate(ctx, slices.Values(held))
	if err != nil {
		return err
	}
	fmt.Printf("%s tuning: loss on held-out questions %.3f\n", when, loss.Sum/float64(loss.Targets))
	prompt := held[0].Tokens[:1+slices.IndexFunc(held[0].Labels, func(label int32) bool { return label >= 0 })]
	g, err := m.Generate(transformer.GenerateOptions{Context: len(prompt) + 16}) // greedy
	if err != nil {
		return err
	}
	defer g.Close()
	if err := g.Prompt(ctx, prompt); err != nil {
		return err
	}
	for token := int32(-1); len(g.Tokens()) < len(prompt)+16 && !g.Ends(token); {
		if token, err = g.Next(ctx); err != nil {
			return err
		}
	}
	o := tokenizer.DecodeOptions{SkipSpecial: true}
	fmt.Printf("  %s ->%s\n", tok.Decode(prompt, o), tok.Decode(g.Tokens()[len(prompt):], o))
	return nil
}

// printMemory prints the predicted and the measured bytes of each component.
func printMemory(predicted, measured meter.Bytes) {
	fmt.Printf("memory, within %s: predicted, and measured\n", meter.FormatBytes(memory))
	for c := range meter.Allowance { // an allocator of a GPU takes the allowance; there is none here
		if predicted[c] > 0 || measured[c] > 0 {
			fmt.Printf("  %-16s %12s %12s\n", c, meter.FormatBytes(predicted[c]), meter.FormatBytes(measured[c]))
		}
	}
}
