package transformer

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/layers"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/qlora"
	"github.com/stretchr/testify/require"
)

// blockedExperts has matrices that every form can hold.
func blockedExperts() *Config {
	c := tinyExperts()
	c.Dim, c.Hidden, c.Experts.Hidden, c.HeadDim = 32, 32, 64, 8
	c.Rope.Dim = 8
	c.InitStd = 0.2
	return c
}

// expertOptions are types, forms of the base and kinds of adapters.
func expertOptions() []Options {
	lora := func(change func(a *qlora.AdapterOptions)) *qlora.AdapterOptions {
		a := &qlora.AdapterOptions{Rank: 3, Alpha: 8}
		change(a)
		return a
	}
	plain := lora(func(*qlora.AdapterOptions) {})
	return []Options{
		{DType: snug.F32},
		{DType: snug.BF16},
		{DType: snug.F16},
		{Train: func(name string) bool {
			return strings.Contains(name, "mlp.gate.") || strings.Contains(name, "experts.4.up")
		}},
		{Adapter: plain},
		{DType: snug.BF16, Adapter: lora(func(a *qlora.AdapterOptions) { a.RSLoRA, a.Dropout = true, 0.4 })},
		{Adapter: lora(func(a *qlora.AdapterOptions) { a.DoRA, a.Dropout = true, 0.4 })},
		{Adapter: lora(func(a *qlora.AdapterOptions) { a.FrozenA = true })},
		{DType: snug.BF16, Adapter: lora(func(a *qlora.AdapterOptions) { a.FrozenA, a.Dropout = true, 0.4 })},
		{Adapter: lora(func(a *qlora.AdapterOptions) { a.VeRA, a.Alpha = &qlora.VeRAOptions{}, 0 })},
		{Adapter: lora(func(a *qlora.AdapterOptions) {
			a.Targets.Pattern = `.*experts\.[1-4]\.(up_proj|down_proj)`
		})},
		{Base: qlora.NF4, Adapter: plain},
		{Base: qlora.FP4, Adapter: plain},
		{Base: qlora.MXFP4, Adapter: plain},
		{Base: qlora.FP8, Adapter: plain},
		{Base: qlora.INT8, Adapter: plain},
		{DType: snug.BF16, Base: qlora.MXFP4, Adapter: lora(func(a *qlora.AdapterOptions) { a.DoRA, a.Dropout = true, 0.4 })},
		{DType: snug.F16, Base: qlora.NF4, Adapter: lora(func(a *qlora.AdapterOptions) { a.VeRA, a.Alpha = &qlora.VeRAOptions{}, 0 })},
		{Base: qlora.INT8, Adapter: lora(func(a *qlora.AdapterOptions) { a.FrozenA = true })},
	}
}

func optionName(o Options) string {
	name := fmt.Sprintf("%s base %s", o.DType, o.Base)
	if a := o.Adapter; a != nil {
		name += fmt.Sprintf(" DoRA %v VeRA %v FrozenA %v dropout %v", a.DoRA, a.VeRA != nil, a.FrozenA, a.Dropout)
	}
	return name
}

// TestExpertStage: costs are what stages take, plans and workers have the same bits, and a step allocates nothing.
//
//check:not bits32
func TestExpertStage(t *testing.T) {
	for _, o := range expertOptions() {
		o.Seed = 3
		c, name := blockedExperts(), optionName(o)
		m := newTiny(t, c, o)
		setAdapters(t, m)
		const tokens = 21
		b := someBatch(7, c.Vocab, 1, tokens)
		want := gradients(t, m, b)
		costs, err := m.Costs(1, tokens)
		require.NoError(t, err)
		for _, p := range plans(t, costs) {
			require.NoError(t, m.SetPlan(p))
			require.Equal(t, want, gradients(t, m, b), "%s: %s", name, p.Name)
		}
		before := runtime.GOMAXPROCS(3)
		require.Equal(t, want, gradients(t, m, b), name)
		runtime.GOMAXPROCS(before)
		if o.Adapter == nil || o.Adapter.Targets.Pattern == "" { // else the longest group may have none
			requireExpertCosts(t, m, b, name)
		}
		w := newWindow(t, m)
		kerneltest.NoAllocs(t, func() {
			require.NoError(t, w.Begin(1))
			_, err := m.Backprop(context.Background(), b, 1, w)
			require.NoError(t, err)
			w.Reset()
		})
	}
}

