package quant8

import (
	"cmp"
	"fmt"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/nibble"
	"github.com/snug-ml/snug/internal/optim"
)

// Options says how an optimizer of any rule keeps its states and makes its steps. The
// zero value keeps states of 8 bits in memory and steps as the optimizers of torch and
// bitsandbytes do, except that a gradient that is not finite is an error.
type Options struct {
	// Bits is the width of a state: 8 (the default), 4, 16 or 32. See
	// [Optimizer] for their forms.
	Bits int
	// Block is the number of elements that share an absmax with 8 or 4 bits, from
	// MinBlock to MaxBlock, default 256 with 8 bits and 128 with 4. With 4 bits it is a
	// multiple of 32. With every width shards and chunks are cut at blocks.
	Block int
	// MinSize is the smallest number of elements with which a parameter has states of
	// Bits, default 4096. Smaller parameters keep 32-bit states, for every value of
	// Bits. 1 gives all parameters states of Bits.
	MinSize int
	// Keep32, unless nil, selects parameters that keep 32 bits whatever their size, such
	// as embeddings that are not tied to the output layer. It is called when a parameter is added.
	Keep32 func(name string) bool
	// NearestCodes stores every value of a state in its nearest 8-bit code. Otherwise a
	// negative value whose nearest code is the code of 0 takes the code below, so that
	// states keep their signs, as bitsandbytes' CUDA kernels do. Its CPU library does not
	// search the map: its codes are up to several entries away from the nearest.
	NearestCodes bool
	// Map1 is the map of the 8-bit codes of states with signs, and of the only state of
	// a rule; Map2 is the map of the other states. They are copied. The
	// default, nil, is DynamicMap(true) and DynamicMap(false). Entries of Map1 are from
	// -1 to 1. Unless NearestCodes is set, they contain 0 behind a negative entry; for
	// a rule whose only state has no signs they always do. Entries of Map2 are from 0 to 1. On devices
	// other than the CPU the codes 127-i and 127+i of Map1 must stand for opposite
	// values, as in DynamicMap, and preparing maps other than the defaults takes about
	// 0.2 ms at each step. With 4 bits both are nil.
	Map1, Map2 *Map
	// Storage holds the states; nil holds them in memory, on the device of the
	// parameters.
	Storage Storage
	// Chunk is the number of elements whose states are one blob of the Storage
	// and the unit of StepRange: a multiple of Block, and of 4 (of 2 for an
	// optimizer of two states that no factors replace), up to 2^27; default the largest
	// such multiple that is at most 2^16, which is 2^16 with the default Block.
	Chunk int

	// NonFinite says what a step does with a NaN, an infinity or a magnitude of 2^63 or
	// more in its gradient; default Fail.
	NonFinite NonFinitePolicy
	// MaxUpdate, unless 0, is the largest Euclidean norm of a parameter's update, as a
	// share of the norm of the parameter. A longer update is shortened to this norm. The
	// update is the vector that the learning rate multiplies. It includes coupled weight
	// decay but not decoupled weight decay, which stays lr·wd in full. A parameter of
	// zeros has no limit. Such steps have two passes, as for trust ratios, and need whole
	// parameters.
	//
	// It is max_unorm of bitsandbytes' default backend, which has it with 32-bit state
	// only. There Adam's norm includes the bias corrections, and no norm includes coupled
	// decay. bitsandbytes' CPU backend takes the norm of Adam's update without the bias
	// corrections, so that with the default betas a step of full length is 3.2 times
	// shorter than here at step 1, 6.5 times at step 10 and 5.6 times at step 30.
	// Other rules of bitsandbytes have another limit, or none.
	MaxUpdate float32
	// SumNorms, unless nil, replaces two sums by their totals over all processes, as an
	// all-reduce does, so that rules with trust ratios and MaxUpdate take shards of a parameter.
	// Every process calls it once in each step of each parameter, also with an empty
	// shard. A step that fails before the call, or that is skipped for a gradient that is
	// not finite, does not call it: let all processes agree on that first. Sums round as
	// they are added, so that with other shards the last bits of a step can differ.
	SumNorms func(name string, sums *[2]float64) error
	// Stochastic rounds parameters of bfloat16 and float16 at random to one of the
	// two neighbours, by their distance, so that updates too small for the type
	// count on average, and no copy in float32 is needed (Gupta et al. 2015, "Deep
	// Learning with Limited Numerical Precision"). Parameters of float32 are not
	// rounded.
	Stochastic bool
	// CountLost counts the updates that rounding loses, see [Optimizer.LostUpdates]. It counts for parameters of
	// float16 and bfloat16 on the CPU. Each running worker then takes 8 KiB of scratch more.
	CountLost bool
	// Seed determines the random numbers of Stochastic, of the rounding of 16-bit states and of random
	// directions, together with the step count, the name of the parameter and the element.
	// They therefore do not depend on the device, on shards, or on a restart with the same Seed, which no state has.
	Seed uint64
	// Params, unless nil, returns the options of one parameter. It is called when a
	// parameter is added.
	Params func(name string) ParamOptions
}

