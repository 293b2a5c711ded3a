// Command qlora fine-tunes a small Llama in three ways: all weights in float32, adapters on a base that is frozen in
// float32, and adapters on the same base in 4 bits. It prints the memory that each takes and the loss that it reaches.
//
// First it trains the base on Go source of this repository. Then it tunes the base to the text of the repository's GPU
// kernels. It measures losses on a part of the text that is not trained on, in nats per byte.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"math"
	"math/rand/v2"
	"os"
	"runtime"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/qlora"
	"github.com/snug-ml/snug/quant8"
	"github.com/snug-ml/snug/train"
	"github.com/snug-ml/snug/transformer"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("qlora: ")
	base := flag.String("base", "nf4", "form of the base's weights in 4 bits: nf4 or fp4")
	steps := flag.Int("steps", 60, "steps of tuning")
	flag.Parse()
	kind, known := map[string]qlora.Type{"nf4": qlora.NF4, "fp4": qlora.FP4}[*base]
	if !known || *steps < 1 || flag.NArg() > 0 {
		log.Fatal("want -base nf4 or fp4, -steps above 0, and nothing else")
	}
	if err := run(kind, 160, *steps); err != nil {
		log.Fatal(err)
	}
}

// form says what trains in a model, and how the frozen weights are stored.
type form int

const (
	whole   form = iota // all parameters, in float32
	adapted             // adapters of matrices that are frozen in float32
	qlorad              // adapters of matrices that are frozen in 4 bits
	forms
)

func (f form) String() string { return [...]string{"full", "LoRA", "QLoRA"}[f] }

// options returns how a model of the form is opened.
func (f form) options(kind qlora.Type) transformer.Options {
	o := transformer.Options{DType: snug.F32, Seed: 1}
	if f != whole {
		o.Adapter = &qlora.AdapterOptions{Rank: 8, Alpha: 16}
	}
	if f == qlorad {
		o.Base = kind
	}
	return o
}

const sequences, tokens = 8, 64 // sequences of a batch, and tokens of each

// config describes the model, whose tokens are bytes.
func config() *transformer.Config {
	const layers, heads, headDim = 2, 4, 32
	return &transformer.Config{
		Family: transformer.Llama, Vocab: 256, Dim: heads * headDim, Hidden: 384, Layers: layers, Heads: heads, KVHeads: heads, HeadDim: headDim, Context: tokens,
		NormEps: 1e-5, Activation: transformer.SiLU, Gated: true, Windows: make([]int, layers), ScoreScale: 1 / math.Sqrt(headDim), EmbeddingScale: 1,
		Rope: transformer.Rope{Kind: transformer.RopeDefault, Theta: 10000, Dim: headDim}, Tied: true, InitStd: 0.07, BOS: -1, Pad: -1,
	}
}

func run(kind qlora.Type, pretrain, finetune int) (err error) {
	source, unseen, err := readText("*/*.go")
	if err != nil {
		return err
	}
	kernels, held, err := readText("*/kernels/*.h")
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "snug-qlora-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := makeBase(dir, source, unseen, pretrain); err != nil {
		return err
	}
	fmt.Printf("%7s %8s %8s %9s %8s %11s %8s %8s   %s\n", "KiB", "weights", "adapters", "gradients", "state", "activations", "sum", "measured", "loss on kernels")
	results := make([]result, forms)
	for f := range forms {
		if results[f], err = tune(f, kind, dir, kernels, held, finetune); err != nil {
			return fmt.Errorf("%v: %w", f, err)
		}
		results[f].print()
	}
	full, low, four := results[whole], results[adapted], results[qlorad]
	fmt.Printf("\nIn 4 bits a weight takes %.3f bits. %d parameters are trained. Without activations it is %.1f %% of full fine-tuning.\n",
		four.bits, four.gradients/4, 100*float64(four.kept())/float64(full.kept()))
	fmt.Printf("4 bits change the loss by %+.4f before tuning and %+.4f after it, against adapters of the float32 base.\n", four.before-low.before, four.after-low.after)
	if _, peak := meter.Resident(); peak > 0 {
		fmt.Printf("The process had %s resident at its peak, with a model, its base and both texts.\n", meter.FormatBytes(peak))
	}
	return nil
}

