package transformer

import "cmp"

func init() {
	register(family{
		name: "cohere", class: "Cohere", names: cohereNames, layers: cohereLayers,
		gguf: ggufForm{arch: "command-r", square: true, tiedHead: true, logitScale: true, headNorms: func(c *Config) bool { return c.Layers >= 64 },
			keys: plainScaling},
		std: defaults{vocab: 256000, dim: 8192, hidden: 22528, layers: 40, heads: 64, context: 8192, bos: 5, eos: 255001, pad: 0, tied: true, eps: 1e-5,
			norm: "layer_norm_eps", theta: 500_000},
		fields: func(f *fields, c *Config) {
			c.cohere(f)
			f.ignore("model_max_length") // what llama.cpp's converter takes for the context
			loose(f, "use_qk_norm", &c.QKNorm, false)
			c.rope(f)
		},
	})
}

// cohereNames are the names of Command R and its successors: one norm before both halves.
var cohereNames = llamaNames.with(func(n *names) { n.mlpNorm, n.perHead = "", true })

func cohereLayers(c *Config) {
	noRope := c.NoRope
	plainLayers(c)
	c.LayerNorm, c.NoNormBias, c.Parallel, c.OneNorm, c.NoRope, c.Rope.Interleaved = true, true, true, true, noRope, true
}

// plainScaling adds what llama.cpp's converter says of a rope that is not scaled.
func plainScaling(c *Config, m *ggufMetadata) {
	if c.Rope.Kind == RopeDefault {
		m.add("rope.scaling.type", "none")
	}
}

// cohere has the fields of these models but windows, ropes and norms of heads.
func (c *Config) cohere(f *fields) {
	c.counts(f, &c.Heads)
	c.square(f)
	c.activation(f, "hidden_act", "silu")
	c.bias(f, false)
	scale := cmp.Or(c.LogitScale, 1)
	field(f, "logit_scale", &scale, 0.0625)
	if f.err == nil && !(scale > 0) {
		f.fail("logit_scale", "%v, want a number above 0", scale)
	}
	if c.LogitScale = scale; scale == 1 {
		c.LogitScale = 0
	}
	c.LayerNorm, c.NoNormBias, c.Parallel, c.OneNorm = true, true, true, true
}
