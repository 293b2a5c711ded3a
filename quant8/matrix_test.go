package quant8

import (
	"fmt"
	"math"
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
)

// matrixRules makes the optimizers of matrices with the constants of
// testdata/torch/make.py, by their names there.
var matrixRules = map[string]func(s Options) (*Optimizer, error){
	"adafactor": func(s Options) (*Optimizer, error) {
		return New(Adafactor{}, s)
	},
	"adafactor.decayed": func(s Options) (*Optimizer, error) {
		return New(Adafactor{WeightDecay: 0.1}, s)
	},
	"adafactor.other": func(s Options) (*Optimizer, error) {
		return New(Adafactor{Beta2Decay: -0.5, Eps1: 0.3, Eps2: 0.9, Clip: 1.5}, s)
	},
	"momentum": func(s Options) (*Optimizer, error) {
		return New(Adafactor{Beta1: 0.9, WeightDecay: 0.1}, s)
	},
	"muon": func(s Options) (*Optimizer, error) {
		return New(Muon{WeightDecay: 0.1}, s)
	},
	"muon.other": func(s Options) (*Optimizer, error) {
		return New(Muon{Momentum: 0.9, NoNesterov: true, Scale: MuonMatchAdamW}, s)
	},
	"apollo": func(s Options) (*Optimizer, error) {
		return New(Apollo{Rank: 3, Gap: 3, WeightDecay: 0.1}, s)
	},
	"mini": func(s Options) (*Optimizer, error) {
		return New(Apollo{Tensor: true, Gap: 3, WeightDecay: 0.1}, s)
	},
	"galore": func(s Options) (*Optimizer, error) {
		return New(GaLore{Rank: 4, Gap: 3, WeightDecay: 0.1}, s)
	},
	"soap": func(s Options) (*Optimizer, error) {
		return New(SOAP{Frequency: 2, MaxDim: 90, WeightDecay: 0.1}, s)
	},
}

// eachMatrixRule runs test for one optimizer of each kind.
func eachMatrixRule(t *testing.T, test func(t *testing.T, build func(s Options, sides map[string][2]int) *Optimizer)) {
	eachDeviceRule(t, test)
	eachOf(t, append([]string{"soap"}, lowRankRules...), test)
}

// lowRankRules are those of projections, for the CPU.
var lowRankRules = []string{"apollo", "mini", "galore"}

// eachDeviceRule runs test for those that other devices have.
func eachDeviceRule(t *testing.T, test func(t *testing.T, build func(s Options, sides map[string][2]int) *Optimizer)) {
	eachOf(t, []string{"adafactor", "momentum", "muon"}, test)
}

func eachOf(t *testing.T, names []string, test func(t *testing.T, build func(s Options, sides map[string][2]int) *Optimizer)) {
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			test(t, func(s Options, sides map[string][2]int) *Optimizer { return newMatrices(t, name, s, sides) })
		})
	}
}

// newMatrices returns an optimizer with matrices of so many rows and columns.
func newMatrices(t testing.TB, rule string, s Options, sides map[string][2]int) *Optimizer {
	t.Helper()
	a, err := matrixRules[rule](s)
	require.NoError(t, err)
	for name, side := range sides {
		require.NoError(t, a.AddMatrix(name, side[0], side[1]))
	}
	t.Cleanup(func() { require.NoError(t, a.Close()) })
	return a
}

// TestMatrixTypes: parameters of 16 bits are those of 32 bits, rounded.
//
//check:in tiers
func TestMatrixTypes(t *testing.T) {
	const rows, cols = 70, 31
	eachMatrixRule(t, func(t *testing.T, build func(Options, map[string][2]int) *Optimizer) {
		for _, dt := range floatTypes {
			a := build(Options{}, map[string][2]int{"w": {rows, cols}, "x": {rows, cols}})
			for _, backend := range kerneltest.Backends(t)[:2] { // in CPU memory
				p := kerneltest.PutFloats(t, backend, dt, kerneltest.Normal(1, rows*cols))
				want := p.Get()
				g := kerneltest.PutFloats(t, backend, dt, kerneltest.Normal(2, rows*cols))
				advance(a)
				require.NoError(t, a.Step("w", p.View, g.View, 0.5))
				step(t, a, "x", want, g.Get(), 0.5)
				require.True(t, equal(kerneltest.PutFloats(t, kerneltest.Backend{}, dt, want).Get(), p.Get()))
			}
			require.Equal(t, statesOf(t, a, "w"), statesOf(t, a, "x"))
		}
	})
}

