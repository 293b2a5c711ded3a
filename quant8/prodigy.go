package quant8

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/optim"
)

// Prodigy is the rule of Mishchenko and Defazio 2023, "Prodigy: An Expeditiously Adaptive Parameter-Free Learner",
// arXiv:2306.06101, as the authors' package prodigyopt computes it. It is the rule of [Default] that finds its rate by itself: the rate
// follows from an estimate d of the distance between the initial parameters p0 and the solution. The rate lr of
// [Optimizer.Advance] is usually 1, times the factor of a schedule. At step t, with r = d·lr, it computes
//
//	m ← β1·m + (1-β1)·d·g
//	v ← β2·v + (1-β2)·d²·g²
//	s ← β3·s + d/d0·r·g                 for every SliceP-th element; the sums are over these elements
//	N ← β3·N + d/d0·r·Σ g·(p0 - p)      over all parameters
//	p ← p·(1 - r·wd)
//	p ← p - r·m/(√v + d·ε)
//	d ← min(dmax, d·GrowthRate)         where dmax is the largest DCoef·N/Σ|s| so far
//
// GrowthRate does not limit the first growth: while d is d0, d takes the value DCoef·N/Σ|s| if that is larger, before
// the last line. The next step uses the new d, when all parameters have stepped. The authors' package already uses the
// new d in d·ε; that makes a difference only where d·ε does. v has no bias correction, so that in the first steps this is
// where √(1-β2)·|g| is about ε, at a |g| of about 3e-7 with the defaults. Weight decay is decoupled.
//
// As in the package, a step at a rate of 0 changes nothing, so that a warm-up may begin with 0. Until an element that
// counts in the sums has a gradient other than 0, a step changes m and v only. Neither counts in the bias corrections of
// BiasCorrection. In the first step with such a gradient a chunk of Options.Chunk elements without one still leaves p as
// it is, because gradients of other parameters may come later; the package moves p there too, which with a SliceP of 1 is
// p·(1 - r·wd). A parameter without a gradient needs no Step: m, v, s and p then stay as they are, and it adds nothing to
// the sums.
//
// The states are m, which is signed, and v; they take as many bytes as the states of [Default]. s and p0 - p take 8 bytes
// more for every SliceP-th element, whatever the width of the states: 8 bytes an element by default, 0.73 with a SliceP
// of 11. A [Storage] has s and p0 - p under the key "<optimizer>/<name>/factors". The sums are in float64, in the order
// of elements and names, so that their bits depend neither on the order of steps nor on the number of workers, only on
// Chunk. The sums take 16 bytes for every chunk.
//
// Steps run on the CPU only, one after another. All processes must hold whole parameters: [Optimizer.AddShard] of a
// part is an error. ParamOptions.LR multiplies the rate of a parameter's update, but not the parameter's share of the
// sums. [SkipElement] sets m, v and s of an element to 0.
//
// [Optimizer.WriteTo] is an error while a step has updated a part of a parameter. It saves the sums of the parameters that
// the step has updated as one: a restored run that updates the others in the same step may differ in the last bits of d.
// One that goes on with [Optimizer.Advance] goes on bit for bit.
//
// The limit of [Optimizer.Step] is on d·g. A d or a rate that float32 cannot hold is an error that wraps
// [snug.ErrNonFinite], before anything is written. Sums that are not finite, as after elements of p that are not, are such
// an error too. The new s is then written: the optimizer cannot be used until a state is restored.
type Prodigy struct {
	Beta1       float32 // decay of the first moment, in (0,1), default 0.9
	Beta2       float32 // decay of the second moment, in (0,1), default 0.999
	Beta3       float32 // decay of s and N, in (0,1), default √Beta2
	Eps         float32 // default 1e-8
	WeightDecay float32 // default 0
	D0          float32 // the initial d, default 1e-6
	DCoef       float32 // factor of the estimates, default 1: 0.5 and 2 work as well
	GrowthRate  float32 // largest factor by which d grows in a step, at least 1; default: no limit
	SliceP      int     // every SliceP-th element counts in the sums; at least 1, default 1, and 11 works as well
	// SafeguardWarmup adds d/d0·d·g to s in place of d/d0·r·g, so that a warm-up of lr does not change s.
	SafeguardWarmup bool
	BiasCorrection  bool // r has the bias corrections of both moments
}

