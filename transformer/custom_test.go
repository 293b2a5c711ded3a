package transformer

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/plan"
	"github.com/stretchr/testify/require"
)

// tinyCustom is GPT-2 without biases but the activation's, with matrices [out, in].
func tinyCustom() *Config {
	c := tinyGPT2(GELUTanh)
	c.Family, c.PackedQKV, c.UpBias, c.Tied = Custom, true, true, true
	c.QKVBias, c.OutBias, c.MLPBias = false, false, false
	return c
}

// freeCustom combines what no family does.
func freeCustom() *Config {
	c := tiny()
	c.Family, c.LayerNorm, c.Gated, c.Activation, c.MLPBias, c.ScoreCap = Custom, true, false, GELU, true, 0
	return c
}

// sunkCustom has sinks, and queries that are wider than the model.
func sunkCustom() *Config {
	c := tiny()
	c.Family, c.Sinks, c.ScoreCap, c.Tied = Custom, true, 0, false
	return c
}

// TestCustom: a custom model with GPT-2's values computes what GPT-2 does.
func TestCustom(t *testing.T) {
	gpt2 := tinyGPT2(GELUTanh)
	own := tinyCustom()
	own.QKVBias, own.OutBias, own.MLPBias, own.UpBias, own.Tied = true, true, true, false, false
	want, m := newTiny(t, gpt2, Options{Seed: 4}), newTiny(t, own, Options{Seed: 4})
	require.Len(t, m.Params(), len(want.Params()))
	for i, p := range want.Params() {
		to := m.Params()[i]
		if len(p.Shape) == 2 && p.Shape[0] != to.Shape[0] || strings.HasSuffix(p.Name, "attn.c_proj.weight") {
			require.NoError(t, transpose(to.Value, p.Value, p.Shape[0], p.Shape[1]))
			continue
		}
		require.Equal(t, p.Shape, to.Shape, "%s %s", p.Name, to.Name)
		require.NoError(t, snug.Copy(to.Value, p.Value))
	}
	b := someBatch(7, gpt2.Vocab, 2, 9)
	difference, largest := apart(allLogits(t, want, b), allLogits(t, m, b))
	require.LessOrEqual(t, difference, 1e-6*largest)
}

func TestCustomRefused(t *testing.T) {
	for want, change := range map[string]func(c *Config){
		"PackedQKV: q, k and v in one":       func(c *Config) { c.QKNorm = true },
		"UpBias: without a gate":             func(c *Config) { c.UpBias = false },
		"UpBias: only an MLP without a gate": func(c *Config) { c.Gated, c.Activation = true, SiLU },
		"PostNorms":                          func(c *Config) { c.PostNorms = true },
		`PackedQKV: true, and the family "gpt2" can only have false`: func(c *Config) { c.Family, c.UpBias = "gpt2", false },
	} {
		t.Run(want, func(t *testing.T) {
			c := tinyCustom()
			change(c)
			if c.Family == "gpt2" {
				c.QKVBias, c.OutBias, c.MLPBias = true, true, true
			}
			_, err := New(c, Options{})
			require.ErrorIs(t, err, snug.ErrConfig, want)
			require.ErrorContains(t, err, want)
		})
	}
	m := newTiny(t, tinyCustom(), Options{})
	require.ErrorContains(t, m.Save(t.TempDir(), 0), `Family: "custom", which no config.json can say`)
}

// TestPlainAttention: attention on paper has the numbers of attention in tiles, and the sizes that Costs
// and Plan say.
func TestPlainAttention(t *testing.T) {
	uncapped := tiny()
	uncapped.ScoreCap = 0
	for _, c := range []*Config{uncapped, tinyGPT2(GELU), tinyCustom(), freeCustom(), sunkCustom()} {
		tiled, plain := newTiny(t, c, Options{Seed: 3}), newTiny(t, c, Options{Seed: 3, PlainAttention: true})
		packed := someBatch(4, c.Vocab, 1, 16)
		packed.Sequences, packed.Starts = 0, []int{0, 1, 8, 16}
		for _, b := range []Batch{someBatch(7, c.Vocab, 2, 9), packed} {
			difference, largest := apart(allLogits(t, tiled, b), allLogits(t, plain, b))
			require.LessOrEqual(t, difference, 2e-6*largest)
			want, got := gradients(t, tiled, b), gradients(t, plain, b)
			for name, g := range want {
				difference, largest := apart(g, got[name])
				require.LessOrEqual(t, difference, 1e-5*max(largest, 1e-3), "%s %s", c.Family, name)
			}
		}
		const sequences, tokens = 2, 12
		p, err := c.Plan(tokens)
		require.NoError(t, err)
		for i := range p.Layers {
			p.Layers[i].Attention.Tiled = false
		}
		r := plan.Run{Micro: sequences, Window: 1, Compute: snug.F32}
		d, err := plan.DeviceNamed("24GB")
		require.NoError(t, err)
		task := plan.Task{Model: p, Device: d, Batch: sequences}
		costs, err := task.Costs(r)
		require.NoError(t, err)
		want, err := plain.Costs(sequences, tokens)
		require.NoError(t, err)
		for i, s := range want.Stages {
			require.Equal(t, s.Saved, costs.Stages[i].Saved)
		}
		fresh := newTiny(t, c, Options{PlainAttention: true})
		gradients(t, fresh, someBatch(3, c.Vocab, sequences, tokens))
		predicted, err := task.Predict(r)
		require.NoError(t, err)
		require.Equal(t, predicted.Peak[meter.OnDevice][meter.Workspace], fresh.Memory().Workspace)
		require.Equal(t, predicted.Peak[meter.OnDevice][meter.Activations], fresh.Memory().Peak)
	}
	_, err := New(tiny(), Options{PlainAttention: true})
	require.ErrorContains(t, err, "PlainAttention")
}

