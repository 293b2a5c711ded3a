package attention

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/gemm"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

// values are the operands and the results of one problem, each contiguous.
type values[T any] struct{ out, lse, dq, dk, dv []T }

// problem is one attention call; its inputs are contiguous, whatever the
// strides of c.
type problem struct {
	c             Config
	q, k, v, dout []float32
	start         int // of tensors in their buffers
}

// newProblem draws standard normal inputs that dt holds exactly.
func newProblem(t testing.TB, c Config, dt snug.DType, seed uint64) *problem {
	rng := rand.New(rand.NewPCG(seed, 99))
	r := resolved(t, c)
	draw := func(o operand) []float32 {
		x := make([]float32, o.batch*o.heads*o.n*o.dim)
		for i := range x {
			x[i] = float32(rng.NormFloat64())
		}
		return kerneltest.PutFloats(t, kerneltest.Place{}, dt, x).Get()
	}
	o := r.operands()
	return &problem{c: c, q: draw(o[0]), k: draw(o[1]), v: draw(o[2]), dout: draw(o[3])}
}

func resolved(t testing.TB, c Config) Config {
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

// onHost reports whether a place is computed for by Run.
func onHost(place kerneltest.Place) bool {
	return place.Dev == nil || place.Dev.IsCPU() || place.Name == "opaque"
}

// weightRounding returns how a place rounds weights to dt before it multiplies them.
func (p *problem) weightRounding(place kerneltest.Place, dt snug.DType) rounding {
	to := rounding{relative: eps[dt]}
	if dt == snug.F16 {
		to.absolute = 0x1p-25 // of numbers below the normal ones
	}
	dimV := p.c.dimV()
	switch {
	case onHost(place) && dt == snug.BF16 && gemm.HasPairs(),
		!onHost(place) && dt != snug.F32 && p.start == aligning && p.c.Dim == dimV && (dimV == 64 || dimV == 128):
		return to
	}
	return rounding{}
}

// reference computes the definition in float64, and for every result a bound of
// the error that the kernel may make in type dt.
//
// A weight p has the relative error of its score's absolute error. With normal
// inputs the partial sums of a score are about 1 after scaling, and the D
// roundings of at most u = 2⁻²⁴ relative add up like a random walk, to √D·u;
// the same holds for the √DimV·u of dout·v. The score s and lse are rounded
// themselves, by u·(|s|+|lse|). The exponential adds 2 ulp, which is 4u, and the
// sums a few more. So every term of a sum is off by at most unit·(its
// magnitude), with unit = 2·(√D + √DimV + |s| + |lse| + 8)·u, and a result by the
// sum of that over its terms. Rounding to dt adds eps(dt), as does in delta the
// rounding of out, which Forward returned in dt, and where a place rounds weights
// and their gradients before they are multiplied, that.
func (p *problem) reference(t testing.TB, place kerneltest.Place, dt snug.DType) (want, bound values[float64]) {
	c := resolved(t, p.c)
	want, bound = newValues(&c), newValues(&c)
	low := p.weightRounding(place, dt)
	for b := range c.Batch {
		for h := range c.Heads {
			for i := range c.SeqQ {
				p.referenceRow(&c, b, h, i, dt, low, &want, &bound)
			}
		}
	}
	if dt != snug.F32 {
		round(bound.out, want.out, dt)
		round(bound.dq, want.dq, dt)
		round(bound.dk, want.dk, dt)
		round(bound.dv, want.dv, dt)
	}
	return want, bound
}

func newValues(c *Config) values[float64] {
	o := c.operands()
	return values[float64]{
		out: make([]float64, o[3].size()), lse: make([]float64, c.queries()),
		dq: make([]float64, o[0].size()), dk: make([]float64, o[1].size()), dv: make([]float64, o[2].size()),
	}
}

func (o operand) size() int { return o.batch * o.heads * o.n * o.dim }

// part returns row i of a contiguous tensor of rows of dim.
func part[T any](x []T, i, dim int) []T { return x[i*dim:][:dim] }

// referenceRow adds what query i contributes to every result.
func (p *problem) referenceRow(c *Config, b, h, i int, dt snug.DType, low rounding, want, bound *values[float64]) {
	row := (b*c.Heads+h)*c.SeqQ + i
	key := (b*c.KVHeads + h*c.KVHeads/c.Heads) * c.SeqK // of key 0
	scale := float64(c.Scale)
	q, dout := part(p.q, row, c.Dim), part(p.dout, row, c.DimV)

	var keys []int // that the query sees
	var score []float64
	top := math.Inf(-1)
	for j := range c.SeqK {
		if p.sees(i, j) {
			keys = append(keys, j)
			score = append(score, scale*dot(q, part(p.k, key+j, c.Dim)))
			top = max(top, score[len(score)-1])
		}
	}
	want.lse[row] = math.Inf(-1)
	lse := math.Inf(1) // makes every weight 0
	if !math.IsInf(top, -1) {
		sum := 0.0
		for _, s := range score {
			sum += math.Exp(s - top)
		}
		lse = top + math.Log(sum)
		want.lse[row] = lse
	}
	unit := func(s float64) float64 {
		return 2 * (math.Sqrt(float64(c.Dim)) + math.Sqrt(float64(c.DimV)) + math.Abs(s) + math.Abs(lse) + 8) * eps[snug.F32]
	}
	bound.lse[row] = unit(top)
	out, outBound := part(want.out, row, c.DimV), part(bound.out, row, c.DimV)
	for n, j := range keys {
		s := score[n]
		w, v := math.Exp(s-lse), part(p.v, key+j, c.DimV)
		add(out, w, v)
		addAbs(outBound, unit(s)*w+low.of(w), v)
	}
	delta, absDelta, deltaBound := 0.0, 0.0, 0.0
	for d, x := range out {
		delta += x * float64(dout[d])
		absDelta += math.Abs(x * float64(dout[d]))
		deltaBound += outBound[d] * math.Abs(float64(dout[d]))
	}
	if dt != snug.F32 {
		deltaBound += eps[dt] * absDelta
	}
	for n, j := range keys {
		s := score[n]
		w, k, v := math.Exp(s-lse), part(p.k, key+j, c.Dim), part(p.v, key+j, c.DimV)
		ds := scale * w * (dot(dout, v) - delta)
		dsBound := math.Abs(scale)*w*(unit(s)*(absDot(dout, v)+absDelta)+deltaBound) + math.Abs(scale)*low.of(ds/scale)
		add(part(want.dv, key+j, c.DimV), w, dout)
		addAbs(part(bound.dv, key+j, c.DimV), unit(s)*w+low.of(w), dout)
		add(part(want.dq, row, c.Dim), ds, k)
		addAbs(part(bound.dq, row, c.Dim), dsBound, k)
		add(part(want.dk, key+j, c.Dim), ds, q)
		addAbs(part(bound.dk, key+j, c.Dim), dsBound, q)
	}
}

// sees is the definition of the masks.
func (p *problem) sees(i, j int) bool {
	switch {
	case !p.c.Causal:
		return true
	case p.c.Align == TopLeft:
		return j <= i
	}
	return j <= i+p.c.SeqK-p.c.SeqQ
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
	c := Config{Batch: 1, Heads: 4, KVHeads: 2, SeqQ: 5, SeqK: 4, Dim: 3, DimV: 2, Causal: true, Scale: 0.7}
	p := newProblem(t, c, snug.F32, 1)
	want, _ := p.reference(t, kerneltest.Place{}, snug.F32)
	loss := func() float64 {
		got, _ := p.reference(t, kerneltest.Place{}, snug.F32)
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
