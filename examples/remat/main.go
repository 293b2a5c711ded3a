// Remat walks the memory budget of a deep chain from what it takes with all
// activations down to the least that works. For every budget it plans by several
// methods, runs the plans, and prints the peak and the time that were predicted and
// measured. The gradients have the same bits in all of them.
//
//	go run ./examples/remat             a table
//	go run ./examples/remat -o out.svg  and a chart
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"math"
	"slices"

	"github.com/snug-ml/snug/remat"
)

const depth = 14

// method is a way to plan.
type method struct {
	name string
	remat.Planner
}

var methods = [...]method{
	{"every", remat.Planner{Method: remat.MethodEvery}},
	{"revolve", remat.Planner{Method: remat.MethodRevolve}},
	{"rotor", remat.Planner{Method: remat.MethodRotor}},
	{"exact", remat.Planner{Method: remat.MethodExact, States: 1 << 17}},
	{"fit+disk", remat.Planner{Tiers: remat.Tiers{Disk: 1 << 30}}},
}

// point is what a plan takes.
type point struct {
	method              string
	predicted, measured remat.Report
}

func main() {
	chart := flag.String("o", "", "file for a chart, such as out.svg")
	flag.Parse()
	points, err := walk(context.Background())
	if err == nil && *chart != "" {
		err = draw(*chart, points)
	}
	if err != nil {
		log.Fatal(err)
	}
}

// walk prints a table and returns what is in it.
func walk(ctx context.Context) (points []point, err error) {
	chain, w, dw := newChain(depth)
	pages, err := newDisk()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, pages.Close()) }()
	if err := pages.use(chain); err != nil {
		return nil, err
	}
	x := slices.Clone(w[:batch*width])                                           // may be anything
	loss := func(y []float32) ([]float32, error) { return slices.Clone(y), nil } // of ½|y|²
	costs, err := chain.MeasureCosts(ctx, x, loss, 5)
	if err != nil {
		return nil, err
	}
	chain.Costs = &costs
	r := runner{chain, x, dw, loss, nil, map[string]remat.Report{}}
	keep, err := remat.KeepAll(costs)
	if err != nil {
		return nil, err
	}
	all, err := r.run(ctx, keep)
	if err != nil {
		return nil, err
	}
	fmt.Printf("%d stages; all activations take %.1f KiB and %.2f ms\n\n", depth, kib(all.Peak), 1e3*all.Time)
	fmt.Println("           budget  method     peak, KiB            time, of all activations     extra  gap to")
	fmt.Println("                              predicted  measured  predicted  measured  waited  steps  bound")
	var ended [len(methods)]bool // by method: the smallest budget has been
	for percent := int64(100); percent > 0; percent -= 10 {
		for i, m := range methods {
			if ended[i] {
				continue
			}
			budget := all.Peak * percent / 100
			plan, predicted, err := m.Plan(costs, budget)
			var short *remat.BudgetError
			if errors.As(err, &short) {
				ended[i], budget = true, short.Minimum
				plan, predicted, err = m.Plan(costs, budget)
			}
			if err != nil {
				return nil, err
			}
			measured, err := r.run(ctx, plan)
			if err != nil {
				return nil, err
			}
			fmt.Printf("%3d %% %7.1f KiB  %-9s %10.1f %9.1f %10.3f %9.3f %7.3f %6d %6.1f%%\n", 100*budget/all.Peak, kib(budget), m.name,
				kib(predicted.Peak), kib(measured.Peak), predicted.Time/all.Time, measured.Time/all.Time,
				measured.Waited/all.Time, predicted.Extra, 100*predicted.Gap())
			points = append(points, point{m.name, predicted, measured})
		}
	}
	return points, nil
}

func kib(bytes int64) float64 { return float64(bytes) / 1024 }

// runner runs plans and compares their gradients.
type runner struct {
	chain *remat.Chain[[]float32, saved]
	x, dw []float32
	loss  func([]float32) ([]float32, error)
	want  []float32 // the gradients of x and of the weights
	known map[string]remat.Report
}

// run returns the fastest of some runs of a plan.
func (r *runner) run(ctx context.Context, plan remat.Plan) (best remat.Report, err error) {
	if best, ok := r.known[plan.String()]; ok {
		return best, nil
	}
	runs, err := r.chain.NewRunner(plan)
	if err != nil {
		return best, err
	}
	for i := range 5 {
		clear(r.dw)
		dx, rep, err := runs.Run(ctx, r.x, r.loss)
		if err != nil {
			return best, err
		}
		got := append(dx, r.dw...)
		if r.want == nil {
			r.want = got
		}
		sameBits := func(a, b float32) bool { return math.Float32bits(a) == math.Float32bits(b) }
		predicted, err := plan.Simulate(*r.chain.Costs)
		if err != nil {
			return best, err
		}
		if rep.Peak != predicted.Peak || !slices.EqualFunc(got, r.want, sameBits) {
			return best, fmt.Errorf("plan %s: a peak of %d bytes, %d are predicted, or other gradients", plan.Name, rep.Peak, predicted.Peak)
		}
		if i == 0 || rep.Time < best.Time {
			best = rep
		}
	}
	r.known[plan.String()] = best
	return best, nil
}
