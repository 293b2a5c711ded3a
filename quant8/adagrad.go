package quant8

import (
	"math"

	"github.com/snug-ml/snug/internal/optim"
)

// Adagrad is the rule of Duchi, Hazan and Singer 2011, "Adaptive Subgradient Methods for
// Online Learning and Stochastic Optimization", as torch.optim.Adagrad computes it:
//
//	g ← g + wd·p
//	v ← v + g²
//	p ← p - lr·g/(√v + ε)
//
// In 8 and 4 bits a sum does not grow if g² is less than half the distance of two codes.
// Near the absmax of a block this half is 1/142 of absmax in 8 bits, and 1/32 in 4 bits.
// Long runs need 16 bits, which round at random, or 32. A sum that exceeds float32,
// 3.4e38, spoils its block.
//
// The state is v. In 8 bits it has the signed map, as in bitsandbytes; otherwise it has
// no sign. Its bytes are those of one state, see [StateBytes].
type Adagrad struct {
	Eps         float32 // added to the root of the sum of squares, default 1e-10
	WeightDecay float32 // L2: WeightDecay·p is added to the gradient; default 0
}

func (r Adagrad) equation() equation {
	e := equation{
		Traits: Traits{Name: "adagrad", Title: "Adagrad", Shards: true, Devices: true, BitsAndBytes: "Adagrad8bit, Adagrad"},
		hyper:  optim.Hyper{Rule: optim.Adagrad, WeightDecay: float64(r.WeightDecay)},
	}
	e.number("Eps", &e.hyper.Eps, r.Eps, 1e-10, math.MaxFloat32)
	return e
}
