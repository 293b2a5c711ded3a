package quant8

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/fault"
	"github.com/snug-ml/snug/internal/optim"
	"github.com/snug-ml/snug/internal/rounding"
	"github.com/snug-ml/snug/internal/state"
)

// Optimizer updates parameters by a [Rule], whose states it keeps in one of these
// forms, by Options.Bits:
//
//   - 8: in blocks of one-byte codes, each block with its absmax in float32 (Dettmers et
//     al. 2022, arXiv:2110.02861). States with signs use the signed [DynamicMap] and
//     other states the unsigned one, unless the options have other maps. As in
//     bitsandbytes, the only state of a rule has the map with signs. In an
//     update a second moment with the code of 0 counts as the largest value with this
//     code, 1.6e-7 of its block's absmax. As 0, it would leave ε alone to divide a first
//     moment that is not
//     0. The codes and absmax are the same as in bitsandbytes, which counts this code as
//     0: there steps at a rate of 1e-3 reach 30 when gradients of 4e-4 lie next to
//     gradients of 1; here they reach 1.3e-3. An element whose gradients are that small
//     in its block takes shorter steps than with 32 bits.
//   - 4: in blocks of 4-bit codes, two in a byte, the first in its upper half (Li, Chen
//     and Zhu 2023, "Memory Efficient Optimizers with 4-bit States", arXiv:2309.01507).
//     The codes are always the nearest. The maps are the maps of torchao's 4-bit
//     optimizers. States with signs use create_dynamic_map(True, 3, 4): 0, 1, and
//     ±0.0055, 0.0325, 0.0775, 0.2125, 0.4375, 0.6625 and 0.8875. Unsigned states use a
//     linear map without 0, because the update divides by their square root: code i is
//     (i+1)/16. A second moment therefore counts as absmax/16 of its block or more,
//     unless all of the block is 0, and small gradients next to large ones take short
//     steps. A change of less than half the distance of two codes is lost. A run whose
//     gradients are mostly noise ends as with 32 bits; a run whose gradients become small
//     but keep their direction is slower.
//   - 16: in bfloat16. With β2 = 0.999 a step changes a second moment by less than half
//     the distance of two such numbers, so states are rounded at random. Options.Seed,
//     the step count, the name of the parameter, the number of the state and the element
//     determine the random numbers. Options.Stochastic uses other random numbers.
//   - 32: in float32.
//
// A step is one pass. For every block it decodes the states, updates, finds the new
// absmax and encodes. The update is in float32 and uses the new states before they are
// encoded. Scratch is at most 96 KiB a worker, with the largest block.
//
// Use it as
//
//	opt.Add("w", len(w)) // for every parameter, once
//	for each step {
//		opt.Advance(lr)
//		opt.Step("w", snug.ViewOf(w), snug.ViewOf(grad), 1) // for every parameter
//	}
//
// Advance begins each step. In one step every element is updated at most once: a second
// update is an error, which says that an Advance is missing. An update that failed before
// it wrote anything may be repeated. An update that an error or a panic of a [Storage]
// stopped half-way makes all later calls fail until a state is restored. To tell the two
// apart, a parameter has one byte for every Options.Chunk of its elements.
//
// Step and StepRange may run concurrently for different parameters or ranges; no other
// methods may run at the same time. Steps that take the workspace, see
// [Optimizer.WorkspaceBytes], wait for one another.
type Optimizer struct {
	o      options
	maps   codeMaps
	lr     float32 // of this step
	rate   error   // why there is no rate: the last Advance was refused
	t      int
	params map[string]*param

	fold  folding   // a step of several micro-batches that is under way
	known knownNorm // what the caller knows of the gradients of this step

	mu      sync.Mutex       // guards the marks of params, their in-memory state while it is allocated, and
	invalid string           // why the state cannot be used, or empty
	skipped []snug.NonFinite // gradients that steps have skipped since Advance
	work    workspace        // for the steps of matrices

	// directions, unless nil, replaces the directions of matrices of low rank, for tests.
	directions func(name string, period int) []float32
}