// requireExpertCosts compares costs with what the last stage takes for its longest group.
func requireExpertCosts(t *testing.T, m *Model, batch Batch, name string) {
	t.Helper()
	b := m.stages[5].half.(*layers.Experts)
	require.NoError(t, m.begin(batch))
	w := newWindow(t, m)
	require.NoError(t, w.Begin(1))
	m.pass.Window, m.backward = w, call{scale: 1}
	x, d := embedded(m), embedded(m)
	most, o := m.pass.Measure, m.pass
	var y *tensor
	var s saved
	forward := most(func() { y = b.Forward(o, x) })
	save := most(func() { _, s = b.ForwardSave(o, x) })
	require.NoError(t, o.Failed())
	rows := make([]int, len(b.Experts))
	for _, e := range m.pass.Chosen() {
		rows[e]++
	}
	cost := m.pass.Cost(b, m.config.Dim, layers.Batch{Rows: len(batch.Tokens), Sequences: 1, Longest: len(batch.Tokens), Group: slices.Max(rows)})
	require.Equal(t, cost.ForwardExtra, max(forward-cost.Output, save-cost.Saved), name)
	require.Equal(t, cost.Saved, m.pass.SavedBytes(s), name)
	backward := most(func() { b.Backward(o, x, s, d) })
	require.NoError(t, o.Failed())
	require.Equal(t, cost.BackwardExtra, backward, name)
	m.pass.ReleaseSaved(s)
	m.pass.Put(x, y, d)
	require.Zero(t, m.pass.Used(), name)
	m.end()
}

// TestExpertsOverFrozenForms: adapters over quantized experts have the gradients that they have over the decoded
// matrices.
func TestExpertsOverFrozenForms(t *testing.T) {
	for _, o := range expertOptions() {
		if o.Base == 0 || o.DType != 0 {
			continue
		}
		c, name := blockedExperts(), optionName(o)
		frozen := newTiny(t, c, o)
		o.Base = 0
		float := newTiny(t, c, o)
		for _, m := range []*Model{frozen, float} {
			setAdapters(t, m)
		}
		for i, p := range frozen.Params() {
			if p.Quantized != nil {
				require.NoError(t, p.Quantized.Dequantize(float.Params()[i].Value))
			} else {
				require.NoError(t, snug.Copy(float.Params()[i].Value, p.Value))
			}
		}
		b := someBatch(7, c.Vocab, 1, 21)
		want := gradients(t, float, b)
		for name2, g := range gradients(t, frozen, b) {
			difference, largest := apart(g, want[name2])
			require.LessOrEqual(t, difference, 2e-5*max(largest, 1e-2), "%s: %s", name, name2)
		}
	}
}

// TestExpertAdaptersByDifferences compares gradients of adapters on experts with differences of the loss.
func TestExpertAdaptersByDifferences(t *testing.T) {
	for _, o := range expertOptions() {
		if o.Base != 0 || o.DType != 0 || o.Adapter == nil || o.Adapter.Dropout != 0 {
			continue
		}
		c, name := tinyExperts(), optionName(o)
		m := newTiny(t, c, o)
		setAdapters(t, m)
		b := someBatch(7, c.Vocab, 1, 6)
		b.Labels[0] = 3
		grads := gradients(t, m, b)
		rng := rand.New(rand.NewPCG(8, 9))
		for _, p := range m.Params() {
			if !p.Trains || !strings.Contains(p.Name, ".experts.") {
				continue
			}
			v := p.Value.Float32s()
			i := rng.IntN(len(v))
			at := func(x float32) float64 {
				old := v[i]
				defer func() { v[i] = old }()
				v[i] += x
				loss, err := m.Evaluate(context.Background(), b)
				require.NoError(t, err)
				return loss.Mean()
			}
			const h = 1.0 / 4096
			require.InDelta(t, (at(h)-at(-h))/(2*h), grads[p.Name][i], 2e-3, "%s: %s[%d]", name, p.Name, i)
		}
	}
}

