package remat

import (
	"context"
	"fmt"
	"sync"

	"github.com/snug-ml/snug/remat/internal/memtest"
	"pgregory.net/rapid"
)

// heap is an allocator that counts, for stages whose values are nothing but a
// place in the chain and a size. Misuse of a value is a problem that sticks.
type heap struct {
	memtest.Faults

	mu    sync.Mutex
	live  map[any]int64
	held  int64
	peak  int64
	tiers [tiers]int64 // held outside of device memory
}

type block struct {
	index    int // i of a_i or d_i
	gradient bool
	size     int64
	within   *set // the saved set that a_i is part of
	transfer
}

type set struct {
	stage int
	size  int64
	y     *block
	transfer
}

// transfer is what goes on with a value.
type transfer struct {
	storing bool // so that it cannot be freed
	loading bool // so that it cannot be used
}

func (t *transfer) state() *transfer { return t }

func newHeap() *heap { return &heap{live: map[any]int64{}} }

func (h *heap) alloc(v any, size int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.live[v] = size
	h.held += size
	h.peak = max(h.peak, h.held)
}

func (h *heap) free(v any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	size, ok := h.live[v]
	if v, can := v.(interface{ state() *transfer }); can && (v.state().storing || v.state().loading) {
		h.Problems = append(h.Problems, fmt.Sprintf("freed within a transfer: %+v", v))
	}
	if !ok {
		h.Problems = append(h.Problems, fmt.Sprintf("freed but not held: %+v", v))
	}
	delete(h.live, v)
	h.held -= size
}

// transient takes size bytes for an instant.
func (h *heap) transient(size int64) {
	v := new(byte)
	h.alloc(v, size)
	h.free(v)
}

func (h *heap) holds(v any) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, ok := h.live[v]
	return ok
}

// borrow checks that x is a_i and held.
func (h *heap) borrow(x *block, i int) {
	held := x.within == nil && h.holds(x) || x.within != nil && h.holds(x.within)
	h.Expect(x.index == i && !x.gradient && held, "a_%d wanted, %+v given, held: %v", i, *x, held)
	h.Expect(!x.loading && (x.within == nil || !x.within.loading), "a_%d is used before it is loaded", i)
}

// fake is a stage over a heap that takes exactly what the costs say.
type fake struct {
	h *heap
	c Costs
	i int
}

func (f fake) Forward(_ context.Context, x *block) (*block, error) {
	f.h.borrow(x, f.i)
	if err := f.h.Call(); err != nil {
		return nil, err
	}
	y := &block{index: f.i + 1, size: f.c.value(f.i + 1)}
	f.h.alloc(y, y.size)
	f.h.transient(f.c.Stages[f.i].ForwardExtra)
	return y, nil
}

func (f fake) ForwardSave(_ context.Context, x *block) (*block, *set, error) {
	f.h.borrow(x, f.i)
	if err := f.h.Call(); err != nil {
		return nil, nil, err
	}
	s := &set{stage: f.i, size: f.c.Stages[f.i].Saved}
	s.y = &block{index: f.i + 1, size: f.c.value(f.i + 1), within: s}
	f.h.alloc(s, s.size)
	f.h.transient(f.c.Stages[f.i].ForwardExtra)
	return s.y, s, nil
}

func (f fake) Backward(_ context.Context, x *block, s *set, dy *block) (*block, error) {
	f.h.borrow(x, f.i)
	f.h.Expect(s.stage == f.i && f.h.holds(s) && !s.loading, "s_%d wanted, %+v given", f.i, *s)
	f.h.Expect(dy.index == f.i+1 && dy.gradient, "d_%d wanted, %+v given", f.i+1, *dy)
	f.h.free(dy)
	if err := f.h.Call(); err != nil {
		return nil, err
	}
	dx := &block{index: f.i, size: f.c.value(f.i), gradient: true}
	f.h.alloc(dx, dx.size)
	f.h.transient(f.c.Stages[f.i].BackwardExtra)
	return dx, nil
}

// fakeChain returns a chain of fake stages on h.
func fakeChain(h *heap, c Costs) *Chain[*block, *set] {
	chain := &Chain[*block, *set]{
		Bytes:        func(b *block) int64 { h.MustCall(); return b.size },
		SavedBytes:   func(s *set) int64 { h.MustCall(); return s.size },
		Release:      func(b *block) { h.free(b); h.MustCall() },
		ReleaseSaved: func(s *set) { h.free(s); h.MustCall() },
		Costs:        &c,
	}
	fakeStores(chain, h, c)
	for i := range c.Stages {
		chain.Stages = append(chain.Stages, fake{h, c, i})
	}
	return chain
}

