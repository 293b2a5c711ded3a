package transformer

import (
	"bytes"
	"context"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/qlora"
	"github.com/snug-ml/snug/quant8"
	"github.com/stretchr/testify/require"
)

// startGolden is how adapters trained with PEFT that began by their matrix, see testdata/starts.py.
type startGolden struct {
	Base   string
	NF4    bool
	Fields struct {
		TargetModules qlora.Modules      `json:"target_modules"`
		R             int                `json:"r"`
		Alpha         float32            `json:"lora_alpha"`
		RSLoRA        bool               `json:"use_rslora"`
		Ranks         map[string]int     `json:"rank_pattern"`
		Alphas        map[string]float32 `json:"alpha_pattern"`
		Init          string             `json:"init_lora_weights"`
		Modules       []string           `json:"modules_to_save"`
		FrozenA       bool               `json:"frozen_a"`
	}
	Losses []float64
}

func readStarts(t *testing.T) (all map[string]startGolden) {
	text, err := os.ReadFile(filepath.Join("testdata", "starts.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &all))
	require.Len(t, all, 11)
	return all
}

func (g startGolden) options() Options {
	f := g.Fields
	o := Options{DType: snug.F32}
	if g.NF4 {
		o.Base = qlora.NF4
	}
	if f.R == 0 {
		o.AdapterDir = filepath.Join("testdata", "adapters", "llama_lora")
		return o
	}
	o.Adapter = &qlora.AdapterOptions{Targets: f.TargetModules, Rank: f.R, Alpha: f.Alpha, RSLoRA: f.RSLoRA, Ranks: f.Ranks, Alphas: f.Alphas, Init: f.Init, ModulesToSave: f.Modules, FrozenA: f.FrozenA}
	return o
}

// trainSteps makes steps of AdamW with PEFT's order of decay, and returns the losses before each and after them.
func trainSteps(t *testing.T, m *Model, b Batch, decay float32, params func(string) quant8.ParamOptions, steps int) (losses []float64) {
	opt, err := quant8.New(quant8.AdamW{WeightDecay: decay, DecayFirst: true}, quant8.Options{Bits: 32, Params: params})
	require.NoError(t, err)
	for name, v := range m.Trainable() {
		require.NoError(t, opt.Add(name, v.Len()))
	}
	w := newWindow(t, m)
	for range steps {
		require.NoError(t, w.Begin(1))
		loss, err := m.Backprop(context.Background(), b, 1, w)
		require.NoError(t, err)
		_, err = w.End()
		require.NoError(t, err)
		losses = append(losses, loss.Mean())
		opt.Advance(1e-3)
		for name, v := range m.Trainable() {
			grad, err := w.Gradient(name)
			require.NoError(t, err)
			require.NoError(t, opt.Step(name, v, grad, 1))
		}
		w.Reset()
	}
	loss, err := m.Evaluate(context.Background(), b)
	require.NoError(t, err)
	return append(losses, loss.Mean())
}

// TestStartsAgainstPEFT: adapters that begin by their matrix train as PEFT's do, and what SaveAdapter writes computes
// the same with the published base. It writes what testdata/starts.py checks, into the folder $SNUG_SAVE.
//
//check:not bits32
func TestStartsAgainstPEFT(t *testing.T) {
	dir := os.Getenv("SNUG_SAVE")
	if dir == "" {
		dir = t.TempDir()
	}
	for name, g := range readStarts(t) {
		o, base := g.options(), readModel(t, g.Base)
		folder := filepath.Join("testdata", "models", g.Base)
		m, err := Open(folder, o)
		require.NoError(t, err)
		decay, params := float32(0.01), func(string) quant8.ParamOptions { return quant8.ParamOptions{} }
		if name == "loraplus" {
			decay, params = 0, qlora.LoRAPlus(16)
		}
		losses := trainSteps(t, m, base.batch(), decay, params, len(g.Losses)-1)
		worst := 0.0
		for i, want := range g.Losses {
			worst = max(worst, math.Abs(losses[i]-want))
		}
		t.Logf("%s: losses of 20 steps differ by %.1e at most", name, worst)
		require.Less(t, worst, 2e-5, "%s: %v, want %v", name, losses, g.Losses)

		out := filepath.Join(dir, name)
		require.NoError(t, m.SaveAdapter(out))
		logits := allLogits(t, m, base.batch())
		o.Adapter, o.AdapterDir = nil, out
		again, err := Open(folder, o)
		require.NoError(t, err)
		difference, largest := apart(allLogits(t, again, base.batch()), logits)
		t.Logf("%s: logits with the published base differ by %.1e of the largest", name, difference/largest)
		require.Less(t, difference, 1e-5*largest, name)
		require.NoError(t, amp.SaveWeights(filepath.Join(out, "logits.safetensors"), func(yield func(amp.Tensor, snug.View) bool) {
			yield(amp.Tensor{Name: "logits", Shape: []int{len(base.Tokens), m.config.Vocab}}, snug.ViewOf(logits))
		}, nil))
		merged := t.TempDir()
		require.NoError(t, m.Save(merged, 0))
		plain, err := Open(merged, Options{})
		require.NoError(t, err)
		difference, _ = apart(allLogits(t, plain, base.batch()), logits)
		require.Less(t, difference, 1e-5*largest, name)
		require.NoError(t, plain.Close())
		require.NoError(t, again.Close())
		require.NoError(t, m.Close())
	}
}

// TestStarts: with every base and type a model whose adapters took over a part of it begins with the model's outputs.
func TestStarts(t *testing.T) {
	for _, c := range []*Config{tiny(), tinyGemma(), tinyGPT2(GELU)} {
		c.InitStd = 0.2
		b := someBatch(7, c.Vocab, 2, 8)
		for _, dt := range []snug.DType{snug.F32, snug.BF16} {
			want := allLogits(t, newTiny(t, c, Options{DType: dt}), b)
			nf4, largest := apart(allLogits(t, newTiny(t, c, Options{DType: dt, Base: qlora.NF4}), b), want)
			for _, init := range []string{"pissa", "pissa_niter_2", "olora", "loftq"} {
				o := Options{DType: dt, Adapter: &qlora.AdapterOptions{Rank: 2, Alpha: 3, Init: init}}
				if init != "loftq" {
					m := newTiny(t, c, o)
					difference, _ := apart(allLogits(t, m, b), want)
					bound := map[snug.DType]float64{snug.F32: 2e-5, snug.BF16: 6e-2}[dt]
					require.Less(t, difference, bound*largest, "%s %s %s", c.Family, dt, init)
					again := newTiny(t, c, o)
					for i, p := range m.Params() {
						if p.Trains {
							require.Equal(t, p.Value.Float32s(), again.params[i].Value.Float32s(), p.Name)
						}
					}
					require.Equal(t, allLogits(t, m, b), allLogits(t, again, b))
				}
				o.Base = qlora.NF4
				difference, _ := apart(allLogits(t, newTiny(t, c, o), b), want)
				t.Logf("%s %s %s: logits of 4 bits differ by %.3f, and with adapters by %.3f of the largest", c.Family, dt, init, nf4/largest, difference/largest)
				require.Less(t, difference, 1.2*nf4, "%s %s %s", c.Family, dt, init)
			}
		}
	}
	folder := filepath.Join("testdata", "models", "llama")
	for want, o := range map[string]Options{
		"make up for what weights lose": {Adapter: &qlora.AdapterOptions{Rank: 2, Alpha: 2, Init: "loftq"}},
		"the initial values":            {Adapter: &qlora.AdapterOptions{Rank: 2, Alpha: 2, Init: "corda"}},
		"magnitudes do not go":          {Adapter: &qlora.AdapterOptions{Rank: 2, Alpha: 2, Init: "olora", DoRA: true}},
		"rank 99, want 32 at most":      {Adapter: &qlora.AdapterOptions{Rank: 99, Alpha: 2, Init: "pissa"}},
	} {
		t.Run(want, func(t *testing.T) {
			_, err := Open(folder, o)
			require.ErrorIs(t, err, snug.ErrConfig)
			require.ErrorContains(t, err, want)
		})
	}
}

// TestModulesToSave: names that PEFT takes and this package does not are refused, and a folder whose copies are untied.
func TestModulesToSave(t *testing.T) {
	models := filepath.Join("testdata", "models")
	for _, c := range []struct{ model, module, want string }{
		{"llama", "q_proj", "a matrix of a layer"}, {"llama", "layers.1", "with several parts"}, {"llama", "mlp", "with several parts"}, {"llama", "model", "with several parts"},
		{"llama", "wte", "no module of the model ends in"}, {"gpt2", "wte", "tied embedding of gpt2"}, {"gpt2", "c_attn", "a matrix of a layer"}, {"llama", "", "the end of a module's name"},
	} {
		adapter := qlora.AdapterOptions{Rank: 2, Alpha: 2, ModulesToSave: []string{c.module}}
		_, err := Open(filepath.Join(models, c.model), Options{Adapter: &adapter})
		require.ErrorIs(t, err, snug.ErrConfig, c.module)
		require.ErrorContains(t, err, c.want)
	}
	config, err := ReadConfig(filepath.Join(models, "llama"))
	require.NoError(t, err)
	list, err := config.ModulesToSave([]string{"lm_head", "norm"})
	require.NoError(t, err)
	require.Len(t, list, 2*config.Layers+2)
	_, err = config.ModulesToSave([]string{"up_proj"})
	require.ErrorIs(t, err, snug.ErrConfig)
	_, err = (&Config{}).ModulesToSave([]string{"norm"})
	require.ErrorIs(t, err, snug.ErrConfig)

	untied := t.TempDir()
	from := filepath.Join("testdata", "adapters", "qwen2_saved_nf4")
	for _, name := range []string{"adapter_config.json", "adapter_model.safetensors"} {
		text, err := os.ReadFile(filepath.Join(from, name))
		require.NoError(t, err)
		changed := bytes.Replace(text, []byte(`"ensure_weight_tying": true`), []byte(`"ensure_weight_tying": false`), 1)
		require.NoError(t, os.WriteFile(filepath.Join(untied, name), changed, 0o600))
	}
	same, err := Open(filepath.Join(models, "qwen2"), Options{AdapterDir: untied})
	require.NoError(t, err)
	require.True(t, same.Config().Tied, "the folder has one matrix twice")
	require.NoError(t, same.Close())
	_, err = Open(filepath.Join(models, "llama"), Options{AdapterDir: from})
	require.Error(t, err, "of another model")
}

// TestVeRA: fresh adapters change nothing, trained ones do, by every plan with the same gradients.
func TestVeRA(t *testing.T) {
	made := func(c *Config, o Options) *Model {
		m, err := New(c, o)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, m.Close()) })
		return m
	}
	for _, c := range []*Config{tiny(), tinyGemma(), tinyGPT2(GELU)} {
		c.InitStd = 0.2
		for _, base := range []qlora.Type{0, qlora.NF4} {
			b := someBatch(7, c.Vocab, 3, 10)
			plain := allLogits(t, made(c, Options{Base: base}), b)
			o := Options{Base: base, Adapter: &qlora.AdapterOptions{Rank: 5, Dropout: 0.25, VeRA: &qlora.VeRAOptions{Key: 3}}}
			m := made(c, o)
			require.Equal(t, plain, allLogits(t, m, b), c.Family)
			for _, p := range m.Params() {
				if strings.HasSuffix(p.Name, "lambda_b") {
					for i, x := range p.Value.Float32s() {
						p.Value.Float32s()[i] = x + float32(i%5)/5
					}
				}
			}
			tuned := allLogits(t, m, b)
			difference, largest := apart(tuned, plain)
			require.Greater(t, difference, 1e-3*largest, c.Family)
			want := gradients(t, m, b)
			costs, err := m.Costs(3, 10)
			require.NoError(t, err)
			for _, p := range plans(t, costs) {
				require.NoError(t, m.SetPlan(p))
				require.Equal(t, want, gradients(t, m, b), "%s %s", c.Family, p.Name)
			}
			g := newGenerator(t, m, GenerateOptions{Context: 12, Chunk: 3})
			require.NoError(t, g.Prompt(context.Background(), b.Tokens[:8]))
			_, err = g.Next(context.Background())
			require.NoError(t, err)
			difference, _ = apart(g.Logits(), tuned[7*c.Vocab:8*c.Vocab])
			require.LessOrEqual(t, difference, 1e-4*largest, c.Family)
			dir := t.TempDir()
			require.NoError(t, m.SaveAdapter(dir))
			o.Adapter, o.AdapterDir = nil, dir
			require.Equal(t, tuned, allLogits(t, made(c, o), b), c.Family)
		}
	}
	_, err := Open(filepath.Join("testdata", "models", "llama"), Options{AdapterDir: filepath.Join("testdata", "adapters", "gpt2_vera")})
	require.ErrorIs(t, err, snug.ErrConfig)
	_, err = Open(filepath.Join("testdata", "models", "llama"), Options{Adapter: &qlora.AdapterOptions{Rank: 2, Alpha: 2, VeRA: &qlora.VeRAOptions{}}})
	require.ErrorIs(t, err, snug.ErrConfig)
}

