package quant8

import (
	"cmp"
	"fmt"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/optim"
)

// ScheduleFree is Schedule-Free AdamW of Defazio et al. 2024, "The Road Less Scheduled", arXiv:2405.15682, as the
// authors' package schedulefree computes it. Its rate is constant after a warm-up, and the number of steps need not be
// known: an average of the parameters takes the place of a decay of the rate.
//
// There are three sequences of parameters. The model trains with y: the parameter p is y. It is evaluated and saved
// with x, an average, which [Optimizer.Average] computes. z makes the steps of the default rule without a first moment. With the
// state m = z - y and c2 = √(1-β2^t), step t computes
//
//	v ← β2·v + (1-β2)·g²
//	u = g/(√v/c2 + ε) + wd·p
//	p ← p + c·m - lr·(1 - β1·(1-c))·u
//	m ← (1-c)·(m - lr·β1·u)
//	x = p - (1/β1 - 1)·m
//
// c is the weight of the step in the average: c = w/Σw, where w = t^Power·rmax^RatePower, rmax is the largest rate so
// far, and the sum is over all steps so far. The authors keep z where this package keeps m. The results are the same up
// to rounding, and m is small, so that few bits can hold it.
//
// The rate of [Optimizer.Advance] rises during a warm-up of a few percent of the steps and is then constant, 1 to 10
// times the rate of other rules. The authors advise a β1 of 0.9 to 0.98.
//
// The states are m, which is signed, and v; they take as many bytes as the states of [Default], and have its limits for
// sparse gradients. The weights of the average take 24 bytes for all parameters together, and are saved. [SkipElement]
// sets m to 0, so that the average of the element begins anew.
type ScheduleFree struct {
	Beta1       float32 // the model trains at y = (1-Beta1)·z + Beta1·x; in (0,1), default 0.9
	Beta2       float32 // decay of the second moment, in (0,1), default 0.999
	Eps         float32 // added to the root of the second moment, default 1e-8
	WeightDecay float32 // taken at y; default 0
	Power       float32 // power of t in w, 0 to 8; default 0. The authors call it r
	RatePower   float32 // power of the rate in w, 0 to 8; default 2. The authors call it weight_lr_power
	Uniform     bool    // a RatePower of 0, because 0 in that field means 2
}

func (r ScheduleFree) equation() equation {
	usual := ScheduleFree{WeightDecay: 0.01}
	m := &averaging{power: float64(r.Power), ratePower: float64(cmp.Or(r.RatePower, 2))}
	e := equation{
		Traits: Traits{
			Name: "schedule-free", Title: "ScheduleFree", About: "its rate stays constant after its warmup, and an average of the weights is saved", Shards: true, Devices: true, Averages: true, Numbers: 3,
			Full: Setting{usual, 2.5 * 1e-5, 2.5 * 1e-6}, Adapters: Setting{usual, 2.5 * 2e-4, 2.5 * 1e-5},
		},
		hyper:  optim.Hyper{Rule: optim.ScheduleFree, WeightDecay: float64(r.WeightDecay)},
		method: m,
	}
	const most = 8
	switch {
	case !(r.Power >= 0 && r.Power <= most):
		e.refuse("Power is %g, want a number from 0 to %d", r.Power, most)
	case !(r.RatePower >= 0 && r.RatePower <= most):
		e.refuse("RatePower is %g, want a number from 0 to %d", r.RatePower, most)
	case r.Uniform && r.RatePower != 0:
		e.refuse("RatePower is %g, want 0 with Uniform", r.RatePower)
	case r.Uniform:
		m.ratePower = 0
	}
	e.moments(r.Beta1, r.Beta2)
	e.number("Eps", &e.hyper.Eps, r.Eps, 1e-8, math.MaxFloat32)
	return e
}

// averaging is the method of Schedule-Free: each step has a weight in the average.
type averaging struct {
	plain
	optim.Averaging
	power, ratePower float64
}

func (m *averaging) begin(a *Optimizer, lr float32) {
	m.Averaging = m.Next(a.t+1, float64(lr), m.power, m.ratePower)
}

func (m *averaging) constants(h optim.Hyper) optim.Hyper {
	h.Share = m.Share
	return h
}

func (m *averaging) numbers(*Optimizer) []float64 { return []float64{m.Sum, m.Share, m.Most} }

func (m *averaging) restore(_ *Optimizer, x []float64) {
	m.Averaging = optim.Averaging{Sum: x[0], Share: x[1], Most: x[2]}
}

