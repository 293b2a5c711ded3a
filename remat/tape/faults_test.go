package tape

import (
	"context"
	"errors"
	"math"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/remat/internal/memtest"
	"github.com/stretchr/testify/require"
)

// byValue is a policy that does what the value's name says.
func byValue(op Op) (Decision, error) {
	for d := range decisions {
		if op.Value == d.String() {
			return d, nil
		}
	}
	return PreferSave, nil
}

// everything uses every method of a Tape, with all that can happen to a value. It
// stops at the first error.
func everything(s *tester) (err error) {
	var x, w, a, b, c, half, d, e, g, k *tested
	in := func(n int) (y *tested) { return attempt(&err, func() (*tested, error) { return s.input(n) }) }
	do := func(op Op, operands ...*tested) (y *tested) {
		return attempt(&err, func() (*tested, error) { return s.do(op, 4, operands...) })
	}
	try := func(f func(*tested) error, y *tested) {
		attempt(&err, func() (*tested, error) { return nil, f(y) })
	}
	x, w = in(4), in(2)
	a = do(Op{Name: "a", Cost: 1}, x)
	b = do(Op{Name: "b", Cost: 1, Value: "must recompute"}, a, w)
	c = do(Op{Name: "c", Cost: 1, Value: "offload"}, a, b)
	half = attempt(&err, func() (*tested, error) { return s.alias(c) })
	d = do(Op{Name: "d", Cost: 1}, half, b)
	e = do(Op{Name: "e", Cost: 1, Extra: 8}, d, c)
	g = attempt(&err, func() (*tested, error) { return s.overwrite(Op{Name: "g", Cost: 1}, e, x) })
	try(s.get, c)
	try(s.free, a)
	k = do(Op{Name: "k", Cost: 1}, g, half, b)
	try(s.free, d)
	try(s.get, g)
	attempt(&err, func() (*tested, error) {
		y, saved, err := s.save(Op{Name: "l", Cost: 1}, Op{Name: "l saved", Value: "must recompute"}, 2, x)
		if err == nil {
			err = errors.Join(s.get(saved), s.get(y), s.get(saved))
		}
		return y, err
	})
	try(s.banish, w)
	try(s.take, k)
	try(s.get, b)
	try(s.free, c)
	try(s.free, half)
	try(s.free, g)
	try(func(*tested) error { return s.tape.Close() }, nil)
	return err
}

// attempt does f unless something has failed already.
func attempt(err *error, f func() (*tested, error)) (y *tested) {
	if *err == nil {
		y, *err = f()
	}
	return y
}

func faultTester(t *testing.T, ctx context.Context) *tester {
	var s *tester
	s = newTester(t, ctx, func(o *Options[[]float32]) {
		o.Budget = 88
		o.Policy = func(op Op) (Decision, error) {
			if err := s.w.Call(); err != nil {
				return 0, err
			}
			return byValue(op)
		}
	})
	return s
}

// TestFaults makes every single call of the caller's functions fail in every
// way. What was in the Tape is still in it, and Close leaves nothing.
func TestFaults(t *testing.T) {
	s := faultTester(t, t.Context())
	require.NoError(t, everything(s))
	s.finish()
	stats := s.tape.Stats()
	require.NotZero(t, stats.Recomputed)
	require.NotZero(t, stats.Evicted)
	require.NotZero(t, stats.Stored)
	require.NotZero(t, stats.Loaded)
	require.LessOrEqual(t, stats.Peak, int64(88))

	modes := map[string]func(cancel func()) error{
		"error":  func(func()) error { return kerneltest.ErrFault },
		"panic":  func(func()) error { panic(kerneltest.ErrFault) },
		"exit":   memtest.Exit,
		"cancel": func(cancel func()) error { cancel(); return context.Canceled },
	}
	for mode, fail := range modes {
		reached := 0
		for target := 0; reached == target; target++ {
			if faultAt(t, target, fail) {
				reached++
			}
		}
		require.Greater(t, reached, 40, mode)
	}
}

// faultAt fails at one call of the caller's functions. It reports whether
// there was such a call.
func faultAt(t *testing.T, target int, fail func(cancel func()) error) (reached bool) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s := faultTester(t, ctx)
	s.w.Fail = func(i int) error {
		if i != target {
			return nil
		}
		reached = true
		return fail(cancel)
	}
	err := kerneltest.Recovered(func() error { return everything(s) })
	require.Equal(t, reached && (ctx.Err() == nil || !s.tape.closed), err != nil, "call %d: %v", target, err)
	if err != nil {
		require.True(t, errors.Is(err, kerneltest.ErrFault) || errors.Is(err, context.Canceled), "%v", err)
	}
	s.w.Fail, s.ctx = nil, t.Context()
	if !s.tape.closed {
		s.checkAccount()
	}
	s.finish()
	return reached
}

// TestReleasePanics: releases that panic one after the other stop none.
func TestReleasePanics(t *testing.T) {
	s := newTestTape(t, 0, SaveAll().Offloaded())
	x, err := s.input(4)
	require.NoError(t, err)
	for range 3 {
		_, err := s.do(Op{Name: "y"}, 4, x)
		require.NoError(t, err)
	}
	require.NoError(t, s.get(s.values[1]))
	require.NoError(t, s.get(s.values[2])) // the first is offloaded now
	require.Equal(t, 1, s.tape.Stats().Stored)
	s.w.Fail = func(int) error { return kerneltest.ErrFault }
	require.ErrorIs(t, kerneltest.Recovered(s.tape.Close), kerneltest.ErrFault)
	s.finish()
}

// fullOffloader can refuse to store.
type fullOffloader struct {
	*world
	full bool
}

