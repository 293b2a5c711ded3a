package transformer

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/accum"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/qlora"
	"github.com/snug-ml/snug/remat"
)

// moved returns host numbers in a type on a device.
func moved(t testing.TB, x []float32, dt snug.DType, dev *snug.Device) snug.View {
	t.Helper()
	if dev == nil {
		dev = snug.CPU()
	}
	low, _, err := snug.MakeView(snug.CPU(), dt, len(x))
	require.NoError(t, err)
	require.NoError(t, amp.Cast(low, x))
	v, free, err := snug.MakeView(dev, dt, len(x))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, free()) })
	require.NoError(t, snug.Copy(v, low))
	return v
}

// onHost returns the numbers of a vector.
func onHost(t testing.TB, v snug.View) []float32 {
	t.Helper()
	low, _, err := snug.MakeView(snug.CPU(), v.DType(), v.Len())
	require.NoError(t, err)
	require.NoError(t, snug.Copy(low, v))
	x := make([]float32, v.Len())
	require.NoError(t, amp.Cast(x, low))
	return x
}

// withTable returns the batch with vectors that are what the table has for the tokens of rows, and memory for their gradient.
func withTable(t testing.TB, m *Model, b Batch, rows []int32) Batch {
	t.Helper()
	dim, table := m.config.Dim, []float32(nil)
	require.NoError(t, m.table.Table.With(false, func(w snug.View) error { table = onHost(t, w); return nil }))
	scale := onHost(t, moved(t, []float32{float32(m.config.EmbeddingScale)}, m.dtype, nil))[0]
	var values []float32
	for _, r := range rows {
		for _, x := range table[int(b.Tokens[r])*dim:][:dim] {
			values = append(values, x*scale)
		}
	}
	b.Embeddings = Embeddings{Rows: rows, Values: moved(t, values, m.dtype, m.dev), Grad: moved(t, make([]float32, len(values)), snug.F32, m.dev)}
	return b
}