// fakeInput returns a_0.
func fakeInput(h *heap, c Costs) *block {
	x := &block{size: c.Input}
	h.alloc(x, x.size)
	return x
}

// fakeLoss returns a loss that makes d_n, in the place of reserved if that is
// not nil.
func fakeLoss(h *heap, c Costs, reserved *byte) func(y *block) (*block, error) {
	n := len(c.Stages)
	return func(y *block) (*block, error) {
		h.borrow(y, n)
		if err := h.Call(); err != nil {
			return nil, err
		}
		if reserved != nil {
			h.free(reserved)
		}
		dy := &block{index: n, size: c.value(n), gradient: true}
		h.alloc(dy, dy.size)
		return dy, nil
	}
}

// drawCosts draws a chain of different stages.
func drawCosts(t *rapid.T, most int) Costs {
	size := rapid.Int64Range(0, 20)
	duration := rapid.Float64Range(0, 5)
	c := Costs{Input: size.Draw(t, "input"), Stages: make([]Cost, rapid.IntRange(1, most).Draw(t, "stages"))}
	c.Host = Rates{rapid.Float64Range(0.1, 20).Draw(t, "write"), rapid.Float64Range(0.1, 20).Draw(t, "read")}
	c.Disk = Rates{c.Host.Write / 3, c.Host.Read / 2}
	for i := range c.Stages {
		out := size.Draw(t, "output")
		c.Stages[i] = Cost{
			Output:        out,
			Saved:         out + size.Draw(t, "saved beyond the output"),
			ForwardExtra:  size.Draw(t, "forward extra"),
			BackwardExtra: size.Draw(t, "backward extra"),
			ForwardTime:   duration.Draw(t, "forward time"),
			BackwardTime:  duration.Draw(t, "backward time"),
			Packed:        1 + out/4,
			PackTime:      0.25,
			UnpackTime:    0.125,
		}
	}
	return c
}

// drawPlan draws a plan for n stages: of a planner, or a valid one without
// much sense.
func drawPlan(t *rapid.T, c Costs) Plan {
	param := rapid.IntRange(1, len(c.Stages)+1).Draw(t, "param")
	switch rapid.IntRange(0, 6).Draw(t, "planner") {
	case 0:
		return must(KeepAll(c))
	case 1:
		return must(RecomputeAll(c))
	case 2:
		return must(Every(c, param))
	case 3:
		return must(Chen(c))
	case 4:
		return must(Revolve(c, param))
	}
	last := DropSaved
	if rapid.Bool().Draw(t, "copies") {
		last = DropCopy
	}
	return drawWalk(t, len(c.Stages), last)
}

// drawWalk draws a walk through possible operations of the kinds up to last, and
// completes it.
func drawWalk(t *rapid.T, n int, last Kind) Plan {
	p := Plan{Name: "walk", Stages: n}
	s := newState(n)
	apply := func(op Op) {
		if _, problem := s.apply(op); problem != "" {
			panic(problem)
		}
		p.Ops = append(p.Ops, op)
	}
	for range rapid.IntRange(0, 4*n).Draw(t, "steps") {
		if s.next < 0 {
			break
		}
		apply(rapid.SampledFrom(possible(s, last)).Draw(t, "operation"))
	}
	for s.next >= 0 {
		i := s.next
		from := i
		for !s.hasInput(from) {
			from--
		}
		for ; from < i; from++ {
			apply(Op{ForwardDiscard, from})
		}
		if s.results[i].form != saved {
			apply(Op{ForwardSave, i})
		}
		apply(Op{Backward, i})
	}
	return p
}

// possible returns the operations that can come next, of the kinds up to last.
func possible(s *state, last Kind) []Op {
	var ops []Op
	for i := range s.results {
		for k := ForwardDiscard; k <= last; k++ {
			trial := state{results: append([]held(nil), s.results...), next: s.next}
			if _, problem := trial.apply(Op{k, i}); problem == "" {
				ops = append(ops, Op{k, i})
			}
		}
	}
	return ops
}
