package rowwise

import "math"

// This file has the scores of a router of experts. Every step is rounded once, in a fixed order, and no tier has
// loops of its own: a choice between nearly equal scores is then the same on every CPU and on every GPU.

// Choose sets dst to the indices of the greatest scores, in descending order: of equal scores the one with the lower
// index comes first, and NaN comes before all numbers. dst is not longer than scores.
func Choose(dst []int32, scores []float32) {
	if len(dst) == 0 {
		return
	}
	n, last := 0, float32(0)
	for i, s := range scores {
		switch {
		case n < len(dst):
			n++
		case s <= last || !ahead(s, last):
			continue
		}
		j := n - 1
		for ; j > 0 && ahead(s, scores[dst[j-1]]); j-- {
			dst[j] = dst[j-1]
		}
		dst[j] = int32(i)
		last = scores[dst[n-1]]
	}
}

// ahead reports whether a score is chosen before another one of a lower index.
func ahead(score, other float32) bool { return score > other || score != score && other == other }

// Softmax turns a logit z of a row into its probability exp(z − Peak)/Total.
type Softmax struct{ Peak, Total float32 }

// probabilityLanes is the number of partial sums. The exponentials of a row are added to them by turns; then the
// partial sums are added in pairs.
const probabilityLanes = 32

// NewSoftmax returns the Softmax of a row of logits. The probabilities are NaN if a logit is NaN or +Inf, or if all
// logits are −Inf.
func NewSoftmax(z []float32) Softmax {
	s := Softmax{Peak: float32(math.Inf(-1))}
	for _, x := range z {
		if x > s.Peak {
			s.Peak = x
		}
	}
	var lanes [probabilityLanes]float32
	for i, x := range z {
		lanes[i%probabilityLanes] += Exp(x - s.Peak)
	}
	s.Total = addLanes(&lanes)
	return s
}

// Of returns the probability of a logit.
func (s Softmax) Of(z float32) float32 { return Exp(z-s.Peak) / s.Total }

// Mean returns Σ x[i]·Of(z[i]).
func (s Softmax) Mean(x, z []float32) float32 {
	var lanes [probabilityLanes]float32
	for i, v := range z {
		lanes[i%probabilityLanes] += float32(x[i] * s.Of(v))
	}
	return addLanes(&lanes)
}

func addLanes(lanes *[probabilityLanes]float32) float32 {
	for d := probabilityLanes / 2; d > 0; d /= 2 {
		for i := range d {
			lanes[i] += lanes[i+d]
		}
	}
	return lanes[0]
}

// Sigmoid returns σ(z) = 1/(1 + e^−z) and 1 − σ(z), both with a small relative error.
func Sigmoid(z float32) (s, rest float32) {
	e := Exp(-max(z, -z))
	d := 1 / (1 + e)
	if z > 0 {
		return d, float32(e * d)
	}
	return float32(e * d), d
}

// Exp returns e^x with the bits of [Kernels].ExpSum of the tier [cpu.Go].
func Exp(x float32) float32 { return float32(exp32(x)) }
