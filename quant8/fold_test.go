package quant8

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
)

// foldable are the rules that FoldInBackward takes.
var foldable = map[string]Rule{
	"AdamW": AdamW{WeightDecay: 0.1}, "AdamW first": AdamW{WeightDecay: 0.1, DecayFirst: true}, "Adam": Adam{},
	"AdEMAMix": AdEMAMix{WeightDecay: 0.1}, "SGD": SGD{WeightDecay: 0.1}, "SGD dampened": SGD{Dampening: 0.5},
}

// foldAll folds one gradient for each parameter, in the order of the names.
func foldAll(a *Optimizer, o FoldOptions, backend kerneltest.Backend, t testing.TB, p map[string]*kerneltest.Floats, g map[string][]float32) (bool, float64, error) {
	if !onCPU(backend) {
		o.Squares = func(g snug.View) (float64, error) {
			x := make([]float32, g.Len())
			err := snug.Copy(x, g)
			return sumSquares(snug.ViewOf(x), 1), err
		}
	}
	return a.FoldInBackward(o, func(ready Ready) error {
		for _, name := range slices.Sorted(maps.Keys(g)) {
			if err := ready(name, p[name].View, kerneltest.PutFloats(t, backend, snug.F32, g[name]).View); err != nil {
				return err
			}
		}
		return nil
	})
}

func put(t testing.TB, backend kerneltest.Backend, p map[string][]float32) map[string]*kerneltest.Floats {
	all := map[string]*kerneltest.Floats{}
	for name, x := range p {
		all[name] = kerneltest.PutFloats(t, backend, snug.F32, x)
	}
	return all
}

// A step of one micro-batch has the bits of StepInBackward.
func TestFoldOfOneMicroBatch(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, backend kerneltest.Backend) {
		for name, rule := range foldable {
			for _, bits := range []int{4, 8, 16, 32} {
				want, g := layers()
				a, b := newWith(t, rule, Options{Bits: bits}, sizes(want)), newWith(t, rule, Options{Bits: bits}, sizes(want))
				p := put(t, backend, want)
				for range 3 {
					advance(a)
					for name, x := range want {
						require.NoError(t, a.Step(name, snug.ViewOf(x), snug.ViewOf(g[name]), 0.5))
					}
					advance(b)
					full, norm, err := foldAll(b, FoldOptions{Weight: 7, Total: 7, GradScale: 0.5, MeanSquares: bits == 8}, backend, t, p, g)
					require.NoError(t, err)
					require.True(t, full)
					require.Zero(t, norm)
				}
				for key, x := range want {
					require.True(t, equal(x, p[key].Get()), "%s, %d bits: %s", name, bits, key)
				}
			}
		}
	})
}

// A gradient whose square exceeds v is an error, and those below keep parameters finite.
//
//check:in tiers arm64
func TestFoldOfLargeGradients(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, backend kerneltest.Backend) {
		for _, bits := range []int{4, 8, 16, 32} {
			for _, o := range []FoldOptions{{Weight: 0x1p-40, Total: 1, MeanSquares: true}, {Weight: 1, Total: 1, MeanSquares: true}, {Weight: 0x1p-40, Total: 1}} {
				limit := 0x1p63 / o.Weight
				if o.MeanSquares {
					limit = 0x1p63 / math.Sqrt(o.Weight)
				}
				for _, x := range []float64{-limit, math.Nextafter(limit, math.Inf(1)), limit * (1 - 0x1p-22)} {
					p := put(t, backend, map[string][]float32{"w": {0, 0}})
					a := newWith(t, AdamW{}, Options{Bits: bits, MinSize: 1}, map[string]int{"w": 2})
					advance(a)
					_, _, err := foldAll(a, o, backend, t, p, map[string][]float32{"w": {0, float32(x)}})
					if math.Abs(x) >= limit {
						require.ErrorIs(t, err, snug.ErrNonFinite)
						continue
					}
					require.NoError(t, err)
					for o.Weight = 1 - o.Weight; o.Weight > 0; o.Weight = 0 {
						_, _, err = foldAll(a, o, backend, t, p, map[string][]float32{"w": {1, 1}})
						require.NoError(t, err)
					}
					require.Negative(t, p["w"].Get()[1])
					require.Greater(t, p["w"].Get()[1], float32(-0.1))
				}
			}
		}
	})
}

