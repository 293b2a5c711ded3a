package transformer

import "math"

func init() {
	register(family{
		name: "gemma", class: "Gemma", mlx: "model.", names: llamaNames,
		gguf: ggufForm{arch: "gemma", activation: GELUTanh, tiedHead: true, scaledEmbedding: true},
		std:  defaults{vocab: 256000, dim: 3072, hidden: 24576, layers: 28, heads: 16, kvHeads: 16, headDim: 256, context: 8192, bos: 2, eos: 1, pad: 0, tied: true},
		fields: func(f *fields, c *Config) {
			c.counts(f, nil)
			if bytesOf(f, "hidden_act") == `"gelu"` {
				delete(f.raw, "hidden_act") // the first folders say so, and mean the approximation
				f.ignore("hidden_activation")
			}
			c.activation(f, "hidden_act", "gelu_pytorch_tanh")
			c.NormPlusOne = true
			c.bias(f, false)
			c.EmbeddingScale = math.Sqrt(float64(c.Dim))
			c.bidirectional(f)
			c.rope(f)
		},
	})
}
