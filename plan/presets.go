package plan

import (
	"strings"
)

// llama returns the options of Llama's architecture.
func llama(name string, dim, layers, heads, hidden, context int) GPT {
	return GPT{Name: name, Vocab: 32000, Dim: dim, Layers: layers, Heads: heads, Hidden: hidden, Context: context,
		Gated: true, RMSNorm: true, Rotary: true, Untied: true, SplitQKV: true}
}

// models make the presets by name.
var models = []struct {
	name string
	of   interface{ Model() (Model, error) }
}{
	{"gpt-1m", GPT{Name: "gpt-1m", Vocab: 1024, Dim: 128, Layers: 4, Heads: 4, Context: 128}},    // of examples/gpt
	{"gpt-34m", GPT{Name: "gpt-34m", Vocab: 16384, Dim: 512, Layers: 8, Heads: 8, Context: 512}}, // of examples/gpt
	{"gpt2", GPT{Name: "gpt2", Vocab: 50257, Dim: 768, Layers: 12, Heads: 12, Context: 1024, Bias: true}},
	{"gpt2-xl", GPT{Name: "gpt2-xl", Vocab: 50257, Dim: 1600, Layers: 48, Heads: 25, Context: 1024, Bias: true}},
	{"llama-2b", llama("llama-2b", 2560, 24, 20, 6912, 2048)},
	{"llama-7b", llama("llama-7b", 4096, 32, 32, 11008, 2048)},
	{"llama-13b", llama("llama-13b", 5120, 40, 40, 13824, 2048)},
	{"vit-b16", ViT{Name: "vit-b16", Image: 224, Patch: 16, Classes: 1000, Dim: 768, Layers: 12, Heads: 12}},
	{"vit-l16", ViT{Name: "vit-l16", Image: 224, Patch: 16, Classes: 1000, Dim: 1024, Layers: 24, Heads: 16}},
	{"resnet-18", CNN{Name: "resnet-18", Image: 224, Classes: 1000, Blocks: []int{2, 2, 2, 2}}},
	{"resnet-50", CNN{Name: "resnet-50", Image: 224, Classes: 1000, Blocks: []int{3, 4, 6, 3}, Bottleneck: true}},
}

// Models returns the names that ModelNamed takes.
func Models() (names []string) {
	for _, m := range models {
		names = append(names, m.name)
	}
	return names
}

// ModelNamed returns the preset of a name: gpt-1m and gpt-34m are the models of
// examples/gpt; llama-2b has the architecture of Llama with two billion parameters.
// context, unless 0, is the number of tokens in a sequence of a GPT. A model with a table
// of positions keeps the table of the preset, so that a longer sequence is an error. The
// error wraps [snug.ErrConfig] and lists the names, or [snug.ErrShape] for a context that
// the model cannot have.
func ModelNamed(name string, context int) (Model, error) {
	for _, m := range models {
		if m.name == name && context == 0 {
			return m.of.Model()
		}
	}
	g, err := GPTNamed(name)
	if err != nil {
		return Model{}, err
	}
	if !g.Rotary {
		g.Positions = g.Context
	}
	g.Context = context
	return g.Model()
}

// GPTNamed returns the sizes of a preset that is a language model. The error wraps [snug.ErrConfig] for other names.
func GPTNamed(name string) (GPT, error) {
	for _, m := range models {
		if m.name != name {
			continue
		}
		if g, is := m.of.(GPT); is {
			return g, nil
		}
		return GPT{}, invalid("model %s is no language model, and has no context", name)
	}
	return GPT{}, invalid("unknown model %.40q, want one of %s", name, strings.Join(Models(), ", "))
}
