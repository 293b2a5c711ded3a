package transformer

import (
	"cmp"
	"fmt"
	"math"

	"github.com/snug-ml/snug/plan"
)

// ConfigNamed returns the Config of a preset of package plan that is a language model, such as "gpt2" or "llama-7b", to train
// it from scratch or to predict the memory of training it. The family is [Custom] for the models of examples/gpt. The error is that of [plan.GPTNamed].
func ConfigNamed(name string) (*Config, error) {
	g, err := plan.GPTNamed(name)
	if err != nil {
		return nil, fmt.Errorf("transformer: ConfigNamed: %w", err)
	}
	c := &Config{
		Family: Custom, Vocab: g.Vocab, Dim: g.Dim, Hidden: cmp.Or(g.Hidden, 4*g.Dim), Layers: g.Layers, Heads: g.Heads, KVHeads: cmp.Or(g.KVHeads, g.Heads),
		HeadDim: g.Dim / g.Heads, Context: g.Context, LayerNorm: !g.RMSNorm, NormEps: 1e-5, PackedQKV: !g.SplitQKV,
		QKVBias: g.Bias, OutBias: g.Bias, MLPBias: g.Bias, UpBias: !g.Bias && !g.Gated, Activation: GELUTanh, Gated: g.Gated,
		LearnedPositions: !g.Rotary, Windows: make([]int, g.Layers), ScoreScale: 1 / math.Sqrt(float64(g.Dim/g.Heads)), EmbeddingScale: 1,
		Tied: !g.Untied, InitStd: 0.02, BOS: -1, Pad: -1,
	}
	for name, f := range families {
		if of := *c; f.preset != nil && f.preset(g, &of) {
			of.Family = name
			return &of, nil
		}
	}
	return c, nil
}
