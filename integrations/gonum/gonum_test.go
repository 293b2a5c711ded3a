package gonum

import (
	"bytes"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/quant8"
	"github.com/stretchr/testify/require"
	"gonum.org/v1/gonum/mat"
	"gonum.org/v1/gonum/optimize"
)

func random(rng *rand.Rand, n int) []float64 {
	x := make([]float64, n)
	for i := range x {
		x[i] = rng.NormFloat64()
	}
	return x
}

// inside returns a matrix cut from a larger one, and the larger one.
func inside(rng *rand.Rand, rows, cols int) (cut, whole *mat.Dense) {
	whole = mat.NewDense(rows+2, cols+3, random(rng, (rows+2)*(cols+3)))
	return whole.Slice(1, rows+1, 2, cols+2).(*mat.Dense), whole
}

// TestStep: a step is float32's of quant8, added in float64, for matrices, parts of them and columns, in pieces or at once.
func TestStep(t *testing.T) {
	rules := map[string]quant8.Rule{
		"adamw": quant8.AdamW{WeightDecay: 0.1}, "lion": quant8.Lion{}, "adafactor": quant8.Adafactor{}, "muon": quant8.Muon{}, "lamb": quant8.LAMB{},
	}
	for name, rule := range rules {
		for _, o := range []quant8.Options{{}, {Bits: 32}, {Bits: 4}, {Chunk: 2048}, {Block: 512}, {MaxUpdate: 0.01}} {
			if o.MaxUpdate != 0 && name != "adamw" && name != "lion" {
				continue // an error of quant8
			}
			rng := rand.New(rand.NewPCG(1, 2))
			const rows, cols = 130, 70
			w, whole := inside(rng, rows, cols)
			params := []Param{{"w", w}}
			want, err := quant8.New(rule, o)
			require.NoError(t, err)
			require.NoError(t, want.AddMatrix("w", rows, cols))
			columns := mat.NewDense(5000, 3, random(rng, 15000))
			if name != "muon" { // which takes no vectors
				params = append(params, Param{"b", columns.ColView(1)})
				require.NoError(t, want.Add("b", 5000))
			}
			opt, err := New(rule, o, params...)
			require.NoError(t, err)
			around := mat.DenseCopyOf(whole)
			for range 3 {
				dw, _ := inside(rng, rows, cols)
				grads := []mat.Matrix{dw, mat.NewVecDense(5000, random(rng, 5000))}[:len(params)]
				want.Advance(1e-3)
				results := make([]*mat.Dense, len(params))
				for i, p := range params {
					before := mat.DenseCopyOf(p.Value)
					x, g := rounded(p.Value), rounded(grads[i])
					from := append([]float32(nil), x...)
					require.NoError(t, want.Step(p.Name, snug.ViewOf(x), snug.ViewOf(g), 1))
					before.Apply(func(r, c int, v float64) float64 {
						at := r*before.RawMatrix().Cols + c
						return v + (float64(x[at]) - float64(from[at]))
					}, before)
					results[i] = before
				}
				require.NoError(t, opt.Step(1e-3, grads...))
				for i, p := range params {
					require.True(t, mat.Equal(results[i], p.Value), "%s %s %+v", name, p.Name, o)
				}
			}
			around.Slice(1, rows+1, 2, cols+2).(*mat.Dense).Copy(w)
			require.True(t, mat.Equal(around, whole), "elements around a part have changed")
			require.Equal(t, want.StateBytes(), opt.StateBytes())
			require.Equal(t, 3, opt.Steps())
		}
	}
}

func rounded(m mat.Matrix) []float32 {
	r, c := m.Dims()
	x := make([]float32, 0, r*c)
	for i := range r {
		for j := range c {
			x = append(x, float32(m.At(i, j)))
		}
	}
	return x
}

// TestKeepsPrecision: a step at rate 0 changes no element, and small updates of a large element add up.
func TestKeepsPrecision(t *testing.T) {
	w := mat.NewVecDense(2, []float64{math.Pi, 1.0 / 3})
	opt, err := New(quant8.SGD{}, quant8.Options{}, Param{"w", w})
	require.NoError(t, err)
	require.NoError(t, opt.Step(0, mat.NewVecDense(2, []float64{1, -1})))
	require.Equal(t, []float64{math.Pi, 1.0 / 3}, w.RawVector().Data)
	require.NoError(t, opt.Step(0.25, mat.NewVecDense(2, []float64{1, -1})))
	require.InDelta(t, math.Pi-0.475, w.AtVec(0), 1e-7)
	require.NotEqual(t, float64(float32(w.AtVec(0))), w.AtVec(0))
}

