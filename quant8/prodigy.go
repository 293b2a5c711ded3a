package quant8

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/optim"
)

// Prodigy is the rule of Mishchenko and Defazio 2023, "Prodigy: An Expeditiously Adaptive Parameter-Free Learner",
// arXiv:2306.06101, as the authors' package prodigyopt computes it. It is AdamW that finds its rate by itself: the rate
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
// The states are m, which is signed, and v; they take as many bytes as the states of [AdamW]. s and p0 - p take 8 bytes
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
	BiasCorrection  bool // r has the bias corrections of AdamW
}

func (r Prodigy) equation() equation {
	e := equation{name: "Prodigy", hyper: optim.Hyper{Rule: optim.Adam, PlainEps: true, Uncorrected: true, DecayFirst: true, WeightDecay: float64(r.WeightDecay)}}
	p := &e.prodigy
	e.moments(r.Beta1, r.Beta2)
	e.number("Eps", &e.hyper.Eps, r.Eps, 1e-8, math.MaxFloat32)
	e.number("Beta3", &p.grow.Beta3, r.Beta3, float32(math.Sqrt(e.hyper.Beta2)), 1)
	if r.Beta3 == 0 {
		p.grow.Beta3 = math.Sqrt(e.hyper.Beta2)
	}
	e.number("D0", &p.grow.Start, r.D0, 1e-6, math.MaxFloat32)
	e.number("DCoef", &p.grow.Coefficient, r.DCoef, 1, math.MaxFloat32)
	p.grow.Rate = float64(cmp.Or(r.GrowthRate, math.MaxFloat32))
	p.every, p.safeguard, p.corrected = cmp.Or(r.SliceP, 1), r.SafeguardWarmup, r.BiasCorrection
	switch {
	case !(p.grow.Rate >= 1):
		e.refuse("GrowthRate is %g, want a number from 1 on", r.GrowthRate)
	case p.every < 1 || p.every > maxChunk:
		e.refuse("SliceP is %d, want 1 to %d", r.SliceP, maxChunk)
	}
	return e
}

// distances says how Prodigy estimates d. every is SliceP, and 0 for other rules.
type distances struct {
	grow                 optim.Grow
	every                int
	safeguard, corrected bool
}

// prodigy is an optimizer's estimate of d.
type prodigy struct {
	optim.Distance
	before [2]float64   // after a restore: the sums of the last step before it was saved
	names  []string     // of all parameters, in order
	parts  [][2]float64 // sums of the items of a chunk
}

// withSlices returns the shape with the number of elements, out of n, for which Prodigy keeps its s and p0 - p.
func (o *options) withSlices(s shape, n int) shape {
	if o.prodigy.every > 0 && n > 0 {
		s.sliced = optim.SlicesOf(n, o.prodigy.every)
	}
	return s
}

// estimate sets d for the next step from the sums of the last step.
func (a *Optimizer) estimate() {
	p := &a.prodigy
	if p.names == nil {
		p.names = a.names()
	}
	sums := a.sums()
	p.before = [2]float64{}
	for _, q := range a.params {
		clear(q.sums)
	}
	p.Distance = p.Next(a.o.prodigy.grow, sums[0], sums[1])
}

// sums returns what the step adds to the numerator N, and the denominator Σ|s|, over all parameters.
func (a *Optimizer) sums() [2]float64 {
	sums := a.prodigy.before
	for _, name := range a.prodigy.names {
		for _, x := range a.params[name].sums {
			sums[0], sums[1] = sums[0]+x[0], sums[1]+x[1]
		}
	}
	return sums
}

// scaled returns the factor of gradients in the moments: the gradient scale and, for Prodigy, d.
func (a *Optimizer) scaled(gradScale float32) float32 {
	if a.o.prodigy.every > 0 {
		return float32(float64(gradScale) * a.prodigy.D)
	}
	return gradScale
}

// distance returns r, without the factor LR of a parameter's options.
func (a *Optimizer) distance() float64 {
	r := float64(a.prodigy.D * float64(a.lr))
	if a.o.prodigy.corrected {
		h := a.o.hyper
		h.Step = a.prodigy.Steps + 1
		r = float64(r * h.Corrected())
	}
	return r
}

