package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/snug-ml/snug/remat"
)

// chainSize is a chain to train with less memory than all of its activations take.
type chainSize struct {
	name       string
	depth      int // blocks of a transformer, blocks of each of the three widths of a ResNet
	rows, cols int // of the first activation
	tokens     int // of a sequence, for a transformer
	heads      int
	points     []point
	runs       int // to measure the costs
}

// point is a budget as a fraction of what keeping everything takes, and what was
// published for it: bytes and overhead of DTR (Kirisame et al., "Dynamic Tensor
// Rematerialization", 2021) in PyTorch on a Titan V. The bytes are of whole models.
type point struct {
	part, whole int64
	published   float64 // overhead, 0 if there is none
}

func (p point) budget(most int64) int64 { return most * p.part / p.whole }

func (p point) fraction() float64 { return float64(p.part) / float64(p.whole) }

var (
	chains = []chainSize{
		{name: chainTransformer, depth: 24, rows: 128, cols: 128, tokens: 128, heads: 2, points: transformerPoints, runs: 9},
		{name: chainResnet, depth: 32, rows: 512, cols: 64, points: resnetPoints, runs: 9},
	}
	shortChains = []chainSize{
		{name: chainTransformer, depth: 8, rows: 64, cols: 64, tokens: 32, heads: 2, points: transformerPoints, runs: 2},
		{name: chainResnet, depth: 6, rows: 256, cols: 16, points: resnetPoints, runs: 2},
	}

	transformerPoints = []point{{1, 2, 0}, {4195, 9872, 0.19}, {1, 4, 0}, {2330, 9872, 0.60}}
	resnetPoints      = []point{{1, 2, 0}, {1, 4, 0}, {2005, 8908, 0.47}}
)

// methods are those that plan heterogeneous chains, and Chen's for comparison.
var methods = []remat.Method{remat.MethodFit, remat.MethodRotor, remat.MethodChen}

// rematerializations are training passes of whole chains under a budget.
func rematerializations(s sizes) (all []work) {
	for _, c := range s.chains {
		all = append(all, work{
			kernel: "remat", dtype: "f32", shape: fmt.Sprintf("chain=%s stages=%d rows=%d cols=%d", c.name, c.stages(), c.rows, c.cols),
			products: c.flops(), host: true, chain: &c,
		})
	}
	return all
}

// stages returns the number of them.
func (c *chainSize) stages() int {
	if c.name == chainTransformer {
		return 2 * c.depth
	}
	return 3*c.depth + 2
}

// flops returns the operations of the matrix products of a training pass, without
// recomputation: 6 for each weight that a row is multiplied with, and those of causal
// attention. Every stage of a ResNet has as many: 2·cols² weights for the rows of the
// first width.
func (c *chainSize) flops() float64 {
	if c.name == chainTransformer {
		return float64(c.depth) * float64(c.rows) * float64(6*12*c.cols*c.cols+6*c.cols*(c.tokens+1))
	}
	return float64(c.stages()) * float64(c.rows) * float64(6*2*c.cols*c.cols)
}

// layers returns the stages' work. Lean ones of a transformer save less.
func (c *chainSize) layers(lean bool) (all []sublayer) {
	temps := new(temporaries)
	r := rand.New(rand.NewPCG(4, uint64(c.depth)))
	if c.name == chainTransformer {
		for range c.depth {
			all = append(all, newAttentionHalf(r, c, lean, temps), newMLPHalf(r, c, lean, temps))
		}
		return all
	}
	rows, cols := c.rows, c.cols
	for group := range 3 {
		if group > 0 {
			rows, cols = rows/4, cols*2
			all = append(all, newDownsample(r, rows, cols, temps))
		}
		for range c.depth {
			all = append(all, newResidualBlock(r, rows, cols, temps))
		}
	}
	return all
}

const (
	chainTransformer = "transformer"
	chainResnet      = "resnet"
)

// planned is what a plan takes under a budget, next to what keeping everything does.
// Bytes are of activations and their gradients, as the chain counts them.
type planned struct {
	Method    string  `json:"method"`
	Plan      string  `json:"plan"`     // its name
	Fraction  float64 `json:"fraction"` // the budget, of the peak with everything kept
	Budget    int64   `json:"budget_bytes"`
	Minimum   int64   `json:"minimum_budget_bytes,omitempty"` // that works, where none does
	Simulated int64   `json:"peak_simulated_bytes,omitempty"`
	Measured  int64   `json:"peak_measured_bytes,omitempty"`

	Time              float64  `json:"time_simulated_s"`   // by the times of the stages
	SimulatedOverhead float64  `json:"overhead_simulated"` // of that of the plan that keeps everything
	Overhead          float64  `json:"overhead"`           // measured
	OverheadSpread    float64  `json:"overhead_spread"`    // between its quartiles
	Gap               float64  `json:"gap"`                // to a lower bound of the time, simulated
	Published         *float64 `json:"published_overhead"` // null where nothing was
}

// rematerialization measures the plans of one chain.
type rematerialization struct {
	o options
	m *machine
	w *work

	full, lean variant
	all        *runner      // keeps everything
	keep       remat.Report // of that, simulated
	want       []uint32     // the gradients of that
	timed      map[string]*timing
	results    []result
}

// variant is a chain whose stages save more or less.
type variant struct {
	name  string
	chain *trainable // with its costs; nil if there is no such chain
}

