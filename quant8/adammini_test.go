package quant8

import (
	"encoding/json"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
)

// TestAdamMiniGolden makes the runs of the authors' package, in memory and in chunks of a Storage. Parameters are
// within 2e-6 of theirs, and second moments within 2e-5 of themselves: 1-β2 of a β2 of float32 is 1.3e-5 less.
//
//check:in tiers arm64 arm64-go
func TestAdamMiniGolden(t *testing.T) {
	type values map[string][]float32
	var runs map[string]struct {
		Start, Moments values
		Gradients      []values
		After          []values // steps 1, 2 and the last
	}
	data, err := os.ReadFile("testdata/authors/adammini.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, &runs))
	rules := map[string]AdamMini{"plain": {}, "decay": {WeightDecay: 0.1, Beta1: 0.8, Beta2: 0.95, Eps: 1e-3}}
	require.Len(t, runs, len(rules))
	const dim, headDim = 8, 2
	options := func(name string) ParamOptions {
		o := ParamOptions{NoDecay: strings.HasSuffix(name, ".bias") || strings.HasPrefix(name, "norm")}
		switch {
		case strings.HasSuffix(name, ".bias"):
			o.Shared = 1
		case strings.Contains(name, "q_proj"), strings.Contains(name, "k_proj"):
			o.Shared = headDim * dim
		}
		return o
	}
	for name, run := range runs {
		for _, o := range []Options{{}, {Block: 32, Chunk: 32, Storage: newFakeStorage()}} {
			o.Params = options
			a, err := New(rules[name], o)
			require.NoError(t, err)
			p := values{}
			for key, x := range run.Start {
				p[key] = slices.Clone(x)
				switch {
				case key == "layers.0.mlp.down_proj.weight":
					require.NoError(t, a.AddMatrix(key, dim, 12))
				case strings.HasSuffix(key, ".bias"), strings.HasPrefix(key, "norm"):
					require.NoError(t, a.Add(key, len(x)))
				default:
					require.NoError(t, a.AddMatrix(key, len(x)/dim, dim))
				}
			}
			for i, g := range run.Gradients {
				a.Advance(1e-2)
				for key := range p {
					step(t, a, key, p[key], g[key], 1)
				}
				at := slices.Index([]int{0, 1, len(run.Gradients) - 1}, i)
				for key := range p {
					for k := range p[key] {
						if at >= 0 {
							require.InDelta(t, run.After[at][key][k], p[key][k], 2e-6, "%s: step %d, %s, element %d", name, i+1, key, k)
						}
					}
				}
			}
			for key, want := range run.Moments {
				q := a.params[key]
				require.Equal(t, len(want), q.engine.(*shared).moments, key)
				require.NoError(t, a.withBlob(q, factors, false, func(blob []byte) error {
					for i, v := range floats(blob, q.engine.(*shared).moments) {
						require.InEpsilon(t, want[i], v, 2e-5, "%s: %s, moment %d", name, key, i)
					}
					return nil
				}))
			}
			require.NoError(t, a.Close())
		}
	}
}

// miniRun is a run of a matrix, which is stepped in ranges of whole chunks if they are given, and of a vector.
type miniRun struct {
	o      Options
	shared int
	ranges int // elements of a range, 0 for all
	stop   int // the step before which the state is saved and restored
}

const miniSize = 9 * 1024

func (r miniRun) make(t *testing.T) *Optimizer {
	r.o.MinSize, r.o.Chunk, r.o.NonFinite = 1, 1024, SkipElement
	r.o.Params = func(name string) ParamOptions {
		if name == "w" {
			return ParamOptions{Shared: r.shared}
		}
		return ParamOptions{NoDecay: true}
	}
	return newWith(t, AdamMini{WeightDecay: 0.1}, r.o, map[string]int{"w": miniSize, "v": 100})
}

func (r miniRun) run(t *testing.T) (*Optimizer, []float32) {
	a, p, v := r.make(t), kerneltest.Normal(1, miniSize), kerneltest.Normal(3, 100)
	for i := range 4 {
		if i == r.stop {
			saved, err := a.AppendBinary(nil)
			require.NoError(t, err)
			a = r.make(t)
			require.NoError(t, a.UnmarshalBinary(saved))
		}
		a.Advance(1e-2)
		g := kerneltest.Normal(10+uint64(i), miniSize)
		g[77] = float32(math.Inf(1))
		for lo := 0; r.ranges > 0 && lo < miniSize; lo += r.ranges {
			at := miniSize - lo - r.ranges // from the end
			require.NoError(t, a.StepRange("w", at, snug.ViewOf(p[at:at+r.ranges]), snug.ViewOf(g[at:at+r.ranges]), 0.5))
		}
		if r.ranges == 0 {
			step(t, a, "w", p, g, 0.5)
		}
		step(t, a, "v", v, kerneltest.Normal(20+uint64(i), 100), 0.5)
	}
	return a, append(p, v...)
}

// TestAdamMini: the order of ranges, the number of workers, a Storage and an interruption change no bit, with states of
// every width and blocks of few elements, of some and of many; the bytes are those that the comment states; and with 32
// bits parameters are those of the equation in float64, within 1e-6.
func TestAdamMini(t *testing.T) {
	for _, bits := range widths {
		for _, shared := range []int{1, 96, 1024, 3 * 1024, 0} {
			of := func(r miniRun) miniRun {
				r.o.Bits, r.shared = bits, shared
				return r
			}
			a, want := of(miniRun{stop: -1}).run(t)
			blocks := 1
			if shared > 0 {
				blocks = miniSize / shared
			}
			states := StateBytes(SGD{}, Options{Bits: bits, MinSize: 1}, miniSize) + StateBytes(SGD{}, Options{Bits: bits, MinSize: 1}, 100)
			require.EqualValues(t, states+4*int64(blocks)+4, a.StateBytes())
			if bits == 32 {
				exact := miniExact(shared)
				for i, x := range exact {
					require.InDelta(t, x, want[i], 1e-6, "blocks of %d: element %d", shared, i)
				}
			}
			ranges := map[int]int{1: 1024, 96: 3 * 1024, 1024: 1024, 3 * 1024: 3 * 1024}[shared]
			for _, r := range []miniRun{{ranges: ranges, stop: -1}, {o: Options{Storage: newFakeStorage()}, ranges: ranges, stop: 3}, {stop: 2}, {stop: 0}} {
				b, got := of(r).run(t)
				require.True(t, equal(want, got), "%d bits, blocks of %d: %+v", bits, shared, r)
				require.Equal(t, stateOf(t, a), stateOf(t, b))
			}
			procs := runtime.GOMAXPROCS(1)
			_, got := of(miniRun{stop: -1}).run(t)
			runtime.GOMAXPROCS(procs)
			require.True(t, equal(want, got))
		}
	}
}

// miniExact is the run in float64.
func miniExact(shared int) []float64 {
	var all []float64
	for _, x := range []struct {
		n, shared   int
		first, seed uint64
		decay       float64
	}{{miniSize, shared, 1, 10, 0.1}, {100, 0, 3, 20, 0}} {
		if x.shared == 0 {
			x.shared = x.n
		}
		p, m, v := make([]float64, x.n), make([]float64, x.n), make([]float64, x.n/x.shared)
		for i, y := range kerneltest.Normal(x.first, x.n) {
			p[i] = float64(y)
		}
		const lr = 1e-2
		for step := range 4 {
			g := kerneltest.Normal(x.seed+uint64(step), x.n)
			c1, c2 := 1-math.Pow(0.9, float64(step+1)), math.Sqrt(1-math.Pow(0.999, float64(step+1)))
			for b := range v {
				sum := 0.0
				for i := b * x.shared; i < (b+1)*x.shared; i++ {
					if x.n != miniSize || i != 77 {
						sum += 0.25 * float64(g[i]) * float64(g[i])
					}
				}
				v[b] = 0.999*v[b] + 0.001*sum/float64(x.shared)
				for i := b * x.shared; i < (b+1)*x.shared; i++ {
					if x.n == miniSize && i == 77 {
						continue
					}
					m[i] = 0.9*m[i] + 0.1*0.5*float64(g[i])
					p[i] = p[i]*(1-lr*x.decay) - lr/c1*m[i]/(math.Sqrt(v[b])/c2+1e-8)
				}
			}
		}
		all = append(all, p...)
	}
	return all
}

// TestAdamMiniIsAdamW: with blocks of one element a step is AdamW's, within 1e-6; also of gradients of 16 bits, and of
// gradients that are as large as they may be or 0.
func TestAdamMiniIsAdamW(t *testing.T) {
	const n = 3000
	one := Options{Bits: 32, Params: func(string) ParamOptions { return ParamOptions{Shared: 1} }}
	for _, size := range []float32{1, 0, 0x1p60} {
		a := newWith(t, AdamMini{WeightDecay: 0.1}, one, map[string]int{"w": n})
		b := newWith(t, AdamW{WeightDecay: 0.1, DecayFirst: true}, Options{Bits: 32}, map[string]int{"w": n})
		p := kerneltest.Normal(1, n)
		q := slices.Clone(p)
		for i := range 5 {
			g := make([]snug.BFloat16, n)
			for k, x := range kerneltest.Normal(2+uint64(i), n) {
				g[k] = snug.ToBFloat16(x * size)
			}
			for _, x := range []struct {
				o *Optimizer
				p []float32
			}{{a, p}, {b, q}} {
				x.o.Advance(1e-2)
				require.NoError(t, x.o.Step("w", snug.ViewOf(x.p), snug.ViewOf(g), 1))
			}
		}
		for i := range p {
			require.InDelta(t, q[i], p[i], 1e-6, "gradients of %g: element %d", size, i)
		}
	}
}

// TestAdamMiniErrors has what is refused, and steps that allocate nothing.
func TestAdamMiniErrors(t *testing.T) {
	with := func(shared int) Options {
		return Options{Chunk: 256, Params: func(string) ParamOptions { return ParamOptions{Shared: shared} }}
	}
	for what, err := range map[string]error{
		"Beta1":          errorOf(New(AdamMini{Beta1: 1}, Options{})),
		"Beta2":          errorOf(New(AdamMini{Beta2: -1}, Options{})),
		"Eps":            errorOf(New(AdamMini{Eps: -1}, Options{})),
		"WeightDecay":    errorOf(New(AdamMini{WeightDecay: -1}, Options{})),
		"MaxUpdate is 1": errorOf(New(AdamMini{}, Options{MaxUpdate: 1})),
		"want all":       newWith(t, AdamMini{}, Options{}, nil).AddShard("w", 1000, 0, 256),
		"Shared is -1":   newWith(t, AdamMini{}, with(-1), nil).Add("w", 1000),
		"bitsandbytes has no optimizer that goes on": newWith(t, AdamMini{}, Options{}, nil).o.checkForm(),
	} {
		t.Run(what, func(t *testing.T) {
			require.ErrorIs(t, err, snug.ErrConfig, what)
			require.ErrorContains(t, err, what)
		})
	}
	err := newWith(t, AdamMini{}, with(300), nil).Add("w", 1000)
	require.ErrorIs(t, err, snug.ErrShape)
	require.ErrorContains(t, err, "of 1000 elements, where each 300 are to share a second moment")
	require.False(t, TraitsOf(AdamMini{}).Folds)
	require.EqualValues(t, 4*10*20+4*10, StateBytes(AdamMini{}, Options{}, 10, 20))
	require.EqualValues(t, 4*200+4, StateBytes(AdamMini{}, Options{}, 200))

	a := newWith(t, AdamMini{}, with(512), map[string]int{"w": 5120})
	p, g := kerneltest.Normal(1, 5120), kerneltest.Normal(2, 5120)
	a.Advance(1e-3)
	err = a.StepRange("w", 256, snug.ViewOf(p[256:768]), snug.ViewOf(g[256:768]), 1)
	require.ErrorIs(t, err, snug.ErrShape)
	require.ErrorContains(t, err, "elements 256 to 768 are not whole blocks of the 512 that a step takes together")
	step(t, a, "w", p, g, 1)
	require.EqualValues(t, 12*10, a.WorkspaceBytes())
	saved, err := a.AppendBinary(nil)
	require.NoError(t, err)
	require.NoError(t, newWith(t, AdamMini{}, with(512), map[string]int{"w": 5120}).UnmarshalBinary(saved))
	err = newWith(t, AdamMini{}, with(1024), map[string]int{"w": 5120}).UnmarshalBinary(saved)
	require.ErrorIs(t, err, snug.ErrConfig)
	require.ErrorContains(t, err, "10 second moments, this optimizer has 5")
	require.ErrorIs(t, newWith(t, SGD{}, with(0), map[string]int{"w": 5120}).UnmarshalBinary(saved), snug.ErrConfig)
	for i := 0; i < len(saved); i += 97 {
		bad := slices.Clone(saved)
		bad[i] ^= 1
		require.ErrorIs(t, newWith(t, AdamMini{}, with(512), map[string]int{"w": 5120}).UnmarshalBinary(bad), snug.ErrCorrupt, "byte %d", i)
	}
	whole := newWith(t, AdamMini{}, with(512), map[string]int{"w": 5120})
	require.NoError(t, whole.ReadShards(strings.NewReader(string(saved))))
	require.Equal(t, stateOf(t, a), stateOf(t, whole))
	require.Zero(t, testing.AllocsPerRun(10, func() {
		a.Advance(1e-3)
		step(t, a, "w", p, g, 1)
	}))
}