// stepSliced makes a step of Prodigy for elements from lo on.
func (a *Optimizer) stepSliced(dev *snug.Device, q *param, lo int, h optim.Hyper, j stepJob, gradScale float32) error {
	if j.p.Len() == 0 || a.lr == 0 {
		return nil
	}
	a.work.mu.Lock()
	defer a.work.mu.Unlock()
	d, r := a.prodigy.D, a.distance()
	h.LR, h.Eps = r*float64(q.options.LR), h.Eps*d
	along := r
	if a.o.prodigy.safeguard {
		along = d
	}
	s := optim.Slices{
		P: j.p, G: j.g, First: lo, Every: a.o.prodigy.every, GradScale: gradScale,
		Beta3: a.o.prodigy.grow.Beta3, Along: float64(d/a.o.prodigy.grow.Start) * along, Weigh: float64(d/a.o.prodigy.grow.Start) * r, Skip: h.Skip, SkipScale: h.GradScale,
	}
	if !finite(float32(h.LR)) || !finite(float32(s.Along)) {
		return fmt.Errorf("with the estimate d = %g the rate is %g, and gradients count %g in s: %w", d, h.LR, s.Along, snug.ErrNonFinite)
	}
	if err := a.slices(q, s, false); err != nil {
		return err
	}
	if err := a.stepMoved(dev, q, lo, h, j); err != nil {
		return err
	}
	a.note(a.claimOf(q, lo, j.p.Len()), optim.Begun) // its chunks may count as updated, and p0 - p is not yet
	return a.slices(q, s, true)
}

// stepMoved makes the update. Before the first step that counts it leaves p as it is in chunks whose s is 0.
func (a *Optimizer) stepMoved(dev *snug.Device, q *param, lo int, h optim.Hyper, j stepJob) (err error) {
	if a.prodigy.Steps > 0 {
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
		if q.sums[(lo+begin)/a.o.Chunk][1] == 0 {
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
func (a *Optimizer) slices(q *param, s optim.Slices, after bool) error {
	if a.o.Storage != nil {
		return a.slicesStored(q, s, after)
	}
	state, err := a.stateOn(snug.CPU(), q)
	if err != nil {
		return err
	}
	return a.slicesOf(q, state.Host(), s, after)
}

// slicesStored is slices with a Storage. It is a function of its own because its closure allocates memory.
func (a *Optimizer) slicesStored(q *param, s optim.Slices, after bool) error {
	return a.withBlob(q, factors, true, func(blob []byte) error { return a.slicesOf(q, blob, s, after) })
}

// slicesOf is slices with blob, the memory of s and p0 - p. It works chunk by chunk.
func (a *Optimizer) slicesOf(q *param, blob []byte, s optim.Slices, after bool) (err error) {
	p, g, lo := s.P, s.G, s.First
	a.note(a.claimOf(q, lo, p.Len()), optim.Begun)
	kept := floats(blob, 2*q.sliced)
	for begin := 0; begin < p.Len(); begin += a.o.Chunk {
		end := min(begin+a.o.Chunk, p.Len())
		if s.P, err = p.Slice(begin, end); err != nil {
			return err
		}
		if s.G, err = g.Slice(begin, end); err != nil {
			return err
		}
		s.First = lo + begin
		from, to := optim.SlicesOf(s.First, s.Every), optim.SlicesOf(lo+end, s.Every)
		s.S, s.Away = kept[from:to], kept[q.sliced+from:q.sliced+to]
		items := cpu.Chunks(to-from, perSlices)
		parts := slices.Grow(a.prodigy.parts[:0], items)[:items]
		a.prodigy.parts = parts
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
		q.sums[s.First/a.o.Chunk] = sum
	}
	return nil
}

type slicesArgs struct {
	optim.Slices
	parts [][2]float64
	after bool
}

var slicesTask = cpu.NewTask(func(a *slicesArgs, item int) {
	lo, hi := cpu.Chunk(len(a.S), perSlices, item)
	tile := tiles.Get(2)
	defer tiles.Put(tile)
	if a.after {
		a.After(lo, hi, *tile)
		return
	}
	x, y := a.Before(lo, hi, *tile)
	a.parts[item] = [2]float64{x, y}
})

// savable returns an error where Prodigy is in the middle of a parameter: the saved state has the sums of what a step
// has updated as one, in which parts of a parameter have no place. It also returns one for numbers that a restore refuses.
func (a *Optimizer) savable() error {
	if a.o.prodigy.every == 0 {
		return nil
	}
	for _, name := range a.names() {
		if q := a.params[name]; q.n > 0 && !q.marks.All(optim.Updated) && !q.marks.All(optim.Waiting) {
			return fmt.Errorf("a part of parameter %q is updated in step %d: update all of it first: %w", name, a.t, snug.ErrConfig)
		}
	}
	for i, x := range a.numbers() {
		if x-x != 0 {
			what := [...]string{"the estimate d", "the largest estimate", "N", "a step's part of N", "the sum of |s|", "the number of steps"}[i]
			return fmt.Errorf("%s is %g: %w", what, x, snug.ErrNonFinite)
		}
	}
	return nil
}
