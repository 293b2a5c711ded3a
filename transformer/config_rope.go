package transformer

import (
	"cmp"
	"errors"
	"maps"
	"math"

	"github.com/snug-ml/snug/layers"
)

type (
	// Rope is a rotary position embedding.
	Rope = layers.Rope
	// RopeKind is a method of scaling a rope for longer sequences: the rope_type of config.json.
	RopeKind = layers.RopeKind
)

// The kinds of ropes.
const (
	RopeDefault = layers.RopeDefault
	RopeLinear  = layers.RopeLinear
	RopeDynamic = layers.RopeDynamic
	RopeLlama3  = layers.RopeLlama3
	RopeYarn    = layers.RopeYarn
	RopeLong    = layers.RopeLong

	RopeProportional = layers.RopeProportional
)

// rope has the rope of all layers: rope_parameters, or rope_theta and rope_scaling.
func (c *Config) rope(f *fields) {
	c.writeRope(f)
	interleaved := c.Rope.Interleaved
	base, _ := f.std.ropeNames()
	c.Rope = c.ropeOf(f, f.ropeObject("rope_parameters", "rope_scaling"), base, cmp.Or(f.std.theta, 10_000))
	c.Rope.Interleaved = interleaved // which is the family's
}

// turned returns how many elements of a head turn: a share of them, which p or f says.
func (c *Config) turned(f, p *fields) int {
	const inner = "partial_rotary_factor"
	_, name := f.std.ropeNames()
	if f.std.turned == 0 {
		f.only(name, "1", "1.0")
		if p != nil {
			p.only(inner, "1", "1.0")
		}
		return c.HeadDim
	}
	share := get(f, name, f.std.turned)
	if p != nil && p.has(inner) {
		own := get(p, inner, share)
		if f.has(name) && own != share {
			f.fail(name, "%v, and %s%s is %v: want the same value", share, p.path, inner, own)
		}
		share = own
	}
	if f.err == nil && !(share > 0 && share <= 1) {
		f.fail(name, "%v, want a number above 0 and up to 1", share)
	}
	return int(float64(c.HeadDim) * share)
}

// turnedShare returns the share that turned takes for some elements of a head.
func turnedShare(dim, head int) float64 {
	share := float64(dim) / float64(head)
	if int(float64(head)*share) < dim { // by rounding
		share = math.Nextafter(share, 2)
	}
	return share
}

func (c *Config) writeRope(f *fields) {
	base, share := f.std.ropeNames()
	f.put(base, c.Rope.Theta)
	if f.std.turned != 0 {
		f.put(share, turnedShare(c.Rope.Dim, c.HeadDim))
	}
	if c.Rope.Kind != RopeDefault || c.Rope.Sections != [3]int{} {
		f.put("rope_scaling", ropeMembers(c.Rope))
	}
}

// ropeObject returns the member of one of two names. Both may be there if they say the same.
func (f *fields) ropeObject(name, other string) *fields {
	a, b := f.object(name), f.object(other)
	if a != nil && b != nil && !sameRope(a, b) {
		f.fail(other, "%s is there too, and says something else: want one of them", name)
	}
	if a == nil {
		return b
	}
	return a
}

// sameRope reports whether two objects describe one rope. One of them may lack the base.
func sameRope(a, b *fields) bool {
	var of [2]map[string]string
	for i, f := range []*fields{a, b} {
		of[i] = map[string]string{}
		for name, raw := range f.raw {
			if name == "type" {
				name = "rope_type"
			}
			if !isNull(raw) {
				of[i][name] = compact(raw)
			}
		}
	}
	if x, y := of[0]["rope_theta"], of[1]["rope_theta"]; x == "" || y == "" {
		delete(of[0], "rope_theta")
		delete(of[1], "rope_theta")
	}
	return maps.Equal(of[0], of[1])
}

// attentionFactor reads the factor of sines and cosines, 0 for none.
func attentionFactor(p *fields) (x float64) {
	if p.has("attention_factor") {
		if x = get(p, "attention_factor", 0.0); x == 0 {
			p.fail("attention_factor", "0, want a positive number or null")
		}
	}
	return x
}

