package fused

import (
	"math"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/rowwise"
)

// routeLen is about how many logits one item of a parallel loop covers. It is less than itemLen because a logit may
// need an exponential.
const routeLen = itemLen / 8

func (r *Router) itemRows() int { return max(1, routeLen/r.Experts) }

type routeJob struct {
	experts, weights, logits, bias snug.View

	router Router
	rows   int
}

func (*routeJob) Kernel() string { return "fused.route" }

func (j *routeJob) Operands(yield func(*driver.Mem)) {
	device.Each(yield, &j.experts, &j.weights, &j.logits, &j.bias)
}

func (j routeJob) Run() { routeTask.Run(cpu.Chunks(j.rows, j.router.itemRows()), j) }

var routeTask = cpu.NewTask(func(j *routeJob, item int) {
	n, k := j.router.Experts, j.router.Chosen
	buf := scratch.Get(2 * n)
	defer scratch.Put(buf)
	var groups *groupChoice
	if j.router.grouped() {
		groups = j.router.newGroups()
	}
	all, weights, bias := snug.Host[int32](j.experts), j.weights.Float32s(), j.bias.Float32s()
	lo, hi := cpu.Chunk(j.rows, j.router.itemRows(), item)
	for i := lo; i < hi; i++ {
		z, experts := load(cut(buf, 0, n), j.logits, i*n), all[i*k:][:k]
		ranks := j.router.ranks(cut(buf, 1, n), z, bias)
		if groups == nil {
			rowwise.Choose(experts, ranks)
		} else {
			groups.choose(experts, ranks)
		}
		j.router.weigh(weights[i*k:][:k], z, experts)
	}
})

// ranks returns the values that decide the choice: scores plus bias or, without a bias, the logits, which have the
// order of the scores, unless scores are added.
func (r *Router) ranks(buf, z, bias []float32) []float32 {
	if len(bias) == 0 && (!r.grouped() || r.GroupTop == 1) {
		return z
	}
	r.scores(buf, z)
	for e, b := range bias {
		buf[e] += b
	}
	return buf
}

// groupChoice chooses groups of experts, and experts of these. It holds memory for a row.
type groupChoice struct {
	router         *Router
	scores, sorted []float32 // of the groups, and the ranks of one
	groups         []int32   // those chosen
	ranks          []float32 // of their experts, one group after the other
}

func (r *Router) newGroups() *groupChoice {
	return &groupChoice{
		router: r, scores: make([]float32, r.Groups), sorted: make([]float32, r.Experts/r.Groups),
		groups: make([]int32, r.ChosenGroups), ranks: make([]float32, r.ChosenGroups*(r.Experts/r.Groups)),
	}
}

func (g *groupChoice) choose(experts []int32, ranks []float32) {
	each := len(g.sorted)
	for i := range g.scores {
		copy(g.sorted, ranks[i*each:])
		g.scores[i] = sumOfBest(g.sorted, g.router.GroupTop)
	}
	rowwise.Choose(g.groups, g.scores)
	slices.Sort(g.groups) // of equal ranks the lower index comes first
	for i, group := range g.groups {
		copy(g.ranks[i*each:][:each], ranks[int(group)*each:])
	}
	rowwise.Choose(experts, g.ranks)
	for i, e := range experts {
		experts[i] = g.groups[int(e)/each]*int32(each) + e%int32(each)
	}
}

// sumOfBest returns the sum of the n greatest elements, and changes their order. NaN counts as greatest.
func sumOfBest(x []float32, n int) (sum float32) {
	for i := range n {
		for j := i + 1; j < len(x); j++ {
			if x[j] > x[i] || x[j] != x[j] && x[i] == x[i] {
				x[i], x[j] = x[j], x[i]
			}
		}
		sum += x[i]
	}
	return sum
}

// scores sets dst to the scores of a row.
func (r *Router) scores(dst, z []float32) {
	if r.Sigmoid {
		for e, x := range z {
			dst[e], _ = rowwise.Sigmoid(x)
		}
		return
	}
	s := rowwise.NewSoftmax(z)
	for e, x := range z {
		dst[e] = s.Of(x)
	}
}

// weigh sets dst to the weights of the chosen experts.
func (r *Router) weigh(dst, z []float32, experts []int32) {
	switch {
	case r.Normalize:
		s := r.shares(z, experts)
		for k, e := range experts {
			dst[k] = r.Scale * s.of(z[e])
		}
	case r.Sigmoid:
		for k, e := range experts {
			s, _ := rowwise.Sigmoid(z[e])
			dst[k] = r.Scale * s
		}
	default:
		s := rowwise.NewSoftmax(z)
		for k, e := range experts {
			dst[k] = r.Scale * s.Of(z[e])
		}
	}
}

