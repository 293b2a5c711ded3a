package quant8

import (
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/blockq"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/optim"
	"github.com/snug-ml/snug/internal/philox"
	"github.com/snug-ml/snug/internal/rounding"
	"github.com/snug-ml/snug/internal/sweep"
)

// tooLarge is 2^63 as float32 bits. Gradients of this magnitude or more count as
// infinite. The square of a smaller gradient is finite, also after rounding, so that the
// moments always stay finite.
const tooLarge = (63 + 127) << 23

// Step updates a parameter by the gradient g·gradScale, as the optimizer describes. p has
// the registered number of elements of float32, float16 or bfloat16 and is rounded once,
// to nearest, or at random with Options.Stochastic. g has the same number of elements, of
// any of these types. p and g do not overlap. gradScale is for example the inverse of a
// loss scale or a clipping factor.
//
// A NaN, an infinity or a magnitude of 2^63 or more in g·gradScale, or in what a rule multiplies it
// by, whose square float32 cannot hold, is an error that wraps [snug.ErrNonFinite] and names the parameter and the
// index, unless Options.NonFinite says otherwise. Then nothing is written, on any device.
// On devices other than the CPU the call waits for this check, which [Optimizer.Within] saves. p is not checked; where
// weight decay is part of the gradient, elements of p that are not finite spoil their
// state.
//
// Without a [Storage] the state follows the parameter: it is allocated on the device of
// p, and moves when p is on another device. With a Storage, p lies on the CPU. After an
// error of Acquire the chunks before the chunk it names are updated, and StepRange may
// continue from there. After an error of Release, or after either error in the middle of
// a parameter whose rule needs the whole parameter, the optimizer cannot be used until a
// state is restored.
//
// All devices give the same bits as the CPU, except norms and products of matrices: the rules
// say what differs. A rule whose Traits lack Devices steps what is of its Unit on the CPU.
//
// Other errors wrap [snug.ErrConfig] (the name is unknown, Advance was not
// called or refused the learning rate, an element was updated since, gradScale is not
// finite), [snug.ErrDType],
// [snug.ErrShape], [snug.ErrDevice] or [snug.ErrNoMemory].
func (a *Optimizer) Step(name string, p, g snug.View, gradScale float32) error {
	return a.step(name, 0, true, p, g, gradScale)
}

// StepRange is [Optimizer.Step] for elements lo to lo+len(p)-1 of a parameter, so that
// pieces of the parameter can be updated as their gradients arrive. lo is a multiple of
// Options.Chunk, and so is the length unless the range ends the parameter. A range is an
// error if it overlaps a range that was updated in this step or is being updated.
func (a *Optimizer) StepRange(name string, lo int, p, g snug.View, gradScale float32) error {
	return a.step(name, lo, false, p, g, gradScale)
}

func (a *Optimizer) step(name string, lo int, whole bool, p, g snug.View, gradScale float32) error {
	q, dev, err := a.checkStep(name, lo, whole, p, g, gradScale)
	if err != nil {
		return fmt.Errorf("quant8: %s: %w", a.label(), err)
	}
	if p.Len() == 0 && !a.o.joint() {
		return nil
	}
	c, err := a.claim(q, lo, p.Len())
	if err != nil {
		return fmt.Errorf("quant8: %s: %w", a.o.Title, err)
	}
	done := false
	defer func() { a.settle(c, done) }()
	if err = a.update(dev, q, lo, p, g, gradScale); err != nil {
		return fmt.Errorf("quant8: %s: %w", a.o.Title, err)
	}
	done = true
	return nil
}

// update makes a step of the claimed elements.
func (a *Optimizer) update(dev *snug.Device, q *param, lo int, p, g snug.View, gradScale float32) error {
	scale, err := a.o.method.scale(gradScale)
	if err != nil {
		return err
	}
	first, err := a.checkGradient(dev, q, lo, g, gradScale, a.fold.bound(scale))
	bad := first >= 0
	if err == nil && bad {
		err = a.report(q.name, lo, first, g, scale)
	}
	if err != nil || bad && a.o.NonFinite == SkipStep {
		return err
	}
	j := stepJob{
		p: p, g: g, layout: q.layout, chunk: a.o.Chunk, m: a.maps.m, v: a.maps.v,
		lost: a.count(q), skip: bad, random: a.o.Stochastic && p.DType() != snug.F32,
		draw: philox.Stream{Seed: rounding.Seed(a.o.Seed, uint64(a.t)|a.fold.Micros<<32), Tensor: q.tensor}, first: uint64(q.lo + lo),
	}
	defer j.lost.release()
	h := a.hyper(q, scale)
	if bad {
		h.Skip = tooLarge
	}
	if err := q.engine.step(a, dev, q, lo, h, j, gradScale); err != nil {
		return fmt.Errorf("parameter %q: %w", q.name, err)
	}
	return nil
}

