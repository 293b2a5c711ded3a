package quant8

import (
	"cmp"
	"math"

	"github.com/snug-ml/snug/internal/optim"
)

// AdamWOptions configures [NewAdamW]. A zero field means its default.
type AdamWOptions struct {
	Beta1       float32 // decay of the first moment, in (0,1), default 0.9
	Beta2       float32 // decay of the second moment, in (0,1), default 0.999
	Eps         float32 // added to the root of the second moment, default 1e-8
	WeightDecay float32 // a step multiplies p by 1-lr·WeightDecay; default 0

	// Bits is the width of the state, 8 (the default), 4, 16 or 32. See
	// [Optimizer] for their forms.
	Bits int
	// Block is the number of elements that share an absmax with 8 or 4 bits, from
	// MinBlock to MaxBlock, default 256 with 8 bits and 128 with 4, where it is a
	// multiple of 32. With every width shards and chunks are cut at blocks.
	Block int
	// Min8bit is the least number of elements with which a parameter has state of Bits,
	// default 4096. Parameters with fewer elements keep 32-bit state, for every value of
	// Bits. 1 means that all have state of Bits.
	Min8bit int
	// Keep32, unless nil, names parameters that keep 32 bits whatever their
	// size, such as embeddings. It is asked when a parameter is added.
	Keep32 func(name string) bool
	// Order is where the weights decay, default BitsAndBytes.
	Order Order
	// Map1 and Map2 are the maps of the 8-bit codes of the first and the second
	// moment; they are copied. The default, nil, is DynamicMap(true) and
	// DynamicMap(false). Entries of Map1 are from -1 to 1, and with the order
	// BitsAndBytes 0 is among them, behind a negative one; entries of Map2 are
	// from 0 to 1. Devices other than the CPU take a Map1 only whose codes
	// 127-i and 127+i stand for opposite values, as those of DynamicMap do, and
	// prepare maps other than the default ones in about 0.2 ms at each step. With 4
	// bits they are nil.
	Map1, Map2 *Map
	// Storage holds the state; nil holds it in memory, on the device of the
	// parameters.
	Storage Storage
	// Chunk is the number of elements whose state is one blob of the Storage
	// and the unit of StepRange, a multiple of Block and of 2 up to 2^27;
	// default the largest up to 2^16.
	Chunk int

	StepOptions
}

// AdamW is the optimizer of Loshchilov and Hutter 2019, arXiv:1711.05101, with
// both moments in 8-bit blocks (Dettmers et al. 2022, arXiv:2110.02861) or in
// another form that [Optimizer] describes. With the constants of step t, c1 = 1-β1^t and c2 = √(1-β2^t), it
// computes in float32
//
//	m ← β1·m + (1-β1)·g
//	v ← β2·v + (1-β2)·g²
//	p ← p - lr·c2/c1 · m/(√v + ε·c2)
//	p ← p·(1 - lr·wd)
//
// in one pass over the blocks: decode m and v, update, find their new absmax,
// encode; m by the signed and v by the unsigned [DynamicMap], unless
// [AdamWOptions] has other maps. The update sees m and v before they are encoded.
// Scratch is 96 KiB a worker at the largest block. A parameter takes 2.03 bytes of state at
// blocks of 256; with 4 bits 1.06 at blocks of 128; 4 with 16 bits and 8 with 32, and 8 if
// it has fewer elements than Min8bit, whatever Bits is.
//
// In 8 bits a second moment below 1.6e-7 of its block's absmax counts as that, see
// [Optimizer], so that rare and small gradients next to large ones move their parameters
// less. Sparse gradients, as those of embeddings, want 32-bit state, which bitsandbytes
// uses there too.
type AdamW = Optimizer

// adamwName is the optimizer of saved states that do not name one.
const adamwName = "AdamW"

// NewAdamW returns an AdamW without parameters. The error wraps [snug.ErrConfig].
func NewAdamW(o AdamWOptions) (*AdamW, error) { return newOptimizer(o.withDefaults().options()) }

func (o AdamWOptions) withDefaults() AdamWOptions {
	o.Beta1 = cmp.Or(o.Beta1, 0.9)
	o.Beta2 = cmp.Or(o.Beta2, 0.999)
	o.Eps = cmp.Or(o.Eps, 1e-8)
	s := o.state().withDefaults(optim.Adam)
	o.Bits, o.Block, o.Min8bit, o.Chunk = s.Bits, s.Block, s.Min8bit, s.Chunk
	return o
}

// state returns the options of the states.
func (o *AdamWOptions) state() StateOptions {
	return StateOptions{
		Bits: o.Bits, Block: o.Block, Min8bit: o.Min8bit, Keep32: o.Keep32, Order: o.Order,
		Map1: o.Map1, Map2: o.Map2, Storage: o.Storage, Chunk: o.Chunk, StepOptions: o.StepOptions,
	}
}

func (o AdamWOptions) options() options {
	return options{
		name: adamwName, adamw: true, StateOptions: o.state(),
		hyper: optim.Hyper{
			Rule: optim.Adam, Beta1: float64(o.Beta1), Beta2: float64(o.Beta2), Eps: float64(o.Eps),
			WeightDecay: float64(o.WeightDecay), DecayFirst: o.Order == Decoupled,
		},
		numbers: []number{
			{"Beta1", o.Beta1, 1}, {"Beta2", o.Beta2, 1}, {"Eps", o.Eps, math.MaxFloat32},
		},
	}
}

// StateBytes returns the bytes that [AdamW] keeps for a parameter of n
// elements: 8·⌈n/Block⌉ + 2n with 8 bits, 8·⌈n/Block⌉ + 2·⌈n/2⌉ with 4, 4n with 16
// and 8n with 32; and 8n for n below Min8bit, whatever Bits is. It is 0 for n < 0, for n
// above 2^58 and for options that [NewAdamW] refuses. Keep32 is not asked.
func StateBytes(n int, o AdamWOptions) int64 {
	o.Keep32 = nil
	all := o.withDefaults().options()
	if n < 0 || int64(n) > math.MaxInt64/32 || all.check() != nil {
		return 0
	}
	l := all.layout("", n)
	return l.bytes(n)
}
