package accum

import (
	"fmt"
	"sync"

	"github.com/snug-ml/snug"
)

// This file passes calls on to the Reducer of a Pages, one after the other.

// order lets calls of a Reducer run in the order in which they took their turns.
type order struct {
	mu     sync.Mutex
	last   chan struct{} // closed when the last turn has ended
	err    error         // the first one; it stays
	closed bool          // no more turns
}

// turn is the place of a call in the order. Whoever takes one must run it.
type turn struct {
	order *order
	after chan struct{} // closed when the turn before has ended; nil for the first
	ended chan struct{}
}

// next takes a turn.
func (o *order) next() (turn, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := o.state(); err != nil {
		return turn{}, err
	}
	t := turn{o, o.last, make(chan struct{})}
	o.last = t.ended
	return t, nil
}

// failed returns the error of all calls from now on.
func (o *order) failed() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.state()
}

func (o *order) state() error {
	if o.err == nil && o.closed {
		return fmt.Errorf("accum: the Pages is closed: %w", snug.ErrConfig)
	}
	return o.err
}

// broken returns the error of calls that have a turn.
func (o *order) broken() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err
}

func (o *order) fail(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil {
		o.err = err
	}
}

// close lets the turns that were taken end. It returns the first error, and whether it is the first close.
func (o *order) close() (failed error, first bool) {
	o.mu.Lock()
	first, o.closed = !o.closed, true
	last := o.last
	o.mu.Unlock()
	if last != nil {
		<-last
	}
	return o.broken(), first
}

// run waits for the turn and calls do, unless an earlier call has failed. A panic of do goes on.
func (t turn) run(do func() error) (err error) {
	defer close(t.ended)
	if t.after != nil {
		<-t.after
	}
	if err := t.order.broken(); err != nil {
		return err
	}
	returned := false
	defer func() {
		if returned {
			if err != nil {
				t.order.fail(err)
			}
			return
		}
		switch p := recover().(type) {
		case nil:
			t.order.fail(fmt.Errorf("accum: the Reducer of a Pages has ended its goroutine: %w", snug.ErrConfig))
		case error:
			t.order.fail(fmt.Errorf("accum: the Reducer of a Pages has panicked: %w", p))
			panic(p)
		default:
			t.order.fail(fmt.Errorf("accum: the Reducer of a Pages has panicked: %v: %w", p, snug.ErrConfig))
			panic(p)
		}
	}()
	err = do()
	returned = true
	return err
}

// orderedCall is the place of a call of the Reducer among all calls, where a Pages orders them. The calls of a pass that
// gathers pages then go on while its buckets are reduced, in the same order on all ranks.
type orderedCall struct {
	reducer Reducer
	turn    *turn // nil without a Pages; run once
}

// reserve returns the place of the next call of a Reducer.
func reserve(r Reducer) (orderedCall, error) {
	p, ok := r.(*Pages)
	if !ok {
		return orderedCall{r, nil}, nil
	}
	t, err := p.order.next()
	return orderedCall{p.reducer, &t}, err
}

// run makes the call.
func (c orderedCall) run(do func(r Reducer) error) error {
	if c.turn == nil {
		return do(c.reducer)
	}
	return c.turn.run(func() error { return do(c.reducer) })
}

// skip lets later calls go on.
func (c orderedCall) skip() {
	if c.turn != nil {
		_ = c.turn.run(func() error { return nil })
	}
}

// pass passes a call on.
func (p *Pages) pass(op string, do func() error) error {
	if err := p.usable(op); err != nil {
		return err
	}
	t, err := p.order.next()
	if err != nil {
		return err
	}
	return t.run(do)
}

// Rank implements [Reducer].
func (p *Pages) Rank() int {
	if p == nil {
		return 0
	}
	return p.rank
}

// Size implements [Reducer]. It is at least 1.
func (p *Pages) Size() int {
	if p == nil {
		return 1
	}
	return max(p.size, 1)
}

// Sum implements [Reducer].
func (p *Pages) Sum(x []float64) error {
	return p.pass("Sum", func() error { return p.reducer.Sum(x) })
}

// AllReduce implements [Reducer].
func (p *Pages) AllReduce(v snug.View) error {
	return p.pass("AllReduce", func() error { return p.reducer.AllReduce(v) })
}

// ReduceScatter implements [Reducer].
func (p *Pages) ReduceScatter(v snug.View) error {
	return p.pass("ReduceScatter", func() error { return p.reducer.ReduceScatter(v) })
}

// AllGather implements [Reducer].
func (p *Pages) AllGather(v snug.View) error {
	return p.pass("AllGather", func() error { return p.reducer.AllGather(v) })
}

// missing returns the error of a method that the Reducer does not have.
func (p *Pages) missing(op, want string) error {
	if err := p.usable(op); err != nil {
		return err
	}
	return fmt.Errorf("accum: %s: the Reducer of the Pages is no %s: %w", op, want, snug.ErrConfig)
}

// Broadcast implements [Broadcaster]. The error wraps [snug.ErrConfig] if the Reducer below is none.
func (p *Pages) Broadcast(root int, v snug.View) error {
	if r, ok := p.below().(Broadcaster); ok {
		return p.pass("Broadcast", func() error { return r.Broadcast(root, v) })
	}
	return p.missing("Broadcast", "Broadcaster")
}

// AllToAll implements [AllToAller]. The error wraps [snug.ErrConfig] if the Reducer below is none.
func (p *Pages) AllToAll(dst, src snug.View) error {
	if r, ok := p.below().(AllToAller); ok {
		return p.pass("AllToAll", func() error { return r.AllToAll(dst, src) })
	}
	return p.missing("AllToAll", "AllToAller")
}

// SendReceive implements [SendReceiver]. The error wraps [snug.ErrConfig] if the Reducer below is none.
func (p *Pages) SendReceive(dst snug.View, from int, src snug.View, to int) error {
	if r, ok := p.below().(SendReceiver); ok {
		return p.pass("SendReceive", func() error { return r.SendReceive(dst, from, src, to) })
	}
	return p.missing("SendReceive", "SendReceiver")
}

func (p *Pages) below() Reducer {
	if p == nil {
		return nil
	}
	return p.reducer
}
