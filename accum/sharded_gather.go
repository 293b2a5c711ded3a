package accum

import (
	"fmt"

	"github.com/snug-ml/snug"
)

// Gather completes the parameters on all ranks. value returns a parameter; this rank has updated its own part of it.
// Gather replaces the other parts by those of their ranks. All ranks call Gather, after Finish or between
// windows. Parameters are float32, float16 or bfloat16, on the Sharded's device. The gradients are gone afterwards.
//
// Parameters of float32 are sent through the memory of the gradients. For 16-bit parameters Gather makes memory of Bucket
// elements of their type, which it keeps. Errors, with nothing sent: [snug.ErrConfig] within a window, [snug.ErrShape],
// [snug.ErrDType], [snug.ErrDevice] and [snug.ErrNoMemory]. Otherwise the error comes from the Reducer.
func (s *Sharded) Gather(value func(name string) snug.View) error {
	if err := s.in("Gather", idle, finished); err != nil {
		return err
	}
	if value == nil {
		return fmt.Errorf("accum: Gather: the function is nil: %w", snug.ErrConfig)
	}
	for _, p := range s.params {
		if p.chunk > 0 {
			continue
		}
		v := value(p.Name)
		switch {
		case !v.DType().IsFloat():
			return fmt.Errorf("accum: Gather: parameter %q is %s, want f32, f16 or bf16: %w", p.Name, v.DType(), snug.ErrDType)
		case v.Len() != p.Len:
			return fmt.Errorf("accum: Gather: parameter %q has %d elements, want %d: %w", p.Name, v.Len(), p.Len, snug.ErrShape)
		case v.Device() != s.o.Device:
			return fmt.Errorf("accum: Gather: parameter %q is on %s, want %s: %w", p.Name, v.Device().Name(), s.o.Device.Name(), snug.ErrDevice)
		}
	}
	s.state = idle
	if s.o.Reducer.Size() == 1 {
		return nil
	}
	for i := range s.buckets {
		for _, dt := range []snug.DType{snug.F32, snug.F16, snug.BF16} {
			if err := s.gather(&s.buckets[i], dt, value); err != nil {
				return fmt.Errorf("accum: Gather: %w", err)
			}
		}
	}
	return nil
}

// gather brings the parameters of one type in a bucket together, in rounds. A round sends as many elements of each rank's
// part as its share of the memory holds.
func (s *Sharded) gather(b *shardedBucket, dt snug.DType, value func(name string) snug.View) error {
	var list []*shardedParam
	for _, i := range b.params {
		if p := &s.params[i]; p.chunk == 0 && p.Len > 0 && value(p.Name).DType() == dt {
			list = append(list, p)
		}
	}
	if list == nil {
		return nil
	}
	memory, err := s.staging(b, dt)
	if err != nil {
		return err
	}
	size := s.o.Reducer.Size()
	part := b.n / size // layOut makes it a multiple
	for at := 0; at < part; {
		each := min(memory.Len()/size, part-at)
		all, err := memory.Slice(0, each*size)
		if err != nil {
			return err
		}
		// copyPart copies what a rank sends from the parameters to its place in the memory, or back.
		copyPart := func(rank int, there bool) error {
			for _, p := range list {
				lo := rank*part + at
				if err := exchange(all, rank*each-lo, value(p.Name), p.at, lo, lo+each, there); err != nil {
					return err
				}
			}
			return nil
		}
		own := s.o.Reducer.Rank()
		if err := copyPart(own, true); err != nil {
			return err
		}
		if err := s.o.Reducer.AllGather(all); err != nil {
			return err
		}
		for rank := range size {
			if rank == own {
				continue
			}
			if err := copyPart(rank, false); err != nil {
				return err
			}
		}
		at += each
	}
	return nil
}

// staging returns memory through which parameters of a type are sent: of a bucket for float32, and of Bucket elements for
// others, at least one for each rank.
func (s *Sharded) staging(b *shardedBucket, dt snug.DType) (all snug.View, err error) {
	switch {
	case dt == snug.F32 && (s.o.Whole || b.own):
		return b.buffer.Slice(0, b.n)
	case dt == snug.F32:
		if all, err = s.take(b.n); err != nil {
			return all, err
		}
		s.unused = append(s.unused, all) // nothing takes it before the next bucket
		return all.Slice(0, b.n)
	case s.narrow[dt].Len() > 0:
		return s.narrow[dt], nil
	}
	size, longest := s.o.Reducer.Size(), s.longest
	if s.apart { // the others are not sent
		longest = 0
		for i := range s.buckets {
			if b := &s.buckets[i]; s.params[b.params[0]].chunk == 0 {
				longest = max(longest, b.n)
			}
		}
	}
	if all, err = s.make(dt, min(longest, max(s.o.Bucket, size)/size*size)); err == nil {
		s.narrow[dt] = all
	}
	return all, err
}

// exchange copies elements lo to hi-1 of a bucket, as far as they belong to a parameter that begins at element at of the
// bucket, to memory, or back. In memory element i of the bucket is element i+shift.
func exchange(memory snug.View, shift int, param snug.View, at, lo, hi int, there bool) error {
	lo, hi = max(lo, at), min(hi, at+param.Len())
	if lo >= hi {
		return nil
	}
	a, err := memory.Slice(lo+shift, hi+shift)
	if err != nil {
		return err
	}
	b, err := param.Slice(lo-at, hi-at)
	if err != nil {
		return err
	}
	if !there {
		a, b = b, a
	}
	return snug.Copy(a, b)
}
