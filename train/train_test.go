package train

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/accum"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/offload"
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/quant8"
)

// A run has the bits of a loop that is written by hand.
func TestAgainstALoop(t *testing.T) {
	for _, dt := range []snug.DType{snug.F32, snug.BF16} {
		m := newToy(t, dt, dt)
		tr := newTrainer(t, m, Options{Optimizer: quant8.AdamW{WeightDecay: 0.1}, StateBits: 8, Clip: 0.5, Schedule: Linear(1e-2, 0.1, 2, 6)})
		held := slices.Values([][]int{{0, 1, 2}, {3, 4}})
		before, err := tr.Evaluate(context.Background(), held)
		require.NoError(t, err)
		trainTo(t, tr, 6)
		after, err := tr.Evaluate(context.Background(), held)
		require.NoError(t, err)
		require.Less(t, after.Sum/float64(after.Targets), before.Sum/float64(before.Targets))

		by := newToy(t, dt, dt)
		opt, err := quant8.New(quant8.AdamW{WeightDecay: 0.1}, quant8.Options{Bits: 8})
		require.NoError(t, err)
		master, err := amp.NewMaster(amp.MasterOptions{})
		require.NoError(t, err)
		var list []accum.Param
		for name, v := range by.Trainable() {
			require.NoError(t, opt.Add(name, v.Len()))
			require.NoError(t, master.AddFrom(name, v, nil))
			list = append(list, accum.Param{Name: name, Len: v.Len()})
		}
		w, err := accum.New(list, accum.Options{Schedule: accum.Constant(2)})
		require.NoError(t, err)
		rate := Linear(1e-2, 0.1, 2, 6)
		for step := range 6 {
			for _, b := range steps(step) {
				require.NoError(t, w.Begin(by.Weight(b)))
				_, err := by.Backprop(context.Background(), b, 1, w)
				require.NoError(t, err)
				_, err = w.End()
				require.NoError(t, err)
			}
			stats, err := amp.Measure(w.Gradients())
			require.NoError(t, err)
			opt.Advance(rate(step))
			for name, g := range w.Gradients() {
				coef := amp.ClipCoef(stats.Norm, 0.5)
				if dt == snug.F32 {
					require.NoError(t, opt.Step(name, by.values[name], g, coef))
					continue
				}
				require.NoError(t, master.Update(name, by.values[name], func(lo int, x snug.View) error {
					part, err := g.Slice(lo, lo+x.Len())
					require.NoError(t, err)
					return opt.StepRange(name, lo, x, part, coef)
				}))
			}
			w.Reset()
		}
		require.Equal(t, by.bits(), m.bits(), dt.String())
	}
}

