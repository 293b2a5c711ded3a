package optim

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/blockq"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/nibble"
	"github.com/snug-ml/snug/internal/rounding"
)

// State is one state of a run of elements in a form other than float32, which is
// decoded and encoded tile by tile. The last tile may be partial.
type State interface {
	State4 | State8 | State16
	// load sets x to the values of a tile of so many elements.
	load(x []float32, tile, size int)
	// store replaces them.
	store(x []float32, tile, size int)
}

// State8 is a state in 8-bit blocks, which are tiles: element i is the value of
// Codes[i] of the encoder, times Absmax[i/block].
type State8 struct {
	Codes   []uint8
	Absmax  []float32
	Encoder *blockq.Encoder
}

func (s State8) load(x []float32, tile, size int) {
	blockq.Registry.Best().Decode(x, s.Codes[tile*size:][:len(x)], s.Encoder.Values(), s.Absmax[tile:tile+1], size)
}

func (s State8) store(x []float32, tile, size int) {
	s.Absmax[tile] = blockq.Registry.Best().AbsMax(x)
	s.Encoder.Encode(s.Codes[tile*size:][:len(x)], x, s.Absmax[tile])
}

// State4 is a state in 4-bit blocks, which are tiles of a multiple of [nibble.Step]
// elements. Two codes share a byte, the first in its upper half: element i is the value of
// its code in the format, times Absmax[i/block].
type State4 struct {
	Codes  []uint8
	Absmax []float32
	Format *nibble.Format
}

func (s State4) load(x []float32, tile, size int) {
	nibble.Registry.Best().DecodeF32(x, s.codes(x, tile, size), s.Absmax[tile:tile+1], size, s.Format)
}

func (s State4) store(x []float32, tile, size int) {
	nibble.Registry.Best().Encode(s.codes(x, tile, size), s.Absmax[tile:tile+1], x, size, s.Format)
}

// codes returns the codes of x.
func (s State4) codes(x []float32, tile, size int) []uint8 {
	return s.Codes[tile*size/2:][:(len(x)+1)/2]
}

// State16 is a state in bfloat16. It is rounded at random: what a step changes is often
// less than half the distance of two numbers, so that rounded to nearest it would stay as
// it is.
type State16 struct {
	Values snug.View      // a host view
	Draws  rounding.Draws // of the elements of Values
}

func (s State16) load(x []float32, tile, size int) { half.Load(x, s.Values, tile*size) }

func (s State16) store(x []float32, tile, size int) { s.Draws.Store(s.Values, tile*size, x) }

// Load decodes the n elements of a tile, of so many elements, of all states, into
// scratch, which has MaxStates tiles.
func Load[S State](states []S, tile, n, size int, scratch []float32) (s [MaxStates][]float32) {
	for i := range states {
		s[i] = scratch[i*size:][:n]
		states[i].load(s[i], tile, size)
	}
	return s
}

// Store encodes what Load has decoded, and an update has changed.
func Store[S State](states []S, tile int, s [MaxStates][]float32, size int) {
	for i := range states {
		states[i].store(s[i], tile, size)
	}
}
