package attention

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/gemm"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/internal/philox"
	"github.com/stretchr/testify/require"
)

// values are the operands and the results of one problem, each contiguous.
type values[T any] struct{ out, lse, dq, dk, dv, dbias, dsinks []T }

// problem is one attention call; its inputs are contiguous, whatever the
// strides of c.
type problem struct {
	c             Options
	q, k, v, dout []float32
	start         int // of tensors in their buffers
	features
}

// features are operands that not all calls have.
type features struct {
	biasType                  snug.DType
	bias, slopes, sinks, dlse []float32                 // of c.Bias.Dims, heads, heads and queries; nil: none
	shows                     func(b, h, i, j int) bool // the Mask; nil: none
}

// newProblem draws standard normal inputs that dt holds exactly.
func newProblem(t testing.TB, c Options, dt snug.DType, seed uint64) *problem {
	rng := rand.New(rand.NewPCG(seed, 99))
	r := resolved(t, c)
	draw := func(o operand) []float32 {
		x := make([]float32, o.batch*o.heads*o.n*o.dim)
		for i := range x {
			x[i] = float32(rng.NormFloat64())
		}
		return kerneltest.PutFloats(t, kerneltest.Backend{}, dt, x).Get()
	}
	o := r.operands()
	return &problem{c: c, q: draw(o[0]), k: draw(o[1]), v: draw(o[2]), dout: draw(o[3])}
}

func resolved(t testing.TB, c Options) Options {
	t.Helper()
	r, err := c.resolve()
	require.NoError(t, err)
	return r
}

// eps is half the distance between 1 and the next number.
var eps = map[snug.DType]float64{snug.F32: 0x1p-24, snug.F16: 0x1p-11, snug.BF16: 0x1p-8}

// rounding is the error of rounding to a type.
type rounding struct{ relative, absolute float64 }

func (r rounding) of(x float64) float64 { return max(r.relative*math.Abs(x), r.absolute) }

// onHost reports whether a backend is computed for by Run.
func onHost(backend kerneltest.Backend) bool {
	return backend.Dev == nil || backend.Dev.IsCPU() || backend.Name == "opaque"
}

// weightRounding returns how a backend rounds weights to dt before it multiplies them.
func (p *problem) weightRounding(backend kerneltest.Backend, dt snug.DType) rounding {
	to := rounding{relative: eps[dt]}
	if dt == snug.F16 {
		to.absolute = 0x1p-25 // of numbers below the normal ones
	}
	dimV := p.c.dimV()
	switch {
	case onHost(backend) && dt == snug.BF16 && gemm.HasPairs(),
		!onHost(backend) && dt != snug.F32 && p.start == aligning && p.c.Dim%8 == 0 && dimV%8 == 0 && max(p.c.Dim, dimV) <= 256:
		return to
	}
	return rounding{}
}

// reference computes the definition in float64, and for every result a bound of
// the error that the kernel may make in type dt.
//
// A weight p has the relative error of its score's absolute error. With normal
// inputs the partial sums of a score are about 1 after scaling, or Scale·√D, and the D
// roundings of at most u = 2⁻²⁴ relative add up like a random walk, to √D·u;
// the same holds for the √DimV·u of dout·v. The score s and lse are rounded
// themselves, by u·(|s|+|lse|). The exponential adds 2 ulp, which is 4u, and the
// sums a few more. So every term of a sum is off by at most unit·(its
// magnitude), with unit = 2·(√D + √DimV + |s| + |lse| + 8)·u, and a result by the
// sum of that over its terms. Rounding to dt adds eps(dt), as does in delta the
// rounding of out, which Forward returned in dt, and where a backend rounds weights
// and their gradients before they are multiplied, that.
func (p *problem) reference(t testing.TB, backend kerneltest.Backend, dt snug.DType) (want, bound values[float64]) {
	c := resolved(t, p.c)
	want, bound = newValues(&c), newValues(&c)
	low := p.weightRounding(backend, dt)
	for b := range c.Batch {
		for h := range c.Heads {
			for i := range c.sequence(b).nq {
				p.referenceRow(&c, b, h, i, dt, low, &want, &bound)
			}
		}
	}
	if c.packed() { // rows of no sequence are left alone
		p.leaveRest(&c, &want)
	}
	if dt != snug.F32 {
		round(bound.out, want.out, dt)
		round(bound.dq, want.dq, dt)
		round(bound.dk, want.dk, dt)
		round(bound.dv, want.dv, dt)
	}
	return want, bound
}

