package train_test

import (
	"context"
	"fmt"
	"iter"
	"math/rand/v2"
	"os"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/quant8"
	"github.com/snug-ml/snug/train"
)

// regression is a model of one's own: y = x·wᵀ, with the mean squared error.
type regression struct{ w snug.View }

const rows, in, out = 32, 64, 64

// sample is a micro-batch: rows of x and y.
type sample struct{ x, y []snug.BFloat16 }

func (m regression) Trainable() iter.Seq2[string, snug.View] {
	return func(yield func(string, snug.View) bool) { yield("w", m.w) }
}

func (m regression) Weight(sample) float64 { return rows }

// errors returns the predictions less y, and the sum of the squares.
func (m regression) errors(s sample) (d []float32, sum float64, err error) {
	d = make([]float32, rows*out)
	if err := amp.MatMul(snug.ViewOf(d), snug.ViewOf(s.x), m.w, amp.MatMulOptions{M: rows, N: out, K: in, TransB: true}); err != nil {
		return nil, 0, err
	}
	for i, y := range s.y {
		d[i] -= y.Float32()
		sum += float64(d[i]) * float64(d[i]) / out
	}
	return d, sum, nil
}

func (m regression) Backprop(_ context.Context, s sample, scale float32, w train.Window) (fused.Loss, error) {
	d, sum, err := m.errors(s)
	if err != nil {
		return fused.Loss{}, err
	}
	for i := range d {
		d[i] *= 2 * scale / (rows * out)
	}
	dw, into, err := w.Into("w") // dw = Beta·dw + Alpha·dᵀ·x
	if err != nil {
		return fused.Loss{}, err
	}
	err = amp.MatMul(dw, snug.ViewOf(d), snug.ViewOf(s.x), amp.MatMulOptions{M: out, N: in, K: rows, TransA: true, Into: into})
	return fused.Loss{Sum: sum, Targets: rows}, err
}

func (m regression) Evaluate(_ context.Context, s sample) (fused.Loss, error) {
	_, sum, err := m.errors(s)
	return fused.Loss{Sum: sum, Targets: rows}, err
}

// A model of one's own trains with bfloat16 weights, 8-bit state and checkpoints.
func Example() {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	data := func(step int) []sample { // two micro-batches; y is x
		rng := rand.New(rand.NewPCG(1, uint64(step)))
		var list []sample
		for range 2 {
			x := make([]snug.BFloat16, rows*in)
			for i := range x {
				x[i] = snug.ToBFloat16(float32(rng.NormFloat64()))
			}
			list = append(list, sample{x, x})
		}
		return list
	}
	for _, steps := range []int{20, 40} { // the second goes on where the first has ended
		m := regression{snug.ViewOf(make([]snug.BFloat16, out*in))}
		t, err := train.New(m, train.Options{
			Optimizer: quant8.AdamW{}, StateBits: 8, Clip: 1, Schedule: train.Cosine(0.05, 5, 40), Checkpoints: train.Checkpoints{Dir: dir, SaveEvery: 10}})
		if err != nil {
			panic(err)
		}
		fmt.Print("from step ", t.Step())
		var report train.Report
		for t.Step() < steps {
			if report, err = t.Train(context.Background(), data(t.Step())); err != nil {
				panic(err)
			}
		}
		fmt.Println(" to", report.Step, "the loss falls below 0.1:", report.Loss < 0.1)
		if err := t.Close(); err != nil {
			panic(err)
		}
	}
	// Output:
	// from step 0 to 20 the loss falls below 0.1: false
	// from step 20 to 40 the loss falls below 0.1: true
}
