package quant8

import (
	"cmp"
	"fmt"
	"math"
	"strconv"
	"sync"

	"github.com/snug-ml/snug"
)

// Order says where in a step the weights decay.
type Order uint8

const (
	// BitsAndBytes updates, then decays, and keeps the sign of the first
	// moment: a negative value whose nearest code is that of 0 takes the code
	// below. It is the order of bitsandbytes' CUDA kernel.
	BitsAndBytes Order = iota
	// Decoupled decays, then updates, as torch.optim.AdamW does, and stores
	// the nearest codes.
	Decoupled
)

// AdamWOptions configures [NewAdamW]. A zero field means its default.
type AdamWOptions struct {
	LR          float32 // learning rate, default 1e-3
	Beta1       float32 // decay of the first moment, in (0,1), default 0.9
	Beta2       float32 // decay of the second moment, in (0,1), default 0.999
	Eps         float32 // added to the root of the second moment, default 1e-8
	WeightDecay float32 // a step multiplies p by 1-LR·WeightDecay; default 0

	// Bits is the width of the state, 8 (the default) or 32.
	Bits int
	// Block is the number of elements that share an absmax, from MinBlock to
	// MaxBlock, default 256.
	Block int
	// Min8bit is the number of elements from which on a parameter has 8-bit
	// state, default 4096; smaller ones keep 32 bits. 1 means all.
	Min8bit int
	// Order is where the weights decay, default BitsAndBytes.
	Order Order
	// Map1 and Map2 are the maps of the 8-bit codes of the first and the second
	// moment; they are copied. The default, nil, is DynamicMap(true) and
	// DynamicMap(false). Entries of Map1 are from -1 to 1, and with the order
	// BitsAndBytes 0 is among them, behind a negative one; entries of Map2 are
	// from 0 to 1. Devices other than the CPU take a Map1 only whose codes
	// 127-i and 127+i stand for opposite values, as those of DynamicMap do, and
	// prepare maps other than the default ones in about 0.2 ms at each step.
	Map1, Map2 *Map
	// Storage holds the state; nil holds it in memory, on the device of the
	// parameters.
	Storage Storage
	// Chunk is the number of elements whose state is one blob of the Storage
	// and the unit of StepRange, a multiple of Block and of 2 up to 2^27;
	// default the largest up to 2^16.
	Chunk int
}

// AdamW is the optimizer of Loshchilov and Hutter 2019, arXiv:1711.05101, with
// both moments in 8-bit blocks (Dettmers et al. 2022, arXiv:2110.02861) or in
// float32. With the constants of step t, c1 = 1-β1^t and c2 = √(1-β2^t), it
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
// Scratch is 96 KiB a worker at the largest block.
//
// A second moment below 1.6e-7 of its block's absmax is stored as 0, so a
// parameter whose gradient is exactly 0 right after can take a large step.
// Sparse gradients, as those of embeddings, want 32-bit state, which bitsandbytes
// uses there too.
//
// Use it as
//
//	opt.Add("w", len(w)) // for every parameter, once
//	for each step {
//		opt.Advance(lr)
//		opt.Step("w", w, grad, 1) // for every parameter
//	}
//
// Step and StepRange may run concurrently for different parameters or ranges;
// no other methods may run at the same time.
type AdamW struct {
	o       AdamWOptions
	maps    codeMaps
	lr      float32 // of this step
	t       int
	params  map[string]*param
	invalid string // why the state cannot be used, or empty

	mu sync.Mutex // guards the in-memory state of params while it is allocated
}

// param is one registered parameter, or a shard of it.
type param struct {
	name  string
	total int // elements of the parameter
	lo, n int // the first of the shard, and how many it has
	bits  int
	keys  []string          // of the chunks in the Storage
	state snug.Array[uint8] // without a Storage: the blobs of all chunks
}

