package mpi

import (
	"fmt"
	"unsafe"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/accum"
	"github.com/snug-ml/snug/internal/half"
)

// reduction is a vector that is reduced, gathered, or both, in rounds. A round moves up to each elements of the part of
// each rank.
type reduction struct {
	e      *engine
	v      snug.View
	host   []byte // its elements, or nil on a device
	size   int    // bytes of an element
	each   int
	rounds int
}

// reduce adds the parts of all ranks, if sums is set, and sends each rank's own part to all, if results is.
func (e *engine) reduce(v snug.View, sums, results bool) error {
	if v.Len() == 0 || e.size == 1 && !sums { // a sum makes NaNs quiet, of one rank too
		return nil
	}
	r := reduction{e: e, v: v, host: hostBytes(v), size: v.DType().Size()}
	r.each = max(1, staged/(r.size*e.size))
	longest := (v.Len()-1)/e.size + 1
	r.rounds = (longest-1)/r.each + 1
	if r.host != nil {
		e.pinned.Pin(unsafe.SliceData(r.host))
	}
	if sums && r.host != nil {
		if err := r.sendParts(0); err != nil {
			return err
		}
	}
	for t := range r.rounds {
		if err := r.round(t, sums, results); err != nil {
			return err
		}
	}
	return nil
}

// round is one round. In memory that Go can address, parts of the next round arrive while those that are there are
// added; what lies on a device passes through memory for one round.
func (r *reduction) round(t int, sums, results bool) error {
	onDevice, last := r.host == nil, t+1 == r.rounds
	if onDevice {
		if err := r.load(t, sums); err != nil {
			return err
		}
		if sums {
			if err := r.sendParts(t); err != nil {
				return err
			}
		}
	}
	if sums {
		if err := r.e.wait(false); err != nil {
			return err
		}
		if !onDevice && !last {
			if err := r.sendParts(t + 1); err != nil {
				return err
			}
		}
		if err := r.addParts(t); err != nil {
			return err
		}
	}
	if results {
		if err := r.sendResults(t); err != nil {
			return err
		}
	}
	if onDevice || last || !sums {
		if err := r.e.wait(false); err != nil {
			return err
		}
	}
	if onDevice {
		return r.store(t, results)
	}
	return nil
}

// span returns the elements of a rank's part that round t moves.
func (r *reduction) span(rank, t int) (lo, hi int) {
	lo, end := accum.Shard(r.v.Len(), rank, r.e.size)
	lo = min(lo+t*r.each, end)
	return lo, min(lo+r.each, end)
}

// part returns the memory of what round t moves of a rank's part: the vector's, or a stage for a vector on a device.
func (r *reduction) part(rank, t int) []byte {
	lo, hi := r.span(rank, t)
	if r.host != nil {
		return r.host[lo*r.size : hi*r.size]
	}
	return r.e.stageFor(stageVector)[rank*r.each*r.size:][:(hi-lo)*r.size]
}

// arrived returns the memory of the part of another rank that arrives in round t, to be added.
func (r *reduction) arrived(rank, t int) []byte {
	lo, hi := r.span(r.e.rank, t)
	return r.e.stageFor(t % 2)[rank*r.each*r.size:][:(hi-lo)*r.size]
}

// sendParts begins to send the parts of round t to the ranks that add them, and to receive those that this rank adds.
func (r *reduction) sendParts(t int) error {
	e := r.e
	for peer := range e.others {
		if err := e.lib.receive(e.open, e.comm, r.arrived(peer, t), peer, tagData); err != nil {
			return err
		}
	}
	for peer := range e.others {
		if err := e.lib.send(e.open, e.comm, r.part(peer, t), peer, tagData); err != nil {
			return err
		}
	}
	return nil
}

// addParts adds what has arrived in round t, in the order of the ranks, and writes the sums to this rank's own part.
func (r *reduction) addParts(t int) error {
	e, own := r.e, r.part(r.e.rank, t)
	out, err := viewOf(own, r.v.DType())
	if err != nil {
		return err
	}
	for lo := 0; lo < out.Len(); lo += half.Chunk {
		hi := min(lo+half.Chunk, out.Len())
		sum, add := e.sum[:hi-lo], e.add[:hi-lo]
		for rank := range e.size {
			from := out
			if rank != e.rank {
				if from, err = viewOf(r.arrived(rank, t), r.v.DType()); err != nil {
					return err
				}
			}
			if rank == 0 {
				half.Load(sum, from, lo)
				continue
			}
			half.Load(add, from, lo)
			for i, a := range add {
				sum[i] += a
			}
		}
		half.Store(out, lo, sum)
	}
	return nil
}

// sendResults begins to send this rank's own part of round t to all others, and to receive theirs.
func (r *reduction) sendResults(t int) error {
	e := r.e
	for peer := range e.others {
		if err := e.lib.receive(e.open, e.comm, r.part(peer, t), peer, tagResult); err != nil {
			return err
		}
	}
	for peer := range e.others {
		if err := e.lib.send(e.open, e.comm, r.part(e.rank, t), peer, tagResult); err != nil {
			return err
		}
	}
	return nil
}

// load copies the parts of round t from the device: all, or this rank's own.
func (r *reduction) load(t int, all bool) error {
	return r.eachPart(t, all, func(host, there snug.View) error { return snug.Copy(host, there) })
}

// store copies them back.
func (r *reduction) store(t int, all bool) error {
	return r.eachPart(t, all, func(host, there snug.View) error { return snug.Copy(there, host) })
}

func (r *reduction) eachPart(t int, all bool, do func(host, there snug.View) error) error {
	for rank := range r.e.size {
		if !all && rank != r.e.rank {
			continue
		}
		lo, hi := r.span(rank, t)
		there, err := r.v.Slice(lo, hi)
		if err != nil {
			return err
		}
		host, err := viewOf(r.part(rank, t), r.v.DType())
		if err != nil {
			return err
		}
		if err := do(host, there); err != nil {
			return err
		}
	}
	return nil
}

// viewOf returns bytes as elements.
func viewOf(b []byte, dt snug.DType) (snug.View, error) {
	switch dt {
	case snug.F32:
		return elements[float32](b), nil
	case snug.BF16:
		return elements[snug.BFloat16](b), nil
	case snug.F16:
		return elements[snug.Float16](b), nil
	case snug.U8:
		return elements[uint8](b), nil
	case snug.I32:
		return elements[int32](b), nil
	case snug.F8E4M3:
		return elements[snug.Float8E4M3](b), nil
	case snug.F8E5M2:
		return elements[snug.Float8E5M2](b), nil
	}
	return snug.View{}, fmt.Errorf("elements of %s cannot be moved: %w", dt, snug.ErrDType)
}

func elements[T snug.Element](b []byte) snug.View {
	var zero T
	return snug.SliceView(unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/int(unsafe.Sizeof(zero))))
}
