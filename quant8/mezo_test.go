package quant8

import (
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"math"
	"os"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/internal/optim"
)

// one yields one parameter.
func one(name string, p snug.View) iter.Seq2[string, snug.View] {
	return func(yield func(string, snug.View) bool) { yield(name, p) }
}

// bowl returns the mean of the squares of the distances to a target, in float64.
func bowl(p snug.View, target []float32) func() (float64, error) {
	x := make([]float32, p.Len())
	return func() (float64, error) {
		if err := hostFloats(x, p); err != nil {
			return 0, err
		}
		sum := 0.0
		for i, v := range x {
			d := float64(v) - float64(target[i])
			sum += d * d
		}
		return sum / float64(len(x)), nil
	}
}

// TestMeZOGolden makes the steps of the authors' trainer with its noise. It rounds the parameters four times where this
// package does three times, which the projected gradient magnifies: the losses are within 1e-6, parameters within 1e-5.
//
//check:in tiers arm64 arm64-go
func TestMeZOGolden(t *testing.T) {
	var g struct {
		Start, Target []float32
		Noise, After  [][]float32
		Losses        [][2]float64
	}
	data, err := os.ReadFile("testdata/authors/mezo.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, &g))
	kerneltest.Each(t, func(t *testing.T, backend kerneltest.Backend) {
		z, err := NewZerothOrder(MeZO{WeightDecay: 0.1}, ZerothOptions{})
		require.NoError(t, err)
		z.noise = func(_ string, step int) []float32 { return g.Noise[step] }
		p := kerneltest.Put(t, backend, g.Start)
		for i, want := range g.After {
			e, err := z.Step(1e-2, one("w", p.View), bowl(p.View, g.Target))
			require.NoError(t, err)
			require.InDelta(t, g.Losses[i][0], e.Plus, 1e-6)
			require.InDelta(t, g.Losses[i][1], e.Minus, 1e-6)
			for k, x := range p.Get() {
				require.InDelta(t, want[k], x, 1e-5, "step %d, element %d", i+1, k)
			}
		}
		require.Equal(t, len(g.After), z.Steps())
	})
}

// TestMeZOLearns: the loss falls, in float32 and in bfloat16, with bits that do not depend on the number of workers, the
// place, or an interruption.
func TestMeZOLearns(t *testing.T) {
	const n, steps = 40_000, 60
	target := kerneltest.Normal(2, n)
	for dt, rule := range map[snug.DType]MeZO{snug.F32: {}, snug.BF16: {Epsilon: 0x1p-5}} {
		run := func(backend kerneltest.Backend, stop int) ([]float32, float64) {
			p := kerneltest.PutFloats(t, backend, dt, kerneltest.Normal(1, n))
			loss := bowl(p.View, target)
			first, err := loss()
			require.NoError(t, err)
			z, err := NewZerothOrder(rule, ZerothOptions{Seed: 3})
			require.NoError(t, err)
			for i := range steps {
				if i == stop {
					saved, err := z.AppendBinary(nil)
					require.NoError(t, err)
					z, err = NewZerothOrder(rule, ZerothOptions{Seed: 3})
					require.NoError(t, err)
					require.NoError(t, z.UnmarshalBinary(saved))
				}
				_, err := z.Step(0.4, one("w", p.View), loss)
				require.NoError(t, err)
			}
			last, err := loss()
			require.NoError(t, err)
			return p.Get(), last / first
		}
		want, share := run(kerneltest.Backend{}, -1)
		// Along one direction of n a step at the rate r changes the loss by the factor 1 - (4·r/n)·(1-r).
		require.Less(t, share, 1-0.5*steps*4*0.4*0.6/n, "%v", dt)
		again, _ := run(kerneltest.Backend{}, 7)
		require.Equal(t, want, again)
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
		kerneltest.Each(t, func(t *testing.T, backend kerneltest.Backend) {
			again, _ := run(backend, -1)
			require.Equal(t, want, again)
		})
	}
}

// TestMeZORounding measures what three passes that end where they begin do to parameters: what the comment of MeZO says.
func TestMeZORounding(t *testing.T) {
	const n = 1 << 16
	for dt, c := range map[snug.DType]struct{ unit, moved, rms float64 }{
		snug.F32: {0x1p-23, 0.5, 0.7}, snug.BF16: {0x1p-7, 0.5, 0.7},
	} {
		start := kerneltest.Normal(1, n)
		for i := range start {
			start[i] *= 0.02
		}
		p := kerneltest.PutFloats(t, kerneltest.Backend{}, dt, start)
		before := p.Get()
		z, err := NewZerothOrder(MeZO{}, ZerothOptions{Seed: 1})
		require.NoError(t, err)
		_, err = z.Step(0, one("w", p.View), func() (float64, error) { return 1, nil })
		require.NoError(t, err)
		moved, squares, sum := 0, 0.0, 0.0
		for i, x := range p.Get() {
			_, exponent := math.Frexp(float64(before[i]))
			units := float64(x-before[i]) / (c.unit * math.Ldexp(1, exponent-1))
			sum += units
			if math.Abs(float64(before[i])) > 0.005 { // others are rounded to units of the noise
				squares += units * units
			}
			if x != before[i] {
				moved++
			}
		}
		rms := math.Sqrt(squares / n)
		t.Logf("%v: %.2f of the elements move, by %.2f units in the root of the mean square, %.4f on average", dt, float64(moved)/n, rms, sum/n)
		require.Less(t, float64(moved)/n, c.moved, "%v", dt)
		require.Less(t, rms, c.rms, "%v", dt)
	}
}

// TestMeZOErrors: what is refused changes nothing, and a loss that fails leaves the parameters where they were.
func TestMeZOErrors(t *testing.T) {
	good := func() (float64, error) { return 1, nil }
	p := kerneltest.Normal(1, 5000)
	before := slices.Clone(p)
	z, err := NewZerothOrder(MeZO{}, ZerothOptions{})
	require.NoError(t, err)
	step := func(lr float32, params iter.Seq2[string, snug.View], loss func() (float64, error)) error {
		_, err := z.Step(lr, params, loss)
		return err
	}
	w, failed := one("w", snug.ViewOf(p)), errors.New("failed")
	twice := func(yield func(string, snug.View) bool) {
		for range 2 {
			if !yield("w", snug.ViewOf(p)) {
				return
			}
		}
	}
	newErr := func(r MeZO) error {
		_, err := NewZerothOrder(r, ZerothOptions{})
		return err
	}
	_, zeroErr := new(ZerothOrder).Step(1, w, good)
	near := func() {
		for i, x := range before {
			require.InDelta(t, x, p[i], 1e-6)
		}
		require.Zero(t, z.Steps())
	}
	for what, c := range map[string]struct{ err, want error }{
		"is nil":              {step(1, nil, good), snug.ErrConfig},
		"loss function is":    {step(1, w, nil), snug.ErrConfig},
		"learning rate":       {step(float32(math.NaN()), w, good), snug.ErrConfig},
		"comes twice":         {step(1, twice, good), snug.ErrConfig},
		"holds u8":            {step(1, one("w", snug.ViewOf8(make([]uint8, 3))), good), snug.ErrDType},
		"Epsilon":             {newErr(MeZO{Epsilon: -1}), snug.ErrConfig},
		"Epsilon is 3e+37":    {newErr(MeZO{Epsilon: 3e37}), snug.ErrConfig},
		"WeightDecay":         {newErr(MeZO{WeightDecay: -1}), snug.ErrConfig},
		"want NewZerothOrder": {errorOf(New(MeZO{}, Options{})), snug.ErrConfig},
		"not made by":         {zeroErr, snug.ErrConfig},
		"not made by New":     {new(ZerothOrder).UnmarshalBinary(nil), snug.ErrConfig},
		"corrupt":             {z.UnmarshalBinary([]byte("SNUGMEZO")), snug.ErrCorrupt},
	} {
		t.Run(what, func(t *testing.T) {
			require.ErrorIs(t, c.err, c.want, what)
			require.ErrorContains(t, c.err, what)
			kerneltest.Error(t, "quant8.MeZO", c.err)
		})
	}
	require.Equal(t, before, p)
	require.False(t, TraitsOf(MeZO{}).Folds)
	require.Zero(t, StateBytes(MeZO{}, Options{}, 10))

	require.ErrorIs(t, step(1, w, func() (float64, error) { return 0, failed }), failed)
	near()
	calls := 0
	require.ErrorIs(t, step(1, w, func() (float64, error) { calls++; return math.Inf(calls - 2), nil }), snug.ErrNonFinite)
	near()
	require.ErrorContains(t, step(1, w, func() (float64, error) { return 0, step(1, w, good) }), "called its optimizer")
	near()
	require.Panics(t, func() { _ = step(1, w, func() (float64, error) { panic("loss") }) })
	near()
	require.NoError(t, step(1, w, good))
	saved, err := z.AppendBinary(nil)
	require.NoError(t, err)
	other, err := NewZerothOrder(MeZO{}, ZerothOptions{Seed: 1})
	require.NoError(t, err)
	require.ErrorIs(t, other.UnmarshalBinary(saved), snug.ErrConfig)
	for i := range saved {
		damaged := slices.Clone(saved)
		damaged[i] ^= 4
		require.ErrorIs(t, other.UnmarshalBinary(damaged), snug.ErrCorrupt, "byte %d", i)
	}
}

// TestMeZOOverflow: a step that overflows by the LR of one parameter, or by the noise alone, changes none. One that is
// just below leaves finite numbers.
func TestMeZOOverflow(t *testing.T) {
	most := float64(math.MaxFloat32) / float64(optim.MostNoise())
	for _, c := range []struct {
		rate, loss float64
		ok         bool
	}{{1e20, 1e30, false}, {1, most * 1.0001, false}, {1, math.MaxFloat32 * 0.99, false}, {1, most * 0.9999, true}} {
		p, sign := kerneltest.Normal(1, 1<<17), -1.0 // the largest noise is 2 in 2^16
		before := slices.Clone(p)
		z, err := NewZerothOrder(MeZO{Epsilon: 0.5}, ZerothOptions{Params: func(string) ParamOptions { return ParamOptions{LR: float32(c.rate)} }})
		require.NoError(t, err)
		_, err = z.Step(1, one("w", snug.ViewOf(p)), func() (float64, error) { sign = -sign; return sign * c.loss / 2, nil })
		if c.ok {
			require.NoError(t, err)
			require.True(t, allFinite(p))
			continue
		}
		require.ErrorIs(t, err, snug.ErrNonFinite)
		require.InDeltaSlice(t, before, p, 1e-6)
		require.Zero(t, z.Steps())
	}
}

func allFinite(x []float32) bool {
	return !slices.ContainsFunc(x, func(v float32) bool { return !finite(v) })
}

// TestMeZOMemory: what a step allocates does not depend on the parameters, and is less than 2 KiB.
func TestMeZOMemory(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2)) // each processor of Go has a part of the pools, which fills
	z, err := NewZerothOrder(MeZO{}, ZerothOptions{})
	require.NoError(t, err)
	p := snug.ViewOf(make([]float32, 1<<20))
	params, loss := one("w", p), func() (float64, error) { return 1, nil }
	_, err = z.Step(1e-3, params, loss)
	require.NoError(t, err)
	least := uint64(math.MaxUint64) // of several steps: goroutines of other tests and of the runtime allocate too
	var before, after runtime.MemStats
	for range 8 {
		runtime.ReadMemStats(&before)
		_, err = z.Step(1e-3, params, loss)
		require.NoError(t, err)
		runtime.ReadMemStats(&after)
		least = min(least, after.TotalAlloc-before.TotalAlloc)
	}
	require.Less(t, least, uint64(2<<10))
}

