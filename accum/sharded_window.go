package accum

import (
	"fmt"
	"iter"
	"math"
	"slices"

	"github.com/snug-ml/snug"
)

// Start begins a window. weights are the weights of this rank's micro-batches, in their order, each above 0; there may
// be none. All ranks call Start, and learn the weight of the whole window.
//
// The error wraps [snug.ErrConfig] within a window, and on all ranks when one has other parameters or options, or a weight
// that is not finite and above 0, or when none has a micro-batch. Otherwise it comes from the Reducer.
func (s *Sharded) Start(weights []float64) error {
	if err := s.in("Start", idle, finished); err != nil {
		return err
	}
	size, rank := s.o.Reducer.Size(), s.o.Reducer.Rank()
	sums := make([]float64, 2+2*size) // the weight, faults, and of each rank its micro-batches and its layout
	fault := -1
	for i, w := range weights {
		if !(w > 0) || math.IsInf(w, 0) {
			fault = i
			continue
		}
		sums[0] += w
	}
	if fault >= 0 {
		sums[1] = 1
	}
	sums[2+rank], sums[2+size+rank] = float64(len(weights)), float64(s.layout)
	if err := s.o.Reducer.Sum(sums); err != nil {
		return fmt.Errorf("accum: Start: %w", err)
	}
	s.rounds = 0
	for _, n := range sums[2 : 2+size] {
		s.rounds = max(s.rounds, int(n))
	}
	for rank, layout := range sums[2+size:] {
		if layout != sums[2+size] {
			return fmt.Errorf("accum: Start: rank %d has other parameters, or another Bucket, Align or Whole, than rank 0: %w", rank, snug.ErrConfig)
		}
	}
	switch {
	case fault >= 0:
		return fmt.Errorf("accum: Start: micro-batch %d has the weight %v, want a finite number above 0: %w", fault, weights[fault], snug.ErrConfig)
	case sums[1] > 0 || math.IsInf(sums[0], 0):
		return fmt.Errorf("accum: Start: a rank has a weight that is not finite and above 0, or all together are not finite: %w", snug.ErrConfig)
	case s.rounds == 0:
		return fmt.Errorf("accum: Start: no rank has a micro-batch: %w", snug.ErrConfig)
	}
	if s.o.Whole {
		s.rounds = 1
	}
	s.total, s.shares = sums[0], s.shares[:0]
	for _, w := range weights {
		s.shares = append(s.shares, max(float32(w/s.total), math.SmallestNonzeroFloat32))
	}
	s.state, s.passes, s.round, s.joined = started, 0, 0, 0
	for i := range s.params {
		s.params[i].any = false
	}
	return nil
}

// Total returns the weight of the window over all ranks, after Start.
func (s *Sharded) Total() float64 { return s.total }

// Begin begins the next micro-batch. The error wraps [snug.ErrConfig] when Start was not called, or a micro-batch is
// open, or all micro-batches of Start have begun.
func (s *Sharded) Begin() error {
	if err := s.in("Begin", started); err != nil {
		return err
	}
	if s.round == len(s.shares) {
		return fmt.Errorf("accum: Begin: Start was called with %d micro-batches, and this is one more: %w", len(s.shares), snug.ErrConfig)
	}
	s.round++
	s.beginRound(false)
	s.state = open
	return nil
}

// BeginEmpty begins a micro-batch whose gradients are thrown away. A rank with fewer micro-batches than another runs it to
// gather the pages of a [Pages] together with the other ranks: with Whole before its own micro-batches, whose last one is
// then the last of all ranks, and without Whole after them. The error wraps [snug.ErrConfig] at other times, when Start was
// not called, when a micro-batch is open, and without Whole for more micro-batches than another rank has.
func (s *Sharded) BeginEmpty() error {
	if err := s.in("BeginEmpty", started); err != nil {
		return err
	}
	switch {
	case s.o.Whole && s.round > 0:
		return fmt.Errorf("accum: BeginEmpty: a micro-batch has begun, and with Whole the empty ones come first: %w", snug.ErrConfig)
	case !s.o.Whole && s.round < len(s.shares):
		return fmt.Errorf("accum: BeginEmpty: %d micro-batches of %d have begun, and without Whole the empty ones come last: %w", s.round, len(s.shares), snug.ErrConfig)
	case !s.o.Whole && s.passes == s.rounds:
		return fmt.Errorf("accum: BeginEmpty: no rank has more micro-batches: %w", snug.ErrConfig)
	}
	s.beginRound(true)
	s.state = open
	return nil
}

