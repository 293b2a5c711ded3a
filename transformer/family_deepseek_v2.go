package transformer

func init() {
	register(family{
		name: "deepseek_v2", class: "DeepseekV2", names: latentLlama,
		std: defaults{vocab: 102400, dim: 4096, hidden: 11008, layers: 32, heads: 32, context: 2048, bos: 1, eos: 2, pad: -1,
			experts: Experts{Count: 64, Chosen: 6, Hidden: 1407}},
		layers: func(c *Config) {
			latentLayers(c)
			c.Experts.Sigmoid, c.Experts.Normalize, c.Experts.Corrected, c.Rope.Interleaved = false, false, false, true
		},
		fields: func(f *fields, c *Config) {
			c.countLatent(f, Latent{QueryRank: 1536, Rank: 512, KeyDim: 128, RopeDim: 64, ValueDim: 128})
			c.activation(f, "hidden_act", "silu")
			field(f, "mlp_bias", &c.MLPBias, false)
			if c.MLPBias {
				f.fail("mlp_bias", "true is not supported: want false")
			}
			c.sparse(f, Experts{Count: 64, Hidden: 1407, Shared: 2, Scale: 1}, 0)
			if f.out == nil && f.err == nil && c.Experts.Chosen < 1 {
				f.fail("num_experts_per_tok", "%d, want 1 or more", c.Experts.Chosen)
			}
			method := "greedy"
			if c.Experts.Groups > 0 {
				method = "group_limited_greedy"
			}
			field(f, "topk_method", &method, "greedy")
			switch method {
			case "greedy": // whatever the groups are
				f.ignore("n_group")
				f.ignore("topk_group")
			case "group_limited_greedy":
				c.groups(f, 0, 0, 1)
				if f.err == nil && c.Experts.Groups == 0 {
					f.fail("n_group", "none, and topk_method chooses groups")
				}
			default:
				f.fail("topk_method", "%.40q, want greedy or group_limited_greedy", method)
			}
			f.ignore("norm_topk_prob") // which transformers does not read
			f.says("scoring_func", `"softmax"`)
			c.further(f)
			c.latentRope(f, true)
		},
	})
}