// param is one registered parameter, or a shard of it.
type param struct {
	name  string
	total int // elements of the parameter
	lo, n int // first element and length of the shard
	form
	layout
	engine  engine
	options ParamOptions
	tensor  uint64            // number of the parameter in the random numbers of Stochastic
	keys    []string          // keys of the chunks in the Storage
	key     string            // key of the factors in the Storage
	marks   optim.Marks       // marks of the chunks
	state   snug.Array[uint8] // without a Storage: the blobs of all chunks
	lost    LostUpdates       // counts of its updates
}

// New returns an optimizer without parameters. rule is one of those that [Rule] lists and that is not ForwardOnly, by value.
// The error wraps [snug.ErrConfig].
func New(rule Rule, o Options) (*Optimizer, error) {
	all, err := newOptions(rule, o)
	if err != nil {
		return nil, fmt.Errorf("quant8: %w", err)
	}
	return &Optimizer{o: all, maps: newCodeMaps(o.Map1, o.Map2, o.NearestCodes), params: map[string]*param{}}, nil
}

// StateBytes returns the bytes of state of all registered parameters, whether
// they lie in memory or in the Storage.
func (a *Optimizer) StateBytes() int64 {
	sum := int64(0)
	for _, p := range a.params {
		sum += p.stateBytes(p.layout, p.n)
	}
	return sum
}

// Add registers a parameter of n elements under a name. Its state is zero; the memory for
// it is allocated at its first step. All parameters are registered before the first
// [Optimizer.Advance], because they share the step count of the bias corrections. The
// state of a parameter is keyed by its name, so that the order of Add does not matter. A
// [Storage] sees the keys "<optimizer>/<name>/<chunk>", with the name of the optimizer in
// lower case and chunks from 0. [Optimizer.AddMatrix] is for matrices.
//
// Errors wrap [snug.ErrConfig] (an empty or taken name, a step has begun, or the rule is
// for matrices only) or [snug.ErrShape] (n is negative, or its state exceeds the address space).
func (a *Optimizer) Add(name string, n int) error { return a.AddShard(name, n, 0, n) }

// AddShard is [Optimizer.Add] of elements lo to hi-1 of a parameter of n elements, for a
// program that splits parameters among processes. Each process has an optimizer. lo and
// hi are multiples of Options.Block, or n; they may be equal. The steps of all shards
// together give the same bits as a step of the whole parameter: shards keep its blocks,
// and the width of the state depends on n. Step takes the elements of the shard.
// StepRange, errors and chunks count from the first element of the shard.
// [Optimizer.ReadShards] restores the state into other shards than were saved.
//
// Errors wrap [snug.ErrConfig] as with Add, or [snug.ErrShape] (also when lo and hi are
// out of order or not aligned).
func (a *Optimizer) AddShard(name string, n, lo, hi int) error {
	return a.add(name, added{n: n}, lo, hi)
}

func (a *Optimizer) add(name string, added added, lo, hi int) error {
	if err := a.made(); err != nil {
		return fmt.Errorf("quant8: %w", err)
	}
	return fault.Of(a.addShard(name, added, lo, hi), "quant8", a.o.Title)
}