// TestEmbeddingsOfTheTable: vectors that the table has give the loss and all gradients of the tokens, bit for bit, except that of the
// table; and the table's and the vectors' make up its gradient without vectors.
func TestEmbeddingsOfTheTable(t *testing.T) {
	untied, scaled := tiny(), tinyCustom()
	untied.Tied, scaled.EmbeddingScale = false, 1.5
	packed := someBatch(8, 11, 1, 16)
	packed.Sequences, packed.Starts = 0, []int{0, 1, 7, 16}
	for name, c := range map[string]*Config{"tied": tiny(), "untied": untied, "gemma": tinyGemma(), "gpt2": tinyGPT2(GELUTanh), "custom": tinyCustom()} {
		for how, o := range map[string]Options{
			"f32": {}, "bf16": {DType: snug.BF16}, "f16": {DType: snug.F16, Tiles: 2},
			"adapters": {Adapter: &qlora.AdapterOptions{Rank: 2, Alpha: 4, DoRA: true, Dropout: 0.3}},
			"saved":    {Adapter: &qlora.AdapterOptions{Rank: 2, Alpha: 4, ModulesToSave: []string{"the embedding"}}},
			"QLoRA":    {Base: qlora.NF4, DType: snug.BF16, Adapter: &qlora.AdapterOptions{Rank: 2, Alpha: 4}},
			"pages":    {PageFloats: true, Train: func(string) bool { return false }},
			"frozen":   {Train: func(name string) bool { return name == "model.norm.weight" }},
		} {
			t.Run(name+", "+how, func(t *testing.T) {
				o := o
				if o.Seed = 3; o.PageFloats {
					o.Pages = newStore(t)
				}
				if o.Adapter != nil && o.Adapter.ModulesToSave != nil {
					adapter := *o.Adapter
					adapter.ModulesToSave = []string{strings.TrimSuffix(c.embedding(), ".weight")}
					o.Adapter = &adapter
				}
				m := newTiny(t, c, o)
				setAdapters(t, m)
				for i, b := range []Batch{someBatch(7, 11, 2, 8), packed} {
					rows := [][]int32{{0, 2, 3, 4, 8, 15}, {1, 2, 3, 6, 7}}[i]
					loss, want := lossAndGradients(t, m, b)
					b = withTable(t, m, b, rows)
					again, have := lossAndGradients(t, m, b)
					require.Equal(t, loss, again)
					requireTable(t, m, b, want, have)
					evaluated, err := m.Evaluate(t.Context(), b)
					require.NoError(t, err)
					plain := b
					plain.Embeddings = Embeddings{}
					without, err := m.Evaluate(t.Context(), plain)
					require.NoError(t, err)
					require.Equal(t, without, evaluated)

					vectors := onHost(t, b.Embeddings.Grad)
					require.NotZero(t, slices.Max(vectors))
					costs, err := m.Costs(1, len(b.Tokens))
					require.NoError(t, err)
					for slots := range 3 { // with 1 slot the first stage runs again and again
						plan, err := remat.Revolve(costs, slots+1)
						require.NoError(t, err)
						require.NoError(t, m.SetPlan(plan))
						clearGrad(t, b, float32(math.NaN()))
						_, replayed := lossAndGradients(t, m, b)
						require.Equal(t, have, replayed)
						require.Equal(t, vectors, onHost(t, b.Embeddings.Grad))
					}
					require.NoError(t, m.SetPlan(remat.Plan{}))
				}
			})
		}
	}
	t.Run("positions that are scaled", func(t *testing.T) {
		m := newTiny(t, scaled, Options{Seed: 3})
		b := someBatch(7, 11, 2, 8)
		_, want := lossAndGradients(t, m, b)
		b = withTable(t, m, b, []int32{1, 2, 9})
		_, have := lossAndGradients(t, m, b)
		for name, w := range want {
			if name != m.table.Table.Name {
				difference, largest := apart(have[name], w)
				require.LessOrEqual(t, difference, 1e-5*largest, name) // (row + position)·scale has another rounding
			}
		}
	})
}

// clearGrad sets the gradient of the vectors to a number.
func clearGrad(t testing.TB, b Batch, x float32) {
	t.Helper()
	g := b.Embeddings.Grad
	require.NoError(t, snug.Copy(g, moved(t, slices.Repeat([]float32{x}, g.Len()), g.DType(), nil)))
}

// requireTable compares the gradients of a batch with vectors of the table with those without.
func requireTable(t testing.TB, m *Model, b Batch, want, have map[string][]float32) {
	t.Helper()
	require.Len(t, have, len(want))
	for name, w := range want {
		if name != m.table.Table.Name {
			require.Equal(t, w, have[name], name)
			continue
		}
		dim, sum := m.config.Dim, slices.Clone(have[name])
		scale := onHost(t, moved(t, []float32{float32(m.config.EmbeddingScale)}, m.dtype, nil))[0]
		for i, r := range b.Embeddings.Rows {
			for j, x := range onHost(t, b.Embeddings.Grad)[i*dim:][:dim] {
				sum[int(b.Tokens[r])*dim+j] += scale * x
			}
		}
		difference, largest := apart(sum, w)
		require.LessOrEqual(t, difference, 1e-6*largest)
	}
}