// Average writes to x the average with which a model that [ScheduleFree] trains is evaluated and saved. p holds the
// training values of elements lo to lo+len(p)-1 of the parameter. lo and len(p) have the limits that they have in
// [Optimizer.StepRange]. x has the length of p, and its elements are float32, float16 or bfloat16. x may be p itself;
// otherwise the two must not overlap. Average changes nothing but x. If x is p, the program must restore p before it
// trains on.
//
// Each worker holds 16 KiB. For a device other than the CPU the work is done on the host, on copies of one chunk at a
// time.
//
// Errors wrap [snug.ErrConfig] for another rule. The other errors are the errors of [Optimizer.Step].
func (a *Optimizer) Average(name string, lo int, x, p snug.View) error {
	if err := a.average(name, lo, x, p); err != nil {
		return fmt.Errorf("quant8: %s: average: %w", a.label(), err)
	}
	return nil
}

func (a *Optimizer) average(name string, lo int, x, p snug.View) error {
	if err := a.usable(); err != nil {
		return err
	}
	if !a.o.Averages {
		return fmt.Errorf("the rule evaluates the parameters that it trains, and has no average: %w", snug.ErrConfig)
	}
	switch {
	case !x.DType().IsFloat():
		return fmt.Errorf("parameter %q: x is %s, want f32, f16 or bf16: %w", name, x.DType(), snug.ErrDType)
	case x.Len() != p.Len():
		return fmt.Errorf("parameter %q: x has %d elements, p has %d: %w", name, x.Len(), p.Len(), snug.ErrShape)
	}
	q, dev, err := a.checkOperands(name, lo, false, p, x, 1)
	if err != nil {
		return err
	}
	for begin := 0; begin < p.Len(); begin += a.o.Chunk {
		end := min(begin+a.o.Chunk, p.Len())
		from, err := p.Slice(begin, end)
		if err != nil {
			return err
		}
		to, err := x.Slice(begin, end)
		if err != nil {
			return err
		}
		if err := a.averageChunk(dev, q, (lo+begin)/a.o.Chunk, to, from); err != nil {
			return fmt.Errorf("parameter %q: %w", name, err)
		}
	}
	return nil
}

// averageChunk computes the average of one chunk.
func (a *Optimizer) averageChunk(dev *snug.Device, q *param, chunk int, x, p snug.View) error {
	args := averageArgs{x: x, p: p, h: a.o.hyper, layout: q.layout, m: a.maps, tile: q.block}
	if q.bits >= 16 {
		args.tile = half.Chunk
	}
	if !dev.IsCPU() {
		near := snug.ViewOf(make([]float32, p.Len()))
		if err := hostFloats(near.Float32s(), p); err != nil {
			return err
		}
		args.x, args.p = near, near
	}
	err := a.withBlob(q, chunk, false, func(blob []byte) error {
		args.blob = blob
		args.per = blocksPerItem(args.tile) * args.tile
		averageTask.Run(cpu.Chunks(p.Len(), args.per), args)
		return nil
	})
	if err != nil || dev.IsCPU() {
		return err
	}
	rounded, _, err := snug.MakeView(snug.CPU(), x.DType(), x.Len())
	if err != nil {
		return err
	}
	half.Store(rounded, 0, args.x.Float32s())
	return snug.Copy(x, rounded)
}

type averageArgs struct {
	x, p snug.View
	h    optim.Hyper
	layout
	m         codeMaps
	blob      []byte
	tile, per int
}

var averageTask = cpu.NewTask(func(a *averageArgs, item int) {
	lo, hi := cpu.Chunk(a.p.Len(), a.per, item)
	scratch := tiles.Get(2 * a.tile)
	defer tiles.Put(scratch)
	for ; lo < hi; lo += a.tile {
		n := min(a.tile, hi-lo)
		m := (*scratch)[:n]
		switch first := lo / a.block; a.bits {
		case 32:
			m = a.split32(a.blob, a.p.Len())[0][lo:][:n]
		case 16:
			half.Load(m, snug.ViewOf(a.split16(a.blob, a.p.Len())[0]), lo)
		case 8:
			s := a.split8(a.blob, a.p.Len())
			optim.Load([]optim.State8{{Codes: s.codes[0][lo:], Absmax: s.absmax[0][first:], Encoder: a.m.m}}, 0, n, a.tile, m)
		default:
			s := a.split8(a.blob, a.p.Len())
			optim.Load([]optim.State4{{Codes: s.codes[0][lo/2:], Absmax: s.absmax[0][first:], Format: signed4()}}, 0, n, a.tile, m)
		}
		x := (*scratch)[a.tile:][:n]
		a.h.Mean(x, half.Floats(a.p, lo, x), m)
		half.Store(a.x, lo, x)
	}
})
