package transformer

import "math"

func init() {
	register(family{
		name: "youtu", class: "Youtu", names: latentLlama,
		std:    defaults{vocab: 128256, dim: 2048, hidden: 6144, layers: 32, heads: 16, kvHeads: 16, context: 131072, bos: 128000, eos: 128001, pad: -1, tied: true},
		layers: latentLayers,
		fields: func(f *fields, c *Config) {
			c.countLatent(f, Latent{QueryRank: 1536, Rank: 512, KeyDim: 128, RopeDim: 64, ValueDim: 128})
			c.activation(f, "hidden_act", "silu")
			if f.out == nil && !f.has("initializer_range") && c.Dim > 0 {
				c.InitStd = 2 / math.Sqrt(5*float64(c.Dim))
			}
			f.ignore("embedding_initializer_range")
			interleaved := c.Rope.Interleaved
			loose(f, "rope_interleave", &interleaved, true)
			c.latentRope(f, interleaved)
		},
	})
}