// hyper returns the constants of a step of q.
func (a *Optimizer) hyper(q *param, gradScale float32) optim.Hyper {
	h := a.o.hyper
	h.LR, h.WeightDecay = float64(a.lr*q.options.LR), float64(q.options.WeightDecay)
	h.Step, h.GradScale, h.Fold = a.t, gradScale, a.fold.part
	return a.o.method.constants(h)
}

// stepVector makes the step of a job that has no factors yet.
func (a *Optimizer) stepVector(dev *snug.Device, q *param, lo int, h optim.Hyper, j stepJob) (err error) {
	if h.Norms() && !(q.options.NoTrust && h.Rule.Ratio()) {
		if h, err = a.limit(dev, q, h, j); err != nil {
			return err
		}
	}
	if j.p.Len() == 0 {
		return nil
	}
	j.prepare(h)
	return a.run(dev, q, lo, j)
}

// prepare sets the factors of a step.
func (j *stepJob) prepare(h optim.Hyper) { j.rule, j.signed = h.Coef(), j.signs(h.Rule) }

// checkStep checks whether a step can be made, of a whole parameter or of a range.
func (a *Optimizer) checkStep(name string, lo int, whole bool, p, g snug.View, gradScale float32) (*param, *snug.Device, error) {
	q, dev, err := a.checkOperands(name, lo, whole, p, g, gradScale)
	if err != nil {
		return nil, nil, err
	}
	switch err := a.begun(); {
	case err != nil:
		return nil, nil, fmt.Errorf("step of %q: %w", name, err)
	case !validRate(a.lr * q.options.LR):
		return nil, nil, fmt.Errorf("learning rate %g times %g, want a finite number: %w", a.lr, q.options.LR, snug.ErrConfig)
	}
	return q, dev, nil
}

// begun returns an error if no step has begun, or the last Advance was refused.
func (a *Optimizer) begun() error {
	if a.rate == nil && a.t == 0 {
		return fmt.Errorf("call Advance first: %w", snug.ErrConfig)
	}
	return a.rate
}

// checkOperands checks the operands of a step.
func (a *Optimizer) checkOperands(name string, lo int, whole bool, p, g snug.View, gradScale float32) (*param, *snug.Device, error) {
	if err := a.usable(); err != nil {
		return nil, nil, err
	}
	q := a.params[name]
	switch {
	case q == nil:
		return nil, nil, fmt.Errorf("no parameter %q was added: %w", name, snug.ErrConfig)
	case !finite(gradScale):
		return nil, nil, fmt.Errorf("gradient scale %g, want a finite number: %w", gradScale, snug.ErrConfig)
	case !p.DType().IsFloat() || !g.DType().IsFloat():
		return nil, nil, fmt.Errorf("parameter %q: p is %s and g is %s, want f32, f16 or bf16: %w", name, p.DType(), g.DType(), snug.ErrDType)
	case g.Len() != p.Len():
		return nil, nil, fmt.Errorf("parameter %q: g has %d elements, p has %d: %w", name, g.Len(), p.Len(), snug.ErrShape)
	case whole && p.Len() != q.n:
		return nil, nil, fmt.Errorf("parameter %q has %d elements, p has %d: %w", name, q.n, p.Len(), snug.ErrShape)
	case lo < 0 || lo > q.n || p.Len() > q.n-lo:
		return nil, nil, fmt.Errorf("parameter %q: %d elements from element %d, of %d: %w", name, p.Len(), lo, q.n, snug.ErrShape)
	case a.whole(q) && p.Len() != q.n:
		return nil, nil, fmt.Errorf("parameter %q: %d elements of %d, want all, as every step takes: %w", name, p.Len(), q.n, snug.ErrShape)
	case lo%a.o.Chunk != 0 || p.Len()%a.o.Chunk != 0 && p.Len() != q.n-lo:
		return nil, nil, fmt.Errorf("parameter %q: elements %d to %d are not whole chunks of %d: %w", name, lo, lo+p.Len(), a.o.Chunk, snug.ErrShape)
	}
	if q.multiple > 0 && (lo%q.multiple != 0 || p.Len()%q.multiple != 0) {
		return nil, nil, fmt.Errorf("parameter %q: elements %d to %d are not whole blocks of the %d that a step takes together: %w",
			name, lo, lo+p.Len(), q.multiple, snug.ErrShape)
	}
	dev, err := snug.CommonDevice(p, g)
	if err != nil {
		return nil, nil, fmt.Errorf("parameter %q: %w", name, err)
	}
	if a.o.Storage != nil && !dev.IsCPU() {
		return nil, nil, fmt.Errorf("parameter %q lies on %s, its Storage is for the cpu: %w", name, dev, snug.ErrDevice)
	}
	if !dev.IsCPU() && q.alone {
		return nil, nil, fmt.Errorf("parameter %q lies on %s, but %s steps it on the cpu only: %w", name, dev, a.o.Title, snug.ErrDevice)
	}
	if !dev.IsCPU() && q.bits == 8 && !a.maps.mirrored {
		return nil, nil, fmt.Errorf("parameter %q lies on %s, which needs a Map1 with opposite values at codes 127-i and 127+i: %w", name, dev, snug.ErrConfig)
	}
	return q, dev, nil
}

