package accum

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/internal/state"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestLen(t *testing.T) {
	n, err := Len([]Param{{"a", 3}, {"b", 0}, {"c", 4}})
	require.NoError(t, err)
	require.Equal(t, 7, n)
	tests := []struct {
		params []Param
		want   error
	}{
		{[]Param{{"", 1}}, snug.ErrConfig},
		{[]Param{{"a", 1}, {"a", 1}}, snug.ErrConfig},
		{[]Param{{strings.Repeat("x", state.MaxName+1), 1}}, snug.ErrConfig},
		{[]Param{{"a", -1}}, snug.ErrShape},
		{[]Param{{"a", math.MaxInt / 4}, {"b", 1}}, snug.ErrShape},
	}
	for _, test := range tests {
		_, err := Len(test.params)
		require.ErrorIs(t, err, test.want)
		w, err := New(test.params, Options{})
		require.ErrorIs(t, err, test.want)
		require.Nil(t, w)
	}
}

func TestNewErrors(t *testing.T) {
	tests := []struct {
		name string
		o    Options
		want error
	}{
		{"schedule", Options{Schedule: Constant(0)}, snug.ErrConfig},
		{"overflow", Options{NonFinite: 7}, snug.ErrConfig},
		{"buffer type", Options{Buffer: snug.ViewOf(make([]snug.Float16, 3))}, snug.ErrDType},
		{"buffer length", Options{Buffer: snug.ViewOf(make([]float32, 4))}, snug.ErrShape},
		{"buffer device", Options{Buffer: kerneltest.Closed(t, snug.F32, 3)}, snug.ErrDevice},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := New([]Param{{"w", 3}}, test.o)
			require.ErrorIs(t, err, test.want)
		})
	}
}

// TestMean checks unequal micro-batches in every memory and type against the
// definition, within the bound that Window states.
func TestMean(t *testing.T) {
	params := []Param{{"a", 5}, {"empty", 0}, {"b", chunk + 3}}
	weights := []float64{4, 0, 60, 1, 7.5}
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
		for _, dt := range floats {
			total, err := Len(params)
			require.NoError(t, err)
			garbage := make([]float32, total)
			for i := range garbage {
				garbage[i] = nan
			}
			bucket := kerneltest.Put(t, p, garbage)
			w := newWindow(t, params, Options{Schedule: Constant(len(weights)), Buffer: bucket.View})
			require.Equal(t, total, w.Len())
			sum, size, n := make([]float64, total), make([]float64, total), 0.0
			for i, weight := range weights {
				require.NoError(t, w.Begin(weight))
				lo := 0
				for _, q := range params {
					g := kerneltest.PutFloats(t, p, dt, kerneltest.Uniform(uint64(i*7+q.Len), q.Len))
					require.NoError(t, w.Add(q.Name, g.View))
					for j, x := range g.Get() {
						sum[lo+j] += weight * float64(x)
						size[lo+j] += weight * math.Abs(float64(x))
					}
					lo += q.Len
				}
				n += weight
				full, err := w.End()
				require.NoError(t, err)
				require.Equal(t, i == len(weights)-1, full)
				got := bucket.Get()
				for j := range sum {
					bound := float64(3*(i+1)+1) * 0x1p-24 * size[j] / n
					if !(math.Abs(sum[j]/n-float64(got[j])) <= bound) {
						require.Failf(t, "beyond the bound", "element %d after micro-batch %d: got %v, want %v ± %v", j, i, got[j], sum[j]/n, bound)
					}
				}
			}
			require.Equal(t, n, w.Weight())
		}
	})
}

// special holds values at which arithmetic changes.
var special = []float32{
	0, float32(math.Copysign(0, -1)), nan, inf, -inf, 1e-40, -1e-45, 0x1p-126, 65504, -65520, 1e38, math.MaxFloat32, 1.0 / 3,
}

// TestBits checks every bit of a window of two micro-batches, the second of
// which lacks the first parameter.
//
//check:in tiers arm64
func TestBits(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
		for _, dt := range floats {
			for _, n := range []int{1, 5, 4097, chunk + 7} {
				for _, skip := range skips {
					bitsAfter(t, p, dt, n, skip)
				}
			}
		}
	})
}