// beginRound makes all parameters wait for their gradients.
func (s *Sharded) beginRound(empty bool) {
	s.passes++
	s.done, s.empty = 0, empty
	for i := range s.params {
		s.params[i].added, s.params[i].arrived = false, false
	}
	for i := range s.buckets {
		b := &s.buckets[i]
		b.waiting = len(b.params)
	}
}

// Into hands out the memory in which a kernel adds a gradient of the open micro-batch, as [Window.Into] does. It is valid
// until Done or End.
//
// The error wraps [snug.ErrConfig] when no micro-batch is open, for an unknown name and after Done, and
// [snug.ErrNoMemory]; or it comes from the reduction.
func (s *Sharded) Into(name string) (acc snug.View, into snug.Into, err error) {
	p, err := s.find("Into", name)
	if err != nil {
		return snug.View{}, snug.Into{}, err
	}
	if p.arrived {
		return snug.View{}, snug.Into{}, fmt.Errorf("accum: Into: parameter %q is done: %w", name, snug.ErrConfig)
	}
	if err := s.hold(&s.buckets[p.bucket]); err != nil {
		return snug.View{}, snug.Into{}, s.stopped("Into", err)
	}
	into = snug.Into{Alpha: 1}
	if !s.empty {
		into.Alpha = s.shares[s.round-1]
	}
	if p.added || p.any {
		into.Beta = 1
	}
	p.added, p.any = true, s.o.Whole
	return p.acc, into, nil
}

// Done says that no kernel adds to a parameter after this in the open micro-batch. Its bucket then need not wait for
// End. The error wraps [snug.ErrConfig] when Into was not called for it, or Done was, or comes from the reduction.
func (s *Sharded) Done(name string) error {
	p, err := s.find("Done", name)
	if err != nil {
		return err
	}
	if !p.added || p.arrived {
		return fmt.Errorf("accum: Done: parameter %q: call Into first, and Done once: %w", name, snug.ErrConfig)
	}
	p.arrived = true
	s.buckets[p.bucket].waiting--
	return s.stopped("Done", s.handOn())
}

// End ends the micro-batch. A parameter without a gradient has a gradient of zero. It does not wait for the reduction.
// The error wraps [snug.ErrConfig] when no micro-batch is open, or comes from the reduction.
func (s *Sharded) End() error {
	if err := s.in("End", open); err != nil {
		return err
	}
	s.state = started
	err := s.endRound()
	if s.empty {
		for i := range s.params {
			s.params[i].any = false
		}
	}
	return s.stopped("End", err)
}

// endRound adds zeros for the parameters that have no gradient, and hands on what is left.
func (s *Sharded) endRound() error {
	for i := range s.params {
		p := &s.params[i]
		if p.arrived {
			continue
		}
		if s.reduces() {
			if err := s.hold(&s.buckets[p.bucket]); err != nil {
				return err
			}
			if !p.added && !p.any && !s.empty {
				if err := (accumulateJob{acc: p.acc}).launch(s.o.Device); err != nil {
					return err
				}
			}
		}
		p.arrived = true
		s.buckets[p.bucket].waiting--
	}
	return s.handOn()
}

// reduces reports whether the micro-batch is reduced: with Whole only the last one is.
func (s *Sharded) reduces() bool { return !s.o.Whole || !s.empty && s.round >= len(s.shares) }