func (r Prodigy) equation() equation {
	p := &estimating{every: cmp.Or(r.SliceP, 1), safeguard: r.SafeguardWarmup, corrected: r.BiasCorrection}
	usual := Prodigy{WeightDecay: 0.01, SliceP: 11, BiasCorrection: true, SafeguardWarmup: true}
	e := equation{
		Traits: Traits{Name: "prodigy", Title: "Prodigy", About: "it finds the rate, and -lr is a factor of it", Numbers: 6, Full: Setting{usual, 1, 1}, Adapters: Setting{usual, 1, 1}},
		hyper:  optim.Hyper{Rule: optim.Adam, PlainEps: true, Uncorrected: true, DecayFirst: true, WeightDecay: float64(r.WeightDecay)},
		method: p,
	}
	e.moments(r.Beta1, r.Beta2)
	p.hyper = e.hyper
	e.number("Eps", &e.hyper.Eps, r.Eps, 1e-8, math.MaxFloat32)
	e.number("Beta3", &p.grow.Beta3, r.Beta3, float32(math.Sqrt(e.hyper.Beta2)), 1)
	if r.Beta3 == 0 {
		p.grow.Beta3 = math.Sqrt(e.hyper.Beta2)
	}
	e.number("D0", &p.grow.Start, r.D0, 1e-6, math.MaxFloat32)
	e.number("DCoef", &p.grow.Coefficient, r.DCoef, 1, math.MaxFloat32)
	p.grow.Rate = float64(cmp.Or(r.GrowthRate, math.MaxFloat32))
	switch {
	case !(p.grow.Rate >= 1):
		e.refuse("GrowthRate is %g, want a number from 1 on", r.GrowthRate)
	case p.every < 1 || p.every > maxChunk:
		e.refuse("SliceP is %d, want 1 to %d", r.SliceP, maxChunk)
	}
	p.D, p.Most = p.grow.Start, p.grow.Start
	return e
}

// estimating is the method of Prodigy: all parameters have one estimate of d.
type estimating struct {
	plain
	distance
	grow                 grow
	every                int // SliceP
	safeguard, corrected bool
	hyper                optim.Hyper  // for the bias corrections
	before               [2]float64   // after a restore: the sums of the last step before it was saved
	names                []string     // of all parameters, in order
	parts                [][2]float64 // sums of the items of a chunk
}

func (p *estimating) engine(_ *options, added added) (engine, error) {
	if added.n == 0 {
		return new(elements), nil
	}
	e := &sliced{of: p, count: slicesIn(added.n, p.every)}
	e.alone, e.factors = true, 8*int64(e.count)
	return e, nil
}

// sliced is the engine of a parameter, with so many slices: elements that count in the sums.
type sliced struct {
	elements
	of    *estimating
	count int
	sums  [][2]float64 // for every chunk, from the first step on
}

func (e *sliced) option() string { return fmt.Sprintf("a SliceP of %d", e.of.every) }

// begin sets d for the next step from the sums of the last step.
func (p *estimating) begin(a *Optimizer, _ float32) {
	if p.names == nil {
		p.names = a.names()
	}
	sums := p.sums(a)
	p.distance = p.next(p.grow, sums[0], sums[1])
	p.clear(a, [2]float64{})
}

// clear sets the sums of all parameters to 0, and those of the last step before a restore.
func (p *estimating) clear(a *Optimizer, before [2]float64) {
	p.before = before
	for _, q := range a.params {
		if e, ok := q.engine.(*sliced); ok {
			clear(e.sums)
		}
	}
}