// NonFinitePolicy says what a step does with a gradient that is not finite.
type NonFinitePolicy uint8

const (
	// Fail makes the step an error that wraps snug.ErrNonFinite.
	Fail NonFinitePolicy = iota
	// SkipStep leaves the parameter, or with StepRange its range, as it is.
	SkipStep
	// SkipElement leaves the elements alone and sets their states to 0, as bitsandbytes'
	// CUDA kernel of 8-bit Adam does. Norms of updates leave them out. In 4 bits states without signs
	// become the smallest value of their block; in 8 bits second moments count as 1.6e-7
	// of the absmax of their block. In sums and products over a matrix these elements count as 0.
	SkipElement
)

// ParamOptions are the options of one parameter.
type ParamOptions struct {
	// LR multiplies the learning rate; 0 stands for 1.
	LR float32
	// WeightDecay replaces the rule's, unless it is 0.
	WeightDecay float32
	// NoDecay says that the parameter does not decay, as biases and the scales of
	// norms should not.
	NoDecay bool
	// NoTrust sets the trust ratio of a rule that has one to 1, as for biases and the
	// scales of norms.
	NoTrust bool
	// Shared is how many elements that follow one another share a second moment, with a rule whose Traits have Blocks: a
	// divisor of the number of elements. 0 stands for a row of a matrix, and for all of a vector.
	Shared int
}

func (o Options) withDefaults(rule optim.Rule) Options {
	o.Bits = cmp.Or(o.Bits, 8)
	if o.Block == 0 && o.Bits == 4 {
		o.Block = 128
	}
	o.Block = cmp.Or(o.Block, 256)
	o.MinSize = cmp.Or(o.MinSize, 4096)
	if unit := o.chunkUnit(fewestStates(rule)); o.Chunk == 0 && unit > 0 {
		o.Chunk = max(1<<16/unit, 1) * unit
	}
	return o
}

// maxChunk keeps the size of a blob an int on every platform.
const maxChunk = 1 << 27

// Chunk is a multiple of chunkUnit, so that the size of a blob is a multiple of 4 bytes
// and the next blob is aligned.
func (o *Options) chunkUnit(states int) int {
	unit := o.Block
	for states*unit%4 != 0 {
		unit *= 2
	}
	return unit
}

// width returns the width of the states of a parameter of n elements.
func (o *Options) width(name string, n int) int {
	if o.Keep32 != nil && o.Keep32(name) {
		return 32
	}
	return widthBySize(n, o.MinSize, o.Bits)
}

// widthBySize is the width of the states of n elements that Keep32 does not select.
func widthBySize(n, minSize, bits int) int {
	if n < minSize {
		return 32
	}
	return bits
}

// knownWidth says whether states can have this number of bits.
func knownWidth(bits int) bool { return bits == 4 || bits == 8 || bits == 16 || bits == 32 }

// aligned says whether shards of n elements can begin or end at element i.
func (o *Options) aligned(i, n int) bool { return i%o.Block == 0 || i == n }

