package attention_test

import (
	"context"
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/accum"
	"github.com/snug-ml/snug/attention"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

// reporting calls f for every rank of accum.Local, and returns the errors. The context ends when the ranks that are to
// report something have returned, because the others may wait for them.
func reporting(t *testing.T, size int, reporters []int, f func(r rank) error) []error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	ranks, err := accum.Local(ctx, size)
	require.NoError(t, err)
	errs := make([]error, size)
	var all, some sync.WaitGroup
	some.Add(len(reporters))
	for i, r := range ranks {
		all.Go(func() {
			errs[i] = f(r.(rank))
			for _, n := range reporters {
				if n == i {
					some.Done()
				}
			}
		})
	}
	some.Wait()
	cancel()
	all.Wait()
	return errs
}

// difference is what one rank has otherwise than the others.
type difference struct {
	name, says string
	set        func(o *operands)
}

func ofZeros(n int) snug.View { return snug.ViewOf(make([]float32, n)) }

func (o *operands) in16Bits() {
	for _, v := range []*snug.View{&o.q, &o.k, &o.v, &o.out, &o.dq, &o.dk, &o.dv, &o.dout} {
		*v = snug.ViewOf(make([]snug.BFloat16, v.Len()))
	}
}

// pack sets where sequences start. Then lse has the rows of one of Batch parts.
func (o *operands) pack(starts ...int) {
	o.c.QStarts = starts
	o.lse, _ = o.lse.Slice(0, o.lse.Len()/o.c.Batch)
}

// differences change no length of a message, with the Options of TestRanksDiffer.
var differences = []difference{
	{"type", "the element type", (*operands).in16Bits},
	{"causal", "the mask", func(o *operands) { o.c.Causal = true }},
	{"align", "the mask", func(o *operands) { o.c.Align = attention.TopLeft }},
	{"shift", "the mask", func(o *operands) { o.c.Align, o.c.Shift = attention.Shifted, 1 }},
	{"window", "the mask", func(o *operands) { o.c.Window.Left = 3 }},
	{"right window", "the mask", func(o *operands) { o.c.Window.Right = 3 }},
	{"scale", "the scores", func(o *operands) { o.c.Scale = 2 }},
	{"soft cap", "the scores", func(o *operands) { o.c.Softcap = 2 }},
	{"slopes", "the scores", func(o *operands) { o.c.Slopes = ofZeros(4) }},
	{"slopes of a batch", "the scores", func(o *operands) { o.c.Slopes = ofZeros(8) }},
	{"sinks", "the scores", func(o *operands) { o.c.Sinks.X = ofZeros(4) }},
	{"dropout", "Dropout", func(o *operands) { o.c.Dropout.P = 0.5 }},
	{"starts", "QStarts, KStarts or KLens", func(o *operands) { o.pack(0, 4, 16) }},
	{"two", "the mask and Dropout", func(o *operands) { o.c.Causal, o.c.Dropout.P = true, 0.5 }},
	{"three", "the mask, the scores and Dropout", func(o *operands) { o.c.Causal, o.c.Dropout.P, o.c.Scale = true, 0.5, 2 }},
}

// onlyOver are differences over a ring, and by heads.
var onlyOver = map[string][]difference{
	"ring": {
		{"heads", "the dimensions", func(o *operands) { *o = *operandsLike(o, ring, func(c *attention.Options) { c.Heads = 8 }) }},
	},
	"ulysses": {
		{"score", "the scores", func(o *operands) {
			o.c.Score = func(s float32, b, h, i, j int) (float32, float32) { return s, 1 }
		}},
		{"bias", "the scores", func(o *operands) {
			o.c.Bias = attention.Bias{X: ofZeros(16 * 16), Dims: [4]int{1, 1, 16, 16}}
		}},
		{"mask", "the mask", func(o *operands) { o.c.Mask = allSeen }},
		{"lengths of keys", "QStarts, KStarts or KLens", func(o *operands) { o.c.KLens = []int{16, 15} }},
		{"batch", "the dimensions", func(o *operands) { *o = *operandsLike(o, ulysses, func(c *attention.Options) { c.Batch = 0 }) }},
		{"no heads", "the dimensions", func(o *operands) {
			*o = *operandsLike(o, ulysses, func(c *attention.Options) { c.Heads, c.KVHeads = 0, 0 })
		}},
		{"no rows", "the dimensions", func(o *operands) {
			*o = *operandsLike(o, ulysses, func(c *attention.Options) { c.SeqQ, c.SeqK = 0, 0 })
		}},
		{"dimensions", "the dimensions", func(o *operands) {
			*o = *operandsLike(o, ulysses, func(c *attention.Options) { c.Heads, c.Dim = 8, 1 })
		}},
	},
}

