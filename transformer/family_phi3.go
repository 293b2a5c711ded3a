package transformer

import (
	"cmp"
	"encoding/json"
	"strconv"
)

// phi3Context is original_max_position_embeddings where a file does not have it.
const phi3Context = 4096

func init() {
	register(family{
		name: "phi3", class: "Phi3",
		names: llamaNames.with(func(n *names) {
			n.q, n.k, n.v, n.qkv = "", "", "", "self_attn.qkv_proj"
			n.gate, n.up, n.gateUp = "", "", "mlp.gate_up_proj"
		}),
		gguf: ggufForm{arch: "phi3", turned: true, longFactors: true, square: true, keys: func(c *Config, m *ggufMetadata) {
			window, _ := c.window()
			m.count("attention.sliding_window", window) // 0 says that there is none
			m.count("rope.scaling.original_context_length", cmp.Or(c.Rope.OriginalPositions, phi3Context))
		}},
		std: defaults{vocab: 32064, dim: 3072, hidden: 8192, layers: 32, heads: 32, context: 4096, bos: 1, eos: 32000, pad: 32000, eps: 1e-5, turned: 1,
			ropes: map[RopeKind]RopeKind{"su": RopeLong, RopeYarn: RopeLong}},
		layers: func(c *Config) {
			ropedLayers(c)
			c.NoRope, c.Rope.Interleaved = nil, false
		},
		fields: func(f *fields, c *Config) {
			c.counts(f, &c.Heads)
			c.activation(f, "hidden_act", "silu")
			field(f, "resid_pdrop", &c.ResidualDropout, 0)
			for _, name := range []string{"embd_pdrop", "full_attn_mod", "interpolate_factor"} { // which transformers does not apply
				f.ignore(name)
			}
			c.everyWindow(f, 0)
			const original = "original_max_position_embeddings"
			f.put(original, cmp.Or(c.Rope.OriginalPositions, phi3Context))
			if f.out == nil && !f.has(original) {
				f.raw[original] = json.RawMessage(strconv.Itoa(phi3Context))
			}
			c.rope(f)
			f.taken[original] = true // of a rope that is not scaled
		},
	})
}
