package transformer

import "github.com/snug-ml/snug/internal/strictjson"

func init() {
	register(family{
		name: "olmo3", class: "Olmo3", names: olmoNames, layers: olmoLayers,
		std: defaults{vocab: 50304, dim: 4096, hidden: 11008, layers: 32, heads: 32, context: 2048, bos: -1, eos: 50279, pad: 1, eps: 1e-5, theta: olmoTheta},
		fields: func(f *fields, c *Config) {
			c.olmo(f)
			window, _ := c.window()
			if f.out != nil && window == 0 {
				window = 4096 // without any transformers makes no model, whatever the layers are
			}
			nullable(f, "sliding_window", &window, 4096)
			c.windowsByType(f, window, func(i int) bool { return (i+1)%4 != 0 })
			c.olmoRopes(f)
		},
	})
}

const olmoTheta = 500_000

// olmoRopes has the rope of layers without a window, and of those with one another where the two differ. rope_theta and rope_scaling are
// of layers without a window alone: transformers gives the others its default. rope_parameters has one for each type of layer.
func (c *Config) olmoRopes(f *fields) {
	local := Rope{Kind: RopeDefault, Theta: olmoTheta, Dim: c.HeadDim}
	if f.out != nil {
		own := c.LocalRope
		if own.Kind == "" {
			own = c.Rope
		}
		if own == local {
			c.writeRope(f)
			return
		}
		a, b := ropeMembers(own), ropeMembers(c.Rope)
		a["rope_theta"], b["rope_theta"] = strictjson.Float(own.Theta), strictjson.Float(c.Rope.Theta)
		f.put("rope_parameters", map[string]any{"sliding_attention": a, "full_attention": b})
		return
	}
	global, second := f.object("rope_scaling"), (*fields)(nil)
	if global != nil && global.has("type") && !global.has("rope_type") {
		global.fail("type", "without rope_type, which transformers does not read for this family: want rope_type")
	}
	if both := f.object("rope_parameters"); both != nil {
		if global != nil {
			f.fail("rope_scaling", "rope_parameters is there too: want one of them")
		}
		if both.has("rope_type") || both.has("rope_theta") {
			both.fail("rope_type", "or rope_theta for all layers: want members full_attention and sliding_attention")
		}
		global, second = both.object("full_attention"), both.object("sliding_attention")
		if err := both.rest(); err != nil && f.err == nil {
			f.err = err
		}
	}
	c.Rope = c.ropeOf(f, global, "rope_theta", olmoTheta)
	if second != nil {
		local = c.ropeOf(f, second, "", olmoTheta)
	}
	if c.Rope.NoTruncate || local.NoTruncate {
		f.fail("truncate", "false, which transformers does not apply to one of two ropes: want true")
	}
	if local != c.Rope {
		c.LocalRope = local
	}
}
