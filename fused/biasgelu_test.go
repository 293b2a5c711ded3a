package fused

import (
	"math"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

// gelus are both forms of GELU.
var gelus = map[string]struct {
	forward         func(out, x, bias snug.View) error
	backward        func(dx, dbias, dy, x, bias snug.View, into snug.Into, ws snug.View) error
	value, slope    func(float64) float64
	err, slopeError func(snug.DType) float64
}{
	"tanh": {BiasGELU[snug.View], BiasGELUBackward[snug.View, snug.View, snug.View], gelu64, geluGrad64, geluError, geluSlopeError},
	"erf": {
		BiasGELUErf[snug.View], BiasGELUErfBackward[snug.View, snug.View, snug.View], geluErf64, geluErfGrad64,
		func(snug.DType) float64 { return 1.2e-7 }, func(snug.DType) float64 { return 2e-7 },
	},
}

//check:in tiers arm64
func TestBiasGELUAgainstDefinition(t *testing.T) {
	for name, gelu := range gelus {
		t.Run(name, func(t *testing.T) { testBiasGELU(t, gelu.forward, gelu.value, gelu.err) })
	}
}

func testBiasGELU(t *testing.T, forward func(out, x, bias snug.View) error, value func(float64) float64, bounds func(snug.DType) float64) {
	eachShape(t, func(t *testing.T, p kerneltest.Backend, dt snug.DType, rows, cols int) {
		rng := newRand(uint64(rows*1000 + cols))
		x, bias := normals(rng, dt, rows*cols, 0, 2), normals(rng, dt, cols, 0, 1)
		px, pb := kerneltest.PutFloats(t, p, dt, x), kerneltest.PutFloats(t, p, dt, bias)
		out := kerneltest.PutFloats(t, p, dt, fill(rows*cols, 42))
		require.NoError(t, forward(out.View, px.View, pb.View))

		var want, bound []float64
		for i, v := range x {
			z := float64(v) + float64(bias[i%cols])
			w := value(z)
			d := bounds(dt)*max(1, math.Abs(z)) + 1.2*u*math.Abs(z) // gelu, and the sum's rounding
			want, bound = append(want, w), append(bound, d+roundoff(dt, math.Abs(w)+d))
		}
		got := out.Get()
		requireClose(t, "out", want, bound, got)

		require.NoError(t, forward(px.View, px.View, pb.View))
		requireBits(t, "in place", got, px.Get())
	})
}

//check:in tiers arm64 race
func TestBiasGELUBackwardAgainstDefinition(t *testing.T) {
	for name, gelu := range gelus {
		t.Run(name, func(t *testing.T) { testBiasGELUBackward(t, gelu.backward, gelu.slope, gelu.slopeError) })
	}
}

func testBiasGELUBackward(t *testing.T, backward func(dx, dbias, dy, x, bias snug.View, into snug.Into, ws snug.View) error,
	slope func(float64) float64, bounds func(snug.DType) float64) {
	into := snug.Into{Alpha: 0.5, Beta: 0.25}
	eachShape(t, func(t *testing.T, p kerneltest.Backend, dt snug.DType, rows, cols int) {
		rng := newRand(uint64(rows*1000 + cols))
		x, bias := normals(rng, dt, rows*cols, 0, 2), normals(rng, dt, cols, 0, 1)
		dy, dbias0 := normals(rng, dt, rows*cols, 0, 1), normals(rng, snug.F32, cols, 0, 1)
		px, pb := kerneltest.PutFloats(t, p, dt, x), kerneltest.PutFloats(t, p, dt, bias)
		pdy, pdx := kerneltest.PutFloats(t, p, dt, dy), kerneltest.PutFloats(t, p, dt, fill(rows*cols, float32(math.NaN())))
		dbias := kerneltest.Put(t, p, dbias0)
		ws := kerneltest.Put(t, p, fill(BiasGELUWorkspaceLen(rows, cols), float32(math.NaN())))
		require.NoError(t, backward(pdx.View, dbias.View, pdy.View, px.View, pb.View, into, ws.View))

		var want, bound []float64
		sums, sizes, slack := make([]float64, cols), make([]float64, cols), make([]float64, cols)
		for i, v := range x {
			z, g := float64(v)+float64(bias[i%cols]), float64(dy[i])
			w := g * slope(z)
			d := math.Abs(g)*(bounds(dt)+u*math.Abs(z)) + u*math.Abs(w) // gelu″ is below 1
			want, bound = append(want, w), append(bound, d+roundoff(dt, math.Abs(w)+d))
			sums[i%cols] += w
			sizes[i%cols] += math.Abs(w)
			slack[i%cols] += d
		}
		got := pdx.Get()
		requireClose(t, "dx", want, bound, got)
		adds := float64(partRows(rows) + parts(rows))
		var wantBias, boundBias []float64
		for c, g := range sums {
			wantBias = append(wantBias, into64(into, dbias0[c], g))
			boundBias = append(boundBias, intoBound(into, dbias0[c], g, slack[c]+adds*u*sizes[c])+0x1p-149)
		}
		requireClose(t, "dbias", wantBias, boundBias, dbias.Get())

		// dx in the place of dy and of x, the bias frozen.
		require.NoError(t, backward(px.View, snug.View{}, pdy.View, px.View, pb.View, into, snug.View{}))
		requireBits(t, "dx is x", got, px.Get())
		px = kerneltest.PutFloats(t, p, dt, x)
		require.NoError(t, backward(pdy.View, snug.View{}, pdy.View, px.View, pb.View, into, snug.View{}))
		requireBits(t, "dx is dy", got, pdy.Get())
	})
}

// geluError and geluSlopeError are the bounds that BiasGELU states.
func geluError(dt snug.DType) float64 {
	if dt == snug.BF16 {
		return 1.2e-5
	}
	return 1.2e-7
}

func geluSlopeError(dt snug.DType) float64 {
	if dt == snug.BF16 {
		return 5e-6
	}
	return 2e-7
}

// gelu64 is the definition of GELU, and geluGrad64 of its derivative.
func gelu64(x float64) float64 {
	return 0.5 * x * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(x+0.044715*x*x*x)))
}

func geluGrad64(x float64) float64 {
	th := math.Tanh(math.Sqrt(2/math.Pi) * (x + 0.044715*x*x*x))
	return 0.5*(1+th) + 0.5*x*(1-th*th)*math.Sqrt(2/math.Pi)*(1+3*0.044715*x*x)
}

// geluErf64 is the definition of GELU without an approximation.
func geluErf64(x float64) float64 { return 0.5 * x * math.Erfc(-x/math.Sqrt2) }

func geluErfGrad64(x float64) float64 {
	return 0.5*math.Erfc(-x/math.Sqrt2) + x*math.Exp(-x*x/2)/math.Sqrt(2*math.Pi)
}
