package transformer

import (
	"cmp"
	"math"
	"slices"
)

func init() {
	register(family{
		name: "falcon_h1", class: "FalconH1",
		names: llamaNames.with(func(n *names) {
			n.unadapted = "mamba.out_proj" // whose elements the kernels of transformers read, past an adapter
			n.mamba, n.norm, n.mlpNorm = "mamba", "final_layernorm", "pre_ff_layernorm"
			n.gate, n.up, n.down = "feed_forward.gate_proj", "feed_forward.up_proj", "feed_forward.down_proj"
		}),
		std: defaults{vocab: 128000, dim: 4096, hidden: 14336, layers: 32, heads: 32, kvHeads: 8, context: 8192, bos: 1, eos: 2, pad: 0, eps: 1e-5},
		layers: func(c *Config) {
			mamba := c.Mamba
			plainLayers(c)
			c.Mixers, c.Mamba = make([]Mixer, len(c.Windows)), mamba
			for i := range c.Mixers {
				c.Mixers[i] = Mamba2
			}
			c.Mamba.Beside, c.Activation = true, SiLU
		},
		fields: func(f *fields, c *Config) {
			c.counts(f, &c.Heads)
			c.silu(f)
			c.bias(f, false)
			field(f, "mlp_bias", &c.MLPBias, false)
			out := c.Mamba.OutBias
			c.stateSpace(f, "mamba_d_ssm")
			field(f, "projectors_bias", &out, false)
			first := c.Mamba.NormFirst || !c.Mamba.Norm
			field(f, "mamba_rms_norm", &c.Mamba.Norm, false)
			field(f, "mamba_norm_before_gate", &first, true)
			c.Mamba.OutBias, c.Mamba.NormFirst = out, first && c.Mamba.Norm
			c.muP(f)
			c.rope(f)
			for _, name := range []string{"num_logits_to_keep", "mamba_use_mlp", "mlp_expansion_factor", "time_step_floor", "time_step_max", "time_step_min"} { // of TII's own code
				f.ignore(name)
			}
		},
	})
}

// muP has the multipliers of Falcon-H1. Those of the inputs of linear layers without a bias are a part of those of their outputs.
func (c *Config) muP(f *fields) {
	one := func(x float64) float64 { return cmp.Or(x, 1) }
	d, root := &c.Mamba, math.Sqrt(float64(c.HeadDim))
	in, key, out := 1.0, c.ScoreScale*root, one(c.Factors.Attention)
	parts, ssmIn, ssmOut := d.Factors[:], 1.0, one(d.OutFactor)
	mlp, logits := []float64{one(c.Factors.Gate), one(c.Factors.MLP)}, one(c.LogitScale)
	for i, x := range parts {
		parts[i] = one(x)
	}
	field(f, "embedding_multiplier", &c.EmbeddingScale, 1)
	field(f, "lm_head_multiplier", &logits, 1)
	field(f, "attention_in_multiplier", &in, 1)
	field(f, "attention_out_multiplier", &out, 1)
	field(f, "key_multiplier", &key, 1)
	loose(f, "mlp_multipliers", &mlp, nil)
	loose(f, "ssm_multipliers", &parts, nil)
	field(f, "ssm_in_multiplier", &ssmIn, 1)
	field(f, "ssm_out_multiplier", &ssmOut, 1)
	if f.err != nil || f.out != nil {
		return
	}
	if mlp == nil {
		mlp = []float64{1, 1}
	}
	if parts == nil {
		parts = []float64{1, 1, 1, 1, 1}
	}
	for _, x := range []struct {
		name string
		list []float64
		want int
	}{{"embedding_multiplier", []float64{c.EmbeddingScale}, 1}, {"lm_head_multiplier", []float64{logits}, 1}, {"attention_in_multiplier", []float64{in}, 1},
		{"attention_out_multiplier", []float64{out}, 1}, {"key_multiplier", []float64{key}, 1}, {"mlp_multipliers", mlp, 2}, {"ssm_multipliers", parts, 5},
		{"ssm_in_multiplier", []float64{ssmIn}, 1}, {"ssm_out_multiplier", []float64{ssmOut}, 1}} {
		if len(x.list) != x.want || slices.ContainsFunc(x.list, func(v float64) bool { return !(v > 0 && v < math.MaxFloat32) }) {
			f.fail(x.name, "%v, want numbers above 0, %d in all", x.list, x.want)
			return
		}
	}
	switch {
	case in != 1 && c.QKVBias:
		f.fail("attention_in_multiplier", "%v, and attention_bias is true: want 1", in)
	case ssmIn != 1 && d.InBias:
		f.fail("ssm_in_multiplier", "%v, and mamba_proj_bias is true: want 1", ssmIn)
	}
	c.ScoreScale, c.LogitScale = key*in*in/root, factor(logits)
	c.Factors = Factors{Attention: factor(in, out), Gate: factor(mlp[0]), MLP: factor(mlp[1])}
	d.OutFactor = factor(ssmOut)
	for i, x := range parts {
		d.Factors[i] = factor(x, ssmIn)
	}
}
