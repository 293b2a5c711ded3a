package quant8

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"gonum.org/v1/gonum/mat"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
)

// goldenSOAP has the constants of testdata/soap/make.py.
var goldenSOAP = map[string]Rule{
	"soap":       SOAP{WeightDecay: 0.1, Frequency: 3, MaxDim: 8},
	"soap.other": SOAP{Beta1: 0.9, Beta2: 0.99, PreconditionerBeta: 0.8, Eps: 1e-3, Frequency: 1, MaxDim: 8},
}

// TestSOAPGolden makes the runs of the authors' code, in memory and in chunks of a Storage. Parameters do not depend on
// the signs of eigenvectors.
//
//check:in tiers arm64 arm64-go
func TestSOAPGolden(t *testing.T) {
	var r struct {
		Shapes    map[string][]int
		Start     map[string][]float32
		Gradients map[string][][]float32
		Runs      map[string]map[string][][]float32 // parameters after steps 1, 2, 3, 10 and 20
	}
	data, err := os.ReadFile("testdata/soap/runs.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, &r))
	require.Len(t, r.Runs, len(goldenSOAP))
	compared := 0
	for rule, runs := range r.Runs {
		for name, after := range runs {
			for _, s := range []Options{{Bits: 32}, {Bits: 32, Block: 32, Chunk: 32, Storage: newFakeStorage()}} {
				a, err := New(goldenSOAP[rule], s)
				require.NoError(t, err)
				shape, p := r.Shapes[name], append([]float32(nil), r.Start[name]...)
				if len(shape) == 2 {
					require.NoError(t, a.AddMatrix(name, shape[0], shape[1]))
				} else {
					require.NoError(t, a.Add(name, shape[0]))
				}
				for i, g := range r.Gradients[name] {
					scaled := append([]float32(nil), g...)
					for k := range scaled {
						scaled[k] *= 2
					}
					a.Advance(1e-2)
					step(t, a, name, p, scaled, 0.5)
					for k, at := range []int{1, 2, 3, 10, 20} {
						if i+1 == at {
							require.Zero(t, outliers(after[k], p, 1e-6, 1e-5), "%s %s, step %d", rule, name, at)
							compared++
						}
					}
				}
			}
		}
	}
	require.Equal(t, 2*5*2*5, compared)
}

// defined is SOAP of a matrix in float64, with the first bases of an optimizer.
type defined struct {
	p, m, v, l, r, ql, qr *mat.Dense
	count                 int
}

func dense(rows, cols int, x []float32) *mat.Dense {
	d := mat.NewDense(rows, cols, nil)
	for i, v := range x {
		d.Set(i/cols, i%cols, float64(v))
	}
	return d
}

func product(all ...mat.Matrix) *mat.Dense {
	d := mat.DenseCopyOf(all[0])
	for _, m := range all[1:] {
		var next mat.Dense
		next.Mul(d, m)
		d = &next
	}
	return d
}

// average is a ← β·a + (1-β)·b.
func average(a *mat.Dense, beta float64, b *mat.Dense) {
	a.Scale(beta, a)
	b.Scale(1-beta, b)
	a.Add(a, b)
}

// renew returns a better basis, and which column each of its columns was.
func renew(a, q *mat.Dense) (*mat.Dense, []int) {
	n, _ := q.Dims()
	values, order := product(q.T(), a, q), make([]int, n)
	for i := range order {
		order[i] = i
		for k := i; k > 0 && values.At(order[k], order[k]) > values.At(order[k-1], order[k-1]); k-- {
			order[k], order[k-1] = order[k-1], order[k]
		}
	}
	power, sorted := product(a, q), mat.NewDense(n, n, nil)
	for i := range n {
		for j, from := range order {
			sorted.Set(i, j, power.At(i, from))
		}
	}
	var d mat.QR
	d.Factorize(sorted)
	var better mat.Dense
	d.QTo(&better)
	return &better, order
}

func (d *defined) step(g *mat.Dense, rate, beta1, beta2, eps, decay float64, every int) {
	d.count++
	x := product(d.ql.T(), g, d.qr)
	var squares mat.Dense
	squares.MulElem(x, x)
	average(d.m, beta1, x)
	average(d.v, beta2, &squares)
	rows, cols := g.Dims()
	u := mat.NewDense(rows, cols, nil)
	size := rate * math.Sqrt(1-math.Pow(beta2, float64(d.count))) / (1 - math.Pow(beta1, float64(d.count)))
	u.Apply(func(i, j int, m float64) float64 { return -size * m / (math.Sqrt(d.v.At(i, j)) + eps) }, d.m)
	d.p.Add(d.p, product(d.ql, u, d.qr.T()))
	d.p.Scale(1-rate*decay, d.p)
	average(d.l, beta2, product(g, g.T()))
	average(d.r, beta2, product(g.T(), g))
	if d.count%every > 0 {
		return
	}
	plain := product(d.ql, d.m, d.qr.T())
	var left, right []int
	d.ql, left = renew(d.l, d.ql)
	d.qr, right = renew(d.r, d.qr)
	d.m = product(d.ql.T(), plain, d.qr)
	v := mat.DenseCopyOf(d.v)
	d.v.Apply(func(i, j int, _ float64) float64 { return v.At(left[i], right[j]) }, v)
}

// TestSOAPDefinition compares matrices with preconditioners on both sides with the definition in float64. The bases of
// the first gradient, which has no full rank, are the optimizer's.
//
//check:in tiers arm64
func TestSOAPDefinition(t *testing.T) {
	for _, side := range [][2]int{{9, 14}, {14, 9}, {12, 12}, {5, 6}} {
		rows, cols := side[0], side[1]
		a, err := New(SOAP{Frequency: 2, WeightDecay: 0.1, Eps: 1e-3}, Options{Chunk: 256})
		require.NoError(t, err)
		require.NoError(t, a.AddMatrix("w", rows, cols))
		p := kerneltest.Normal(1, rows*cols)
		want := defined{p: dense(rows, cols, p), m: mat.NewDense(rows, cols, nil), v: mat.NewDense(rows, cols, nil)}
		for i := range 9 {
			g := kerneltest.Normal(uint64(i+2), rows*cols)
			a.Advance(0.01)
			step(t, a, "w", p, g, 0.5)
			exact := dense(rows, cols, g)
			exact.Scale(0.5, exact)
			if i > 0 {
				want.step(exact, 0.01, 0.95, 0.95, 1e-3, 0.1, 2)
			} else {
				f := floats(stateOf(t, a)[:4*(1+2*(rows*rows+cols*cols))], 1+2*(rows*rows+cols*cols))[1:]
				l, r := rows*rows, cols*cols
				want.ql, want.qr = dense(rows, rows, f[l:2*l]), dense(cols, cols, f[2*l+r:])
				want.l, want.r = mat.NewDense(rows, rows, nil), mat.NewDense(cols, cols, nil)
				average(want.l, 0.95, product(exact, exact.T()))
				average(want.r, 0.95, product(exact.T(), exact))
				for k, v := range f[:l] {
					require.InDelta(t, want.l.At(k/rows, k%rows), v, 1e-6)
				}
			}
			for k, x := range p {
				require.InDelta(t, want.p.At(k/cols, k%cols), x, 2e-5, "%v, step %d, element %d", side, i+1, k)
			}
		}
	}
}

// TestSOAPBytes: what the doc of the rule states.
func TestSOAPBytes(t *testing.T) {
	for _, c := range []struct {
		maxDim, bits int
		shape        []int
		want, work   int64
	}{
		{0, 32, []int{1024, 1024}, 24<<20 + 4, 4 + 16<<20 + 16<<20 + 12<<20 + 280<<10 + 16<<10},
		{0, 8, []int{1024, 1024}, 24<<20 + 4, 4 + 16<<20 + 16<<20 + 12<<20 + 280<<10 + 16<<10},
		{100, 8, []int{90, 200}, 8*90*200 + 8*90*90 + 4, 4 + 8*90*90 + 16*90*200 + 12*90*90 + 280*90 + 8*90},
		{100, 8, []int{200, 90}, 8*90*200 + 8*90*90 + 4, 4 + 8*90*90 + 16*90*200 + 12*90*90 + 280*90 + 8*90},
		{0, 4, []int{3, 5}, 8*15 + 8*9 + 8*25 + 4, 4 + 8*34 + 16*15 + 12*25 + 280*5 + 8*8},
		{100, 8, []int{128, 128}, 2*128*128 + 2*4*64, 0}, // no side is short enough
		{0, 8, []int{128 * 128}, 2*128*128 + 2*4*64, 0},
		{0, 8, []int{0, 5}, 0, 0},
	} {
		rule := SOAP{MaxDim: c.maxDim}
		require.Equal(t, c.want, StateBytes(rule, Options{Bits: c.bits}, c.shape...), "%+v", c)
		a, err := New(rule, Options{Bits: c.bits})
		require.NoError(t, err)
		if len(c.shape) == 2 {
			require.NoError(t, a.AddMatrix("w", c.shape[0], c.shape[1]))
		} else {
			require.NoError(t, a.Add("w", c.shape[0]))
		}
		require.Equal(t, c.want, a.StateBytes())
		require.Equal(t, c.work, a.WorkspaceBytes(), "%+v", c)
	}
}

// TestSOAPOperations: six products of a side and the gradient in a step, and a tenth of a refresh.
func TestSOAPOperations(t *testing.T) {
	for _, c := range []struct {
		name          string
		rule          Rule
		rows, cols    int
		step, refresh float64
	}{
		{"both sides", SOAP{Frequency: 5}, 30, 50, 6 * 1500 * 80, 4*1500*80 + 10*(27_000+125_000)},
		{"one side", SOAP{Frequency: 5, MaxDim: 40}, 30, 50, 6 * 1500 * 30, 4*1500*30 + 10*27_000},
		{"none", SOAP{MaxDim: 4}, 30, 50, 0, 0},
		{"another rule", Apollo{Rank: 4}, 30, 50, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, err := New(c.rule, Options{})
			require.NoError(t, err)
			require.NoError(t, a.AddMatrix("w", c.rows, c.cols))
			require.NoError(t, a.AddMatrix("x", c.rows, c.cols))
			require.Equal(t, 2*(c.step+c.refresh/5), a.Operations())
		})
	}
}

