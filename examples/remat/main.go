// Remat runs training steps of a deep chain of tanh(x·W) stages with several
// rematerialization plans. It prints what each holds, what it computes again
// and how long it takes, and checks that its gradients have the same bits as
// those with all activations kept.
package main

import (
	"context"
	"fmt"
	"log"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/snug-ml/snug/remat"
)

const (
	depth, batch, width = 24, 32, 64
	size                = 4 * batch * width // bytes of an activation
)

// layer is one stage. Its backward step needs no more than x and y.
type layer struct{ w, dw []float32 } // width×width

// Forward returns tanh(x·W).
func (l *layer) Forward(_ context.Context, x []float32) ([]float32, error) {
	y := make([]float32, len(x))
	for r := 0; r < len(x); r += width {
		for i, v := range x[r : r+width] {
			for j, w := range l.w[i*width : (i+1)*width] {
				y[r+j] += v * w
			}
		}
	}
	for i, v := range y {
		y[i] = float32(math.Tanh(float64(v)))
	}
	return y, nil
}

// ForwardSave saves the output.
func (l *layer) ForwardSave(ctx context.Context, x []float32) (y, s []float32, err error) {
	y, err = l.Forward(ctx, x)
	return y, y, err
}

// Backward adds to dw and returns dx, new memory besides that of dy.
func (l *layer) Backward(_ context.Context, x, y, dy []float32) ([]float32, error) {
	dx := make([]float32, len(x))
	for i, v := range y {
		dy[i] *= 1 - v*v // now the gradient of x·W
	}
	for r := 0; r < len(x); r += width {
		for i, v := range x[r : r+width] {
			for j, g := range dy[r : r+width] {
				l.dw[i*width+j] += v * g
				dx[r+i] += l.w[i*width+j] * g
			}
		}
	}
	return dx, nil
}

// newChain returns a chain of layers with the weights w and gradients dw.
func newChain(w, dw []float32) (chain remat.Chain[[]float32, []float32]) {
	chain.Bytes = func(x []float32) int64 { return int64(4 * len(x)) }
	chain.SavedBytes = chain.Bytes
	chain.Costs = &remat.Costs{Input: size}
	cost := remat.Cost{Output: size, Saved: size, BackwardExtra: size, ForwardTime: 1, BackwardTime: 2}
	for lo, hi := 0, width*width; hi <= len(w); lo, hi = hi, hi+width*width {
		chain.Stages = append(chain.Stages, &layer{w[lo:hi], dw[lo:hi]})
		chain.Costs.Stages = append(chain.Costs.Stages, cost)
	}
	return chain
}

func main() {
	w, dw := make([]float32, depth*width*width), make([]float32, depth*width*width)
	for i := range w {
		w[i] = float32(rand.NormFloat64() / math.Sqrt(width))
	}
	x, chain := slices.Clone(w[:batch*width]), newChain(w, dw)                   // x may be anything
	loss := func(y []float32) ([]float32, error) { return slices.Clone(y), nil } // of ½|y|²
	sameBits := func(a, b float32) bool { return math.Float32bits(a) == math.Float32bits(b) }
	fmt.Printf("%d stages, %d KiB an activation\n\nplan           simulated  measured   saves   extra    time  gradient\n", depth, size>>10)
	c, keep, want := *chain.Costs, remat.Report{}, []float32(nil)
	for _, p := range []remat.Plan{
		must(remat.KeepAll(c)), must(remat.Chen(c)), must(remat.Fit(c, 12*size)),
		must(remat.Revolve(c, 8)), must(remat.Revolve(c, 4)), must(remat.Revolve(c, 2)), must(remat.RecomputeAll(c)),
	} {
		var rep remat.Report
		var got []float32
		for range 3 { // the last one counts
			clear(dw)
			dx, r, err := chain.Run(context.Background(), p, x, loss)
			if err != nil {
				log.Fatal(err)
			}
			rep, got = r, append(dx, dw...)
		}
		if want == nil {
			keep, want = rep, got
		}
		predicted := must(p.Simulate(c))
		if rep.Peak != predicted.Peak || !slices.EqualFunc(got, want, sameBits) {
			log.Fatalf("%s: the peak is not the predicted one or the gradients differ", p.Name)
		}
		fmt.Printf("%-13s %6d KiB %5d KiB %6.1f%% %7d %6.2fx  same bits\n", p.Name, predicted.Peak>>10, rep.Peak>>10,
			100-100*float64(rep.Peak)/float64(keep.Peak), rep.Extra, rep.Time/keep.Time)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return v
}