func newValues(c *Options) values[float64] {
	o := c.operands()
	return values[float64]{
		out: make([]float64, o[3].size()), lse: make([]float64, c.queries()),
		dq: make([]float64, o[0].size()), dk: make([]float64, o[1].size()), dv: make([]float64, o[2].size()),
		dbias: make([]float64, c.Bias.Grad.Len()), dsinks: make([]float64, c.Sinks.Grad.Len()),
	}
}

func (o operand) size() int { return o.batch * o.heads * o.n * o.dim }

// part returns row i of a contiguous tensor of rows of dim.
func part[T any](x []T, i, dim int) []T { return x[i*dim:][:dim] }

// leaveRest makes what no sequence has the gap that outputs hold before the call.
func (p *problem) leaveRest(c *Options, want *values[float64]) {
	rest := func(x []float64, seq, dim, from int) {
		for h := range len(x) / max(1, seq*dim) {
			for i := from * dim; i < seq*dim; i++ {
				x[h*seq*dim+i] = gap
			}
		}
	}
	nq, nk := c.QStarts[c.Batch], c.KStarts[c.Batch]
	rest(want.out, c.SeqQ, c.DimV, nq)
	rest(want.lse, c.SeqQ, 1, nq)
	rest(want.dq, c.SeqQ, c.Dim, nq)
	rest(want.dk, c.SeqK, c.Dim, nk)
	rest(want.dv, c.SeqK, c.DimV, nk)
}

// seenKey is a key that a query sees.
type seenKey struct {
	j         int
	s         float64 // score
	bend      float64 // derivative of the score in Scale times the product
	inBias    float64 // and in the bias
	magnitude float64 // of all that was added to make s
	bendError float64 // of bend, per error of the score
	keep      float64 // of dropout
	bias      int     // element, or -1
}

// score makes s of x, the scaled product.
func (p *problem) score(c *Options, seq *sequence, b, h, i, j int, x float64) seenKey {
	r := seenKey{j: j, s: x, bend: 1, inBias: 1, magnitude: math.Abs(x), keep: 1, bias: -1}
	if limit := float64(c.Softcap); limit != 0 {
		t := math.Tanh(x / limit)
		r.s, r.bend, r.bendError = limit*t, 1-t*t, 2/limit
		r.magnitude += 2 * limit
	}
	plus := func(x float64) {
		r.s += x
		r.magnitude += math.Abs(x)
	}
	if n := len(p.slopes); n > 0 {
		plus(-float64(p.slopes[(b*c.Heads+h)%n]) * math.Abs(float64(i+seq.shift-j)))
	}
	if p.bias != nil {
		at := 0
		for d, n := range [...]int{b, h, i, j} {
			at *= c.Bias.Dims[d]
			if c.Bias.Dims[d] != 1 {
				at += n
			}
		}
		r.bias = at
		plus(float64(p.bias[at]))
	}
	if c.Score != nil {
		value, slope := c.Score(float32(r.s), b, h, i, j)
		r.magnitude += math.Abs(r.s)
		r.s, r.bend, r.inBias = float64(value), r.bend*float64(slope), float64(slope)
		r.bendError++ // its second derivative is below 1
	}
	if d := c.Dropout; d.P > 0 {
		var word [1]uint32
		philox.Stream{Seed: d.Seed, Tensor: uint64(b*c.Heads + h)}.Words(word[:], uint64(d.Query+i)<<32+uint64(d.Key+j))
		if r.keep = 1 / (1 - float64(d.P)); float64(word[0]) < float64(d.P)*(1<<32) {
			r.keep = 0
		}
	}
	return r
}