// TestFrozenA: with A frozen B has the gradients of a LoRA, bit for bit, by any plan, from fewer bytes.
func TestFrozenA(t *testing.T) {
	for _, c := range []*Config{tiny(), tinyGemma(), tinyGPT2(GELUTanh), tinyCustom()} {
		for _, o := range []Options{{}, {DType: snug.BF16, Base: qlora.NF4}} {
			b := someBatch(7, c.Vocab, 3, 10)
			adapter := qlora.AdapterOptions{Rank: 3, Alpha: 8, Dropout: 0.25}
			o.Adapter = &adapter
			m := newTiny(t, c, o)
			setAdapters(t, m)
			want := gradients(t, m, b)
			frozen := adapter
			frozen.FrozenA, o.Adapter = true, &frozen
			f := newTiny(t, c, o)
			setAdapters(t, f)
			for _, p := range f.Params() {
				require.Equal(t, p.Trains, strings.HasSuffix(p.Name, ".lora_B.weight"), p.Name)
				if strings.HasSuffix(p.Name, ".lora_A.weight") {
					require.Equal(t, m.index[p.Name].Value.Float32s(), p.Value.Float32s())
					delete(want, p.Name)
				}
			}
			costs, err := f.Costs(3, 10)
			require.NoError(t, err)
			for _, p := range plans(t, costs) {
				require.NoError(t, f.SetPlan(p))
				require.Equal(t, want, gradients(t, f, b), "%s %s", c.Family, p.Name)
			}
			wide, err := m.Costs(3, 10)
			require.NoError(t, err)
			for i, s := range costs.Stages {
				require.Equal(t, wide.Stages[i].Saved, s.Saved)
				require.LessOrEqual(t, s.BackwardExtra, wide.Stages[i].BackwardExtra)
			}

			dir := t.TempDir()
			require.NoError(t, f.SaveAdapter(dir))
			o.Adapter, o.AdapterDir = nil, dir
			require.Equal(t, allLogits(t, f, b), allLogits(t, newTiny(t, c, o), b))
		}
	}
}
