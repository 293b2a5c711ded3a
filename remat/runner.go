package remat

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/snug-ml/snug"
)

// Runner executes one plan on one chain again and again and allocates nothing while it does.
// It takes memory for one value a stage and 49 bytes for every operation. A Runner is not
// safe for concurrent use: a call of Run during another returns an error that wraps
// [snug.ErrConfig].
type Runner[A, S any] struct {
	chain  Chain[A, S]
	plan   Plan
	busy   atomic.Bool
	step   stepContext[A, S] // the context of the step that runs
	extras []Cost            // by stage; zero when the chain has no costs
	extra  int               // forward steps beyond one a stage
	unused []bool            // by operation: whether it saves an output that nothing uses

	x          A
	slots      []slot[A, S] // what is held of every stage
	grad       A            // d_next, if hasGrad
	gradBytes  int64
	hasGrad    bool
	lossDone   bool
	lossTime   time.Duration
	ran        []bool        // by stage, forward
	again      time.Duration // of forward steps of stages that ran before
	waited     time.Duration // for transfers
	packed     int
	ledger     ledger
	timeline   []Bytes // memory of the ledger's, kept between runs
	mismatches []Mismatch
	mismatched [][valueKinds]int // by index: where values are listed, plus one
	first      hashes
}

// slot is the held output of a stage.
type slot[A, S any] struct {
	form  form
	y     A // the output; part of s if the form is saved
	s     S
	bytes int64
	lossy bool // it was packed, or computed from a packed value
	copies[A, S]
}

// NewRunner checks plan against the chain and returns a Runner of both. Later changes of
// c's fields or of the plan do not affect the Runner. Errors are the errors of [Chain.Run].
func (c *Chain[A, S]) NewRunner(plan Plan) (*Runner[A, S], error) {
	plan, err := c.check(plan)
	if err != nil {
		return nil, err
	}
	plan.Ops = slices.Clone(plan.Ops)
	n := plan.Stages
	r := &Runner[A, S]{
		chain:      *c,
		plan:       plan,
		extras:     make([]Cost, n),
		extra:      -n,
		slots:      make([]slot[A, S], n),
		timeline:   make([]Bytes, 0, len(plan.Ops)),
		mismatched: make([][valueKinds]int, n+1),
		ran:        make([]bool, n),
		unused:     unusedOutputs(plan),
	}
	r.step.chain = &r.chain
	r.chain.Stages = slices.Clone(c.Stages)
	if c.Costs != nil {
		copy(r.extras, c.Costs.Stages)
		r.chain.Costs = &Costs{Input: c.Costs.Input, Stages: r.extras}
	}
	if c.Hash != nil {
		r.first.outputs = make([]firstHash, n)
	}
	if c.HashSaved != nil {
		r.first.saved = make([]firstHash, n)
	}
	for _, op := range plan.Ops {
		if op.isForward() {
			r.extra++
		}
	}
	return r, nil
}

// Run executes the plan as [Chain.Run] does. The slices in the Report are valid
// until the next call.
func (r *Runner[A, S]) Run(ctx context.Context, x A, loss func(y A) (dy A, err error)) (dx A, rep Report, err error) {
	if r == nil || r.chain.Stages == nil {
		return dx, rep, fmt.Errorf("remat: the Runner was not made by NewRunner: %w", snug.ErrConfig)
	}
	if ctx == nil {
		return dx, rep, errNilContext
	}
	if loss == nil {
		return dx, rep, fmt.Errorf("remat: the loss is nil: %w", snug.ErrConfig)
	}
	if r.busy.Swap(true) {
		return dx, rep, fmt.Errorf("remat: the Runner is running: %w", snug.ErrConfig)
	}
	defer r.finish()
	begin := time.Now()
	r.step.Context = ctx
	r.start(x)
	for i, op := range r.plan.Ops {
		err := ctx.Err()
		if err == nil {
			err = r.do(ctx, i, loss)
		}
		if err != nil {
			return dx, rep, fmt.Errorf("remat: operation %d (%v): %w", i, op, err)
		}
	}
	rep = r.ledger.report()
	rep.Time = (time.Since(begin) - r.lossTime).Seconds()
	rep.Extra, rep.Again, rep.Waited = r.extra, r.again.Seconds(), r.waited.Seconds()
	rep.Packed, rep.Mismatches = r.packed, r.mismatches
	r.hasGrad = false // it is the caller's now
	return r.grad, rep, nil
}

