package layers

import (
	"cmp"
	"fmt"
	"math"

	"github.com/snug-ml/snug"
)

// Angles is the table that [fused.Rotary] takes, for positions from 0 on.
type Angles struct {
	rope      Rope
	table     scratch
	known     int     // positions in the table
	length    int     // sequence length for which the frequencies of a dynamic rope were made
	attention float64 // factor of sines and cosines
}

// NewAngles returns the angles of a rope on a device, nil for the CPU.
func NewAngles(r Rope, dev *snug.Device) *Angles {
	dev = cmp.Or(dev, snug.CPU())
	return &Angles{rope: r, table: scratch{dev: dev, dt: snug.F32}}
}

// Rope returns the rope.
func (a *Angles) Rope() Rope { return a.rope }

// Bytes returns the bytes of the table.
func (a *Angles) Bytes() int64 { return a.table.bytes() }

// Close frees the table.
func (a *Angles) Close() error { return a.table.close() }

// Prepare fills the table for sequences of up to n tokens. A dynamic rope has the frequencies for the longest sequence
// of the batch, as in a fresh model of transformers.
func (a *Angles) Prepare(n int) error {
	length := 0
	if a.rope.Kind == RopeDynamic {
		length = max(n, a.rope.MaxPositions)
	}
	if n <= a.known && length == a.length {
		return nil
	}
	inverse, attention, err := a.rope.Frequencies(length)
	if err != nil {
		return err
	}
	n = max(n, a.known)
	dim, half := a.rope.Dim, len(inverse)
	if n > math.MaxInt/4/dim {
		return fmt.Errorf("angles of %d positions are too many: %w", n, snug.ErrShape)
	}
	host := make([]float32, n*dim)
	for p := range n {
		row := host[p*dim : (p+1)*dim]
		for i, f := range inverse {
			sin, cos := math.Sincos(float64(float32(p) * f)) // the angle is float32 in transformers
			row[i], row[half+i] = float32(cos), float32(sin)
		}
	}
	a.known = 0
	if err := a.table.grow(len(host)); err != nil {
		return err
	}
	if err := snug.Copy(part(a.table.v, 0, len(host)), host); err != nil {
		return err
	}
	a.known, a.length, a.attention = n, length, attention
	return nil
}
