package quant8

import (
	"math"

	"github.com/snug-ml/snug/internal/optim"
)

// LAMB is the rule of You et al. 2019, arXiv:1904.00962. With c1 = 1-β1^t and
// c2 = √(1-β2^t) at step t, and the Euclidean norms of a whole parameter, it computes
//
//	m ← β1·m + (1-β1)·g
//	v ← β2·v + (1-β2)·g²
//	u = m/c1/(√v/c2 + ε) + wd·p
//	p ← p - lr·|p|/|u|·u
//
// where the trust ratio |p|/|u| is 1 if a norm is 0, and for parameters with
// ParamOptions.NoTrust. A step has two passes: one reads parameter, gradient and state
// for the norms, the other updates, with any width of the state. The norms are sums in
// float64. They have the same bits for any number of workers, and depend on Block and
// Chunk. During the step the sums take 16 bytes for every 16384 elements, and at least 16
// for every chunk. A device other than the CPU adds in another order, so that the step
// size, which is rounded to float32, can in rare cases differ in its last bit. There the
// sums take 16 bytes for every 4096 elements, up to 32 KiB, and the step waits for them.
//
// It has the states of [Default], with the same bytes and the same limits for sparse
// gradients.
//
// Each process must hold the whole parameter, unless Options.SumNorms adds the norms of
// its shards: without it [Optimizer.AddShard] of a part is an error.
// [Optimizer.StepRange] of a part is always an error. If p makes a norm that is not
// finite, the step returns an error that wraps [snug.ErrNonFinite] and writes nothing.
type LAMB struct {
	Beta1       float32 // decay of the first moment, in (0,1), default 0.9
	Beta2       float32 // decay of the second moment, in (0,1), default 0.999
	Eps         float32 // added to the root of the second moment, default 1e-6
	WeightDecay float32 // default 0
}

func (r LAMB) equation() equation {
	e := equation{
		Traits: Traits{Name: "lamb", Title: "LAMB", Unit: Parameter, Devices: true},
		hyper:  optim.Hyper{Rule: optim.LAMB, WeightDecay: float64(r.WeightDecay)},
	}
	e.moments(r.Beta1, r.Beta2)
	e.number("Eps", &e.hyper.Eps, r.Eps, 1e-6, math.MaxFloat32)
	return e
}
