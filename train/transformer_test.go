package train

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/qlora"
	"github.com/snug-ml/snug/quant8"
	"github.com/snug-ml/snug/transformer"
)

func tinyConfig(family string, tied bool) *transformer.Config {
	c := &transformer.Config{
		Family: family, Vocab: 19, Dim: 16, Hidden: 24, Layers: 2, Heads: 4, KVHeads: 2, HeadDim: 6, Context: 32, NormEps: 1e-6,
		Activation: transformer.SiLU, Gated: true, Rope: transformer.Rope{Kind: transformer.RopeDefault, Theta: 100, Dim: 6},
		Windows: []int{0, 3}, ScoreScale: 0.4, EmbeddingScale: 1, Tied: tied, InitStd: 0.3, QKVBias: true,
	}
	if family == "qwen3" {
		c.QKNorm, c.QKVBias = true, false
	}
	if family == "gpt2" {
		*c = transformer.Config{
			Family: family, Vocab: 19, Dim: 16, Hidden: 24, Layers: 2, Heads: 4, KVHeads: 4, HeadDim: 4, Context: 32, LayerNorm: true,
			NormEps: 1e-5, QKVBias: true, OutBias: true, MLPBias: true, Activation: transformer.GELUTanh, LearnedPositions: true,
			Windows: []int{0, 0}, ScoreScale: 0.5, EmbeddingScale: 1, Tied: tied, InitStd: 0.3,
		}
	}
	return c
}

func tokens(step int) transformer.Batch {
	b := transformer.Batch{Starts: []int{0, 5, 11}, Draw: uint64(step)}
	for i := range 11 {
		b.Tokens = append(b.Tokens, int32((i*i+step)%19))
		b.Labels = append(b.Labels, int32((i*7+step)%19)-2)
	}
	return b
}

// Models of package transformer train in the backward pass with the bits of the ordinary step, with one
// gradient at a time.
//
//check:in race
func TestTransformersInBackward(t *testing.T) {
	for _, family := range []string{"llama", "qwen3", "gpt2"} {
		for _, tied := range []bool{false, true} {
			run := func(o Options) (map[string][]float32, int64) {
				m, err := transformer.New(tinyConfig(family, tied), transformer.Options{Seed: 3})
				require.NoError(t, err)
				tr, err := New(Model[transformer.Batch](m), o)
				require.NoError(t, err)
				defer func() { require.NoError(t, tr.Close()) }()
				for step := range 4 {
					_, err := tr.Train(context.Background(), []transformer.Batch{tokens(step)})
					require.NoError(t, err)
				}
				out := map[string][]float32{}
				for _, p := range m.Params() {
					out[p.Name] = p.Value.Float32s()
				}
				return out, tr.Bytes()[meter.Gradients]
			}
			o := Options{StateBits: 8, Clip: 0.5, Schedule: Constant(1e-2)}
			want, all := run(o)
			o.Gradients = plan.InBackward
			got, one := run(o)
			require.Equal(t, want, got, "%s, tied %t", family, tied)
			require.Less(t, one, all/2)
		}
	}
}

// MLPs in tiles complete their gradients after the last tile: updates in the backward pass have the bits of the ordinary
// step, and at most as many gradients more at one time as package plan says.
func TestTilesInBackward(t *testing.T) {
	const sequences, length, tiles = 200, 13, 2
	b := transformer.Batch{Sequences: sequences}
	for i := range sequences * length {
		b.Tokens = append(b.Tokens, int32(i*i%19))
		b.Labels = append(b.Labels, int32(i*7%19)-2)
	}
	for i, family := range []string{"llama", "gpt2", "llama", "gpt2", "llama"} {
		for j, tied := range []bool{false, true} {
			if !kerneltest.Taken(i+j, 2) {
				continue
			}
			c := tinyConfig(family, tied)
			adapter := []*qlora.AdapterOptions{nil, nil, {Rank: 2, Alpha: 4, FrozenA: true, ModulesToSave: []string{"norm"}}, {Rank: 2, VeRA: &qlora.VeRAOptions{}}, {Rank: 2, Alpha: 4, Init: "olora"}}[i]
			run := func(tiles int, o Options) (map[string][]float32, int64) {
				m, err := transformer.New(c, transformer.Options{Seed: 3, Tiles: tiles, Adapter: adapter})
				require.NoError(t, err)
				tr, err := New(Model[transformer.Batch](m), o)
				require.NoError(t, err)
				defer func() { require.NoError(t, tr.Close()) }()
				for range 2 {
					_, err := tr.Train(context.Background(), []transformer.Batch{b})
					require.NoError(t, err)
				}
				out := map[string][]float32{}
				for _, p := range m.Params() {
					out[p.Name] = p.Value.Float32s()
				}
				return out, tr.Bytes()[meter.Gradients]
			}
			o := Options{StateBits: 8, Clip: 0.5, Schedule: Constant(1e-2)}
			want, all := run(tiles, o)
			o.Gradients = plan.InBackward
			got, some := run(tiles, o)
			require.Equal(t, want, got, "%s, tied %t", family, tied)
			require.Less(t, some, all)
			_, whole := run(1, o)
			model, err := c.Plan(length)
			require.NoError(t, err)
			d, err := plan.DeviceNamed("24GB")
			require.NoError(t, err)
			predicted := func(tiles int) int64 {
				r := plan.Run{Micro: sequences, Window: 1, Tiles: tiles, Gradients: plan.InBackward}
				task := plan.Task{Model: model, Device: d, Own: true, Batch: sequences}
				if a := adapter; a != nil {
					task.Rank, task.FrozenA, task.Init, task.VeRA = a.Rank, a.FrozenA, a.Init, a.VeRA != nil
					saved, err := c.ModulesToSave(a.ModulesToSave)
					require.NoError(t, err)
					for _, s := range saved {
						task.Beside = append(task.Beside, s.Shape)
					}
				}
				p, err := task.Predict(r)
				require.NoError(t, err)
				return p.Peak[meter.OnDevice][meter.Gradients]
			}
			require.LessOrEqual(t, some-whole, predicted(tiles)-predicted(1), "%s, tied %t", family, tied)
		}
	}
}

