//go:build linux

package nccl

import (
	"encoding/binary"
	"fmt"
	"sync"
	"syscall"
)

// wire is a stand-in for NCCL: its communicators are in one process, a rank each, and what they send goes through Go's
// memory, when the queues of the cards reach it. As with NCCL, a send ends when it was received.
type wire struct {
	mu     sync.Mutex
	change sync.Cond
	comms  map[uintptr]*comm
	teams  map[uniqueID]*team
	groups map[int]*group // by thread
	ids    uint64
	closed bool
	faults []string // what NCCL would not survive

	silent bool // an abort of a rank is no error of the others
}

// team is the ranks of a communicator.
type team struct {
	comms []*comm
	boxes map[box][]*message // sent and not received
}

type box struct {
	kind     string
	from, to int
}

type message struct {
	data []byte
	done bool
}

type comm struct {
	*team
	rank    int
	aborted bool
	ended   bool
	async   result
	busy    int // how often to return inProgress
}

// group is what a thread has begun.
type group struct{ work map[uintptr][]op }

type op struct {
	kind string
	card *card
	addr uintptr
	n    int
	send bool
	comm *comm
	peer int
}

func newWire() *wire {
	w := &wire{comms: map[uintptr]*comm{}, teams: map[uniqueID]*team{}, groups: map[int]*group{}}
	w.change.L = &w.mu
	return w
}

// close ends what still waits.
func (w *wire) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	for _, c := range w.comms {
		c.aborted = true
	}
	w.change.Broadcast()
}

func (w *wire) fault(format string, args ...any) result {
	w.faults = append(w.faults, fmt.Sprintf(format, args...))
	return 3
}

// faulty is what can go wrong in the library of a rank.
type faulty struct {
	card   *card
	fail   map[string]result // of functions, by name
	hang   map[string]bool   // which return when the communicator is aborted
	stalls bool              // sends do not begin
	busy   int               // how often a group is in progress after it has ended
}

// call is what every function does first. The caller has the lock.
func (w *wire) call(f *faulty, name string, handle uintptr) (*comm, result) {
	if !f.card.current() {
		return nil, w.fault("%s: the device is not current on this thread", name)
	}
	c := w.comms[handle]
	if c == nil || c.ended {
		return nil, w.fault("%s: no communicator %d", name, handle)
	}
	for f.hang[name] && !c.aborted {
		w.change.Wait()
	}
	return c, f.fail[name]
}

// library returns the functions for a rank.
func (w *wire) library(f *faulty) *library {
	l := &library{path: "libnccl.so.2", release: 22703}
	l.getVersion = func(v *int32) result {
		*v = l.release
		return success
	}
	l.errorString = func(r result) string { return fmt.Sprintf("what %d means", r) }
	l.lastError = func(uintptr) string { return "more of it\n" }
	l.getUniqueID = func(id *uniqueID) result {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.ids++
		binary.LittleEndian.PutUint64(id.Bytes[120:], w.ids)
		return f.fail["ncclGetUniqueId"]
	}
	l.initRank = func(comm *uintptr, ranks int32, id uniqueID, rank int32) result {
		return w.join(f, "ncclCommInitRank", comm, int(ranks), id, int(rank))
	}
	l.initScalable = func(comm *uintptr, ranks, rank, ids int32, id *uniqueID, config uintptr) result {
		if ids != 1 || config != 0 {
			return 4
		}
		return w.join(f, "ncclCommInitRankScalable", comm, int(ranks), *id, int(rank))
	}
	w.ends(l, f)
	w.moves(l, f)
	return l
}

func (w *wire) join(f *faulty, name string, handle *uintptr, ranks int, id uniqueID, rank int) result {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !f.card.current() {
		return w.fault("%s: the device is not current on this thread", name)
	}
	if r := f.fail[name]; r != success {
		return r
	}
	if w.teams[id] == nil {
		w.teams[id] = &team{comms: make([]*comm, ranks), boxes: map[box][]*message{}}
	}
	t := w.teams[id]
	if len(t.comms) != ranks || t.comms[rank] != nil {
		return w.fault("rank %d of %d joins %d ranks", rank, ranks, len(t.comms))
	}
	t.comms[rank] = &comm{team: t, rank: rank}
	*handle = uintptr(len(w.comms) + 1)
	w.comms[*handle] = t.comms[rank]
	w.change.Broadcast()
	for {
		here := 0
		for _, c := range t.comms {
			if c != nil {
				here++
			}
		}
		switch {
		case w.closed:
			return 6
		case here == ranks:
			return success
		}
		w.change.Wait()
	}
}

// ends has the functions of a communicator's state.
func (w *wire) ends(l *library, f *faulty) {
	l.destroy = func(handle uintptr) result {
		w.mu.Lock()
		defer w.mu.Unlock()
		c, r := w.call(f, "ncclCommDestroy", handle)
		if c != nil {
			c.ended = true
		}
		return r
	}
	l.abort = func(handle uintptr) result {
		w.mu.Lock()
		defer w.mu.Unlock()
		if c := w.comms[handle]; c != nil { // first, for functions that hang
			c.aborted = true
			w.change.Broadcast()
		}
		c, r := w.call(f, "ncclCommAbort", handle)
		if c == nil {
			return r
		}
		c.ended = true
		for _, other := range c.comms {
			if other != nil && !w.silent {
				other.async = 6 // ncclRemoteError
			}
		}
		return r
	}
	l.asyncError = func(handle uintptr, r *result) result {
		w.mu.Lock()
		defer w.mu.Unlock()
		c := w.comms[handle]
		if c == nil || c.ended {
			return w.fault("ncclCommGetAsyncError: no communicator %d", handle)
		}
		*r = c.async
		if c.busy > 0 {
			c.busy--
			*r = inProgress
		}
		return f.fail["ncclCommGetAsyncError"]
	}
}

