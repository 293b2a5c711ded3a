package transformer

func init() {
	register(family{
		name: "glm4_moe_lite", class: "Glm4MoeLite", names: latentLlama.with(func(n *names) { n.further = true }),
		std: defaults{vocab: 154880, dim: 2048, hidden: 10240, layers: 47, heads: 20, kvHeads: 20, context: 202752, bos: 0, eos: 1, pad: -1, eps: 1e-5,
			experts: Experts{Count: 64, Chosen: 4, Hidden: 1536}},
		layers: latentLayers,
		fields: func(f *fields, c *Config) {
			c.countLatent(f, Latent{QueryRank: 768, Rank: 512, KeyDim: 192, RopeDim: 64, ValueDim: 256})
			c.activation(f, "hidden_act", "silu")
			types := c.mlpTypes()
			f.says("first_k_dense_replace", "1") // mlp_layer_types says it
			delete(f.raw, "first_k_dense_replace")
			if c.sparse(f, Experts{Count: 64, Chosen: 4, Hidden: 1536, Shared: 1, Scale: 1.8}, 1); f.out != nil {
				delete(f.out, "first_k_dense_replace")
			}
			loose(f, "mlp_layer_types", &types, nil)
			c.denseTypes(f, types)
			c.groups(f, 1, 1, 2)
			field(f, "norm_topk_prob", &c.Experts.Normalize, true)
			c.Experts.Sigmoid, c.Experts.Corrected = true, true
			f.says("scoring_func", `"sigmoid"`)
			f.says("topk_method", `"noaux_tc"`)
			c.further(f)
			interleaved := c.Rope.Interleaved
			field(f, "rope_interleave", &interleaved, true)
			c.latentRope(f, interleaved)
		},
	})
}

// mlpTypes returns mlp_layer_types.
func (c *Config) mlpTypes() (types []string) {
	for i := range c.Windows {
		kind := "sparse"
		if !c.hasExperts(i) {
			kind = "dense"
		}
		types = append(types, kind)
	}
	return types
}

// denseTypes sets the layers without experts by their types, if there are any.
func (c *Config) denseTypes(f *fields, types []string) {
	if f.out != nil || f.err != nil || types == nil {
		return
	}
	if len(types) != c.Layers {
		f.fail("mlp_layer_types", "%d layers, and num_hidden_layers is %d", len(types), c.Layers)
		return
	}
	some, sparse := false, false
	c.Experts.Dense = make([]bool, c.Layers)
	for i, kind := range types {
		switch kind {
		case "dense":
			c.Experts.Dense[i], some = true, true
		case "sparse":
			sparse = true
		default:
			f.fail("mlp_layer_types", "%.40q in layer %d, want dense or sparse", kind, i)
			return
		}
	}
	if !some {
		c.Experts.Dense = nil
	}
	if !sparse {
		f.fail("mlp_layer_types", "no layer with experts")
	}
}