// TestMonitor: the monitor has the model's bytes, and its limit is the model's.
func TestMonitor(t *testing.T) {
	c, b := tinyCustom(), someBatch(7, 11, 2, 9)
	monitor, err := meter.New(meter.Options{})
	require.NoError(t, err)
	m, err := New(c, Options{Monitor: monitor})
	require.NoError(t, err)
	gradients(t, m, b)
	now, peak := monitor.Held()
	held := m.Memory()
	require.Equal(t, meter.Bytes{meter.Weights: held.Weights, meter.Workspace: held.Workspace}, now[meter.OnDevice])
	require.Equal(t, held.Peak, peak[meter.OnDevice][meter.Activations])

	ended, cancel := context.WithCancel(context.Background())
	cancel()
	_, err = m.Backprop(ended, b, 1, newWindow(t, m))
	require.ErrorIs(t, err, context.Canceled)
	now, _ = monitor.Held()
	require.Zero(t, now[meter.OnDevice][meter.Activations])
	require.NoError(t, m.Close())
	now, _ = monitor.Held()
	require.Zero(t, now[meter.OnDevice].Total())

	all := monitor.Peak(meter.OnDevice)
	for _, limit := range []int64{all, all - 1, held.Weights + 10, 10} {
		monitor, err := meter.New(meter.Options{Limits: [meter.Tiers]int64{limit}})
		require.NoError(t, err)
		m, err := New(c, Options{Monitor: monitor})
		if limit < held.Weights {
			require.ErrorIs(t, err, snug.ErrNoMemory)
			continue
		}
		require.NoError(t, err)
		w := newWindow(t, m)
		require.NoError(t, w.Begin(1))
		_, err = m.Backprop(context.Background(), b, 1, w)
		if limit == all {
			require.NoError(t, err)
			continue
		}
		require.ErrorIs(t, err, snug.ErrNoMemory, fmt.Sprint(limit))
	}
}

// TestFirstValues32: FirstValues writes, in any order, what New rounds.
func TestFirstValues32(t *testing.T) {
	for _, c := range []*Config{tinyCustom(), tinyGemma()} {
		m, err := New(c, Options{Seed: 8})
		require.NoError(t, err)
		for _, p := range m.Params() {
			want, w := p.Value.Float32s(), make([]float32, p.Len())
			fill := m.FirstValues(p.Name)
			cut := len(w) / 3
			require.NoError(t, fill(cut, w[cut:]))
			require.NoError(t, fill(0, w[:cut]))
			require.True(t, slices.Equal(want, w), p.Name)
		}
		require.Nil(t, m.FirstValues("nothing"))
	}
}

// TestReserve: after it, batches up to the size need no more workspace, and those buffers have their size.
func TestReserve(t *testing.T) {
	for _, c := range []*Config{tinyCustom(), tiny()} {
		m := newTiny(t, c, Options{})
		require.NoError(t, m.Reserve(2, 9))
		reserved := m.Memory().Workspace
		gradients(t, m, someBatch(7, c.Vocab, 1, 5))
		held := m.Memory().Buffers
		gradients(t, m, someBatch(7, c.Vocab, 2, 9))
		require.Equal(t, reserved, m.Memory().Workspace)
		require.Equal(t, held, m.Memory().Buffers)
		for _, n := range [][2]int{{0, 1}, {1, 0}, {-1, -1}, {math.MaxInt32, 2}} {
			require.ErrorIs(t, m.Reserve(n[0], n[1]), snug.ErrShape)
		}
		require.NoError(t, m.Close())
		require.ErrorIs(t, m.Reserve(1, 1), snug.ErrConfig)
	}
}

// TestGenerateCustom: the cache of packed keys and values, also fewer than the queries, has the logits of the
// whole text.
func TestGenerateCustom(t *testing.T) {
	grouped := tinyCustom()
	grouped.Heads, grouped.KVHeads = 4, 2
	for _, c := range []*Config{tinyCustom(), grouped, freeCustom()} {
		m := newTiny(t, c, Options{Seed: 2})
		b := someBatch(7, c.Vocab, 1, 9)
		g := newGenerator(t, m, GenerateOptions{Context: 16, Chunk: 4})
		require.NoError(t, g.Prompt(context.Background(), b.Tokens))
		_, err := g.Next(context.Background())
		require.NoError(t, err)
		difference, largest := apart(allLogits(t, m, b)[8*c.Vocab:], g.Logits())
		require.LessOrEqual(t, difference, 1e-5*largest)
	}
}