func (a *Optimizer) addShard(name string, added added, lo, hi int) (err error) {
	n := added.n
	switch {
	case name == "":
		return fmt.Errorf("add a parameter without a name: %w", snug.ErrConfig)
	case len(name) > state.MaxName:
		return fmt.Errorf("a name of %d bytes, want at most %d: %w", len(name), state.MaxName, snug.ErrConfig)
	case a.params[name] != nil:
		return fmt.Errorf("parameter %q is added twice: %w", name, snug.ErrConfig)
	case a.t > 0:
		return fmt.Errorf("parameter %q is added after step %d has begun: %w", name, a.t, snug.ErrConfig)
	case n < 0 || n > math.MaxInt/4/a.o.states():
		return fmt.Errorf("parameter %q of %d elements: %w", name, n, snug.ErrShape)
	case lo < 0 || hi < lo || hi > n || !a.o.aligned(lo, n) || !a.o.aligned(hi, n):
		return fmt.Errorf("parameter %q: elements %d to %d are not whole blocks of %d of its %d: %w", name, lo, hi, a.o.Block, n, snug.ErrShape)
	}
	options, err := a.o.param(name, a.o.hyper.WeightDecay)
	if err != nil {
		return err
	}
	added.shared = options.Shared
	engine, err := a.o.method.engine(&a.o, added)
	if err != nil {
		return fmt.Errorf("parameter %q %w", name, err)
	}
	if (!a.o.Shards || a.o.hyper.Whole()) && hi-lo != n && !a.o.joint() {
		want := "all, or Options.SumNorms"
		if a.o.hyper.Rule.Factored() || !a.o.hyper.Norms() { // SumNorms does not help
			want = "all"
		}
		return fmt.Errorf("parameter %q: elements %d to %d of %d, want %s: %w", name, lo, hi, n, want, snug.ErrConfig)
	}
	f := engine.keeps()
	p := &param{
		name: name, total: n, lo: lo, n: hi - lo, form: *f, layout: a.o.layoutOf(a.o.width(name, f.held(n)), f), engine: engine,
		options: options, tensor: rounding.Tensor(name), marks: a.o.newMarks(hi - lo),
	}
	if a.o.Storage != nil {
		prefix := strings.ToLower(a.o.Title) + "/" + name + "/"
		for i := range p.chunks(a.o.Chunk) {
			p.keys = append(p.keys, prefix+strconv.Itoa(i))
		}
		p.key = prefix + "factors"
	}
	a.params[name] = p
	a.work.fit(&f.workspace)
	return nil
}

// Advance begins the next step: the step count t of the bias corrections goes up by one,
// and each parameter may be updated once more. lr is the learning rate of the step; see
// OPTIMIZERS.md for the usual ones. It must be finite and not negative. Otherwise no step
// begins, and updates return an error until the next Advance. A step of
// [Optimizer.FoldInBackward] that lacks micro-batches cannot be left: updates return an error until
// a state is restored.
func (a *Optimizer) Advance(lr float32) {
	a.skipped, a.known = a.skipped[:0], knownNorm{}
	if a.rate = a.made(); a.rate != nil {
		return
	}
	if !validRate(lr) {
		a.rate = fmt.Errorf("learning rate %g, want a finite number from 0 on: %w", lr, snug.ErrConfig)
		return
	}
	if f := a.fold; f.Micros > 0 {
		a.rate = fmt.Errorf("Advance in the middle of step %d, which has the weight %g of %g: %w", a.t, f.Weight, f.Total, snug.ErrConfig)
		return
	}
	a.o.method.begin(a, lr)
	a.t++
	a.lr = lr
	for _, p := range a.params {
		clear(p.marks)
	}
}

func validRate(lr float32) bool { return lr >= 0 && finite(lr) }

// Maps returns copies of two maps: of states with signs, such as first moments, and of
// states without signs, such as second moments. They are the maps of the options until a
// state is restored, which brings its own. An Optimizer that was not made by New returns
// nil.
func (a *Optimizer) Maps() (m, v *Map) {
	if a.made() != nil {
		return nil, nil
	}
	first, second := Map(*a.maps.m.Map()), Map(*a.maps.v.Map())
	return &first, &second
}

// Steps returns how many steps have begun, t.
func (a *Optimizer) Steps() int { return a.t }

// Close frees the state that lies in memory, on the CPU or another device. Afterwards the
// optimizer cannot be used until an [Optimizer.ReadFrom] succeeds. Close does not touch
// the Storage. Closing twice does nothing.
func (a *Optimizer) Close() error {
	a.invalid = "it is closed"
	var first error
	for _, p := range a.params {
		if err := p.state.Close(); err != nil && first == nil {
			first = err
		}
		p.state = snug.Array[uint8]{}
	}
	if err := a.work.free(); first == nil {
		first = err
	}
	return first
}