// moves has the functions that move data.
func (w *wire) moves(l *library, f *faulty) {
	l.groupStart = func() result {
		w.mu.Lock()
		defer w.mu.Unlock()
		thread := syscall.Gettid()
		if w.groups[thread] != nil {
			return w.fault("ncclGroupStart: a group is open on this thread")
		}
		if r := f.fail["ncclGroupStart"]; r != success {
			return r
		}
		w.groups[thread] = &group{work: map[uintptr][]op{}}
		return success
	}
	l.groupEnd = func() result {
		w.mu.Lock()
		defer w.mu.Unlock()
		thread := syscall.Gettid()
		g := w.groups[thread]
		if g == nil {
			return w.fault("ncclGroupEnd: no group is open on this thread")
		}
		delete(w.groups, thread)
		result := f.fail["ncclGroupEnd"]
		for stream, ops := range g.work {
			c := ops[0].comm
			for f.hang["ncclGroupEnd"] && !c.aborted {
				w.change.Wait()
			}
			if c.aborted {
				return 3
			}
			if result == success {
				_ = queueOf(stream).enqueue(func() { w.run(f, ops) })
			}
			if f.busy > 0 && result == success {
				c.busy, result = f.busy, inProgress
			}
		}
		return result
	}
	move := func(name string, send bool) moveFunc {
		return func(addr uintptr, count uint64, dtype, peer int32, handle, stream uintptr) result {
			w.mu.Lock()
			defer w.mu.Unlock()
			c, r := w.call(f, name, handle)
			if r != success {
				return r
			}
			g := w.groups[syscall.Gettid()]
			if g == nil || dtype != asBytes || count == 0 || int(peer) == c.rank {
				return w.fault("%s of %d elements of type %d to rank %d, in group: %v", name, count, dtype, peer, g != nil)
			}
			g.work[stream] = append(g.work[stream], op{"move", f.card, addr, int(count), send, c, int(peer)})
			return success
		}
	}
	l.send, l.receive = move("ncclSend", true), move("ncclRecv", false)
	l.allGather = func(src, dst uintptr, count uint64, dtype int32, handle, stream uintptr) result {
		w.mu.Lock()
		defer w.mu.Unlock()
		c, r := w.call(f, "ncclAllGather", handle)
		if r != success {
			return r
		}
		at := func(rank int) uintptr { return dst + uintptr(rank)*uintptr(count) }
		if dtype != asBytes || src != at(c.rank) {
			return w.fault("ncclAllGather is not in place, or of type %d", dtype)
		}
		var ops []op
		for peer := range c.comms {
			if peer != c.rank {
				ops = append(ops, op{"gather", f.card, src, int(count), true, c, peer}, op{"gather", f.card, at(peer), int(count), false, c, peer})
			}
		}
		_ = queueOf(stream).enqueue(func() { w.run(f, ops) })
		return success
	}
	l.broadcast = func(src, dst uintptr, count uint64, dtype, root int32, handle, stream uintptr) result {
		w.mu.Lock()
		defer w.mu.Unlock()
		c, r := w.call(f, "ncclBroadcast", handle)
		if r != success {
			return r
		}
		if dtype != asBytes || src != dst {
			return w.fault("ncclBroadcast is not in place, or of type %d", dtype)
		}
		var ops []op
		for peer := range c.comms {
			switch {
			case c.rank == int(root) && peer != c.rank:
				ops = append(ops, op{"broadcast", f.card, src, int(count), true, c, peer})
			case c.rank != int(root) && peer == int(root):
				ops = append(ops, op{"broadcast", f.card, dst, int(count), false, c, peer})
			}
		}
		_ = queueOf(stream).enqueue(func() { w.run(f, ops) })
		return success
	}
}

// run does the operations of a group: all sends begin before it waits for what it receives.
func (w *wire) run(f *faulty, ops []op) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var sent []*message
	for _, o := range ops {
		for f.stalls && !o.comm.aborted {
			w.change.Wait()
		}
		if o.send {
			m := &message{data: o.card.read(o.addr, o.n)}
			b := box{o.kind, o.comm.rank, o.peer}
			o.comm.boxes[b] = append(o.comm.boxes[b], m)
			sent = append(sent, m)
		}
	}
	w.change.Broadcast()
	for _, o := range ops {
		if o.send {
			continue
		}
		b := box{o.kind, o.peer, o.comm.rank}
		for len(o.comm.boxes[b]) == 0 && !o.comm.aborted {
			w.change.Wait()
		}
		if o.comm.aborted { // what arrives later is of operations before this one
			return
		}
		m := o.comm.boxes[b][0]
		o.comm.boxes[b] = o.comm.boxes[b][1:]
		if o.n != len(m.data) {
			w.fault("rank %d receives %d bytes, rank %d sends %d", o.comm.rank, o.n, o.peer, len(m.data))
		}
		o.card.write(o.addr, m.data)
		m.done = true
		w.change.Broadcast()
	}
	for _, m := range sent {
		for !m.done && !ops[0].comm.aborted {
			w.change.Wait()
		}
	}
}
