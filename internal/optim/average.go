package optim

// Averaging is the weight of each step in an average x of parameters. The zero value is the state before the
// first step.
type Averaging struct {
	Sum   float64 // of the weights of all steps so far
	Share float64 // c: the weight of the last step, divided by Sum
	Most  float64 // the largest learning rate
}

// Next returns the Averaging after step t at the learning rate lr. The weight of a step is t^power times Most^rate,
// where Most is the largest learning rate so far.
func (a Averaging) Next(t int, lr, power, rate float64) Averaging {
	a.Most = max(a.Most, lr)
	weight := float64(raise(float64(t), power) * raise(a.Most, rate))
	if a.Sum += weight; a.Sum == 0 {
		a.Share = 0
		return a
	}
	a.Share = weight / a.Sum
	return a
}

// raise returns x^y for x and y from 0 on. It is the same on every platform, and exact to rounding for a whole y.
func raise(x, y float64) float64 {
	switch n := int(y); {
	case float64(n) == y:
		return power(x, n)
	case x == 0:
		return 0
	default:
		return float64(power(x, n) * exp(float64(y-float64(n))*ln(x)))
	}
}

// Mean sets x to the average of parameters p with the state m: x = p - (1/β1-1)·m. x may be p.
func (h Hyper) Mean(x, p, m []float32) {
	factor := float32(1/h.Beta1 - 1)
	p, m = p[:len(x)], m[:len(x)]
	for i := range x {
		x[i] = p[i] - float32(factor*m[i])
	}
}