// TestResume: a run that is saved and read goes on with the same bits.
func TestResume(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	start, grads := random(rng, 8192), make([]*mat.VecDense, 6)
	for i := range grads {
		grads[i] = mat.NewVecDense(8192, random(rng, 8192))
	}
	begin := func(x []float64) (*Optimizer, *mat.VecDense) {
		w := mat.NewVecDense(len(x), append([]float64(nil), x...))
		opt, err := New(quant8.AdamW{}, quant8.Options{}, Param{"w", w})
		require.NoError(t, err)
		return opt, w
	}
	straight, want := begin(start)
	first, half := begin(start)
	for i, g := range grads {
		require.NoError(t, straight.Step(1e-2, g))
		if i < 3 {
			require.NoError(t, first.Step(1e-2, g))
		}
	}
	var saved bytes.Buffer
	_, err := first.WriteTo(&saved)
	require.NoError(t, err)
	state := append([]byte(nil), saved.Bytes()...)
	second, got := begin(half.RawVector().Data)
	_, err = second.ReadFrom(&saved)
	require.NoError(t, err)
	for _, g := range grads[3:] {
		require.NoError(t, second.Step(1e-2, g))
	}
	require.True(t, mat.Equal(want, got))

	state[len(state)/2] ^= 1
	third, _ := begin(start)
	_, err = third.ReadFrom(bytes.NewReader(state))
	require.ErrorIs(t, err, snug.ErrCorrupt)
}

// TestErrors: what cannot be stepped is an error, and writes nothing.
func TestErrors(t *testing.T) {
	w, b := mat.NewDense(2, 3, []float64{1, 2, 3, 4, 5, 6}), mat.NewVecDense(2, []float64{7, 8})
	var none *mat.Dense
	for name, params := range map[string][]Param{
		"no parameters": nil, "no name": {{"", w}}, "twice": {{"w", w}, {"w", b}}, "nil": {{"w", nil}}, "nil matrix": {{"w", none}},
		"transpose": {{"w", w.T()}}, "symmetric": {{"w", mat.NewSymDense(2, nil)}}, "diagonal": {{"w", mat.NewDiagDense(2, nil)}},
	} {
		_, err := New(quant8.AdamW{}, quant8.Options{}, params...)
		require.ErrorIs(t, err, snug.ErrConfig, name)
	}
	_, err := New(quant8.Muon{}, quant8.Options{}, Param{"b", b})
	require.ErrorIs(t, err, snug.ErrConfig)

	opt, err := New(quant8.AdamW{}, quant8.Options{}, Param{"w", w}, Param{"b", b})
	require.NoError(t, err)
	dw, db := mat.NewDense(2, 3, nil), mat.NewVecDense(2, []float64{1, 1})
	for _, bad := range []float64{math.NaN(), math.Inf(-1), 1e300, 1 << 63} {
		err = opt.Step(1, dw, mat.NewVecDense(2, []float64{1, bad}))
		require.ErrorIs(t, err, snug.ErrNonFinite)
		require.ErrorContains(t, err, "gradient of b: ")
		require.ErrorContains(t, err, " at (1, 0)")
	}
	for name, grads := range map[string][]mat.Matrix{
		"few": {dw}, "many": {dw, db, db}, "shape": {mat.NewDense(3, 2, nil), db}, "swapped": {db, dw},
	} {
		require.ErrorIs(t, opt.Step(1, grads...), snug.ErrShape, name)
	}
	require.ErrorIs(t, opt.Step(1, dw, nil), snug.ErrConfig)
	for _, rate := range []float64{-1, math.NaN(), math.Inf(1), 1e39} {
		require.ErrorIs(t, opt.Step(rate, dw, db), snug.ErrConfig)
	}
	require.Equal(t, 0, opt.Steps())
	require.Equal(t, []float64{1, 2, 3, 4, 5, 6}, w.RawMatrix().Data)
	require.NoError(t, opt.Step(1, dw, db))
	b.SetVec(0, 1e39)
	w.Set(0, 0, 9)
	err = opt.Step(1, dw, db)
	require.ErrorIs(t, err, snug.ErrNonFinite)
	require.ErrorContains(t, err, "parameter b: 1e+39 at (0, 0)")
	require.Equal(t, 9.0, w.At(0, 0))
}

