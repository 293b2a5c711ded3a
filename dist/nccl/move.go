package nccl

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/accum"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/ranks"
)

// Take implements [ranks.Transport]: what is queued for communication waits until the vectors are complete.
func (e *engine) Take(j *ranks.Job) error {
	switch j.Op {
	case ranks.Sum:
		return nil
	case ranks.AllReduce, ranks.ReduceScatter, ranks.AllGather:
		if j.V.Len() == 0 || !e.Direct(j.V) {
			return nil
		}
		return e.ready(j.V)
	}
	return e.follow()
}

// Direct implements [ranks.Transport].
func (e *engine) Direct(v snug.View) bool { return v.Device() == e.home }

// Alloc implements [ranks.Transport].
func (e *engine) Alloc(size int) (driver.Mem, error) { return e.stream.Alloc(size) }

// View implements [ranks.Transport]: work on the view goes to the queue of communication.
func (e *engine) View(m driver.Mem, dt snug.DType, n int) snug.View {
	return device.View(e.side, m, dt, n)
}

// Gather implements [ranks.Transport].
func (e *engine) Gather(own, all []byte, calls bool) error {
	m, err := e.notes, error(nil)
	if !calls {
		if m, err = e.StageFor(ranks.StageVector); err != nil {
			return err
		}
		m = m.Slice(0, len(all))
	}
	part := m.Slice(e.Rank*len(own), len(own))
	if err := e.stream.CopyIn(part, own); err != nil {
		return err
	}
	if err := e.gather(part, m); err != nil {
		return err
	}
	if err := e.Wait(); err != nil {
		return err
	}
	return e.stream.CopyOut(all, m)
}

// gather queues the exchange of what each rank has in its part of m.
func (e *engine) gather(own, m driver.Mem) error {
	stream, err := e.enter()
	if err != nil {
		return err
	}
	defer e.leave()
	return e.check("ncclAllGather", e.lib.allGather(own.Addr, m.Addr, uint64(own.Size), asBytes, e.comm, stream))
}

// maxGroup is the transfers of a group, fewer than the 2048 that the library takes. It is even: the send and the receive
// of two ranks, which are a pair in all lists, are in groups of one number.
const maxGroup = 1024

// Move implements [ranks.Transport].
func (e *engine) Move(list []ranks.Transfer, _ ranks.Moved) error {
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

// group queues transfers that go on at the same time.
func (e *engine) group(list []ranks.Transfer, stream uintptr) error {
	if err := e.check("ncclGroupStart", e.lib.groupStart()); err != nil {
		return err
	}
	var failed error
	for _, t := range list {
		switch n := uint64(t.Mem.Size); {
		case n == 0:
		case e.stop.Load():
			failed = errAborted
		case t.Sends:
			failed = e.check("ncclSend", e.lib.send(t.Mem.Addr, n, asBytes, int32(t.Peer), e.comm, stream))
		default:
			failed = e.check("ncclRecv", e.lib.receive(t.Mem.Addr, n, asBytes, int32(t.Peer), e.comm, stream))
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

// Spread implements [ranks.Transport].
func (e *engine) Spread(m driver.Mem, root int) error {
	stream, err := e.enter()
	if err != nil {
		return err
	}
	defer e.leave()
	return e.check("ncclBroadcast", e.lib.broadcast(m.Addr, m.Addr, uint64(m.Size), asBytes, int32(root), e.comm, stream))
}

// Settle implements [ranks.Transport]: the queue has an order.
func (e *engine) Settle() error { return nil }

// Leave implements [ranks.Transport]: Close destroys the communicator.
func (e *engine) Leave() error { return nil }

// Add implements [ranks.Transport]. Sums of float32 are computed where the part of rank 0 lies; sums of bfloat16 in memory
// of their own, from which they are rounded.
func (e *engine) Add(r *ranks.Reduction) error {
	own, sum, first := r.Part(e.Rank), r.Part(0), 1
	narrow := own.DType() != snug.F32
	if narrow {
		if err := e.widen(own.DType()); err != nil {
			return err
		}
		sum, first = e.View(e.wide.Slice(0, 4*r.Len()), snug.F32, r.Len()), 0
	}
	for rank := first; rank < e.Size; rank++ {
		beta := float32(1)
		if rank == 0 {
			beta = 0
		}
		if err := accum.Accumulate(sum, r.Part(rank), 1, beta); err != nil {
			return err
		}
	}
	switch {
	case narrow:
		return amp.Cast(own, sum)
	case e.Rank > 0:
		return snug.Copy(own, sum)
	}
	return nil
}

// widen allocates the memory of sums of a type of 16 bits, when it is first used.
func (e *engine) widen(dt snug.DType) (err error) {
	if e.wide.Size == 0 {
		e.wide, err = e.stream.Alloc(4 * e.Each(dt.Size()))
	}
	return err
}

// loadKernels runs the kernels of sums once, on memory that is not used yet, because loading a kernel may wait for other
// work of the device, such as communication.
func (e *engine) loadKernels() error {
	sum := e.View(e.notes.Slice(0, 4), snug.F32, 1)
	wide := e.View(e.notes.Slice(16, 4), snug.F32, 1)
	low := e.View(e.notes.Slice(32, 2), snug.BF16, 1)
	for _, part := range []snug.View{wide, low} {
		if err := accum.Accumulate(sum, part, 1, 0); err != nil {
			return err
		}
	}
	if err := amp.Cast(low, sum); err != nil {
		return err
	}
	return e.stream.Sync()
}