// TestSOAPOfZeros: a first gradient of zeros gives bases like any other, and the matrix learns from the next ones.
func TestSOAPOfZeros(t *testing.T) {
	const rows, cols = 9, 14
	a := newMatrices(t, "soap", Options{}, map[string][2]int{"w": {rows, cols}})
	p, g := kerneltest.Normal(1, rows*cols), make([]float32, rows*cols)
	advance(a)
	step(t, a, "w", p, g, 1)
	require.Equal(t, kerneltest.Normal(1, rows*cols), p)
	for i := range 5 {
		g, before, along := kerneltest.Normal(2, rows*cols), append([]float32(nil), p...), 0.0
		advance(a)
		step(t, a, "w", p, g, 1)
		for k := range p {
			along += float64(g[k]) * float64(p[k]-before[k])
		}
		require.Less(t, along, 0.0, "step %d", i)
	}
}

// TestSOAPNonFinite has the policies, for elements and for the norm, at the first step and at a later one.
func TestSOAPNonFinite(t *testing.T) {
	const rows, cols = 9, 14
	for _, policy := range []NonFinitePolicy{Fail, SkipStep, SkipElement} {
		for _, late := range []bool{false, true} {
			a := newMatrices(t, "soap", Options{NonFinite: policy}, map[string][2]int{"w": {rows, cols}})
			clean := newMatrices(t, "soap", Options{}, map[string][2]int{"w": {rows, cols}})
			p, q := kerneltest.Normal(1, rows*cols), kerneltest.Normal(1, rows*cols)
			if late {
				advance(a)
				advance(clean)
				step(t, a, "w", p, kerneltest.Normal(2, rows*cols), 1)
				step(t, clean, "w", q, kerneltest.Normal(2, rows*cols), 1)
			}
			before, start := stateOf(t, a), append([]float32(nil), p...)
			large := make([]float32, rows*cols)
			for i := range large {
				large[i] = math.Nextafter32(0x1p63, 0)
			}
			bad, zero := kerneltest.Normal(3, rows*cols), kerneltest.Normal(3, rows*cols)
			bad[0], bad[50], zero[0], zero[50] = nan, inf, 0, 0
			for i, g := range [][]float32{large, bad} {
				advance(a)
				err := a.Step("w", snug.ViewOf(p), snug.ViewOf(g), 1)
				if policy == Fail {
					require.ErrorIs(t, err, snug.ErrNonFinite)
				} else {
					require.NoError(t, err)
					require.Len(t, a.Skipped(), 1)
				}
				if policy != SkipElement || i == 0 {
					require.Equal(t, before, stateOf(t, a))
					require.Equal(t, start, p)
				}
			}
			if policy != SkipElement {
				continue
			}
			advance(clean)
			step(t, clean, "w", q, zero, 1)
			require.Equal(t, stateOf(t, clean), stateOf(t, a))
			q[0], q[50] = start[0], start[50]
			require.Equal(t, q, p)
		}
	}
}