func (o *Options) check(e *equation) error {
	rule := e.hyper.Rule
	switch {
	case o.NonFinite > SkipElement:
		return fmt.Errorf("policy %d for gradients that are not finite is not known: %w", o.NonFinite, snug.ErrConfig)
	case !(o.MaxUpdate >= 0 && o.MaxUpdate < math.MaxFloat32):
		return fmt.Errorf("MaxUpdate is %g, want a finite number from 0 on: %w", o.MaxUpdate, snug.ErrConfig)
	case o.MaxUpdate > 0 && !e.Shards:
		return fmt.Errorf("MaxUpdate is %g, want 0 for %s, which sizes its steps itself: %w", o.MaxUpdate, e.Title, snug.ErrConfig)
	case o.MaxUpdate > 0 && e.Averages:
		return fmt.Errorf("MaxUpdate is %g, want 0 for %s, whose step also moves parameters towards their average: %w", o.MaxUpdate, e.Title, snug.ErrConfig)
	}
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
	case o.MinSize < 0:
		return fmt.Errorf("MinSize is %d, want 1 or more: %w", o.MinSize, snug.ErrConfig)
	case o.Chunk <= 0 || o.Chunk > maxChunk || o.Chunk%unit != 0:
		return fmt.Errorf("chunk of %d elements, want a multiple of %d up to %d: %w", o.Chunk, unit, maxChunk, snug.ErrConfig)
	}
	return checkCodeMaps(o.Map1, o.Map2, o.NearestCodes, rule)
}

// options are the Options of an optimizer, with its rule.
type options struct {
	equation
	Options
}

func newOptions(rule Rule, o Options) (options, error) {
	if !known(rule) {
		return options{}, fmt.Errorf("the rule is %T, want one of this package by value: %w", rule, snug.ErrConfig)
	}
	all := options{equation: rule.equation()}
	if all.ForwardOnly {
		return options{}, fmt.Errorf("%s has no gradient to step with, want NewZerothOrder: %w", all.Title, snug.ErrConfig)
	}
	if all.method == nil {
		all.method = plain{}
	}
	all.Options = o.withDefaults(all.hyper.Rule)
	err := all.equation.check()
	if err == nil {
		err = all.Options.check(&all.equation)
	}
	if err != nil {
		return all, fmt.Errorf("%s: %w", all.Title, err)
	}
	all.hyper.MaxUpdate = float64(o.MaxUpdate)
	return all, nil
}

// states returns how many states an element has.
func (o *options) states() int { return len(o.hyper.Rule.Signed()) }

// joint says whether steps add norms over the shards of a parameter.
func (o *options) joint() bool {
	return o.SumNorms != nil && o.hyper.Norms() && !o.hyper.Rule.Factored()
}

// param returns the options of one parameter, with its effective learning rate factor and
// weight decay.
func (o *Options) param(name string, decay float64) (ParamOptions, error) {
	var p ParamOptions
	if o.Params != nil {
		p = o.Params(name)
	}
	if p.NoDecay && p.WeightDecay != 0 {
		return p, fmt.Errorf("parameter %q: WeightDecay is %g with NoDecay: %w", name, p.WeightDecay, snug.ErrConfig)
	}
	if !p.NoDecay {
		p.WeightDecay = cmp.Or(p.WeightDecay, float32(decay))
	}
	if p.Shared < 0 {
		return p, fmt.Errorf("parameter %q: Shared is %d, want 0 or more: %w", name, p.Shared, snug.ErrConfig)
	}
	p.LR = cmp.Or(p.LR, 1)
	if !(p.LR > 0 && p.LR < math.MaxFloat32 && p.WeightDecay >= 0 && p.WeightDecay < math.MaxFloat32) {
		return p, fmt.Errorf("parameter %q: LR is %g and WeightDecay %g, want finite numbers from 0 on: %w", name, p.LR, p.WeightDecay, snug.ErrConfig)
	}
	return p, nil
}