// forms are ways to train, each with the types of two parameters.
func forms(t testing.TB) map[string]struct {
	w, b snug.DType
	o    func(t testing.TB) Options
} {
	type form = struct {
		w, b snug.DType
		o    func(t testing.TB) Options
	}
	of := func(w, b snug.DType, o Options) form {
		return form{w, b, func(testing.TB) Options { return o }}
	}
	store := func(w, b snug.DType, o Options) form {
		return form{w, b, func(t testing.TB) Options {
			s, err := offload.Open(t.TempDir(), offload.Options{HostLimit: 64 << 10})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, s.Close()) })
			o.Storage, o.Chunk = s, 1024
			return o
		}}
	}
	return map[string]form{
		"f32":           of(snug.F32, snug.F32, Options{}),
		"bf16 full":     of(snug.BF16, snug.BF16, Options{StateBits: 8}),
		"bf16 split":    of(snug.BF16, snug.BF16, Options{Masters: amp.SplitMaster}),
		"bf16 split24":  of(snug.BF16, snug.BF16, Options{Masters: amp.Split24Master, StateBits: 8}),
		"bf16 random24": of(snug.BF16, snug.BF16, Options{Masters: amp.Split24Master, Stochastic: true, Seed: 5}),
		"paged split24": store(snug.BF16, snug.BF16, Options{Masters: amp.Split24Master, Stochastic: true}),
		"apollo 24":     of(snug.BF16, snug.BF16, Options{Optimizer: quant8.Apollo{Tensor: true, Gap: 3}, Masters: amp.Split24Master, StateBits: 8, Chunk: 1024}),
		"bf16 none":     of(snug.BF16, snug.BF16, Options{Masters: amp.NoMaster, Seed: 5}),
		"mixed":         of(snug.BF16, snug.F32, Options{StateBits: 8, Clip: 0.1}),
		"f16":           of(snug.F16, snug.F16, Options{}),
		"bf16 scaled":   of(snug.BF16, snug.F32, Options{Scaler: &amp.ScalerOptions{Interval: 2}}),
		"prodigy":       of(snug.BF16, snug.F32, Options{Optimizer: quant8.Prodigy{D0: 1e-3, SliceP: 3}, Schedule: Constant(1), StateBits: 8, Chunk: 1024}),
		"mini":          of(snug.F32, snug.F32, Options{Optimizer: quant8.AdamMini{}, Clip: 1}),
		"mini split":    of(snug.BF16, snug.F32, Options{Optimizer: quant8.AdamMini{}, Masters: amp.SplitMaster, StateBits: 8, Chunk: 1024}),
		"mini bwd":      of(snug.BF16, snug.BF16, Options{Optimizer: quant8.AdamMini{}, Gradients: plan.InBackward, StateBits: 4}),
		"paged mini":    store(snug.F32, snug.F32, Options{Optimizer: quant8.AdamMini{}, StateBits: 8}),
		"paged f32":     store(snug.F32, snug.F32, Options{}),
		"paged bf16":    store(snug.BF16, snug.BF16, Options{StateBits: 8}),
		"lion":          of(snug.F32, snug.F32, Options{Optimizer: quant8.Lion{}, StateBits: 4}),
		"apollo":        of(snug.F32, snug.F32, Options{Optimizer: quant8.Apollo{Rank: 5, Gap: 2}, Clip: 1, Seed: 3}),
		"apollo split":  of(snug.BF16, snug.BF16, Options{Optimizer: quant8.Apollo{Tensor: true, Gap: 3}, Masters: amp.SplitMaster, StateBits: 8, Chunk: 1024}),
		"galore full":   of(snug.BF16, snug.BF16, Options{Optimizer: quant8.GaLore{Rank: 5, Gap: 3}, StateBits: 16, Chunk: 1024}),
		"galore none":   of(snug.BF16, snug.F32, Options{Optimizer: quant8.GaLore{Rank: 5, Gap: 3}, Masters: amp.NoMaster}),
		"paged apollo":  store(snug.F32, snug.F32, Options{Optimizer: quant8.Apollo{Rank: 5, Gap: 2}}),
		"apollo bwd":    of(snug.BF16, snug.F32, Options{Optimizer: quant8.Apollo{Rank: 5, Gap: 2}, Gradients: plan.InBackward, Clip: 1}),
		"soap split":    of(snug.BF16, snug.BF16, Options{Optimizer: quant8.SOAP{Frequency: 2}, Masters: amp.SplitMaster, StateBits: 8, Chunk: 1024}),
		"paged soap":    store(snug.F32, snug.F32, Options{Optimizer: quant8.SOAP{Frequency: 2, MaxDim: 110}}),
		"in backward":   of(snug.F32, snug.F32, Options{Gradients: plan.InBackward, StateBits: 8}),
		"in backward16": of(snug.BF16, snug.BF16, Options{Gradients: plan.InBackward, Clip: 1, Seed: 3}),
		"folded":        of(snug.BF16, snug.BF16, Options{Gradients: plan.Folded, StateBits: 8, Clip: 0.1, Seed: 3}),
		"folded paged":  store(snug.F32, snug.F32, Options{Gradients: plan.Folded}),
	}
}

func batchesFor(o Options, step int) [][]int {
	if o.Gradients == plan.InBackward {
		return [][]int{slices.Concat(steps(step)...)}
	}
	return steps(step)
}

// A run that was ended and gone on with has the bits of one that was not.
func TestResume(t *testing.T) {
	for name, f := range forms(t) {
		t.Run(name, func(t *testing.T) {
			run := func(dir string, ends ...int) map[string][]float32 {
				var m *toy
				for _, end := range ends {
					m = newToy(t, f.w, f.b)
					o := f.o(t)
					o.Dir, o.SaveEvery, o.About = dir, 3, map[string]int{"data": 1}
					tr := newTrainer(t, m, o)
					for tr.Step() < end {
						_, err := tr.Train(context.Background(), batchesFor(o, tr.Step()))
						require.NoError(t, err)
					}
					require.NoError(t, tr.Save(context.Background()))
					require.NoError(t, tr.Save(context.Background()))
					require.NoError(t, tr.Close())
				}
				return m.bits()
			}
			require.Equal(t, run(t.TempDir(), 9), run(t.TempDir(), 2, 3, 7, 9))
		})
	}
}

