package transformer

// Custom is the family of models to train from scratch that no folder describes. The fields of the Config choose
// LayerNorm or RMSNorm, a rope or learned positions, a gate or none, and biases anywhere. There are no PostNorms. A
// model without a gate needs MLPBias or UpBias, and PackedQKV goes without norms of heads.
//
// Parameters have the names of Llama, with embed_positions for learned positions and self_attn.qkv_proj for a packed
// matrix. Initial values are GPT-2's: the standard deviation of matrices whose products enter the residual stream is
// divided by the root of the number of halves. There is no config.json, so [Config.Write] and [Model.Save] return an
// error.
const Custom = "custom"

func init() {
	register(family{
		name:     Custom,
		names:    llamaNames.with(func(n *names) { n.positions, n.qkv = "embed_positions", "self_attn.qkv_proj" }),
		residual: []string{".o_proj.weight", ".down_proj.weight"},
		layers: func(c *Config) {
			c.PostNorms, c.ValueNorm, c.LayerScalar, c.Full, c.SharedKV, c.WideShared = false, false, false, FullAttention{}, 0, false
			c.PerLayer, c.PerLayerVocab, c.AltUp, c.Sparsity = 0, 0, AltUp{}, nil
		},
	})
}