// TestEmbeddingsInCalls: all calls read the vectors, on all devices, in both types.
//
//check:in emulated
func TestEmbeddingsInCalls(t *testing.T) {
	ctx := context.Background()
	wide := tiny()
	wide.Dim, wide.Hidden, wide.Tied = 10, 8, false
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
		for name, c := range map[string]*Config{"tied": tiny(), "gpt2": tinyGPT2(GELUTanh)} {
			for _, dt := range []snug.DType{snug.F32, snug.BF16} {
				cpu, m := newTiny(t, c, Options{Seed: 3, DType: dt}), newTiny(t, c, Options{Seed: 3, DType: dt, Device: p.Dev})
				teacher := newTiny(t, wide, Options{Seed: 4, Device: p.Dev, DType: dt})
				b, rows := someBatch(7, 11, 2, 8), []int32{0, 3, 4, 9, 14}
				x := onHost(t, moved(t, kerneltest.Uniform(5, len(rows)*c.Dim), snug.BF16, nil)) // of both types
				taught := Embeddings{Rows: rows, Values: moved(t, kerneltest.Uniform(6, len(rows)*wide.Dim), dt, p.Dev)}
				with := func(m *Model, values, grad snug.DType) Batch {
					b := b
					b.Embeddings = Embeddings{Rows: rows, Values: moved(t, x, values, m.dev), Grad: moved(t, make([]float32, len(x)), grad, m.dev)}
					return b
				}
				tolerance := 1e-4
				switch {
				case p.Dev == nil || p.Dev.IsCPU() || p.Name == "opaque":
					tolerance = 0
				case dt == snug.BF16:
					tolerance = 3e-2
				}
				same := func(want, have []float32, what string) {
					t.Helper()
					difference, largest := apart(have, want)
					require.LessOrEqual(t, difference, tolerance*max(largest, 0.1), "%s: %s", name, what)
				}
				for what, run := range map[string]func(m *Model, b Batch, w Window) ([]float32, error){
					"Backprop": func(m *Model, b Batch, w Window) ([]float32, error) {
						loss, err := m.Backprop(ctx, b, 3, w)
						return []float32{float32(loss.Sum)}, err
					},
					"BackpropLogProbs": func(m *Model, b Batch, w Window) ([]float32, error) {
						return nil, m.BackpropLogProbs(ctx, b, 3, squares, w)
					},
					"LogProbs": func(m *Model, b Batch, _ Window) ([]float32, error) {
						logp := make([]float32, len(b.Tokens))
						return logp, m.LogProbs(ctx, logp, b)
					},
					"Logits": func(m *Model, b Batch, _ Window) ([]float32, error) { return allLogits(t, m, b), nil },
				} {
					wide, narrow := with(cpu, snug.F32, snug.F32), with(m, dt, dt)
					want, err := run(cpu, wide, newBegun(t, cpu))
					require.NoError(t, err)
					have, err := run(m, narrow, newBegun(t, m))
					require.NoError(t, err)
					same(want, have, what)
					same(onHost(t, wide.Embeddings.Grad), onHost(t, narrow.Embeddings.Grad), what)
				}
				d := Distillation{Teacher: teacher, Weight: 0.5, Embeddings: taught}
				one := with(m, dt, snug.F32)
				_, err := m.BackpropDistill(ctx, one, 1, d, newBegun(t, m))
				require.NoError(t, err)
				first := onHost(t, one.Embeddings.Grad)
				require.NotZero(t, slices.Max(first))
				_, err = m.Divergence(ctx, one, d)
				require.NoError(t, err)
				require.Equal(t, first, onHost(t, one.Embeddings.Grad))
				d.Embeddings = Embeddings{}
				_, err = m.Divergence(ctx, one, d)
				require.ErrorIs(t, err, snug.ErrShape) // the teacher is wider
			}
		}
	})
}