func (r *Runner[A, S]) start(x A) {
	r.x, r.lossDone, r.lossTime = x, false, 0
	r.again, r.waited, r.packed = 0, 0, 0
	clear(r.ran)
	r.mismatches = r.mismatches[:0]
	clear(r.mismatched)
	clear(r.first.outputs)
	clear(r.first.saved)
	bytes := r.chain.Bytes(x)
	r.compare(Activation, 0, bytes)
	r.ledger.start(bytes, r.timeline)
}

// finish releases the values that an unfinished run still holds, and forgets the values of
// a finished one.
func (r *Runner[A, S]) finish() {
	defer r.busy.Store(false)
	r.releaseAll()
	var none A
	r.x, r.grad = none, none
}

// releaseAll also goes on after a panic of a release function.
func (r *Runner[A, S]) releaseAll() {
	complete := false
	defer func() {
		if !complete {
			r.releaseAll()
		}
	}()
	for i := range r.slots {
		r.dropCopy(i) // which ends the transfers of the other
		r.drop(i)
	}
	if r.hasGrad {
		r.hasGrad = false
		r.chain.release(r.grad)
	}
	complete = true
}

// drop releases the value held of stage i and returns its bytes.
func (r *Runner[A, S]) drop(i int) (bytes int64) {
	v := r.slots[i]
	r.slots[i] = slot[A, S]{copies: v.copies} // first, so that nothing is released twice
	switch v.form {
	case output:
		r.chain.release(v.y)
	case saved:
		r.chain.releaseSaved(v.s)
	}
	return v.bytes
}

// do executes one operation of a valid plan.
func (r *Runner[A, S]) do(ctx context.Context, k int, loss func(A) (A, error)) error {
	op := r.plan.Ops[k]
	i := op.Stage
	switch op.Kind {
	case ForwardDiscard, ForwardSave:
		return r.forward(ctx, k, loss)
	case Backward:
		return r.backward(ctx, i)
	case Pack, PageHost, PageDisk:
		return r.store(ctx, i, op.Kind.tier())
	case Fetch:
		return r.fetch(ctx, i)
	}
	if err := r.settle(ctx, i); err != nil {
		return err
	}
	if op.Kind == DropCopy {
		r.ledger.step(r.dropCopy(i), 0, 0, 0)
	} else {
		r.ledger.step(r.drop(i), 0, 0, 0)
	}
	return nil
}

// forward executes a forward operation.
func (r *Runner[A, S]) forward(ctx context.Context, k int, loss func(A) (A, error)) error {
	op := r.plan.Ops[k]
	i := op.Stage
	if err := r.ready(ctx, i-1); err != nil {
		return err
	}
	begin := time.Now()
	var err error
	if op.Kind == ForwardDiscard {
		err = r.forwardDiscard(i)
	} else {
		err = r.forwardSave(ctx, i, r.unused[k])
	}
	if err != nil {
		return err
	}
	if r.ran[i] {
		r.again += time.Since(begin)
	}
	r.ran[i] = true
	if i == r.plan.Stages-1 && !r.lossDone {
		return r.evaluate(loss)
	}
	return nil
}

// input returns a_i.
func (r *Runner[A, S]) input(i int) A {
	if i == 0 {
		return r.x
	}
	return r.slots[i-1].y
}

func (r *Runner[A, S]) forwardDiscard(i int) error {
	r.step.begin(r.ran[i])
	y, err := r.chain.Stages[i].Forward(&r.step, r.input(i))
	if err != nil {
		return err
	}
	v := &r.slots[i]
	v.form, v.y = output, y
	v.bytes = r.chain.Bytes(y)
	extra := r.transient(ForwardTransient, i, v.bytes)
	v.lossy = r.lossyInput(i)
	r.compare(Activation, i+1, v.bytes)
	r.ledger.step(0, v.bytes, extra, 0)
	return r.verifyOutput(i, y)
}

