package transformer

import (
	"regexp"

	"github.com/snug-ml/snug/plan"
)

func init() {
	register(family{
		name: "gpt2", class: "GPT2", mlx: "model.", head: "LMHeadModel",
		gguf: ggufForm{arch: "gpt2", oneRow: true, activation: GELUTanh, outBias: true, mlpBias: true},
		names: names{
			layouts:   []layout{{"transformer.", "lm_head.weight"}, {"", "lm_head.weight"}}, // with a head; published, or saved without a head
			buffers:   regexp.MustCompile(`^h\.[0-9]+\.attn\.(bias|masked_bias)$`),
			embedding: "wte", positions: "wpe", norm: "ln_f", block: "h",
			attentionNorm: "ln_1", qkv: "attn.c_attn", out: "attn.c_proj",
			mlpNorm: "ln_2", up: "mlp.c_fc", down: "mlp.c_proj",
			conv: true,
		},
		std: defaults{vocab: 50257, dim: 768, layers: 12, heads: 12, context: 1024, bos: 50256, eos: 50256, pad: -1, tied: true, norm: "layer_norm_epsilon"},
		preset: func(g plan.GPT, c *Config) bool {
			c.PackedQKV, c.UpBias = false, false // it always has one matrix, and biases
			return g.Bias
		},
		residual: []string{".c_proj.weight"},
		untied:   true,
		layers: func(c *Config) {
			plainLayers(c)
			c.LayerNorm, c.LearnedPositions, c.Gated, c.NormPlusOne, c.QKNorm = true, true, false, false, false
			c.QKVBias, c.OutBias, c.MLPBias = true, true, true
			c.KVHeads, c.Dim = c.Heads, c.Heads*c.HeadDim
		},
		fields: fieldsGPT2,
	})
}

func fieldsGPT2(f *fields, c *Config) {
	std := f.std
	for name, other := range map[string]string{"n_embd": "hidden_size", "n_positions": "max_position_embeddings",
		"n_head": "num_attention_heads", "n_layer": "num_hidden_layers"} {
		f.alias(name, other)
	}
	field(f, "vocab_size", &c.Vocab, std.vocab)
	field(f, "n_embd", &c.Dim, std.dim)
	field(f, "n_layer", &c.Layers, std.layers)
	field(f, "n_head", &c.Heads, std.heads)
	field(f, "n_positions", &c.Context, std.context)
	f.put("n_ctx", c.Context)
	loose(f, "n_inner", &c.Hidden, 0)
	if f.out == nil && !f.has("n_inner") && c.Dim > 0 && c.Dim <= maxCount {
		c.Hidden = 4 * c.Dim
	}
	field(f, std.norm, &c.NormEps, 1e-5)
	c.activation(f, "activation_function", "gelu_new")
	field(f, "resid_pdrop", &c.ResidualDropout, 0.1)
	field(f, "embd_pdrop", &c.EmbeddingDropout, 0.1)
	field(f, "attn_pdrop", &c.AttentionDropout, 0.1)
	f.only("scale_attn_by_inverse_layer_idx", "false")
	f.only("add_cross_attention", "false")
	scaled := c.ScoreScale != 1 || c.HeadDim == 1
	field(f, "scale_attn_weights", &scaled, true)
	if c.makeWindows(f, "n_layer"); f.err != nil {
		return
	}
	if c.Heads < 1 || c.Dim < 1 || c.Dim%c.Heads != 0 {
		f.fail("n_embd", "%d, want a multiple of n_head, which is %d", c.Dim, c.Heads)
		return
	}
	c.HeadDim = c.Dim / c.Heads
	if !scaled {
		c.ScoreScale = 1
	}
}
