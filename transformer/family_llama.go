package transformer

import "github.com/snug-ml/snug/plan"

// Llama is the family of Meta's Llama 1 to 3, and of the many models with its arithmetic.
const Llama = "llama"

func init() {
	register(family{
		name: Llama, class: "Llama", mlx: "model.", names: llamaNames, gguf: llamaForm,
		std: defaults{vocab: 32000, dim: 4096, hidden: 11008, layers: 32, heads: 32, context: 2048, bos: 1, eos: 2, pad: -1},
		preset: func(g plan.GPT, c *Config) bool {
			c.Activation, c.Rope = SiLU, Rope{Kind: RopeDefault, Theta: 10000, Dim: c.HeadDim}
			return g.Rotary
		},
		fields: func(f *fields, c *Config) {
			c.counts(f, &c.Heads)
			c.activation(f, "hidden_act", "silu")
			c.bias(f, false)
			field(f, "mlp_bias", &c.MLPBias, false)
			c.rope(f)
		},
	})
}
