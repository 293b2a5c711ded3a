package transformer

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/qlora"
	"github.com/snug-ml/snug/remat"
	"github.com/stretchr/testify/require"
)

// tiny has every part that the families of Llama's names can have: biases, norms of q and k, a
// window, a cap of scores.
func tiny() *Config {
	return &Config{
		Family: "qwen3", Vocab: 11, Dim: 6, Hidden: 7, Layers: 2, Heads: 4, KVHeads: 2, HeadDim: 4, Context: 32,
		NormEps: 1e-6, QKNorm: true, QKVBias: true, OutBias: true, Activation: SiLU, Gated: true,
		Rope: Rope{Kind: RopeYarn, Theta: 100, Dim: 4, Factor: 4, OriginalPositions: 4}, Windows: []int{0, 3},
		ScoreScale: 0.7, ScoreCap: 2, EmbeddingScale: 1, Tied: true, InitStd: 0.5,
	}
}

// tinyGemma has what only Gemma has, in addition to the rest.
func tinyGemma() *Config {
	c := tiny()
	c.Family, c.Activation, c.NormPlusOne, c.PostNorms, c.EmbeddingScale = "gemma3_text", GELUTanh, true, true, 1.5
	c.LocalRope, c.LogitCap = Rope{Kind: RopeDefault, Theta: 50, Dim: 4}, 3
	return c
}

// tinyGemma4 has layers of two kinds.
func tinyGemma4() *Config {
	c := tiny()
	c.Family, c.Activation, c.PostNorms, c.ValueNorm, c.LayerScalar = "gemma4_text", GELUTanh, true, true, true
	c.LocalRope, c.LogitCap, c.ScoreScale = Rope{Kind: RopeDefault, Theta: 50, Dim: c.HeadDim}, 3, 1
	c.Full = FullAttention{KVHeads: 1, HeadDim: c.HeadDim + 2, KeysAreValues: true}
	c.Rope = Rope{Kind: RopeProportional, Theta: 40, Factor: 1, Dim: c.Full.HeadDim, Turned: 2}
	return c
}

// tinyShared has layers with tables of their own, and two without keys and values.
func tinyShared() *Config {
	c := tinyGemma4()
	c.Layers, c.Windows, c.SharedKV, c.WideShared, c.PerLayer, c.PerLayerVocab = 5, []int{3, 0, 3, 3, 0}, 3, true, 3, 12
	return c
}

// tinyBeside has experts beside the MLPs of tinyShared.
func tinyBeside() *Config {
	c := tinyShared()
	c.Experts = Experts{Count: 4, Chosen: 2, Hidden: 5, Normalize: true, Beside: true}
	return c
}

// tinyStreams has rows of three streams.
func tinyStreams() *Config {
	c := tinyShared()
	c.Family, c.LayerScalar, c.WideShared, c.Full = "gemma3n_text", false, false, FullAttention{}
	c.Rope = Rope{Kind: RopeDefault, Theta: 40, Dim: c.HeadDim}
	c.AltUp, c.Sparsity = AltUp{Streams: 3, Active: 1, Rank: 2}, []float64{0.4, 0, 0, 0.2, 0}
	return c
}

func tinyGPT2(act Activation) *Config {
	return &Config{
		Family: "gpt2", Vocab: 11, Dim: 8, Hidden: 9, Layers: 2, Heads: 2, KVHeads: 2, HeadDim: 4, Context: 16,
		LayerNorm: true, NormEps: 1e-5, QKVBias: true, OutBias: true, MLPBias: true, Activation: act, LearnedPositions: true,
		Windows: []int{0, 0}, ScoreScale: 0.5, EmbeddingScale: 1, InitStd: 0.5,
	}
}