// whole says whether each step of q takes all of its elements.
func (a *Optimizer) whole(q *param) bool { return a.o.hyper.Whole() || q.form.whole }

func finite(x float32) bool {
	x = float32(x) // of a product too: x*y - x*y may be rounded once
	return x-x == 0
}

// checkGradient looks for elements that must not reach the state. It returns the first if
// the options skip them, or else -1. scale is the factor of gradients whose products are below 2^63, and gradScale that
// of the caller.
func (a *Optimizer) checkGradient(dev *snug.Device, q *param, lo int, g snug.View, gradScale, scale float32) (i int, err error) {
	switch {
	case a.known.allows(scale):
		return -1, nil
	case dev.IsCPU():
		i = sweep.First(g, scale, tooLarge)
	default:
		if i, err = firstAboveOn(dev, g, scale, tooLarge); err != nil {
			return 0, fmt.Errorf("parameter %q: %w", q.name, err)
		}
	}
	if i >= 0 && a.o.NonFinite == Fail {
		times := fmt.Sprint(scale)
		if scale != gradScale {
			times = fmt.Sprintf("%g times %g", gradScale, scale/gradScale)
		}
		return i, fmt.Errorf("parameter %q: gradient %d times %s is NaN, infinite or not below 2^63: %w", q.name, lo+i, times, snug.ErrNonFinite)
	}
	return i, nil
}

// run runs a job over the chunks of a parameter from element lo.
func (a *Optimizer) run(dev *snug.Device, q *param, lo int, j stepJob) error {
	switch {
	case j.states == 0 && dev.IsCPU(): // no states lie in chunks
		j.Run()
		return nil
	case a.o.Storage != nil:
		return a.stepStored(q, lo, j)
	}
	return a.stepInMemory(dev, q, lo, j)
}

// stepInMemory runs all chunks at once: their blobs lie one after another.
func (a *Optimizer) stepInMemory(dev *snug.Device, q *param, lo int, j stepJob) error {
	state, err := a.stateOn(dev, q)
	if err != nil {
		return err
	}
	begin := q.factors + int64(lo/a.o.Chunk)*q.bytes(a.o.Chunk)
	if j.state, err = state.View().Slice(int(begin), state.Len()); err != nil {
		return err
	}
	switch {
	case dev.IsCPU():
		if j.sums == nil {
			a.note(a.claimOf(q, lo, j.p.Len()), optim.Begun)
		}
		j.Run()
		return nil
	case j.sums != nil:
		return measureOn(dev, j)
	}
	if err := device.Queue(dev, j); err != nil {
		return err // nothing is queued
	}
	a.note(a.claimOf(q, lo, j.p.Len()), optim.Begun)
	return nil
}

// stepJob updates p and the state of whole chunks. state begins with the blob of the
// first chunk, or blobs has the blobs of a Storage.
type stepJob struct {
	p, g, state snug.View
	blobs       [maxTogether][]byte
	layout
	chunk  int
	m, v   *blockq.Encoder // encoders of states with signs and without
	rule   optim.Coef
	signed []bool   // whether each state has the form with signs
	sums   *squares // nil, or where to add squares instead of a step

	// For a matrix with factors on a device other than the CPU; on the CPU rule has them.
	roots     snug.View // of optim.NewFactors
	rootLimit float32
	shape

	lost   *lostCounts   // nil, or where to count updates that rounding loses
	skip   bool          // leaves alone elements whose gradient is not finite, and sets their states to 0
	random bool          // rounds p at random, if it is f16 or bf16
	draw   philox.Stream // names the random numbers
	first  uint64        // number of p's first element, also in the stream

	joined *driver.Joined[stepJob]
}

func (j *stepJob) Kernel() string { return "quant8.step" }

func (j *stepJob) Operands(yield func(*driver.Mem)) {
	device.Each(yield, &j.p, &j.g, &j.state)
	if j.roots.Len() > 0 {
		yield(device.Mem(&j.roots))
	}
	for _, o := range j.joined.Rest() {
		o.Operands(yield)
	}
}

