package quant8

import (
	"fmt"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/blockq"
	"github.com/snug-ml/snug/internal/optim"
)

// codeMaps encodes the two moments of an optimizer.
type codeMaps struct {
	m, v     *blockq.Encoder
	mirrored bool // the kernels of devices can decode m
}

// newCodeMaps returns the encoders of checked maps. nil stands for the dynamic map.
func newCodeMaps(m, v *Map, nearest bool) codeMaps {
	c := codeMaps{m: signed(), v: unsigned()}
	if !nearest {
		c.m = keeping()
	}
	if m != nil && *m != *c.m.Map() {
		c.m = newEncoder(m, !nearest)
	}
	if v != nil && *v != *c.v.Map() {
		c.v = newDivisor(v)
	}
	c.mirrored = mirrored(c.m.Map())
	return c
}

// encoder returns the encoder of moment 0 or 1.
func (c *codeMaps) encoder(i int) *blockq.Encoder { return [...]*blockq.Encoder{c.m, c.v}[i] }

// mirrored says whether codes 127-i and 127+i stand for opposite values.
func mirrored(m *[256]float32) bool {
	for i := range 128 {
		if m[127-i] != -m[127+i] {
			return false
		}
	}
	return true
}

// checkCodeMaps checks the maps of the two moments. nil stands for the dynamic map.
// Values are at most absmax in magnitude, so that storing a moment cannot enlarge it. A
// second moment has a root and is never negative: for the rules that encode it with Map1,
// an entry 0 keeps it away from negative entries.
func checkCodeMaps(m, v *Map, nearest bool, rule optim.Rule) error {
	if m != nil {
		if err := m.checkRange(-1); err != nil {
			return fmt.Errorf("Map1: %w", err)
		}
		if !nearest && slices.Index(m[:], 0) < 1 {
			return fmt.Errorf("Map1 has no 0 behind a negative entry, which a step that keeps signs needs: see NearestCodes: %w", snug.ErrConfig)
		}
		if rule.Signed8()[0] != rule.Signed()[0] && !slices.Contains(m[:], 0) {
			return fmt.Errorf("Map1 has no 0, which the second moment of %v needs: %w", rule, snug.ErrConfig)
		}
	}
	if v != nil {
		if err := v.checkRange(0); err != nil {
			return fmt.Errorf("Map2: %w", err)
		}
	}
	return nil
}

// checkRange checks a map whose entries must be from least to 1.
func (m *Map) checkRange(low float32) error {
	if err := m.check(); err != nil {
		return err
	}
	if m[0] < low || m[255] > 1 {
		return fmt.Errorf("entries from %g to %g, want them from %g to 1: %w", m[0], m[255], low, snug.ErrConfig)
	}
	return nil
}
