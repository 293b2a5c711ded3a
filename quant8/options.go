package quant8

import (
	"cmp"
	"fmt"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/nibble"
	"github.com/snug-ml/snug/internal/optim"
)

// Order says where in a step the weights decay, and how negative values are
// stored in 8 bits.
type Order uint8

const (
	// BitsAndBytes updates, then decays, and keeps the sign of states that have
	// one: a negative value whose nearest code is that of 0 takes the code
	// below. It is the order of bitsandbytes' CUDA kernel.
	BitsAndBytes Order = iota
	// Decoupled decays, then updates, as torch.optim.AdamW does, and stores
	// the nearest codes.
	Decoupled
)

// StateOptions says how an optimizer keeps its states. A zero field means its
// default. [AdamWOptions] has the same fields.
type StateOptions struct {
	// Bits is the width of a state, 8 (the default), 4, 16 or 32. See
	// [Optimizer] for their forms.
	Bits int
	// Block is the number of elements that share an absmax with 8 or 4 bits, from
	// MinBlock to MaxBlock, default 256 with 8 bits and 128 with 4, where it is a
	// multiple of 32. With every width shards and chunks are cut at blocks.
	Block int
	// Min8bit is the least number of elements with which a parameter has states of Bits,
	// default 4096. Parameters with fewer elements keep 32-bit states, for every value of
	// Bits. 1 means that all have states of Bits.
	Min8bit int
	// Keep32, unless nil, names parameters that keep 32 bits whatever their
	// size, such as embeddings. It is asked when a parameter is added.
	Keep32 func(name string) bool
	// Order is how negative values are stored in 8 bits, and where the weights decay
	// if the optimizer's equation leaves that open; default BitsAndBytes.
	Order Order
	// Map1 is the map of the 8-bit codes of states with signs, and of the state of
	// RMSprop and Adagrad; Map2 is that of the others. They are copied. The default, nil, is DynamicMap(true) and
	// DynamicMap(false). Entries of Map1 are from -1 to 1, and with the order
	// BitsAndBytes 0 is among them, behind a negative one, and for RMSprop and Adagrad
	// in any case; entries of Map2 are
	// from 0 to 1. Devices other than the CPU take a Map1 only whose codes
	// 127-i and 127+i stand for opposite values, as those of DynamicMap do, and
	// prepare maps other than the default ones in about 0.2 ms at each step. With 4
	// bits they are nil.
	Map1, Map2 *Map
	// Storage holds the states; nil holds them in memory, on the device of the
	// parameters.
	Storage Storage
	// Chunk is the number of elements whose states are one blob of the Storage
	// and the unit of StepRange: a multiple of Block, and of 4 (of 2 for an
	// optimizer of two states other than Adafactor), up to 2^27; default the
	// largest up to 2^16.
	Chunk int

	StepOptions
}

func (o StateOptions) withDefaults(rule optim.Rule) StateOptions {
	o.Bits = cmp.Or(o.Bits, 8)
	if o.Block == 0 && o.Bits == 4 {
		o.Block = 128
	}
	o.Block = cmp.Or(o.Block, 256)
	o.Min8bit = cmp.Or(o.Min8bit, 4096)
	if unit := o.chunkUnit(fewestStates(rule)); o.Chunk == 0 && unit > 0 {
		o.Chunk = max(1<<16/unit, 1) * unit
	}
	return o
}

// maxChunk keeps the size of a blob an int on every platform.
const maxChunk = 1 << 27

// chunkUnit is what Chunk is a multiple of: with so many elements the size of a
// blob is a multiple of 4 bytes, and the next one is aligned.
func (o *StateOptions) chunkUnit(states int) int {
	unit := o.Block
	for states*unit%4 != 0 {
		unit *= 2
	}
	return unit
}

// width returns that of the states of a parameter of n elements.
func (o *StateOptions) width(name string, n int) int {
	if o.Keep32 != nil && o.Keep32(name) {
		return 32
	}
	return widthBySize(n, o.Min8bit, o.Bits)
}

