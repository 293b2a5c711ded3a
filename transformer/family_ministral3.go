package transformer

import "github.com/snug-ml/snug/internal/strictjson"

func init() {
	register(family{
		name: "ministral3", class: "Ministral3", names: llamaNames,
		gguf: llamaForm.with(func(f *ggufForm) { f.arch, f.queryScale, f.many = "mistral3", true, nil }),
		std:  defaults{vocab: 131072, dim: 4096, hidden: 14336, layers: 34, heads: 32, kvHeads: 8, headDim: 128, context: 262144, bos: 1, eos: 2, pad: 11, eps: 1e-5},
		fields: func(f *fields, c *Config) {
			c.counts(f, nil)
			c.activation(f, "hidden_act", "silu")
			c.everyWindow(f, 0)
			c.queryRope(f)
		},
	})
}

// queryRope has the rope and the factor of queries, which folders have in rope_parameters. Without these the rope is YaRN with a factor
// of 16 over 16384 tokens.
func (c *Config) queryRope(f *fields) {
	c.queryRopeOf(f, f.ropeObject("rope_parameters", "rope_scaling"))
}

// queryRopeOf is queryRope for parameters that may be nil.
func (c *Config) queryRopeOf(f, p *fields) {
	const beta, original = "llama_4_scaling_beta", "original_max_position_embeddings"
	if f.out != nil {
		m := ropeMembers(c.Rope)
		m["rope_theta"], m[beta] = strictjson.Float(c.Rope.Theta), strictjson.Float(c.Rope.QueryScale)
		if c.Rope.OriginalPositions == 0 { // transformers divides by it, whatever the factor is
			m[original] = c.Context
		}
		f.put("rope_parameters", m)
		return
	}
	switch {
	case f.err != nil:
	case p == nil:
		f.notRead("rope_theta")
		c.Rope = Rope{Kind: RopeYarn, Theta: 1e6, Dim: c.HeadDim, Factor: 16, OriginalPositions: get(f, original, 16384),
			BetaFast: 32, BetaSlow: 1, MScale: 1, MScaleAllDim: 1, QueryScale: 0.1}
		return
	case !p.has(beta):
		p.fail(beta, "it is not there, and transformers needs it")
		f.err = p.err
		return
	default:
		p.ignore("max_position_embeddings")
		scale := get(p, beta, 0.0)
		c.Rope = c.ropeOf(f, p, "rope_theta", 10_000)
		if c.Rope.QueryScale = scale; scale != 0 && c.Rope.OriginalPositions == 0 {
			c.Rope.OriginalPositions = get(p, original, 0)
		}
		if f.err == nil {
			f.err = p.err
		}
	}
}