// TestMuonMomentum compares the 8-bit state with decoding, the mean, and the nearest
// codes by brute force, with partial blocks.
func TestMuonMomentum(t *testing.T) {
	const rows, cols = 37, 41
	for _, nearest := range []bool{false, true} {
		for _, block := range []int{33, 256} {
			a := newMatrices(t, "muon", Options{NearestCodes: nearest, MinSize: 1, Block: block, Chunk: 4 * block}, map[string][2]int{"w": {rows, cols}})
			p := kerneltest.Normal(1, rows*cols)
			for i := range 3 {
				g, m := gradient(rows*cols, uint64(i)), statesOf(t, a, "w")[0]
				if m == nil {
					m = make([]float32, len(g))
				}
				for k := range m {
					m[k] = float32(float32(a.o.hyper.Beta1)*m[k]) + float32(float32(1-a.o.hyper.Beta1)*g[k])
				}
				advance(a)
				step(t, a, "w", p, g, 1)
				require.True(t, equal(quantized8(m, true, nearest, block), statesOf(t, a, "w")[0]), "step %d", i+1)
			}
		}
	}
}

// TestMatricesAgainst32 runs 8-bit and 32-bit states side by side for 50 steps. The
// parameters stay within 3 % of the way that they went, and each one within 15 % of the
// mean way. Gradients are noise, so that momentum has little to add up.
func TestMatricesAgainst32(t *testing.T) {
	const rows, cols = 64, 80
	for _, rule := range []string{"momentum", "muon", "muon.other"} {
		sides := map[string][2]int{"w": {rows, cols}}
		a, b := newMatrices(t, rule, Options{}, sides), newMatrices(t, rule, Options{Bits: 32}, sides)
		require.Equal(t, 8, a.params["w"].bits)
		p := kerneltest.Normal(1, rows*cols)
		start, q := append([]float32(nil), p...), append([]float32(nil), p...)
		for i := range 50 {
			g := kerneltest.Normal(uint64(i+2), rows*cols)
			for _, o := range []*Optimizer{a, b} {
				o.Advance(1e-2)
			}
			step(t, a, "w", p, g, 0.01)
			step(t, b, "w", q, g, 0.01)
		}
		var moved, apart, most float64
		for k := range p {
			moved += math.Abs(float64(q[k]-start[k])) / float64(len(p))
			d := math.Abs(float64(p[k] - q[k]))
			apart, most = apart+d/float64(len(p)), math.Max(most, d)
		}
		t.Logf("%s: moved %.3g, apart %.3g, at most %.3g", rule, moved, apart, most)
		require.Less(t, apart, 0.03*moved, rule)
		require.Less(t, most, 0.15*moved, rule)
	}
}

func TestMatrixZeroGradient(t *testing.T) {
	eachMatrixRule(t, func(t *testing.T, build func(Options, map[string][2]int) *Optimizer) {
		for _, side := range [][2]int{{3, 5}, {5, 3}, {1, 7}, {7, 1}} {
			a := build(Options{MinSize: 1}, map[string][2]int{"w": side})
			if a.o.Title == "SOAP" {
				return // has bases and no step then, see TestSOAPOfZeros
			}
			n := side[0] * side[1]
			p, zero := kerneltest.Normal(1, n), make([]float32, n)
			want := append([]float32(nil), p...)
			decay := float32(1 - float64(float64(testRate(a))*a.o.hyper.WeightDecay))
			for i := range want {
				want[i] *= decay
			}
			advance(a)
			step(t, a, "w", p, zero, 1)
			require.Equal(t, want, p)
			for _, state := range statesOf(t, a, "w") {
				require.True(t, len(state) == 0 || equal(make([]float32, len(state)), state))
			}
			advance(a)
			step(t, a, "w", p, kerneltest.Normal(2, n), 1)
			for _, x := range p {
				require.True(t, finite(x))
			}
		}
	})
}