// TestIdleExperts: the gradient of an expert without rows is 0, also where an earlier batch left another, and it is
// complete.
func TestIdleExperts(t *testing.T) {
	for _, o := range []Options{{}, {Adapter: &qlora.AdapterOptions{Rank: 2, Alpha: 4, DoRA: true}}, {Adapter: &qlora.AdapterOptions{Rank: 2, VeRA: &qlora.VeRAOptions{}}}} {
		m := newTiny(t, tinyExperts(), o)
		setAdapters(t, m)
		one := someBatch(3, m.config.Vocab, 1, 1)
		one.Labels[0] = 2
		w := &completing{acc: map[string]snug.View{}, done: map[string]int{}}
		for name, v := range m.Trainable() {
			stale := make([]float32, v.Len())
			for i := range stale {
				stale[i] = float32(math.NaN())
			}
			w.acc[name] = snug.ViewOf(stale)
		}
		_, err := m.Backprop(context.Background(), one, 1, w)
		require.NoError(t, err)
		idle := 0
		for name, acc := range w.acc {
			require.Equal(t, 1, w.done[name], name)
			require.False(t, slices.ContainsFunc(acc.Float32s(), func(g float32) bool { return g != g }), name)
			if strings.Contains(name, ".experts.") && !slices.ContainsFunc(acc.Float32s(), func(g float32) bool { return g != 0 }) {
				idle++
			}
		}
		require.Greater(t, idle, 2*7*3-1) // 7 of 9 experts in two layers
	}
}

// completing is a window of one micro-batch that counts completions.
type completing struct {
	acc  map[string]snug.View
	done map[string]int
}

func (c *completing) Into(name string) (snug.View, snug.Into, error) {
	return c.acc[name], snug.Into{Alpha: 1}, nil
}

func (c *completing) Done(name string) error {
	c.done[name]++
	return nil
}

// reads is a Storage that records which blobs are read.
type reads struct {
	blobs map[string][]byte
	list  []string
	asked []string
}

func (r *reads) Acquire(key string, size int) ([]byte, error) {
	if r.blobs[key] == nil {
		r.blobs[key] = make([]byte, size)
	}
	r.list = append(r.list, key)
	return r.blobs[key], nil
}

func (r *reads) Release(string, bool) error { return nil }
func (r *reads) Prefetch(keys ...string)    { r.asked = append(r.asked, keys...) }
func (r *reads) experts() (used map[string]bool) {
	used = map[string]bool{}
	for _, key := range r.list {
		if _, rest, found := strings.Cut(key, "layers.2.mlp.experts."); found {
			used[rest[:1]] = true
		}
	}
	return used
}

// TestExpertPages: pages give the bits of memory, and experts without rows are not read, in training and generation.
func TestExpertPages(t *testing.T) {
	o := Options{Base: qlora.NF4, Seed: 3, Adapter: &qlora.AdapterOptions{Rank: 2, Alpha: 4}}
	c := blockedExperts()
	m := newTiny(t, c, o)
	pages := &reads{blobs: map[string][]byte{}}
	o.Pages = pages
	paged := newTiny(t, c, o)
	for _, m := range []*Model{m, paged} {
		setAdapters(t, m)
	}
	b := someBatch(7, c.Vocab, 1, 2)
	b.Labels[1] = 3
	want := gradients(t, m, b)
	pages.list, pages.asked = nil, nil
	require.Equal(t, want, gradients(t, paged, b))
	chosen := map[string]bool{}
	for _, e := range paged.pass.Chosen() { // of layer 1, which ran last; layer 2 is counted below
		require.Less(t, e, int32(9))
	}
	used := pages.experts()
	require.LessOrEqual(t, len(used), 4)
	for _, key := range pages.asked {
		require.Contains(t, pages.list, key, "what is read ahead is used")
	}
	require.NotEmpty(t, pages.asked)

	g := newGenerator(t, paged, GenerateOptions{Context: 8})
	require.NoError(t, g.Prompt(context.Background(), []int32{1}))
	pages.list = nil
	_, err := g.Next(context.Background())
	require.NoError(t, err)
	for _, e := range paged.pass.Chosen() { // of the last layer
		chosen[fmt.Sprint(e)] = true
	}
	require.Equal(t, chosen, pages.experts())
	require.Len(t, chosen, 2)
}

// TestExpertsOnDevices: every device of this build computes what the CPU does.
func TestExpertsOnDevices(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
		for _, o := range []Options{{}, {DType: snug.BF16}, {Base: qlora.MXFP4, Adapter: &qlora.AdapterOptions{Rank: 2, Alpha: 4, Dropout: 0.2}}} {
			c := blockedExperts()
			c.Experts.RouterLoss, c.Experts.Bias = 0.5, true
			if o.DType == snug.BF16 { // rounding could choose other experts
				c.Experts.Chosen = 9
			} else { // and clamp other values
				c.Experts.Clamped, c.Experts.Limit, c.Experts.Alpha = true, 0.5, 1.7
			}
			b := someBatch(4, c.Vocab, 1, 7)
			m := newTiny(t, c, o)
			o.Device = p.Dev
			on := newTiny(t, c, o)
			for _, m := range []*Model{m, on} {
				setAdapters(t, m)
			}
			want, bound := gradients(t, m, b), 1e-4
			if o.DType == snug.BF16 {
				bound = 0.05
			}
			for name, g := range gradients(t, on, b) {
				difference, largest := apart(g, want[name])
				require.LessOrEqual(t, difference, bound*max(largest, 1e-2), name)
			}
		}
	})
}

