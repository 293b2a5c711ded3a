package conv

import (
	"fmt"
	"math"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

var floatTypes = []snug.DType{snug.F32, snug.F16, snug.BF16}

// roundoff bounds the error of rounding x to a type, subnormals included.
func roundoff(dt snug.DType, x float64) float64 {
	switch dt {
	case snug.F16:
		return 0x1p-11*math.Abs(x) + 0x1p-25
	case snug.BF16:
		return 0x1p-8*math.Abs(x) + 0x1p-126
	}
	return 0x1p-24*math.Abs(x) + 0x1p-126
}

// rounded rounds x to a type, so that the definition sees what the functions see.
func rounded(dt snug.DType, x []float32) []float32 {
	for i, v := range x {
		switch dt {
		case snug.F16:
			x[i] = half.F16ToFloat32(half.Float32ToF16(v))
		case snug.BF16:
			x[i] = snug.ToBFloat16(v).Float32()
		}
	}
	return x
}

// sums are results of the definition: a sum in float64, the sum of the absolute values of its products, and their
// number, for each element.
type sums struct{ value, scale, count []float64 }

func newSums(n int) sums { return sums{make([]float64, n), make([]float64, n), make([]float64, n)} }

func (s sums) add(i int, x float64) {
	s.value[i] += x
	s.scale[i] += math.Abs(x)
	s.count[i]++
}

// eachProduct calls f for every product of a convolution, with the elements of y, w and x. It is the equation in the
// text of the package, from y to x with x and y in each other's place if the convolution is transposed.
func eachProduct(s Shape, f func(y, w, x int)) {
	groups := max(s.Groups, 1)
	in, out, size, outSize := s.In, s.Out, s.Size, s.OutSize()
	if s.Transposed {
		in, out, size, outSize = out, in, outSize, size
	}
	index := func(b, ch, channels int, size, at []int) int {
		if s.Layout == ChannelsLast {
			return (b*prod(size)+flat(at, size))*channels + ch
		}
		return (b*channels+ch)*prod(size) + flat(at, size)
	}
	var from [3]int
	for b := range s.Batch {
		for o := range out {
			for c := range in / groups {
				ch := o/(out/groups)*(in/groups) + c
				each(outSize[:s.Dims], func(p []int) {
					each(s.Kernel[:s.Dims], func(t []int) {
						at := from[:s.Dims]
						for i := range at {
							at[i] = p[i]*max(s.Stride[i], 1) + t[i]*max(s.Dilation[i], 1) - s.PadBefore[i]
							if at[i] < 0 || at[i] >= size[i] {
								return
							}
						}
						y, x := index(b, o, out, outSize[:s.Dims], p), index(b, ch, in, size[:s.Dims], at)
						w := (o*(in/groups)+c)*prod(s.Kernel[:s.Dims]) + flat(t, s.Kernel[:s.Dims])
						if s.Transposed {
							x, y = y, x
						}
						f(y, w, x)
					})
				})
			}
		}
	}
}

func prod(n []int) int {
	p := 1
	for _, x := range n {
		p *= x
	}
	return p
}

func flat(at, size []int) int {
	i := 0
	for d := range at {
		i = i*size[d] + at[d]
	}
	return i
}

// each calls f for every position in a size.
func each(size []int, f func(at []int)) {
	var position [3]int
	at := position[:len(size)]
	for range prod(size) {
		f(at)
		for d := len(size) - 1; d >= 0; d-- {
			if at[d]++; at[d] < size[d] {
				break
			}
			at[d] = 0
		}
	}
}

// channelOf returns the channel of an element of y.
func channelOf(s Shape, i int) int {
	if s.Layout == ChannelsLast {
		return i % s.Out
	}
	return i / (s.YLen() / s.Batch / s.Out) % s.Out
}

// operands are those of all calls, as float32.
type operands struct{ x, w, bias, dy []float32 }

func newOperands(s Shape, dt snug.DType, seed uint64) operands {
	make := func(i uint64, n int) []float32 { return rounded(dt, kerneltest.Normal(seed+i, n)) }
	return operands{make(0, s.XLen()), make(1, s.WLen()), make(2, s.BiasLen()), make(3, s.YLen())}
}

// results are those of the definition.
type results struct{ y, dx, dw, db sums }

func define(s Shape, o operands) results {
	r := results{newSums(s.YLen()), newSums(s.XLen()), newSums(s.WLen()), newSums(s.BiasLen())}
	for i := range r.y.value {
		r.y.add(i, float64(o.bias[channelOf(s, i)]))
		r.db.add(channelOf(s, i), float64(o.dy[i]))
	}
	eachProduct(s, func(y, w, x int) {
		r.y.add(y, float64(o.w[w])*float64(o.x[x]))
		r.dx.add(x, float64(o.w[w])*float64(o.dy[y]))
		r.dw.add(w, float64(o.dy[y])*float64(o.x[x]))
	})
	return r
}

// requireSums checks got against alpha·sums + beta·old, within the bound that the package states.
func requireSums(t testing.TB, what string, s sums, into snug.Into, old []float32, dt snug.DType, got []float32) {
	t.Helper()
	require.Len(t, got, len(s.value), what)
	alpha, beta, err := into.Factors()
	require.NoError(t, err)
	for i, sum := range s.value {
		want, scale := float64(alpha)*sum, math.Abs(float64(alpha))*s.scale[i]
		if beta != 0 {
			want += float64(beta) * float64(old[i])
			scale += math.Abs(float64(beta) * float64(old[i]))
		}
		bound := (s.count[i]+4)*0x1p-24*scale + 0x1p-126
		bound += roundoff(dt, math.Abs(want)+bound)
		if d := math.Abs(float64(got[i]) - want); !(d <= bound) {
			require.Failf(t, what, "element %d is %v, want %v ± %v", i, got[i], want, bound)
		}
	}
}

// vector is the elements of a buffer behind the first lead ones.
type vector struct {
	snug.View
	all  *kerneltest.Floats
	lead int
}

// put copies x to a backend.
func put(t *testing.T, p kerneltest.Backend, dt snug.DType, lead int, x []float32) vector {
	all := kerneltest.PutFloats(t, p, dt, append(make([]float32, lead), x...))
	v, err := all.Slice(lead, lead+len(x))
	require.NoError(t, err)
	return vector{v, all, lead}
}

// Get returns the elements.
func (v vector) Get() []float32 { return v.all.Get()[v.lead:] }

// check calls all functions on a backend and compares with the definition.
func check(t *testing.T, p kerneltest.Backend, s Shape, dt snug.DType, o operands, want results, into snug.Into) {
	t.Helper()
	checkAt(t, p, s, dt, 0, o, want, into)
}

// checkAt is check with vectors that begin at element lead of their buffers.
func checkAt(t *testing.T, p kerneltest.Backend, s Shape, dt snug.DType, lead int, o operands, want results, into snug.Into) {
	t.Helper()
	require.NoError(t, s.Check(), "%+v", s)
	put := func(x []float32) vector { return put(t, p, dt, lead, x) }
	floats := func(x []float32) *kerneltest.Floats { return kerneltest.PutFloats(t, p, snug.F32, x) }
	x, w, bias, dy := put(o.x), put(o.w), put(o.bias), put(o.dy)
	name := fmt.Sprintf("%v %+v", dt, s)

	nan := float32(math.NaN())
	y := put(full(s.YLen(), nan))
	require.NoError(t, Forward(y.View, x.View, w.View, bias.View, s))
	requireSums(t, "y of "+name, want.y, snug.Into{}, nil, dt, y.Get())

	old := func(n int) []float32 {
		if into.Beta == 0 {
			return full(n, nan)
		}
		return rounded(dt, kerneltest.Normal(9, n))
	}
	oldX, oldW, oldB := old(s.XLen()), old(s.WLen()), old(s.BiasLen())
	dx, dw, db := put(oldX), floats(oldW), floats(oldB)
	ws := floats(full(s.WorkspaceLen(), nan))
	require.NoError(t, BackwardInput(dx.View, dy.View, w.View, s, into))
	requireSums(t, "dx of "+name, want.dx, into, oldX, dt, dx.Get())
	require.NoError(t, BackwardWeight(dw.View, db.View, x.View, dy.View, s, into, ws.View))
	requireSums(t, "dw of "+name, want.dw, into, oldW, snug.F32, dw.Get())
	requireSums(t, "db of "+name, want.db, into, oldB, snug.F32, db.Get())
	ws.Get()
}

func full(n int, x float32) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = x
	}
	return v
}
