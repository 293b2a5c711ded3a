package transformer

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strconv"

	"github.com/snug-ml/snug/internal/strictjson"
)

func init() {
	registerWhole(whole{
		name: "gemma4", class: "Gemma4", texts: []string{"gemma4_text"},
		layouts: []layout{{"model.language_model.", "lm_head.weight"}, {"language_model.model.", "language_model.lm_head.weight"}},
		fields: []string{"vision_config", "audio_config", "boi_token_id", "eoi_token_id", "image_token_id", "video_token_id", "boa_token_id",
			"eoa_token_id", "eoa_token_index", "audio_token_id", "vision_soft_tokens_per_image", "initializer_range", "use_cache"},
		images: []string{"vision_tower.", "embed_vision.", "audio_tower.", "embed_audio."},
	})
	register(family{
		name: "gemma4_text", class: "Gemma4", ownLayers: true,
		names: gemmaNames.with(func(n *names) {
			n.scalar = "layer_scalar"
			n.experts = expertNames{router: "router.proj", experts: "experts.", gate: "gate_proj", up: "up_proj", down: "down_proj", joined: rows,
				besides: besideNames{scale: "router.scale", scales: "router.per_expert_scale", mlpPost: "post_feedforward_layernorm_1",
					norm: "pre_feedforward_layernorm_2", post: "post_feedforward_layernorm_2"}}
			n.perLayer = perLayerNames{tokens: "embed_tokens_per_layer", projection: "per_layer_model_projection", norm: "per_layer_projection_norm",
				gate: "per_layer_input_gate", out: "per_layer_projection", post: "post_per_layer_input_norm"}
		}),
		std: defaults{vocab: 262144, dim: 2304, hidden: 9216, layers: 30, heads: 8, kvHeads: 4, headDim: 256, context: 131072, bos: 2, eos: 1, pad: 0, tied: true},
		layers: func(c *Config) {
			full, shared, wide, elements, tokens, e := c.Full, c.SharedKV, c.WideShared, c.PerLayer, c.PerLayerVocab, c.Experts
			ropedLayers(c)
			if e.Count > 0 {
				c.Experts = Experts{Count: e.Count, Chosen: e.Chosen, Hidden: e.Hidden, Normalize: true, Beside: true}
			}
			c.NoRope, c.Rope.Interleaved, c.LocalRope.Interleaved = nil, false, false
			c.PostNorms, c.ValueNorm, c.LayerScalar, c.Full = true, true, true, full
			c.SharedKV, c.WideShared, c.PerLayer, c.PerLayerVocab = shared, wide, elements, tokens
			c.Rope.Dim, c.LocalRope.Dim = cmp.Or(full.HeadDim, c.HeadDim), c.HeadDim
		},
		fields: func(f *fields, c *Config) {
			c.counts(f, nil)
			c.activation(f, "hidden_activation", "gelu_pytorch_tanh")
			f.ignore("hidden_act")
			c.bias(f, false)
			c.QKNorm, c.ValueNorm, c.ScoreScale, c.EmbeddingScale = true, true, 1, math.Sqrt(float64(c.Dim))
			c.cap(f, "final_logit_softcapping", &c.LogitCap, 0)
			f.only("use_bidirectional_attention", `"vision"`) // of tokens of images
			c.experts4(f)
			loose(f, "hidden_size_per_layer_input", &c.PerLayer, 256)
			if field(f, "vocab_size_per_layer_input", &c.PerLayerVocab, 262144); c.PerLayer == 0 {
				c.PerLayerVocab = 0
			}
			field(f, "num_kv_shared_layers", &c.SharedKV, 0)
			if field(f, "use_double_wide_mlp", &c.WideShared, false); c.SharedKV == 0 {
				c.WideShared = false // which is of these layers
			}
			window, _ := c.window()
			window = cmp.Or(window, 512)
			field(f, "sliding_window", &window, 512)
			c.windowsByType(f, window, func(i int) bool { return (i+1)%6 != 0 })
			if f.err == nil && f.out == nil {
				c.Windows[c.Layers-1] = 0 // whatever its type is
			}
			c.fullLayers(f)
			c.ropes4(f)
		},
	})
}

// experts4 has the experts of 26B-A4B, beside the MLP of each layer.
func (c *Config) experts4(f *fields) {
	e := &c.Experts
	if field(f, "enable_moe_block", &e.Beside, false); !e.Beside {
		for _, name := range []string{"num_experts", "top_k_experts", "moe_intermediate_size"} {
			f.ignore(name) // of these parts
		}
		return
	}
	for _, n := range []struct {
		name  string
		value *int
	}{{"num_experts", &e.Count}, {"top_k_experts", &e.Chosen}, {"moe_intermediate_size", &e.Hidden}} {
		if loose(f, n.name, n.value, 0); f.err == nil && *n.value < 1 {
			f.fail(n.name, "%d, want 1 or more", *n.value)
		}
	}
}

