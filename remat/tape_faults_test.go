package remat

import (
	"context"
	"errors"
	"math"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/stretchr/testify/require"
)

// byValue is a policy that does what the value's name says.
func byValue(op OpInfo) (Decision, error) {
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
	do := func(op OpInfo, operands ...*tested) (y *tested) {
		return attempt(&err, func() (*tested, error) { return s.do(op, 4, operands...) })
	}
	try := func(f func(*tested) error, y *tested) {
		attempt(&err, func() (*tested, error) { return nil, f(y) })
	}
	x, w = in(4), in(2)
	a = do(OpInfo{Name: "a", Cost: 1}, x)
	b = do(OpInfo{Name: "b", Cost: 1, Value: "must recompute"}, a, w)
	c = do(OpInfo{Name: "c", Cost: 1, Value: "offload"}, a, b)
	half = attempt(&err, func() (*tested, error) { return s.alias(c) })
	d = do(OpInfo{Name: "d", Cost: 1}, half, b)
	e = do(OpInfo{Name: "e", Cost: 1, Extra: 8}, d, c)
	g = attempt(&err, func() (*tested, error) { return s.overwrite(OpInfo{Name: "g", Cost: 1}, e, x) })
	try(s.get, c)
	try(s.free, a)
	k = do(OpInfo{Name: "k", Cost: 1}, g, half, b)
	try(s.free, d)
	try(s.get, g)
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
	s = newTester(t, ctx, func(o *TapeOptions[[]float32]) {
		o.Budget = 88
		o.Policy = func(op OpInfo) (Decision, error) {
			if err := s.w.call(); err != nil {
				return 0, err
			}
			return byValue(op)
		}
	})
	return s
}

// TestTapeFaults makes every single call of the caller's functions fail in every
// way. What was in the Tape is still in it, and Close leaves nothing.
func TestTapeFaults(t *testing.T) {
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
		"error":  func(func()) error { return errFault },
		"panic":  func(func()) error { panic(errFault) },
		"exit":   exit,
		"cancel": func(cancel func()) error { cancel(); return context.Canceled },
	}
	for mode, fail := range modes {
		reached := 0
		for target := 0; reached == target; target++ {
			if tapeFaultAt(t, target, fail) {
				reached++
			}
		}
		require.Greater(t, reached, 40, mode)
	}
}

// tapeFaultAt fails at one call of the caller's functions. It reports whether
// there was such a call.
func tapeFaultAt(t *testing.T, target int, fail func(cancel func()) error) (reached bool) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s := faultTester(t, ctx)
	s.w.fault = func(i int) error {
		if i != target {
			return nil
		}
		reached = true
		return fail(cancel)
	}
	err := recovered(func() error { return everything(s) })
	require.Equal(t, reached && (ctx.Err() == nil || !s.tape.closed), err != nil, "call %d: %v", target, err)
	if err != nil {
		require.True(t, errors.Is(err, errFault) || errors.Is(err, context.Canceled), "%v", err)
	}
	s.w.fault, s.ctx = nil, t.Context()
	if !s.tape.closed {
		s.checkAccount()
	}
	s.finish()
	return reached
}

// TestTapeReleasePanics: releases that panic one after the other stop none.
func TestTapeReleasePanics(t *testing.T) {
	s := newTestTape(t, 0, SaveAll().Offloaded())
	x, err := s.input(4)
	require.NoError(t, err)
	for range 3 {
		_, err := s.do(OpInfo{Name: "y"}, 4, x)
		require.NoError(t, err)
	}
	require.NoError(t, s.get(s.values[1]))
	require.NoError(t, s.get(s.values[2])) // the first is offloaded now
	require.Equal(t, 1, s.tape.Stats().Stored)
	s.w.fault = func(int) error { return errFault }
	require.ErrorIs(t, recovered(s.tape.Close), errFault)
	s.finish()
}

// fullOffloader can refuse to store.
type fullOffloader struct {
	*tapeWorld
	full bool
}

func (o *fullOffloader) Store(ctx context.Context, key int, v []float32) error {
	if o.full {
		return errFault
	}
	return o.tapeWorld.Store(ctx, key, v)
}