// sums returns what the step adds to the numerator N, and the denominator Σ|s|, over all parameters.
func (p *estimating) sums(a *Optimizer) [2]float64 {
	sums := p.before
	for _, name := range p.names {
		if e, ok := a.params[name].engine.(*sliced); ok {
			for _, x := range e.sums {
				sums[0], sums[1] = sums[0]+x[0], sums[1]+x[1]
			}
		}
	}
	return sums
}

func (p *estimating) numbers(a *Optimizer) []float64 {
	sums := p.sums(a)
	return []float64{p.D, p.Most, p.Numerator, sums[0], sums[1], float64(p.Steps)}
}

func (p *estimating) restore(a *Optimizer, x []float64) {
	p.distance = distance{D: x[0], Most: x[1], Numerator: x[2], Steps: int(x[5])}
	p.names = a.names()
	p.clear(a, [2]float64{x[3], x[4]})
}

// valid: only N and a step's part of it can be below 0, and the last number counts steps.
func (*estimating) valid(i int, x float64, step uint64) bool {
	return (x >= 0 || i == 2 || i == 3) && (i != 5 || x == math.Trunc(x) && x <= float64(step))
}

func (p *estimating) scale(gradScale float32) (float32, error) {
	if !finite(float32(p.D)) {
		return 0, fmt.Errorf("the estimate d is %g: %w", p.D, snug.ErrNonFinite)
	}
	return float32(float64(gradScale) * p.D), nil
}

// rate returns r, without the factor LR of a parameter's options.
func (p *estimating) rate(lr float32) float64 {
	r := float64(p.D * float64(lr))
	if p.corrected {
		h := p.hyper
		h.Step = p.Steps + 1
		r = float64(r * h.Corrected())
	}
	return r
}

func (e *sliced) step(a *Optimizer, dev *snug.Device, q *param, lo int, h optim.Hyper, j stepJob, gradScale float32) error {
	if j.p.Len() == 0 || a.lr == 0 {
		return nil
	}
	a.work.mu.Lock()
	defer a.work.mu.Unlock()
	if e.sums == nil {
		e.sums = make([][2]float64, len(q.marks))
	}
	of := e.of
	d, r := of.D, of.rate(a.lr)
	h.LR, h.Eps = r*float64(q.options.LR), h.Eps*d
	along := r
	if of.safeguard {
		along = d
	}
	s := slicesOf{
		P: j.p, G: j.g, First: lo, Every: of.every, GradScale: gradScale,
		Beta3: of.grow.Beta3, Along: float64(d/of.grow.Start) * along, Weigh: float64(d/of.grow.Start) * r, Skip: h.Skip, SkipScale: h.GradScale,
	}
	if !finite(float32(h.LR)) || !finite(float32(s.Along)) {
		return fmt.Errorf("with the estimate d = %g the rate is %g, and gradients count %g in s: %w", d, h.LR, s.Along, snug.ErrNonFinite)
	}
	if err := e.slices(a, q, s, false); err != nil {
		return err
	}
	if err := e.stepMoved(a, dev, q, lo, h, j); err != nil {
		return err
	}
	a.note(a.claimOf(q, lo, j.p.Len()), optim.Begun) // its chunks may count as updated, and p0 - p is not yet
	return e.slices(a, q, s, true)
}

