package quant8

import (
	"math"

	"github.com/snug-ml/snug/internal/optim"
)

// AdEMAMix is the rule of Pagliardini, Ablin and Grangier 2024, arXiv:2409.03137: the rule of [Default]
// with a second, slow, first moment. With c1 = 1-β1^t and c2 = √(1-β2^t) at step t it
// computes
//
//	m ← β1·m + (1-β1)·g
//	n ← β3·n + (1-β3)·g
//	v ← β2·v + (1-β2)·g²
//	p ← p - lr·(m/c1 + α·n)/(√v/c2 + ε)
//	p ← p·(1 - lr·wd)
//
// or decays before it updates, with DecayFirst. α and β3 can grow over the first T steps,
// as in the paper:
//
//	α(t)  = α·min(t/T, 1)
//	β3(t) = exp(ln β1·ln β3/((1-t/T)·ln β3 + t/T·ln β1))    for t < T
//
// The states are m and n, with signs, and v. With 8 bits they take 3k + 12·⌈k/Block⌉
// bytes for k elements. A parameter element takes 3.05 bytes with 8 bits and blocks of
// 256, 1.59 with 4 bits and blocks of 128, 6 with 16 bits and 12 with 32. Below MinSize
// elements it always takes 12.
type AdEMAMix struct {
	Beta1       float32 // decay of the fast first moment, in (0,1), default 0.9
	Beta2       float32 // decay of the second moment, in (0,1), default 0.999
	Beta3       float32 // decay of the slow first moment, in (0,1), default 0.9999
	Alpha       float32 // weight of the slow first moment, default 5
	Eps         float32 // added to the root of the second moment, default 1e-8
	WeightDecay float32 // a step multiplies p by 1-lr·WeightDecay; default 0
	DecayFirst  bool    // decays the weights before the update instead of after it

	// AlphaWarmup is the number of steps over which Alpha grows linearly from 0.
	// Beta3Warmup is the number of steps over which Beta3 grows from Beta1, so that the
	// half-life of the slow moment grows linearly. The paper uses the number of steps of
	// the whole run. Default 0: constant from the start.
	AlphaWarmup, Beta3Warmup int
}

func (r AdEMAMix) equation() equation {
	e := equation{
		Traits: Traits{Name: "ademamix", Title: "AdEMAMix", Shards: true, Devices: true, Folds: true},
		hyper: optim.Hyper{
			Rule: optim.AdEMAMix, WeightDecay: float64(r.WeightDecay), DecayFirst: r.DecayFirst, AlphaWarmup: r.AlphaWarmup, Beta3Warmup: r.Beta3Warmup,
		},
	}
	if r.AlphaWarmup < 0 || r.Beta3Warmup < 0 {
		e.refuse("AlphaWarmup is %d and Beta3Warmup %d, want counts of steps", r.AlphaWarmup, r.Beta3Warmup)
	}
	e.moments(r.Beta1, r.Beta2)
	e.number("Beta3", &e.hyper.Beta3, r.Beta3, 0.9999, 1)
	e.number("Alpha", &e.hyper.Alpha, r.Alpha, 5, math.MaxFloat32)
	e.number("Eps", &e.hyper.Eps, r.Eps, 1e-8, math.MaxFloat32)
	return e
}