// newTiny returns a model with values in all parameters.
func newTiny(t testing.TB, c *Config, o Options) *Model {
	t.Helper()
	m, err := New(c, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	rng := rand.New(rand.NewPCG(5, 6))
	for _, p := range m.Params() {
		if len(p.Shape) == 2 {
			continue
		}
		v := make([]float32, p.Len())
		for i := range v {
			v[i] = float32(0.3 * rng.NormFloat64())
			if !strings.HasSuffix(p.Name, ".bias") && !c.NormPlusOne {
				v[i]++
			}
		}
		low, _, err := snug.MakeView(snug.CPU(), p.Value.DType(), len(v))
		require.NoError(t, err)
		require.NoError(t, amp.Cast(low, v))
		require.NoError(t, snug.Copy(p.Value, low))
	}
	return m
}

// someBatch is a batch of sequences of equal length.
func someBatch(seed uint64, vocab, sequences, tokens int) Batch {
	rng := rand.New(rand.NewPCG(seed, 1))
	b := Batch{Sequences: sequences}
	for range sequences * tokens {
		b.Tokens = append(b.Tokens, int32(rng.IntN(vocab)))
		b.Labels = append(b.Labels, int32(rng.IntN(vocab+1)-1))
	}
	return b
}

// TestGradientsByDifferences compares gradients with differences of the mean loss.
//
//check:not bits32
func TestGradientsByDifferences(t *testing.T) {
	for name, c := range map[string]*Config{"llama": tiny(), "gemma": tinyGemma(), "gpt2": tinyGPT2(GELUTanh), "gpt2, erf": tinyGPT2(GELU), "custom": tinyCustom(), "custom, free": freeCustom(), "custom, sinks": sunkCustom()} {
		t.Run(name, func(t *testing.T) {
			m := newTiny(t, c, Options{Seed: 3})
			b := someBatch(7, c.Vocab, 2, 9)
			grads := gradients(t, m, b)
			mean := func() float64 {
				loss, err := m.Evaluate(context.Background(), b)
				require.NoError(t, err)
				return loss.Sum / float64(loss.Targets)
			}
			rng := rand.New(rand.NewPCG(8, 9))
			for _, p := range m.Params() {
				v := p.Value.Float32s()
				for range 6 {
					i := rng.IntN(len(v))
					at := func(x float32) float64 {
						old := v[i]
						defer func() { v[i] = old }()
						v[i] += x
						return mean()
					}
					const h = 1.0 / 1024 // the error is of the order h⁴
					want := (8*(at(h)-at(-h)) - (at(2*h) - at(-2*h))) / (12 * h)
					require.InDelta(t, want, grads[p.Name][i], 5e-4, "%s: %s[%d]", name, p.Name, i)
				}
			}
		})
	}
}

// TestPacked: sequences that are packed into one batch compute what they compute alone, and
// as rows of a batch of equal lengths.
func TestPacked(t *testing.T) {
	for _, c := range []*Config{tiny(), tinyGemma(), tinyGPT2(GELU), sunkCustom()} {
		m := newTiny(t, c, Options{Seed: 3})
		b := someBatch(4, c.Vocab, 1, 16)
		b.Sequences, b.Starts = 0, []int{0, 1, 8, 16}
		together := allLogits(t, m, b)
		grads := gradients(t, m, b)
		sum := map[string][]float64{}
		counted := 0
		for i, lo := range b.Starts[:3] {
			hi := b.Starts[i+1]
			alone := Batch{Tokens: b.Tokens[lo:hi], Labels: b.Labels[lo:hi]}
			difference, largest := apart(together[lo*c.Vocab:hi*c.Vocab], allLogits(t, m, alone))
			require.LessOrEqual(t, difference, 1e-6*largest)
			last := make([]float32, c.Vocab)
			require.NoError(t, m.Logits(context.Background(), last, alone, nil))
			require.Equal(t, allLogits(t, m, alone)[(hi-lo-1)*c.Vocab:], last)
			n := 0
			for _, l := range alone.Labels {
				if l >= 0 {
					n++
				}
			}
			if n == 0 {
				continue
			}
			counted += n
			for name, g := range gradients(t, m, alone) {
				if sum[name] == nil {
					sum[name] = make([]float64, len(g))
				}
				for j, x := range g {
					sum[name][j] += float64(n) * float64(x)
				}
			}
		}
		for name, g := range grads {
			for j := range g {
				require.InDelta(t, sum[name][j]/float64(counted), g[j], 1e-5, "%s[%d]", name, j)
			}
		}
		lasts := make([]float32, 3*c.Vocab)
		require.NoError(t, m.Logits(context.Background(), lasts, b, nil))
		require.Equal(t, together[15*c.Vocab:], lasts[2*c.Vocab:])

		even := someBatch(4, c.Vocab, 2, 8)
		packed := even
		packed.Sequences, packed.Starts = 0, []int{0, 8, 16}
		difference, largest := apart(allLogits(t, m, packed), allLogits(t, m, even))
		require.LessOrEqual(t, difference, 1e-6*largest)
	}
}

// TestFrozen: the gradients of the parameters that train are the same bits as when all train, and
// the others have none.
func TestFrozen(t *testing.T) {
	for name, train := range map[string]func(string) bool{
		"norms":     func(n string) bool { return strings.Contains(n, "norm") || strings.Contains(n, "ln_") },
		"biases":    func(n string) bool { return strings.HasSuffix(n, ".bias") },
		"weights":   func(n string) bool { return strings.HasSuffix(n, ".weight") },
		"last":      func(n string) bool { return strings.Contains(n, ".1.") },
		"last MLP":  func(n string) bool { return strings.Contains(n, ".1.mlp") },
		"final":     func(n string) bool { return strings.HasSuffix(n, "norm.weight") || strings.Contains(n, "ln_f") },
		"embedding": func(n string) bool { return strings.Contains(n, "embed") || strings.Contains(n, "wte") },
		"positions": func(n string) bool { return strings.Contains(n, "norm.weight") || strings.Contains(n, "wpe") },
		"none":      func(string) bool { return false },
	} {
		t.Run(name, func(t *testing.T) {
			for _, c := range []*Config{tiny(), tinyGemma(), tinyGPT2(GELUTanh)} {
				b := someBatch(4, c.Vocab, 2, 8)
				want := gradients(t, newTiny(t, c, Options{Seed: 3}), b)
				m := newTiny(t, c, Options{Seed: 3, Train: train})
				for _, p := range m.Params() {
					require.Equal(t, train(p.Name), p.Trains, p.Name)
					if !p.Trains {
						delete(want, p.Name)
					}
				}
				if len(want) == 0 { // then there is no window to make
					_, err := m.Backprop(context.Background(), b, 1, refusing{})
					require.NoError(t, err)
					continue
				}
				require.Equal(t, want, gradients(t, m, b), "%s %s", name, c.Family)
			}
		})
	}
}

// TestScale: gradients are those of the mean loss times scale.
func TestScale(t *testing.T) {
	m := newTiny(t, tiny(), Options{Seed: 3})
	b := someBatch(4, 11, 2, 8)
	want := gradients(t, m, b)
	w := newWindow(t, m)
	require.NoError(t, w.Begin(1))
	loss, err := m.Backprop(context.Background(), b, 8, w)
	require.NoError(t, err)
	same, err := m.Evaluate(context.Background(), b)
	require.NoError(t, err)
	require.Equal(t, same.Targets, loss.Targets)
	require.InDelta(t, same.Sum, loss.Sum, 1e-4)
	_, err = w.End()
	require.NoError(t, err)
	for name, g := range w.Gradients() {
		for i, x := range g.Float32s() {
			require.Equal(t, 8*want[name][i], x, "%s[%d]", name, i) // a power of two rounds nothing
		}
	}
}

// windowFunc is a window of one function.
type windowFunc func(name string) (snug.View, snug.Into, error)

func (f windowFunc) Into(name string) (snug.View, snug.Into, error) { return f(name) }

// TestWindowErrors: what a window says or hands out wrongly reaches the caller from every stage,
// and the model works on.
func TestWindowErrors(t *testing.T) {
	refused := errors.New("refused")
	for _, c := range []*Config{tiny(), tinyGemma(), tinyGPT2(GELUTanh)} {
		m := newTiny(t, c, Options{Seed: 3})
		b := someBatch(4, c.Vocab, 2, 8)
		want := gradients(t, m, b)
		for _, wrong := range m.Params() {
			for name, answer := range map[string]struct {
				acc  snug.View
				err  error
				want error
			}{
				"error":  {err: refused, want: refused},
				"length": {acc: snug.ViewOf(make([]float32, wrong.Len()+1)), want: snug.ErrShape},
				"type":   {acc: snug.ViewOf(make([]snug.BFloat16, wrong.Len())), want: snug.ErrShape},
				"into":   {acc: snug.ViewOf(make([]float32, wrong.Len())), want: snug.ErrConfig},
			} {
				_, err := m.Backprop(context.Background(), b, 1, windowFunc(func(param string) (snug.View, snug.Into, error) {
					if param != wrong.Name {
						return snug.ViewOf(make([]float32, m.index[param].Len())), snug.Into{}, nil
					}
					return answer.acc, snug.Into{Alpha: float32(math.Inf(1))}, answer.err
				}))
				require.ErrorIs(t, err, answer.want, "%s: %s", wrong.Name, name)
			}
			require.NotZero(t, m.pass.Held())
		}
		require.Equal(t, want, gradients(t, m, b))
		require.Zero(t, m.pass.Used())
	}
}

// refusing is a window that nobody may ask.
type refusing struct{}

func (refusing) Into(name string) (snug.View, snug.Into, error) { panic(name) }

// TestSave: a saved model is read with the same bits, in shards too.
func TestSave(t *testing.T) {
	for _, shard := range []int64{0, 600} {
		m := newTiny(t, tiny(), Options{Seed: 3})
		m.config.ScoreCap, m.config.Windows[1] = 0, 0 // which config.json of qwen3 cannot say
		m.config.ScoreScale = 0.5
		dir := t.TempDir()
		require.NoError(t, m.Save(dir, shard))
		names, err := filepath.Glob(filepath.Join(dir, "*.safetensors"))
		require.NoError(t, err)
		require.Equal(t, shard > 0, len(names) > 1)
		again, err := Open(dir, Options{})
		require.NoError(t, err)
		require.Equal(t, snug.F32, again.Config().DType)
		for i, p := range again.Params() {
			require.Equal(t, m.Params()[i].Value.Float32s(), p.Value.Float32s(), p.Name)
		}
	}
}

// TestSaveRefused: a model that config.json cannot describe leaves the folder as it was.
func TestSaveRefused(t *testing.T) {
	m, dir := newTiny(t, tiny(), Options{}), t.TempDir()
	err := m.Save(dir, 0)
	require.ErrorIs(t, err, snug.ErrConfig)
	require.ErrorContains(t, err, "ScoreScale")
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, files)
}