// TestTapeStoreFails: what is to be offloaded stays as long as the Offloader fails,
// which every method that could offload it says, and nothing else is done.
func TestTapeStoreFails(t *testing.T) {
	s := newTestTape(t, 12, byValue)
	offloader := &fullOffloader{tapeWorld: s.w, full: true}
	s.tape.o.Offloader = offloader
	y := s.mustDo(OpInfo{Name: "y", Value: "offload"}, 1)
	z := s.mustDo(OpInfo{Name: "z"}, 1, y)
	stats := s.tape.Stats()
	_, do := s.do(OpInfo{Name: "w"}, 1)
	_, overwrite := s.overwrite(OpInfo{Name: "w"}, z)
	_, input := s.input(1)
	for _, err := range []error{do, overwrite, input, s.get(z), s.take(z), s.banish(z)} {
		require.EqualError(t, err, `remat: storing the result of operation "y": fault`)
		require.Equal(t, stats, s.tape.Stats())
	}

	// So does one that needs the room of a value that was not used yet.
	offloader.full = false
	require.NoError(t, s.free(y))
	require.NoError(t, s.free(z))
	y = s.mustDo(OpInfo{Name: "y", Value: "offload"}, 1)
	offloader.full = true
	_, err := s.do(OpInfo{Name: "large"}, 3)
	require.EqualError(t, err, `remat: storing the result of operation "y": fault`)
	require.Equal(t, "a", inMemory(y))
	offloader.full = false
	s.mustDo(OpInfo{Name: "large"}, 3)
	require.Equal(t, "-", inMemory(y))
	s.finish()
}

// TestTapeLoadTooLarge: what comes back larger than it was is held against its
// size, and released if that is too much.
func TestTapeLoadTooLarge(t *testing.T) {
	s := newTestTape(t, 8, byValue)
	y := s.mustDo(OpInfo{Name: "y", Value: "offload"}, 1)
	require.NoError(t, s.get(y))
	s.mustDo(OpInfo{Name: "z"}, 1)
	require.Equal(t, "-", inMemory(y))
	for key := range s.w.copies {
		s.w.copies[key] = make([]float32, 3)
	}
	var room *RoomError
	require.ErrorAs(t, s.get(y), &room)
	require.Equal(t, RoomError{Operation: "y", Budget: 8, Smallest: 12}, *room)
	s.checkAccount()
	require.Zero(t, s.tape.Stats().Loaded)
	for key := range s.w.copies {
		s.w.copies[key] = y.want
	}
	s.finish()
}

// TestTapeTakePanics: a value that is not handed over, because something else
// panics, is released.
func TestTapeTakePanics(t *testing.T) {
	s := newTestTape(t, 0, byValue)
	y := s.mustDo(OpInfo{Name: "y", Value: "offload"}, 1)
	for range 2 { // it is stored by the second call
		require.NoError(t, s.get(y))
	}
	require.Len(t, s.w.copies, 1)
	calls := s.w.calls
	s.w.fault = func(i int) error {
		if i == calls+2 { // after Load and Bytes
			return errFault
		}
		return nil
	}
	require.ErrorIs(t, recovered(func() error { return s.take(y) }), errFault)
	require.True(t, y.freed)
	s.w.fault = nil
	s.checkAccount()
	require.Empty(t, s.w.copies)
	s.finish()
}

func TestTapeErrorsNameOperation(t *testing.T) {
	s := newTestTape(t, 0, byValue)
	x, err := s.input(1)
	require.NoError(t, err)
	y, err := s.do(OpInfo{Name: "scores", Value: "must recompute"}, 2, x)
	require.NoError(t, err)
	z, err := s.do(OpInfo{Name: "softmax", Value: "offload"}, 2, y)
	require.NoError(t, err)
	s.w.fault = func(int) error { return errFault }
	require.EqualError(t, s.get(y), `remat: operation "scores": fault`)
	_, err = s.do(OpInfo{Name: "sum"}, 1, z)
	require.EqualError(t, err, `remat: operation "sum": fault`)
	// The failed operation has used z.
	_, err = s.do(OpInfo{Name: "sum"}, 1, z)
	require.EqualError(t, err, `remat: storing the result of operation "softmax": fault`)
	s.w.fault = nil
	require.NoError(t, s.get(z))
	require.NoError(t, s.get(y)) // z is offloaded
	s.w.fault = func(int) error { return errFault }
	require.EqualError(t, s.get(z), `remat: loading the result of operation "softmax": fault`)
	s.w.fault = nil

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s.ctx = ctx
	require.EqualError(t, s.get(y), `remat: before operation "scores": context canceled`)
	require.EqualError(t, s.get(z), `remat: before loading the result of operation "softmax": context canceled`)
	require.ErrorIs(t, s.get(y), context.Canceled)
	s.ctx = t.Context()
	s.finish()
}

func TestNewTapeErrors(t *testing.T) {
	bytes := func(int) int64 { return 1 }
	for text, o := range map[string]TapeOptions[int]{
		"want the function Bytes":         {},
		"budget of -1 bytes":              {Bytes: bytes, Budget: -1},
		"there is no such heuristic":      {Bytes: bytes, Heuristic: heuristics},
		"MaxRecompute of -1, want 0 or m": {Bytes: bytes, MaxRecompute: -1},
		"MaxRecompute of NaN":             {Bytes: bytes, MaxRecompute: math.NaN()},
	} {
		_, err := NewTape(o)
		require.ErrorIs(t, err, snug.ErrConfig)
		require.ErrorContains(t, err, "remat: tape: ")
		require.ErrorContains(t, err, text)
	}
}
