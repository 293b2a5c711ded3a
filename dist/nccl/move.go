package nccl

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
)

// transfer is memory of the device that is sent to a rank, or received from one.
type transfer struct {
	mem   driver.Mem
	peer  int
	sends bool
}

// maxGroup is the transfers of a group, fewer than the 2048 that the library takes. It is even: the send and the receive
// of two ranks, which are a pair in all lists, are in groups of one number.
const maxGroup = 1024

// transfer queues what is in the list, and forgets it.
func (e *engine) transfer() error {
	list := e.list
	e.list = e.list[:0]
	stream, err := e.enter()
	if err != nil {
		return err
	}
	defer e.leave()
	for len(list) > 0 {
		n := min(len(list), maxGroup)
		if err := e.group(list[:n], stream); err != nil {
			return err
		}
		list = list[n:]
	}
	return nil
}

// group queues transfers that go on at the same time. Nothing of length 0 is sent: its receiver knows.
func (e *engine) group(list []transfer, stream uintptr) error {
	if err := e.check("ncclGroupStart", e.lib.groupStart()); err != nil {
		return err
	}
	var failed error
	for _, t := range list {
		switch n := uint64(t.mem.Size); {
		case n == 0:
		case e.stop.Load():
			failed = errAborted
		case t.sends:
			failed = e.check("ncclSend", e.lib.send(t.mem.Addr, n, asBytes, int32(t.peer), e.comm, stream))
		default:
			failed = e.check("ncclRecv", e.lib.receive(t.mem.Addr, n, asBytes, int32(t.peer), e.comm, stream))
		}
		if failed != nil {
			break
		}
	}
	if e.gone.Load() { // and what is in the group is not there any more
		return errAborted
	}
	err := e.check("ncclGroupEnd", e.lib.groupEnd()) // after an error too: the group is the thread's
	if failed != nil {
		return failed
	}
	return err
}

// others yields, for each other rank, the rank that is sent to and the rank that is received from, so that in a step all
// ranks send to different ones.
func (e *engine) others(yield func(to, from int) bool) {
	for i := 1; i < e.size; i++ {
		if !yield((e.rank+i)%e.size, (e.rank-i+e.size)%e.size) {
			return
		}
	}
}

// end is a vector that is sent or received in pieces. Its pieces lie on the device, or pass through a stage.
type end struct {
	v      snug.View
	direct bool
	stage  driver.Mem
}

// newEnd returns an end that has half a stage, number 0 or 1, unless the vector lies on the device.
func (e *engine) newEnd(v snug.View, half int) (end, error) {
	x := end{v: v, direct: v.Len() == 0 || v.Device() == e.home}
	if x.direct {
		return x, nil
	}
	stage, err := e.stageFor(stageVector, e.vectorStage())
	x.stage = stage.Slice(half*e.piece(), e.piece())
	return x, err
}

// piece is the bytes of a piece. All ranks cut alike, wherever their vectors lie.
func (e *engine) piece() int { return e.staged / 2 &^ 15 }

// vectorStage is the bytes of the stage of a vector: whole elements of every rank's share, or two pieces.
func (e *engine) vectorStage() int { return e.staged + 16*e.size }

// pieces returns the number of pieces.
func (x *end) pieces(e *engine) int { return (x.v.Bytes() + e.piece() - 1) / e.piece() }

// part returns the memory of piece i: none for a piece that x does not have.
func (x *end) part(e *engine, i int) driver.Mem {
	lo := min(i*e.piece(), x.v.Bytes())
	n := min(e.piece(), x.v.Bytes()-lo)
	if !x.direct {
		return x.stage.Slice(0, n)
	}
	return device.Mem(&x.v).Slice(lo, n)
}

// load copies piece i to the stage, unless it lies on the device; store copies it back.
func (x *end) load(e *engine, i int) error  { return x.copy(e, i, true) }
func (x *end) store(e *engine, i int) error { return x.copy(e, i, false) }

func (x *end) copy(e *engine, i int, in bool) error {
	if x.direct || i >= x.pieces(e) {
		return nil
	}
	size := x.v.DType().Size()
	lo := i * e.piece() / size
	there, err := x.v.Slice(lo, min(lo+e.piece()/size, x.v.Len()))
	if err != nil {
		return err
	}
	here := device.View(e.side, x.part(e, i), x.v.DType(), there.Len())
	if in {
		return snug.Copy(here, there)
	}
	return snug.Copy(there, here)
}

// sendReceive sends src to one rank, and replaces dst by what another sends.
func (e *engine) sendReceive(dst snug.View, from int, src snug.View, to int) error {
	if err := e.follow(); err != nil {
		return err
	}
	if to == e.rank { // and so is from
		return e.copySelf(dst, src)
	}
	return e.exchange(dst, from, src, to)
}

// copySelf copies src to dst on the queue of communication.
func (e *engine) copySelf(dst, src snug.View) error {
	if err := e.wait(); err != nil { // here, since Copy to a slice waits for the queue whatever happens
		return err
	}
	if err := snug.Copy(e.beside(dst), e.beside(src)); err != nil {
		return err
	}
	return e.wait()
}

// beside returns a vector of the device with the queue of communication, and another as it is.
func (e *engine) beside(v snug.View) snug.View {
	if v.Len() == 0 || v.Device() != e.home {
		return v
	}
	return device.View(e.side, *device.Mem(&v), v.DType(), v.Len())
}

func (e *engine) exchange(dst snug.View, from int, src snug.View, to int) error {
	in, err := e.newEnd(dst, 0)
	if err != nil {
		return err
	}
	out, err := e.newEnd(src, 1)
	if err != nil {
		return err
	}
	for i := range max(in.pieces(e), out.pieces(e)) {
		if err := out.load(e, i); err != nil {
			return err
		}
		e.list = append(e.list, transfer{in.part(e, i), from, false}, transfer{out.part(e, i), to, true})
		if err := e.transfer(); err != nil {
			return err
		}
		if in.direct {
			continue
		}
		if err := e.wait(); err != nil {
			return err
		}
		if err := in.store(e, i); err != nil {
			return err
		}
	}
	return e.wait()
}

// allToAll sends each rank its part of src: in step i to the rank i places on, so that no two send to one.
func (e *engine) allToAll(dst, src snug.View) error {
	if err := e.follow(); err != nil {
		return err
	}
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
		if i == 0 {
			err = e.copySelf(received, sent)
		} else {
			err = e.exchange(received, from, sent, to)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// broadcast replaces v by that of one rank.
func (e *engine) broadcast(v snug.View, root int) error {
	if v.Len() == 0 || e.size == 1 {
		return nil
	}
	x, err := e.newEnd(v, 0)
	if err != nil {
		return err
	}
	if err := e.follow(); err != nil {
		return err
	}
	for i := range x.pieces(e) {
		if e.rank == root {
			err = x.load(e, i)
		}
		if err == nil {
			err = e.spread(x.part(e, i), root)
		}
		if err == nil && !x.direct && e.rank != root {
			if err = e.wait(); err == nil {
				err = x.store(e, i)
			}
		}
		if err != nil {
			return err
		}
	}
	return e.wait()
}

// spread queues the copy of a rank's memory to all ranks.
func (e *engine) spread(m driver.Mem, root int) error {
	stream, err := e.enter()
	if err != nil {
		return err
	}
	defer e.leave()
	return e.check("ncclBroadcast", e.lib.broadcast(m.Addr, m.Addr, uint64(m.Size), asBytes, int32(root), e.comm, stream))
}
