package quant8

import (
	"cmp"
	"math"

	"github.com/snug-ml/snug/internal/optim"
)

// Apollo is the rule of Zhu et al. 2024, "APOLLO: SGD-like Memory, AdamW-level Performance", arXiv:2412.05270, as the
// authors' package apollo-torch computes it. Apollo{Tensor: true} is APOLLO-mini.
//
// It is for matrices, see [Optimizer.AddMatrix], whose shorter side is longer than Rank and which have MinSize elements
// or more. A channel is a row of a tall or square matrix, or a column of a wide one. The moments are those of the
// gradient's projection onto r = Rank random directions P, and say by how much to multiply the gradient of each
// channel c, or with Tensor of the whole matrix. With c1 = 1-β1^t and c2 = √(1-β2^t) at step t it computes
//
//	x ← P·g                                   r numbers for each channel
//	m ← β1·m + (1-β1)·x
//	v ← β2·v + (1-β2)·x²
//	s = |m/(√v + ε)|/(|x| + 1e-8)             norms over a channel, or with Tensor over the matrix
//	u = s·g                                   a factor for each channel
//	u ← u/max(1, |u|/(1.01·|u before|))       norms over the matrix; not at first, and not with NoLimit
//	p ← p - lr·√Scale·c2/c1·u
//	p ← p·(1 - lr·wd)
//
// P has the shape [r, min(rows, cols)], and g is one channel of the gradient. The third line from the end is the norm-growth limiter of Fira (Chen et al. 2024, arXiv:2410.01623). It is a
// quotient, so that it does not matter whether √Scale comes before it or after, as the option scale_front of the
// authors' package says. A norm of 0 does not limit the next.
//
// P has independent normal numbers of variance 1/r, which are other ones after every Gap steps. It is stored nowhere:
// Options.Seed, the name of the parameter and the number of the period determine its elements, which every step
// generates again.
//
// Other parameters take [AdamW], with ε in place of ε·c2: all that [Optimizer.Add] adds, which should be vectors,
// embeddings and the output layer, and matrices too small to project. The usual rate is 0.01 for all.
//
// The states are m, with a sign, and v, of r·max(rows, cols) elements each, and 4 bytes for the norm. The width is 32
// bits for states of fewer than MinSize elements. A matrix of 4096×4096 takes 8.4 MB with a Rank of 256 and 32 bits,
// 2.1 MB with 8 bits, and with Tensor 8.3 KB with 8 bits; AdamW takes 34 MB with 8 bits.
//
// The workspace, see [Optimizer.WorkspaceBytes], has for k = max(rows, cols) the projection and its update, 8·r·k
// bytes; up to 1 MiB, or 256·r bytes more if r is above 2048, for parts of P and of g, and at least 4·k for the
// factors; and the sums of the channels' squares, as with [Adafactor]. A step takes 2·n·r floating-point operations
// for n elements, and reads g four times.
//
// A step updates a whole matrix, on the CPU only. Each process must hold whole parameters: [Optimizer.AddShard] of a
// part is an error, and so is [Optimizer.StepRange] of a part of a matrix. The last bits of the products, and so of m,
// v and p, depend on the instructions of the CPU, not on the number of workers. A projection that is not below 2^63
// counts as a gradient that is not finite. With [SkipElement] such elements of g count as 0 in P·g. An error of the
// [Storage] has the same effect as with [Muon].
type Apollo struct {
	Rank        int     // r, from 1 on; default 256, or 1 with Tensor
	Tensor      bool    // one factor for the whole matrix
	Scale       float32 // default 1, or 128 with Tensor
	Gap         int     // steps with the same P; default 200
	NoLimit     bool    // no norm-growth limiter
	Beta1       float32 // decay of the first moment, in (0,1), default 0.9
	Beta2       float32 // decay of the second moment, in (0,1), default 0.999
	Eps         float32 // added to the root of the second moment, default 1e-6
	WeightDecay float32 // a step multiplies p by 1-lr·WeightDecay; default 0
}

func (r Apollo) equation() equation {
	rank, scale := 256, float32(1)
	if r.Tensor {
		rank, scale = 1, 128
	}
	e := lowRankEquation("Apollo", r.Beta1, r.Beta2, r.Eps, r.WeightDecay)
	e.low.tensor, e.low.unlimited = r.Tensor, r.NoLimit
	e.directions(cmp.Or(r.Rank, rank), cmp.Or(r.Gap, 200))
	e.number("Scale", &e.low.scale, r.Scale, scale, math.MaxFloat32)
	return e
}

