package transformer

func init() {
	register(family{
		name: "mistral4", class: "Mistral4", names: latentLlama.with(func(n *names) { n.experts.joined, n.experts.floatLogits = rows, false }),
		std: defaults{vocab: 131072, dim: 4096, hidden: 12288, layers: 36, heads: 32, kvHeads: 32, context: 1048576, bos: 1, eos: 2, pad: 11,
			experts: Experts{Count: 128, Chosen: 4, Hidden: 2048}},
		layers: latentLayers,
		fields: func(f *fields, c *Config) {
			c.countLatent(f, Latent{QueryRank: 1024, Rank: 256, KeyDim: 64, RopeDim: 64, ValueDim: 128})
			c.activation(f, "hidden_act", "silu")
			c.sparse(f, Experts{Count: 128, Chosen: 4, Hidden: 2048, Shared: 1, Scale: 1}, 0)
			c.groups(f, 1, 1, 2)
			loose(f, "norm_topk_prob", &c.Experts.Normalize, true)
			f.ignore("output_router_logits")
			interleaved := c.Rope.Interleaved
			loose(f, "rope_interleave", &interleaved, true)
			c.latentQueryRope(f, interleaved)
		},
	})
}

// latentQueryRope is queryRope for latent attention. Without rope_parameters the rope is YaRN with a factor of 128 over 8192 tokens. They
// have a share of the head that turns, which is RopeDim.
func (c *Config) latentQueryRope(f *fields, interleaved bool) {
	const share, beta = "partial_rotary_factor", "llama_4_scaling_beta"
	l := &c.Latent
	if f.out != nil {
		c.queryRope(f)
		f.out["rope_parameters"].(map[string]any)[share] = turnedShare(l.RopeDim, c.HeadDim)
		return
	}
	head := c.HeadDim
	c.HeadDim = l.RopeDim
	if p := f.ropeObject("rope_parameters", "rope_scaling"); f.err == nil && p == nil {
		f.notRead("rope_theta")
		c.Rope = Rope{Kind: RopeYarn, Theta: 10_000, Dim: l.RopeDim, Factor: 128, OriginalPositions: get(f, "original_max_position_embeddings", 8192), BetaFast: 32, BetaSlow: 1, MScale: 1, MScaleAllDim: 1, QueryScale: 0.1}
	} else if f.err == nil {
		p.alias("rope_type", "type")
		if turned := int(float64(head) * get(p, share, turnedShare(l.RopeDim, head))); turned != l.RopeDim {
			p.fail(share, "it turns %d elements of a head, and qk_rope_head_dim is %d", turned, l.RopeDim)
		}
		if kind := RopeKind(get(p, "rope_type", string(RopeDefault))); kind == RopeDefault {
			p.fail("rope_type", "%q, which turns elements that these models have not: want yarn, linear or another kind", kind)
		}
		if f.err = p.err; f.err == nil {
			delete(p.raw, share)
			c.queryRopeOf(f, p)
		}
	}
	c.HeadDim = head
	if c.Rope.Interleaved = interleaved; f.err != nil {
		return
	}
	c.latentScale()
}
