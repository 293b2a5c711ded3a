// Package adam is the float32 arithmetic of Adam with decoupled weight decay
// (Kingma and Ba 2015, arXiv:1412.6980; Loshchilov and Hutter 2019,
// arXiv:1711.05101), shared by every optimizer of snug that has it. With
// c1 = 1-β1^t and c2 = √(1-β2^t) at step t, one update is
//
//	g ← g·gradScale
//	m ← β1·m + (1-β1)·g
//	v ← β2·v + (1-β2)·g²
//	p ← p - lr·c2/c1 · m/(√v + ε·c2)
//
// which is the textbook's lr·m̂/(√v̂ + ε) with the bias corrections m̂ = m/c1 and
// √v̂ = √v/c2 moved out of the loop. Decay multiplies p by 1-lr·wd, before the
// update (torch) or after it (bitsandbytes).
package adam

import (
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
)

// Hyper are the constants of one step.
type Hyper struct {
	LR, Beta1, Beta2, Eps, WeightDecay float32
	Step                               int     // t, from 1
	GradScale                          float32 // what gradients are multiplied by
	Ratio                              float64 // what the update is multiplied by, and the decay is not; 0 means 1
	DecayFirst                         bool    // torch's order; false decays after the update, as bitsandbytes does
}

// Coef are the factors of one step, rounded to float32 once.
type Coef struct {
	beta1, rest1 float32 // β1, 1-β1
	beta2, rest2 float32 // β2, 1-β2
	gradScale    float32
	size         float32 // lr·c2/c1
	eps          float32 // ε·c2
	pre, post    float32 // 1-lr·wd at the side where p decays, 1 at the other
}

// Coef derives the factors in float64.
func (h Hyper) Coef() Coef {
	lr, beta1, beta2 := float64(h.LR), float64(h.Beta1), float64(h.Beta2)
	c1 := 1 - Power(beta1, h.Step)
	c2 := math.Sqrt(1 - Power(beta2, h.Step))
	c := Coef{
		beta1: h.Beta1, rest1: float32(1 - beta1),
		beta2: h.Beta2, rest2: float32(1 - beta2),
		gradScale: h.GradScale,
		size:      float32(Rate(lr, h.Ratio) * c2 / c1),
		eps:       float32(float64(h.Eps) * c2),
		pre:       1, post: 1,
	}
	decay := float32(1 - float64(lr*float64(h.WeightDecay)))
	if h.DecayFirst {
		c.pre = decay
	} else {
		c.post = decay
	}
	return c
}

// Rate returns the learning rate of an update that is multiplied by ratio, rounded to
// float32. A ratio of 0 means 1.
func Rate(lr, ratio float64) float64 {
	if ratio == 0 {
		return lr
	}
	return float64(float32(lr * ratio))
}

// Power returns x^n for n >= 0 by squaring. It multiplies only and rounds each
// product, so that the result is the same on every platform, which math.Pow
// does not promise.
func Power(x float64, n int) float64 {
	y := 1.0
	for ; n > 0; n >>= 1 {
		if n&1 != 0 {
			y = float64(y * x)
		}
		x *= x
	}
	return y
}

// Kernels are the loops of one tier. All tiers give the same bits.
type Kernels struct {
	// Update applies one step; the four slices have the same length.
	Update func(c Coef, p, m, v, g []float32)
	// Step8 is Update of elements lo to hi-1 of host views, with moments in
	// 8-bit blocks. tile has Scratch8 elements.
	Step8 func(c Coef, p, g snug.View, lo, hi int, s Blocks8, tile []float32)
}

// Registry holds the loops of every tier.
var Registry cpu.Registry[Kernels]

func init() { Registry.Add(cpu.Go, Kernels{update, blockwise(update)}) }

// Update applies one step to parameters p, first moment m and second moment v
// with gradient g. The four slices have the same length, which the caller
// checks, and do not overlap. A NaN or infinity in g reaches p, m and v of its
// element. It runs on the calling goroutine and allocates nothing.
func (c Coef) Update(p, m, v, g []float32) { Registry.Best().Update(c, p, m, v, g) }

// Step8 updates elements lo to hi-1 of p by those of g, both host views of any
// floating-point types that do not overlap, and the state, which it reads and
// writes once. tile is scratch of [Scratch8] elements. It runs on the calling
// goroutine and allocates nothing.
func (c Coef) Step8(p, g snug.View, lo, hi int, s Blocks8, tile []float32) {
	Registry.Best().Step8(c, p, g, lo, hi, s, tile)
}

// update rounds every product and sum to float32 by itself: the conversions
// forbid the compiler to fuse x*y + z.
func update(c Coef, p, m, v, g []float32) {
	p, m, v = p[:len(g)], m[:len(g)], v[:len(g)]
	for i, gi := range g {
		gi = float32(gi * c.gradScale)
		mi := float32(c.beta1*m[i]) + float32(c.rest1*gi)
		vi := float32(c.beta2*v[i]) + float32(float32(c.rest2*gi)*gi)
		root := float32(math.Sqrt(float64(vi)))
		pi := float32(p[i]*c.pre) - float32(c.size*float32(mi/(root+c.eps)))
		m[i], v[i], p[i] = mi, vi, float32(pi*c.post)
	}
}