// Adapters train over matrices in 4 bits, with gradients and state for the adapters alone.
func TestAdapters(t *testing.T) {
	m, err := transformer.New(tinyConfig("llama", false), transformer.Options{
		DType: snug.BF16, Base: qlora.NF4, Adapter: &qlora.AdapterOptions{Rank: 2, Alpha: 4, Dropout: 0.1}})
	require.NoError(t, err)
	tr, err := New(Model[transformer.Batch](m), Options{Schedule: Constant(3e-2), Clip: 1})
	require.NoError(t, err)
	defer func() { require.NoError(t, tr.Close()) }()
	n := 0
	for _, v := range m.Trainable() {
		n += v.Len()
	}
	require.Equal(t, int64(4*n), tr.Bytes()[meter.Gradients])
	require.Zero(t, tr.Bytes()[meter.Masters])
	var first, last float64
	for step := range 60 {
		b := tokens(0)
		b.Draw = uint64(step)
		r, err := tr.Train(context.Background(), []transformer.Batch{b})
		require.NoError(t, err)
		if last = r.Loss; step == 0 {
			first = last
		}
	}
	require.Less(t, last, first/2)
}

// Adapters that began by their matrix go on from a checkpoint with the bits of a run that was not interrupted, with B
// at another rate, and with A frozen.
func TestStartedAdapters(t *testing.T) {
	for _, adapter := range []qlora.AdapterOptions{{Init: "pissa"}, {Init: "olora"}, {Init: "loftq"}, {FrozenA: true}} {
		adapter.Rank, adapter.Alpha = 2, 4
		run := func(dir string, params func(string) quant8.ParamOptions, from, to int) map[string][]float32 {
			m, err := transformer.New(tinyConfig("llama", false), transformer.Options{DType: snug.BF16, Base: qlora.NF4, Seed: 3, Adapter: &adapter})
			require.NoError(t, err)
			tr, err := New(Model[transformer.Batch](m), Options{Schedule: Constant(1e-2), Params: params, Checkpoints: Checkpoints{Dir: dir}})
			require.NoError(t, err)
			require.Equal(t, from, tr.Step())
			for step := from; step < to; step++ {
				_, err := tr.Train(context.Background(), []transformer.Batch{tokens(step)})
				require.NoError(t, err)
			}
			if dir != "" {
				require.NoError(t, tr.Save(context.Background()))
			}
			require.NoError(t, tr.Close())
			out := map[string][]float32{}
			for name, v := range m.Trainable() {
				out[name] = append([]float32(nil), v.Float32s()...)
			}
			require.NoError(t, m.Close())
			return out
		}
		want := run("", qlora.LoRAPlus(4), 0, 5)
		dir := t.TempDir()
		run(dir, qlora.LoRAPlus(4), 0, 3)
		require.Equal(t, want, run(dir, qlora.LoRAPlus(4), 3, 5), adapter.Init)

		// After one step the moments do not depend on the rates: only B moves farther.
		before, plain, faster := run("", nil, 0, 0), run("", nil, 0, 1), run("", qlora.LoRAPlus(4), 0, 1)
		for name, w := range before {
			ratio := float32(1)
			if strings.HasSuffix(name, ".lora_B.weight") {
				ratio = 4
			}
			for i, x := range w {
				require.InDelta(t, ratio*(plain[name][i]-x), faster[name][i]-x, 1e-6, name)
			}
		}
	}
}

// Losses that are collected on the way make the same reports, however a step runs.
func TestLosses(t *testing.T) {
	for name, o := range map[string]Options{
		"window": {Clip: 1}, "two passes": {Clip: 1, Gradients: plan.InBackward}, "folded": {Clip: 1, Gradients: plan.Folded}, "split": {},
	} {
		t.Run(name, func(t *testing.T) {
			run := func(losses *fused.Losses) (reports []Report) {
				m, err := transformer.New(tinyConfig("llama", false), transformer.Options{Seed: 3, Losses: losses})
				require.NoError(t, err)
				o.Losses = losses
				tr, err := New(Model[transformer.Batch](m), o)
				require.NoError(t, err)
				if name == "split" {
					require.NoError(t, tr.SplitBy(func(b transformer.Batch) (x, y transformer.Batch, ok bool) { return b, b, false }))
				}
				for step := range 3 {
					batches := []transformer.Batch{tokens(2 * step), tokens(2*step + 1)}
					if o.Gradients == plan.InBackward {
						batches = batches[:1]
					}
					stopped, stop := context.WithCancel(t.Context())
					stop()
					if step == 1 && o.Gradients != plan.Folded { // a step that fails leaves no losses behind
						_, err := tr.Train(stopped, batches)
						require.ErrorIs(t, err, context.Canceled)
					}
					r, err := tr.Train(t.Context(), batches)
					require.NoError(t, err)
					reports = append(reports, r)
				}
				require.NoError(t, tr.Close())
				return reports
			}
			require.Equal(t, run(nil), run(&fused.Losses{}))
		})
	}
}