// The step of SGD is exactly that of the mean of the gradients.
func TestFoldOfSGDIsExact(t *testing.T) {
	const n = 5000
	for _, rule := range []SGD{{Momentum: 0.5}, {Momentum: 0.5, Dampening: 0.5, WeightDecay: 0.25}} {
		for _, weights := range [][]float64{{1, 1}, {1, 3}, {2, 1, 1}, {4, 2, 1, 1}} {
			total := 0.0
			for _, w := range weights {
				total += w
			}
			a, b := newWith(t, rule, Options{Bits: 32}, map[string]int{"w": n}), newWith(t, rule, Options{Bits: 32}, map[string]int{"w": n})
			want := make([]float32, n)
			for i := range want {
				want[i] = float32(i % 9)
			}
			got := slices.Clone(want)
			for at := range 4 {
				a.Advance(0.5)
				b.Advance(0.5)
				mean := make([]float32, n)
				for k, w := range weights {
					g := make([]float32, n)
					for i := range g {
						g[i] = float32((i*(k+3)+at)%17 - 8) // sums of few such numbers, times such weights, are exact
						mean[i] += float32(w/total) * g[i]
					}
					before := slices.Clone(got)
					full, _, err := b.FoldInBackward(FoldOptions{Weight: w, Total: total}, func(ready Ready) error {
						return ready("w", snug.ViewOf(got), snug.ViewOf(g))
					})
					require.NoError(t, err)
					require.Equal(t, k == len(weights)-1, full)
					if !full {
						require.Equal(t, before, got, "parameters are those before the step")
					}
				}
				step(t, a, "w", want, mean, 1)
				require.Equal(t, want, got, "%+v, weights %v, step %d", rule, weights, at)
			}
		}
	}
}

// The step is the one of the definition, in float64, with any weights.
//
//check:in tiers arm64
func TestFoldAgainstDefinition(t *testing.T) { rapid.Check(t, foldAgainstDefinition) }
func FuzzFold(f *testing.F)                  { f.Fuzz(rapid.MakeFuzz(foldAgainstDefinition)) }

func foldAgainstDefinition(t *rapid.T) {
	const n, lr, beta1, beta2, eps, decay = 40, 0.01, 0.9, 0.99, 1e-6, 0.1
	mean := rapid.Bool().Draw(t, "mean squares")
	a, err := New(AdamW{Beta2: beta2, Eps: eps, WeightDecay: decay}, Options{Bits: 32})
	require.NoError(t, err)
	require.NoError(t, a.Add("w", n))
	p := kerneltest.Normal(1, n)
	want, m, v := make([]float64, n), make([]float64, n), make([]float64, n)
	for i, x := range p {
		want[i] = float64(x)
	}
	for step := 1; step <= 3; step++ {
		weights, total := rapid.SliceOfN(rapid.Float64Range(0.01, 100), 1, 5).Draw(t, "weights"), 0.0
		for _, w := range weights {
			total += w
		}
		a.Advance(lr)
		for i := range n {
			m[i], v[i] = beta1*m[i], beta2*v[i]
		}
		left := total
		for k, w := range weights {
			g := kerneltest.Normal(uint64(100*step+k), n)
			full, norm, err := a.FoldInBackward(FoldOptions{Weight: w, Total: total, GradScale: 2, MeanSquares: mean}, func(ready Ready) error {
				return ready("w", snug.ViewOf(p), snug.ViewOf(g))
			})
			require.NoError(t, err)
			require.Zero(t, norm)
			require.Equal(t, k == len(weights)-1, full)
			left -= w
			for i, x := range g {
				part := 2 * float64(x) * w / total
				m[i] += (1 - beta1) * part
				if mean {
					v[i] += (1 - beta2) * part * part * total / w
				} else {
					v[i] += (1 - beta2) * part * part
				}
			}
		}
		c1, c2 := 1-math.Pow(beta1, float64(step)), math.Sqrt(1-math.Pow(beta2, float64(step)))
		for i := range want {
			want[i] = (want[i] - lr*(m[i]/c1)/(math.Sqrt(v[i])/c2+eps)) * (1 - lr*decay)
			require.InDelta(t, want[i], float64(p[i]), 2e-6, "step %d, element %d", step, i)
		}
	}
}

