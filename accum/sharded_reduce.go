package accum

import (
	"fmt"
	"slices"

	"github.com/snug-ml/snug"
)

// This file is how the buckets of a Sharded are reduced and gathered.

// buffers is how many buffers a Sharded without Whole makes at once: one fills while another is reduced.
const buffers = 2

// place gives the parameters of a bucket their parts of its buffer.
func (s *Sharded) place(b *shardedBucket) (err error) {
	b.held = true
	for _, i := range b.params {
		p := &s.params[i]
		if p.Len == 0 {
			p.at = 0 // at the end of the buffer it would point past it
		}
		if p.acc, err = b.buffer.Slice(p.at, p.at+p.Len); err != nil {
			return err
		}
	}
	return nil
}

// hold gives a bucket a buffer.
func (s *Sharded) hold(b *shardedBucket) (err error) {
	if b.held {
		return nil
	}
	for b.away {
		s.takeBack()
	}
	if !b.own {
		if b.buffer, err = s.take(b.n); err != nil {
			return err
		}
	}
	return s.place(b)
}

// release takes the buffer of a bucket back, if it is not its own.
func (s *Sharded) release(b *shardedBucket) {
	if b.held && !s.o.Whole && !b.own {
		s.unused, b.held = append(s.unused, b.buffer), false
	}
}

// take returns a buffer for n elements, the shortest one that is unused. Rather than make a third one, it waits for the
// reduction to give one back. Buckets of one matrix each have buffers of their lengths, so that the gradient of an embedding
// does not make all of them as long; other buckets have buffers for any of them.
func (s *Sharded) take(n int) (snug.View, error) {
	if !s.apart {
		n = s.longest
	}
	for {
		best := -1
		for i, v := range s.unused {
			if v.Len() >= n && (best < 0 || v.Len() < s.unused[best].Len()) {
				best = i
			}
		}
		if best >= 0 {
			buffer := s.unused[best]
			s.unused = slices.Delete(s.unused, best, best+1)
			return buffer, nil
		}
		if len(s.made) < buffers || !slices.ContainsFunc(s.away, func(length int) bool { return length >= n }) {
			break
		}
		s.takeBack()
	}
	buffer, err := s.make(snug.F32, n)
	if err == nil {
		s.made = append(s.made, n)
	}
	return buffer, err
}

// takeBack waits for a buffer that the reduction gives back.
func (s *Sharded) takeBack() {
	h := <-s.back
	if b := &s.buckets[h.bucket]; b.own {
		b.away = false
		return
	}
	i := slices.Index(s.away, h.buffer.Len())
	s.away = slices.Delete(s.away, i, i+1)
	s.unused = append(s.unused, h.buffer)
}

// handOn hands the buckets that have arrived to the goroutine that reduces, in order, so that all ranks reduce the same.
func (s *Sharded) handOn() error {
	for s.done < len(s.buckets) && s.buckets[s.done].waiting == 0 {
		b := &s.buckets[s.done]
		s.done++
		if !s.reduces() {
			continue
		}
		if s.done == len(s.buckets) {
			s.joined++
		}
		if err := s.hold(b); err != nil { // of parameters without elements
			return err
		}
		if s.queue == nil {
			n := 2*len(s.buckets) + buffers + 1 // more than there are buffers
			s.queue, s.back, s.result = make(chan sharedBucket, n), make(chan sharedBucket, n), make(chan outcome, 1)
			go s.reduceAll(s.queue, s.back, s.result)
		}
		if s.empty {
			all, err := b.buffer.Slice(0, b.n)
			if err == nil {
				err = (accumulateJob{acc: all}).launch(s.o.Device)
			}
			if err != nil {
				return err
			}
		}
		if err := s.mark(b); err != nil {
			return err
		}
		call, err := reserve(s.o.Reducer)
		if err != nil {
			return err
		}
		if !s.o.Whole {
			if b.held, b.away = false, b.own; !b.own {
				s.away = append(s.away, b.buffer.Len())
			}
		}
		s.queue <- sharedBucket{s.done - 1, b.buffer, s.passes == 1, call}
	}
	return nil
}

// mark tells a Reducer with a queue of its own that a bucket is complete.
func (s *Sharded) mark(b *shardedBucket) error {
	o, ok := s.o.Reducer.(Overlapper)
	if !ok {
		return nil
	}
	all, err := b.buffer.Slice(0, b.n)
	if err != nil {
		return err
	}
	return o.Mark(all)
}

// reduceAll reduces the buckets of a window, and gives their buffers back. After an error or a panic it reduces no more.
func (s *Sharded) reduceAll(queue <-chan sharedBucket, back chan<- sharedBucket, result chan<- outcome) {
	var o outcome
	var at sharedBucket
	ended, busy := false, false
	giveBack := func(h sharedBucket) {
		if busy = false; !s.o.Whole {
			back <- h
		}
	}
	defer func() {
		if o.panics = recover(); o.panics == nil && !ended {
			o.err = fmt.Errorf("a Reducer has ended its goroutine: %w", snug.ErrConfig)
		}
		if busy {
			giveBack(at)
		}
		for h := range queue { // after a panic
			h.call.skip()
			giveBack(h)
		}
		result <- o
	}()
	for at = range queue {
		busy = true
		if o.err != nil {
			at.call.skip()
		} else if err := s.reduce(at); err != nil {
			o.err = fmt.Errorf("bucket %d: %w", at.bucket, err)
		}
		giveBack(at)
	}
	ended = true
}

// reduce adds a bucket of all ranks and, without Whole, adds this rank's part to the sums of the window.
func (s *Sharded) reduce(h sharedBucket) error {
	b := &s.buckets[h.bucket] // the next micro-batch changes buffer, held, away and waiting
	all, err := h.buffer.Slice(0, b.n)
	if err != nil {
		h.call.skip()
		return err
	}
	if err := h.call.run(func(r Reducer) error { return r.ReduceScatter(all) }); err != nil || s.o.Whole {
		return err
	}
	beta := float32(1)
	if h.first {
		beta = 0
	}
	for _, i := range b.params {
		p := &s.params[i]
		if p.lo == p.hi {
			continue
		}
		acc, err := s.part(p)
		if err != nil {
			return err
		}
		g, err := all.Slice(p.at+p.lo, p.at+p.hi)
		if err != nil {
			return err
		}
		if err := (accumulateJob{acc: acc, g: g, alpha: 1, beta: beta}).launch(s.o.Device); err != nil {
			return fmt.Errorf("parameter %q: %w", p.Name, err)
		}
	}
	return nil
}

// drain waits until all buckets that were handed on are reduced.
func (s *Sharded) drain() outcome {
	if s.queue == nil {
		return outcome{}
	}
	close(s.queue)
	o := <-s.result
	for len(s.away) > 0 {
		s.takeBack()
	}
	for i := range s.buckets {
		for s.buckets[i].away {
			s.takeBack()
		}
	}
	s.queue, s.back, s.result = nil, nil, nil
	return o
}

// wait is drain, and panics as the goroutine that reduced has.
func (s *Sharded) wait() error {
	o := s.drain()
	if o.panics != nil {
		s.state = failed
		panic(o.panics)
	}
	return o.err
}
