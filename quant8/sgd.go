package quant8

import "github.com/snug-ml/snug/internal/optim"

// SGD is stochastic gradient descent with momentum, as torch.optim.SGD computes it. With
// momentum μ and dampening d that is
//
//	g ← g + wd·p
//	m ← μ·m + (1-d)·g    at step 1: m ← g
//	p ← p - lr·m         with Nesterov: p ← p - lr·(g + μ·m)
//
// Polyak 1964, "Some methods of speeding up the convergence of iteration methods";
// Nesterov's is the form of Sutskever et al. 2013, "On the importance of
// initialization and momentum in deep learning".
//
// The state is m, with a sign; see [StateBytes].
type SGD struct {
	Momentum    float32 // in (0,1), default 0.9
	Dampening   float32 // 0 to 1; default 0
	Nesterov    bool    // look ahead; Dampening must be 0
	WeightDecay float32 // L2: WeightDecay·p is added to the gradient; default 0
}

func (r SGD) equation() equation {
	e := equation{
		Traits: Traits{Name: "sgd", Title: "SGD", Shards: true, Devices: true, Folds: !r.Nesterov},
		hyper:  optim.Hyper{Rule: optim.Momentum, Dampening: float64(r.Dampening), WeightDecay: float64(r.WeightDecay)},
	}
	if r.Nesterov {
		e.hyper.Rule = optim.Nesterov
	} else if r.Dampening == 0 { // bitsandbytes takes both options and does not use them
		e.BitsAndBytes = "SGD8bit, SGD"
	}
	switch {
	case !(r.Dampening >= 0 && r.Dampening <= 1):
		e.refuse("Dampening is %g, want a number from 0 to 1", r.Dampening)
	case r.Nesterov && r.Dampening != 0:
		e.refuse("Dampening is %g, want 0 with Nesterov", r.Dampening)
	}
	e.number("Momentum", &e.hyper.Beta1, r.Momentum, 0.9, 1)
	return e
}
