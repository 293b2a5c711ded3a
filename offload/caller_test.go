package offload

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/half"
)

// ending is how a call ended its goroutine.
type ending struct {
	err    error
	value  any  // of a panic
	goexit bool // runtime.Goexit, as by FailNow
}

// endingOf calls do in a goroutine of its own.
func endingOf(t *testing.T, do func() error) ending {
	t.Helper()
	result := make(chan ending, 1)
	go func() {
		end := ending{goexit: true}
		defer func() {
			if value := recover(); value != nil {
				end = ending{value: value}
			}
			result <- end
		}()
		err := do()
		end = ending{err: err}
	}()
	select {
	case end := <-result:
		return end
	case <-time.After(20 * time.Second):
		t.Fatal("it hangs")
		return ending{}
	}
}

// trap is a function of the caller that does not return from its call number at.
type trap struct {
	at, calls atomic.Int32
	goexit    bool
}

// step is a call of the function.
func (tr *trap) step() {
	if tr.calls.Add(1) != tr.at.Load() {
		return
	}
	if tr.goexit {
		runtime.Goexit()
	}
	panic("trap")
}

// arm lets the n-th call from now on be the one.
func (tr *trap) arm(n int32) { tr.at.Store(tr.calls.Load() + n) }

// sprung checks that a call ended as the trap did.
func (tr *trap) sprung(t *testing.T, name string, end ending) {
	t.Helper()
	if tr.goexit {
		require.Equal(t, ending{goexit: true}, end, name)
	} else {
		require.Equal(t, ending{value: "trap"}, end, name)
	}
	tr.at.Store(0)
}

// eachTrap runs a test with a panic and with runtime.Goexit.
func eachTrap(t *testing.T, test func(t *testing.T, tr *trap)) {
	for _, goexit := range []bool{false, true} {
		t.Run(map[bool]string{false: "panic", true: "goexit"}[goexit], func(t *testing.T) { test(t, &trap{goexit: goexit}) })
	}
}

// requireAtRest waits until a store has read what was asked for ahead, and checks that nothing of it is pinned, and that it commits.
func requireAtRest(t *testing.T, s *Store) {
	t.Helper()
	require.Eventually(t, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.busy == 0 && len(s.hints) == 0
	}, 10*time.Second, time.Millisecond)
	s.mu.Lock()
	pinned, bytes := s.pinned, s.pinBytes
	s.mu.Unlock()
	require.Zero(t, pinned)
	require.Zero(t, bytes)
	requireWithin(t, s)
	require.Equal(t, ending{}, endingOf(t, s.Commit))
}

// evict fills the memory of a store with so many pages of 64 bytes.
func evict(t *testing.T, s *Store, pages int) {
	for i := range pages {
		must(t, s, fmt.Sprint("page", i))
	}
	for i := range pages {
		require.NoError(t, s.Release(fmt.Sprint("page", i), false))
	}
}

// trapped is a Stepper and a Source whose methods go through traps.
type trapped struct {
	add, advance, step, load trap
	values                   []float32
}

func newTrapped(goexit bool) *trapped {
	c := &trapped{values: normals(40, 1)}
	for _, tr := range []*trap{&c.add, &c.advance, &c.step, &c.load} {
		tr.goexit = goexit
	}
	return c
}

func (c *trapped) Add(string, int) error { c.add.step(); return nil }
func (c *trapped) Advance(float32)       { c.advance.step() }

func (c *trapped) StepRange(_ string, _ int, p, _ snug.View, _ float32) error {
	p.Float32s()[0]++
	c.step.step()
	return nil
}

func (c *trapped) LoadAt(_ string, lo int, dst snug.View) error {
	c.load.step()
	half.Store(dst, 0, c.values[lo:lo+dst.Len()])
	return nil
}

// TestTrappedAdd: a parameter whose first weights or state were cut off is not known, and
// can be added again.
func TestTrappedAdd(t *testing.T) {
	eachTrap(t, func(t *testing.T, tr *trap) {
		s := memStore(t, Options{HostLimit: 2 * 64})
		c := newTrapped(tr.goexit)
		u, err := NewUpdater(s, c, UpdaterOptions{PageLen: 4})
		require.NoError(t, err)
		fill := func(int, []float32) error { tr.step(); return nil }
		add := func() error { return u.Add("w", 40, fill) }
		for n := range int32(10) {
			tr.arm(n + 1)
			tr.sprung(t, "fill", endingOf(t, add))
			require.Empty(t, s.Keys())
			requireAtRest(t, s)
		}
		c.add.arm(1)
		c.add.sprung(t, "Add", endingOf(t, add))
		require.Empty(t, s.Keys())
		requireAtRest(t, s)
		require.Equal(t, ending{}, endingOf(t, add))
		require.NoError(t, u.Step(1, 1))
		requireAtRest(t, s)
	})
}

