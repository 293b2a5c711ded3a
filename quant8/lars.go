package quant8

import (
	"math"

	"github.com/snug-ml/snug/internal/optim"
)

// LARS is the rule of You, Gitman and Ginsburg 2017, arXiv:1708.03888. With momentum μ
// and the Euclidean norms of a whole parameter it computes
//
//	m ← μ·m + lr·η·|p|/(|g| + wd·|p|)·(g + wd·p)
//	p ← p - m
//
// where the trust ratio η·|p|/(|g| + wd·|p|) is 1 if a norm is 0, and for parameters with
// ParamOptions.NoTrust. Passes, norms, their memory, shards and errors are the same as
// with rules of other trust ratios.
//
// The state is m, with the bytes of one state, see [StateBytes].
type LARS struct {
	Momentum    float32 // in (0,1), default 0.9
	Trust       float32 // η, above 0, default 1e-3
	WeightDecay float32 // default 0
}

func (r LARS) equation() equation {
	e := equation{
		Traits: Traits{Name: "lars", Title: "LARS", Unit: Parameter, Devices: true},
		hyper:  optim.Hyper{Rule: optim.LARS, WeightDecay: float64(r.WeightDecay)},
	}
	e.number("Momentum", &e.hyper.Beta1, r.Momentum, 0.9, 1)
	e.number("Trust", &e.hyper.Trust, r.Trust, 1e-3, math.MaxFloat32)
	return e
}
