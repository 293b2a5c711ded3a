package quant8

import (
	"cmp"
	"encoding/json"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug/internal/kerneltest"
)

// torchRuns is what testdata/torch/make.py wrote.
type torchRuns struct {
	Shapes    map[string][]int
	Start     map[string][]float32
	Gradients map[string][][]float32
	After     map[string]map[string][][]float32 // steps 1, 2, 10 and 20
}

// rates are those of the runs by their rules; others have that of advance.
var rates = map[string]float32{"adafactor.decayed": 0.5, "adafactor.other": 0.1}

// run makes the steps of a parameter and compares with those of after.
func (r *torchRuns) run(t *testing.T, a *Optimizer, rule, name string, after [][]float32, same func(step int, want, got float32) bool) {
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
		a.Advance(cmp.Or(rates[rule], testRate(a)))
		step(t, a, name, p, scaled, 0.5)
		for k, at := range []int{1, 2, 10, 20} {
			if i+1 == at {
				for e, want := range after[k] {
					require.True(t, same(at, want, p[e]), "%s: step %d, element %d is %v, want %v", name, at, e, p[e], want)
				}
			}
		}
	}
}

func readTorchRuns(t *testing.T) (r torchRuns) {
	data, err := os.ReadFile("testdata/torch/matrices.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, &r))
	return r
}

// TestMatricesGolden makes 20 steps with 32-bit state, in memory and in chunks of a
// Storage. Adafactor's are those of torch, Muon's those of its equations in float64.
//
//check:in tiers arm64 arm64-go
func TestMatricesGolden(t *testing.T) {
	r, runs := readTorchRuns(t), 0
	for rule, after := range r.After {
		if strings.HasPrefix(rule, "muon.torch") {
			continue
		}
		for name, want := range after {
			for _, s := range []Options{{Bits: 32}, {Bits: 32, Block: 32, Chunk: 32, Storage: newFakeStorage()}} {
				r.run(t, newMatrices(t, rule, s, nil), rule, name, want, func(_ int, want, got float32) bool {
					return outliers([]float32{want}, []float32{got}, 1e-6, 1e-5) == 0
				})
				runs++
			}
		}
	}
	require.Equal(t, 2*(4*6+2*5), runs)
}

// TestMuonAgainstTorch: torch orthogonalizes in bfloat16, which rounds by up to 2^-9, in
// 16 operations. Elements of the result are at most about 1.
//
//check:in tiers arm64 arm64-go
func TestMuonAgainstTorch(t *testing.T) {
	r := readTorchRuns(t)
	for rule, torchs := range map[string]string{"muon": "muon.torch", "muon.other": "muon.torch.other"} {
		for name, want := range r.After[torchs] {
			a := newMatrices(t, rule, Options{Bits: 32}, nil)
			size := 1e-2 * a.o.method.(orthogonalizing).by.factor(r.Shapes[name][0], r.Shapes[name][1])
			r.run(t, a, rule, name, want, func(step int, want, got float32) bool {
				return math.Abs(float64(want-got)) <= float64(step)*size*16*0x1p-9
			})
		}
	}
}

// adafactorStep makes a step of a matrix in float64 by the equations of Adafactor.
func adafactorStep(t, cols int, lr float32, p, g, r, c, m []float64, o Adafactor) {
	rows, n := len(p)/cols, float64(len(p))
	rest := math.Pow(float64(t), -0.8)
	for i := range r {
		r[i] *= 1 - rest
	}
	for j := range c {
		c[j] *= 1 - rest
	}
	squares := 0.0
	for k, x := range g {
		r[k/cols] += rest * x * x / float64(cols)
		c[k%cols] += rest * x * x / float64(rows)
		squares += p[k] * p[k]
	}
	mean := 0.0
	for _, x := range r {
		mean += x / float64(rows)
	}
	u, update := make([]float64, len(p)), 0.0
	for k, x := range g {
		u[k] = x / math.Max(math.Sqrt(r[k/cols]*c[k%cols]/math.Max(mean, 0x1p-23)), 0x1p-23)
		update += u[k] * u[k]
	}
	alpha := math.Max(1e-3, math.Sqrt(squares/n)) * math.Min(float64(lr), 1/math.Sqrt(float64(t)))
	alpha /= math.Max(1, math.Sqrt(update/n))
	for k := range p {
		step := alpha * u[k]
		if o.Beta1 > 0 {
			m[k] = 0.9*m[k] + 0.1*step
			step = m[k]
		}
		p[k] = p[k]*(1-float64(lr)*float64(o.WeightDecay)) - step
	}
}

func toDoubles(x []float32) []float64 {
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = float64(v)
	}
	return y
}

// TestAdafactorIsDefinition has matrices of one and of many bands of rows and strips of
// columns, and operands of all types and backends.
//
//check:in tiers arm64
func TestAdafactorIsDefinition(t *testing.T) {
	require.Equal(t, parts{height: 17, bands: 16, width: 1030, strips: 1}, partsOf(shape{rows: 272, cols: 1030}))
	require.Equal(t, parts{height: 1, bands: 3, width: 16384, strips: 3}, partsOf(shape{rows: 3, cols: 32769}))
	for _, side := range [][2]int{{1, 1}, {1, 500}, {500, 1}, {33, 65}, {272, 1030}, {3, 32769}, {4097, 3}} {
		for _, o := range []Adafactor{{WeightDecay: 0.1}, {Beta1: 0.9, WeightDecay: 0.1}} {
			a, err := New(o, Options{Bits: 32})
			require.NoError(t, err)
			require.NoError(t, a.AddMatrix("w", side[0], side[1]))
			n := side[0] * side[1]
			start := kerneltest.Normal(1, n)
			p, want := kerneltest.Put(t, kerneltest.Backends(t)[1], start), toDoubles(start)
			r, c, m := make([]float64, side[0]), make([]float64, side[1]), make([]float64, n)
			for i := 1; i <= 2; i++ {
				g := kerneltest.PutFloats(t, kerneltest.Backend{}, floatTypes[i%2], kerneltest.Normal(uint64(i), n))
				exact := toDoubles(g.Get())
				for k := range exact {
					exact[k] /= 2
				}
				advance(a)
				require.NoError(t, a.Step("w", p.View, g.View, 0.5))
				adafactorStep(i, side[1], testRate(a), want, exact, r, c, m, o)
				for k, x := range p.Get() {
					if !(math.Abs(want[k]-float64(x)) <= 1e-6+1e-5*math.Abs(want[k])) {
						t.Fatalf("%v: step %d, element %d is %v, want %v", side, i, k, x, want[k])
					}
				}
			}
		}
	}
}
