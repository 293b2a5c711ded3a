package transformer

func init() {
	register(family{
		name: "deepseek_v3", class: "DeepseekV3", names: latentLlama.with(func(n *names) { n.further = true }),
		std: defaults{vocab: 129280, dim: 7168, hidden: 18432, layers: 61, heads: 128, kvHeads: 128, context: 4096, bos: 0, eos: 1, pad: -1,
			experts: Experts{Count: 256, Chosen: 8, Hidden: 2048}},
		layers: latentLayers,
		fields: func(f *fields, c *Config) {
			c.countLatent(f, Latent{QueryRank: 1536, Rank: 512, KeyDim: 128, RopeDim: 64, ValueDim: 128})
			c.activation(f, "hidden_act", "silu")
			c.sparse(f, Experts{Count: 256, Chosen: 8, Hidden: 2048, Shared: 1, Scale: 2.5}, 3)
			c.groups(f, 8, 4, 2)
			loose(f, "norm_topk_prob", &c.Experts.Normalize, true)
			c.Experts.Sigmoid, c.Experts.Corrected = true, true
			f.says("scoring_func", `"sigmoid"`)
			f.says("topk_method", `"noaux_tc"`)
			c.further(f)
			interleaved := c.Rope.Interleaved
			loose(f, "rope_interleave", &interleaved, true)
			c.latentRope(f, interleaved)
		},
	})
}

// further takes the fields of layers that predict further tokens, and of training them.
func (c *Config) further(f *fields) {
	if c.names().further {
		f.put("num_nextn_predict_layers", 0) // which are passed over
	}
	for _, name := range []string{"num_nextn_predict_layers", "num_mtp_layers", "ep_size", "aux_loss_alpha", "seq_aux", "output_router_logits"} {
		f.ignore(name)
	}
}
