package quant8

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
)

// authorsRuns is what testdata/authors/make.py wrote.
type authorsRuns struct {
	Start     []float32
	Gradients [][]float32
	After     map[string][][]float32 // steps 1, 2, 10 and 20
}

func readAuthorsRuns(t *testing.T, name string) (r authorsRuns) {
	data, err := os.ReadFile("testdata/authors/" + name + ".json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, &r))
	return r
}

// requireNear wants golden values within 1e-6 and 1e-5.
func requireNear(t *testing.T, want, got []float32, what string) {
	require.Len(t, got, len(want))
	for i, w := range want {
		require.InDelta(t, w, got[i], 1e-6+1e-5*math.Abs(float64(w)), "%s: element %d", what, i)
	}
}

// TestScheduleFreeGolden makes the runs of the authors' package, with the parameters of training and with those of
// evaluation, within 1e-6 and 1e-5.
//
//check:in tiers arm64 arm64-go
func TestScheduleFreeGolden(t *testing.T) {
	r := readAuthorsRuns(t, "schedulefree")
	rules := map[string]ScheduleFree{
		"y":        {Beta2: 0.99, WeightDecay: 0.1},
		"x":        {Beta2: 0.99, WeightDecay: 0.1},
		"no decay": {Beta2: 0.99},
		"powers":   {Beta2: 0.99, WeightDecay: 0.1, Power: 0.5, RatePower: 1.5},
		"uniform":  {Beta2: 0.99, WeightDecay: 0.1, Uniform: true},
	}
	require.Len(t, r.After, len(rules))
	for name, after := range r.After {
		a := newWith(t, rules[name], Options{}, map[string]int{"w": len(r.Start)})
		p, x := slices.Clone(r.Start), make([]float32, len(r.Start))
		for i, g := range r.Gradients {
			warmup := 5
			if name == "no decay" {
				warmup = 1
			}
			a.Advance(1e-2 * float32(min(i+1, warmup)) / float32(warmup))
			step(t, a, "w", p, g, 1)
			copy(x, p)
			if name != "y" {
				require.NoError(t, a.Average("w", 0, snug.ViewOf(x), snug.ViewOf(p)))
			}
			if at := slices.Index([]int{1, 2, 10, 20}, i+1); at >= 0 {
				requireNear(t, after[at], x, fmt.Sprintf("%s after step %d", name, i+1))
			}
		}
	}
}

// TestAverage: the average of states of every width, in chunks of a Storage and in memory, on every place and of ranges,
// is that of the decoded state, and the same in place.
func TestAverage(t *testing.T) {
	const n = 3000
	for _, bits := range widths {
		a := newWith(t, ScheduleFree{}, Options{Bits: bits, MinSize: 1, Chunk: 1024, Storage: newFakeStorage()}, map[string]int{"w": n})
		p := kerneltest.Normal(1, n)
		start := slices.Clone(p)
		for i := range 3 {
			a.Advance(1e-2)
			step(t, a, "w", p, kerneltest.Normal(uint64(2+i), n), 1)
		}
		want := make([]float32, n)
		for i, m := range statesOf(t, a, "w")[0] {
			want[i] = p[i] - float32(float32(1/float64(float32(0.9))-1)*m)
		}
		require.NotEqual(t, want, p)
		x := make([]float32, n)
		require.NoError(t, a.Average("w", 0, snug.ViewOf(x), snug.ViewOf(p)))
		require.Equal(t, want, x, "%d bits", bits)
		require.NoError(t, a.Average("w", 1024, snug.ViewOf(p[1024:]), snug.ViewOf(p[1024:])))
		require.Equal(t, want[1024:], p[1024:], "in place")
		require.NotEqual(t, want[:1024], p[:1024])

		kerneltest.Each(t, func(t *testing.T, backend kerneltest.Backend) {
			a := newWith(t, ScheduleFree{}, Options{Bits: bits, MinSize: 1, Chunk: 1024}, map[string]int{"w": n})
			p := kerneltest.Put(t, backend, start)
			for i := range 3 {
				a.Advance(1e-2)
				require.NoError(t, a.Step("w", p.View, kerneltest.Put(t, backend, kerneltest.Normal(uint64(2+i), n)).View, 1))
			}
			x := kerneltest.Put(t, backend, make([]float32, n))
			require.NoError(t, a.Average("w", 0, x.View, p.View))
			require.Equal(t, want, x.Get(), "%d bits", bits)
		})
	}
}

// TestAverageErrors: a call that is refused writes nothing.
func TestAverageErrors(t *testing.T) {
	x, p := make([]float32, 10), make([]float32, 10)
	a := newWith(t, ScheduleFree{}, Options{}, map[string]int{"w": 10})
	adam := newWith(t, AdamW{}, Options{}, map[string]int{"w": 10})
	for what, c := range map[string]struct {
		err  error
		want error
	}{
		"has no average":       {adam.Average("w", 0, snug.ViewOf(x), snug.ViewOf(p)), snug.ErrConfig},
		"no parameter":         {a.Average("v", 0, snug.ViewOf(x), snug.ViewOf(p)), snug.ErrConfig},
		"x has 9 elements":     {a.Average("w", 0, snug.ViewOf(x[:9]), snug.ViewOf(p)), snug.ErrShape},
		"from element 1, of":   {a.Average("w", 1, snug.ViewOf(x), snug.ViewOf(p)), snug.ErrShape},
		"x is u8":              {a.Average("w", 0, snug.ViewOf8(make([]uint8, 10)), snug.ViewOf(p)), snug.ErrDType},
		"want 0 for Schedule":  {errorOf(New(ScheduleFree{}, Options{MaxUpdate: 1})), snug.ErrConfig},
		"Power is -1":          {errorOf(New(ScheduleFree{Power: -1}, Options{})), snug.ErrConfig},
		"RatePower is 9":       {errorOf(New(ScheduleFree{RatePower: 9}, Options{})), snug.ErrConfig},
		"RatePower is 2, want": {errorOf(New(ScheduleFree{RatePower: 2, Uniform: true}, Options{})), snug.ErrConfig},
		"Beta1":                {errorOf(New(ScheduleFree{Beta1: 1}, Options{})), snug.ErrConfig},
	} {
		t.Run(what, func(t *testing.T) {
			require.ErrorIs(t, c.err, c.want, what)
			require.ErrorContains(t, c.err, what)
			kerneltest.Error(t, "quant8.Average", c.err)
		})
	}
	require.Zero(t, testing.AllocsPerRun(20, func() { _ = a.Average("w", 0, snug.ViewOf(x), snug.ViewOf(p)) }))
	require.False(t, TraitsOf(ScheduleFree{}).Folds)
	require.ErrorIs(t, a.ReadBitsAndBytes(bytes.NewReader(nil), 0, ""), snug.ErrConfig)
}

// TestScheduleFreeRates: steps at a rate of 0 change nothing and weigh nothing, and the weights of the average are
// saved.
func TestScheduleFreeRates(t *testing.T) {
	a := newWith(t, ScheduleFree{}, Options{}, map[string]int{"w": 8})
	p := kerneltest.Normal(1, 8)
	before := slices.Clone(p)
	a.Advance(0)
	step(t, a, "w", p, kerneltest.Normal(2, 8), 1)
	require.Equal(t, before, p)
	for i := range 3 {
		a.Advance(1e-2)
		step(t, a, "w", p, kerneltest.Normal(uint64(3+i), 8), 1)
	}
	require.InDelta(t, 1.0/3, a.o.method.(*averaging).Share, 1e-12)
	b := newWith(t, ScheduleFree{}, Options{}, map[string]int{"w": 8})
	saved, err := a.AppendBinary(nil)
	require.NoError(t, err)
	require.NoError(t, b.UnmarshalBinary(saved))
	require.Equal(t, a.o.method, b.o.method)
	again, err := b.AppendBinary(nil)
	require.NoError(t, err)
	require.Equal(t, saved, again)
}
