package transformer

import (
	"context"
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/qlora"
	"github.com/snug-ml/snug/remat"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// plans returns plans of every kind for a model of 4 stages.
func plans(t testing.TB, c remat.Costs) (list []remat.Plan) {
	t.Helper()
	keep, err := remat.KeepAll(c)
	require.NoError(t, err)
	again, err := remat.RecomputeAll(c)
	require.NoError(t, err)
	chen, err := remat.Chen(c)
	require.NoError(t, err)
	full, err := keep.Simulate(c)
	require.NoError(t, err)
	list = append(list, keep, again, chen)
	for share := 0.55; share < 1; share += 0.1 {
		p, _, err := remat.Planner{}.Plan(c, int64(share*float64(full.Peak)))
		if err == nil {
			list = append(list, p)
		}
	}
	return list
}

// TestPlans: every plan has the gradients of the plan that keeps everything, bit for bit, and
// takes at most the bytes that it predicts.
func TestPlans(t *testing.T) {
	for _, c := range []*Config{tiny(), tinyGemma(), tinyGemma4(), tinyShared(), tinyBeside(), tinyStreams(), tinyGPT2(GELUTanh), tinyCustom(), freeCustom()} {
		for _, dt := range []snug.DType{snug.F32, snug.BF16, snug.F16} {
			m := newTiny(t, c, Options{Seed: 3, DType: dt})
			b := someBatch(7, c.Vocab, 3, 10)
			want := gradients(t, m, b)
			costs, err := m.Costs(3, 10)
			require.NoError(t, err)
			list := plans(t, costs)
			require.Greater(t, len(list), 4)
			for _, p := range list {
				require.NoError(t, m.SetPlan(p))
				require.Equal(t, want, gradients(t, m, b), "%s %s %s", c.Family, dt, p.Name)
				predicted, err := p.Simulate(costs)
				require.NoError(t, err)
				head := int64(4 * 30 * 2) // the statistics of the last norm
				require.LessOrEqual(t, m.Memory().Peak, predicted.Peak+head, p.Name)
				require.Greater(t, m.Memory().Peak, predicted.Peak*8/10, p.Name)
			}
			again := m.Memory().Peak
			require.NoError(t, m.SetPlan(remat.Plan{}))
			require.Equal(t, want, gradients(t, m, b))
			require.Greater(t, m.Memory().Peak, again, "a plan without operations keeps everything")
		}
	}
}

// TestTransients: f_i and b_i are the most that a stage takes in addition to its operands and results.
//
//check:not bits32
func TestTransients(t *testing.T) {
	plain := tiny()
	plain.QKNorm, plain.QKVBias, plain.OutBias = false, false, false
	wide := tiny()
	wide.Dim, wide.Hidden, wide.Family, wide.QKNorm = 40, 3, "llama", false
	for _, c := range []*Config{tiny(), tinyGemma(), tinyGemma4(), tinyShared(), plain, wide, tinyGPT2(GELUTanh), tinyCustom(), freeCustom()} {
		for _, o := range []Options{
			{DType: snug.F32}, {DType: snug.BF16}, {Adapter: &qlora.AdapterOptions{Rank: 3, Alpha: 8}},
			{DType: snug.BF16, Base: qlora.NF4, Adapter: &qlora.AdapterOptions{Rank: 9, Alpha: 8, Dropout: 0.5, Ranks: map[string]int{"v_proj|c_proj": 2}}},
			{Adapter: &qlora.AdapterOptions{Rank: 3, Alpha: 8, Dropout: 0.1, Targets: qlora.Modules{Pattern: `.*(o_proj|up_proj|c_fc)`}}},
			{Adapter: &qlora.AdapterOptions{Rank: 3, Alpha: 8, DoRA: true}},
			{Adapter: &qlora.AdapterOptions{Rank: 3, Alpha: 8, FrozenA: true}},
			{DType: snug.BF16, Base: qlora.NF4, Adapter: &qlora.AdapterOptions{Rank: 5, Dropout: 0.5, VeRA: &qlora.VeRAOptions{}}},
			{DType: snug.BF16, Base: qlora.NF4, Adapter: &qlora.AdapterOptions{Rank: 9, Alpha: 8, FrozenA: true, Dropout: 0.5, Ranks: map[string]int{"v_proj|c_proj": 2}}},
			{Adapter: &qlora.AdapterOptions{Rank: 3, Alpha: 8, FrozenA: true, Targets: qlora.Modules{Pattern: `.*(o_proj|up_proj|c_fc)`}}},
			{DType: snug.BF16, Base: qlora.NF4, Adapter: &qlora.AdapterOptions{Rank: 2, Alpha: 8, DoRA: true, Dropout: 0.5}},
			{Tiles: 2},
			{DType: snug.BF16, Tiles: 3, Adapter: &qlora.AdapterOptions{Rank: 3, Alpha: 8, Dropout: 0.1}},
			{Tiles: 2, Adapter: &qlora.AdapterOptions{Rank: 2, Alpha: 8, DoRA: true, Dropout: 0.5}},
			{DType: snug.BF16, Tiles: 2, Adapter: &qlora.AdapterOptions{Rank: 3, Alpha: 8, FrozenA: true, Dropout: 0.5, Ranks: map[string]int{"down_proj|c_proj": 2}}},
			{Base: qlora.NF4, Tiles: 2, Adapter: &qlora.AdapterOptions{Rank: 5, VeRA: &qlora.VeRAOptions{}}},
		} {
			m := newTiny(t, c, o)
			sequences, tokens := 3, 10
			if o.Tiles > 1 {
				sequences, tokens = 193, 13 // two tiles, of 1254 and 1255 rows
			}
			transients(t, m, sequences, tokens)
		}
	}
}

// transients requires that the stages of a model take what Costs says.
func transients(t *testing.T, m *Model, sequences, tokens int) {
	ctx, b := context.Background(), someBatch(7, m.config.Vocab, sequences, tokens)
	costs, err := m.Costs(sequences, tokens)
	require.NoError(t, err)
	require.NoError(t, m.begin(b))
	w := newWindow(t, m)
	require.NoError(t, w.Begin(1))
	m.pass.Window, m.backward = w, call{head: m.lossOn(b), scale: 1}
	x := &m.input
	most := func(step func(), kept int64) int64 {
		return m.pass.Measure(step) - kept
	}
	for i, stage := range m.chain.Stages {
		cost, name := costs.Stages[i], fmt.Sprint(m.config.Family, " ", costs.Stages[i].Name)
		var y, d *tensor
		var s saved
		forward := most(func() { y, err = stage.Forward(ctx, x) }, cost.Output)
		require.NoError(t, err)
		save := most(func() { _, s, err = stage.ForwardSave(ctx, x) }, cost.Saved)
		require.NoError(t, err)
		require.Equal(t, cost.Saved, m.pass.SavedBytes(s), name)
		require.Equal(t, cost.ForwardExtra, max(forward, save), name)
		held := m.pass.Used() - m.pass.SavedBytes(s)
		backward := most(func() { d, err = stage.Backward(ctx, x, s, y) }, 0)
		require.NoError(t, err)
		backward += cost.Output - x.Bytes() // of the first stage the gradient is not handed on
		held += x.Bytes() - cost.Output
		if i < m.first { // nothing trains from here down
			require.LessOrEqual(t, backward, cost.Output, name)
		} else {
			require.Equal(t, cost.BackwardExtra, backward, name)
		}
		m.pass.ReleaseSaved(s)
		require.Equal(t, held, m.pass.Used(), name)
		m.pass.Put(d)
		if i == 0 {
			x = embedded(m) // of the size of any output, or of one of its streams
			if n := m.config.widthOf(1); n > m.config.Dim {
				one := x
				x = m.pass.Get(n)
				for lo := 0; lo < x.Len(); lo += one.Len() {
					require.NoError(t, snug.Copy(part(x.View, lo, one.Len()), one.View))
				}
				m.pass.Put(one)
			}
		}
	}
	m.pass.Put(x)
	require.Zero(t, m.pass.Used())
}

// TestTransientsOfFamilies: so do the models of testdata, whole and with adapters.
//
//check:not bits32
func TestTransientsOfFamilies(t *testing.T) {
	for _, name := range modelNames {
		for _, o := range []Options{
			{DType: snug.BF16}, {DType: snug.F32, Adapter: &qlora.AdapterOptions{Rank: 3, Alpha: 8, Dropout: 0.1}},
			{DType: snug.BF16, Base: qlora.NF4, Adapter: &qlora.AdapterOptions{Rank: 2, Alpha: 8, DoRA: true}},
		} {
			m, err := Open(filepath.Join("testdata", "models", name), o)
			require.NoError(t, err, name)
			if m.config.Experts.Count > 0 { // Costs has twice the mean of an expert's rows
				require.NoError(t, m.Close())
				continue
			}
			transients(t, m, 2, 11)
			require.NoError(t, m.Close())
		}
	}
	for _, name := range []string{"granite", "falcon_h1"} { // whose halves have factors
		for _, o := range []Options{{Tiles: 2}, {DType: snug.BF16, Tiles: 2, Adapter: &qlora.AdapterOptions{Rank: 3, Alpha: 8}}} {
			m, err := Open(filepath.Join("testdata", "models", name), o)
			require.NoError(t, err, name)
			transients(t, m, 193, 13) // two tiles
			require.NoError(t, m.Close())
		}
	}
}

// TestSizesDeclared: the sizes that Costs declares are what a run measures.
func TestSizesDeclared(t *testing.T) {
	for _, c := range []*Config{tiny(), tinyGemma(), tinyGPT2(GELUTanh), tinyCustom(), freeCustom()} {
		m := newTiny(t, c, Options{DType: snug.BF16})
		b := someBatch(7, c.Vocab, 3, 10)
		costs, err := m.Costs(3, 10)
		require.NoError(t, err)
		m.chain.Costs = &costs
		require.NoError(t, m.begin(b))
		w := newWindow(t, m)
		require.NoError(t, w.Begin(1))
		m.pass.Window, m.backward = w, call{head: m.lossOn(b), scale: 1}
		plan, err := remat.KeepAll(costs)
		require.NoError(t, err)
		_, report, err := m.chain.Run(context.Background(), plan, &m.input, m.lossOf)
		require.NoError(t, err)
		require.Empty(t, report.Mismatches)
	}
}

// modelProperty: a random model computes for packed sequences what it computes for each alone,
// and has the same gradients, bit for bit, by any plan.
func modelProperty(t *rapid.T) {
	kinds := rapid.SampledFrom([]*Config{tiny(), tinyGemma(), tinyGPT2(GELU), tinyGPT2(GELUTanh)})
	c := kinds.Draw(t, "config")
	if c.Family != "gpt2" {
		c.QKNorm = rapid.Bool().Draw(t, "norms of q and k")
		c.QKVBias, c.OutBias = rapid.Bool().Draw(t, "bias of qkv"), rapid.Bool().Draw(t, "bias of out")
		c.Tied = rapid.Bool().Draw(t, "tied")
		c.KVHeads = rapid.SampledFrom([]int{1, 2, 4}).Draw(t, "key heads")
		c.Windows = []int{rapid.IntRange(0, 5).Draw(t, "window"), rapid.IntRange(0, 5).Draw(t, "window")}
		c.Rope = Rope{Kind: RopeDefault, Theta: 50, Dim: 4}
		c.NormEps = 1e-5
	}
	o := Options{Seed: rapid.Uint64().Draw(t, "seed")}
	if rapid.Bool().Draw(t, "adapters") {
		o.Base = rapid.SampledFrom([]qlora.Type{0, qlora.NF4, qlora.FP4}).Draw(t, "base")
		o.Adapter = &qlora.AdapterOptions{Rank: rapid.IntRange(1, 5).Draw(t, "rank"), Alpha: 7, RSLoRA: rapid.Bool().Draw(t, "rslora"),
			Dropout: rapid.SampledFrom([]float32{0, 0.3}).Draw(t, "dropout"), DoRA: rapid.Bool().Draw(t, "dora")}
		if rapid.Bool().Draw(t, "some") {
			o.Adapter.Targets.Names = []string{"q_proj", "c_attn", "down_proj", "mlp.c_proj"}
		}
	}
	m, err := New(c, o)
	require.NoError(t, err)
	setAdapters(t, m)
	lengths := rapid.SliceOfN(rapid.IntRange(1, 9), 1, 4).Draw(t, "lengths")
	var b Batch
	b.Starts = []int{0}
	for _, n := range lengths {
		more := someBatch(uint64(len(b.Tokens)), c.Vocab, 1, n)
		b.Tokens, b.Labels = append(b.Tokens, more.Tokens...), append(b.Labels, more.Labels...)
		b.Starts = append(b.Starts, len(b.Tokens))
	}
	b.Labels[0] = 1
	ctx := context.Background()
	logits := func(b Batch) []float32 {
		rows := make([]int32, len(b.Tokens))
		for i := range rows {
			rows[i] = int32(i)
		}
		out := make([]float32, len(rows)*c.Vocab)
		require.NoError(t, m.Logits(ctx, out, b, rows))
		return out
	}
	together := logits(b)
	for i, lo := range b.Starts[:len(lengths)] {
		hi := b.Starts[i+1]
		difference, largest := apart(together[lo*c.Vocab:hi*c.Vocab], logits(Batch{Tokens: b.Tokens[lo:hi]}))
		require.LessOrEqual(t, difference, 1e-5*max(largest, 1e-3))
	}
	run := func() map[string][]float32 {
		w := sums{m, map[string]snug.View{}}
		_, err := m.Backprop(ctx, b, 1, w)
		require.NoError(t, err)
		grads := map[string][]float32{}
		for name, v := range w.acc {
			grads[name] = v.Float32s()
		}
		return grads
	}
	want := run()
	costs, err := m.Costs(1, len(b.Tokens))
	require.NoError(t, err)
	plan, err := remat.Revolve(costs, rapid.IntRange(1, 4).Draw(t, "slots"))
	require.NoError(t, err)
	require.NoError(t, m.SetPlan(plan))
	require.Equal(t, want, run())
}

// setAdapters gives the B of adapters values, without which they do nothing.
func setAdapters(t require.TestingT, m *Model) {
	for i, p := range m.Params() {
		if strings.HasSuffix(p.Name, "lora_B.weight") || strings.HasSuffix(p.Name, "vera_lambda_b") {
			require.NoError(t, snug.Copy(p.Value, kerneltest.Uniform(uint64(i), p.Len())))
		}
	}
}

// sums is a window that adds.
type sums struct {
	m   *Model
	acc map[string]snug.View
}

func (s sums) Into(name string) (snug.View, snug.Into, error) {
	if v, again := s.acc[name]; again {
		return v, snug.Into{Beta: 1}, nil
	}
	s.acc[name] = snug.ViewOf(make([]float32, s.m.index[name].Len()))
	return s.acc[name], snug.Into{}, nil
}

func TestModelProperty(t *testing.T) { rapid.Check(t, modelProperty) }

func FuzzModel(f *testing.F) { f.Fuzz(rapid.MakeFuzz(modelProperty)) }

// TestDynamicRope: the frequencies are those of the batch, also after a longer one.
func TestDynamicRope(t *testing.T) {
	g := readModel(t, "llama_dynamic")
	m := open32(t, g, Options{})
	short := Batch{Tokens: g.Tokens[:6]}
	want := allLogits(t, m, short)
	long := allLogits(t, m, g.batch())
	require.Equal(t, want, allLogits(t, m, short))
	require.Equal(t, long, allLogits(t, m, g.batch()))
}

// TestFirstValues: fresh weights have the deviations that transformers gives them, and depend on
// the seed.
func TestFirstValues(t *testing.T) {
	c := tinyGPT2(GELU)
	c.Dim, c.Hidden, c.HeadDim, c.InitStd = 64, 256, 32, 0.02
	m, err := New(c, Options{Seed: 1})
	require.NoError(t, err)
	for _, p := range m.Params() {
		mean, square := 0.0, 0.0
		for _, x := range p.Value.Float32s() {
			mean += float64(x) / float64(p.Len())
			square += float64(x) * float64(x) / float64(p.Len())
		}
		want := map[string][2]float64{
			"h.0.ln_1.weight": {1, 1}, "h.0.ln_1.bias": {0, 0}, "h.0.attn.c_attn.bias": {0, 0},
			"wte.weight": {0, 0.02}, "h.1.attn.c_attn.weight": {0, 0.02}, "h.1.attn.c_proj.weight": {0, 0.01}, "h.0.mlp.c_proj.weight": {0, 0.01},
		}
		for name, w := range want {
			if p.Name == "transformer."+name {
				require.InDelta(t, w[0], mean, 0.003, name)
				require.InDelta(t, w[1], math.Sqrt(square), 0.002, name)
			}
		}
	}
	same, err := New(c, Options{Seed: 1})
	require.NoError(t, err)
	other, err := New(c, Options{Seed: 2, DType: snug.BF16})
	require.NoError(t, err)
	require.Equal(t, m.Params()[0].Value.Float32s(), same.Params()[0].Value.Float32s())
	require.NotEqual(t, snug.ToBFloat16(m.Params()[0].Value.Float32s()[5]), other.Params()[0].Value.BFloat16s()[5])
}
