package quant8

import (
	"cmp"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/optim"
	"github.com/snug-ml/snug/internal/sweep"
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
// Other parameters take the rule of [Default], with ε in place of ε·c2: all that [Optimizer.Add] adds, which should be vectors,
// embeddings and the output layer, and matrices too small to project. The usual rate is 0.01 for all.
//
// The states are m, with a sign, and v, of r·max(rows, cols) elements each, and 4 bytes for the norm. The width is 32
// bits for states of fewer than MinSize elements. A matrix of 4096×4096 takes 8.4 MB with a Rank of 256 and 32 bits,
// 2.1 MB with 8 bits, and with Tensor 8.3 KB with 8 bits; [Default] takes 34 MB with 8 bits.
//
// The workspace, see [Optimizer.WorkspaceBytes], has for k = max(rows, cols) the projection and its update, 8·r·k
// bytes; up to 1 MiB, or 256·r bytes more if r is above 2048, for parts of P and of g, and at least 4·k for the
// factors; and the sums of the channels' squares, one for each row and column of every part. A step takes 2·n·r floating-point operations
// for n elements, and reads g four times.
//
// A step updates a whole matrix, on the CPU only. Each process must hold whole parameters: [Optimizer.AddShard] of a
// part is an error, and so is [Optimizer.StepRange] of a part of a matrix. The last bits of the products, and so of m,
// v and p, depend on the instructions of the CPU, not on the number of workers. A projection that is not below 2^63
// counts as a gradient that is not finite. With [SkipElement] such elements of g count as 0 in P·g. An error of the
// [Storage] in the middle of a matrix leaves p as it was; the optimizer cannot be used until a state is restored.
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
	m := &projecting{limited: !r.NoLimit, tensor: r.Tensor}
	e := m.equation(cmp.Or(r.Rank, rank), r.Gap, r.Beta1, r.Beta2, r.Eps, r.WeightDecay)
	e.Name, e.Title, e.About = "apollo", "Apollo", "its state is smaller, for a projection of gradients onto 256 directions"
	if r.Tensor {
		e.Name, e.About = "apollo-mini", "its state is tiny, for a projection of gradients onto one direction"
	}
	e.Full = Setting{Apollo{Tensor: r.Tensor, WeightDecay: 0.01}, 1e-4, 1e-6}
	e.number("Scale", &m.factor, r.Scale, scale, math.MaxFloat32)
	return e
}

func (r Apollo) withRank(rank int) Rule {
	r.Rank = rank
	return r
}

// applyChannels subtracts from p the gradient times the factors of its channels, limits the norm of all, and keeps it.
func (s *lowRankStep) applyChannels() error {
	q, low := s.q, s.of
	factors := s.work[:max(q.rows, q.cols)]
	if low.tensor {
		f := float32(ratio(sumSquares(snug.SliceView(s.u), 1), sumSquares(snug.SliceView(s.x), 1)))
		for i := range factors {
			factors[i] = f
		}
	} else {
		ratioTask.Run(cpu.Chunks(len(factors), s.ratios()), ratios{factors, s.x, s.u, s.of.rank, s.ratios()})
	}
	size := s.h.LR * math.Sqrt(low.factor) * decayed(s.h) * float64(s.h.GradScale)
	if low.limited {
		limit, err := s.limit(factors)
		if err != nil {
			return err
		}
		size /= limit
	}
	for i, f := range factors {
		factors[i] = float32(size * float64(f))
	}
	h := s.h
	h.DecayFirst = true
	channels := channelsJob{s.j, optim.Channels{Factors: factors, Rows: q.rows >= q.cols, Cols: q.cols}}
	channels.rule = h.Coef()
	channelsTask.Run(cpu.Chunks(q.n, grain), channels)
	return nil
}

// ratio is the quotient of two norms, given their squares.
func ratio(u, x float64) float64 { return math.Sqrt(u) / (math.Sqrt(x) + 1e-8) }

// ratios are the factors of channels, before the learning rate.
type ratios struct {
	factors, x, u []float32
	rank, each    int
}

// ratios returns how many channels a worker takes at a time.
func (s *lowRankStep) ratios() int { return max(1, grain/s.of.rank) }

var ratioTask = cpu.NewTask(func(r *ratios, item int) {
	lo, hi := cpu.Chunk(len(r.factors), r.each, item)
	x, u := snug.SliceView(r.x), snug.SliceView(r.u)
	for c := lo; c < hi; c++ {
		at, end := c*r.rank, (c+1)*r.rank
		r.factors[c] = float32(ratio(sweep.Squares(u, at, end), sweep.Squares(x, at, end)))
	}
})

// maxGrowth is by how much the norm of an update may exceed the one before.
const maxGrowth = 1.01

// limit returns the divisor that limits the norm of the update, and keeps the limited norm.
func (s *lowRankStep) limit(factors []float32) (float64, error) {
	squares := 0.0
	if s.of.tensor {
		squares = float64(factors[0]) * float64(factors[0]) * sumSquares(s.j.g, s.h.GradScale) * float64(s.h.GradScale) * float64(s.h.GradScale)
	} else {
		sums, err := s.channelSquares()
		if err != nil {
			return 0, err
		}
		for i, f := range factors {
			squares += float64(f) * float64(f) * sums[i]
		}
	}
	norm, limit := math.Sqrt(squares)/s.h.Corrected(), 1.0
	if before := float64(s.factors[0]); before > 0 {
		limit = max(norm/(before+1e-8), maxGrowth) / maxGrowth
	}
	s.factors[0] = float32(norm / limit)
	return limit, s.a.copyFactors(s.dev, s.q, s.factors, true)
}

// channelSquares returns the sums of the squares of the scaled gradient over the channels.
func (s *lowRankStep) channelSquares() ([]float64, error) {
	q, w := s.q, &s.a.work
	if q.rows >= q.cols && !s.j.skip {
		sums := w.nearSums[:q.rows]
		rowTask.Run(cpu.Chunks(q.rows, max(1, grain/q.cols)), rowSquares{s.j.g, sums, q.cols, max(1, grain/q.cols), float64(s.h.GradScale)})
		return sums, nil
	}
	all := squareSumsJob{g: s.j.g, all: w.sums.View(), shape: q.shape, parts: partsOf(q.shape), scale: s.h.GradScale, skip: s.h.Skip}
	rows, cols, err := all.on(s.dev, w)
	if q.rows >= q.cols {
		return rows, err
	}
	return cols, err
}

// rowSquares are the sums of the squares of g·scale over the rows of a matrix.
type rowSquares struct {
	g          snug.View
	sums       []float64
	cols, each int
	scale      float64
}

var rowTask = cpu.NewTask(func(r *rowSquares, item int) {
	lo, hi := cpu.Chunk(len(r.sums), r.each, item)
	for i := lo; i < hi; i++ {
		r.sums[i] = r.scale * r.scale * sweep.Squares(r.g, i*r.cols, (i+1)*r.cols)
	}
})

// channelsJob subtracts from p the gradient times the factors of its channels.
type channelsJob struct {
	stepJob
	channels optim.Channels
}

var channelsTask = cpu.NewTask(func(j *channelsJob, item int) {
	lo, hi := cpu.Chunk(j.p.Len(), grain, item)
	tile := tiles.Get(2 * half.Chunk)
	defer tiles.Put(tile)
	j.rule.ApplyChannels(j.operands(), lo, hi, j.channels, *tile)
})
