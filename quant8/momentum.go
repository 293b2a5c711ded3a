package quant8

import (
	"cmp"
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/optim"
)

// LionOptions configures [NewLion]. A zero field means its default.
type LionOptions struct {
	Beta1       float32 // of the update, in (0,1), default 0.9
	Beta2       float32 // decay of the momentum, in (0,1), default 0.99
	WeightDecay float32 // a step multiplies p by 1-lr·WeightDecay; default 0
	StateOptions
}

// NewLion returns the optimizer of Chen et al. 2023, arXiv:2302.06675, without
// parameters. It computes
//
//	p ← p·(1 - lr·wd) - lr·sign(β1·m + (1-β1)·g)
//	m ← β2·m + (1-β2)·g
//
// where sign(0) is 0; the weights decay first with every [Order], as in the paper and
// in bitsandbytes.
//
// The state is m, with a sign: with 8 bits n + 4·⌈n/Block⌉ bytes for n elements, 1.02
// a parameter at blocks of 256; with 4 bits 0.53 at blocks of 128; 2 with 16 bits and 4
// with 32, and 4n for n below Min8bit, whatever Bits is.
//
// The error wraps [snug.ErrConfig].
func NewLion(o LionOptions) (*Optimizer, error) {
	beta1, beta2 := cmp.Or(o.Beta1, 0.9), cmp.Or(o.Beta2, 0.99)
	return newOptimizer(options{
		name: "Lion", StateOptions: o.withDefaults(optim.Lion),
		hyper: optim.Hyper{
			Rule: optim.Lion, Beta1: float64(beta1), Beta2: float64(beta2),
			WeightDecay: float64(o.WeightDecay), DecayFirst: true,
		},
		numbers: []number{{"Beta1", beta1, 1}, {"Beta2", beta2, 1}},
	})
}

// SGDOptions configures [NewSGD]. A zero field means its default.
type SGDOptions struct {
	Momentum    float32 // in (0,1), default 0.9
	Dampening   float32 // 0 to 1; default 0
	Nesterov    bool    // look ahead; Dampening must be 0
	WeightDecay float32 // L2: WeightDecay·p is added to the gradient; default 0
	StateOptions
}

// NewSGD returns stochastic gradient descent with momentum, as torch.optim.SGD
// computes it, without parameters. With momentum μ and dampening d that is
//
//	g ← g + wd·p
//	m ← μ·m + (1-d)·g    at step 1: m ← g
//	p ← p - lr·m         with Nesterov: p ← p - lr·(g + μ·m)
//
// Polyak 1964, "Some methods of speeding up the convergence of iteration methods";
// Nesterov's is the form of Sutskever et al. 2013, "On the importance of
// initialization and momentum in deep learning".
//
// The state is m, with a sign: with 8 bits n + 4·⌈n/Block⌉ bytes for n elements, 1.02
// a parameter at blocks of 256; with 4 bits 0.53 at blocks of 128; 2 with 16 bits and 4
// with 32, and 4n for n below Min8bit, whatever Bits is.
//
// The error wraps [snug.ErrConfig].
func NewSGD(o SGDOptions) (*Optimizer, error) {
	switch {
	case !(o.Dampening >= 0 && o.Dampening <= 1):
		return nil, fmt.Errorf("quant8: SGD: Dampening is %g, want a number from 0 to 1: %w", o.Dampening, snug.ErrConfig)
	case o.Nesterov && o.Dampening != 0:
		return nil, fmt.Errorf("quant8: SGD: Dampening is %g, want 0 with Nesterov: %w", o.Dampening, snug.ErrConfig)
	}
	momentum, rule := cmp.Or(o.Momentum, 0.9), optim.Momentum
	if o.Nesterov {
		rule = optim.Nesterov
	}
	return newOptimizer(options{
		name: "SGD", StateOptions: o.withDefaults(rule),
		hyper:   optim.Hyper{Rule: rule, Beta1: float64(momentum), Dampening: float64(o.Dampening), WeightDecay: float64(o.WeightDecay)},
		numbers: []number{{"Momentum", momentum, 1}},
	})
}
