package transformer

import (
	"cmp"

	"github.com/snug-ml/snug/internal/strictjson"
)

func init() {
	register(family{
		name: "gpt_oss", class: "GptOss", mlx: "model.",
		gguf: ggufForm{arch: "gpt-oss", mlpNorm: "post_attention_norm", outBias: true, ownHead: true, untruncated: true, period: 2, keys: func(c *Config, m *ggufMetadata) {
			m.count("expert_feed_forward_length", c.Experts.Hidden)
		}},
		names: llamaNames.with(func(n *names) {
			n.experts.router, n.experts.mlx, n.experts.joined = "mlp.router", "mlp.experts", byTurns
		}),
		std: defaults{vocab: 201088, dim: 2880, hidden: 2880, layers: 36, heads: 64, kvHeads: 8, headDim: 64, context: 131072, bos: -1, eos: -1, pad: -1,
			eps: 1e-5, theta: 150_000, experts: Experts{Count: 128, Chosen: 4, Alpha: 1.702, Limit: 7}},
		normal: []string{".mlp.router.bias"},
		layers: func(c *Config) {
			alpha, limit := c.Experts.Alpha, c.Experts.Limit
			routedLayers(c)
			e := &c.Experts
			c.Sinks, e.Bias, e.Normalize, e.Hidden = true, true, true, c.Hidden
			e.Clamped, e.Alpha, e.Limit = true, alpha, limit
		},
		fields: func(f *fields, c *Config) {
			c.counts(f, &c.Heads)
			if f.has("experts_per_token") && bytesOf(f, "experts_per_token") == bytesOf(f, "num_experts_per_tok") {
				f.ignore("experts_per_token") // as OpenAI calls it
			}
			f.ignore("initial_context_length") // transformers reads original_max_position_embeddings
			c.experts(f, "num_local_experts", c.Hidden)
			field(f, "swiglu_limit", &c.Experts.Limit, f.std.experts.Limit)
			field(f, "swiglu_alpha", &c.Experts.Alpha, f.std.experts.Alpha)
			c.Activation = SiLU
			f.put("hidden_act", "silu")
			f.ignore("hidden_act") // its experts have an activation of their own
			c.bias(f, true)
			window, _ := c.window()
			window = cmp.Or(window, 128)
			loose(f, "sliding_window", &window, 128)
			c.windowsByType(f, window, func(i int) bool { return i%2 == 0 })
			c.yarn(f)
		},
	})
}

// yarn has the rope. If the file has none, it is YaRN with a factor of 32 over 4096 tokens.
func (c *Config) yarn(f *fields) {
	if c.writeRope(f); f.out != nil && c.Rope.Kind == RopeDefault {
		delete(f.out, "rope_theta")
		f.put("rope_parameters", map[string]any{"rope_type": "default", "rope_theta": strictjson.Float(c.Rope.Theta)})
	}
	p := f.ropeObject("rope_parameters", "rope_scaling")
	c.Rope = c.ropeOf(f, p, "rope_theta", f.std.theta)
	if p == nil {
		c.Rope.Kind, c.Rope.Factor, c.Rope.OriginalPositions = RopeYarn, 32, get(f, "original_max_position_embeddings", 4096)
		c.Rope.BetaFast, c.Rope.BetaSlow, c.Rope.NoTruncate = 32, 1, true
	}
}