// Updates in the backward pass have the bits of those after it.
func TestInBackward(t *testing.T) {
	for _, clip := range []float64{0, 0.3} {
		a, b := newToy(t, snug.F32, snug.F32), newToy(t, snug.F32, snug.F32)
		o := Options{StateBits: 8, Clip: clip}
		after := newTrainer(t, a, o)
		o.Gradients = plan.InBackward
		within := newTrainer(t, b, o)
		for step := range 4 {
			one := [][]int{slices.Concat(steps(step)...)}
			r, err := after.Train(context.Background(), one)
			require.NoError(t, err)
			s, err := within.Train(context.Background(), one)
			require.NoError(t, err)
			require.Equal(t, r.Loss, s.Loss)
		}
		require.Equal(t, a.bits(), b.bits())
		require.Equal(t, int64(4*toyIn*toyOut), within.Bytes()[meter.Gradients])
		_, err := within.Train(context.Background(), steps(9))
		require.ErrorIs(t, err, snug.ErrConfig)
		b.noDone = true
		_, err = within.Train(context.Background(), [][]int{{1}})
		require.ErrorContains(t, err, "does not call Done")
	}
}

// Folded gradients make the step of SGD that their mean makes, while one of them is held.
func TestFold(t *testing.T) {
	a, b := newToy(t, snug.F32, snug.F32), newToy(t, snug.F32, snug.F32)
	o := Options{Optimizer: quant8.SGD{WeightDecay: 0.1}, Schedule: Constant(0.1)}
	after := newTrainer(t, a, o)
	o.Gradients, o.Clip = plan.Folded, 1e6
	within := newTrainer(t, b, o)
	for step := range 4 {
		r, err := after.Train(context.Background(), steps(step))
		require.NoError(t, err)
		s, err := within.Train(context.Background(), steps(step))
		require.NoError(t, err)
		require.InEpsilon(t, r.Loss, s.Loss, 1e-6)
		require.GreaterOrEqual(t, s.Norm, r.Norm*(1-1e-6))
		require.Equal(t, r.Targets, s.Targets)
	}
	for name, want := range a.bits() {
		require.InDeltaSlice(t, want, b.bits()[name], 1e-6, name)
	}
	require.Equal(t, int64(4*toyIn*toyOut), within.Bytes()[meter.Gradients])
}

func TestNonFinite(t *testing.T) {
	ctx := context.Background()
	m := newToy(t, snug.F32, snug.F32)
	m.poison = map[int]string{4: "b"}
	tr := newTrainer(t, m, Options{Measure: true})
	trainTo(t, tr, 1)
	before := m.bits()
	_, err := tr.Train(ctx, steps(1))
	require.ErrorIs(t, err, snug.ErrNonFinite)
	require.ErrorContains(t, err, "step 2")
	require.ErrorContains(t, err, "b[3]")
	require.Equal(t, before, m.bits())
	require.Equal(t, 1, tr.Step())
	_, err = tr.Train(ctx, steps(2))
	require.NoError(t, err)

	for _, o := range []Options{{SkipNonFinite: true}, {Scaler: &amp.ScalerOptions{}}} {
		m := newToy(t, snug.F32, snug.F32)
		m.poison = map[int]string{4: "b"}
		tr := newTrainer(t, m, o)
		trainTo(t, tr, 1)
		before := m.bits()
		r, err := tr.Train(ctx, steps(1))
		require.NoError(t, err)
		require.Contains(t, r.Skipped, "b[3]")
		require.Equal(t, before, m.bits())
		require.Equal(t, 2, tr.Step())
		if o.Scaler != nil {
			require.Equal(t, r.Scale/2, tr.Scale())
		}
		trainTo(t, tr, 4)
		require.NotEqual(t, before, m.bits())
	}
}