// NewAdamW returns an optimizer without parameters. The error wraps
// [snug.ErrConfig].
func NewAdamW(o AdamWOptions) (*AdamW, error) {
	o = o.withDefaults()
	if err := o.check(); err != nil {
		return nil, fmt.Errorf("quant8: AdamW: %w", err)
	}
	return &AdamW{o: o, maps: newCodeMaps(o.Map1, o.Map2, o.Order), lr: o.LR, params: map[string]*param{}}, nil
}

func (o AdamWOptions) withDefaults() AdamWOptions {
	o.LR = cmp.Or(o.LR, 1e-3)
	o.Beta1 = cmp.Or(o.Beta1, 0.9)
	o.Beta2 = cmp.Or(o.Beta2, 0.999)
	o.Eps = cmp.Or(o.Eps, 1e-8)
	o.Bits = cmp.Or(o.Bits, 8)
	o.Block = cmp.Or(o.Block, 256)
	o.Min8bit = cmp.Or(o.Min8bit, 4096)
	if unit := o.chunkUnit(); o.Chunk == 0 && unit > 0 {
		o.Chunk = max(1<<16/unit, 1) * unit
	}
	return o
}

// maxChunk keeps the size of a blob an int on every platform.
const maxChunk = 1 << 27

// chunkUnit is what Chunk is a multiple of: with an even number of elements
// the size of a blob is a multiple of 4 bytes, and the next one is aligned.
func (o *AdamWOptions) chunkUnit() int {
	if o.Block%2 != 0 {
		return 2 * o.Block
	}
	return o.Block
}

func (o *AdamWOptions) check() error {
	const most = math.MaxFloat32
	for _, f := range [...]struct {
		name    string
		x, most float32
	}{{"LR", o.LR, most}, {"Beta1", o.Beta1, 1}, {"Beta2", o.Beta2, 1}, {"Eps", o.Eps, most}} {
		if !(f.x > 0 && f.x < f.most) {
			return fmt.Errorf("%s is %g, want a number between 0 and %g: %w", f.name, f.x, f.most, snug.ErrConfig)
		}
	}
	if !(o.WeightDecay >= 0 && o.WeightDecay < most) {
		return fmt.Errorf("WeightDecay is %g, want a finite number from 0 on: %w", o.WeightDecay, snug.ErrConfig)
	}
	if err := checkBlock(o.Block); err != nil {
		return err
	}
	switch {
	case o.Bits != 8 && o.Bits != 32:
		return fmt.Errorf("state of %d bits, want 8 or 32: %w", o.Bits, snug.ErrConfig)
	case o.Min8bit < 0:
		return fmt.Errorf("Min8bit is %d, want 1 or more: %w", o.Min8bit, snug.ErrConfig)
	case o.Order > Decoupled:
		return fmt.Errorf("order %d is not known: %w", o.Order, snug.ErrConfig)
	case o.Chunk <= 0 || o.Chunk > maxChunk || o.Chunk%o.chunkUnit() != 0:
		return fmt.Errorf("chunk of %d elements, want a multiple of %d up to %d: %w", o.Chunk, o.chunkUnit(), maxChunk, snug.ErrConfig)
	}
	return checkCodeMaps(o.Map1, o.Map2, o.Order)
}

// bits returns the width of the state of a parameter of n elements.
func (o *AdamWOptions) bits(n int) int {
	if n < o.Min8bit {
		return 32
	}
	return o.Bits
}

// aligned says whether shards of n elements can begin or end at element i.
func (o *AdamWOptions) aligned(i, n int) bool { return i%o.Block == 0 || i == n }

// StateBytes returns the bytes that [AdamW] keeps for a parameter of n
// elements: 8·⌈n/Block⌉ + 2n with 8 bits, 8n with 32. It is 0 for n < 0 and for
// options that [NewAdamW] refuses.
func StateBytes(n int, o AdamWOptions) int64 {
	o = o.withDefaults()
	if n < 0 || o.check() != nil {
		return 0
	}
	return blobBytes(n, o.bits(n), o.Block)
}

// StateBytes returns the bytes of state of all registered parameters, whether
// they lie in memory or in the Storage.
func (a *AdamW) StateBytes() int64 {
	sum := int64(0)
	for _, p := range a.params {
		sum += blobBytes(p.n, p.bits, a.o.Block)
	}
	return sum
}