// TestSaveForTransformers writes the models of testdata with their logits, for models.py check.
func TestSaveForTransformers(t *testing.T) {
	to := os.Getenv("SNUG_SAVE")
	if to == "" {
		to = t.TempDir()
	}
	for _, name := range append(slices.Clone(modelNames), "gpt_oss_mxfp4") {
		g := readModel(t, name)
		m := open32(t, g, Options{})
		dir := filepath.Join(to, name)
		require.NoError(t, m.Save(dir, 30_000))
		logits := amp.Tensor{Name: "logits", Shape: []int{len(g.Tokens), m.config.Vocab}}
		require.NoError(t, amp.SaveWeights(filepath.Join(dir, "logits.safetensors"), func(yield func(amp.Tensor, snug.View) bool) {
			yield(logits, snug.ViewOf(allLogits(t, m, g.batch())))
		}, nil))
	}
}

// TestAllocations: a training step that is not longer than an earlier one allocates nothing.
//
//check:not bits32
func TestAllocations(t *testing.T) {
	adapted := func(base qlora.Type, dora bool) Options {
		return Options{DType: snug.BF16, Base: base, Adapter: &qlora.AdapterOptions{Rank: 2, Alpha: 4, DoRA: dora, Dropout: 0.1}}
	}
	for _, k := range []struct {
		c *Config
		o Options
	}{
		{tiny(), Options{DType: snug.BF16}}, {sunkCustom(), Options{DType: snug.BF16}}, {tinyGemma(), Options{DType: snug.BF16}}, {tinyGemma4(), Options{DType: snug.BF16}}, {tinyShared(), Options{DType: snug.BF16}}, {tinyBeside(), Options{DType: snug.BF16}}, {tinyGPT2(GELU), Options{DType: snug.BF16}},
		{tiny(), adapted(0, false)}, {tiny(), adapted(0, true)}, {tiny(), adapted(qlora.NF4, false)}, {tiny(), adapted(qlora.NF4, true)}, {tinyGPT2(GELU), adapted(0, true)},
		{tiny(), Options{DType: snug.BF16, Tiles: 2}}, {tiny(), Options{Tiles: 2, Adapter: adapted(0, true).Adapter}},
	} {
		c, m := k.c, newTiny(t, k.c, k.o)
		w := newWindow(t, m)
		ctx := context.Background()
		batches := []Batch{someBatch(1, c.Vocab, 2, 8), someBatch(2, c.Vocab, 3, 4), someBatch(3, c.Vocab, 1, 15)}
		batches[2].Sequences, batches[2].Starts = 0, []int{0, 4, 15}
		if k.o.Tiles > 1 {
			batches = append(batches, someBatch(4, c.Vocab, 163, 13)) // two tiles
		}
		var err error
		logp, derive := make([]float32, 163*13), func(logp, dlogp []float32) error { return nil }
		step := func() {
			for _, b := range batches {
				if err = w.Begin(1); err != nil {
					return
				}
				if _, err = m.Backprop(ctx, b, 1, w); err != nil {
					return
				}
				if err = m.BackpropLogProbs(ctx, b, 1, derive, w); err != nil {
					return
				}
				if err = m.LogProbs(ctx, logp[:len(b.Tokens)], b); err != nil {
					return
				}
				if _, err = w.End(); err != nil {
					return
				}
				w.Reset()
				if _, err = m.Evaluate(ctx, b); err != nil {
					return
				}
			}
		}
		kerneltest.NoAllocs(t, step)
		require.NoError(t, err)
	}
}