// A run that is saved after any micro-batch goes on with the bits of the run that is not, also in parts.
//
//check:in ordered
//check:not checked
func TestFoldResumes(t *testing.T) {
	weights := []float64{1, 2, 1}
	kerneltest.Each(t, func(t *testing.T, backend kerneltest.Backend) {
		for _, bits := range []int{4, 8, 16, 32} {
			first, _ := layers()
			o := Options{Bits: bits, Seed: 3}
			run := func(saveAfter int, read func(a *Optimizer, data []byte) error) map[string]*kerneltest.Floats {
				a, p := newWith(t, AdamW{}, o, sizes(first)), put(t, backend, first)
				for i := range 6 {
					if i%3 == 0 {
						advance(a)
					}
					g := map[string][]float32{}
					for name, x := range first {
						g[name] = kerneltest.Normal(uint64(20+i), len(x))
					}
					_, _, err := foldAll(a, FoldOptions{Weight: weights[i%3], Total: 4, MaxNorm: 1}, backend, t, p, g)
					require.NoError(t, err)
					if i == saveAfter {
						data := bytesOf(a.AppendBinary(nil))
						a = newWith(t, AdamW{}, o, sizes(first))
						require.NoError(t, read(a, data))
					}
				}
				return p
			}
			want := run(-1, nil)
			for i := range 6 {
				for _, read := range []func(a *Optimizer, data []byte) error{
					(*Optimizer).UnmarshalBinary, func(a *Optimizer, data []byte) error { return a.ReadShards(bytes.NewReader(data)) },
				} {
					for name, x := range run(i, read) {
						require.True(t, equal(want[name].Get(), x.Get()), "%d bits, saved after %d: %s", bits, i, name)
					}
				}
			}
		}
	})
}

// A step is clipped by the norm of the step before.
func TestFoldClips(t *testing.T) {
	a := newWith(t, SGD{}, Options{Bits: 32}, map[string]int{"v": 1, "w": 2})
	p := put(t, kerneltest.Backend{}, map[string][]float32{"v": {0}, "w": {0, 0}})
	fold := func(weight float64, v, w0, w1 float32) (bool, float64) {
		full, norm, err := foldAll(a, FoldOptions{Weight: weight, Total: 4, GradScale: 0.5, MaxNorm: 1}, kerneltest.Backend{}, t, p,
			map[string][]float32{"v": {v}, "w": {w0, w1}})
		require.NoError(t, err)
		return full, norm
	}
	a.Advance(1)
	full, norm := fold(1, 2, 0, 0) // norm 1 after GradScale
	require.False(t, full)
	require.Zero(t, norm)
	full, norm = fold(3, 6, 0, 8) // norm 5
	require.True(t, full)
	require.InDelta(t, math.Sqrt((1+3*25)/4.), norm, 1e-12)
	require.Equal(t, []float32{-2.5, 0, -3}, append(p["v"].Get(), p["w"].Get()...), "the first step is not clipped")

	a.Advance(1)
	fold(4, 2, 0, 0)
	scale := 1 / (math.Sqrt(19) + 1e-6)
	require.InDelta(t, -2.5-(0.9*2.5+scale), p["v"].Get()[0], 1e-6)
}