// referenceRow adds what query i contributes to every result.
func (p *problem) referenceRow(c *Options, b, h, i int, dt snug.DType, low rounding, want, bound *values[float64]) {
	seq := c.sequence(b)
	row := (b*c.Heads+h)*c.SeqQ + i
	key := (b*c.KVHeads + h*c.KVHeads/c.Heads) * c.SeqK // of key 0
	if c.packed() {
		row, key = h*c.SeqQ+c.QStarts[b]+i, h*c.KVHeads/c.Heads*c.SeqK+c.KStarts[b]
	}
	scale := float64(c.Scale)
	q, dout := part(p.q, row, c.Dim), part(p.dout, row, c.DimV)

	var keys []seenKey
	top, sum := math.Inf(-1), 0.0
	for j := range seq.nk {
		if p.sees(c, &seq, b, h, i, j) {
			keys = append(keys, p.score(c, &seq, b, h, i, j, scale*dot(q, part(p.k, key+j, c.Dim))))
			top = max(top, keys[len(keys)-1].s)
		}
	}
	if p.sinks != nil {
		top = max(top, float64(p.sinks[h]))
		sum = math.Exp(float64(p.sinks[h]) - top)
	}
	want.lse[row] = math.Inf(-1)
	lse := math.Inf(1) // makes every weight 0
	if !math.IsInf(top, -1) {
		for _, r := range keys {
			sum += math.Exp(r.s - top)
		}
		lse = top + math.Log(sum)
		want.lse[row] = lse
	}
	unit := func(magnitude float64) float64 {
		products := math.Sqrt(float64(c.Dim)) * max(1, math.Abs(scale)*math.Sqrt(float64(c.Dim)))
		return 2 * (products + math.Sqrt(float64(c.DimV)) + magnitude + math.Abs(lse) + 8) * eps[snug.F32]
	}
	most := math.Abs(top)
	for _, r := range keys {
		if r.s > lse-20 { // what counts in lse
			most = max(most, r.magnitude)
		}
	}
	bound.lse[row] = unit(most)
	out, outBound := part(want.out, row, c.DimV), part(bound.out, row, c.DimV)
	for _, r := range keys {
		w, v := math.Exp(r.s-lse)*r.keep, part(p.v, key+r.j, c.DimV)
		add(out, w, v)
		addAbs(outBound, unit(r.magnitude)*w+low.of(w), v)
	}
	delta, absDelta, deltaBound := 0.0, 0.0, 0.0
	for d, x := range out {
		delta += x * float64(dout[d])
		absDelta += math.Abs(x * float64(dout[d]))
		deltaBound += outBound[d] * math.Abs(float64(dout[d]))
		if dt != snug.F32 {
			deltaBound += 0x1p-25 * math.Abs(float64(dout[d])) // of out below the normal numbers
		}
	}
	if dt != snug.F32 {
		deltaBound += eps[dt] * absDelta
	}
	if p.dlse != nil {
		delta -= float64(p.dlse[row])
		absDelta += math.Abs(float64(p.dlse[row]))
	}
	if n := len(want.dsinks); n > 0 {
		w := math.Exp(float64(p.sinks[h]) - lse)
		want.dsinks[h] -= w * delta
		bound.dsinks[h] += w * (unit(math.Abs(float64(p.sinks[h]))+most)*absDelta + deltaBound)
	}
	for _, r := range keys {
		w, k, v := math.Exp(r.s-lse), part(p.k, key+r.j, c.Dim), part(p.v, key+r.j, c.DimV)
		u := unit(r.magnitude)
		inScore := w * (r.keep*dot(dout, v) - delta)
		scoreBound := w * (u*(r.keep*absDot(dout, v)+absDelta) + deltaBound)
		ds := scale * r.bend * inScore
		dsBound := math.Abs(scale)*(math.Abs(r.bend)*scoreBound+math.Abs(inScore)*(r.bendError*u+r.bendError*16*eps[snug.F32])) +
			math.Abs(scale)*low.of(ds/scale)
		add(part(want.dv, key+r.j, c.DimV), w*r.keep, dout)
		addAbs(part(bound.dv, key+r.j, c.DimV), u*w*r.keep+low.of(w*r.keep), dout)
		add(part(want.dq, row, c.Dim), ds, k)
		addAbs(part(bound.dq, row, c.Dim), dsBound, k)
		add(part(want.dk, key+r.j, c.Dim), ds, q)
		addAbs(part(bound.dk, key+r.j, c.Dim), dsBound, q)
		if r.bias >= 0 && len(want.dbias) > 0 {
			want.dbias[r.bias] += r.inBias * inScore
			bound.dbias[r.bias] += math.Abs(r.inBias)*scoreBound + 2*u*math.Abs(inScore)
		}
	}
}