func (o *fullOffloader) Store(ctx context.Context, key int, v []float32) error {
	if o.full {
		return kerneltest.ErrFault
	}
	return o.world.Store(ctx, key, v)
}

// TestStoreFails: what is to be offloaded stays as long as the Offloader fails,
// which every method that could offload it says, and nothing else is done.
func TestStoreFails(t *testing.T) {
	s := newTestTape(t, 12, byValue)
	offloader := &fullOffloader{world: s.w, full: true}
	s.tape.o.Offloader = offloader
	y := s.mustDo(Op{Name: "y", Value: "offload"}, 1)
	z := s.mustDo(Op{Name: "z"}, 1, y)
	stats := s.tape.Stats()
	_, do := s.do(Op{Name: "w"}, 1)
	_, overwrite := s.overwrite(Op{Name: "w"}, z)
	_, input := s.input(1)
	for _, err := range []error{do, overwrite, input, s.get(z), s.take(z), s.banish(z)} {
		require.EqualError(t, err, `tape: storing the result of operation "y": fault`)
		require.Equal(t, stats, s.tape.Stats())
	}

	// So does one that needs the room of a value that was not used yet.
	offloader.full = false
	require.NoError(t, s.free(y))
	require.NoError(t, s.free(z))
	y = s.mustDo(Op{Name: "y", Value: "offload"}, 1)
	offloader.full = true
	_, err := s.do(Op{Name: "large"}, 3)
	require.EqualError(t, err, `tape: storing the result of operation "y": fault`)
	require.Equal(t, "a", inMemory(y))
	offloader.full = false
	s.mustDo(Op{Name: "large"}, 3)
	require.Equal(t, "-", inMemory(y))
	s.finish()
}

// TestLoadTooLarge: what comes back larger than it was is held against its
// size, and released if that is too much.
func TestLoadTooLarge(t *testing.T) {
	s := newTestTape(t, 8, byValue)
	y := s.mustDo(Op{Name: "y", Value: "offload"}, 1)
	require.NoError(t, s.get(y))
	s.mustDo(Op{Name: "z"}, 1)
	require.Equal(t, "-", inMemory(y))
	for key := range s.w.copies {
		s.w.copies[key] = make([]float32, 3)
	}
	var tooSmall *BudgetError
	require.ErrorAs(t, s.get(y), &tooSmall)
	require.Equal(t, BudgetError{Operation: "y", Budget: 8, Minimum: 12}, *tooSmall)
	s.checkAccount()
	require.Zero(t, s.tape.Stats().Loaded)
	for key := range s.w.copies {
		s.w.copies[key] = y.want
	}
	s.finish()
}

// TestTakePanics: a value that is not handed over, because something else
// panics, is released.
func TestTakePanics(t *testing.T) {
	s := newTestTape(t, 0, byValue)
	y := s.mustDo(Op{Name: "y", Value: "offload"}, 1)
	for range 2 { // it is stored by the second call
		require.NoError(t, s.get(y))
	}
	require.Len(t, s.w.copies, 1)
	calls := s.w.Calls
	s.w.Fail = func(i int) error {
		if i == calls+2 { // after Load and Bytes
			return kerneltest.ErrFault
		}
		return nil
	}
	require.ErrorIs(t, kerneltest.Recovered(func() error { return s.take(y) }), kerneltest.ErrFault)
	require.True(t, y.freed)
	s.w.Fail = nil
	s.checkAccount()
	require.Empty(t, s.w.copies)
	s.finish()
}

func TestErrorsNameOperation(t *testing.T) {
	s := newTestTape(t, 0, byValue)
	x, err := s.input(1)
	require.NoError(t, err)
	y, err := s.do(Op{Name: "scores", Value: "must recompute"}, 2, x)
	require.NoError(t, err)
	z, err := s.do(Op{Name: "softmax", Value: "offload"}, 2, y)
	require.NoError(t, err)
	s.w.Fail = func(int) error { return kerneltest.ErrFault }
	require.EqualError(t, s.get(y), `tape: operation "scores": fault`)
	_, err = s.do(Op{Name: "sum"}, 1, z)
	require.EqualError(t, err, `tape: operation "sum": fault`)
	// The failed operation has used z.
	_, err = s.do(Op{Name: "sum"}, 1, z)
	require.EqualError(t, err, `tape: storing the result of operation "softmax": fault`)
	s.w.Fail = nil
	require.NoError(t, s.get(z))
	require.NoError(t, s.get(y)) // z is offloaded
	s.w.Fail = func(int) error { return kerneltest.ErrFault }
	require.EqualError(t, s.get(z), `tape: loading the result of operation "softmax": fault`)
	s.w.Fail = nil

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s.ctx = ctx
	require.EqualError(t, s.get(y), `tape: before operation "scores": context canceled`)
	require.EqualError(t, s.get(z), `tape: before loading the result of operation "softmax": context canceled`)
	require.ErrorIs(t, s.get(y), context.Canceled)
	s.ctx = t.Context()
	s.finish()
}

func TestNewTapeErrors(t *testing.T) {
	bytes := func(int) int64 { return 1 }
	for text, o := range map[string]Options[int]{
		"want the function Bytes":         {},
		"budget of -1 bytes":              {Bytes: bytes, Budget: -1},
		"there is no such heuristic":      {Bytes: bytes, Heuristic: heuristics},
		"MaxRecompute of -1, want 0 or m": {Bytes: bytes, MaxRecompute: -1},
		"MaxRecompute of NaN":             {Bytes: bytes, MaxRecompute: math.NaN()},
	} {
		t.Run(text, func(t *testing.T) {
			_, err := New(o)
			require.ErrorIs(t, err, snug.ErrConfig)
			require.ErrorContains(t, err, "tape: ")
			require.ErrorContains(t, err, text)
		})
	}
}