// GaLore is the rule of Zhao et al. 2024, "GaLore: Memory-Efficient LLM Training by Gradient Low-Rank Projection",
// arXiv:2403.03507, as the authors' package galore-torch computes it with its proj_type "std".
//
// It is for the matrices of [Apollo], with the same channels. The moments are those of the gradient's projection onto
// the r = Rank leading singular vectors of a gradient, on its shorter side. With c1 = 1-β1^t and c2 = √(1-β2^t) at step
// t it computes
//
//	x ← P·g                                   r numbers for each channel
//	m ← β1·m + (1-β1)·x
//	v ← β2·v + (1-β2)·x²
//	p ← p - lr·Scale·c2/c1·Pᵀ·(m/(√v + ε))
//	p ← p·(1 - lr·wd)
//
// P has the singular vectors as rows. It is made of the gradient of the first step, and of the first after every Gap
// steps. If [SkipElement] skips elements of that gradient, P is made of the next; until then the matrix is not updated in
// the first period, and keeps the P before in later ones. With a shorter side of up to 128 the vectors
// are exact; otherwise they are those that three iterations with r+16 random start vectors find (Halko, Martinsson and
// Tropp 2011), which are random numbers as in [Apollo]. Signs are arbitrary. Where the gradient has fewer than r
// singular values above 0, as with few tokens, the other directions are random ones, orthogonal to those that it has.
//
// Other parameters take [AdamW], as with [Apollo]. The usual rate is 0.01 for all.
//
// The states are m, with a sign, and v, of r·max(rows, cols) elements each, with the widths of [Apollo]'s. P takes
// 4·r·min(rows, cols) bytes with every width. A matrix of 4096×4096 takes 6.3 MB with a Rank of 128 and 32 bits,
// and 3.2 MB with 8 bits.
//
// The workspace, see [Optimizer.WorkspaceBytes], has P; for k = max(rows, cols) the projection and its update, 8·r·k
// bytes; and up to 2 MiB, or 256·cols bytes if that is more, for a part of the update of p. Making P takes instead
// 4·w·(rows+cols+w) bytes with w = r+16, and 8·w², or 12·min(rows, cols)² for exact vectors. A step takes 4·n·r
// floating-point operations for n elements, and one that makes P about 14·n·(r+16) more.
//
// A step updates a whole matrix, on the CPU only, and has the bits and errors of [Apollo]'s.
type GaLore struct {
	Rank        int     // r, from 1 on; default 128
	Scale       float32 // default 0.25
	Gap         int     // steps with the same P; default 200
	Beta1       float32 // decay of the first moment, in (0,1), default 0.9
	Beta2       float32 // decay of the second moment, in (0,1), default 0.999
	Eps         float32 // added to the root of the second moment, default 1e-6
	WeightDecay float32 // a step multiplies p by 1-lr·WeightDecay; default 0
}

func (r GaLore) equation() equation {
	e := lowRankEquation("GaLore", r.Beta1, r.Beta2, r.Eps, r.WeightDecay)
	e.low.svd = true
	e.directions(cmp.Or(r.Rank, 128), cmp.Or(r.Gap, 200))
	e.number("Scale", &e.low.scale, r.Scale, 0.25, math.MaxFloat32)
	return e
}

// lowRank is how an equation projects gradients of matrices. Its rank is 0 for other equations.
type lowRank struct {
	rank, gap         int
	scale             float64
	svd               bool // GaLore, else Apollo
	tensor, unlimited bool
}

// lowRankEquation returns the equation of vectors, and of the moments of matrices.
func lowRankEquation(name string, beta1, beta2, eps, decay float32) equation {
	e := equation{name: name, hyper: optim.Hyper{Rule: optim.Adam, PlainEps: true, WeightDecay: float64(decay)}}
	e.moments(beta1, beta2)
	e.number("Eps", &e.hyper.Eps, eps, 1e-6, math.MaxFloat32)
	return e
}

// directions sets how many there are, and for how many steps.
func (e *equation) directions(rank, gap int) {
	if e.low.rank, e.low.gap = rank, gap; rank < 1 {
		e.refuse("Rank is %d, want 1 or more", rank)
	}
	if gap < 1 {
		e.refuse("Gap is %d, want 1 or more", gap)
	}
}
