package transformer

func init() {
	register(family{
		name: "granitemoehybrid", class: "GraniteMoeHybrid",
		names: llamaNames.with(func(n *names) {
			n.mamba, n.gateUp, n.down = "mamba", "shared_mlp.input_linear", "shared_mlp.output_linear"
		}),
		std: defaults{vocab: 32000, dim: 4096, hidden: 11008, layers: 32, heads: 32, context: 2048, bos: 1, eos: 2, pad: -1},
		layers: func(c *Config) {
			mixers, mamba, without := c.Mixers, c.Mamba, c.NoRope
			plainLayers(c)
			c.Mixers, c.Mamba, c.NoRope, c.Activation = mixers, mamba, without, SiLU
		},
		fields: func(f *fields, c *Config) {
			c.counts(f, &c.Heads)
			field(f, "shared_intermediate_size", &c.Hidden, 1024)
			experts := 0
			if field(f, "num_local_experts", &experts, 8); experts != 0 {
				f.fail("num_local_experts", "%d, and experts of this family are not supported: want 0", experts)
			}
			c.silu(f)
			c.bias(f, false)
			c.multipliers(f)
			c.stateSpace(f, "")
			c.Mamba.Norm = true
			c.mixersOf(f, Mamba2)
			c.positionType(f)
			c.rope(f)
			for _, name := range []string{"init_method", "normalization_function", "num_experts_per_tok", "output_router_logits", "router_aux_loss_coef"} { // of IBM's own code, and of experts
				f.ignore(name)
			}
		},
	})
}

// positionType has the kind of positions: layers have a rope if it is "rope".
func (c *Config) positionType(f *fields) {
	kind := "rope"
	if c.NoRope != nil {
		kind = ""
	}
	if nullable(f, "position_embedding_type", &kind, ""); f.err != nil || f.out != nil || kind == "rope" {
		return
	}
	c.NoRope = make([]bool, c.Layers)
	for i := range c.NoRope {
		c.NoRope[i] = true
	}
}