// makeBase trains a model and writes its folder.
func makeBase(dir string, text, held []byte, steps int) error {
	m, err := transformer.New(config(), transformer.Options{Seed: 1})
	if err != nil {
		return err
	}
	defer m.Close()
	t, err := fit(m, text, steps, 4e-3)
	if err != nil {
		return err
	}
	defer t.Close()
	loss, err := evaluate(m, held)
	if err != nil {
		return err
	}
	fmt.Printf("The base has %d parameters and, after %d steps of %d bytes, a loss of %.3f on Go.\n\n", t.Bytes()[meter.Gradients]/4, steps, sequences*tokens, loss)
	return m.Save(dir, 0)
}

// result is the memory of tuning, and losses.
type result struct {
	form
	weights, adapters, gradients, state, activations int64 // bytes
	heap                                             int64 // measured bytes of the heap
	bits                                             float64
	before, after                                    float64
}

// tune opens the base in a form and trains it on a text.
func tune(f form, kind qlora.Type, dir string, text, held []byte, steps int) (r result, err error) {
	start := heap()
	m, err := transformer.Open(dir, f.options(kind))
	if err != nil {
		return r, err
	}
	defer m.Close()
	if r.before, err = evaluate(m, held); err != nil {
		return r, err
	}
	t, err := fit(m, text, steps, [forms]float32{whole: 1e-3, adapted: 5e-3, qlorad: 5e-3}[f])
	if err != nil {
		return r, err
	}
	defer t.Close()
	r.count(f, m, t)
	r.heap = heap() - start
	r.after, err = evaluate(m, held)
	return r, err
}

// count fills in what a model and its trainer hold.
func (r *result) count(f form, m *transformer.Model, t *train.Trainer[transformer.Batch]) {
	memory, bytes := m.Memory(), t.Bytes()
	r.form, r.weights, r.gradients, r.state = f, memory.Weights, bytes[meter.Gradients], bytes[meter.State]
	r.activations = memory.Buffers + memory.Workspace
	if f != whole { // only adapters train
		r.adapters, r.weights = r.gradients, r.weights-r.gradients
	}
	var packed, elements int64
	for _, p := range m.Params() {
		if p.Quantized != nil {
			packed, elements = packed+p.Quantized.Bytes(), elements+int64(p.Len())
		}
	}
	r.bits = 8 * float64(packed) / float64(max(1, elements))
}

// kept returns the bytes of everything except activations.
func (r result) kept() int64 { return r.weights + r.adapters + r.gradients + r.state }

func (r result) print() {
	fmt.Printf("%7v", r.form)
	for i, n := range []int64{r.weights, r.adapters, r.gradients, r.state, r.activations, r.kept() + r.activations, r.heap} {
		fmt.Printf(" %*.1f", [...]int{8, 8, 9, 8, 11, 8, 8}[i], float64(n)/1024)
	}
	fmt.Printf("   %.4f, tuned %.4f\n", r.before, r.after)
}

// heap returns the bytes of objects in use, without the contents of pools.
func heap() int64 {
	runtime.GC()
	runtime.GC() // which empties pools
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return int64(s.HeapAlloc)
}

// fit takes steps on a text, with a learning rate that falls to 0.
func fit(m *transformer.Model, text []byte, steps int, rate float32) (*train.Trainer[transformer.Batch], error) {
	t, err := train.New(train.Model[transformer.Batch](m), train.Options{Optimizer: quant8.AdamW{Beta2: 0.99}, Schedule: train.Linear(rate, 0, 0, steps)})
	if err != nil {
		return nil, err
	}
	rng := rand.New(rand.NewPCG(3, 4)) // all forms train on the same batches
	for t.Step() < steps {
		if _, err := t.Train(context.Background(), []transformer.Batch{draw(rng, text)}); err != nil {
			return nil, errors.Join(err, t.Close())
		}
	}
	return t, nil
}

// evaluate returns the mean loss of batches of a text.
func evaluate(m *transformer.Model, text []byte) (mean float64, err error) {
	const batches = 16
	rng := rand.New(rand.NewPCG(5, 6))
	for range batches {
		loss, err := m.Evaluate(context.Background(), draw(rng, text))
		if err != nil {
			return 0, err
		}
		mean += loss.Sum / float64(loss.Targets) / batches
	}
	return mean, nil
}
