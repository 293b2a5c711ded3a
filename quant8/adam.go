package quant8

import (
	"math"

	"github.com/snug-ml/snug/internal/optim"
)

// AdamW is the rule of Loshchilov and Hutter 2019, arXiv:1711.05101. With the constants
// of step t, c1 = 1-β1^t and c2 = √(1-β2^t), it computes in float32
//
//	m ← β1·m + (1-β1)·g
//	v ← β2·v + (1-β2)·g²
//	p ← p - lr·c2/c1 · m/(√v + ε·c2)
//	p ← p·(1 - lr·wd)
//
// or decays before it updates, with DecayFirst.
//
// The states are m, with a sign, and v. With 8 bits they take 2n + 8·⌈n/Block⌉ bytes for
// n elements. A parameter element takes 2.03 bytes with 8 bits and blocks of 256, 1.06
// with 4 bits and blocks of 128, 4 with 16 bits and 8 with 32. Below MinSize elements it
// always takes 8.
//
// In 8 bits a second moment below 1.6e-7 of its block's absmax counts as 1.6e-7 of it,
// see [Optimizer], so that rare and small gradients next to large ones move their
// parameters less. Sparse gradients, such as an embedding's, need 32-bit state.
// bitsandbytes uses 32 bits for embeddings too.
type AdamW struct {
	Beta1       float32 // decay of the first moment, in (0,1), default 0.9
	Beta2       float32 // decay of the second moment, in (0,1), default 0.999
	Eps         float32 // added to the root of the second moment, default 1e-8
	WeightDecay float32 // a step multiplies p by 1-lr·WeightDecay; default 0
	// DecayFirst decays the weights before the update, as torch.optim.AdamW does. The
	// default decays them after it, as bitsandbytes' CUDA kernel does.
	DecayFirst bool
}

// adamwName names the optimizer of saved states that do not name one.
const adamwName = "AdamW"

func (r AdamW) equation() equation {
	e := equation{name: adamwName, hyper: optim.Hyper{Rule: optim.Adam, WeightDecay: float64(r.WeightDecay), DecayFirst: r.DecayFirst}}
	e.moments(r.Beta1, r.Beta2)
	e.number("Eps", &e.hyper.Eps, r.Eps, 1e-8, math.MaxFloat32)
	return e
}

// moments sets the decay of the two moments of Adam.
func (e *equation) moments(beta1, beta2 float32) {
	e.number("Beta1", &e.hyper.Beta1, beta1, 0.9, 1)
	e.number("Beta2", &e.hyper.Beta2, beta2, 0.999, 1)
}

// Adam is the rule of Kingma and Ba 2015, arXiv:1412.6980. Weight decay is L2
// regularization, as in torch.optim.Adam: it goes through the moments; [AdamW] decays the
// weights themselves. With c1 = 1-β1^t and c2 = √(1-β2^t) at step t it computes
//
//	g ← g + wd·p
//	m ← β1·m + (1-β1)·g
//	v ← β2·v + (1-β2)·g²
//	p ← p - lr·c2/c1 · m/(√v + ε·c2)
//
// It has the states of [AdamW], with the same bytes and the same limits for sparse
// gradients.
type Adam struct {
	Beta1       float32 // decay of the first moment, in (0,1), default 0.9
	Beta2       float32 // decay of the second moment, in (0,1), default 0.999
	Eps         float32 // added to the root of the second moment, default 1e-8
	WeightDecay float32 // L2: WeightDecay·p is added to the gradient; default 0
}

func (r Adam) equation() equation {
	e := equation{name: "Adam", hyper: optim.Hyper{Rule: optim.Adam, WeightDecay: float64(r.WeightDecay), Coupled: true}}
	e.moments(r.Beta1, r.Beta2)
	e.number("Eps", &e.hyper.Eps, r.Eps, 1e-8, math.MaxFloat32)
	return e
}

// AdEMAMix is the rule of Pagliardini, Ablin and Grangier 2024, arXiv:2409.03137: AdamW
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
		name: "AdEMAMix", warmup: [2]int{r.AlphaWarmup, r.Beta3Warmup},
		hyper: optim.Hyper{Rule: optim.AdEMAMix, WeightDecay: float64(r.WeightDecay), DecayFirst: r.DecayFirst},
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