// A step that runs out of memory is run again with smaller micro-batches.
func TestSplit(t *testing.T) {
	half := func(b []int) (x, y []int, ok bool) { return b[:len(b)/2], b[len(b)/2:], len(b) > 1 }
	large, small := newToy(t, snug.F32, snug.F32), newToy(t, snug.F32, snug.F32)
	small.most = 1
	a, b := newTrainer(t, large, Options{}), newTrainer(t, small, Options{})
	require.NoError(t, errors.Join(a.SplitBy(half), b.SplitBy(half)))
	require.ErrorIs(t, a.SplitBy(nil), snug.ErrConfig)
	for i, loss := range trainTo(t, a, 4) {
		r, err := b.Train(context.Background(), steps(i))
		require.NoError(t, err)
		require.InDelta(t, loss, r.Loss, 1e-5)
		require.Equal(t, 4, r.Targets)
	}
	require.Equal(t, 2, b.splits)
	for name, want := range large.bits() {
		require.InDeltaSlice(t, want, small.bits()[name], 1e-5)
	}
	batches := slices.Values(append(steps(4), []int{3, 4, 5, 6, 7}))
	want, err := a.Evaluate(context.Background(), batches)
	require.NoError(t, err)
	fresh := newTrainer(t, small, Options{}) // which has not divided yet
	_, err = fresh.Evaluate(context.Background(), batches)
	require.ErrorIs(t, err, snug.ErrNoMemory, "nothing divides")
	require.NoError(t, fresh.SplitBy(half))
	for _, tr := range []*Trainer[[]int]{b, fresh} {
		got, err := tr.Evaluate(context.Background(), batches)
		require.NoError(t, err)
		require.Equal(t, want.Targets, got.Targets)
		require.InDelta(t, want.Mean(), got.Mean(), 1e-5)
	}
	small.fail = fmt.Errorf("full: %w", snug.ErrNoMemory)
	_, err = b.Train(context.Background(), steps(5))
	require.ErrorIs(t, err, snug.ErrNoMemory)
	require.ErrorContains(t, err, "cannot be divided further")
	small.fail = nil
	_, err = b.Train(context.Background(), steps(5))
	require.NoError(t, err)
}

func TestOptionsRefused(t *testing.T) {
	for want, o := range map[string]Options{
		"Clip is -1":                                 {Clip: -1},
		"want 0 or more":                             {Checkpoints: Checkpoints{SaveEvery: -1, Dir: "x"}},
		"SaveEvery wants Dir":                        {Checkpoints: Checkpoints{SaveEvery: 1}},
		"without Dir and Keep":                       {Checkpoints: Checkpoints{Dir: "x", Folder: &Folder{}}},
		"InBackward does not go":                     {Gradients: plan.InBackward, Scaler: &amp.ScalerOptions{}},
		"InBackward has no master weights":           {Gradients: plan.InBackward, Masters: amp.Split24Master},
		"Stochastic is for Split24Master":            {Masters: amp.SplitMaster, Stochastic: true},
		"InBackward has no master":                   {Gradients: plan.InBackward, Masters: amp.SplitMaster},
		"no master weights to fill":                  {Gradients: plan.InBackward, Fill: func(string) FirstValue { return nil }},
		"Gradients is bf16, want f32":                {Gradients: plan.SumBF16},
		"Gradients is Gradient(9), want f32":         {Gradients: 9},
		"Folded does not go with the optimizer lion": {Gradients: plan.Folded, Optimizer: quant8.Lion{}},
		"Folded has no master weights":               {Gradients: plan.Folded, Masters: amp.SplitMaster},
		"with SkipNonFinite":                         {Gradients: plan.Folded, SkipNonFinite: true},
		"bits":                                       {StateBits: 7},
		"master weights":                             {Masters: 9},
		"wants 16 bits, not possible":                {},
	} {
		t.Run(want, func(t *testing.T) {
			m := newToy(t, snug.BF16, snug.F32)
			if strings.HasSuffix(want, "not possible") {
				m.names = nil
				want = "no parameters that train"
			}
			_, err := New(Model[[]int](m), o)
			require.Error(t, err, want)
			require.True(t, strings.HasPrefix(err.Error(), "train: New: "), err)
			if want != "bits" && want != "master weights" {
				require.ErrorContains(t, err, want)
			}
		})
	}
	_, err := New[[]int](nil, Options{})
	require.ErrorIs(t, err, snug.ErrConfig)
	_, err = New(Model[[]int](newToy(t, snug.F16, snug.F32)), Options{Gradients: plan.InBackward})
	require.ErrorContains(t, err, "f16, which needs a loss scale")
	tr := newTrainer(t, newToy(t, snug.F32, snug.F32), Options{})
	_, err = tr.Train(context.Background(), nil)
	require.ErrorIs(t, err, snug.ErrConfig)
	require.ErrorContains(t, err, "there are no micro-batches")
	_, err = tr.Train(context.Background(), [][]int{{}, {}})
	require.ErrorIs(t, err, snug.ErrConfig)
	require.ErrorContains(t, err, "such as labels that count")
	_, err = tr.Train(context.Background(), [][]int{{}, {1}})
	require.NoError(t, err)
	require.ErrorIs(t, tr.Save(context.Background()), snug.ErrConfig)
	require.NoError(t, tr.Close())
	_, err = tr.Train(context.Background(), steps(1))
	require.ErrorIs(t, err, snug.ErrConfig)
}

