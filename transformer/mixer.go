package transformer

import (
	"fmt"
	"maps"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/layers"
	"github.com/snug-ml/snug/plan"
)

// Mixer is what a layer has in place of attention: a layer that carries a state along the sequence. The empty one is attention.
type Mixer string

// mixer is what a Mixer says of itself. Its file fills mixers.
type mixer struct {
	stage  string // its name in those of stages
	check  func(c *Config) error
	list   func(l *lister)                     // its tensors
	layer  func(m *Model, block string) mixing // of the tensors with a prefix
	plan   func(c *Config, s sizes) plan.Layer // without what all halves have
	width  func(c *Config) int                 // elements of its widest row
	work   func(c *Config) int                 // multiply-adds of a row
	scales bool                                // it takes Config.ResidualScale
	state  func(c *Config) int                 // float32 elements of what a text has in place of keys and values, or beside them

	first func(c *Config, name string) (f first, own bool) // initial values of parameters that have their own; nil for none
	norm  func(c *Config) (heads, cols int)                // of a norm of heads within; nil for none
}

// mixing is a half that goes on from a state.
type mixing interface {
	half
	Continue(p *layers.Pass, x *tensor, states []snug.View) *tensor
}

var mixers = map[Mixer]*mixer{}

// mixer returns what a layer has in place of attention, nil for attention.
func (c *Config) mixer(layer int) *mixer {
	if c.Mixers == nil {
		return nil
	}
	return mixers[c.Mixers[layer]]
}

// scalesMixers reports whether the mixers of the layers take the factor of halves.
func (c *Config) scalesMixers() bool {
	for x := range c.mixes {
		if !x.scales {
			return false
		}
	}
	return true
}

// mixes yields each mixer that a layer has.
func (c *Config) mixes(yield func(*mixer) bool) {
	for i, name := range c.Mixers {
		if name != "" && !slices.Contains(c.Mixers[:i], name) && !yield(mixers[name]) {
			return
		}
	}
}

// checkMixers returns an error unless each layer has attention or a mixer that is known.
func (c *Config) checkMixers() error {
	if c.Mixers != nil && len(c.Mixers) != c.Layers {
		return bad("Mixers", "%d layers, want %d or nil", len(c.Mixers), c.Layers)
	}
	for i, name := range c.Mixers {
		switch {
		case name != "" && mixers[name] == nil:
			return bad("Mixers", "%.40q in layer %d, want one of %q, or none for attention", name, i, slices.Sorted(maps.Keys(mixers)))
		case name != "" && c.Windows[i] != 0:
			return bad("Windows", "a window of layer %d, which has no attention", i)
		}
	}
	if c.Mixers == nil && c.Mamba != (Mamba{}) {
		return bad("Mamba", "fields beside no Mixers")
	}
	for x := range c.mixes {
		if err := x.check(c); err != nil {
			return err
		}
	}
	return nil
}

// mixersByType has the layers with a mixer, which layer_types calls by a name; the others are those for which full returns true where the
// file lacks that.
func (c *Config) mixersByType(f *fields, mixer Mixer, name string, full func(layer int) bool) {
	types := make([]string, len(c.Windows)) // none after an error
	for i := range types {
		if types[i] = "full_attention"; c.mixer(i) != nil {
			types[i] = name
		}
	}
	loose(f, "layer_types", &types, nil)
	if f.err != nil || f.out != nil {
		return
	}
	if types == nil {
		for i := range c.Layers {
			kind := name
			if full(i) {
				kind = "full_attention"
			}
			types = append(types, kind)
		}
	}
	if len(types) != c.Layers {
		f.fail("layer_types", "%d layers, and num_hidden_layers is %d", len(types), c.Layers)
		return
	}
	for i, kind := range types {
		switch kind {
		case name:
			if c.Mixers == nil {
				c.Mixers = make([]Mixer, c.Layers)
			}
			c.Mixers[i] = mixer
		case "full_attention":
		default:
			f.fail("layer_types", "%.40q in layer %d, want full_attention or %s", kind, i, name)
			return
		}
	}
}

// checkDevice returns an error unless the device has what the layers are.
func (m *Model) checkDevice() error {
	for _, n := range []struct {
		name string
		is   bool
	}{{"latent attention", m.config.latent()}, {"groups of experts", m.config.Experts.Groups > m.config.Experts.ChosenGroups},
		{"factors of experts", m.config.Experts.Beside}, {"a gate of attention's output", m.config.OutputGate}, {"streams", m.config.AltUp.Streams > 0}} {
		if n.is && !m.dev.IsCPU() {
			return fmt.Errorf("the model has %s, which the CPU alone computes, and the device is %s: %w", n.name, m.dev, snug.ErrDevice)
		}
	}
	for x := range m.config.mixes {
		if !m.dev.IsCPU() {
			return fmt.Errorf("the model has layers that the CPU alone computes (%s), and the device is %s: %w", x.stage, m.dev, snug.ErrDevice)
		}
	}
	return nil
}

// recurrent reports whether a text has a state that its next token changes, so that what it was at an earlier one is gone.
func (c *Config) recurrent() bool {
	for range c.mixes {
		return true
	}
	return false
}

// mix is Continue of a layer for texts that have their states in its caches.
func mix(o *layers.Pass, a mixing, x *tensor, layer int, list []*Generator, rows int) (*tensor, error) {
	states := list[0].m.statesOf(layer, list)
	for _, g := range list {
		g.layers[layer].used += rows
	}
	z := a.Continue(o, x, states)
	return z, o.Err
}

// statesOf returns the states of texts in a layer, zeros where a text has no rows yet.
func (m *Model) statesOf(layer int, list []*Generator) []snug.View {
	m.states = m.states[:0]
	for _, g := range list {
		l := &g.layers[layer]
		if l.used == 0 {
			clear(l.state.Float32s())
		}
		m.states = append(m.states, l.state)
	}
	return m.states
}