// TestTrappedStep: after a step that the optimizer cut off the Updater refuses to go on,
// and the last commit is the way back.
func TestTrappedStep(t *testing.T) {
	for _, delayed := range []bool{false, true} {
		for at := range int32(6) {
			eachTrap(t, func(t *testing.T, tr *trap) {
				s := memStore(t, Options{HostLimit: 3 * 64})
				c := newTrapped(tr.goexit)
				u, err := NewUpdater(s, c, UpdaterOptions{PageLen: 4, Delayed: delayed})
				require.NoError(t, err)
				require.NoError(t, u.Add("v", 10, nil))
				require.NoError(t, u.Add("w", 10, nil))
				require.NoError(t, u.Bind("w", snug.ViewOf(make([]float32, 10))))
				require.NoError(t, u.Step(1, 1))
				require.NoError(t, u.Commit())
				which := &c.step
				if at == 0 {
					which = &c.advance
				}
				which.arm(max(at, 1))
				step := func() error { return u.Step(1, 1) }
				if delayed {
					require.Equal(t, ending{}, endingOf(t, step), "the update runs in the background")
					step = []func() error{u.Wait, u.Commit, step, func() error { return u.Bind("v", snug.View{}) }}[at%4]
				}
				which.sprung(t, "step", endingOf(t, step))
				for _, err := range []error{
					u.Step(1, 1), u.Wait(), u.Commit(), u.Accumulate("v", 0, snug.View{}, 1), u.Bind("v", snug.View{}), u.BindTensor("v", ""),
					u.Drop(), u.Add("x", 1, nil), second(u.Norm()), second(u.Weights("v")), second(u.Resume()),
				} {
					require.ErrorIs(t, err, snug.ErrConfig)
					require.ErrorContains(t, err, "did not return")
				}
				requireAtRest(t, s) // commits, though nobody should now
				require.Equal(t, 2, u.Steps())
				u, err = NewUpdater(s, newTrapped(false), UpdaterOptions{PageLen: 4, Delayed: delayed})
				require.NoError(t, err)
				require.ErrorIs(t, second(u.Resume()), snug.ErrCorrupt)
			})
		}
	}
}

// trapContext is a context whose Err goes through a trap.
type trapContext struct {
	context.Context
	tr *trap
}

func (c trapContext) Err() error { c.tr.step(); return c.Context.Err() }

// TestTrappedContext: a context that does not return leaves nothing pinned or locked.
func TestTrappedContext(t *testing.T) {
	eachTrap(t, func(t *testing.T, tr *trap) {
		s := memStore(t, Options{HostLimit: 2 * 64})
		x, err := Create[float32](s, "x", 40, 8)
		require.NoError(t, err)
		ctx := trapContext{context.Background(), tr}
		m := newMover(t, snug.CPU(), 64, 2)
		d := newTier(t, s, m, 0)
		layers := []Layer{{Weights: []Weight{{"x", 160}}}}
		at, err := Greedy(layers, []Tier{{Limit: 320}, {Rate: 1}})
		require.NoError(t, err)
		r, err := NewRunner(s, []*Mover{m}, layers, at, RunnerOptions{})
		require.NoError(t, err)
		for name, use := range map[string]func() error{
			"Pin":     func() error { return second(x.Pin(ctx, 0)) },
			"PinOn":   func() error { return second(x.PinOn(ctx, d, 0)) },
			"Forward": func() error { return r.Forward(ctx, func(int, []snug.View) error { return nil }) },
		} {
			t.Run(name, func(t *testing.T) {
				evict(t, s, 2)
				tr.arm(1)
				tr.sprung(t, name, endingOf(t, use))
				requireAtRest(t, s)
				require.Equal(t, ending{}, endingOf(t, func() error { return x.ReadAt(make([]float32, 40), 0) }))
			})
		}
		require.NoError(t, r.Close())
	})
}

