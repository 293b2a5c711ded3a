package transformer

import (
	"bytes"
	"context"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/qlora"
	"github.com/snug-ml/snug/quant8"
	"github.com/stretchr/testify/require"
)

// adapterGolden is what PEFT computed for a folder of testdata/adapters, see adapters.py there.
type adapterGolden struct {
	modelGolden
	Base string
	NF4  bool
}

// adapterNames are the folders of testdata/adapters, but for adapters of experts, which PEFT no longer trains.
var adapterNames = slices.DeleteFunc(foldersWith("adapters", "golden.json"), func(name string) bool { return strings.HasSuffix(name, "_experts") })

func readAdapter(t testing.TB, name string) adapterGolden {
	t.Helper()
	g := adapterGolden{modelGolden: modelGolden{dir: filepath.Join("testdata", "adapters", name)}}
	text, err := os.ReadFile(filepath.Join(g.dir, "golden.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &g))
	g.weights, err = amp.OpenWeights(filepath.Join(g.dir, "golden.safetensors"))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, g.weights.Close()) })
	return g
}

func (g adapterGolden) options() Options {
	o := Options{DType: snug.F32, AdapterDir: g.dir}
	if g.NF4 {
		o.Base = qlora.NF4
	}
	return o
}

func (g adapterGolden) open(t testing.TB, o Options) *Model {
	t.Helper()
	m, err := Open(filepath.Join("testdata", "models", g.Base), o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	return m
}

func TestAdaptersAgainstPEFT(t *testing.T) {
	for _, name := range adapterNames {
		g := readAdapter(t, name)
		want := g.tensor(t, "logits")
		for dt, bound := range map[snug.DType]float64{snug.F32: 1e-4, snug.BF16: 2e-2} {
			o := g.options()
			o.DType = dt
			difference, largest := apart(allLogits(t, g.open(t, o), g.batch()), want)
			t.Logf("%s %s: logits differ by %.1e of the largest", name, dt, difference/largest)
			if dt == snug.BF16 && (name == "mixtral_lora" || name == "qwen3_5_lora") {
				bound = 3e-2 // a router, and norms of short keys, multiply what bf16 rounds: 1.6e-2 with products in float32, 2.1e-2 by VDPBF16PS, of mixtral
			}
			require.Less(t, difference, bound*largest, "%s %s", name, dt)
		}
		m := g.open(t, g.options())
		have, worst := gradients(t, m, g.batch()), 0.0
		for _, p := range m.Params() {
			if !p.Trains {
				require.NotContains(t, have, p.Name)
				continue
			}
			if !m.saved[p.Name] {
				require.Regexp(t, `\.(lora|vera)_`, p.Name)
			}
			want := g.gradient(t, p.Name)
			sum, norm := 0.0, 0.0
			for i, w := range want {
				d := float64(have[p.Name][i]) - float64(w)
				sum, norm = sum+d*d, norm+float64(w)*float64(w)
			}
			worst = max(worst, math.Sqrt(sum/norm))
			require.Less(t, math.Sqrt(sum), 1e-3*math.Sqrt(norm), "%s: %s", name, p.Name)
		}
		t.Logf("%s: gradients differ by %.1e of their norms at most", name, worst)
	}
}

//check:not bits32
func TestTrainingAgainstPEFT(t *testing.T) {
	for _, name := range adapterNames {
		g := readAdapter(t, name)
		m := g.open(t, g.options())
		opt, err := quant8.New(quant8.AdamW{WeightDecay: 0.01, DecayFirst: true}, quant8.Options{Bits: 32})
		require.NoError(t, err)
		for _, p := range m.Params() {
			if p.Trains {
				require.NoError(t, opt.Add(p.Name, p.Len()))
			}
		}
		w, worst := newWindow(t, m), 0.0
		for step, want := range g.Losses {
			require.NoError(t, w.Begin(1))
			loss, err := m.Backprop(context.Background(), g.batch(), 1, w)
			require.NoError(t, err)
			_, err = w.End()
			require.NoError(t, err)
			worst = max(worst, math.Abs(loss.Sum/float64(loss.Targets)-want))
			require.InDelta(t, want, loss.Sum/float64(loss.Targets), 1e-3, "%s, step %d", name, step)
			opt.Advance(1e-2)
			for _, p := range m.Params() {
				if p.Trains {
					grad, err := w.Gradient(p.Name)
					require.NoError(t, err)
					require.NoError(t, opt.Step(p.Name, p.Value, grad, 1))
				}
			}
			w.Reset()
		}
		t.Logf("%s: losses of 20 steps differ by %.1e at most", name, worst)
	}
}

// TestExpertAdaptersAgainstPEFT: adapters of each matrix of the experts compute what PEFT computes with them.
func TestExpertAdaptersAgainstPEFT(t *testing.T) {
	g := readAdapter(t, "mixtral_experts")
	m := g.open(t, g.options())
	difference, largest := apart(allLogits(t, m, g.batch()), g.tensor(t, "logits"))
	t.Logf("logits differ by %.1e of the largest", difference/largest)
	require.Less(t, difference, 1e-4*largest)
}

// SaveAdapter writes what AdapterDir reads, and Save a model without adapters whose logits are the same
// up to the rounding of the sums.
func TestSaveWithAdapters(t *testing.T) {
	for _, name := range adapterNames {
		g := readAdapter(t, name)
		m := g.open(t, g.options())
		want := allLogits(t, m, g.batch())
		dir := t.TempDir()
		require.NoError(t, m.SaveAdapter(dir))
		o := g.options()
		o.AdapterDir = dir
		require.Equal(t, want, allLogits(t, g.open(t, o), g.batch()), name)

		merged := t.TempDir()
		require.NoError(t, m.Save(merged, 0))
		plain, err := Open(merged, Options{})
		require.NoError(t, err)
		difference, largest := apart(allLogits(t, plain, g.batch()), want)
		require.Less(t, difference, 1e-5*largest, name)
		require.NoError(t, plain.Close())
	}
}

// TestSaveAdapterForPEFT writes what testdata/adapters.py checks, into the folder $SNUG_SAVE.
func TestSaveAdapterForPEFT(t *testing.T) {
	dir := os.Getenv("SNUG_SAVE")
	if dir == "" {
		dir = t.TempDir()
	}
	for _, name := range append(slices.Clone(adapterNames), "mixtral_experts") {
		g := readAdapter(t, name)
		m := g.open(t, g.options())
		setAdapters(t, m)
		out := filepath.Join(dir, name)
		require.NoError(t, m.SaveAdapter(out))
		logits := allLogits(t, m, g.batch())
		require.NoError(t, amp.SaveWeights(filepath.Join(out, "logits.safetensors"), func(yield func(amp.Tensor, snug.View) bool) {
			yield(amp.Tensor{Name: "logits", Shape: []int{len(g.Tokens), m.config.Vocab}}, snug.ViewOf(logits))
		}, nil))
	}
}

// TestAdaptersOfMultimodal: the adapters of a multimodal folder are those of its class, and adapters of the
// text model serve it too.
func TestAdaptersOfMultimodal(t *testing.T) {
	whole := filepath.Join("testdata", "models", "gemma3_images")
	text := t.TempDir()
	plain, err := Open(whole, Options{DType: snug.F32})
	require.NoError(t, err)
	require.NoError(t, plain.Save(text, 0))
	fresh := Options{DType: snug.F32, Adapter: &qlora.AdapterOptions{Rank: 2, Alpha: 4, Targets: qlora.Modules{Names: []string{"q_proj", "layers.1.mlp.up_proj"}}}}
	b := readModel(t, "gemma3_images").batch()
	for model, body := range map[string]string{whole: "model.language_model.", text: "model."} {
		m, err := Open(model, fresh)
		require.NoError(t, err)
		setAdapters(t, m)
		want, dir := allLogits(t, m, b), t.TempDir()
		require.NoError(t, m.SaveAdapter(dir))
		options, saved, err := qlora.LoadAdapters(dir, nil)
		require.NoError(t, err)
		for name := range saved {
			require.True(t, strings.HasPrefix(name, body+"layers."), name)
			if model == whole { // names of other modules end alike
				require.Contains(t, options.Targets.Names, name)
			}
		}
		again, err := Open(whole, Options{DType: snug.F32, AdapterDir: dir})
		require.NoError(t, err)
		require.Equal(t, want, allLogits(t, again, b))
	}
}

// Matrices in pages give the bits of matrices in memory.
//
//check:in race
func TestPagedBase(t *testing.T) {
	for _, name := range adapterNames {
		g := readAdapter(t, name)
		if !g.NF4 {
			continue
		}
		m := g.open(t, g.options())
		want, before := gradients(t, m, g.batch()), m.Memory()
		o := g.options()
		o.Pages = newStore(t)
		paged := g.open(t, o)
		require.Equal(t, want, gradients(t, paged, g.batch()), name)
		after := paged.Memory()
		require.Equal(t, before.Weights, after.Weights+after.Paged, name)
		require.Positive(t, after.Paged)
	}
}

// Of GPT-2 in 4 bits PEFT writes fan_in_fan_out false.
func TestFanInFanOut(t *testing.T) {
	for _, name := range []string{"gpt2_nf4", "gpt2_vera"} {
		g, dir := readAdapter(t, name), t.TempDir()
		for _, file := range []string{"adapter_config.json", "adapter_model.safetensors"} {
			text, err := os.ReadFile(filepath.Join("testdata", "adapters", name, file))
			require.NoError(t, err)
			text = bytes.Replace(text, []byte(`"fan_in_fan_out": true`), []byte(`"fan_in_fan_out": false`), 1)
			require.NoError(t, os.WriteFile(filepath.Join(dir, file), text, 0o666))
		}
		o := g.options()
		want := g.open(t, o)
		o.AdapterDir = dir
		require.Equal(t, gradients(t, want, g.batch()), gradients(t, g.open(t, o), g.batch()), name)
	}
}

func TestAdaptersRefused(t *testing.T) {
	llama := filepath.Join("testdata", "models", "llama")
	from := func(name string) string { return filepath.Join("testdata", "adapters", name) }
	more := t.TempDir() // a config that selects more than the folder has
	for _, name := range []string{"adapter_config.json", "adapter_model.safetensors"} {
		text, err := os.ReadFile(filepath.Join(from("mistral_layers"), name))
		require.NoError(t, err)
		text = bytes.Replace(text, []byte(`"o_proj"`), []byte(`"o_proj", "q_proj"`), 1)
		require.NoError(t, os.WriteFile(filepath.Join(more, name), text, 0o666))
	}
	for want, o := range map[string]Options{
		"select no matrix":            {Adapter: &qlora.AdapterOptions{Rank: 2, Alpha: 2, Targets: qlora.Modules{Names: []string{"query"}}}},
		"select lm_head":              {Adapter: &qlora.AdapterOptions{Rank: 2, Alpha: 2, Targets: qlora.Modules{Names: []string{"q_proj", "lm_head"}}}},
		"select model.embed_tokens":   {Adapter: &qlora.AdapterOptions{Rank: 2, Alpha: 2, Targets: qlora.Modules{Pattern: ".*(tokens|q_proj)"}}},
		"Train is set beside":         {Adapter: &qlora.AdapterOptions{Rank: 2, Alpha: 2}, Train: func(string) bool { return true }},
		"both Adapter and AdapterDir": {Adapter: &qlora.AdapterOptions{Rank: 2, Alpha: 2}, AdapterDir: from("llama_lora")},
		"rank 0, want":                {Adapter: &qlora.AdapterOptions{Alpha: 2}},
		"alpha 0, want":               {Adapter: &qlora.AdapterOptions{Rank: 2}},
		"fan_in_fan_out is true":      {AdapterDir: from("gpt2_lora")},
		"no such file":                {AdapterDir: from("nothing")},
		"Base is":                     {Base: 9},
		"Pages keeps":                 {Pages: newStore(t)},
		"target_modules select model.layers.1.self_attn.q_proj": {AdapterDir: more},
		"the model has 32 to": {AdapterDir: from("qwen2_nf4")},
	} {
		t.Run(want, func(t *testing.T) {
			_, err := Open(llama, o)
			require.ErrorContains(t, err, want, want)
			require.True(t, strings.HasPrefix(err.Error(), "transformer: Open: "), err)
		})
	}
	for _, name := range []string{"qwen2", "gpt2", "gemma3_images"} { // their heads are tied
		_, err := Open(filepath.Join("testdata", "models", name), Options{
			Adapter: &qlora.AdapterOptions{Rank: 2, Alpha: 2, Targets: qlora.Modules{Names: []string{"q_proj", "c_attn", "lm_head"}}}})
		require.ErrorContains(t, err, "select lm_head", name)
	}
	_, err := Open(filepath.Join("testdata", "models", "llama_linear"), Options{AdapterDir: from("llama_lora")})
	require.ErrorContains(t, err, "modules that the model lacks") // it has one layer
	m, err := Open(llama, Options{})
	require.NoError(t, err)
	require.ErrorIs(t, m.SaveAdapter(t.TempDir()), snug.ErrConfig)
}
