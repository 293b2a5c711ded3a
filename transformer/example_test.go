package transformer_test

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
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