// sees is the definition of the masks.
func (p *problem) sees(c *Options, seq *sequence, b, h, i, j int) bool {
	at := i // of the query among keys
	switch c.Align {
	case BottomRight:
		at += seq.nk - seq.nq
	case Shifted:
		at += c.Shift
	}
	switch {
	case c.Causal && j > at,
		c.Window.Left > 0 && j < at-(c.Window.Left-1),
		c.Window.Right > 0 && j > at+c.Window.Right-1,
		p.shows != nil && !p.shows(b, h, i, j):
		return false
	}
	return true
}

// round adds to the bounds the rounding of the results to dt, of which the
// smallest numbers have an absolute error.
func round(bound, want []float64, dt snug.DType) {
	for i, x := range want {
		bound[i] += eps[dt]*(math.Abs(x)+bound[i]) + 0x1p-25
	}
}

func dot(a, b []float32) float64 {
	sum := 0.0
	for i := range a {
		sum += float64(a[i]) * float64(b[i])
	}
	return sum
}

func absDot(a, b []float32) float64 {
	sum := 0.0
	for i := range a {
		sum += math.Abs(float64(a[i]) * float64(b[i]))
	}
	return sum
}

func add(dst []float64, a float64, x []float32) {
	for i := range x {
		dst[i] += a * float64(x[i])
	}
}

func addAbs(dst []float64, a float64, x []float32) {
	for i := range x {
		dst[i] += a * math.Abs(float64(x[i]))
	}
}

// The analytic gradients of the reference agree with central differences of
// its forward pass.
func TestReferenceAgainstFiniteDifferences(t *testing.T) {
	c := Options{Batch: 1, Heads: 4, KVHeads: 2, SeqQ: 5, SeqK: 4, Dim: 3, DimV: 2, Causal: true, Scale: 0.7}
	p := newProblem(t, c, snug.F32, 1)
	want, _ := p.reference(t, kerneltest.Backend{}, snug.F32)
	loss := func() float64 {
		got, _ := p.reference(t, kerneltest.Backend{}, snug.F32)
		sum := 0.0
		for i, x := range got.out {
			sum += x * float64(p.dout[i])
		}
		return sum
	}
	for name, pair := range map[string]struct {
		x    []float32
		grad []float64
	}{"dq": {p.q, want.dq}, "dk": {p.k, want.dk}, "dv": {p.v, want.dv}} {
		for i := range pair.x {
			const h = 1.0 / 128
			x := pair.x[i]
			pair.x[i] = x + h
			up, step := loss(), float64(pair.x[i])
			pair.x[i] = x - h
			down := loss()
			step -= float64(pair.x[i])
			pair.x[i] = x
			require.InDelta(t, (up-down)/step, pair.grad[i], 2e-4, "%s[%d]", name, i)
		}
	}
}
