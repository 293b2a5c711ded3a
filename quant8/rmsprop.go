package quant8

import (
	"math"

	"github.com/snug-ml/snug/internal/optim"
)

// RMSprop is the rule of Tieleman and Hinton 2012, "Lecture 6.5: RMSProp" (Coursera), as
// torch.optim.RMSprop computes it:
//
//	g ← g + wd·p
//	v ← α·v + (1-α)·g²
//	p ← p - lr·g/(√v + ε)
//
// The state is v. In 8 bits it has the signed map, as in bitsandbytes; otherwise it has
// no sign. With 8 bits it takes n + 4·⌈n/Block⌉ bytes for n elements. A parameter element
// takes 1.02 bytes with 8 bits and blocks of 256, 0.53 with 4 bits and blocks of 128, 2
// with 16 bits and 4 with 32. Below MinSize elements it always takes 4.
type RMSprop struct {
	Alpha       float32 // decay of the mean of squares, in (0,1), default 0.99
	Eps         float32 // added to its root, default 1e-8
	WeightDecay float32 // L2: WeightDecay·p is added to the gradient; default 0
}

func (r RMSprop) equation() equation {
	e := equation{
		Traits: Traits{Name: "rmsprop", Title: "RMSprop", Shards: true, Devices: true, BitsAndBytes: "RMSprop8bit, RMSprop"},
		hyper:  optim.Hyper{Rule: optim.RMSprop, WeightDecay: float64(r.WeightDecay)},
	}
	e.number("Alpha", &e.hyper.Beta1, r.Alpha, 0.99, 1)
	e.number("Eps", &e.hyper.Eps, r.Eps, 1e-8, math.MaxFloat32)
	return e
}