// shares computes, for each chosen logit of a row, its score divided by the sum of the chosen scores. Scores are
// relative to exp(base), the greatest among the exponentials, so that they do not all underflow.
type shares struct {
	sigmoid     bool
	base, total float32
}

// shares prepares the shares of the chosen logits of a row.
func (r *Router) shares(z []float32, experts []int32) shares {
	s := shares{sigmoid: r.Sigmoid, base: float32(math.Inf(-1)), total: 1}
	for _, e := range experts {
		if x := s.exponent(z[e]); x > s.base {
			s.base = x
		}
	}
	total := float32(0)
	for _, e := range experts {
		total += s.of(z[e])
	}
	s.total = total
	return s
}

// exponent returns the exponent in the numerator of the score: z for softmax, and min(z, 0) for sigmoid, where σ(z) is
// exp(min(z, 0))/(1 + exp(−|z|)).
func (s *shares) exponent(z float32) float32 {
	if s.sigmoid && z > 0 {
		return 0
	}
	return z
}

// of returns the share of the logit z.
func (s *shares) of(z float32) float32 {
	y := rowwise.Exp(s.exponent(z) - s.base)
	if s.sigmoid {
		y *= 1 / (1 + rowwise.Exp(-max(z, -z)))
	}
	return y / s.total
}

type routeBackwardJob struct {
	dlogits, dweights, logits, experts, aux snug.View

	router Router
	rows   int
}

func (*routeBackwardJob) Kernel() string { return "fused.route_backward" }

func (j *routeBackwardJob) Operands(yield func(*driver.Mem)) {
	device.Each(yield, &j.dlogits, &j.dweights, &j.logits, &j.experts, &j.aux)
}

func (j routeBackwardJob) Run() { routeBackwardTask.Run(cpu.Chunks(j.rows, j.router.itemRows()), j) }

var routeBackwardTask = cpu.NewTask(func(j *routeBackwardJob, item int) {
	n, k := j.router.Experts, j.router.Chosen
	buf := scratch.Get(2 * n)
	defer finish(buf)
	all, dweights, aux := snug.Host[int32](j.experts), j.dweights.Float32s(), j.aux.Float32s()
	lo, hi := cpu.Chunk(j.rows, j.router.itemRows(), item)
	for i := lo; i < hi; i++ {
		z, dz := load(cut(buf, 0, n), j.logits, i*n), cut(buf, 1, n)
		var dw []float32
		if len(dweights) > 0 {
			dw = dweights[i*k:][:k]
		}
		j.router.gradient(dz, z, dw, aux, all[i*k:][:k])
		if j.dlogits.DType() == snug.F32 {
			copy(j.dlogits.Float32s()[i*n:], dz)
		} else {
			store(j.dlogits, i*n, dz)
		}
	}
})

// gradient sets dz to the gradient of a row's logits. dw and aux may be empty.
func (r *Router) gradient(dz, z, dw, aux []float32, experts []int32) {
	var s rowwise.Softmax
	if !r.Sigmoid && (len(aux) > 0 || !r.Normalize) {
		s = rowwise.NewSoftmax(z)
	}
	switch {
	case len(aux) == 0:
		clear(dz)
	case r.Sigmoid:
		for e, x := range z {
			y, rest := rowwise.Sigmoid(x)
			dz[e] = aux[e] * float32(y*rest)
		}
	default:
		mean := s.Mean(aux, z)
		for e, x := range z {
			dz[e] = (aux[e] - mean) * s.Of(x)
		}
	}
	if len(dw) == 0 {
		return
	}
	switch {
	case r.Normalize:
		s := r.shares(z, experts)
		mean := float32(0)
		for k, e := range experts {
			mean += float32(float32(r.Scale*dw[k]) * s.of(z[e]))
		}
		for k, e := range experts {
			d := float32((float32(r.Scale*dw[k]) - mean) * s.of(z[e]))
			if r.Sigmoid {
				_, rest := rowwise.Sigmoid(z[e])
				d = float32(d * rest)
			}
			dz[e] += d
		}
	case r.Sigmoid:
		for k, e := range experts {
			y, rest := rowwise.Sigmoid(z[e])
			dz[e] += float32(float32(r.Scale*dw[k]) * float32(y*rest))
		}
	default:
		mean := float32(0)
		for k, e := range experts {
			mean += float32(float32(r.Scale*dw[k]) * s.Of(z[e]))
		}
		for e, x := range z {
			dz[e] -= float32(mean * s.Of(x))
		}
		for k, e := range experts {
			dz[e] += float32(float32(r.Scale*dw[k]) * s.Of(z[e]))
		}
	}
}
