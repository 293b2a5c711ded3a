package quant8

import (
	"cmp"
	"fmt"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/optim"
)

// AdamOptions configures [NewAdam]. A zero field means its default.
type AdamOptions struct {
	Beta1       float32 // decay of the first moment, in (0,1), default 0.9
	Beta2       float32 // decay of the second moment, in (0,1), default 0.999
	Eps         float32 // added to the root of the second moment, default 1e-8
	WeightDecay float32 // L2: WeightDecay·p is added to the gradient; default 0
	StateOptions
}

// NewAdam returns the optimizer of Kingma and Ba 2015, arXiv:1412.6980, without
// parameters. Weight decay is L2 regularization, as in torch.optim.Adam: it goes
// through the moments; [AdamW] decays the weights themselves. With c1 = 1-β1^t and
// c2 = √(1-β2^t) at step t it computes
//
//	g ← g + wd·p
//	m ← β1·m + (1-β1)·g
//	v ← β2·v + (1-β2)·g²
//	p ← p - lr·c2/c1 · m/(√v + ε·c2)
//
// The states are m, with a sign, and v: with 8 bits 2n + 8·⌈n/Block⌉ bytes for n
// elements, 2.03 a parameter at blocks of 256; with 4 bits 1.06 at blocks of 128; 4 with
// 16 bits and 8 with 32, and 8n for n below Min8bit, whatever Bits is. What is said of
// sparse gradients with [AdamW] holds here too.
//
// The error wraps [snug.ErrConfig].
func NewAdam(o AdamOptions) (*Optimizer, error) {
	beta1, beta2, eps := cmp.Or(o.Beta1, 0.9), cmp.Or(o.Beta2, 0.999), cmp.Or(o.Eps, 1e-8)
	return newOptimizer(options{
		name: "Adam", StateOptions: o.withDefaults(optim.Adam),
		hyper: optim.Hyper{
			Rule: optim.Adam, Beta1: float64(beta1), Beta2: float64(beta2), Eps: float64(eps),
			WeightDecay: float64(o.WeightDecay), Coupled: true,
		},
		numbers: []number{{"Beta1", beta1, 1}, {"Beta2", beta2, 1}, {"Eps", eps, math.MaxFloat32}},
	})
}

// AdEMAMixOptions configures [NewAdEMAMix]. A zero field means its default.
type AdEMAMixOptions struct {
	Beta1       float32 // decay of the fast first moment, in (0,1), default 0.9
	Beta2       float32 // decay of the second moment, in (0,1), default 0.999
	Beta3       float32 // decay of the slow first moment, in (0,1), default 0.9999
	Alpha       float32 // what the slow first moment counts, default 5
	Eps         float32 // added to the root of the second moment, default 1e-8
	WeightDecay float32 // a step multiplies p by 1-lr·WeightDecay; default 0

	// AlphaWarmup and Beta3Warmup are the steps over which Alpha grows linearly
	// from 0, and Beta3 from Beta1 so that the half-life of the slow moment does.
	// The paper has those of the whole run. Default 0: constant from the start.
	AlphaWarmup, Beta3Warmup int
	StateOptions
}

// NewAdEMAMix returns the optimizer of Pagliardini, Ablin and Grangier 2024,
// arXiv:2409.03137, without parameters. It is AdamW with a second, slow, first
// moment. With c1 = 1-β1^t and c2 = √(1-β2^t) at step t it computes
//
//	m ← β1·m + (1-β1)·g
//	n ← β3·n + (1-β3)·g
//	v ← β2·v + (1-β2)·g²
//	p ← p - lr·(m/c1 + α·n)/(√v/c2 + ε)
//	p ← p·(1 - lr·wd)
//
// or decays before it updates, with the order [Decoupled]. α and β3 can grow in the
// paper's way, T steps long:
//
//	α(t)  = α·min(t/T, 1)
//	β3(t) = exp(ln β1·ln β3/((1-t/T)·ln β3 + t/T·ln β1))    for t < T
//
// The states are m and n, with signs, and v: with 8 bits 3n + 12·⌈n/Block⌉ bytes
// for n elements, 3.05 a parameter at blocks of 256; with 4 bits 1.59 at blocks of 128; 6
// with 16 bits and 12 with 32, and 12n for n below Min8bit, whatever Bits is.
//
// The error wraps [snug.ErrConfig].
func NewAdEMAMix(o AdEMAMixOptions) (*Optimizer, error) {
	if o.AlphaWarmup < 0 || o.Beta3Warmup < 0 {
		return nil, fmt.Errorf("quant8: AdEMAMix: AlphaWarmup is %d and Beta3Warmup %d, want counts of steps: %w",
			o.AlphaWarmup, o.Beta3Warmup, snug.ErrConfig)
	}
	eps, alpha := cmp.Or(o.Eps, 1e-8), cmp.Or(o.Alpha, 5)
	beta1, beta2, beta3 := cmp.Or(o.Beta1, 0.9), cmp.Or(o.Beta2, 0.999), cmp.Or(o.Beta3, 0.9999)
	return newOptimizer(options{
		name: "AdEMAMix", warmup: [2]int{o.AlphaWarmup, o.Beta3Warmup}, StateOptions: o.withDefaults(optim.AdEMAMix),
		hyper: optim.Hyper{
			Rule: optim.AdEMAMix, Beta1: float64(beta1), Beta2: float64(beta2), Beta3: float64(beta3),
			Alpha: float64(alpha), Eps: float64(eps), WeightDecay: float64(o.WeightDecay), DecayFirst: o.Order == Decoupled,
		},
		numbers: []number{
			{"Beta1", beta1, 1}, {"Beta2", beta2, 1}, {"Beta3", beta3, 1},
			{"Alpha", alpha, math.MaxFloat32}, {"Eps", eps, math.MaxFloat32},
		},
	})
}