func bitsAfter(t *testing.T, p kerneltest.Backend, dt snug.DType, n, skip int) {
	bucket := kerneltest.Put(t, p, kerneltest.Uniform(9, skip+2*n))
	want := bucket.Get()
	a, b := want[skip:skip+n], want[skip+n:]
	w := newWindow(t, []Param{{"a", n}, {"b", n}}, Options{Schedule: Constant(2), Buffer: kerneltest.After(t, bucket.View, skip)})
	values := append(append([]float32{}, special...), kerneltest.Uniform(1, n)...)
	for i, names := range []string{"ab", "b"} {
		alpha, beta := factors(float64(4*i), 4)
		require.NoError(t, w.Begin(4))
		for _, name := range names {
			g := kerneltest.PutFloats(t, p, dt, append(make([]float32, skip), values[i:i+n]...))
			require.NoError(t, w.Add(string(name), kerneltest.After(t, g.View, skip)))
			acc := map[rune][]float32{'a': a, 'b': b}[name]
			for j, x := range g.Get()[skip:] {
				if acc[j] = float32(beta*acc[j]) + float32(alpha*x); i == 0 {
					acc[j] = x // also for a garbage acc, and -0
				}
			}
		}
		_, err := w.End()
		require.NoError(t, err)
	}
	for j := range a {
		a[j] /= 2 // the second micro-batch adds nothing
	}
	for i, got := range bucket.Get() {
		if want[i] != want[i] && got != got {
			continue
		}
		require.Equal(t, math.Float32bits(want[i]), math.Float32bits(got), "%v, %d elements after %d: element %d", dt, n, skip, i)
	}
}

//check:in tiers arm64
func TestGradients(t *testing.T) {
	w := newWindow(t, []Param{{"b", 1}, {"a", 2}}, Options{Schedule: Constant(2)})
	count := func() (names []string) {
		for name, g := range w.Gradients() {
			names = append(names, fmt.Sprint(name, g.Float32s()))
		}
		return names
	}
	_, err := w.Gradient("a")
	require.ErrorIs(t, err, snug.ErrConfig, "nothing yet")
	require.Empty(t, count())
	require.NoError(t, w.Begin(1))
	require.NoError(t, w.Add("a", snug.ViewOf([]float32{1, 2})))
	require.Empty(t, count(), "a micro-batch is open")
	_, err = w.End()
	require.NoError(t, err)
	require.Equal(t, []string{"b[0]", "a[1 2]"}, count())
	for name := range w.Gradients() {
		require.Equal(t, "b", name)
		break
	}
	_, err = w.Gradient("c")
	require.ErrorIs(t, err, snug.ErrConfig)
}

func TestOrderOfCalls(t *testing.T) {
	g := snug.ViewOf([]float32{1})
	config := func(err error, msg string) { t.Helper(); require.ErrorIs(t, err, snug.ErrConfig, msg) }
	w := one(t, 1, Options{Schedule: Constant(2)})
	_, err := w.End()
	config(err, "End without Begin")
	config(w.Add("w", g), "Add without Begin")
	_, _, err = w.Into("w")
	config(err, "Into without Begin")
	_, err = w.AddAll(kerneltest.Walk())
	config(err, "AddAll without Begin")
	full, err := w.Flush()
	require.NoError(t, err)
	require.False(t, full, "an empty window is not full")

	for _, weight := range []float64{-1, math.NaN(), math.Inf(1)} {
		config(w.Begin(weight), "weight")
	}
	require.NoError(t, w.Begin(3))
	config(w.Begin(3), "Begin twice")
	_, err = w.Flush()
	config(err, "Flush in a micro-batch")
	require.NoError(t, w.Add("w", g))
	config(w.Add("w", g), "Add twice")
	config(w.Add("v", g), "unknown")
	_, err = w.AddAll(kerneltest.Walk(kerneltest.Named{Name: "w", View: g}))
	config(err, "AddAll after Add")
	_, _, err = w.Into("v")
	config(err, "Into of an unknown name")
	_, err = w.End()
	require.NoError(t, err)
	config(w.Begin(1e300), "a weight that leaves nothing of the rest")
	config(w.Begin(1e-300), "a weight that vanishes")
	require.True(t, micro(t, w, 3, 1))
	config(w.Begin(1), "the window is full")
	w.Reset()
	require.NoError(t, w.Begin(1))
	w.Reset()
	require.NoError(t, w.Begin(1), "Reset leaves a micro-batch")
}

