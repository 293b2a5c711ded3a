package quant8

import "github.com/snug-ml/snug/internal/optim"

// Lion is the rule of Chen et al. 2023, arXiv:2302.06675. It computes
//
//	p ← p·(1 - lr·wd) - lr·sign(β1·m + (1-β1)·g)
//	m ← β2·m + (1-β2)·g
//
// where sign(0) is 0.
//
// The state is m, with a sign. With 8 bits it takes n + 4·⌈n/Block⌉ bytes for n elements.
// A parameter element takes 1.02 bytes with 8 bits and blocks of 256, 0.53 with 4 bits
// and blocks of 128, 2 with 16 bits and 4 with 32. Below MinSize elements it always takes
// 4.
type Lion struct {
	Beta1       float32 // weight of the momentum in the update, in (0,1), default 0.9
	Beta2       float32 // decay of the momentum, in (0,1), default 0.99
	WeightDecay float32 // a step multiplies p by 1-lr·WeightDecay; default 0
}

func (r Lion) equation() equation {
	e := equation{
		Traits: Traits{Name: "lion", Title: "Lion", Shards: true, Devices: true, BitsAndBytes: "Lion8bit, Lion"},
		hyper:  optim.Hyper{Rule: optim.Lion, WeightDecay: float64(r.WeightDecay), DecayFirst: true},
	}
	e.number("Beta1", &e.hyper.Beta1, r.Beta1, 0.9, 1)
	e.number("Beta2", &e.hyper.Beta2, r.Beta2, 0.99, 1)
	return e
}
