package transformer

import (
	"encoding/json"
	"errors"
	"math"
	"strconv"

	"github.com/snug-ml/snug/internal/strictjson"
)

// This file has the fields of config.json about a Mamba2, as Bamba, Granite 4 and Falcon-H1 have them.

// stateSpace reads or writes the fields of a Mamba2. inner is the field of the elements of all heads, empty for those that mamba_expand and the
// width give.
func (c *Config) stateSpace(f *fields, inner string) {
	d := c.Mamba
	if d.Heads == 0 { // no layer has one, which transformers wants to be valid
		d = Mamba{Heads: 1, HeadDim: 2 * c.Dim, Groups: 1, StateDim: 256, Taps: 4, ConvBias: true}
	}
	expand := max(1, d.values()/max(1, c.Dim))
	field(f, "mamba_n_heads", &d.Heads, 128)
	field(f, "mamba_n_groups", &d.Groups, 1)
	field(f, "mamba_d_state", &d.StateDim, 256)
	field(f, "mamba_d_conv", &d.Taps, 4)
	field(f, "mamba_expand", &expand, 2)
	field(f, "mamba_conv_bias", &d.ConvBias, true)
	field(f, "mamba_proj_bias", &d.InBias, false)
	d.OutBias = d.InBias
	f.ignore("mamba_chunk_size") // which changes the rounding alone
	values := expand * c.Dim
	if f.put("mamba_d_head", d.HeadDim); inner != "" {
		f.put(inner, d.values())
		if f.taken[inner] = true; f.raw[inner] == nil {
			values = 1024
		} else if f.has(inner) {
			values = get(f, inner, 0)
		}
	}
	if f.out == nil {
		if raw := f.raw["mamba_d_head"]; raw == nil || compact(raw) == `"auto"` {
			f.taken["mamba_d_head"], d.HeadDim = true, values/max(1, d.Heads)
		} else {
			d.HeadDim = get(f, "mamba_d_head", 0)
		}
	}
	c.steps(f, &d)
	switch {
	case f.err != nil:
	case expand < 1 || expand > maxCount || c.Dim < 1 || c.Dim > maxCount || d.Heads < 1 || d.Heads > maxCount || d.HeadDim < 1 || d.HeadDim > maxCount:
		f.fail("mamba_n_heads", "%d, mamba_d_head %d and mamba_expand %d, want 1 or more", d.Heads, d.HeadDim, expand)
	case int64(d.Heads)*int64(d.HeadDim) != int64(values):
		f.fail("mamba_n_heads", "%d of %d elements, want heads that have %d together", d.Heads, d.HeadDim, values)
	}
	if f.out == nil {
		c.Mamba = d
	}
}

// steps has the limits of the steps.
func (c *Config) steps(f *fields, d *Mamba) {
	const name = "time_step_limit"
	limits := []any{strictjson.Float(d.StepMin), strictjson.Float(d.StepMax)}
	if d.StepMax == 0 {
		limits[1] = json.Number("1e999") // infinity, for readers of JSON in Python
	}
	if f.put(name, limits); f.out != nil {
		return
	}
	d.StepMin, d.StepMax = 0, 0
	list := optional[[]json.RawMessage](f, name, nil)
	if list == nil || f.err != nil {
		return
	}
	if len(list) != 2 {
		f.fail(name, "%d numbers, want 2", len(list))
		return
	}
	for i, to := range []*float64{&d.StepMin, &d.StepMax} {
		text := compact(list[i])
		if text == `{"__float__":"Infinity"}` {
			text = "1e999"
		}
		x, err := strconv.ParseFloat(text, 64)
		if err != nil && !errors.Is(err, strconv.ErrRange) || !(x >= 0) {
			f.fail(name, "%.40s, want a number of 0 or more", text)
			return
		}
		if *to = x; i == 1 && x > math.MaxFloat32 {
			*to = 0
		} else if i == 1 && x == 0 {
			f.fail(name, "an upper limit of 0")
		}
	}
}

// mixersOf has the layers with a mixer by their types: layer_types calls them linear_attention or mamba.
func (c *Config) mixersOf(f *fields, mixer Mixer) {
	types := make([]string, len(c.Windows)) // none after an error
	for i := range types {
		if types[i] = "full_attention"; c.mixer(i) != nil {
			types[i] = "linear_attention"
		}
	}
	f.alias("layer_types", "layers_block_type")
	loose(f, "layer_types", &types, nil)
	if f.err != nil || f.out != nil {
		return
	}
	if types != nil && len(types) != c.Layers {
		f.fail("layer_types", "%d layers, and num_hidden_layers is %d", len(types), c.Layers)
		return
	}
	for i := range c.Layers {
		kind := "linear_attention"
		if types != nil {
			kind = types[i]
		}
		switch kind {
		case "linear_attention", "mamba":
			if c.Mixers == nil {
				c.Mixers = make([]Mixer, c.Layers)
			}
			c.Mixers[i] = mixer
		case "full_attention", "attention":
		default:
			f.fail("layer_types", "%.40q in layer %d, want full_attention or linear_attention", kind, i)
			return
		}
	}
	if c.Mixers == nil {
		c.Mamba = Mamba{}
	}
}
