package attention

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// Whole is a problem over a whole sequence, for the tests over ranks of package attention_test. Its tensors are
// contiguous, of numbers that the type holds exactly.
type Whole struct {
	p             *problem
	C             Options
	DType         snug.DType
	Q, K, V, DOut []float32
	DLSE          []float32        // nil: none
	Want, Bound   Results[float64] // Bound for one process
	Bound32       Results[float64] // the same in float32
}

// Results are contiguous tensors.
type Results[T any] struct{ Out, LSE, DQ, DK, DV, DSinks, DBias []T }

// Gap is what outputs hold before a call.
const Gap = gap

// NewWhole returns a problem with some of allFeatures, by name. "packed" packs the rows of queries, and of keys alike.
// "one bias" and "one mask" are the same for all heads and batch elements.
func NewWhole(t testing.TB, c Options, dt snug.DType, seed uint64, names ...string) *Whole {
	rng := rand.New(rand.NewPCG(seed, 7))
	p := &problem{c: c}
	for _, name := range names {
		if name == "packed" {
			p.pack(rng)
			p.c.KStarts = nil
		}
	}
	p.c = resolved(t, p.c)
	for _, f := range featuresNamed(names...) {
		f.add(t, p, rng)
	}
	queries, keys := p.c.longest()
	if slices.Contains(names, "one bias") {
		p.bias, p.biasType = uniform(rng, queries*keys, 2), snug.F32
		p.c.Bias = Bias{X: snug.SliceView(p.bias), Dims: [4]int{1, 1, queries, keys}, Grad: snug.SliceView(make([]float32, queries*keys))}
	}
	if slices.Contains(names, "one mask") {
		p.shows = func(_, _, i, j int) bool { return (i*i+3*j+int(seed%7))%5 < 3 }
		var err error
		p.c.Mask, err = NewMask(1, 1, queries, keys, p.shows)
		require.NoError(t, err)
	}
	q := newProblem(t, p.c, dt, seed)
	q.features = p.features
	w := &Whole{p: q, C: q.c, DType: dt, Q: q.q, K: q.k, V: q.v, DOut: q.dout, DLSE: q.dlse}
	w.C.Q, w.C.K, w.C.V, w.C.Out, w.C.GradLSE = Strides{}, Strides{}, Strides{}, Strides{}, snug.View{}
	want, bound := q.reference(t, kerneltest.Backend{}, dt)
	_, bound32 := q.reference(t, kerneltest.Backend{}, snug.F32)
	w.Want, w.Bound, w.Bound32 = resultsOf(want), resultsOf(bound), resultsOf(bound32)
	return w
}

func resultsOf[T any](v values[T]) Results[T] {
	return Results[T]{v.out, v.lse, v.dq, v.dk, v.dv, v.dsinks, v.dbias}
}

// One returns the results of one process.
func (w *Whole) One(t testing.TB, backend kerneltest.Backend) Results[float32] {
	return resultsOf(w.p.run(t, backend, w.DType))
}

// Eps is half the distance between 1 and the next number of a type.
func Eps(dt snug.DType) float64 { return eps[dt] }

// TB returns a rapid.T as the testing.TB that helpers take.
func TB(t *rapid.T) testing.TB { return tb{r: t} }

// Within is the test of results against bounds.
func Within(t testing.TB, name string, want, bound []float64, got []float32) float64 {
	return within(t, name, want, bound, got)
}