var allSeen = func() *attention.Mask {
	m, err := attention.NewMask(1, 1, 16, 16, func(_, _, _, _ int) bool { return true })
	if err != nil {
		panic(err)
	}
	return m
}()

// operandsLike returns operands of the rank of o with other Options.
func operandsLike(o *operands, d divided, change func(c *attention.Options)) *operands {
	c := o.c
	change(&c)
	return operandsOf(c, o.ranks, d)
}

var directions = []struct {
	name string
	call func(*operands, divided) error
}{{"Forward", (*operands).forward}, {"Backward", (*operands).backward}}

// requireDiffers requires the errors of ranks that differ, which say who differs and in what.
func requireDiffers(t *testing.T, err error, a, b int, says string) {
	t.Helper()
	require.ErrorIs(t, err, snug.ErrConfig)
	require.ErrorContains(t, err, fmt.Sprintf("attention: ranks %d and %d differ in %s: ", a, b, says))
}

// A rank whose call is not that of the others is an error, although all messages would have the same lengths.
//
//check:in race
func TestRanksDiffer(t *testing.T) {
	c := attention.Options{Batch: 2, Heads: 4, KVHeads: 4, SeqQ: 16, Dim: 2}
	for _, d := range divisions {
		for _, x := range append(append([]difference(nil), differences...), onlyOver[d.name]...) {
			for _, way := range directions {
				for _, size := range []int{2, 4} {
					if size == 4 && x.name != "causal" && x.name != "batch" {
						continue
					}
					t.Run(fmt.Sprintf("%s/%s/%s/%d", d.name, way.name, x.name, size), func(t *testing.T) {
						reporters := []int{0, 1, 2, 3}[:size]
						if d.name == "ring" && size == 4 {
							reporters = []int{1, 2}
						}
						errs := reporting(t, size, reporters, func(r rank) error {
							o := operandsOf(c, r, d.divided)
							if r.Rank() == 1 {
								x.set(o)
							}
							return way.call(o, d.divided)
						})
						for _, i := range reporters {
							a, b := 0, 1
							if d.name == "ring" && i == 2 {
								a, b = 1, 2
							}
							requireDiffers(t, errs[i], a, b, x.says)
						}
						if d.name == "ring" && size == 4 {
							require.ErrorIs(t, errs[0], context.Canceled)
							require.ErrorIs(t, errs[3], context.Canceled)
						}
					})
				}
			}
		}
	}
}

// What is not the same in the Options, but has the same effect, and what is a rank's own, is no error.
//
//check:in race
func TestRanksMayDiffer(t *testing.T) {
	packed := func(o *operands) { o.pack(0, 4, 16) }
	for _, d := range divisions {
		for name, x := range map[string][2]func(o *operands){
			"default scale":   {nil, func(o *operands) { o.c.Scale = float32(1 / math.Sqrt(2)) }},
			"default lengths": {nil, func(o *operands) { o.c.SeqK, o.c.DimV, o.c.KVHeads = 16, 2, 4 }},
			"default starts":  {packed, func(o *operands) { packed(o); o.c.KStarts = []int{0, 4, 16} }},
			"no dropout":      {nil, func(o *operands) { o.c.Dropout.Seed, o.c.Dropout.Query = 7, 3 }},
			"sinks' gradient": {func(o *operands) { o.c.Sinks.X = ofZeros(4) }, func(o *operands) {
				o.c.Sinks.X, o.c.Sinks.Grad, o.ws = ofZeros(4), ofZeros(4), ofZeros(2*o.ws.Len())
			}},
			"strides":        {nil, func(o *operands) { o.c.Q = attention.Strides{Batch: 8 * 4 * 2, Head: 2, Row: 4 * 2} }},
			"windows beyond": {nil, func(o *operands) { o.c.Window.Left = math.MaxInt }},
		} {
			for _, way := range directions {
				for _, err := range reporting(t, 2, []int{0, 1}, func(r rank) error {
					o := operandsOf(attention.Options{Batch: 2, Heads: 4, SeqQ: 16, Dim: 2, KVHeads: 4}, r, d.divided)
					if set := x[r.Rank()]; set != nil {
						set(o)
					}
					return way.call(o, d.divided)
				}) {
					require.NoError(t, err, "%s %s %s", d.name, way.name, name)
				}
			}
		}
	}
}

