package transformer

import "cmp"

func init() {
	register(family{
		name: "granite", class: "Granite", names: llamaNames,
		gguf: llamaForm.with(func(f *ggufForm) { f.arch, f.scales, f.square, f.many = "granite", true, true, nil }),
		std:  defaults{vocab: 32000, dim: 4096, hidden: 11008, layers: 32, heads: 32, context: 2048, bos: 1, eos: 2, pad: -1},
		fields: func(f *fields, c *Config) {
			c.counts(f, &c.Heads)
			c.activation(f, "hidden_act", "silu")
			c.bias(f, false)
			field(f, "mlp_bias", &c.MLPBias, false)
			c.multipliers(f)
			c.rope(f)
		},
	})
}

// multipliers has the four factors of Granite. Logits are divided by theirs.
func (c *Config) multipliers(f *fields) {
	residual, logits := cmp.Or(c.ResidualScale, 1), 1/cmp.Or(c.LogitScale, 1)
	field(f, "attention_multiplier", &c.ScoreScale, 1)
	field(f, "embedding_multiplier", &c.EmbeddingScale, 1)
	field(f, "residual_multiplier", &residual, 1)
	field(f, "logits_scaling", &logits, 1)
	if f.err == nil && !(residual > 0) {
		f.fail("residual_multiplier", "%v, want a number above 0", residual)
	}
	if f.err == nil && !(logits > 0) {
		f.fail("logits_scaling", "%v, want a number above 0", logits)
	}
	if f.err != nil || f.out != nil {
		return
	}
	c.ResidualScale, c.LogitScale = residual, 1/logits
	for _, x := range []*float64{&c.ResidualScale, &c.LogitScale} {
		if *x == 1 {
			*x = 0
		}
	}
}