// shapeless is a toy without shapes, or with shapes that are not those of its parameters.
type shapeless struct {
	*toy
	Matrix func()
}

type misshapen struct{ *toy }

func (misshapen) Matrix(string) (rows, cols int) { return 7, 5 }

// Optimizers that take whole matrices need their shapes, on the CPU, and no pages of master weights.
func TestLowRankErrors(t *testing.T) {
	store, err := offload.Open(t.TempDir(), offload.Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, store.Close()) }()
	for _, rule := range []quant8.Rule{quant8.Apollo{}, quant8.GaLore{}, quant8.SOAP{}} {
		m, o := newToy(t, snug.BF16, snug.F32), Options{Optimizer: rule}
		_, err = New(Model[[]int](shapeless{toy: m}), o)
		require.ErrorIs(t, err, snug.ErrConfig)
		require.ErrorContains(t, err, "the model has no method Matrix")
		_, err = New(Model[[]int](misshapen{m}), o)
		require.ErrorIs(t, err, snug.ErrShape)
		require.ErrorContains(t, err, `parameter "w" of 12000 elements is a matrix of 7×5`)
		o.Storage, o.Chunk = store, 4096
		_, err = New(Model[[]int](m), o)
		require.ErrorIs(t, err, snug.ErrConfig)
		require.ErrorContains(t, err, `Storage of the master weights of "w" does not go with the optimizer`)
	}
}

// The model says which elements share a second moment of Adam-mini, unless Params does; parameters are stepped whole.
func TestAdamMini(t *testing.T) {
	for form, whole := range map[amp.MasterForm]int64{amp.FullMaster: 0, amp.SplitMaster: 4 * toyIn * toyOut} {
		tr := newTrainer(t, newToy(t, snug.BF16, snug.BF16), Options{Optimizer: quant8.AdamMini{}, Masters: form})
		b := tr.Bytes()
		require.EqualValues(t, 4*(toyIn*toyOut+toyOut)+4*(toyOut/10+toyOut), b[meter.State])
		require.EqualValues(t, 12*toyOut+whole, b[meter.Workspace])
	}
	tr := newTrainer(t, newToy(t, snug.F32, snug.F32), Options{Optimizer: quant8.AdamMini{}, Params: func(name string) quant8.ParamOptions {
		return quant8.ParamOptions{Shared: map[string]int{"w": toyIn}[name]}
	}})
	require.EqualValues(t, 4*(toyIn*toyOut+toyOut)+4*(toyOut+toyOut), tr.Bytes()[meter.State])
	store, err := offload.Open(t.TempDir(), offload.Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, store.Close()) }()
	_, err = New(Model[[]int](newToy(t, snug.BF16, snug.F32)), Options{Optimizer: quant8.AdamMini{}, Storage: store, Chunk: 4096})
	require.ErrorIs(t, err, snug.ErrConfig)
	require.ErrorContains(t, err, `Storage of the master weights of "w" does not go with the optimizer`)
	_, err = New(Model[[]int](newToy(t, snug.F32, snug.F32)), Options{Optimizer: quant8.AdamMini{}, Gradients: plan.Folded})
	require.ErrorIs(t, err, snug.ErrConfig)
}

// A Trainer counts the workspace of its optimizer, and of master weights that become whole matrices.
func TestLowRankBytes(t *testing.T) {
	for form, whole := range map[amp.MasterForm]int64{amp.FullMaster: 0, amp.SplitMaster: 4 * toyIn * toyOut, amp.Split24Master: 4 * toyIn * toyOut} {
		tr := newTrainer(t, newToy(t, snug.BF16, snug.BF16), Options{Optimizer: quant8.Apollo{Rank: 4}, Masters: form})
		opt, err := quant8.New(quant8.Apollo{Rank: 4}, quant8.Options{Bits: 32})
		require.NoError(t, err)
		require.NoError(t, opt.AddMatrix("w", toyOut, toyIn))
		require.NoError(t, opt.Add("b", toyOut))
		b := tr.Bytes()
		require.Equal(t, opt.StateBytes(), b[meter.State])
		require.Equal(t, opt.WorkspaceBytes()+whole, b[meter.Workspace])
		require.NoError(t, opt.Close())
	}
}