// TestModelOnDevices: the model computes on every device of this build what it computes on the CPU.
//
//check:in emulated
func TestModelOnDevices(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
		for _, c := range []*Config{tiny(), tinyGemma(), tinyGPT2(GELUTanh), tinyCustom(), sunkCustom()} {
			b := someBatch(4, c.Vocab, 2, 8)
			for _, a := range []*qlora.AdapterOptions{nil, {Rank: 2, Alpha: 4, DoRA: true}} {
				cpu := newTiny(t, c, Options{Seed: 3, Adapter: a})
				m := newTiny(t, c, Options{Seed: 3, Adapter: a, Device: p.Dev})
				tolerance := 1e-4
				if p.Dev == nil || p.Dev.IsCPU() || p.Name == "opaque" { // which computes with Go
					tolerance = 0
				}
				difference, largest := apart(allLogits(t, m, b), allLogits(t, cpu, b))
				require.LessOrEqual(t, difference, tolerance*largest)
				want := gradients(t, cpu, b)
				for name, g := range gradients(t, m, b) {
					difference, largest := apart(g, want[name])
					require.LessOrEqual(t, difference, tolerance*max(largest, 0.1), name)
				}
				generated := make([][]float32, 2)
				for i, m := range []*Model{cpu, m} {
					g := newGenerator(t, m, GenerateOptions{Context: 12, Chunk: 2})
					require.NoError(t, g.Prompt(context.Background(), b.Tokens[:7]))
					_, err := g.Next(context.Background())
					require.NoError(t, err)
					generated[i] = g.Logits()
				}
				difference, largest = apart(generated[1], generated[0])
				require.LessOrEqual(t, difference, tolerance*largest)
			}
		}
	})
}