// TestMeZOParams: options of single parameters, with the definition of the step.
func TestMeZOParams(t *testing.T) {
	a, b := kerneltest.Normal(1, 3000), kerneltest.Normal(2, 3000)
	params := func(yield func(string, snug.View) bool) { _ = yield("a", snug.ViewOf(a)) && yield("b", snug.ViewOf(b)) }
	z, err := NewZerothOrder(MeZO{Epsilon: 0x1p-8, WeightDecay: 0.5}, ZerothOptions{Params: func(name string) ParamOptions {
		return ParamOptions{LR: map[string]float32{"a": 1, "b": 3}[name], NoDecay: name == "a"}
	}})
	require.NoError(t, err)
	noise := map[string][]float32{"a": kerneltest.Normal(3, 3000), "b": kerneltest.Normal(4, 3000)}
	z.noise = func(name string, _ int) []float32 { return noise[name] }
	wantA, wantB := slices.Clone(a), slices.Clone(b)
	losses := []float64{3, 1}
	e, err := z.Step(0.25, params, func() (float64, error) {
		l := losses[0]
		losses = losses[1:]
		return l, nil
	})
	require.NoError(t, err)
	require.Equal(t, Estimate{3, 1, 256}, e)
	for i := range a {
		require.InDelta(t, float64(wantA[i])-0.25*256*float64(noise["a"][i]), float64(a[i]), 1e-4, fmt.Sprint(i))
		require.InDelta(t, float64(wantB[i])*(1-0.75*0.5)-0.75*256*float64(noise["b"][i]), float64(b[i]), 1e-4, fmt.Sprint(i))
	}
}
