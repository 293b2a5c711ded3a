package quant8

import (
	"math"

	"github.com/snug-ml/snug/internal/optim"
)

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
	e := equation{
		Traits: Traits{Name: "adam", Title: "Adam", Shards: true, Devices: true, Folds: true, BitsAndBytes: "AdamW8bit, AdamW, Adam8bit, Adam, without weight decay"},
		hyper:  optim.Hyper{Rule: optim.Adam, WeightDecay: float64(r.WeightDecay), Coupled: true},
	}
	e.moments(r.Beta1, r.Beta2)
	e.number("Eps", &e.hyper.Eps, r.Eps, 1e-8, math.MaxFloat32)
	return e
}