func TestModelErrors(t *testing.T) {
	ctx := context.Background()
	m := newTiny(t, tinyGPT2(GELU), Options{})
	good := someBatch(1, 11, 2, 4)
	with := func(change func(b *Batch)) Batch {
		b := someBatch(1, 11, 2, 4)
		change(&b)
		return b
	}
	for name, c := range map[string]struct {
		b    Batch
		want error
		says string
	}{
		"empty":          {Batch{}, snug.ErrShape, "0 tokens"},
		"labels":         {with(func(b *Batch) { b.Labels = b.Labels[1:] }), snug.ErrShape, "7 labels"},
		"label":          {with(func(b *Batch) { b.Labels[3] = 11 }), snug.ErrShape, "label 3 is 11"},
		"token":          {with(func(b *Batch) { b.Tokens[2] = 11 }), snug.ErrShape, "token 2 is 11"},
		"negative token": {with(func(b *Batch) { b.Tokens[2] = -1 }), snug.ErrShape, "token 2 is -1"},
		"sequences":      {with(func(b *Batch) { b.Sequences = 3 }), snug.ErrShape, "multiple of 3"},
		"negative":       {with(func(b *Batch) { b.Sequences = -1 }), snug.ErrConfig, "Sequences -1"},
		"both":           {with(func(b *Batch) { b.Starts = []int{0, 8} }), snug.ErrConfig, "one of the two"},
		"starts":         {with(func(b *Batch) { b.Sequences, b.Starts = 0, []int{0, 7} }), snug.ErrShape, "Starts"},
		"starts back":    {with(func(b *Batch) { b.Sequences, b.Starts = 0, []int{0, 5, 3, 8} }), snug.ErrShape, "Starts[2] = 3"},
		"starts beyond":  {with(func(b *Batch) { b.Sequences, b.Starts = 0, []int{0, 9, 8} }), snug.ErrShape, "Starts[1] = 9"},
		"no start":       {with(func(b *Batch) { b.Sequences, b.Starts = 0, []int{} }), snug.ErrShape, "Starts"},
		"too long":       {someBatch(1, 11, 1, 17), snug.ErrShape, "17 tokens, and the model has 16"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := m.Backprop(ctx, c.b, 1, refusing{})
			if name == "empty" { // no labels count
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, c.want, name)
				require.ErrorContains(t, err, c.says, name)
				kerneltest.Error(t, "transformer.Backprop", err)
			}
			_, err = m.Evaluate(ctx, c.b)
			require.ErrorIs(t, err, c.want, name)
			require.ErrorContains(t, err, c.says, name)
		})
	}
	_, err := m.Backprop(ctx, good, float32(math.NaN()), refusing{})
	require.ErrorIs(t, err, snug.ErrConfig)
	_, err = m.Backprop(ctx, good, 1, nil)
	require.ErrorIs(t, err, snug.ErrConfig)
	require.ErrorIs(t, m.Logits(ctx, make([]float32, 11), good, nil), snug.ErrShape)
	require.ErrorIs(t, m.Logits(ctx, make([]float32, 11), good, []int32{8}), snug.ErrShape)
	require.ErrorIs(t, m.SetPlan(remat.Plan{Ops: []remat.Op{{Kind: remat.Backward}}}), snug.ErrShape)
	require.ErrorIs(t, m.SetPlan(remat.Plan{Ops: []remat.Op{{Kind: remat.PageHost}}}), snug.ErrConfig)
	_, err = m.Costs(0, 1)
	require.ErrorIs(t, err, snug.ErrConfig)

	require.Panics(t, func() { _, _ = m.Backprop(ctx, good, 1, refusing{}) })
	require.NotEmpty(t, gradients(t, m, good), "after a panic of the window")
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	_, err = m.Evaluate(cancelled, good)
	require.ErrorIs(t, err, context.Canceled)

	closed, err := New(tinyGPT2(GELU), Options{})
	require.NoError(t, err)
	require.NoError(t, closed.Close())
	require.NoError(t, closed.Close())
	_, err = closed.Evaluate(ctx, good)
	require.ErrorIs(t, err, snug.ErrConfig)
	require.ErrorIs(t, closed.Save(t.TempDir(), 0), snug.ErrConfig)
}