// TestExpertsWithTiles: tiles cut the dense layers, and layers with experts compute what they do without.
func TestExpertsWithTiles(t *testing.T) {
	c := tinyExperts()
	b := someBatch(4, c.Vocab, 193, 13) // two tiles
	whole, tiled := newTiny(t, c, Options{Seed: 3}), newTiny(t, c, Options{Seed: 3, Tiles: 2})
	want := gradients(t, whole, b)
	for name, g := range gradients(t, tiled, b) {
		difference, largest := apart(g, want[name])
		require.LessOrEqual(t, difference, 1e-4*max(largest, 1e-3), name)
		if !strings.Contains(name, "layers.0.mlp") && !strings.Contains(name, "layers.0.post") {
			require.Equal(t, want[name], g, name)
		}
	}
	without, err := whole.Costs(193, 13)
	require.NoError(t, err)
	with, err := tiled.Costs(193, 13)
	require.NoError(t, err)
	require.Equal(t, without.Stages[3], with.Stages[3])
	require.Less(t, with.Stages[1].Saved, without.Stages[1].Saved)
}

// TestExpertsWithoutMemory: a limit that any operation meets is an error, and the model does not panic.
func TestExpertsWithoutMemory(t *testing.T) {
	c := tinyExperts()
	b := someBatch(4, c.Vocab, 1, 13)
	m := newTiny(t, c, Options{})
	gradients(t, m, b)
	weights, all := m.Memory().Weights+m.Memory().Workspace, m.Memory().Peak
	failed, passed := 0, 0
	for share := range int64(25) {
		limit, err := meter.New(meter.Options{Limits: [meter.Tiers]int64{weights + all*(share+1)/22}})
		require.NoError(t, err)
		m, err := New(c, Options{Monitor: limit})
		require.NoError(t, err)
		w := newWindow(t, m)
		require.NoError(t, w.Begin(1))
		if _, err = m.Backprop(context.Background(), b, 1, w); err == nil {
			passed++
		} else {
			require.ErrorIs(t, err, snug.ErrNoMemory)
			failed++
		}
		require.NoError(t, m.Close())
	}
	require.Greater(t, failed, 10)
	require.Positive(t, passed)
}

// TestExpertsEnd: a context that ends in any layer ends the call, and the next call has the bits of a fresh model.
func TestExpertsEnd(t *testing.T) {
	c := tinyExperts()
	b := someBatch(4, c.Vocab, 1, 13)
	m := newTiny(t, c, Options{})
	want := gradients(t, m, b)
	for n := range 30 {
		ctx := &ending{Context: context.Background(), after: n}
		w := newWindow(t, m)
		require.NoError(t, w.Begin(1))
		if _, err := m.Backprop(ctx, b, 1, w); err == nil {
			require.Greater(t, n, 10)
			break
		} else {
			require.ErrorIs(t, err, context.Canceled)
		}
		require.Zero(t, m.pass.Used())
	}
	require.Equal(t, want, gradients(t, m, b))
}

// ending is a context that ends when it has been asked so often.
type ending struct {
	context.Context
	after int
}

func (e *ending) Err() error {
	if e.after--; e.after < 0 {
		return context.Canceled
	}
	return nil
}

// TestExpertsLow: 16-bit types are near float32.
func TestExpertsLow(t *testing.T) {
	for _, dt := range []snug.DType{snug.BF16, snug.F16} {
		c := blockedExperts()
		low := newTiny(t, c, Options{Seed: 3, DType: dt})
		m := newTiny(t, c, Options{Seed: 3})
		for i, p := range low.Params() {
			require.NoError(t, amp.Cast(m.Params()[i].Value, p.Value))
		}
		b := someBatch(7, c.Vocab, 1, 9)
		want, err := m.Evaluate(context.Background(), b)
		require.NoError(t, err)
		got, err := low.Evaluate(context.Background(), b)
		require.NoError(t, err)
		require.InDelta(t, want.Mean(), got.Mean(), 0.02, dt)
	}
}