// stepMoved makes the update. Before the first step that counts it leaves p as it is in chunks whose s is 0.
func (e *sliced) stepMoved(a *Optimizer, dev *snug.Device, q *param, lo int, h optim.Hyper, j stepJob) (err error) {
	if e.of.Steps > 0 {
		return a.stepVector(dev, q, lo, h, j)
	}
	p, g, number, rate := j.p, j.g, j.first, h.LR
	for begin := 0; begin < p.Len(); begin += a.o.Chunk {
		end := min(begin+a.o.Chunk, p.Len())
		if j.p, err = p.Slice(begin, end); err != nil {
			return err
		}
		if j.g, err = g.Slice(begin, end); err != nil {
			return err
		}
		j.first, h.LR = number+uint64(begin), rate
		if e.sums[(lo+begin)/a.o.Chunk][1] == 0 {
			h.LR = 0
		}
		if err := a.stepVector(dev, q, lo+begin, h, j); err != nil {
			return err
		}
	}
	return nil
}

// perSlices is how many slices an item of a parallel loop has. A slice is an element that counts in the sums.
const perSlices = 1 << 12

// slices updates s, p0 - p and the sums for the slices of a range, before or after the update of the range.
func (e *sliced) slices(a *Optimizer, q *param, s slicesOf, after bool) error {
	if a.o.Storage != nil {
		return e.slicesStored(a, q, s, after)
	}
	state, err := a.stateOn(snug.CPU(), q)
	if err != nil {
		return err
	}
	return e.slicesIn(a, q, state.Host(), s, after)
}

// slicesStored is slices with a Storage. It is a function of its own because its closure allocates memory.
func (e *sliced) slicesStored(a *Optimizer, q *param, s slicesOf, after bool) error {
	return a.withBlob(q, factors, true, func(blob []byte) error { return e.slicesIn(a, q, blob, s, after) })
}

// slicesIn is slices with blob, the memory of s and p0 - p. It works chunk by chunk.
func (e *sliced) slicesIn(a *Optimizer, q *param, blob []byte, s slicesOf, after bool) (err error) {
	p, g, lo := s.P, s.G, s.First
	a.note(a.claimOf(q, lo, p.Len()), optim.Begun)
	kept := floats(blob, 2*e.count)
	for begin := 0; begin < p.Len(); begin += a.o.Chunk {
		end := min(begin+a.o.Chunk, p.Len())
		if s.P, err = p.Slice(begin, end); err != nil {
			return err
		}
		if s.G, err = g.Slice(begin, end); err != nil {
			return err
		}
		s.First = lo + begin
		from, to := slicesIn(s.First, s.Every), slicesIn(lo+end, s.Every)
		s.S, s.Away = kept[from:to], kept[e.count+from:e.count+to]
		items := cpu.Chunks(to-from, perSlices)
		parts := slices.Grow(e.of.parts[:0], items)[:items]
		e.of.parts = parts
		slicesTask.Run(items, slicesArgs{s, parts, after})
		if after {
			continue
		}
		sum := [2]float64{}
		for _, x := range parts {
			sum[0], sum[1] = sum[0]+x[0], sum[1]+x[1]
		}
		if x := sum[0] + sum[1]; x-x != 0 {
			return fmt.Errorf("elements %d to %d add %g to N and %g to the sum of |s|: %w", s.First, lo+end-1, sum[0], sum[1], snug.ErrNonFinite)
		}
		e.sums[s.First/a.o.Chunk] = sum
	}
	return nil
}

type slicesArgs struct {
	slicesOf
	parts [][2]float64
	after bool
}

var slicesTask = cpu.NewTask(func(a *slicesArgs, item int) {
	lo, hi := cpu.Chunk(len(a.S), perSlices, item)
	tile := tiles.Get(2)
	defer tiles.Put(tile)
	if a.after {
		a.finish(lo, hi, *tile)
		return
	}
	x, y := a.start(lo, hi, *tile)
	a.parts[item] = [2]float64{x, y}
})