func TestAddErrors(t *testing.T) {
	tests := []struct {
		name string
		g    snug.View
		want error
	}{
		{"type", snug.SliceView([]int32{1, 2}), snug.ErrDType},
		{"zero view", snug.View{}, snug.ErrDType},
		{"length", snug.ViewOf([]float32{1, 2, 3}), snug.ErrShape},
		{"device", kerneltest.Put(t, kerneltest.Backends(t)[2], []float32{1, 2}).View, snug.ErrDevice},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			w := newWindow(t, []Param{{"v", 1}, {"w", 2}}, Options{Schedule: Constant(2)})
			require.NoError(t, w.Begin(1))
			require.ErrorIs(t, w.Add("w", test.g), test.want)
			_, err := w.AddAll(kerneltest.Walk(kerneltest.Slice("v", []float32{5}), kerneltest.Named{Name: "w", View: test.g}))
			require.ErrorIs(t, err, test.want)
			added, err := w.AddAll(kerneltest.Walk(kerneltest.Slice("v", []float32{7}), kerneltest.Slice("w", []float32{1, 2})))
			require.NoError(t, err, "nothing was added")
			require.True(t, added)
			_, err = w.End()
			require.NoError(t, err)
			require.Equal(t, []float32{7}, mean(t, w, "v"))
		})
	}
}

func TestInto(t *testing.T) {
	w := newWindow(t, []Param{{"tied", 1}, {"v", 1}}, Options{Schedule: Constant(2)})
	into := func(name string, g float32) {
		acc, into, err := w.Into(name)
		require.NoError(t, err)
		x := acc.Float32s()
		if into.Beta == 0 {
			x[0] = 0
		}
		x[0] = into.Beta*x[0] + into.Alpha*g
	}
	require.NoError(t, w.Begin(1))
	into("tied", 2)
	into("tied", 4) // the gradient of this micro-batch is 6
	require.NoError(t, w.Add("v", snug.ViewOf([]float32{8})))
	into("v", 8) // 16
	require.ErrorIs(t, w.Add("tied", snug.ViewOf([]float32{1})), snug.ErrConfig, "Add after Into")
	_, err := w.End()
	require.NoError(t, err)
	require.NoError(t, w.Begin(3))
	acc, factors, err := w.Into("tied")
	require.NoError(t, err)
	require.Equal(t, snug.F32, acc.DType())
	require.Equal(t, []float32{0.75, 0.25}, []float32{factors.Alpha, factors.Beta})
	acc.Float32s()[0] = factors.Beta*acc.Float32s()[0] + factors.Alpha*10
	into("tied", 2) // 12
	full, err := w.End()
	require.NoError(t, err)
	require.True(t, full)
	require.Equal(t, []float32{6*0.25 + 12*0.75}, mean(t, w, "tied"))
	require.Equal(t, []float32{16 * 0.25}, mean(t, w, "v"), "no gradient counts as zero")
}

func TestWeightZero(t *testing.T) {
	for _, overflow := range []NonFinitePolicy{SkipWindow, DropMicro} {
		w := one(t, 2, Options{Schedule: Constant(3), NonFinite: overflow})
		copy(w.params[0].acc.Float32s(), []float32{nan, nan})
		micro(t, w, 0, nan, 1)
		require.Equal(t, []float32{0, 0}, mean(t, w, "w"))
		micro(t, w, 2, 3, 4)
		require.True(t, micro(t, w, 0, inf, nan))
		require.Equal(t, []float32{3, 4}, mean(t, w, "w"))
		require.Equal(t, 2.0, w.Weight())
		require.Zero(t, w.Stats().Dropped)
	}
	w := one(t, 2, Options{})
	require.NoError(t, w.Begin(0))
	_, _, err := w.Into("w")
	require.ErrorIs(t, err, snug.ErrConfig)
}

//check:in race
func TestFlush(t *testing.T) {
	w := one(t, 1, Options{Schedule: Constant(4)})
	require.False(t, micro(t, w, 1, 1))
	require.False(t, micro(t, w, 3, 5))
	full, err := w.Flush()
	require.NoError(t, err)
	require.True(t, full)
	require.Equal(t, []float32{4}, mean(t, w, "w"), "the mean of two of four, not half of it")
	require.ErrorIs(t, w.Begin(1), snug.ErrConfig)
	require.Equal(t, []int{2, 4}, []int{w.Micros(), w.Target().Micros})
	w.Reset()
	require.Equal(t, Stats{Windows: 1, Micros: 2}, w.Stats())
	require.Zero(t, w.Micros())
	require.Zero(t, w.Weight())
}

// ramp has a micro-batch more in every window.
type ramp struct{}

func (ramp) Target(p Progress) Target { return Target{Micros: p.Step + 1} }

// fading has no micro-batch after the first window.
type fading struct{}

func (fading) Target(p Progress) Target { return Target{Micros: 1 - p.Step} }