// TestTrappedResume: an optimizer that has not taken up all steps does not go on.
func TestTrappedResume(t *testing.T) {
	eachTrap(t, func(t *testing.T, tr *trap) {
		s := memStore(t, Options{})
		u, err := NewUpdater(s, newTrapped(tr.goexit), UpdaterOptions{})
		require.NoError(t, err)
		for range 3 {
			require.NoError(t, u.Step(1, 1))
		}
		c := newTrapped(tr.goexit)
		u, err = NewUpdater(s, c, UpdaterOptions{})
		require.NoError(t, err)
		c.advance.arm(2)
		resume := func() error { return second(u.Resume()) }
		c.advance.sprung(t, "Advance", endingOf(t, resume))
		require.ErrorIs(t, resume(), snug.ErrConfig)
		require.ErrorIs(t, u.Step(1, 1), snug.ErrConfig)
		requireAtRest(t, s)
	})
}

// TestTrappedSource: whoever reads a page of an attached tensor, also in the background,
// ends as its source does; the page is read anew the next time.
func TestTrappedSource(t *testing.T) {
	dev, _ := openCopier(t)
	eachTrap(t, func(t *testing.T, tr *trap) {
		c := newTrapped(tr.goexit)
		s := memStore(t, Options{HostLimit: 3 * 64, PrefetchDepth: 2, Workers: 2})
		x, err := Attach[float32](s, "w", c, "w", 40, 8)
		require.NoError(t, err)
		m := newMover(t, dev, 16, 2)
		d := newTier(t, s, m, 0)
		to := onDevice(t, dev, make([]float32, 40))
		got := make([]float32, 40)
		evict := func() { evict(t, s, 3) }
		for name, use := range map[string]func() error{
			"ReadAt": func() error { return x.ReadAt(got, 0) },
			"Pin":    func() error { return second(x.Pin(context.Background(), 0)) },
			"LoadTo": func() error { return second(x.LoadTo(m, to, 0)) },
			"PinOn":  func() error { return second(x.PinOn(context.Background(), d, 0)) },
		} {
			t.Run(name, func(t *testing.T) {
				evict()
				c.load.arm(1)
				c.load.sprung(t, name, endingOf(t, use))
				requireAtRest(t, s)
			})
		}
		for _, n := range []int32{1, 2, 4} { // read ahead or not
			evict()
			c.load.arm(n)
			c.load.sprung(t, "LoadTo", endingOf(t, func() error { return second(x.LoadTo(m, to, 0)) }))
			requireAtRest(t, s)
		}
		require.NoError(t, x.ReadAt(got, 0))
		require.Equal(t, c.values, got)
		move, err := x.LoadTo(m, to, 0)
		require.NoError(t, err)
		require.NoError(t, move.Wait())
		require.Equal(t, c.values, read(t, to))
	})
}

// TestTrappedReadAhead: how a source ends in the background is how the call ends that pins
// the page; the background goes on.
func TestTrappedReadAhead(t *testing.T) {
	eachTrap(t, func(t *testing.T, tr *trap) {
		c := newTrapped(tr.goexit)
		s := memStore(t, Options{Workers: 2})
		x, err := Attach[float32](s, "w", c, "w", 40, 8)
		require.NoError(t, err)
		prefetch := func(page int) {
			calls := c.load.calls.Load()
			x.Prefetch(page, page+1)
			require.Eventually(t, func() bool { return c.load.calls.Load() > calls }, 10*time.Second, time.Millisecond)
		}
		got := make([]float32, 40)
		for page := range 4 { // more than there are goroutines that read ahead
			c.load.arm(1)
			prefetch(page)
			c.load.sprung(t, "Prefetch", endingOf(t, func() error { return x.ReadAt(got[:8], 8*page) }))
			requireAtRest(t, s)
		}
		prefetch(4)
		require.NoError(t, x.ReadAt(got, 0))
		require.Equal(t, c.values, got)
		require.EqualValues(t, 1, s.Stats().Prefetched)

		require.NoError(t, second(Attach[float32](s, "unused", c, "w", 40, 40)))
		x, err = Lookup[float32](s, "unused")
		require.NoError(t, err)
		c.load.arm(1)
		prefetch(0)
		requireAtRest(t, s)
		require.NoError(t, s.Delete("unused"))
		require.Empty(t, s.failures)
		require.Equal(t, ending{}, endingOf(t, s.Close))
	})
}