// TestEmbeddingsGenerate: a prompt with vectors gives the logits of a batch with them, in chunks too.
func TestEmbeddingsGenerate(t *testing.T) {
	ctx := context.Background()
	for name, c := range map[string]*Config{"tied": tiny(), "gemma": tinyGemma(), "gpt2": tinyGPT2(GELUTanh)} {
		for _, chunk := range []int{1, 3, 64} {
			for _, rows := range [][]int32{{0, 1, 4}, {2, 5, 6}, {0, 1, 2, 3, 4, 5, 6}} {
				m := newTiny(t, c, Options{Seed: 3})
				b := someBatch(7, 11, 1, 7)
				b.Embeddings = Embeddings{Rows: rows, Values: snug.ViewOf(kerneltest.Uniform(9, len(rows)*c.Dim))}
				before := []int32{3, 1}
				whole := Batch{Tokens: slices.Concat(before, b.Tokens), Embeddings: b.Embeddings}
				whole.Embeddings.Rows = nil
				for _, r := range rows {
					whole.Embeddings.Rows = append(whole.Embeddings.Rows, r+2)
				}
				g := newGenerator(t, m, GenerateOptions{Context: 14, Chunk: chunk})
				require.NoError(t, g.Prompt(ctx, before))
				require.NoError(t, g.PromptBatch(ctx, b))
				want := make([]float32, c.Vocab)
				for range 4 {
					whole.Tokens = g.Tokens()
					require.NoError(t, m.Logits(ctx, want, whole, nil))
					_, err := g.Next(ctx)
					require.NoError(t, err)
					difference, largest := apart(g.Logits(), want)
					require.LessOrEqual(t, difference, 1e-5*largest, "%s, chunk %d", name, chunk)
				}
			}
		}
	}
}

// TestEmbeddingsRefused: what does not fit is an error before anything is written.
func TestEmbeddingsRefused(t *testing.T) {
	ctx := context.Background()
	opaque := kerneltest.Backends(t)[2].Dev
	m := newTiny(t, tiny(), Options{Seed: 3, DType: snug.BF16})
	shared := snug.ViewOf(kerneltest.Uniform(1, 4*6))
	for name, test := range map[string]struct {
		change func(e *Embeddings)
		want   error
		text   string
	}{
		"out of order":    {func(e *Embeddings) { e.Rows = []int32{3, 1} }, snug.ErrShape, "row 1 of the embeddings is 1"},
		"twice":           {func(e *Embeddings) { e.Rows = []int32{3, 3} }, snug.ErrShape, "row 1 of the embeddings is 3"},
		"below 0":         {func(e *Embeddings) { e.Rows = []int32{-1, 3} }, snug.ErrShape, "row 0 of the embeddings is -1"},
		"behind the rows": {func(e *Embeddings) { e.Rows = []int32{1, 18} }, snug.ErrShape, "row 1 of the embeddings is 18"},
		"no values":       {func(e *Embeddings) { e.Values = snug.View{} }, snug.ErrShape, "the Values of the embeddings has 0 elements, want 2 rows of 6"},
		"few values":      {func(e *Embeddings) { e.Values = part(e.Values, 0, 11) }, snug.ErrShape, "the Values of the embeddings has 11 elements"},
		"no rows":         {func(e *Embeddings) { e.Rows = nil }, snug.ErrShape, "want 0 rows of 6"},
		"few gradients":   {func(e *Embeddings) { e.Grad = part(e.Grad, 0, 6) }, snug.ErrShape, "the Grad of the embeddings has 6 elements"},
		"another type":    {func(e *Embeddings) { e.Values = moved(t, make([]float32, 12), snug.F16, nil) }, snug.ErrDType, "is f16, want bf16 or f32"},
		"a Grad of one":   {func(e *Embeddings) { e.Grad = moved(t, make([]float32, 12), snug.F16, nil) }, snug.ErrDType, "the Grad of the embeddings is f16"},
		"another device":  {func(e *Embeddings) { e.Values = moved(t, make([]float32, 12), snug.F32, opaque) }, snug.ErrDevice, "the Values of the embeddings is on"},
		"a Grad there":    {func(e *Embeddings) { e.Grad = moved(t, make([]float32, 12), snug.F32, opaque) }, snug.ErrDevice, "the Grad of the embeddings is on"},
		"one memory":      {func(e *Embeddings) { e.Values, e.Grad = part(shared, 0, 12), part(shared, 11, 12) }, snug.ErrConfig, "share memory"},
	} {
		t.Run(name, func(t *testing.T) {
			b := someBatch(7, 11, 2, 9)
			grad := slices.Repeat([]float32{7}, 12)
			b.Embeddings = Embeddings{Rows: []int32{2, 5}, Values: moved(t, make([]float32, 12), snug.BF16, nil), Grad: snug.ViewOf(grad)}
			test.change(&b.Embeddings)
			untouched := windowFunc(func(string) (snug.View, snug.Into, error) { t.Fatal("written"); return snug.View{}, snug.Into{}, nil })
			ignored := b
			ignored.Labels = slices.Repeat([]int32{-1}, len(b.Labels))
			g := newGenerator(t, m, GenerateOptions{})
			require.ErrorIs(t, g.PromptBatch(ctx, Batch{Tokens: b.Tokens, Sequences: 2, Embeddings: b.Embeddings}), snug.ErrConfig)
			prompt := Batch{Tokens: b.Tokens, Embeddings: b.Embeddings}
			if prompt.Embeddings.Grad = (snug.View{}); !strings.Contains(test.text, "Grad") && name != "one memory" {
				require.ErrorIs(t, g.PromptBatch(ctx, prompt), test.want)
			}
			prompt.Embeddings.Grad = snug.ViewOf(grad)
			require.ErrorIs(t, g.PromptBatch(ctx, prompt), snug.ErrConfig)
			require.Empty(t, g.Tokens())
			for what, call := range map[string]func() error{
				"Backprop":  func() error { _, err := m.Backprop(ctx, b, 1, untouched); return err },
				"Evaluate":  func() error { _, err := m.Evaluate(ctx, b); return err },
				"Logits":    func() error { return m.Logits(ctx, make([]float32, 2*11), b, nil) },
				"LogProbs":  func() error { return m.LogProbs(ctx, make([]float32, len(b.Tokens)), b) },
				"no labels": func() error { _, err := m.Backprop(ctx, ignored, 1, untouched); return err },
			} {
				err := call()
				kerneltest.Error(t, "transformer."+what, err)
				require.ErrorIs(t, err, test.want, what)
				require.ErrorContains(t, err, test.text, what)
			}
			require.Equal(t, slices.Repeat([]float32{7}, 12), grad)
		})
	}
}