// TestMatrixExtremes: gradients at the limit leave parameters and state finite, alone
// in their matrix or not.
func TestMatrixExtremes(t *testing.T) {
	const rows, cols = 40, 30
	eachMatrixRule(t, func(t *testing.T, build func(Options, map[string][2]int) *Optimizer) {
		largest := math.Nextafter32(0x1p63, 0)
		for _, fill := range []float32{0, 1e-30, 1, largest} {
			a := build(Options{}, map[string][2]int{"w": {rows, cols}})
			if a.o.Title == "SOAP" && fill == largest {
				return // the norm is too large, see TestSOAPNonFinite
			}
			p, g := kerneltest.Normal(1, rows*cols), make([]float32, rows*cols)
			for i := range g {
				g[i] = fill
			}
			g[77] = -largest
			for range 3 {
				advance(a)
				step(t, a, "w", p, g, 1)
				for _, x := range p {
					require.True(t, finite(x) && math.Abs(float64(x)) < 10, x)
				}
				g[78] = math.SmallestNonzeroFloat32
			}
			require.NoError(t, a.eachBlob(false, func(blob []byte) error {
				for _, x := range floats(blob, len(blob)/4) {
					require.True(t, finite(x))
				}
				return nil
			}))
		}
	})
}

func TestMatrixEmpty(t *testing.T) {
	eachMatrixRule(t, func(t *testing.T, build func(Options, map[string][2]int) *Optimizer) {
		for _, s := range []Options{{}, {Storage: newFakeStorage()}} {
			a := build(s, map[string][2]int{"a": {0, 5}, "b": {5, 0}, "c": {0, 0}})
			advance(a)
			for _, name := range a.names() {
				step(t, a, name, nil, nil, 1)
			}
			require.Zero(t, a.WorkspaceBytes())
			again := build(Options{}, map[string][2]int{"a": {0, 5}, "b": {5, 0}, "c": {0, 0}})
			require.NoError(t, again.UnmarshalBinary(bytesOf(a.AppendBinary(nil))))
			require.Equal(t, 1, again.Steps())
		}
	})
}

//check:in ordered race
//check:not checked
func TestMatrixWorkersDoNotMatter(t *testing.T) {
	sides := map[string][2]int{"w": {40, 1000}, "x": {3, 20_000}}
	eachMatrixRule(t, func(t *testing.T, build func(Options, map[string][2]int) *Optimizer) {
		for _, bits := range []int{8, 32} {
			run := func(workers int) (p [][]float32, state []byte) {
				defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(workers))
				a := build(Options{Bits: bits, Block: 100}, sides)
				for _, name := range a.names() {
					p = append(p, kerneltest.Normal(1, sides[name][0]*sides[name][1]))
				}
				for i := range 2 {
					advance(a)
					for k, name := range a.names() {
						step(t, a, name, p[k], kerneltest.Normal(uint64(i), len(p[k])), 1)
					}
				}
				return p, stateOf(t, a)
			}
			p1, s1 := run(1)
			p2, s2 := run(2)
			require.Equal(t, p1, p2)
			require.Equal(t, s1, s2)
		}
	})
}

