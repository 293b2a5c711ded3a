package transformer_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/accum"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/qlora"
	"github.com/snug-ml/snug/quant8"
	"github.com/snug-ml/snug/remat"
	"github.com/snug-ml/snug/transformer"
)

// folder writes a small model as Hugging Face publishes it, and returns its folder.
func folder() (string, error) {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		return "", err
	}
	text := `{"model_type": "qwen3", "vocab_size": 12, "hidden_size": 8, "intermediate_size": 6, "num_hidden_layers": 1,
		"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4, "rope_theta": 1000000, "torch_dtype": "bfloat16",
		"tie_word_embeddings": true, "use_cache": true}`
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(text), 0o600); err != nil {
		return "", err
	}
	config, err := transformer.ReadConfig(dir)
	if err != nil {
		return "", err
	}
	tensors, err := config.Tensors()
	if err != nil {
		return "", err
	}
	return dir, amp.SaveShards(dir, 0, func(yield func(amp.Tensor, snug.View) bool) {
		for _, t := range tensors {
			if !yield(t, snug.ViewOf(make([]float32, t.Len()))) {
				return
			}
		}
	}, map[string]string{"format": "pt"})
}

// A published folder is read: its arithmetic, and its weights by their names.
func Example() {
	dir, err := folder()
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)

	config, err := transformer.ReadConfig(dir)
	if err != nil {
		panic(err)
	}
	fmt.Println(config.Family, config.Layers, "layers,", config.Heads, "heads,", config.KVHeads, "key heads, QK norm:", config.QKNorm)
	fmt.Println("ignored:", config.Ignored)

	weights, err := amp.OpenWeights(dir)
	if err != nil {
		panic(err)
	}
	defer weights.Close()
	names, err := config.Check(weights)
	if err != nil {
		panic(err)
	}
	fmt.Println(len(names), "parameters")

	inverse, _, err := config.Rope.Frequencies(0)
	if err != nil {
		panic(err)
	}
	fmt.Println("frequencies:", inverse)
	// Output:
	// qwen3 1 layers, 2 heads, 1 key heads, QK norm: true
	// ignored: [use_cache]
	// 13 parameters
	// frequencies: [1 0.001]
}

// A Config made by hand is written for transformers.
func ExampleConfig_Write() {
	dir, err := folder()
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	config, err := transformer.ReadConfig(dir)
	if err != nil {
		panic(err)
	}
	config.Context = 64
	config.Rope.Kind, config.Rope.Factor = transformer.RopeLinear, 2
	if err := config.Write(dir); err != nil {
		panic(err)
	}
	again, err := transformer.ReadConfig(dir)
	fmt.Println(again.Context, again.Rope.Kind, again.Rope.Factor, err)

	config.LogitCap = 30
	fmt.Println(config.Write(dir))
	// Output:
	// 64 linear 2 <nil>
	// transformer: Write: LogitCap: 30, and the family "qwen3" can only have 0: snug: invalid configuration
}

// A model learns to count: it is made from scratch, trained for a few steps, and asked.
func ExampleModel() {
	config := &transformer.Config{
		Family: "llama", Vocab: 8, Dim: 16, Hidden: 32, Layers: 1, Heads: 2, KVHeads: 1, HeadDim: 8, Context: 16,
		NormEps: 1e-6, Activation: transformer.SiLU, Gated: true, Windows: []int{0}, ScoreScale: 0.35, EmbeddingScale: 1, InitStd: 0.1,
		Rope: transformer.Rope{Kind: transformer.RopeDefault, Theta: 10000, Dim: 8},
	}
	m, err := transformer.New(config, transformer.Options{Seed: 1})
	if err != nil {
		panic(err)
	}
	optimizer, err := quant8.New(quant8.AdamW{}, quant8.Options{Bits: 32})
	if err != nil {
		panic(err)
	}
	var params []accum.Param
	for _, p := range m.Params() {
		params = append(params, accum.Param{Name: p.Name, Len: p.Len()})
		if err := optimizer.Add(p.Name, p.Len()); err != nil {
			panic(err)
		}
	}
	const counted = 7
	window, err := accum.New(params, accum.Options{Schedule: accum.Weight(counted)})
	if err != nil {
		panic(err)
	}

	ctx := context.Background()
	batch := transformer.Batch{Tokens: []int32{0, 1, 2, 3, 4, 5, 6}, Labels: []int32{1, 2, 3, 4, 5, 6, 7}}
	for range 60 {
		if err := window.Begin(counted); err != nil {
			panic(err)
		}
		if _, err := m.Backprop(ctx, batch, 1, window); err != nil {
			panic(err)
		}
		if _, err := window.End(); err != nil {
			panic(err)
		}
		optimizer.Advance(0.01)
		for _, p := range m.Params() {
			gradient, err := window.Gradient(p.Name)
			if err != nil {
				panic(err)
			}
			if err := optimizer.Step(p.Name, p.Value, gradient, 1); err != nil {
				panic(err)
			}
		}
		window.Reset()
	}

	logits := make([]float32, config.Vocab)
	if err := m.Logits(ctx, logits, transformer.Batch{Tokens: []int32{0, 1, 2}}, nil); err != nil {
		panic(err)
	}
	best := 0
	for i, x := range logits {
		if x > logits[best] {
			best = i
		}
	}
	fmt.Println("0 1 2", best)
	// Output: 0 1 2 3
}