// Finish ends the window: it takes part in the micro-batches that other ranks have beyond this rank's, and waits until
// all gradients are reduced. All ranks call Finish. The error wraps [snug.ErrConfig] before the last End, or comes from
// the reduction, and panics of the Reducer reach the caller. After an error call Reset.
func (s *Sharded) Finish() error {
	if err := s.in("Finish", started); err != nil {
		return err
	}
	if s.round < len(s.shares) {
		return fmt.Errorf("accum: Finish: %d micro-batches of %d have ended: %w", s.round, len(s.shares), snug.ErrConfig)
	}
	for s.joined < s.rounds {
		s.beginRound(false)
		if err := s.endRound(); err != nil {
			return s.stopped("Finish", err)
		}
	}
	if err := s.wait(); err != nil {
		return s.stopped("Finish", err)
	}
	s.state = finished
	return nil
}

// Gradients yields the names of the parameters in which this rank has a part, and this part of the mean gradient,
// from Finish until the next Start or Gather. The caller may change the values.
func (s *Sharded) Gradients() iter.Seq2[string, snug.View] {
	return func(yield func(string, snug.View) bool) {
		for i := range s.params {
			p := &s.params[i]
			if s.state != finished || p.lo == p.hi {
				continue
			}
			if grad, err := s.part(p); err != nil || !yield(p.Name, grad) {
				return
			}
		}
	}
}

// Part returns this rank's part of the mean gradient of a parameter, elements lo to lo+grad.Len()-1, which may be none.
// The error wraps [snug.ErrConfig] for an unknown name, before Finish and after Gather.
func (s *Sharded) Part(name string) (lo int, grad snug.View, err error) {
	if err := s.in("Part", finished); err != nil {
		return 0, grad, err
	}
	i, known := s.index[name]
	if !known {
		return 0, grad, fmt.Errorf("accum: Part: no parameter %q: %w", name, snug.ErrConfig)
	}
	p := &s.params[i]
	grad, err = s.part(p)
	return p.lo, grad, err
}

// part returns this rank's part of a gradient. An empty one begins at element 0, as the end of a vector has no address.
func (s *Sharded) part(p *shardedParam) (snug.View, error) {
	switch {
	case p.lo == p.hi && s.o.Whole:
		return p.acc.Slice(0, 0)
	case p.lo == p.hi:
		return s.parts.Slice(0, 0)
	case s.o.Whole:
		return p.acc.Slice(p.lo, p.hi)
	}
	return s.parts.Slice(p.part, p.part+p.hi-p.lo)
}

// Reset throws the window away. It waits for a reduction that is under way. In the middle of a window all ranks call
// Reset at the same bucket, as when the Reducer has failed, or else the job ends.
func (s *Sharded) Reset() {
	_ = s.drain() // its error belongs to the window
	for i := range s.buckets {
		s.release(&s.buckets[i])
	}
	if s.index != nil && !s.closed {
		s.state = idle
	}
}

// in returns an error unless the window is in one of the states in which op may be called.
func (s *Sharded) in(op string, states ...shardedState) error {
	if s.index == nil {
		return fmt.Errorf("accum: %s: the Sharded was not made by NewSharded: %w", op, snug.ErrConfig)
	}
	if slices.Contains(states, s.state) {
		return nil
	}
	if s.closed {
		return fmt.Errorf("accum: %s: the Sharded is closed: %w", op, snug.ErrConfig)
	}
	want := map[shardedState]string{
		idle: "call Start first", started: "no micro-batch is open: call Begin, or Finish after the last one",
		open: "a micro-batch is open: call End first", finished: "the window is finished: call Start", failed: "an operation has failed: call Reset first",
	}
	return fmt.Errorf("accum: %s: %s: %w", op, want[s.state], snug.ErrConfig)
}

// find returns a parameter of the open micro-batch.
func (s *Sharded) find(op, name string) (*shardedParam, error) {
	if err := s.in(op, open); err != nil {
		return nil, err
	}
	i, known := s.index[name]
	if !known {
		return nil, fmt.Errorf("accum: %s: no parameter %q: %w", op, name, snug.ErrConfig)
	}
	return &s.params[i], nil
}

// stopped notes an error after which the window must be Reset.
func (s *Sharded) stopped(op string, err error) error {
	if err == nil {
		return nil
	}
	s.state = failed
	return fmt.Errorf("accum: %s: %w", op, err)
}