// ropeOf reads the parameters p of a rope, which may be nil. If p has no base, the field theta of f has it.
func (c *Config) ropeOf(f, p *fields, theta string, standard float64) Rope {
	r := Rope{Kind: RopeDefault, Dim: c.turned(f, p)}
	if p == nil {
		r.Theta = get(f, theta, standard)
		return r
	}
	if p.has("rope_theta") {
		r.Theta = get(p, "rope_theta", standard)
		if f.has(theta) && get(f, theta, r.Theta) != r.Theta {
			f.fail(theta, "%v, and %srope_theta is %v: want the same value", get(f, theta, 0.0), p.path, r.Theta)
		}
	} else {
		p.only("rope_theta")
		r.Theta = get(f, theta, standard)
	}
	f.taken[theta] = true
	p.alias("rope_type", "type")
	r.Kind = RopeKind(get(p, "rope_type", string(RopeDefault)))
	if kind, is := f.std.ropes[r.Kind]; is {
		r.Kind = kind
	}
	if f.std.sections && p.has("mrope_section") {
		r.Sections = get(p, "mrope_section", r.Sections)
		r.Spread = get(p, "mrope_interleaved", false) || f.std.spread
		if r.Kind == "mrope" { // in the first folders, which means default
			r.Kind = RopeDefault
		}
	}
	needs, known := r.Kind.Needs()
	if !known || needs.Sections { // which no text has
		p.fail("rope_type", "%.40q, want default, linear, dynamic, llama3, yarn or longrope", r.Kind)
	}
	if needs.Factor && r.Kind != RopeLong {
		r.Factor = get(p, "factor", 0.0)
	}
	switch r.Kind {
	case RopeDynamic:
		r.MaxPositions = c.Context
	case RopeLlama3:
		r.LowFreqFactor, r.HighFreqFactor = get(p, "low_freq_factor", 0.0), get(p, "high_freq_factor", 0.0)
	case RopeYarn:
		r.BetaFast, r.BetaSlow = optional(p, "beta_fast", 0.0), optional(p, "beta_slow", 0.0)
		r.MScale, r.MScaleAllDim = optional(p, "mscale", 0.0), optional(p, "mscale_all_dim", 0.0)
		r.AttentionFactor = attentionFactor(p)
		r.NoTruncate = !get(p, "truncate", true)
	}
	if f.has("original_max_position_embeddings") && needs.Original {
		// transformers takes it in place of the rope's own.
		outer := get(f, "original_max_position_embeddings", 0)
		if own := optional(p, "original_max_position_embeddings", outer); own != outer {
			f.fail("original_max_position_embeddings", "%d, and %soriginal_max_position_embeddings is %d: want the same value", outer, p.path, own)
		}
		p.raw["original_max_position_embeddings"] = f.raw["original_max_position_embeddings"]
	}
	if needs.Original {
		r.OriginalPositions = optional(p, "original_max_position_embeddings", c.Context)
	}
	if r.Kind == RopeLong {
		r.AttentionFactor = attentionFactor(p)
		r.Factors = &layers.RopeFactors{Short: get[[]float64](p, "short_factor", nil), Long: get[[]float64](p, "long_factor", nil)}
		r.Factor = optional(p, "factor", 0.0)
		if r.Factor == 0 && r.OriginalPositions > 0 {
			r.Factor = max(1, float64(c.Context)/float64(r.OriginalPositions))
		}
	}
	// The parameters may have members that only other kinds use.
	if err := p.rest("factor", "original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim",
		"truncate", "low_freq_factor", "high_freq_factor", "short_factor", "long_factor"); err != nil && f.err == nil {
		f.err = err
	}
	if f.err == nil {
		if err := r.Check(); err != nil {
			f.fail(p.path[:max(0, len(p.path)-1)], "%w", errors.Unwrap(err))
		}
	}
	return r
}