func TestSchedule(t *testing.T) {
	w := one(t, 1, Options{Schedule: ramp{}})
	for step := range 4 {
		require.Equal(t, step+1, w.Target().Micros)
		for i := range step + 1 {
			require.Equal(t, i == step, micro(t, w, 1, 1))
		}
		if step == 2 {
			w.Skip()
		} else {
			w.Reset()
		}
	}
	require.Equal(t, Stats{Windows: 4, Skipped: 1, Micros: 10}, w.Stats())
	micro(t, w, 1, 1)
	w.Reset()
	require.Equal(t, 5, w.Target().Micros, "a window that was not full is taken again")
	require.Equal(t, 4, w.Stats().Windows)

	w = one(t, 1, Options{Schedule: fading{}})
	micro(t, w, 1, 1)
	w.Reset()
	require.ErrorIs(t, w.Begin(1), snug.ErrConfig)
}

func TestSkipWindowKeepsNonFinite(t *testing.T) {
	w := one(t, 3, Options{Schedule: Constant(3)})
	micro(t, w, 1, 1, nan, inf)
	micro(t, w, 1e6, 2, 2, 2)
	require.True(t, micro(t, w, 1, 3, 3, 3))
	got := mean(t, w, "w")
	require.False(t, got[0]-got[0] != 0)
	require.True(t, got[1] != got[1])
	require.Equal(t, inf, got[2])
	w.Skip()
	micro(t, w, 1, 4, 5, 6)
	require.Equal(t, []float32{4, 5, 6}, mean(t, w, "w"), "the next window is clean")
}

func TestAddAllWalkers(t *testing.T) {
	for _, overflow := range []NonFinitePolicy{SkipWindow, DropMicro} {
		w := newWindow(t, []Param{{"a", 1}, {"b", 1}}, Options{NonFinite: overflow})
		a, b := kerneltest.Slice("a", []float32{1}), kerneltest.Slice("b", []float32{2})
		require.NoError(t, w.Begin(1))
		for name, grads := range map[string]func() (bool, error){
			"nil":     func() (bool, error) { return w.AddAll(nil) },
			"unknown": func() (bool, error) { return w.AddAll(kerneltest.Walk(a, kerneltest.Slice("c", nil))) },
			"twice":   func() (bool, error) { return w.AddAll(kerneltest.Walk(a, b, a)) },
			"once":    func() (bool, error) { return w.AddAll(kerneltest.Once(a, b)) },
		} {
			t.Run(name, func(t *testing.T) {
				added, err := grads()
				require.ErrorIs(t, err, snug.ErrConfig, name)
				require.False(t, added, name)
			})
		}
		added, err := w.AddAll(kerneltest.Walk(b))
		require.NoError(t, err)
		require.True(t, added)
		_, err = w.End()
		require.NoError(t, err)
		require.Equal(t, []float32{0}, mean(t, w, "a"))
		require.Equal(t, []float32{2}, mean(t, w, "b"))
	}
}

//check:in race
func TestProcs(t *testing.T) {
	var want []float32
	kerneltest.WithProcs(func(procs int) {
		w := one(t, 5*chunk+1, Options{Schedule: Constant(2)})
		micro(t, w, 1, kerneltest.Uniform(1, w.Len())...)
		micro(t, w, 2, kerneltest.Uniform(2, w.Len())...)
		if procs == 1 {
			want = mean(t, w, "w")
		}
		require.Equal(t, want, mean(t, w, "w"))
	})
}

// partitionProperty: any partition of a batch gives the gradient of the whole
// batch within the stated bound.
func partitionProperty(t *rapid.T) {
	samples := rapid.SliceOfN(rapid.Float32Range(-100, 100), 1, 60).Draw(t, "samples")
	var parts [][]float32
	for rest := samples; len(rest) > 0; {
		n := rapid.IntRange(1, len(rest)).Draw(t, "part")
		parts, rest = append(parts, rest[:n]), rest[n:]
	}
	w := one(t, 1, Options{Schedule: Constant(len(parts))})
	sum, size := 0.0, 0.0
	for _, part := range parts {
		s := 0.0
		for _, x := range part {
			s += float64(x)
		}
		g := float32(s / float64(len(part)))
		micro(t, w, float64(len(part)), g)
		sum += float64(len(part)) * float64(g)
		size += float64(len(part)) * math.Abs(float64(g))
	}
	n, k := float64(len(samples)), float64(len(parts))
	require.InDelta(t, sum/n, float64(mean(t, w, "w")[0]), (3*k+1)*0x1p-24*size/n+k*0x1p-149)
	require.Equal(t, n, w.Weight())
}

//check:in tiers
func TestPartitionProperty(t *testing.T) { rapid.Check(t, partitionProperty) }
func FuzzPartition(f *testing.F)         { f.Fuzz(rapid.MakeFuzz(partitionProperty)) }