// savable returns an error where a step is in the middle of a parameter: the saved state has the sums of what a step
// has updated as one, in which parts of a parameter have no place. It also returns one for numbers that a restore refuses.
func (p *estimating) savable(a *Optimizer) error {
	for _, name := range a.names() {
		if q := a.params[name]; q.n > 0 && !q.marks.All(optim.Updated) && !q.marks.All(optim.Waiting) {
			return fmt.Errorf("a part of parameter %q is updated in step %d: update all of it first: %w", name, a.t, snug.ErrConfig)
		}
	}
	for i, x := range p.numbers(a) {
		if x-x != 0 {
			what := [...]string{"the estimate d", "the largest estimate", "N", "a step's part of N", "the sum of |s|", "the number of steps"}[i]
			return fmt.Errorf("%s is %g: %w", what, x, snug.ErrNonFinite)
		}
	}
	return nil
}

// distance is an estimate d of the distance to the solution.
type distance struct {
	D, Most   float64 // d, and the largest estimate of all steps
	Numerator float64 // a decaying sum
	Steps     int     // that have changed the estimate
}

// grow are the constants of [distance.next].
type grow struct{ Start, Coefficient, Rate, Beta3 float64 }

// next returns the estimate after a step with the sums of [slicesOf] over all parameters. A denominator of 0 says that
// nothing has moved along a gradient: the estimate stays as it is, the numerator does not decay and the step does not
// count.
func (e distance) next(g grow, numerator, denominator float64) distance {
	if denominator == 0 {
		return e
	}
	e.Steps++
	e.Numerator = float64(g.Beta3*e.Numerator) + numerator
	found := float64(g.Coefficient*e.Numerator) / denominator
	if e.D == g.Start {
		e.D = max(e.D, found)
	}
	e.Most = max(e.Most, found)
	e.D = min(e.Most, float64(e.D*g.Rate))
	return e
}

// slicesOf are the elements of a parameter that count in the sums: every Every-th element. For each slice,
// a step keeps S, a decaying sum of gradients, and Away, the difference p0 - p between the first value and the present
// one. P and G are a range of the parameter and its gradient, which begins at element First of the parameter. S and
// Away begin with the first slice of that range.
type slicesOf struct {
	P, G                snug.View // on the host
	First, Every        int
	S, Away             []float32
	GradScale           float32
	Beta3, Along, Weigh float64 // of S; what a gradient counts in S; and in the numerator
	Skip                uint32  // see [optim.Hyper]
	SkipScale           float32 // of gradients that Skip bounds, as in the update
}

// start adds the gradients of slices lo to hi-1 to S. It returns what these slices add to the numerator,
// Weigh·Σg·(p0-p), and to the denominator, Σ|s|. From then until finish, Away holds p0. scratch has 2 elements.
func (x *slicesOf) start(lo, hi int, scratch []float32) (numerator, denominator float64) {
	beta3, along := float32(x.Beta3), float32(x.Along)
	p, g := scratch[:1], scratch[1:2]
	for k := lo; k < hi; k++ {
		i := x.element(k)
		pi, gi := half.Floats(x.P, i, p)[0], half.Floats(x.G, i, g)[0]
		away := x.Away[k]
		x.Away[k] = away + pi
		if x.Skip != 0 && math.Float32bits(gi*x.SkipScale)&(1<<31-1) >= x.Skip {
			x.S[k] = 0
			continue
		}
		gi *= x.GradScale
		s := float32(beta3*x.S[k]) + float32(along*gi)
		x.S[k] = s
		numerator += float64(gi) * float64(away)
		denominator += math.Abs(float64(s))
	}
	return x.Weigh * numerator, denominator
}

// finish sets Away of slices lo to hi-1 to p0 - p, once the parameter has changed. scratch has 1 element.
func (x *slicesOf) finish(lo, hi int, scratch []float32) {
	for k := lo; k < hi; k++ {
		x.Away[k] -= half.Floats(x.P, x.element(k), scratch[:1])[0]
	}
}

// element returns the index in P of slice k.
func (x *slicesOf) element(k int) int { return (slicesIn(x.First, x.Every)+k)*x.Every - x.First }

// slicesIn returns how many slices n elements have.
func slicesIn(n, every int) int { return (n + every - 1) / every }
