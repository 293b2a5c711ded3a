package quant8

import (
	"cmp"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/gemm"
	"github.com/snug-ml/snug/internal/lowrank"
)

// GaLore is the rule of Zhao et al. 2024, "GaLore: Memory-Efficient LLM Training by Gradient Low-Rank Projection",
// arXiv:2403.03507, as the authors' package galore-torch computes it with its proj_type "std".
//
// It is for matrices, see [Optimizer.AddMatrix], whose shorter side is longer than Rank and which have MinSize elements
// or more. A channel is a row of a tall or square matrix, or a column of a wide one. The moments are those of the gradient's projection onto
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
// Tropp 2011), which follow from Options.Seed, the name of the parameter and the number of the period. Signs are arbitrary. Where the gradient has fewer than r
// singular values above 0, as with few tokens, the other directions are random ones, orthogonal to those that it has.
//
// Other parameters take the step of two moments with ε in place of ε·c2. The usual rate is 0.01 for all.
//
// The states are m, with a sign, and v, of r·max(rows, cols) elements each, of 32 bits if they have fewer than MinSize elements. P takes
// 4·r·min(rows, cols) bytes with every width. A matrix of 4096×4096 takes 6.3 MB with a Rank of 128 and 32 bits,
// and 3.2 MB with 8 bits.
//
// The workspace, see [Optimizer.WorkspaceBytes], has P; for k = max(rows, cols) the projection and its update, 8·r·k
// bytes; and up to 2 MiB, or 256·cols bytes if that is more, for a part of the update of p. Making P takes instead
// 4·w·(rows+cols+w) bytes with w = r+16, and 8·w², or 12·min(rows, cols)² for exact vectors. A step takes 4·n·r
// floating-point operations for n elements, and one that makes P about 14·n·(r+16) more.
//
// A step updates a whole matrix, on the CPU only, and each process must hold whole parameters: [Optimizer.AddShard] of a
// part is an error, and so is [Optimizer.StepRange] of a part of a matrix. The last bits of the products depend on the
// instructions of the CPU, not on the number of workers. A projection that is not below 2^63 counts as a gradient that is
// not finite. An error of the [Storage] in the middle of a matrix leaves p as it was; the optimizer cannot be used until a
// state is restored.
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
	m := &projecting{based: true}
	e := m.equation(cmp.Or(r.Rank, 128), r.Gap, r.Beta1, r.Beta2, r.Eps, r.WeightDecay)
	e.Name, e.Title, e.About = "galore", "GaLore", "its state is smaller, for a projection of gradients onto singular vectors"
	e.Full = Setting{GaLore{WeightDecay: 0.01}, 1e-4, 1e-6}
	e.number("Scale", &m.factor, r.Scale, 0.25, math.MaxFloat32)
	return e
}

func (r GaLore) withRank(rank int) Rule {
	r.Rank = rank
	return r
}

// bandSize is about how many elements of an update of p exist at a time, and bandRows how many rows at least.
const (
	bandSize = 1 << 19
	bandRows = 64
)

// bandOf returns how many rows of an update of p are made at a time.
func bandOf(s shape) int { return min(s.rows, max(bandRows, bandSize/s.cols)) }

// direct makes the directions that a rule keeps, if there are none of this period, and says whether it did. It is not ready
// if the gradient of the first step cannot be used.
func (s *lowRankStep) direct() (changed, ready bool) {
	if !s.of.based {
		return false, true
	}
	made := int(math.Float32bits(s.factors[0]))
	if made > 0 && s.period(made) == s.period(s.a.t) {
		return false, true
	}
	if s.j.skip { // the next gradient may be finite
		return false, made > 0
	}
	s.factors[0] = math.Float32frombits(uint32(s.a.t))
	if s.a.directions != nil {
		copy(s.factors[1:], s.a.directions(s.q.name, s.period(s.a.t)))
		return true, true
	}
	lowrank.Basis(s.factors[1:], s.matrix(), s.of.rank, s.stream(), s.rest, s.a.work.nearSums)
	return true, true
}

// applyBasis adds Pᵀ·u to p, a band of rows at a time.
func (s *lowRankStep) applyBasis() error {
	q, p := s.q, s.factors[1:]
	band := applyJob{stepJob: s.j}
	band.rule = s.h.Subtracting(-s.h.LR * s.of.factor * decayed(s.h))
	for lo := 0; lo < q.rows; lo += bandOf(q.shape) {
		n := min(bandOf(q.shape), q.rows-lo)
		x := s.work[:n*q.cols]
		to := gemm.Matrix{Data: snug.SliceView(x), Stride: q.cols}
		if q.rows >= q.cols {
			u := gemm.Matrix{Data: snug.SliceView(s.u[lo*s.of.rank:]), Stride: s.of.rank}
			gemm.Mul(n, q.cols, s.of.rank, 1, u, gemm.Matrix{Data: snug.SliceView(p), Stride: q.cols}, 0, to)
		} else {
			directions := gemm.Matrix{Data: snug.SliceView(p[lo:]), Stride: q.rows, Trans: true}
			gemm.Mul(n, q.cols, s.of.rank, 1, directions, gemm.Matrix{Data: snug.SliceView(s.u), Stride: s.of.rank, Trans: true}, 0, to)
		}
		var err error
		if band.p, err = s.j.p.Slice(lo*q.cols, (lo+n)*q.cols); err != nil {
			return err
		}
		if band.g, err = s.j.g.Slice(lo*q.cols, (lo+n)*q.cols); err != nil {
			return err
		}
		band.first, band.x = s.j.first+uint64(lo*q.cols), snug.SliceView(x)
		band.Run()
	}
	return nil
}