// Checkpoints of another run are refused, and nothing is changed.
func TestOtherRuns(t *testing.T) {
	dir := t.TempDir()
	o := Options{Checkpoints: Checkpoints{Dir: dir, About: "a"}, StateBits: 8}
	tr := newTrainer(t, newToy(t, snug.BF16, snug.BF16), o)
	trainTo(t, tr, 2)
	_, err := New(Model[[]int](newToy(t, snug.BF16, snug.BF16)), o)
	require.ErrorContains(t, err, "in use")
	require.NoError(t, tr.Save(context.Background()))
	require.NoError(t, tr.Close())
	for want, change := range map[string]func(o *Options, m *toy){
		"another run: \"a\" there, \"b\" here": func(o *Options, _ *toy) { o.About = "b" },
		"8-bit state":                          func(o *Options, _ *toy) { o.StateBits = 4 },
		"say split24 stochastic":               func(o *Options, _ *toy) { o.Masters, o.Stochastic = amp.Split24Master, true },
		"full master weights":                  func(o *Options, _ *toy) { o.Masters = amp.SplitMaster },
		"in the backward pass: false":          func(o *Options, _ *toy) { o.Gradients = plan.InBackward },
		"folds gradients: false":               func(o *Options, _ *toy) { o.Gradients = plan.Folded },
		"names, lengths or types differ":       func(_ *Options, m *toy) { m.names = []string{"b", "w"} },
	} {
		t.Run(want, func(t *testing.T) {
			m, o := newToy(t, snug.BF16, snug.BF16), o
			before := m.bits()
			change(&o, m)
			_, err := New(Model[[]int](m), o)
			require.ErrorContains(t, err, want)
			require.Equal(t, before, m.bits())
		})
	}
	tr = newTrainer(t, newToy(t, snug.BF16, snug.BF16), o)
	require.Equal(t, 2, tr.Step())
	require.JSONEq(t, `null`, string(tr.Notes()))
}

//check:in race
func TestPanicsLeaveTheFolder(t *testing.T) {
	dir := t.TempDir()
	m := newToy(t, snug.F32, snug.F32)
	tr := newTrainer(t, m, Options{Checkpoints: Checkpoints{Dir: dir, SaveEvery: 1}})
	trainTo(t, tr, 2)
	m.values["w"] = snug.View{}
	require.Panics(t, func() { _, _ = tr.Train(context.Background(), steps(2)) })
	require.NoError(t, tr.Close())
	require.Equal(t, 2, newTrainer(t, newToy(t, snug.F32, snug.F32), Options{Checkpoints: Checkpoints{Dir: dir}}).Step())
}

// bare is a model without a sequence of parameters.
type bare struct{ *toy }

func (bare) Trainable() iter.Seq2[string, snug.View] { return nil }

// What is nil or closed is an error, not a panic.
func TestNil(t *testing.T) {
	_, err := New[[]int](bare{newToy(t, snug.F32, snug.F32)}, Options{})
	require.ErrorIs(t, err, snug.ErrConfig)
	for _, gradients := range []plan.Gradient{plan.SumF32, plan.InBackward} {
		tr, err := New[[]int](newToy(t, snug.F32, snug.F32), Options{Gradients: gradients, Checkpoints: Checkpoints{Dir: t.TempDir(), SaveEvery: 1}})
		require.NoError(t, err)
		var none context.Context
		_, err = tr.Train(none, [][]int{{1}})
		require.ErrorIs(t, err, snug.ErrConfig)
		require.Zero(t, tr.Step())
		_, err = tr.Train(t.Context(), [][]int{{1}})
		require.NoError(t, err)
		require.ErrorIs(t, tr.Save(none), snug.ErrConfig)
		_, err = tr.Evaluate(t.Context(), nil)
		require.ErrorIs(t, err, snug.ErrConfig)
		require.NotZero(t, tr.Bytes().Total())
		require.NoError(t, tr.Close())
		require.Zero(t, tr.Bytes().Total())
	}
}

func TestSchedules(t *testing.T) {
	c, l := Cosine(1, 2, 12), Linear(1, 0.5, 0, 10)
	require.Equal(t, []float32{0.5, 1, 1}, []float32{c(0), c(1), c(2)})
	require.InDelta(t, 0.55, c(7), 1e-6)
	require.InDelta(t, 0.1, c(12), 1e-6)
	require.InDelta(t, 0.1, c(99), 1e-6)
	require.Equal(t, []float32{1, 0.75, 0.5, 0.5}, []float32{l(0), l(5), l(10), l(11)})
	require.Equal(t, float32(3), Constant(3)(9))
}