// The seed and the positions of dropout are compared where there is dropout, and starts of sequences number by number.
//
//check:in race
func TestRanksDifferInNumbers(t *testing.T) {
	base := attention.Options{Batch: 3, Heads: 4, KVHeads: 4, SeqQ: 16, Dim: 2, Dropout: attention.Dropout{P: 0.5, Seed: 1}}
	for _, d := range divisions {
		for _, x := range []difference{
			{"seed", "Dropout", func(o *operands) { o.c.Dropout.Seed = 1 | 1<<63 }},
			{"query", "Dropout", func(o *operands) { o.c.Dropout.Query = 1 }},
			{"key", "Dropout", func(o *operands) { o.c.Dropout.Key = 1 }},
			{"probability", "Dropout", func(o *operands) { o.c.Dropout.P = 0.25 }},
			{"start", "QStarts, KStarts or KLens", func(o *operands) { o.c.QStarts = []int{0, 3, 8, 16} }},
		} {
			for i, err := range reporting(t, 2, []int{0, 1}, func(r rank) error {
				o := operandsOf(base, r, d.divided)
				o.pack(0, 3, 9, 16)
				if r.Rank() == 1 {
					x.set(o)
				}
				return o.forward(d.divided)
			}) {
				require.Error(t, err, "%s %s: rank %d", d.name, x.name, i)
				requireDiffers(t, err, 0, 1, x.says)
			}
		}
	}
}

// A rank that computes gradients while the other computes results is an error, and so is an lse or a gradient in it on one
// of the ranks that exchange them.
//
//check:in race
func TestRanksDifferInCalls(t *testing.T) {
	c := attention.Options{Batch: 2, Heads: 4, KVHeads: 4, SeqQ: 16, Dim: 2}
	for _, d := range divisions {
		for _, err := range reporting(t, 2, []int{0, 1}, func(r rank) error {
			o := operandsOf(c, r, d.divided)
			if r.Rank() == 1 {
				return o.backward(d.divided)
			}
			return o.forward(d.divided)
		}) {
			requireDiffers(t, err, 0, 1, "the function")
		}
	}
	for name, call := range map[string]func(o *operands) error{
		"lse": func(o *operands) error {
			if o.ranks.Rank() == 1 {
				o.lse = snug.View{}
			}
			return o.forward(ulysses)
		},
		"GradLSE": func(o *operands) error {
			if o.ranks.Rank() == 1 {
				o.c.GradLSE = ofZeros(o.lse.Len())
			}
			o.ws = ofZeros(2 * o.ws.Len())
			return o.backward(ulysses)
		},
	} {
		for _, err := range reporting(t, 2, []int{0, 1}, func(r rank) error { return call(operandsOf(c, r, ulysses)) }) {
			require.Error(t, err, name)
			requireDiffers(t, err, 0, 1, "which of lse and GradLSE they have")
		}
	}
	// Over a ring each rank has them for its own rows.
	for _, err := range reporting(t, 2, []int{0, 1}, func(r rank) error {
		o := operandsOf(c, r, ring)
		if r.Rank() == 1 {
			o.lse = snug.View{}
		}
		return o.forward(ring)
	}) {
		require.NoError(t, err)
	}
}

// Nothing is written but the workspace, and the ranks can go on after all of them had the error.
//
//check:in race
func TestRanksDifferWritesNothing(t *testing.T) {
	c := attention.Options{Batch: 2, Heads: 4, KVHeads: 4, SeqQ: 16, Dim: 2}
	for _, d := range divisions {
		for _, err := range reporting(t, 2, []int{0, 1}, func(r rank) error {
			for _, way := range directions {
				o := operandsOf(c, r, d.divided)
				grad := []float32{attention.Gap, attention.Gap, attention.Gap, attention.Gap}
				o.c.Sinks = attention.Sinks{X: ofZeros(4), Grad: snug.ViewOf(grad)}
				o.c.Causal = r.Rank() == 1
				if err := way.call(o, d.divided); err == nil {
					return fmt.Errorf("%s: no error", way.name)
				}
				for _, v := range []snug.View{o.out, o.lse, o.dq, o.dk, o.dv, o.c.Sinks.Grad} {
					for _, x := range v.Float32s() {
						if x != attention.Gap {
							return fmt.Errorf("%s has written %g", way.name, x)
						}
					}
				}
				o.c.Causal = true
				if err := o.forward(d.divided); err != nil {
					return err
				}
			}
			return nil
		}) {
			require.NoError(t, err, d.name)
		}
	}
}

// Headers pass between devices, whose memory Go cannot read, by the workspace.
//
//check:in race
func TestRanksDifferOnDevices(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, backend kerneltest.Backend) {
		for _, d := range divisions {
			var mu sync.Mutex // of memory of a device
			for _, err := range reporting(t, 2, []int{0, 1}, func(r rank) error {
				o := operandsOf(attention.Options{Batch: 1, Heads: 2, KVHeads: 2, SeqQ: 8, Dim: 2}, r, d.divided)
				o.c.Causal = r.Rank() == 1
				mu.Lock()
				for _, v := range []*snug.View{&o.q, &o.k, &o.v, &o.out, &o.lse, &o.ws} {
					*v = kerneltest.PutFloats(t, backend, snug.F32, v.Float32s()).View
				}
				mu.Unlock()
				return o.forward(d.divided)
			}) {
				requireDiffers(t, err, 0, 1, "the mask")
			}
		}
	})
}