// What cannot be folded is refused before anything changes.
func TestFoldRefuses(t *testing.T) {
	one := func(x float32) snug.View { return snug.ViewOf([]float32{x}) }
	pass := func(ready Ready) error { return ready("w", one(1), one(1)) }
	half := FoldOptions{Weight: 1, Total: 2}
	for text, c := range map[string]struct {
		rule     Rule
		options  Options
		o        FoldOptions
		backward func(Ready) error
	}{
		"whole gradient":                      {Lion{}, Options{}, half, pass},
		"update needs the whole":              {Apollo{}, Options{}, half, pass},
		"needs the whole gradient":            {GaLore{}, Options{}, half, pass},
		"its update needs the whole gradient": {SGD{Nesterov: true}, Options{}, half, pass},
		"has weight decay":                    {Adam{WeightDecay: 0.1}, Options{}, half, pass},
		"Options.NonFinite":                   {nil, Options{NonFinite: SkipElement}, half, pass},
		"Options.MaxUpdate":                   {nil, Options{MaxUpdate: 1}, half, pass},
		"pass is nil":                         {nil, Options{}, half, nil},
		"Total is 0":                          {nil, Options{}, FoldOptions{Weight: 1}, pass},
		"Total is +Inf":                       {nil, Options{}, FoldOptions{Weight: 1, Total: math.Inf(1)}, pass},
		"Total is NaN":                        {nil, Options{}, FoldOptions{Weight: 1, Total: math.NaN()}, pass},
		"Weight is 0":                         {nil, Options{}, FoldOptions{Total: 1}, pass},
		"Weight is NaN":                       {nil, Options{}, FoldOptions{Weight: math.NaN(), Total: 1}, pass},
		"Weight is 1e-300":                    {nil, Options{}, FoldOptions{Weight: 1e-300, Total: 1}, pass},
		"more than is left":                   {nil, Options{}, FoldOptions{Weight: 1.01, Total: 1}, pass},
		"MaxNorm is -1":                       {nil, Options{}, FoldOptions{Weight: 1, Total: 1, MaxNorm: -1}, pass},
		"GradScale is NaN":                    {nil, Options{}, FoldOptions{Weight: 1, Total: 1, GradScale: nan}, pass},
		"did not come":                        {nil, Options{}, half, func(Ready) error { return nil }},
		"no parameter \"x\"":                  {nil, Options{}, half, func(ready Ready) error { return ready("x", one(1), one(1)) }},
	} {
		t.Run(text, func(t *testing.T) {
			if c.rule == nil {
				c.rule = AdamW{}
			}
			a := newWith(t, c.rule, c.options, map[string]int{"w": 1})
			advance(a)
			_, _, err := a.FoldInBackward(c.o, c.backward)
			require.ErrorIs(t, err, snug.ErrConfig, text)
			require.ErrorContains(t, err, text)
			require.NoError(t, a.Step("w", one(1), one(1), 1), text)
			_, _, err = a.FoldInBackward(half, pass)
			require.Error(t, err, "after the step")
		})
	}
	_, _, err := newAdamW(t, Options{}, map[string]int{"w": 1}).FoldInBackward(half, pass)
	require.ErrorContains(t, err, "call Advance first")
	_, _, err = new(Optimizer).FoldInBackward(half, pass)
	require.ErrorIs(t, err, snug.ErrConfig)
}

