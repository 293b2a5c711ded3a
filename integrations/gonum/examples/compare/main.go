// Compare fits a softmax regression, 10 classes of 784 inputs and 7,850 parameters of float64, by methods of gonum and by
// optimizers of snug as methods of gonum, and prints the loss, the memory in use, measured in step 20, and the time. Then it multiplies
// two matrices by gonum and by snug.
//
//	go run ./examples/compare
package main

import (
	"flag"
	"fmt"
	"log"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"text/tabwriter"
	"time"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/integrations/gonum"
	"github.com/snug-ml/snug/quant8"
	"gonum.org/v1/gonum/floats"
	"gonum.org/v1/gonum/mat"
	"gonum.org/v1/gonum/optimize"
)

const (
	samples, inputs, classes = 1000, 784, 10
	parameters               = (inputs + 1) * classes

	measuredCall = 20
)

func main() {
	steps := flag.Int("steps", 100, "evaluations of the function, at most, that each method has")
	size := flag.Int("size", 1024, "rows and columns of the matrices that are multiplied")
	flag.Parse()
	if err := run(*steps, *size); err != nil {
		log.Fatal(err)
	}
}

func run(steps, size int) error {
	adam := func(bits int) *gonum.Method {
		decay := func(step int) float64 { return 3e-3 * (1 - float64(step-1)/float64(steps)) }
		return &gonum.Method{Rule: quant8.Adam{}, Options: quant8.Options{Bits: bits}, Rate: decay}
	}
	problem := regression()
	if _, err := optimize.Minimize(problem, make([]float64, parameters), &optimize.Settings{FuncEvaluations: 2}, adam(32)); err != nil {
		return err // which begins the workers of snug, so that their memory is not counted
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "method\tloss\tevaluations\tbytes in use\ta parameter\ttime\t")
	for _, m := range []struct {
		name   string
		method optimize.Method
	}{
		{"gonum, GradientDescent", &optimize.GradientDescent{}},
		{"gonum, CG", &optimize.CG{}},
		{"gonum, LBFGS", &optimize.LBFGS{}},
		{"snug, Adam, 32 bits", adam(32)},
		{"snug, Adam, 8 bits", adam(8)},
		{"snug, Adam, 4 bits", adam(4)},
	} {
		var held int64
		measured, calls, before := problem, 0, heap()
		measured.Grad = func(grad, w []float64) {
			problem.Grad(grad, w)
			if calls++; calls == measuredCall {
				held = heap() - before
			}
		}
		began := time.Now()
		settings := &optimize.Settings{FuncEvaluations: steps, Converger: optimize.NeverTerminate{}}
		result, err := optimize.Minimize(measured, make([]float64, parameters), settings, m.method)
		if err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
		fmt.Fprintf(w, "%s\t%.4f\t%d\t%d\t%.1f\t%.1f s\t\n", m.name, result.F, result.FuncEvaluations, held, float64(held)/parameters, time.Since(began).Seconds())
	}
	if err := w.Flush(); err != nil {
		return err
	}
	return products(size)
}

// heap returns the bytes of memory in use.
func heap() int64 {
	var m runtime.MemStats
	for range 3 { // pools keep their memory for two
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// regression returns the mean cross-entropy of a softmax over classes, which a random matrix has given the samples.
func regression() optimize.Problem {
	rng := rand.New(rand.NewPCG(1, 2))
	x := mat.NewDense(samples, inputs+1, nil)
	x.Apply(func(_, col int, _ float64) float64 {
		if col == inputs {
			return 1 // the bias
		}
		return rng.NormFloat64()
	}, x)
	teacher := mat.NewDense(inputs+1, classes, nil)
	teacher.Apply(func(int, int, float64) float64 { return rng.NormFloat64() }, teacher)
	var scores mat.Dense
	scores.Mul(x, teacher)
	labels := make([]int, samples)
	for i := range labels {
		labels[i] = floats.MaxIdx(scores.RawRowView(i))
	}

	// errors sets scores to the probabilities less those of the labels, over the number of samples, and returns the loss.
	errors := func(w []float64) (loss float64) {
		scores.Mul(x, mat.NewDense(inputs+1, classes, w))
		for i, label := range labels {
			row := scores.RawRowView(i)
			log := floats.LogSumExp(row)
			loss += (log - row[label]) / samples
			for c, s := range row {
				row[c] = math.Exp(s-log) / samples
			}
			row[label] -= 1. / samples
		}
		return loss
	}
	return optimize.Problem{
		Func: errors,
		Grad: func(grad, w []float64) {
			errors(w)
			mat.NewDense(inputs+1, classes, grad).Mul(x.T(), &scores)
		},
	}
}

// products prints the time of a product of two square matrices, and its largest error as a share of the largest element.
func products(size int) error {
	rng := rand.New(rand.NewPCG(3, 4))
	random := func() *mat.Dense {
		m := mat.NewDense(size, size, nil)
		m.Apply(func(int, int, float64) float64 { return rng.NormFloat64() }, m)
		return m
	}
	a, b := random(), random()
	var exact, c mat.Dense
	began := time.Now()
	exact.Mul(a, b)
	fmt.Printf("\na product of %d×%d: gonum %.3f s", size, size, time.Since(began).Seconds())
	for _, t := range []snug.DType{snug.F32, snug.BF16} {
		began := time.Now()
		if err := gonum.Mul(&c, a, b, t); err != nil {
			return err
		}
		took := time.Since(began)
		c.Sub(&c, &exact)
		fmt.Printf("; snug in %v %.3f s, error %.1e", t, took.Seconds(), mat.Max(&c)/mat.Max(&exact))
		c.Reset()
	}
	fmt.Println()
	return nil
}