// TestMoved: a step finds a matrix where it is, and refuses another shape.
func TestMoved(t *testing.T) {
	w, ones := mat.NewDense(2, 2, []float64{1, 2, 3, 4}), mat.NewDense(2, 2, []float64{1, 1, 1, 1})
	best, old := mat.DenseCopyOf(w), w.RawMatrix().Data
	opt, err := New(quant8.Lion{}, quant8.Options{}, Param{"w", w})
	require.NoError(t, err)
	require.NoError(t, opt.Step(1, ones))
	w.CloneFrom(best) // which allocates
	require.NoError(t, opt.Step(1, ones))
	require.Equal(t, []float64{0, 1, 2, 3}, w.RawMatrix().Data)
	require.Equal(t, []float64{0, 1, 2, 3}, old)

	w.Reset()
	err = opt.Step(1, ones)
	require.ErrorIs(t, err, snug.ErrShape)
	require.ErrorContains(t, err, "parameter w is 0×0, in New it was 2×2")
	w.ReuseAs(4, 1)
	require.ErrorIs(t, opt.Step(1, mat.NewDense(4, 1, nil)), snug.ErrShape)
	require.Equal(t, 2, opt.Steps())
}

// TestSkips: a policy that skips gradients that are not finite holds for whole parameters.
func TestSkips(t *testing.T) {
	const n = 1 << 17
	w := mat.NewVecDense(n, nil)
	opt, err := New(quant8.AdamW{}, quant8.Options{NonFinite: quant8.SkipStep}, Param{"w", w})
	require.NoError(t, err)
	g := make([]float64, n)
	g[0], g[n-1] = 1, math.NaN()
	require.NoError(t, opt.Step(1, mat.NewVecDense(n, g)))
	require.Equal(t, 0.0, mat.Norm(w, 1))
}

// TestMatrices: casts there and back, and products, against float64.
func TestMatrices(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	m, whole := inside(rng, 5, 4)
	before := mat.DenseCopyOf(whole)
	half := make([]snug.BFloat16, 20)
	require.NoError(t, FromMatrix(half, m))
	require.NoError(t, ToMatrix(m, half))
	for i := range 5 {
		for j := range 4 {
			x := before.At(i+1, j+2)
			require.InDelta(t, x, m.At(i, j), math.Abs(x)/256)
			before.Set(i+1, j+2, m.At(i, j))
		}
	}
	require.True(t, mat.Equal(before, whole))
	require.ErrorIs(t, FromMatrix(half[:19], m), snug.ErrShape)
	require.ErrorIs(t, ToMatrix(m, half[:19]), snug.ErrShape)
	require.ErrorIs(t, ToMatrix(m.T(), half), snug.ErrConfig)
	require.ErrorIs(t, FromMatrix(half, nil), snug.ErrConfig)
	require.NoError(t, FromMatrix([]float32{}, &mat.Dense{}))

	a, _ := inside(rng, 7, 33)
	b, _ := inside(rng, 33, 9)
	var want, scale mat.Dense
	want.Mul(a, b)
	abs := func(m mat.Matrix) mat.Matrix {
		d := mat.DenseCopyOf(m)
		d.Apply(func(_, _ int, v float64) float64 { return math.Abs(v) }, d)
		return d
	}
	scale.Mul(abs(a), abs(b))
	transposed := func(m mat.Matrix) mat.Matrix { return mat.DenseCopyOf(m.T()).T() }
	for dtype, eps := range map[snug.DType]float64{snug.F32: 0x1p-20, snug.BF16: 0x1p-7, snug.F16: 0x1p-10} {
		for _, x := range []mat.Matrix{a, transposed(a)} {
			for _, y := range []mat.Matrix{b, transposed(b), transposed(b.T()).T()} {
				var got mat.Dense
				require.NoError(t, Mul(&got, x, y, dtype))
				for i := range 7 {
					for j := range 9 {
						require.InDelta(t, want.At(i, j), got.At(i, j), eps*scale.At(i, j))
					}
				}
			}
		}
	}
	v := mat.NewVecDense(33, random(rng, 33))
	var wantV, gotV mat.Dense
	wantV.Mul(v.T(), b)
	require.NoError(t, Mul(&gotV, v.T(), b, snug.F32))
	require.True(t, mat.EqualApprox(&wantV, &gotV, 1e-4))
	square := mat.NewDense(3, 3, random(rng, 9))
	wantV.Reset()
	wantV.Mul(square, square)
	require.NoError(t, Mul(square, square, square, snug.F32))
	require.True(t, mat.EqualApprox(&wantV, square, 1e-5))

	require.ErrorIs(t, Mul(nil, a, b, snug.F32), snug.ErrConfig)
	require.ErrorIs(t, Mul(new(mat.Dense), a, a, snug.F32), snug.ErrShape)
	require.ErrorIs(t, Mul(mat.NewDense(7, 8, nil), a, b, snug.F32), snug.ErrShape)
	require.ErrorIs(t, Mul(new(mat.Dense), a, b, snug.U8), snug.ErrDType)
	require.ErrorIs(t, Mul(new(mat.Dense), mat.NewDiagDense(3, nil), b, snug.F32), snug.ErrConfig)
	require.NoError(t, Mul(new(mat.Dense), &mat.Dense{}, &mat.Dense{}, snug.F32))
}