// lossyInput reports whether a_i differs from its first value.
func (r *Runner[A, S]) lossyInput(i int) bool { return i > 0 && r.slots[i-1].lossy }

// forwardSave computes s_i. unused says that nothing will use the output in it.
func (r *Runner[A, S]) forwardSave(ctx context.Context, i int, unused bool) error {
	if err := r.settle(ctx, i); err != nil {
		return err
	}
	replaced := r.drop(i) // a_{i+1}, if held: s_i brings its own
	stage := r.chain.Stages[i]
	var (
		y   A
		s   S
		err error
	)
	resaver, stops := stage.(Resaver[A, S])
	r.step.begin(r.ran[i])
	if stops = stops && unused && r.ran[i]; stops {
		s, err = resaver.Resave(&r.step, r.input(i))
	} else {
		y, s, err = stage.ForwardSave(&r.step, r.input(i))
	}
	if err != nil {
		return err
	}
	v := &r.slots[i]
	v.form, v.y, v.s = saved, y, s
	v.bytes = r.chain.SavedBytes(s)
	extra := r.transient(ForwardTransient, i, v.bytes)
	v.lossy = r.lossyInput(i)
	r.compare(SavedSet, i, v.bytes)
	r.ledger.step(replaced, v.bytes, extra, 0)
	if stops {
		return nil
	}
	r.compare(Activation, i+1, r.chain.Bytes(y))
	if err := r.verifyOutput(i, y); err != nil {
		return err
	}
	return r.verifySaved(i, s)
}

func (r *Runner[A, S]) backward(ctx context.Context, i int) error {
	if err := errors.Join(r.ready(ctx, i-1), r.ready(ctx, i)); err != nil {
		return err
	}
	dy := r.grad
	r.hasGrad = false // the stage's, whatever happens
	r.step.begin(true)
	dx, err := r.chain.Stages[i].Backward(&r.step, r.input(i), r.slots[i].s, dy)
	if err != nil {
		return err
	}
	r.grad, r.hasGrad = dx, true
	replaced := r.gradBytes
	r.gradBytes = r.chain.Bytes(dx)
	extra := r.transient(BackwardTransient, i, r.gradBytes-replaced)
	r.compare(Gradient, i, r.gradBytes)
	if err := r.settle(ctx, i); err != nil {
		return err
	}
	freed := r.dropCopy(i) + r.drop(i)
	r.ledger.step(replaced, r.gradBytes, extra, freed)
	return nil
}

// evaluate calls the loss with a_n.
func (r *Runner[A, S]) evaluate(loss func(A) (A, error)) error {
	begin := time.Now()
	dy, err := loss(r.input(r.plan.Stages))
	if err != nil {
		return fmt.Errorf("loss: %w", err)
	}
	r.grad, r.hasGrad, r.lossDone = dy, true, true
	r.lossTime = time.Since(begin)
	r.gradBytes = r.chain.Bytes(dy)
	r.compare(Gradient, r.plan.Stages, r.gradBytes)
	r.ledger.reserve(r.gradBytes)
	return nil
}

// transient returns the transient bytes of the step of stage i that has just ended; more is by how many the values grow in it.
func (r *Runner[A, S]) transient(kind ValueKind, i int, more int64) int64 {
	bytes := r.step.transient(r.extras[i].transient(kind), more)
	r.compare(kind, i, bytes)
	return bytes
}

// compare lists a value if its size is not the declared one, once a run, and transient bytes if they are more than the
// declared ones, with the most of the run.
func (r *Runner[A, S]) compare(kind ValueKind, i int, measured int64) {
	if r.chain.Costs == nil {
		return
	}
	declared := r.chain.Costs.size(kind, i)
	listed := &r.mismatched[i][kind]
	switch {
	case declared == measured || kind.transient() && measured < declared:
	case *listed == 0:
		r.mismatches = append(r.mismatches, Mismatch{kind, i, declared, measured})
		*listed = len(r.mismatches)
	case kind.transient():
		at := &r.mismatches[*listed-1].Measured
		*at = max(*at, measured)
	}
}