// TestTrappedAhead: when a DeviceTier copies a page ahead whose source does not return,
// the page that was asked for is not pinned either.
func TestTrappedAhead(t *testing.T) {
	eachTrap(t, func(t *testing.T, tr *trap) {
		const n, pageLen = 36, 8 // the last page is shorter, and gets memory of its own
		c := newTrapped(tr.goexit)
		s := memStore(t, Options{HostLimit: 5 * 64})
		x, err := Attach[float32](s, "w", c, "w", n, pageLen)
		require.NoError(t, err)
		dev, copier := openCopier(t)
		d := newTier(t, s, newMover(t, dev, 64, 2), 3*4*pageLen)
		asked := -1
		copier.onAlloc = func(size int) {
			if asked >= 0 && asked != 4 && size == 4*(n%pageLen) { // the store evicts the page just now
				evict(t, s, 5)
				c.load.arm(1)
			}
		}
		sprung := false
		for i := 0; i < 100 && !sprung; i++ {
			asked = i % x.Pages()
			end := endingOf(t, func() error {
				p, err := x.PinOn(context.Background(), d, asked)
				if err != nil {
					return err
				}
				return p.Unpin(false)
			})
			if sprung = c.load.at.Load() > 0; sprung {
				c.load.sprung(t, "PinOn", end)
			} else {
				require.Equal(t, ending{}, end)
			}
		}
		require.True(t, sprung)
		for _, f := range d.frames {
			require.Zero(t, f.pins)
		}
		requireAtRest(t, s)
		asked = -1
		got := make([]float32, 0, n)
		for i := range x.Pages() {
			p := pinOn(t, d, x, i)
			got = append(got, read(t, p.View)...)
			require.NoError(t, p.Unpin(false))
		}
		require.Equal(t, c.values[:n], got)
	})
}

// TestTrappedRunner: a pass that the caller's function or a source cut off leaves the
// frames to the next pass.
func TestTrappedRunner(t *testing.T) {
	eachDevice(t, func(t *testing.T, dev *snug.Device) {
		eachTrap(t, func(t *testing.T, tr *trap) {
			c := newTrapped(tr.goexit)
			s := memStore(t, Options{HostLimit: 4 * 64, NoPrefetch: true})
			var layers []Layer
			for l := range 5 {
				name := fmt.Sprint("w", l)
				require.NoError(t, second(Attach[float32](s, name, c, name, 40, 16)))
				layers = append(layers, Layer{Name: name, Weights: []Weight{{name, 4 * 40}}})
			}
			m := newMover(t, dev, 64, 3)
			at, err := Greedy(layers, []Tier{{Name: "device", Limit: 3 * 4 * 40}, {Name: "store", Rate: 1}})
			require.NoError(t, err)
			require.Contains(t, at.TierOf, 0, "one stays")
			require.Contains(t, at.TierOf, 1, "others are paged")
			var r *Runner
			make := func() (err error) {
				r, err = NewRunner(s, []*Mover{m}, layers, at, RunnerOptions{})
				return err
			}
			for n := range int32(3) {
				evict(t, s, 4)
				c.load.arm(n + 1)
				c.load.sprung(t, "NewRunner", endingOf(t, make))
				requireAtRest(t, s)
			}
			require.NoError(t, make())
			var order []int
			pass := func(do func(context.Context, func(int, []snug.View) error) error) func() error {
				return func() error {
					order = nil
					return do(context.Background(), func(layer int, w []snug.View) error {
						tr.step()
						order = append(order, layer)
						if !slices.Equal(c.values, read(t, w[0])) {
							return errors.New("other weights")
						}
						return nil
					})
				}
			}
			for n := range int32(5) {
				for _, p := range []func() error{pass(r.Forward), pass(r.Backward)} {
					tr.arm(n + 1)
					tr.sprung(t, "do", endingOf(t, p))
					require.Len(t, order, int(n))
					requireAtRest(t, s)
				}
			}
			for n := range int32(9) {
				c.load.arm(n + 1)
				end := endingOf(t, pass(r.Forward))
				if c.load.calls.Load() >= c.load.at.Load() {
					c.load.sprung(t, "Source", end)
				}
				requireAtRest(t, s)
			}
			require.NoError(t, pass(r.Forward)())
			require.Equal(t, []int{0, 1, 2, 3, 4}, order)
			require.NoError(t, dev.Sync())
			require.Equal(t, ending{}, endingOf(t, r.Close))
		})
	})
}
