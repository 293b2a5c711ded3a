// Command qlora fine-tunes a small GPT in three ways and prints the memory that each
// takes, and the loss that it reaches: all weights in float32, adapters of a base that is
// frozen in float32, and adapters of the same base in 4 bits.
//
// First it trains the base, on Go source of this repository. Then it tunes it to the
// text of the repository's GPU kernels. Losses are of a part of the text that is not
// trained on, in nats a byte.
package main

import (
	"cmp"
	"flag"
	"fmt"
	"log"
	"math/rand/v2"
	"os"
	"regexp"
	"runtime"

	"github.com/snug-ml/snug/qlora"
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

// result is a tuned model, its memory as measured, and losses.
type result struct {
	*model
	heap          int64
	before, after float64
}

func run(kind qlora.Type, pretrain, finetune int) error {
	source, unseen, err := readText("*/*.go")
	kernels, held, e := readText("*/kernels/*.h")
	if err := cmp.Or(err, e); err != nil {
		return err
	}
	base, err := newModel(whole, kind, nil)
	if err == nil {
		err = train(base, source, pretrain, 4e-3)
	}
	if err != nil {
		return err
	}
	loss, err := evaluate(base, unseen)
	if err != nil {
		return err
	}
	parameters := func(m *model) int64 { return m.bytes[gradients] / 4 }
	fmt.Printf("The base has %d parameters and, after %d steps of %d bytes, a loss of %.3f on Go.\n\n", parameters(base), pretrain, rows, loss)
	fmt.Printf("%7s %8s %8s %9s %8s %11s %8s %8s   %s\n", "KiB", "weights", "adapters", "gradients", "state", "activations", "sum", "measured", "loss on kernels")
	results := make([]result, forms)
	for f := range results {
		if results[f], err = tune(form(f), kind, base, kernels, held, finetune); err != nil {
			return fmt.Errorf("%v: %w", form(f), err)
		}
		results[f].print()
	}
	full, low, four := results[whole], results[adapted], results[qlorad]
	fmt.Printf("\nIn 4 bits a weight takes %.3f bits. %d parameters are trained. But for activations it is %.1f %% of full fine-tuning.\n",
		8*float64(four.quantized.bytes)/float64(four.quantized.elements), parameters(four.model), 100*float64(four.kept())/float64(full.kept()))
	fmt.Printf("4 bits change the loss by %+.4f before tuning and %+.4f after it, against adapters of the float32 base.\n", four.before-low.before, four.after-low.after)
	status, _ := os.ReadFile("/proc/self/status") // of Linux
	if peak := regexp.MustCompile(`VmHWM:\s*(\d+ kB)`).FindSubmatch(status); peak != nil {
		fmt.Printf("The process had %s resident at its peak, with the base, a tuned model and both texts.\n", peak[1])
	}
	return nil
}

// tune makes a model of the base and trains it on a text.
func tune(f form, kind qlora.Type, base *model, text, held []byte, steps int) (r result, err error) {
	start := heap()
	if r.model, err = newModel(f, kind, base); err != nil {
		return r, err
	}
	if r.before, err = evaluate(r.model, held); err != nil {
		return r, err
	}
	lr := [forms]float32{whole: 1e-3, adapted: 5e-3, qlorad: 5e-3}[f]
	if err = train(r.model, text, steps, lr); err != nil {
		return r, err
	}
	r.heap = heap() - start
	r.after, err = evaluate(r.model, held)
	return r, err
}

// heap returns the bytes of objects that are in use, without what is pooled.
func heap() int64 {
	runtime.GC()
	runtime.GC() // which empties pools
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return int64(s.HeapAlloc)
}

// train takes steps with a learning rate that falls to 0.
func train(m *model, text []byte, steps int, lr float32) error {
	rng := rand.New(rand.NewPCG(3, 4)) // the same batches for all
	for i := range steps {
		if err := m.step(draw(rng, text), lr*float32(steps-i)/float32(steps)); err != nil {
			return err
		}
	}
	return nil
}

// evaluate returns the mean loss of batches of a text.
func evaluate(m *model, text []byte) (sum float64, err error) {
	const batches = 16
	rng := rand.New(rand.NewPCG(5, 6))
	for range batches {
		loss, err := m.evaluate(draw(rng, text))
		if err != nil {
			return 0, err
		}
		sum += loss / batches
	}
	return sum, nil
}

// kept returns the bytes of all but activations.
func (m *model) kept() int64 {
	return m.bytes[weights] + m.bytes[adapters] + m.bytes[gradients] + m.bytes[states]
}

func (r result) print() {
	fmt.Printf("%7v", r.form)
	for i, n := range append(r.bytes[:], r.kept()+r.bytes[activations], r.heap) {
		fmt.Printf(" %*.1f", [...]int{8, 8, 9, 8, 11, 8, 8}[i], float64(n)/1024)
	}
	fmt.Printf("   %.4f, tuned %.4f\n", r.before, r.after)
}