// prepare makes the chains and measures their costs.
func (r *rematerialization) prepare(ctx context.Context) error {
	c := r.w.chain
	of := func(lean bool) *trainable { return newTrainable(c.rows*c.cols, c.layers(lean)) }
	r.full.chain = of(false)
	chains := []*trainable{r.full.chain}
	if c.name == chainTransformer {
		r.lean = variant{name: " lean", chain: of(true)}
		chains = append(chains, r.lean.chain)
	}
	costs, err := measureCosts(ctx, c.runs, chains...)
	if err != nil {
		return err
	}
	for i, t := range chains {
		t.Costs = &costs[i]
	}
	return nil
}

// timing is that of one plan, run in turn with the one that keeps everything.
type timing struct {
	plan             *side
	overhead, spread float64
	peak             int64
	allocs           int64
}

// measureRemat measures a chain with everything kept, and with the plans of all methods
// under all budgets.
func (w *work) measureRemat(ctx context.Context, o options, m *machine) ([]result, error) {
	r := &rematerialization{o: o, m: m, w: w, timed: map[string]*timing{}}
	if err := r.prepare(ctx); err != nil {
		return nil, err
	}
	if err := r.keepAll(ctx); err != nil {
		return nil, err
	}
	for _, p := range w.chain.points {
		for _, method := range methods {
			if err := r.plan(ctx, p, method, &r.full); err != nil {
				return nil, err
			}
		}
		if r.lean.chain != nil {
			if err := r.plan(ctx, p, remat.MethodFit, &r.lean); err != nil {
				return nil, err
			}
		}
	}
	return r.results, nil
}

// keepAll measures the pass that keeps everything, against itself.
func (r *rematerialization) keepAll(ctx context.Context) error {
	plan, err := remat.KeepAll(*r.full.chain.Costs)
	if err != nil {
		return err
	}
	if r.keep, err = plan.Simulate(*r.full.chain.Costs); err != nil {
		return err
	}
	if r.all, err = r.full.chain.NewRunner(plan); err != nil {
		return err
	}
	t, err := r.time(ctx, &r.full, plan, r.keep.Peak)
	if err != nil {
		return err
	}
	r.want = r.full.chain.bits()
	r.add(t, planned{Method: plan.Name, Plan: plan.Name, Fraction: 1, Budget: r.keep.Peak}, r.keep)
	return nil
}

// plan measures the plan of a method for a budget.
func (r *rematerialization) plan(ctx context.Context, p point, method remat.Method, v *variant) error {
	row := planned{Method: method.String() + v.name, Fraction: p.fraction(), Budget: p.budget(r.keep.Peak)}
	if p.published > 0 {
		row.Published = &p.published
	}
	plan, sim, err := remat.Planner{Method: method}.Plan(*v.chain.Costs, row.Budget)
	if none := new(remat.BudgetError); errors.As(err, &none) {
		row.Minimum = none.Minimum
		r.results = append(r.results, result{
			Kernel: r.w.kernel, DType: r.w.dtype, Shape: r.w.shape, Device: r.m.dev.Name(), Tier: r.m.tier, Threads: r.m.threads, Plan: &row,
		})
		return nil
	}
	if err != nil {
		return err
	}
	t, err := r.time(ctx, v, plan, sim.Peak)
	if err != nil {
		return fmt.Errorf("%s for %d bytes: %w", row.Method, row.Budget, err)
	}
	row.Plan = plan.Name
	r.add(t, row, sim)
	return nil
}

// add completes a row with what was simulated and measured.
func (r *rematerialization) add(t *timing, row planned, sim remat.Report) {
	row.Simulated, row.Measured = sim.Peak, t.peak
	row.Time, row.SimulatedOverhead, row.Gap = sim.Time, sim.Time/r.keep.Time-1, sim.Gap()
	row.Overhead, row.OverheadSpread = t.overhead, t.spread
	of := r.w.results(r.m, []*side{t.plan}, &t.allocs)[0]
	of.Plan = &row
	r.results = append(r.results, of)
}

// time verifies a plan and runs it in turn with the one that keeps everything. The
// overhead is the median of what every pair of passes gives. A plan that has been timed
// is not run again.
func (r *rematerialization) time(ctx context.Context, v *variant, plan remat.Plan, peak int64) (*timing, error) {
	key := v.name + plan.String()
	if t := r.timed[key]; t != nil {
		return t, nil
	}
	of, err := v.chain.NewRunner(plan)
	if err != nil {
		return nil, err
	}
	t := &timing{}
	if t.peak, err = v.chain.verify(ctx, of, peak, r.want); err != nil {
		return nil, err
	}
	own, other := passes(ctx, r.full.chain, r.all), passes(ctx, v.chain, of)
	keep := &side{run: own.run}
	t.plan = &side{run: other.run}
	if err := alternate(ctx, r.o.pace(), []*side{keep, t.plan}); err != nil {
		return nil, err
	}
	if t.plan.missing != nil {
		return nil, t.plan.missing
	}
	var ratios []float64
	for i, s := range t.plan.samples {
		ratios = append(ratios, s/keep.samples[i]-1)
	}
	t.overhead, t.spread = median(ratios), quantile(ratios, 0.75)-quantile(ratios, 0.25)
	t.allocs = other.perRun()
	r.timed[key] = t
	return t, nil
}

// passes times those of one plan.
func passes(ctx context.Context, t *trainable, r *runner) *local {
	return &local{f: func() error {
		_, _, err := t.pass(ctx, r)
		return err
	}}
}
