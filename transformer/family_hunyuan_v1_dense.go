package transformer

import "math"

func init() {
	register(family{
		name: "hunyuan_v1_dense", class: "HunYuanDenseV1",
		names: llamaNames.with(func(n *names) {
			n.qNorm, n.kNorm, n.normLast = "self_attn.query_layernorm", "self_attn.key_layernorm", true
		}),
		std: defaults{vocab: 290943, dim: 4096, hidden: 11008, layers: 32, heads: 32, context: 2048, bos: 1, eos: 2, pad: 0, eps: 1e-5},
		fields: func(f *fields, c *Config) {
			c.counts(f, &c.Heads)
			c.activation(f, "hidden_act", "silu")
			c.bias(f, false)
			c.QKNorm = true
			f.ignore("eod_token_id")
			c.alphaRope(f)
		},
	})
}

// alphaRope has the rope. Of the kind dynamic with an alpha it is a plain one whose base grows by alpha^(d/(d−2)) for heads of d elements,
// whatever the length of the text.
func (c *Config) alphaRope(f *fields) {
	p := f.ropeObject("rope_parameters", "rope_scaling")
	if f.err != nil || p == nil {
		c.rope(f)
		return
	}
	p.alias("rope_type", "type")
	alpha := optional(p, "alpha", 0.0)
	if f.err = p.err; f.err != nil {
		return
	}
	if alpha == 0 || compact(p.raw["rope_type"]) != `"dynamic"` {
		c.Rope = c.ropeOf(f, p, "rope_theta", 10_000)
		return
	}
	p.raw["rope_type"] = []byte(`"default"`)
	delete(p.raw, "type")
	c.Rope = c.ropeOf(f, p, "rope_theta", 10_000)
	c.Rope.Theta *= math.Pow(alpha, float64(c.HeadDim)/float64(c.HeadDim-2))
	if f.err == nil && !(c.Rope.Theta > 0 && c.Rope.Theta <= math.MaxFloat64) {
		f.fail("rope_scaling.alpha", "%v, which makes the base %v", alpha, c.Rope.Theta)
	}
}
