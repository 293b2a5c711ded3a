// Table trains one model with GoMLX's AdamW and with those of snug, and prints what each holds and takes.
//
//	go run ./examples/table -steps 300
package main

import (
	stdcontext "context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/gomlx/gomlx/backends"
	"github.com/gomlx/gomlx/backends/simplego"
	"github.com/gomlx/gomlx/pkg/core/graph"
	"github.com/gomlx/gomlx/pkg/core/tensors"
	"github.com/gomlx/gomlx/pkg/ml/context"
	"github.com/gomlx/gomlx/pkg/ml/layers"
	"github.com/gomlx/gomlx/pkg/ml/layers/activations"
	"github.com/gomlx/gomlx/pkg/ml/train"
	"github.com/gomlx/gomlx/pkg/ml/train/losses"
	"github.com/gomlx/gomlx/pkg/ml/train/optimizers"
	"github.com/snug-ml/snug/integrations/gomlx"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/offload"
	"github.com/snug-ml/snug/quant8"
)

const (
	rows, in, hidden, classes = 32, 64, 128, 16
	rate, decay, eps          = 1e-3, 0.004, 1e-7
)

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "table:", err)
		os.Exit(1)
	}
}

func model(ctx *context.Context, _ any, inputs []*graph.Node) []*graph.Node {
	x := inputs[0]
	for i := range 2 {
		x = activations.Relu(layers.Dense(ctx.Inf("hidden%d", i), x, true, hidden))
	}
	return []*graph.Node{layers.Dense(ctx.In("out"), x, true, classes)}
}

// batch returns points and the classes that a fixed random matrix gives them.
func batch(step int) (inputs, labels []*tensors.Tensor) {
	matrix := rand.New(rand.NewPCG(1, 1))
	directions := make([]float64, in*classes)
	for i := range directions {
		directions[i] = matrix.NormFloat64()
	}
	r := rand.New(rand.NewPCG(uint64(step), 2))
	x, y := make([]float32, rows*in), make([]int32, rows)
	for i := range rows {
		scores := [classes]float64{}
		for j := range in {
			v := r.NormFloat64()
			x[i*in+j] = float32(v)
			for c := range classes {
				scores[c] += v * directions[j*classes+c]
			}
		}
		for c, s := range scores {
			if s > scores[y[i]] {
				y[i] = int32(c)
			}
		}
	}
	return []*tensors.Tensor{tensors.FromFlatDataAndDimensions(x, rows, in)}, []*tensors.Tensor{tensors.FromFlatDataAndDimensions(y, rows, 1)}
}

func seeded() *context.Context {
	ctx := context.New()
	check(ctx.SetRNGStateFromSeed(1))
	return ctx
}

// trainer makes a step and returns its loss, and the bytes of the optimizer's state.
type trainer struct {
	name  string
	step  func(inputs, labels []*tensors.Tensor) float64
	bytes func() int64
}

// theirs is GoMLX's Trainer.
func theirs(backend backends.Backend) trainer {
	ctx := seeded()
	t := train.NewTrainer(backend, ctx, model, losses.SparseCategoricalCrossEntropyLogits,
		optimizers.Adam().WeightDecay(decay).Epsilon(eps).LearningRate(rate).Done(), nil, nil)
	return trainer{"GoMLX's AdamW", func(inputs, labels []*tensors.Tensor) float64 {
		metrics, err := t.TrainStep(nil, inputs, labels)
		check(err)
		return float64(metrics[0].Value().(float32))
	}, func() (n int64) {
		for v := range ctx.IterVariables() {
			if strings.Contains(v.Name(), "_moment") {
				n += int64(v.Shape().Memory())
			}
		}
		return n
	}}
}

// ours is the Trainer of this module.
func ours(backend backends.Backend, name string, bits int, o gomlx.Options) trainer {
	o.Optimizer = quant8.AdamW{Eps: eps, WeightDecay: decay, DecayFirst: true}
	o.StateBits = bits
	o.Schedule = func(int) float32 { return rate }
	inputs, labels := batch(0)
	t, err := gomlx.New(backend, seeded(), model, losses.SparseCategoricalCrossEntropyLogits, gomlx.Batch{Inputs: inputs, Labels: labels}, o)
	check(err)
	return trainer{name, func(inputs, labels []*tensors.Tensor) float64 {
		r, err := t.Train(stdcontext.Background(), []gomlx.Batch{{Inputs: inputs, Labels: labels}})
		check(err)
		return r.Loss
	}, func() int64 { return t.Bytes()[meter.State] }}
}

func main() {
	steps := flag.Int("steps", 300, "steps of each run, 1 or more")
	flag.Parse()
	if *steps < 1 {
		check(fmt.Errorf("-steps is %d, want 1 or more", *steps))
	}
	dir, err := os.MkdirTemp("", "table")
	check(err)
	defer os.RemoveAll(dir)
	store, err := offload.Open(dir, offload.Options{HostLimit: 16 << 10})
	check(err)
	defer store.Close()

	backend, err := simplego.New("ops_sequential") // one, because a tensor belongs to one
	check(err)
	runs := []trainer{
		theirs(backend),
		ours(backend, "snug, 32 bits", 32, gomlx.Options{}),
		ours(backend, "snug, 8 bits", 8, gomlx.Options{}),
		ours(backend, "snug, 8 bits in pages", 8, gomlx.Options{Storage: store, Chunk: 4 << 10}),
	}
	const last = 20 // steps whose losses are averaged
	losses, spent := make([]float64, len(runs)), make([][]time.Duration, len(runs))
	for step := range *steps {
		inputs, labels := batch(step)
		for i, r := range runs { // in turns, so that what else the machine does slows all of them
			start := time.Now()
			loss := r.step(inputs, labels)
			spent[i] = append(spent[i], time.Since(start))
			if step >= *steps-last {
				losses[i] += loss / float64(min(last, *steps))
			}
		}
	}
	fmt.Printf("%-22s %12s %14s %10s\n", "", "loss", "bytes of state", "ms a step")
	for i, r := range runs {
		slices.Sort(spent[i])
		fmt.Printf("%-22s %12.4f %14d %10.2f\n", r.name, losses[i], r.bytes(), spent[i][len(spent[i])/2].Seconds()*1e3)
	}
}