// TestEmbeddingsLimits: a batch without labels clears the gradient; NaN is in the loss and not an error; a Grad that is not given is
// not computed; and calls allocate nothing and count what they hold.
func TestEmbeddingsLimits(t *testing.T) {
	ctx := context.Background()
	monitor, err := meter.New(meter.Options{})
	require.NoError(t, err)
	m := newTiny(t, tiny(), Options{Seed: 3, DType: snug.BF16, Train: func(string) bool { return false }, Monitor: monitor})
	b := withTable(t, m, someBatch(7, 11, 2, 9), []int32{2, 3, 11})
	w := lostWindow{}
	clearGrad(t, b, 7)
	ignored := b
	ignored.Labels = slices.Repeat([]int32{-1}, len(b.Labels))
	_, err = m.Backprop(ctx, ignored, 1, w)
	require.NoError(t, err)
	require.Equal(t, make([]float32, 18), onHost(t, b.Embeddings.Grad))
	clearGrad(t, b, 7)
	require.NoError(t, m.BackpropLogProbs(ctx, ignored, 1, squares, w))
	require.Equal(t, make([]float32, 18), onHost(t, b.Embeddings.Grad))

	costs, err := m.Costs(2, 9)
	require.NoError(t, err)
	m.chain.Costs = &costs
	require.NoError(t, m.begin(b))
	m.pass.Window, m.backward = w, call{head: m.lossOn(b), scale: 1}
	keep, err := remat.KeepAll(costs)
	require.NoError(t, err)
	_, report, err := m.chain.Run(ctx, keep, &m.input, m.lossOf)
	require.NoError(t, err)
	require.Empty(t, report.Mismatches)
	m.end()
	m.chain.Costs = nil

	kerneltest.NoAllocs(t, func() { _, err = m.Backprop(ctx, b, 1, w) })
	require.NoError(t, err)
	without := b
	without.Embeddings.Grad = snug.View{}
	before := onHost(t, b.Embeddings.Grad)
	_, err = m.Backprop(ctx, without, 1, w)
	require.NoError(t, err)
	require.Equal(t, before, onHost(t, b.Embeddings.Grad))

	nan := b
	nan.Embeddings.Values = snug.ViewOf(slices.Repeat([]float32{float32(math.NaN())}, 18))
	loss, err := m.Backprop(ctx, nan, 1, w)
	require.NoError(t, err)
	require.True(t, math.IsNaN(loss.Sum))
}