// Vectors of few elements with 8-bit states are cut into smaller items, which take some microseconds each, so that
// there is one for every worker. Long vectors are read faster in large pieces.
const (
	few      = 1 << 17
	fewGrain = 1 << 12
)

func (j *stepJob) Run() {
	defer func() {
		for _, o := range j.joined.Rest() {
			o.Run()
		}
	}()
	if j.roots.Len() > 0 {
		f := optim.NewFactors(j.roots.Float32s(), j.rows, j.rootLimit)
		j.rule.SetFactors(&f)
	}
	args := stepArgs{stepJob: *j, tile: j.block}
	if j.state.Len() > 0 {
		args.state = snug.Host[uint8](j.state)
	}
	if j.bits >= 16 {
		args.tile = half.Chunk
	}
	args.grain = blocksPerItem(args.tile) * args.tile
	if j.bits == 8 && j.sums == nil && j.p.Len() <= few { // the order of sums depends on items
		args.grain = max(1, fewGrain/args.tile) * args.tile
	}
	args.perChunk = cpu.Chunks(min(j.chunk, j.p.Len()), args.grain)
	items := cpu.Chunks(j.p.Len(), j.chunk) * args.perChunk
	if j.sums != nil {
		j.sums.begin(items)
		defer j.sums.end()
	}
	if j.lost != nil && j.sums == nil {
		j.lost.begin(items)
		defer j.lost.end()
	}
	stepTask.Run(items, args)
}

type stepArgs struct {
	stepJob
	state    []byte
	tile     int // elements of one update: a block, or a length that suits the cache
	grain    int // elements of one item, a multiple of tile
	perChunk int // items in a chunk
}

var stepTask = cpu.NewTask(func(a *stepArgs, item int) {
	chunk := item / a.perChunk
	lo, hi := cpu.Chunk(a.p.Len(), a.chunk, chunk)
	begin, end := cpu.Chunk(hi-lo, a.grain, item%a.perChunk)
	if begin >= end {
		return // the last chunk has fewer items
	}
	blob := a.blobs[chunk%maxTogether]
	if blob == nil {
		blob = a.state[int64(chunk)*a.bytes(a.chunk):]
	}
	switch a.bits {
	case 32:
		s := a.split32(blob, hi-lo)
		a.step32(&s, item, lo, begin, end)
	case 16:
		s := a.split16(blob, hi-lo)
		a.step16(&s, item, lo, begin, end)
	case 8:
		s := a.split8(blob, hi-lo)
		a.step8(&s, item, lo, begin, end)
	case 4:
		s := a.split8(blob, hi-lo)
		a.step4(&s, item, lo, begin, end)
	}
})

// step8 updates elements begin to end-1 of the chunk that starts at element lo.
// begin is the first of a block.
func (a *stepArgs) step8(s *state8, item, lo, begin, end int) {
	first, last := begin/a.block, Blocks(end, a.block)
	var states [optim.MaxStates]optim.State8
	for i, signed := range a.signed {
		states[i] = optim.State8{Codes: s.codes[i][begin:end], Absmax: s.absmax[i][first:last], Encoder: a.v}
		if signed {
			states[i].Encoder = a.m
		}
	}
	if a.sums != nil {
		stepIn(a, states[:a.states], item, lo+begin, lo+end)
		return
	}
	scratch := tiles.Get(optim.Scratch(a.tile))
	defer tiles.Put(scratch)
	optim.Step8(&a.rule, a.counting(item), lo+begin, lo+end, states[:a.states], a.tile, *scratch)
}

// step32 is step8 for states in float32.
func (a *stepArgs) step32(s *state32, item, lo, begin, end int) {
	tile := tiles.Get(2 * a.tile)
	defer tiles.Put(tile)
	for i := range a.states {
		s[i] = s[i][begin:end]
	}
	if a.sums != nil {
		part := &a.sums.items[item]
		part[0], part[1] = a.rule.Squares32(a.operands(), lo+begin, lo+end, *s, a.tile, *tile)
		return
	}
	a.rule.Step32(a.counting(item), lo+begin, lo+end, *s, a.tile, *tile)
}

// counting returns the operands of a step of an item.
func (a *stepArgs) counting(item int) optim.Operands {
	o := a.operands()
	if a.lost != nil {
		o.Lost = &a.lost.items[item]
	}
	return o
}

func (j *stepJob) operands() optim.Operands {
	return optim.Operands{P: j.p, G: j.g, Random: j.random, Draws: rounding.Draws{Stream: j.draw, First: j.first}}
}