// fullLayers has what layers without a window have in place of num_key_value_heads and head_dim: global_head_dim and
// num_global_key_value_heads, or in newer files per_layer_config.
func (c *Config) fullLayers(f *fields) {
	full := &c.Full
	f.put("attention_k_eq_v", full.KeysAreValues)
	f.put("global_head_dim", full.HeadDim)
	f.put("num_global_key_value_heads", full.KVHeads)
	if f.err != nil || f.out != nil {
		return
	}
	full.KeysAreValues = get(f, "attention_k_eq_v", false)
	var none *int
	head, kv := get(f, "global_head_dim", 512), getNull(f, "num_global_key_value_heads", none, &none)
	if full.HeadDim, full.KVHeads = head, c.KVHeads; kv != nil && full.KeysAreValues {
		full.KVHeads = *kv
	}
	own := f.object("per_layer_config")
	if own == nil {
		return
	}
	first := true
	for i, window := range c.Windows {
		name := strconv.Itoa(i)
		head, kv := c.HeadDim, c.KVHeads
		if l := own.object(name); l != nil {
			head, kv = get(l, "head_dim", head), get(l, "num_key_value_heads", kv)
			for _, other := range left(l) {
				l.fail(other, "%.40s, want head_dim and num_key_value_heads alone", l.raw[other])
			}
			own.err = cmp.Or(own.err, l.err)
		}
		switch {
		case window != 0 && (head != c.HeadDim || kv != c.KVHeads), window == 0 && !first && (head != full.HeadDim || kv != full.KVHeads):
			own.fail(name, "%d heads of %d elements, want the same in all layers of a type, and those of the model in layers with a window", kv, head)
		case window == 0:
			full.HeadDim, full.KVHeads, first = head, kv, false
		}
	}
	for _, other := range left(own) {
		own.fail(other, "%.40s, and the model has %d layers", own.raw[other], c.Layers)
	}
	f.err = cmp.Or(f.err, own.err)
}

// left returns the names of members that nobody has read, sorted.
func left(f *fields) (names []string) {
	for _, name := range slices.Sorted(maps.Keys(f.raw)) {
		if !f.taken[name] {
			names = append(names, name)
		}
	}
	return names
}

// ropes4 has the ropes of the two types of layers, each of its own kind.
func (c *Config) ropes4(f *fields) {
	members := func(r Rope) map[string]any {
		m := map[string]any{"rope_type": string(r.Kind), "rope_theta": strictjson.Float(r.Theta)}
		if r.Kind == RopeProportional {
			m["factor"], m["partial_rotary_factor"] = strictjson.Float(r.Factor), strictjson.Float(pairsShare(r.Turned, r.Dim))
		}
		return m
	}
	f.put("rope_parameters", map[string]any{"full_attention": members(c.Rope), "sliding_attention": members(c.LocalRope)})
	if f.err != nil || f.out != nil {
		return
	}
	c.Rope = Rope{Kind: RopeProportional, Theta: 1_000_000, Factor: 1, Dim: c.Full.HeadDim, Turned: pairsOf(0.25, c.Full.HeadDim)}
	c.LocalRope = Rope{Kind: RopeDefault, Theta: 10_000, Dim: c.HeadDim}
	both := f.object("rope_parameters")
	if both == nil {
		return
	}
	for _, r := range []struct {
		name string
		rope *Rope
		head int
	}{{"full_attention", &c.Rope, c.Full.HeadDim}, {"sliding_attention", &c.LocalRope, c.HeadDim}} {
		p := both.object(r.name)
		if p == nil {
			both.fail(r.name, "no rope, want one for each of full_attention and sliding_attention")
			break
		}
		*r.rope = Rope{Kind: RopeKind(get(p, "rope_type", "")), Theta: get(p, "rope_theta", 0.0), Dim: r.head}
		switch r.rope.Kind {
		case RopeDefault:
			p.notRead("partial_rotary_factor")
		case RopeProportional:
			share := get(p, "partial_rotary_factor", 1.0)
			if r.rope.Factor = get(p, "factor", 1.0); !(share >= 0 && share <= 1) {
				p.fail("partial_rotary_factor", "%v, want 0 to 1", share)
			}
			r.rope.Turned = pairsOf(share, r.head)
		default:
			p.fail("rope_type", "%.40q, want default or proportional", r.rope.Kind)
		}
		both.err = cmp.Or(both.err, p.rest())
	}
	f.err = cmp.Or(f.err, both.err, both.rest())
}

// pairsOf returns how many pairs of elements of a head turn for a share of the elements.
func pairsOf(share float64, head int) int { return int(math.Floor(share * float64(head) / 2)) }

// pairsShare returns the share for which pairsOf returns so many pairs.
func pairsShare(pairs, head int) float64 {
	share := 2 * float64(pairs) / float64(head)
	if pairsOf(share, head) < pairs { // by rounding
		share = math.Nextafter(share, 2)
	}
	return share
}