// Add registers a parameter of n elements under a name. Its state is zero; the
// memory for it is allocated at its first step. All parameters are registered
// before the first [AdamW.Advance], since they share the step count of the bias
// corrections. The state of a parameter is keyed by its name, so that the order
// of Add does not matter. A [Storage] sees the keys "adamw/<name>/<chunk>",
// with chunks from 0.
//
// Errors wrap [snug.ErrConfig] (an empty or taken name, or a step has begun) or
// [snug.ErrShape] (n is negative, or its state exceeds the address space).
func (a *AdamW) Add(name string, n int) error { return a.AddShard(name, n, 0, n) }

// AddShard is [AdamW.Add] of elements lo to hi-1 of a parameter of n elements,
// for a program that splits parameters among processes, each of which has an
// optimizer. lo and hi are multiples of AdamWOptions.Block, or n; they may be
// equal. The steps of all shards together give the bits of a step of the whole:
// blocks are those of the parameter, and so is the width of the state, which
// depends on n. Step takes the elements of the shard, and StepRange and errors
// count from its first; chunks do too. [AdamW.ReadShards] restores other shards
// than those that were saved.
//
// Errors wrap [snug.ErrConfig] as those of Add, or [snug.ErrShape] (also lo and hi
// that are out of order or not aligned).
func (a *AdamW) AddShard(name string, n, lo, hi int) error {
	switch {
	case name == "":
		return fmt.Errorf("quant8: AdamW: add a parameter without a name: %w", snug.ErrConfig)
	case a.params[name] != nil:
		return fmt.Errorf("quant8: AdamW: parameter %q is added twice: %w", name, snug.ErrConfig)
	case a.t > 0:
		return fmt.Errorf("quant8: AdamW: parameter %q is added after step %d has begun: %w", name, a.t, snug.ErrConfig)
	case n < 0 || n > math.MaxInt/8:
		return fmt.Errorf("quant8: AdamW: parameter %q of %d elements: %w", name, n, snug.ErrShape)
	}
	if lo < 0 || hi < lo || hi > n || !a.o.aligned(lo, n) || !a.o.aligned(hi, n) {
		return fmt.Errorf("quant8: AdamW: parameter %q: elements %d to %d are not whole blocks of %d of its %d: %w",
			name, lo, hi, a.o.Block, n, snug.ErrShape)
	}
	p := &param{name: name, total: n, lo: lo, n: hi - lo, bits: a.o.bits(n)}
	if a.o.Storage != nil {
		for i := range Blocks(p.n, a.o.Chunk) {
			p.keys = append(p.keys, "adamw/"+name+"/"+strconv.Itoa(i))
		}
	}
	a.params[name] = p
	return nil
}

// Advance begins the next step: the step count t of the bias corrections goes
// up by one. lr is the learning rate of the step; 0 is a rate too, and a
// negative one means AdamWOptions.LR. A NaN or infinite rate is reported by
// Step.
func (a *AdamW) Advance(lr float32) {
	a.t++
	if lr < 0 {
		lr = a.o.LR
	}
	a.lr = lr
}

// Maps returns copies of the maps of the first and the second moment. They are
// those of [AdamWOptions] until a state is restored, which brings its own.
func (a *AdamW) Maps() (m, v *Map) {
	first, second := Map(*a.maps.m.Map()), Map(*a.maps.v.Map())
	return &first, &second
}

// Steps returns how many steps have begun.
func (a *AdamW) Steps() int { return a.t }

// Close frees the state that lies in memory, on the CPU or another device. The
// optimizer cannot be used afterwards, until a [AdamW.ReadFrom] succeeds. It does
// not touch the Storage. Closing twice does nothing.
func (a *AdamW) Close() error {
	a.invalid = "it is closed"
	var first error
	for _, p := range a.params {
		if err := p.state.Close(); err != nil && first == nil {
			first = err
		}
		p.state = snug.Array[uint8]{}
	}
	return first
}