// lostWindow is a window of a model without parameters that train.
type lostWindow struct{}

func (lostWindow) Into(string) (snug.View, snug.Into, error) {
	return snug.View{}, snug.Into{}, snug.ErrConfig
}

// TestEmbeddingsDone: the gradient of each parameter is complete once, when nothing adds to it any more.
func TestEmbeddingsDone(t *testing.T) {
	for name, c := range map[string]*Config{"tied": tiny(), "gpt2": tinyGPT2(GELUTanh)} {
		m := newTiny(t, c, Options{Seed: 3})
		b := withTable(t, m, someBatch(7, 11, 2, 9), []int32{2, 3, 11})
		w := &doneWindow{sums: sums{m, map[string]snug.View{}}, done: map[string]int{}}
		_, err := m.Backprop(t.Context(), b, 1, w)
		require.NoError(t, err)
		require.Empty(t, w.late, name)
		for _, p := range m.Params() {
			require.Equal(t, 1, w.done[p.Name], p.Name)
		}
	}
}

// doneWindow counts how often a gradient is complete, and what is added later.
type doneWindow struct {
	sums
	done map[string]int
	late []string
}

func (w *doneWindow) Into(name string) (snug.View, snug.Into, error) {
	if w.done[name] > 0 {
		w.late = append(w.late, name)
	}
	return w.sums.Into(name)
}

func (w *doneWindow) Done(name string) error {
	w.done[name]++
	return nil
}

// TestEmbeddingsOfRanks: of ranks that hold their weights together, one has vectors and spans, and the other has not.
func TestEmbeddingsOfRanks(t *testing.T) {
	reducers, err := accum.Local(t.Context(), 2)
	require.NoError(t, err)
	whole := newTiny(t, published(), Options{Seed: 3})
	batches := []Batch{withTable(t, whole, someBatch(5, 11, 2, 7), []int32{0, 3, 4, 9}), someBatch(6, 11, 2, 7)}
	batches[0].Spans = [][2]int{{1, 4}}
	_, first := lossAndGradients(t, whole, batches[0])
	want, vectors := []map[string][]float32{first, nil}, onHost(t, batches[0].Embeddings.Grad)
	_, want[1] = lossAndGradients(t, whole, batches[1])
	clearGrad(t, batches[0], 7)
	errs, have := make([]error, 2), make([]sums, 2)
	var wait sync.WaitGroup
	for rank, r := range reducers {
		wait.Go(func() {
			errs[rank] = func() error {
				pages, err := accum.NewPages(r, accum.PagesOptions{})
				if err != nil {
					return err
				}
				m, err := New(published(), Options{Seed: 3, Pages: pages, PageFloats: true})
				if err != nil {
					return err
				}
				for _, p := range m.Params() { // as newTiny
					if len(p.Shape) == 1 {
						err = errors.Join(err, snug.Copy(p.Value, whole.index[p.Name].Value))
					}
				}
				have[rank] = sums{m, map[string]snug.View{}}
				if _, e := m.Backprop(t.Context(), batches[rank], 1, have[rank]); e != nil {
					return e
				}
				return errors.Join(err, m.Close(), pages.Close())
			}()
		})
	}
	wait.Wait()
	require.NoError(t, errors.Join(errs...))
	require.Equal(t, vectors, onHost(t, batches[0].Embeddings.Grad))
	for rank, grads := range want {
		for name, g := range grads {
			require.Equal(t, g, have[rank].acc[name].Float32s(), name)
		}
	}
}
