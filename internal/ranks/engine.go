package ranks

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
)

// Transport moves bytes between ranks. What it begins has ended when Wait returns; Settle says less.
type Transport interface {
	// Take prepares the vectors of a call, on whose contents all ranks have agreed.
	Take(j *Job) error
	// Direct reports whether a vector, which has elements, is sent from where it lies. Others pass through a stage.
	Direct(v snug.View) bool
	// Alloc returns memory for a stage.
	Alloc(size int) (driver.Mem, error)
	// View returns n elements of a stage, or of a direct vector, for work in the order of what moves.
	View(m driver.Mem, dt snug.DType, n int) snug.View
	// Gather sends own to all ranks, and fills all with what they send, in their order. What is gathered is calls, to
	// which ranks may come late, or numbers of a call.
	Gather(own, all []byte, calls bool) error
	// Move begins to send and to receive. Nothing of length 0 is sent: its receiver knows. Parts and results may overtake
	// one another.
	Move(list []Transfer, what Moved) error
	// Spread begins to copy a rank's memory to that of all.
	Spread(m driver.Mem, root int) error
	// Add writes to a reduction's own part the sum of the parts of all ranks in float32, in their order.
	Add(r *Reduction) error
	// Settle waits until what comes next sees what was begun, which a transport with an order does not need.
	Settle() error
	Wait() error
	// Failed ends a call that an error of this transport has stopped, and returns the error of the call.
	Failed(op Op, err error) error
	// Leave takes leave of the other ranks. Every rank calls it.
	Leave() error
}

// Transfer is memory that is sent to a rank, or received from one.
type Transfer struct {
	Mem   driver.Mem
	Peer  int
	Sends bool
}

// Moved is what moves.
type Moved int

const (
	Parts   Moved = iota // before sums, and what moves as it is
	Results              // sums
)

// The stages of an Engine.
const (
	StageVector = iota // of a vector that is not direct
	StageParts         // parts that have arrived, and wait to be added
	StageNext          // parts of the next round, which arrive meanwhile
	stages
)

// Engine makes the calls of a rank. Sums are computed here, in the order of the ranks, so that they have the bits of
// package accum's Local whatever moves the bytes. One goroutine calls it.
type Engine struct {
	Rank, Size int
	Staged     int  // bytes of a stage, the same on all ranks
	Ahead      bool // parts of the next round arrive while others are added, which takes one more stage

	Stages [stages]driver.Mem // allocated when they are first used

	t      Transport
	moves  atomic.Bool // the ranks have agreed, and data moves
	job    Job
	own    Call
	wanted []Call // of all ranks
	list   []Transfer
	sums   []float64
	r      Reduction // under way
}

// Start prepares calls by a transport. Rank, Size and Staged are set.
func (e *Engine) Start(t Transport) {
	e.t, e.wanted = t, make([]Call, e.Size)
}

// Do makes a call: the ranks compare what they want, and then data moves. An error of the comparison, which all ranks
// have, leaves the transport as it is.
func (e *Engine) Do(j Job) error {
	e.job = j
	defer func() { e.job = Job{} }() // its vectors may be freed
	e.moves.Store(false)
	err := e.tell()
	if err == nil {
		if err := Check(e.wanted); err != nil {
			return err
		}
		e.moves.Store(true)
		err = e.move(&e.job)
	}
	if err != nil {
		return e.t.Failed(j.Op, err)
	}
	return nil
}

// Awaited says what a call waits for. Any goroutine may ask.
func (e *Engine) Awaited() string {
	if e.moves.Load() {
		return "data"
	}
	return "calls"
}

// tell tells this rank's call to all others, and waits for theirs.
func (e *Engine) tell() error {
	e.own, e.wanted[e.Rank] = e.job.Call, e.job.Call
	if e.Size == 1 {
		return nil
	}
	return e.t.Gather(bytesOf(&e.own, 1), bytesOf(unsafe.SliceData(e.wanted), e.Size), true)
}

// CallBytes is the size of a Call.
const CallBytes = int(unsafe.Sizeof(Call{}))

// bytesOf returns the memory of n values.
func bytesOf[T any](p *T, n int) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(p)), n*int(unsafe.Sizeof(*p)))
}

func (e *Engine) move(j *Job) error {
	switch {
	case j.Op == Close:
		return e.t.Leave()
	case j.Op == Broadcast && (e.Size == 1 || j.V.Len() == 0): // every rank has it
		return nil
	}
	if err := e.t.Take(j); err != nil {
		return err
	}
	switch j.Op {
	case Sum:
		return e.sumAll(j.X)
	case AllReduce:
		return e.reduce(j.V, true, true)
	case ReduceScatter:
		return e.reduce(j.V, true, false)
	case AllGather:
		return e.reduce(j.V, false, true)
	case Broadcast:
		return e.broadcast(j.V, int(j.Peer))
	case AllToAll:
		return e.allToAll(j.Dst, j.V)
	case SendReceive:
		return e.sendReceive(j.Dst, int(j.From), j.V, int(j.Peer))
	}
	return fmt.Errorf("no call: %w", snug.ErrConfig)
}

// sumAll replaces x by the sums over all ranks. Each rank's numbers come to all.
func (e *Engine) sumAll(x []float64) error {
	each := max(1, e.Staged/(8*e.Size))
	for len(x) > 0 {
		n := min(each, len(x))
		if err := e.sumSome(x[:n]); err != nil {
			return err
		}
		x = x[n:]
	}
	return nil
}

func (e *Engine) sumSome(x []float64) error {
	n := len(x) * e.Size
	if cap(e.sums) < n {
		e.sums = make([]float64, n)
	}
	all := e.sums[:n]
	if e.Size == 1 {
		copy(all, x)
	} else if err := e.t.Gather(bytesOf(unsafe.SliceData(x), len(x)), bytesOf(unsafe.SliceData(all), n), false); err != nil {
		return err
	}
	for i := range x {
		sum := 0.0 // to which -0 is added: 0
		for rank := range e.Size {
			sum += all[rank*len(x)+i]
		}
		x[i] = sum
	}
	return nil
}

// others yields, for each other rank, the rank that is sent to and the rank that is received from, so that in a step all
// ranks send to different ones.
func (e *Engine) others(yield func(to, from int) bool) {
	for i := 1; i < e.Size; i++ {
		if !yield((e.Rank+i)%e.Size, (e.Rank-i+e.Size)%e.Size) {
			return
		}
	}
}

// StageFor returns a stage, which is allocated when it is first used.
func (e *Engine) StageFor(which int) (driver.Mem, error) {
	m := &e.Stages[which]
	if m.Size > 0 {
		return *m, nil
	}
	var err error
	*m, err = e.t.Alloc(e.Staged + 16*e.Size) // whole elements of every rank's share
	return *m, err
}

// Each returns the most elements of a size that a round moves of the part of each rank.
func (e *Engine) Each(size int) int {
	each := max(1, e.Staged/(size*e.Size))
	if each > 16 {
		each &^= 15 // parts in stages begin at multiples of 16 bytes, at which kernels are faster
	}
	return each
}

// here returns a direct vector for work in the order of what moves, and another as it is.
func (e *Engine) here(v snug.View) snug.View {
	if v.Len() == 0 || !e.t.Direct(v) {
		return v
	}
	return e.t.View(*device.Mem(&v), v.DType(), v.Len())
}