// bowl is a quadratic function with its minimum at 1, 2, …
func bowl() optimize.Problem {
	return optimize.Problem{
		Func: func(x []float64) (sum float64) {
			for i, v := range x {
				sum += (v - float64(i+1)) * (v - float64(i+1))
			}
			return sum
		},
		Grad: func(grad, x []float64) {
			for i, v := range x {
				grad[i] = 2 * (v - float64(i+1))
			}
		},
	}
}

func TestMethod(t *testing.T) {
	method := &Method{Rule: quant8.Adam{}, Rate: func(step int) float64 { return 0.3 / (1 + float64(step)/50) }, GradStopThreshold: 1e-3}
	for range 2 { // a Method begins anew
		result, err := optimize.Minimize(bowl(), make([]float64, 3), nil, method)
		require.NoError(t, err)
		require.Equal(t, optimize.GradientThreshold, result.Status)
		require.InDeltaSlice(t, []float64{1, 2, 3}, result.X, 1e-3)
		require.Equal(t, int64(24), method.StateBytes())
		require.Equal(t, result.FuncEvaluations, result.MajorIterations)
	}
	result, err := optimize.Minimize(bowl(), []float64{1, 2, 3}, nil, &Method{})
	require.NoError(t, err)
	require.Equal(t, optimize.GradientThreshold, result.Status)
	require.Equal(t, []float64{1, 2, 3}, result.X)

	result, err = optimize.Minimize(bowl(), []float64{5}, &optimize.Settings{MajorIterations: 7, Converger: optimize.NeverTerminate{}}, &Method{})
	require.NoError(t, err)
	require.Equal(t, optimize.IterationLimit, result.Status)
	require.InDelta(t, 5-6*1e-3, result.X[0], 1e-3)

	values := &optimize.Location{F: 16, Gradient: []float64{8}}
	result, err = optimize.Minimize(bowl(), []float64{5}, &optimize.Settings{InitValues: values, FuncEvaluations: 3}, &Method{})
	require.NoError(t, err)
	require.Equal(t, optimize.FunctionEvaluationLimit, result.Status)
}

func TestMethodFails(t *testing.T) {
	require.Panics(t, func() { // as gonum's methods
		_, _ = optimize.Minimize(optimize.Problem{Func: bowl().Func}, []float64{0}, nil, &Method{})
	})
	calls := 0
	breaks := bowl()
	breaks.Grad = func(grad, x []float64) {
		if calls++; calls == 3 {
			grad[0] = math.NaN()
			return
		}
		bowl().Grad(grad, x)
	}
	for name, of := range map[string]struct {
		problem optimize.Problem
		method  *Method
		want    error
	}{
		"options":  {bowl(), &Method{Options: quant8.Options{Bits: 5}}, snug.ErrConfig},
		"matrices": {bowl(), &Method{Rule: quant8.Muon{}}, snug.ErrConfig},
		"rate":     {bowl(), &Method{Rate: func(int) float64 { return -1 }}, snug.ErrConfig},
		"gradient": {breaks, &Method{}, snug.ErrNonFinite},
		"function": {optimize.Problem{Func: func([]float64) float64 { return math.NaN() }, Grad: bowl().Grad}, &Method{}, snug.ErrNonFinite},
	} {
		result, err := optimize.Minimize(of.problem, []float64{5}, nil, of.method)
		require.ErrorIs(t, err, of.want, name)
		require.Equal(t, optimize.Failure, result.Status, name)
	}
	calls = 0
	late := bowl()
	late.Func = func(x []float64) float64 {
		if calls++; calls == 3 {
			return math.Inf(1)
		}
		return bowl().Func(x)
	}
	_, err := optimize.Minimize(late, []float64{5}, nil, &Method{})
	require.ErrorContains(t, err, "Func is +Inf at step 3")
}
