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
// arXiv:2306.06101, as the authors' package prodigyopt computes it: AdamW whose rate it finds by itself, from an
// estimate d of the distance between the first parameters p0 and the solution. The rate lr of [Optimizer.Advance] is
// usually 1, with a schedule's factor. At step t, with r = d·lr, it computes
//
//	m ← β1·m + (1-β1)·d·g
//	v ← β2·v + (1-β2)·d²·g²
//	s ← β3·s + d/d0·r·g                 of every SliceP-th element, and so are the sums
//	N ← β3·N + d/d0·r·Σ g·(p0 - p)      over all parameters
//	p ← p·(1 - r·wd)
//	p ← p - r·m/(√v + d·ε)
//	d ← min(dmax, d·GrowthRate)         where dmax is the largest DCoef·N/Σ|s| so far; d = d0 takes that at once
//
// The next d follows when all parameters have stepped. The authors already take it for d·ε, which makes a difference
// only where gradients are about as small as ε. Weight decay is decoupled.
//
// The states are m, with a sign, and v, with the bytes of [AdamW]'s. s and p0 - p take 8 bytes more for every SliceP-th
// element, with any width: 8 bytes a parameter by default, 0.73 with a SliceP of 11. A [Storage] has them under the
// key "<optimizer>/<name>/factors". The sums are in float64, in the order of elements and names, so that their bits do
// not depend on the order of steps and the number of workers, only on Chunk. They take 16 bytes for every chunk.
//
// Steps are on the CPU, and wait for one another. All processes must hold whole parameters: [Optimizer.AddShard] of a
// part is an error. Saving in the middle of a step is one too. ParamOptions.LR multiplies the rate of a parameter's
// update and not its part of the sums. [SkipElement] sets m, v and s of an element to 0.
type Prodigy struct {
	Beta1       float32 // decay of the first moment, in (0,1), default 0.9
	Beta2       float32 // decay of the second moment, in (0,1), default 0.999
	Beta3       float32 // decay of s and N, in (0,1), default √Beta2
	Eps         float32 // default 1e-8
	WeightDecay float32 // default 0
	D0          float32 // the first d, default 1e-6
	DCoef       float32 // factor of the estimates, default 1: 0.5 and 2 work as well
	GrowthRate  float32 // largest factor of d in a step, from 1 on; default: no limit
	SliceP      int     // one of how many elements counts in the sums, from 1 on; default 1, and 11 works as well
	// SafeguardWarmup leaves lr out of what a gradient counts in s, for a warm-up of lr.
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

// distances is how an equation estimates d. Its every is 0 for other equations.
type distances struct {
	grow                 optim.Grow
	every                int
	safeguard, corrected bool
}

// prodigy is the estimate of an optimizer.
type prodigy struct {
	optim.Distance
	before [2]float64   // the sums of the step that was restored, which has ended
	names  []string     // of all parameters, in order
	parts  [][2]float64 // sums of the items of a chunk
}

// withSlices returns the shape of a parameter of n elements with the slices that Prodigy keeps.
func (o *options) withSlices(s shape, n int) shape {
	if o.prodigy.every > 0 && n > 0 {
		s.sliced = optim.SlicesOf(n, o.prodigy.every)
	}
	return s
}

// estimate begins the next step with the d that follows from the sums of the last.
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

// sums returns the numerator and the denominator of the step.
func (a *Optimizer) sums() [2]float64 {
	sums := a.prodigy.before
	for _, name := range a.prodigy.names {
		for _, x := range a.params[name].sums {
			sums[0], sums[1] = sums[0]+x[0], sums[1]+x[1]
		}
	}
	return sums
}

// scaled returns the factor of gradients in the moments.
func (a *Optimizer) scaled(gradScale float32) float32 {
	if a.o.prodigy.every > 0 {
		return float32(float64(gradScale) * a.prodigy.D)
	}
	return gradScale
}

// distance returns r without the factor of a parameter's options.
func (a *Optimizer) distance(h *optim.Hyper) float64 {
	r := float64(a.prodigy.D * float64(a.lr))
	if a.o.prodigy.corrected {
		r = float64(r * h.Corrected())
	}
	return r
}

// stepSliced makes a step of elements from lo on.
func (a *Optimizer) stepSliced(dev *snug.Device, q *param, lo int, h optim.Hyper, j stepJob, gradScale float32) error {
	if j.p.Len() == 0 {
		return nil
	}
	a.work.mu.Lock()
	defer a.work.mu.Unlock()
	d, r := a.prodigy.D, a.distance(&h)
	h.LR, h.Eps = r*float64(q.options.LR), h.Eps*d
	along := r
	if a.o.prodigy.safeguard {
		along = d
	}
	s := optim.Slices{
		P: j.p, G: j.g, First: lo, Every: a.o.prodigy.every, GradScale: gradScale,
		Beta3: a.o.prodigy.grow.Beta3, Along: float64(d/a.o.prodigy.grow.Start) * along, Weigh: float64(d/a.o.prodigy.grow.Start) * r, Skip: h.Skip,
	}
	if err := a.slices(q, s, false); err != nil {
		return err
	}
	if err := a.stepVector(dev, q, lo, h, j); err != nil {
		return err
	}
	return a.slices(q, s, true)
}

// perSlices is how many slices an item has.
const perSlices = 1 << 12

// slices makes a pass over the slices of a range, before or after its update.
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

// slicesStored is slices with a Storage. Its function takes memory, which slices does not.
func (a *Optimizer) slicesStored(q *param, s optim.Slices, after bool) error {
	return a.withBlob(q, factors, true, func(blob []byte) error { return a.slicesOf(q, blob, s, after) })
}

// slicesOf is slices with the memory of what is kept, chunk by chunk.
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

// savable returns an error in the middle of a step, whose sums are not saved one by one.
func (a *Optimizer) savable() error {
	if a.o.prodigy.every > 0 && a.midStep() {
		return fmt.Errorf("step %d is under way, and Prodigy is saved between steps: %w", a.t, snug.ErrConfig)
	}
	return nil
}