// widthBySize is the width of the states of n elements that Keep32 does not name.
func widthBySize(n, min8bit, bits int) int {
	if n < min8bit {
		return 32
	}
	return bits
}

// knownWidth says whether states can have so many bits.
func knownWidth(bits int) bool { return bits == 4 || bits == 8 || bits == 16 || bits == 32 }

// aligned says whether shards of n elements can begin or end at element i.
func (o *StateOptions) aligned(i, n int) bool { return i%o.Block == 0 || i == n }

func (o *StateOptions) check(rule optim.Rule) error {
	if err := checkBlock(o.Block); err != nil {
		return err
	}
	switch unit := o.chunkUnit(fewestStates(rule)); {
	case !knownWidth(o.Bits):
		return fmt.Errorf("state of %d bits, want 4, 8, 16 or 32: %w", o.Bits, snug.ErrConfig)
	case o.Bits == 4 && o.Block%nibble.Step != 0:
		return fmt.Errorf("block of %d elements, want a multiple of %d with 4 bits: %w", o.Block, nibble.Step, snug.ErrConfig)
	case o.Bits == 4 && (o.Map1 != nil || o.Map2 != nil):
		return fmt.Errorf("Map1 and Map2 are maps of 8 bits, want nil with 4: %w", snug.ErrConfig)
	case o.Min8bit < 0:
		return fmt.Errorf("Min8bit is %d, want 1 or more: %w", o.Min8bit, snug.ErrConfig)
	case o.Order > Decoupled:
		return fmt.Errorf("order %d is not known: %w", o.Order, snug.ErrConfig)
	case o.Chunk <= 0 || o.Chunk > maxChunk || o.Chunk%unit != 0:
		return fmt.Errorf("chunk of %d elements, want a multiple of %d up to %d: %w", o.Chunk, unit, maxChunk, snug.ErrConfig)
	}
	return checkCodeMaps(o.Map1, o.Map2, o.Order, rule)
}

// options are those of an optimizer of any rule.
type options struct {
	name     string                 // of the optimizer
	hyper    optim.Hyper            // without the step count and the gradient scale
	numbers  []number               // all that are positive
	adamw    bool                   // package adam has loops for the rule
	unscaled func(name string) bool // parameters without a trust ratio, or nil
	warmup   [2]int                 // steps of AdEMAMix's α and β3
	scale    MuonScale
	StateOptions
}

// number is a hyperparameter that is to be above 0 and below most.
type number struct {
	name    string
	x, most float32
}

// states returns how many states an element has.
func (o *options) states() int { return len(o.hyper.Rule.Signed()) }

func (o *options) check() error {
	for _, f := range o.numbers {
		if !(f.x > 0 && f.x < f.most) {
			return fmt.Errorf("%s is %g, want a number between 0 and %g: %w", f.name, f.x, f.most, snug.ErrConfig)
		}
	}
	if decay := o.hyper.WeightDecay; !(decay >= 0 && decay < math.MaxFloat32) {
		return fmt.Errorf("WeightDecay is %g, want a finite number from 0 on: %w", decay, snug.ErrConfig)
	}
	if err := o.StepOptions.check(o.hyper.Rule); err != nil {
		return err
	}
	return o.StateOptions.check(o.hyper.Rule)
}

// joint says whether steps add norms over the shards of a parameter.
func (o *options) joint() bool {
	return o.SumNorms != nil && o.hyper.Norms() && !o.hyper.Rule.Factored()
}

// layout returns the form of the states of a vector of n elements.
func (o *options) layout(name string, n int) layout { return o.layoutOf(o.width(name, n), shape{}) }

// layoutOf returns the form of states of a width. Factors stand for the last one of a
// matrix.
func (o *options) layoutOf(bits int, s shape) layout {
	l := layout{states: o.states(), bits: bits, block: o.Block}
	if s.factored {
		l.states--
	}
	return l
}