// TestUnsupported: models that the stages do not compute are refused by the name of the field.
func TestUnsupported(t *testing.T) {
	for name, change := range map[string]func(c *Config){
		"Activation": func(c *Config) { c.Activation = GELU }, "PostNorms": func(c *Config) { c.PostNorms = true },
		"LogitCap":  func(c *Config) { c.LogitCap = 1e-38 },
		"LayerNorm": func(c *Config) { c.LayerNorm = true }, "Gated": func(c *Config) { c.Gated, c.Activation = false, GELU },
		"KVHeads": func(c *Config) { c.KVHeads = 3 }, "Whole": func(c *Config) { c.Whole = "llava" },
	} {
		t.Run(name, func(t *testing.T) {
			c := tiny()
			change(c)
			_, err := New(c, Options{})
			require.ErrorIs(t, err, snug.ErrConfig, name)
			require.ErrorContains(t, err, name+":")
		})
	}
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), []byte(`{"model_type": "gpt2", "activation_function": "silu"}`), 0o600))
	_, err := Open(dir, Options{})
	require.ErrorIs(t, err, snug.ErrConfig)
	require.ErrorContains(t, err, `"silu" without a gate is not supported`)
	_, err = New(tiny(), Options{DType: snug.U8})
	require.ErrorIs(t, err, snug.ErrDType)
	_, err = New(tiny(), Options{LossRows: -1})
	require.ErrorIs(t, err, snug.ErrConfig)
	_, err = Open(t.TempDir(), Options{})
	require.ErrorIs(t, err, os.ErrNotExist)
}