// TestMatricesTogether steps several matrices and a vector at once.
func TestMatricesTogether(t *testing.T) {
	sides := map[string][2]int{"u": {40, 50}, "v": {30, 90}, "w": {100, 20}}
	eachMatrixRule(t, func(t *testing.T, build func(Options, map[string][2]int) *Optimizer) {
		a, b := newMatrixRun(t, build(Options{MinSize: 1}, sides)), newMatrixRun(t, build(Options{MinSize: 1}, sides))
		for range 3 {
			advance(a.a)
			advance(b.a)
			a.step("u", "v", "w")
			var wg sync.WaitGroup
			for name := range sides {
				g := kerneltest.Normal(uint64(b.a.Steps()), len(b.p[name]))
				wg.Go(func() {
					if err := b.a.Step(name, snug.ViewOf(b.p[name]), snug.ViewOf(g), 0.1); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			a.requireSame(b)
		}
		require.Equal(t, stateOf(t, a.a), stateOf(t, b.a))
	})
}

// TestMatrixWorkspaceGrows: a state without steps makes room for more parameters.
func TestMatrixWorkspaceGrows(t *testing.T) {
	eachMatrixRule(t, func(t *testing.T, build func(Options, map[string][2]int) *Optimizer) {
		r := newMatrixRun(t, build(Options{}, map[string][2]int{"w": {5, 7}}))
		fresh := bytesOf(r.a.AppendBinary(nil))
		advance(r.a)
		r.step("w")
		require.NoError(t, r.a.UnmarshalBinary(fresh))
		require.NoError(t, r.a.AddMatrix("larger", 70, 90))
		advance(r.a)
		r.p["larger"] = kerneltest.Normal(1, 70*90)
		r.step("larger", "w")
	})
}

func TestMatrixNoAllocations(t *testing.T) {
	const rows, cols = 60, 150
	p, g := snug.ViewOf(kerneltest.Normal(1, rows*cols)), snug.ViewOf(kerneltest.Normal(2, rows*cols))
	bf16 := snug.SliceView(make([]snug.BFloat16, rows*cols))
	eachMatrixRule(t, func(t *testing.T, build func(Options, map[string][2]int) *Optimizer) {
		for _, s := range []Options{{}, {Bits: 32}, {Storage: newOneChunk()}} {
			a := build(s, map[string][2]int{"w": {rows, cols}})
			kerneltest.NoAllocs(t, func() {
				advance(a)
				require.NoError(t, a.Step("w", p, g, 1))
				advance(a)
				require.NoError(t, a.Step("w", bf16, g, 1))
			})
		}
	})
}

// oneChunk is a Storage of one parameter of one chunk, and its factors.
type oneChunk struct{ blobs map[string][]byte }

func newOneChunk() oneChunk { return oneChunk{map[string][]byte{}} }

func (o oneChunk) Acquire(key string, size int) ([]byte, error) {
	if o.blobs[key] == nil {
		o.blobs[key] = alignedBytes(size)
	}
	return o.blobs[key], nil
}

func (o oneChunk) Release(string, bool) error { return nil }

// TestMatrixBytes measures what is allocated for state and workspace.
func TestMatrixBytes(t *testing.T) {
	const rows, cols = 300, 500
	n, blocks := rows*cols, Blocks(rows*cols, 256)
	for _, c := range []struct {
		rule             string
		bits             int
		state, workspace int
	}{
		{"adafactor", 8, 4 * (rows + cols), 8*(rows+cols) + 8*(rows+10*cols)},
		{"adafactor", 32, 4 * (rows + cols), 8*(rows+cols) + 8*(rows+10*cols)},
		{"momentum", 8, 4*(rows+cols) + n + 4*blocks, 8*(rows+cols) + 8*(rows+10*cols)},
		{"momentum", 32, 4*(rows+cols) + 4*n, 8*(rows+cols) + 8*(rows+10*cols)},
		{"muon", 8, n + 4*blocks, 4 * (n + rows*rows + rows*rows)},
		{"muon", 32, 4 * n, 4 * (n + rows*rows + rows*rows)},
		{"apollo", 32, 4 + 2*4*3*cols, 4*(1+2*3*cols+3*rows+rows*436) + 8*(rows+10*cols)},
		{"mini", 8, 4 + 2*4*cols, 4*(1+2*cols+rows+rows*436) + 8*(rows+10*cols)},
		{"galore", 32, 4*(1+4*rows) + 2*4*4*cols, 4*(1+4*rows+2*4*cols+rows*cols) + 8*20*20},
	} {
		a := newMatrices(t, c.rule, Options{Bits: c.bits}, map[string][2]int{"w": {rows, cols}, "small": {20, 30}})
		advance(a)
		for _, q := range a.params {
			step(t, a, q.name, make([]float32, q.n), make([]float32, q.n), 1)
		}
		what := fmt.Sprint(c.rule, c.bits)
		require.Equal(t, c.state, a.params["w"].state.Len(), what)
		require.EqualValues(t, c.state+a.params["small"].state.Len(), a.StateBytes(), what)
		require.EqualValues(t, c.workspace, a.WorkspaceBytes(), what)
		require.EqualValues(t, c.workspace, 4*a.work.floats.Len()+a.work.sums.Len(), what)
		require.NoError(t, a.Close())
		require.Zero(t, a.work.floats.Len()+a.work.sums.Len()+len(a.work.near)+len(a.work.nearSums))
		require.EqualValues(t, c.workspace, a.WorkspaceBytes(), what)
	}
	require.Zero(t, newOf(t, "Lion", Options{}, map[string]int{"w": 5000}).WorkspaceBytes())
}

func TestMatrixNonFinite(t *testing.T) {
	const rows, cols = 50, 100
	eachMatrixRule(t, func(t *testing.T, build func(Options, map[string][2]int) *Optimizer) {
		for _, s := range []Options{{}, {Bits: 32}, {Storage: newFakeStorage()}} {
			a, p, g := build(s, map[string][2]int{"w": {rows, cols}}), kerneltest.Normal(1, rows*cols), kerneltest.Normal(2, rows*cols)
			advance(a)
			step(t, a, "w", p, g, 1)
			before, params := stateOf(t, a), append([]float32(nil), p...)
			advance(a)
			for _, bad := range []float32{float32(math.NaN()), float32(math.Inf(-1)), 1e19} {
				g[4097], g[4999] = bad, bad
				err := a.Step("w", snug.ViewOf(p), snug.ViewOf(g), 1)
				require.ErrorIs(t, err, snug.ErrNonFinite)
				require.ErrorContains(t, err, "quant8: "+a.o.Title+`: parameter "w": gradient 4097`)
				require.Equal(t, before, stateOf(t, a))
				require.Equal(t, params, p)
			}
			if !a.o.hyper.Rule.Factored() {
				continue
			}
			p[4000] = float32(math.Inf(1))
			err := a.Step("w", snug.ViewOf(p), snug.ViewOf(kerneltest.Normal(2, rows*cols)), 1)
			require.ErrorIs(t, err, snug.ErrNonFinite)
			require.ErrorContains(t, err, `parameter "w": a norm`)
			require.Equal(t, before, stateOf(t, a))
		}
	})
}

func TestMatrixErrors(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	eachMatrixRule(t, func(t *testing.T, build func(Options, map[string][2]int) *Optimizer) {
		a := build(Options{Chunk: 256}, map[string][2]int{"w": {60, 100}})
		for _, side := range [][2]int{{-1, 5}, {5, -1}, {math.MaxInt, 2}, {2, math.MaxInt}, {math.MaxInt, 0}, {1 << 15, math.MaxInt >> 18}} {
			err := a.AddMatrix("x", side[0], side[1])
			require.ErrorIs(t, err, snug.ErrShape, side)
			require.ErrorContains(t, err, fmt.Sprintf(`"x" of %d×%d`, side[0], side[1]))
		}
		require.ErrorIs(t, a.AddMatrix("", 5, 5), snug.ErrConfig)
		require.ErrorIs(t, a.AddMatrix("w", 5, 5), snug.ErrConfig)
		require.ErrorIs(t, a.AddShard("x", 512, 0, 256), snug.ErrConfig)
		advance(a)
		require.ErrorIs(t, a.AddMatrix("x", 5, 5), snug.ErrConfig)
		p, g := kerneltest.Normal(1, 6000), kerneltest.Normal(2, 6000)
		require.ErrorIs(t, a.StepRange("w", 0, snug.ViewOf(p[:256]), snug.ViewOf(g[:256]), 1), snug.ErrShape)
		require.ErrorIs(t, a.Step("w", snug.ViewOf(p[:256]), snug.ViewOf(g[:256]), 1), snug.ErrShape)
		require.ErrorIs(t, a.Step("w", snug.SliceView(make([]uint8, 6000)), snug.ViewOf(g), 1), snug.ErrDType)
		require.ErrorIs(t, a.Step("w", snug.ViewOf(p), snug.ViewOf(g), nan), snug.ErrConfig)
		require.NoError(t, a.StepRange("w", 0, snug.ViewOf(p), snug.ViewOf(g), 1), "all of it")
	})
	muon := newMatrices(t, "muon", Options{}, nil)
	require.ErrorIs(t, muon.Add("x", 5), snug.ErrConfig)
	require.ErrorContains(t, muon.Add("x", 5), "want a matrix")
	require.ErrorIs(t, new(Optimizer).AddMatrix("w", 1, 1), snug.ErrConfig)
	for says, err := range map[string]error{
		"AdafactorMomentum: Beta1":          errorOf(New(Adafactor{Beta1: 1}, Options{})),
		"AdafactorMomentum: Beta1 is NaN":   errorOf(New(Adafactor{Beta1: nan}, Options{})),
		"Adafactor: Beta2Decay is 0.5":      errorOf(New(Adafactor{Beta2Decay: 0.5}, Options{})),
		"Adafactor: Beta2Decay is -1.5":     errorOf(New(Adafactor{Beta2Decay: -1.5}, Options{})),
		"Adafactor: Beta2Decay is NaN":      errorOf(New(Adafactor{Beta2Decay: nan}, Options{})),
		"Adafactor: Eps1":                   errorOf(New(Adafactor{Eps1: inf}, Options{})),
		"Adafactor: Eps2":                   errorOf(New(Adafactor{Eps2: -1}, Options{})),
		"Adafactor: Clip is 0.5":            errorOf(New(Adafactor{Clip: 0.5}, Options{})),
		"Adafactor: Clip is +Inf":           errorOf(New(Adafactor{Clip: inf}, Options{})),
		"Adafactor: WeightDecay":            errorOf(New(Adafactor{WeightDecay: -1}, Options{})),
		"a multiple of 132":                 errorOf(New(Adafactor{Beta1: 0.9}, Options{Block: 33, Chunk: 66})),
		"Adafactor: state of 5":             errorOf(New(Adafactor{}, Options{Bits: 5})),
		"MaxUpdate is 1, want 0 for Muon":   errorOf(New(Muon{}, Options{MaxUpdate: 1})),
		"Muon: Momentum":                    errorOf(New(Muon{Momentum: 1}, Options{})),
		"Muon: scale 2":                     errorOf(New(Muon{Scale: 2}, Options{})),
		"Muon: WeightDecay":                 errorOf(New(Muon{WeightDecay: inf}, Options{})),
		"MaxUpdate is 1, want 0 for GaLore": errorOf(New(GaLore{}, Options{MaxUpdate: 1})),
		"Apollo: Rank is -1":                errorOf(New(Apollo{Rank: -1}, Options{})),
		"Apollo: Gap is -1":                 errorOf(New(Apollo{Gap: -1}, Options{})),
		"Apollo: Scale is -1":               errorOf(New(Apollo{Scale: -1}, Options{})),
		"Apollo: Beta1":                     errorOf(New(Apollo{Beta1: 1}, Options{})),
		"MaxUpdate is 1, want 0 for SOAP":   errorOf(New(SOAP{}, Options{MaxUpdate: 1})),
		"SOAP: Frequency is -1":             errorOf(New(SOAP{Frequency: -1}, Options{})),
		"SOAP: MaxDim is -1":                errorOf(New(SOAP{MaxDim: -1}, Options{})),
		"SOAP: MaxDim is 32769":             errorOf(New(SOAP{MaxDim: 32769}, Options{})),
		"SOAP: PreconditionerBeta is 1":     errorOf(New(SOAP{PreconditionerBeta: 1}, Options{})),
		"SOAP: Beta1":                       errorOf(New(SOAP{Beta1: 1}, Options{})),
		"SOAP: Beta2":                       errorOf(New(SOAP{Beta2: nan}, Options{})),
		"SOAP: Eps":                         errorOf(New(SOAP{Eps: inf}, Options{})),
		"SOAP: WeightDecay":                 errorOf(New(SOAP{WeightDecay: -1}, Options{})),
		"GaLore: Rank is -2":                errorOf(New(GaLore{Rank: -2}, Options{})),
		"GaLore: Gap is -1":                 errorOf(New(GaLore{Gap: -1}, Options{})),
		"GaLore: Scale is +Inf":             errorOf(New(GaLore{Scale: inf}, Options{})),
		"GaLore: Eps":                       errorOf(New(GaLore{Eps: nan}, Options{})),
		"GaLore: WeightDecay":               errorOf(New(GaLore{WeightDecay: nan}, Options{})),
	} {
		t.Run(says, func(t *testing.T) {
			require.ErrorIs(t, err, snug.ErrConfig, says)
			require.ErrorContains(t, err, says)
		})
	}
}

// TestMatricesOfOthers: an elementwise optimizer takes a matrix as its elements.
func TestMatricesOfOthers(t *testing.T) {
	eachRule(t, func(t *testing.T, build func(Options, map[string]int) *Optimizer) {
		if a := build(Options{}, nil); a.o.hyper.Rule.Factored() {
			return
		}
		a, b := build(Options{}, map[string]int{"w": 5000}), build(Options{}, nil)
		require.NoError(t, b.AddMatrix("w", 50, 100))
		p, q := kerneltest.Normal(1, 5000), kerneltest.Normal(1, 5000)
		advance(a)
		advance(b)
		step(t, a, "w", p, kerneltest.Normal(2, 5000), 1)
		step(t, b, "w", q, kerneltest.Normal(2, 5000), 1)
		require.True(t, equal(p, q))
		require.Equal(t, bytesOf(a.AppendBinary(nil)), bytesOf(b.AppendBinary(nil)))
	})
}
