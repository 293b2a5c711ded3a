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

func (r AdamW) equation() equation {
	usual := AdamW{WeightDecay: 0.01}
	e := equation{
		Traits: Traits{
			Name: "adamw", Title: "AdamW", About: "two averages for each element", Shards: true, Devices: true, Folds: true, BitsAndBytes: "AdamW8bit, AdamW, Adam8bit, Adam",
			Full: Setting{usual, 1e-5, 1e-6}, Adapters: Setting{usual, 2e-4, 1e-5},
		},
		hyper: optim.Hyper{Rule: optim.Adam, WeightDecay: float64(r.WeightDecay), DecayFirst: r.DecayFirst},
	}
	e.moments(r.Beta1, r.Beta2)
	e.number("Eps", &e.hyper.Eps, r.Eps, 1e-8, math.MaxFloat32)
	return e
}