// A micro-batch that fails before anything is folded may be repeated, and then the step has the bits of one in which
// it did not fail; after one that fails later the optimizer refuses work until a state is restored.
func TestFoldThatFails(t *testing.T) {
	broken := errors.New("broken")
	g := func(i int, name string) snug.View { return snug.ViewOf(kerneltest.Normal(uint64(i), len(name))) }
	for later, fail := range map[string]func(p map[string][]float32, ready Ready) error{
		"": func(map[string][]float32, Ready) error { return broken },
		"not finite": func(p map[string][]float32, ready Ready) error {
			return ready("ab", snug.ViewOf(p["ab"]), snug.ViewOf([]float32{1, nan}))
		},
		"later": func(p map[string][]float32, ready Ready) error {
			return errors.Join(ready("ab", snug.ViewOf(p["ab"]), g(1, "ab")), broken)
		},
		"later panics": func(p map[string][]float32, ready Ready) error {
			_ = ready("ab", snug.ViewOf(p["ab"]), g(1, "ab"))
			panic(broken)
		},
		"later twice": func(p map[string][]float32, ready Ready) error {
			_ = ready("ab", snug.ViewOf(p["ab"]), g(1, "ab"))
			return ready("ab", snug.ViewOf(p["ab"]), g(1, "ab"))
		},
	} {
		t.Run(later, func(t *testing.T) {
			for when := range 3 {
				run := func(fails bool) (map[string][]float32, *Optimizer) {
					p := map[string][]float32{"ab": {1, 2}, "c": {3}}
					a := newAdamW(t, Options{}, sizes(p))
					advance(a)
					for i := range 3 {
						o := FoldOptions{Weight: 2, Total: 6, MaxNorm: 1}
						if fails && i == when {
							err := func() (err error) {
								defer func() {
									if x := recover(); x != nil {
										err = x.(error)
									}
								}()
								_, _, err = a.FoldInBackward(o, func(ready Ready) error { return fail(p, ready) })
								return err
							}()
							require.Error(t, err, later)
							if len(later) >= 5 && later[:5] == "later" {
								return p, a
							}
							if i > 0 {
								require.ErrorIs(t, a.Step("c", snug.ViewOf(p["c"]), g(1, "c"), 1), snug.ErrConfig)
							}
						}
						_, _, err := a.FoldInBackward(o, func(ready Ready) error {
							return errors.Join(ready("ab", snug.ViewOf(p["ab"]), g(i, "ab")), ready("c", snug.ViewOf(p["c"]), g(i, "c")))
						})
						require.NoError(t, err)
					}
					return p, a
				}
				want, _ := run(false)
				got, a := run(true)
				if len(later) >= 5 && later[:5] == "later" {
					_, _, err := a.FoldInBackward(FoldOptions{Weight: 2, Total: 6}, func(Ready) error { return nil })
					require.ErrorContains(t, err, fmt.Sprintf("micro-batch %d of step 1 stopped half-way", when+1), later)
					require.ErrorIs(t, second(a.WriteTo(new(bytes.Buffer))), snug.ErrConfig)
					continue
				}
				require.Equal(t, want, got, later)
			}
		})
	}
}

func TestFolds(t *testing.T) {
	for _, rule := range foldable {
		require.True(t, TraitsOf(rule).Folds, "%+v", rule)
	}
	for _, rule := range []Rule{nil, (*AdamW)(nil), Lion{}, Adam{WeightDecay: 1}, SGD{Nesterov: true}, RMSprop{}, LAMB{}, Muon{}, Adafactor{}} {
		require.False(t, TraitsOf(rule).Folds, "%+v", rule)
	}
}

// A step that lacks micro-batches cannot be left.
func TestAdvanceWithinFold(t *testing.T) {
	p := []float32{1}
	pass := func(ready Ready) error { return ready("w", snug.ViewOf(p), snug.ViewOf([]float32{1})) }
	a := newAdamW(t, Options{}, map[string]int{"w": 1})
	advance(a)
	_, _, err := a.FoldInBackward(FoldOptions{Weight: 1, Total: 2}, pass)
	require.NoError(t, err)
	_, _, err = a.FoldInBackward(FoldOptions{Weight: 1, Total: 3}, pass)
	require.ErrorContains(t, err, "Total is 3, and was 2 before")
	_, err = a.StepInBackward(BackwardOptions{}, pass)
	require.ErrorIs(t, err, snug.ErrConfig)
	saved := bytesOf(a.AppendBinary(nil))
	advance(a)
	_, _, err = a.FoldInBackward(FoldOptions{Weight: 1, Total: 2}, pass)
	require.ErrorContains(t, err, "in the middle of step 1, which has the weight 1 of 2")
	require.NoError(t, a.UnmarshalBinary(saved))
	full, _, err := a.FoldInBackward(FoldOptions{Weight: 1, Total: 2}, pass)
	require.NoError(t, err)
	require.True(t, full)
	require.NotEqual(t, float32(1), p[0])
}