// A plan trains a model in fewer bytes of activations.
func ExampleModel_SetPlan() {
	config := &transformer.Config{
		Family: "llama", Vocab: 100, Dim: 64, Hidden: 192, Layers: 8, Heads: 4, KVHeads: 2, HeadDim: 16, Context: 256,
		NormEps: 1e-6, Activation: transformer.SiLU, Gated: true, Windows: make([]int, 8), ScoreScale: 0.25, EmbeddingScale: 1, InitStd: 0.1,
		Rope: transformer.Rope{Kind: transformer.RopeDefault, Theta: 10000, Dim: 16},
	}
	m, err := transformer.New(config, transformer.Options{DType: snug.BF16})
	if err != nil {
		panic(err)
	}
	costs, err := m.Costs(4, 256) // sequences of tokens
	if err != nil {
		panic(err)
	}
	keep, err := remat.KeepAll(costs)
	if err != nil {
		panic(err)
	}
	all, err := keep.Simulate(costs)
	if err != nil {
		panic(err)
	}
	plan, report, err := remat.Planner{}.Plan(costs, all.Peak/3)
	if err != nil {
		panic(err)
	}
	fmt.Printf("%.1f MB instead of %.1f MB, with %d extra forward steps for %d stages\n",
		float64(report.Peak)/1e6, float64(all.Peak)/1e6, report.Extra, plan.Stages)
	fmt.Println(m.SetPlan(plan))
	// Output:
	// 4.1 MB instead of 12.6 MB, with 12 extra forward steps for 16 stages
	// <nil>
}

// Adapters train over matrices in 4 bits, and PEFT loads them.
func ExampleModel_SaveAdapter() {
	dir, err := folder()
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	m, err := transformer.Open(dir, transformer.Options{
		Base:    qlora.NF4,
		Adapter: &qlora.AdapterOptions{Rank: 2, Alpha: 4, Targets: qlora.Modules{Names: []string{"q_proj", "v_proj"}}},
	})
	if err != nil {
		panic(err)
	}
	for _, p := range m.Params() {
		if p.Trains {
			fmt.Println(p.Name, p.Shape, p.Value.DType())
		}
	}
	tuned := filepath.Join(dir, "tuned")
	if err := m.SaveAdapter(tuned); err != nil {
		panic(err)
	}
	_, err = transformer.Open(dir, transformer.Options{Base: qlora.NF4, AdapterDir: tuned})
	fmt.Println(err)
	// Output:
	// base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight [2 8] f32
	// base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight [8 2] f32
	// base_model.model.model.layers.0.self_attn.v_proj.lora_A.weight [2 8] f32
	// base_model.model.model.layers.0.self_attn.v_proj.lora_B.weight [4 2] f32
	// <nil>
}

// Adapters that begin with the largest singular values of their matrices are saved for the published weights.
func ExampleModel_SaveAdapter_pissa() {
	dir, err := folder()
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	m, err := transformer.Open(dir, transformer.Options{Adapter: &qlora.AdapterOptions{Rank: 2, Alpha: 4, Init: "pissa"}})
	if err != nil {
		panic(err)
	}
	defer m.Close()
	// ... steps of training ...
	tuned := filepath.Join(dir, "tuned")
	if err := m.SaveAdapter(tuned); err != nil { // PEFT loads it, with the model of dir
		panic(err)
	}
	options, adapters, err := qlora.LoadAdapters(tuned, nil)
	if err != nil {
		panic(err)
	}
	fmt.Println(len(adapters), "adapters of rank", options.Rank, "and alpha", options.Alpha)
	// Output: 7 adapters of rank 4 and alpha 8
}
