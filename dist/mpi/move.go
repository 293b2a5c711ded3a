package mpi

import (
	"unsafe"

	"github.com/snug-ml/snug"
)

// end is one end of a message: a vector, in memory that Go can address or on a device.
type end struct {
	v     snug.View
	host  []byte
	peer  int
	which int // of the stages, for a device
}

func (e *engine) newEnd(v snug.View, peer, which int) end {
	x := end{v, hostBytes(v), peer, which}
	if x.host != nil {
		e.pinned.Pin(unsafe.SliceData(x.host))
	}
	return x
}

// onDevice reports whether the vector passes through a stage.
func (x *end) onDevice() bool { return x.host == nil && x.v.Len() > 0 }

// pieces returns the number of messages, of staged bytes each: all ranks cut alike, wherever their vectors lie.
func (x *end) pieces() int { return (x.v.Bytes() + staged - 1) / staged }

// span returns the elements of a message.
func (x *end) span(i int) (lo, hi int) {
	each := staged / x.v.DType().Size()
	return i * each, min((i+1)*each, x.v.Len())
}

// piece returns the memory of a message.
func (x *end) piece(e *engine, i int) []byte {
	lo, hi := x.span(i)
	size := x.v.DType().Size()
	if x.onDevice() {
		return e.stageFor(x.which)[:(hi-lo)*size]
	}
	return x.host[lo*size : hi*size]
}

// copy copies a message from the device, or to it.
func (x *end) copy(e *engine, i int, to bool) error {
	if !x.onDevice() {
		return nil
	}
	lo, hi := x.span(i)
	there, err := x.v.Slice(lo, hi)
	if err != nil {
		return err
	}
	host, err := viewOf(x.piece(e, i), x.v.DType())
	if err != nil {
		return err
	}
	if to {
		return snug.Copy(there, host)
	}
	return snug.Copy(host, there)
}

// exchange sends one vector and receives another.
func (e *engine) exchange(dst, src end) error {
	oneByOne := dst.onDevice() || src.onDevice()
	for i := range max(dst.pieces(), src.pieces()) {
		if i < dst.pieces() {
			if err := e.lib.receive(e.open, e.comm, dst.piece(e, i), dst.peer, tagData); err != nil {
				return err
			}
		}
		if i < src.pieces() {
			if err := src.copy(e, i, false); err != nil {
				return err
			}
			if err := e.lib.send(e.open, e.comm, src.piece(e, i), src.peer, tagData); err != nil {
				return err
			}
		}
		if !oneByOne {
			continue
		}
		if err := e.wait(false); err != nil {
			return err
		}
		if i < dst.pieces() {
			if err := dst.copy(e, i, true); err != nil {
				return err
			}
		}
	}
	return e.wait(false)
}

// sendReceive sends src to one rank, and replaces dst by what another sends.
func (e *engine) sendReceive(dst snug.View, from int, src snug.View, to int) error {
	if to == e.rank { // and so is from
		return snug.Copy(dst, src)
	}
	return e.exchange(e.newEnd(dst, from, 0), e.newEnd(src, to, 1))
}

// allToAll sends each rank its part of src: in round i to the rank i places on, so that no two send to one.
func (e *engine) allToAll(dst, src snug.View) error {
	n := src.Len() / e.size
	for i := range e.size {
		to, from := (e.rank+i)%e.size, (e.rank-i+e.size)%e.size
		sent, err := src.Slice(to*n, (to+1)*n)
		if err != nil {
			return err
		}
		received, err := dst.Slice(from*n, (from+1)*n)
		if err != nil {
			return err
		}
		if err := e.sendReceive(received, from, sent, to); err != nil {
			return err
		}
	}
	return nil
}

// broadcast replaces v by that of one rank.
func (e *engine) broadcast(v snug.View, root int) error {
	x := e.newEnd(v, root, 0)
	for i := range x.pieces() {
		if e.rank == root {
			if err := x.copy(e, i, false); err != nil {
				return err
			}
		}
		if err := e.lib.broadcast(e.open, e.comm, x.piece(e, i), root); err != nil {
			return err
		}
		if err := e.wait(false); err != nil {
			return err
		}
		if e.rank != root {
			if err := x.copy(e, i, true); err != nil {
				return err
			}
		}
	}
	return nil
}