// TestSOAPState: a state of another MaxDim, and one whose matrix has more steps than the optimizer.
func TestSOAPState(t *testing.T) {
	build := func(maxDim int) *Optimizer {
		a, err := New(SOAP{MaxDim: maxDim}, Options{})
		require.NoError(t, err)
		require.NoError(t, a.AddMatrix("w", 5, 9))
		return a
	}
	a := newMatrixRun(t, build(8))
	advance(a.a)
	a.step("w")
	data := bytesOf(a.a.AppendBinary(nil))
	for _, maxDim := range []int{4, 9} {
		other := build(maxDim)
		for _, err := range []error{other.UnmarshalBinary(data), second(other.ReadFrom(bytes.NewReader(data))), other.ReadShards(bytes.NewReader(data))} {
			require.ErrorIs(t, err, snug.ErrConfig)
		}
	}
	require.NoError(t, a.a.withBlob(a.a.params["w"], factors, true, func(blob []byte) error {
		floats(blob, 1)[0] = math.Float32frombits(3)
		return nil
	}))
	advance(a.a)
	p := append([]float32(nil), a.p["w"]...)
	err := a.a.Step("w", snug.ViewOf(p), snug.ViewOf(p), 1)
	require.ErrorIs(t, err, snug.ErrCorrupt)
	require.Equal(t, a.p["w"], p)
}

// TestSOAPRefuses: nothing is folded into moments of turned gradients, no matrix is on another device, and there is no
// form of bitsandbytes.
func TestSOAPRefuses(t *testing.T) {
	require.False(t, TraitsOf(SOAP{}).Folds)
	a, err := New(SOAP{}, Options{})
	require.NoError(t, err)
	require.ErrorContains(t, second(a.WriteBitsAndBytes(new(bytes.Buffer), BitsAndBytesFormat{})), "bitsandbytes has no optimizer that goes on")
	kerneltest.Each(t, func(t *testing.T, backend kerneltest.Backend) {
		a := newMatrices(t, "soap", Options{}, map[string][2]int{"w": {7, 9}})
		advance(a)
		p := kerneltest.Put(t, backend, kerneltest.Normal(1, 63))
		g := kerneltest.Put(t, backend, kerneltest.Normal(2, 63))
		if dev := p.View.Device(); dev.IsCPU() {
			require.NoError(t, a.Step("w", p.View, g.View, 1))
			return
		}
		require.ErrorIs(t, a.Step("w", p.View, g.View, 1), snug.ErrDevice)
	})
}
