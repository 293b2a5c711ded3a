package tape

import (
	"context"
	"errors"
	"math"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

// mustDo is do for a test in which nothing fails.
func (s *tester) mustDo(op Op, n int, operands ...*tested) *tested {
	y, err := s.do(op, n, operands...)
	require.NoError(s.t, err)
	return y
}

func (s *tester) mustInput(n int) *tested {
	x, err := s.input(n)
	require.NoError(s.t, err)
	return x
}

func (s *tester) mustAlias(y *tested) *tested {
	a, err := s.alias(y)
	require.NoError(s.t, err)
	return a
}

// inMemory tells which of values are in memory, in their order: "ab-d".
func inMemory(values ...*tested) string {
	in := []byte("abcdefgh"[:len(values)])
	for i, y := range values {
		if !y.s.held {
			in[i] = '-'
		}
	}
	return string(in)
}

func TestRecomputesInCascade(t *testing.T) {
	s := newTestTape(t, 4*5, nil)
	op := Op{Name: "op", Cost: 1}
	x := s.mustInput(1)
	a := s.mustDo(op, 1, x)
	b := s.mustDo(op, 1, a)
	c := s.mustDo(op, 2, b)
	require.Equal(t, "abc", inMemory(a, b, c))
	d := s.mustDo(op, 2, c)
	require.Equal(t, "--cd", inMemory(a, b, c, d), "both had to go for two elements")
	require.NoError(t, s.get(b))
	require.Equal(t, "abc-", inMemory(a, b, c, d), "c would have brought a and b with it")
	s.checkAccount()
	require.Equal(t, Stats{Held: 20, Peak: 20, Values: 5, Computed: 4, Work: 4, Recomputed: 2, ExtraWork: 2, Evicted: 3}, s.tape.Stats())
	s.finish()
}

// TestRoom: what does not fit fails before anything is evicted, and fits
// under the budget that the error names.
func TestMinimum(t *testing.T) {
	pass := func(budget int64) error {
		s := newTestTape(t, budget, nil)
		defer s.finish()
		x := s.mustInput(2)
		y := s.mustDo(Op{Name: "y"}, 1, x)
		z, err := s.do(Op{Name: "z", Extra: 12}, 5, x, x)
		if err != nil {
			require.Equal(t, "a", inMemory(y))
			require.Nil(t, z)
		}
		return err
	}
	var tooSmall *BudgetError
	require.ErrorAs(t, pass(39), &tooSmall)
	require.Equal(t, BudgetError{Operation: "z", Budget: 39, Minimum: 8 + 20 + 12}, *tooSmall, "y can go, x is counted once")
	require.NoError(t, pass(tooSmall.Minimum))

	s := newTestTape(t, 11, nil)
	_, err := s.input(3)
	require.ErrorAs(t, err, &tooSmall)
	require.Equal(t, BudgetError{Operation: "input 0", Budget: 11, Minimum: 12}, *tooSmall)

	// Between Get and done a value stays.
	x := s.mustInput(1)
	y := s.mustDo(Op{Name: "y"}, 1, x)
	_, done, err := s.tape.Get(s.ctx, y.Value)
	require.NoError(t, err)
	_, err = s.do(Op{Name: "z"}, 1, x)
	require.ErrorAs(t, err, &tooSmall)
	require.Equal(t, int64(12), tooSmall.Minimum)
	done()
	s.mustDo(Op{Name: "z"}, 1, x)
	require.Equal(t, "-", inMemory(y))
	s.finish()
}

// TestUndeclared: an operation without a size goes beyond the budget once,
// and is held against its measured size from then on.
func TestUndeclared(t *testing.T) {
	s := newTestTape(t, 12, nil)
	unknown := Op{Name: "y", Bytes: math.MinInt64, Cost: 1}
	x := s.mustInput(1)
	y := s.mustDo(unknown, 1, x)
	z := s.mustDo(unknown, 1, x)
	require.Equal(t, int64(12), s.tape.Stats().Peak)
	s.mustDo(unknown, 2, x)
	require.Equal(t, "--", inMemory(y, z))
	require.Equal(t, int64(20), s.tape.Stats().Peak)
	require.NoError(t, s.get(y))
	require.NoError(t, s.get(z))
	require.Equal(t, int64(20), s.tape.Stats().Peak)
	unknown.Extra = 4
	_, err := s.do(unknown, 2, x)
	var tooSmall *BudgetError
	require.ErrorAs(t, err, &tooSmall)
	require.Equal(t, int64(4+8+4), tooSmall.Minimum)
	s.finish()
}

func TestPoliciesDecide(t *testing.T) {
	s := newTestTape(t, 4*5, byValue)
	x := s.mustInput(1)
	keep := s.mustDo(Op{Name: "keep", Value: "must save", Cost: 1}, 1, x)
	drop := s.mustDo(Op{Name: "drop", Value: "must recompute", Cost: 1}, 1, keep)
	move := s.mustDo(Op{Name: "move", Value: "offload", Cost: 1}, 1, drop)
	require.Equal(t, "a-c", inMemory(keep, drop, move), "drop was used")
	require.Equal(t, 1, s.tape.Stats().Evicted)
	y := s.mustDo(Op{Name: "y", Cost: 1}, 1, move)
	require.Equal(t, "a-cd", inMemory(keep, drop, move, y), "move leaves with the next call")
	require.NoError(t, s.get(y))
	require.Equal(t, "a--d", inMemory(keep, drop, move, y))
	require.NoError(t, s.get(drop))
	require.NoError(t, s.get(move))
	require.Equal(t, "a--d", inMemory(keep, drop, move, y))
	stats := s.tape.Stats()
	require.Equal(t, []int{1, 1, 1, 2}, []int{stats.Stored, stats.Loaded, stats.Recomputed, stats.Evicted})

	// 12 bytes are left beside x and keep, which not even a cheap value gets.
	require.NoError(t, s.free(y))
	_, err := s.do(Op{Name: "large", Cost: 1e9}, 4, x)
	var tooSmall *BudgetError
	require.ErrorAs(t, err, &tooSmall)
	require.Equal(t, int64(24), tooSmall.Minimum)

	// Of two that are alike, the preferred one goes first, unless it costs more.
	saved := s.mustDo(Op{Name: "saved", Cost: 1}, 1)
	early := s.mustDo(Op{Name: "early", Cost: 7, Value: "prefer recompute"}, 1)
	next := s.mustDo(Op{Name: "next", Cost: 1e9}, 2)
	require.Equal(t, "a-", inMemory(saved, early), "7/16 against 1/2 for twice the staleness")
	require.NoError(t, s.free(next))
	late := s.mustDo(Op{Name: "late", Cost: 17, Value: "prefer recompute"}, 1)
	require.NoError(t, s.get(saved))
	s.mustDo(Op{Name: "next", Cost: 1e9}, 2)
	require.Equal(t, "-b", inMemory(saved, late), "17/16 against 1")
	s.finish()

	// What is stored and what is evicted before its first use are moved, too.
	s = newTestTape(t, 8, byValue)
	move = s.mustDo(Op{Name: "move", Value: "offload"}, 1)
	s.mustDo(Op{Name: "large"}, 2)
	require.Equal(t, 1, s.tape.Stats().Stored)
	require.NoError(t, s.get(move))
	require.Equal(t, []int{0, 1}, []int{s.tape.Stats().Recomputed, s.tape.Stats().Loaded})
	require.NoError(t, s.free(move))
	require.Empty(t, s.w.copies)
	s.finish()
}

func TestPolicyErrorsOfOperations(t *testing.T) {
	s := newTester(t, t.Context(), func(o *Options[[]float32]) {
		o.Policy = SaveNames("a").Offloaded().Or(SaveNames("b").MustSave().And(SaveAllBut("b").MustRecompute()))
		o.Offloader = nil
	})
	_, err := s.do(Op{Name: "y", Value: "a"}, 1)
	require.ErrorIs(t, err, snug.ErrConfig)
	require.EqualError(t, err, `tape: operation "y": the policy offloads it: want an Offloader: snug: invalid configuration`)
	_, err = s.do(Op{Name: "y", Value: "b"}, 1)
	require.ErrorIs(t, err, snug.ErrConfig)
	require.ErrorContains(t, err, "one part decides must save, another must recompute")
	require.Zero(t, s.tape.Stats())
}

// TestGet: a value stays between Get and done, whatever happens.
func TestGet(t *testing.T) {
	s := newTestTape(t, 0, byValue)
	x := s.mustInput(1)
	y := s.mustDo(Op{Name: "y"}, 1, x)
	z := s.mustDo(Op{Name: "z"}, 1, y)
	v, done, err := s.tape.Get(s.ctx, y.Value)
	require.NoError(t, err)
	require.NoError(t, s.free(y))
	require.Equal(t, "a", inMemory(y))
	require.Equal(t, y.want, v)
	done()
	require.Equal(t, "-", inMemory(y), "freed")
	s.tape.drop(z.s)
	require.NoError(t, s.get(z))
	require.Equal(t, "a", inMemory(y), "in memory for others, until there is no room")

	last := s.mustDo(Op{Name: "last"}, 1, z)
	_, done, err = s.tape.Get(s.ctx, last.Value)
	require.NoError(t, err)
	require.NoError(t, s.free(last))
	require.Equal(t, 4, s.tape.Stats().Values)
	done()
	require.Equal(t, 3, s.tape.Stats().Values)

	drop := s.mustDo(Op{Name: "drop", Value: "must recompute"}, 1)
	_, done, err = s.tape.Get(s.ctx, drop.Value)
	require.NoError(t, err)
	s.finish()
	done() // of a Tape that is closed
}

// TestOffloadOnlyUsed: what is freed is not worth storing.
func TestOffloadOnlyUsed(t *testing.T) {
	s := newTestTape(t, 12, byValue)
	move := Op{Name: "move", Value: "offload", Cost: 1}
	y := s.mustDo(move, 1)
	z := s.mustDo(Op{Name: "z", Cost: 1e6}, 1, y)
	require.NoError(t, s.free(y)) // it was to be stored now
	w := s.mustDo(Op{Name: "w", Cost: 1}, 1, z)
	s.tape.drop(z.s)
	require.NoError(t, s.get(z)) // through y, which is not stored after this use either
	require.NoError(t, s.get(w))
	s.mustDo(Op{Name: "v", Cost: 1}, 2) // nor when it makes room
	require.Equal(t, "-b-", inMemory(y, z, w))
	require.Zero(t, s.tape.Stats().Stored)
	s.finish()
}

// TestLadder: what must be recomputed is there until all that is recomputed
// with it is, so that values that meet again are computed once each.
func TestLadder(t *testing.T) {
	const levels = 12
	for _, budget := range []int64{0, 4 * 6} {
		s := newTestTape(t, budget, SaveNone().MustRecompute())
		op := Op{Name: "op", Cost: 1}
		x := s.mustInput(1)
		for range levels {
			x = s.mustDo(op, 1, s.mustDo(op, 1, x), s.mustDo(op, 1, x))
		}
		require.NoError(t, s.get(x))
		before := s.tape.Stats()
		require.NoError(t, s.get(x))
		stats := s.tape.Stats()
		require.Equal(t, int64(4), stats.Held, "the input")
		if budget == 0 {
			require.Equal(t, 3*levels, stats.Recomputed-before.Recomputed)
			require.Equal(t, 3*levels, stats.Evicted-before.Evicted)
		} else {
			require.Equal(t, budget, stats.Peak)
		}
		s.finish()
	}
}

// TestBanishMakesRoom: recomputing one consumer stores what is computed from
// another, which is forgotten then.
func TestBanishFreesMemory(t *testing.T) {
	s := newTestTape(t, 16, byValue)
	x := s.mustInput(1)
	one := s.mustDo(Op{Name: "one"}, 2, x)
	other := s.mustDo(Op{Name: "other"}, 1, x)
	s.tape.drop(one.s)
	move := s.mustDo(Op{Name: "move", Value: "offload"}, 1, other)
	require.NoError(t, s.free(other))
	keep := s.mustDo(Op{Name: "keep", Value: "must save"}, 1)
	require.Equal(t, 5, s.tape.Stats().Values)
	require.NoError(t, s.banish(x))
	require.Equal(t, "a--d", inMemory(one, other, move, keep))
	require.Equal(t, 3, s.tape.Stats().Values)
	require.Equal(t, 1, s.tape.Stats().Recomputed)
	s.finish()
}

// TestForgets: the graph shrinks to what can still be needed.
func TestForgets(t *testing.T) {
	s := newTestTape(t, 0, byValue)
	x := s.mustInput(1)
	for range 100 {
		s.mustDo(Op{Name: "y"}, 1, x)
		require.NoError(t, s.free(s.values[len(s.values)-1]))
		require.LessOrEqual(t, len(x.s.children), 9)
	}
	y := s.mustDo(Op{Name: "y"}, 1, x)
	z := s.mustDo(Op{Name: "z"}, 1, y)
	move := s.mustDo(Op{Name: "move", Value: "offload"}, 1, z)
	require.NoError(t, s.free(x))
	require.NoError(t, s.free(y))
	require.NoError(t, s.free(z))
	require.Equal(t, 4, s.tape.Stats().Values)
	require.Equal(t, int64(4+4), s.tape.Stats().Held, "the input and move")
	require.NoError(t, s.get(move))
	_, err := s.input(1)
	require.NoError(t, err)
	require.Equal(t, 2, s.tape.Stats().Values, "what is stored needs nothing")
	require.Equal(t, int64(4), s.tape.Stats().Held)
	s.finish()
}

func TestMisuse(t *testing.T) {
	s, other := newTestTape(t, 0, nil), newTestTape(t, 0, nil)
	y, foreign := s.mustDo(Op{Name: "y"}, 1), other.mustDo(Op{Name: "z"}, 1)
	freed := s.mustDo(Op{Name: "freed"}, 1)
	require.NoError(t, s.free(freed))
	stats := s.tape.Stats()
	run := func(context.Context, [][]float32) ([]float32, error) { return nil, nil }
	over := func(context.Context, []float32, [][]float32) error { return nil }
	do := func(op Op, operands ...*Value[[]float32]) error {
		_, err := s.tape.Do(s.ctx, op, run, operands...)
		return err
	}
	refused := func(text string, errs ...error) {
		for _, err := range errs {
			require.ErrorIs(t, err, snug.ErrConfig)
			require.ErrorContains(t, err, text)
		}
		require.Equal(t, stats, s.tape.Stats())
	}
	for text, v := range map[string]*tested{"a value is nil": {want: []float32{1}}, `value "z" is of another Tape`: foreign, `value "freed" is freed`: freed} {
		t.Run(text, func(t *testing.T) {
			_, alias := s.alias(v)
			_, overwritten := s.overwrite(Op{}, v)
			_, operand := s.overwrite(Op{}, y, v)
			refused(text, alias, overwritten, operand, do(Op{}, y.Value, v.Value), s.free(v), s.get(v), s.take(v), s.banish(v))
		})
	}
	refused("a result of -1 bytes", do(Op{Bytes: -1}))
	refused("and -1 extra", do(Op{Extra: -1}))
	refused("a total that fits in 63 bits", do(Op{Bytes: math.MaxInt64, Extra: 1}))
	refused("cost NaN", do(Op{Cost: math.NaN()}))
	refused("cost +Inf", do(Op{Cost: math.Inf(1)}))
	_, nilRun := s.tape.Do(s.ctx, Op{}, nil)
	_, nilOver := s.tape.Overwrite(s.ctx, Op{}, nil, y.Value)
	_, nilView := s.tape.Alias("", y.Value, nil)
	refused("the function is nil", nilRun, nilOver, nilView)
	var none context.Context
	_, err := s.tape.Do(none, Op{}, run)
	refused("the context is nil", err)

	// Every method refuses to run within another.
	_, err = s.tape.Do(s.ctx, Op{}, func(ctx context.Context, _ [][]float32) ([]float32, error) {
		_, input := s.tape.Input(ctx, "", nil)
		_, overwritten := s.tape.Overwrite(ctx, Op{}, over, y.Value)
		_, alias := s.alias(y)
		refused("another method of the Tape is running", do(Op{}), input, overwritten, alias, s.get(y), s.take(y), s.banish(y), s.free(y), s.tape.Close())
		return nil, kerneltest.ErrFault
	})
	require.ErrorIs(t, err, kerneltest.ErrFault)
	_, done, err := s.tape.Get(s.ctx, y.Value)
	require.NoError(t, err)
	s.finish()
	done()
	stats.Held, stats.Values = 0, 0
	_, err = s.input(1)
	refused("the Tape is closed", err, do(Op{}), s.get(y), s.free(y))
	other.finish()
}

// TestNothingToEvict: what has no bytes makes no room.
func TestNothingToEvict(t *testing.T) {
	s := newTester(t, t.Context(), func(o *Options[[]float32]) {
		o.Budget, o.Heuristic = 8, LRU
		o.Bytes = func(v []float32) int64 { return int64(4 * (len(v) - 1)) }
	})
	small := s.mustDo(Op{Name: "small", Bytes: math.MinInt64}, 1)
	y := s.mustDo(Op{Name: "y", Bytes: -4}, 3)
	s.mustDo(Op{Name: "z", Bytes: -4}, 2)
	require.Equal(t, "a-", inMemory(small, y))
	require.Equal(t, 1, s.tape.Stats().Evicted)
	require.NoError(t, s.tape.Close())
	require.Empty(t, s.w.p.Live)
}

func TestSizes(t *testing.T) {
	size := int64(-1)
	released := 0
	tape, err := New(Options[int]{Bytes: func(int) int64 { return size }, Release: func(int) { released++ }})
	require.NoError(t, err)
	run := func(context.Context, []int) (int, error) { return 0, nil }
	for i, bytes := range []int64{-1, math.MaxInt64} {
		size = bytes
		_, err = tape.Do(t.Context(), Op{Name: "y"}, run)
		require.ErrorIs(t, err, snug.ErrConfig)
		require.ErrorContains(t, err, `value of "y" has`)
		require.Equal(t, i+1, released)
		size = 1
		_, err = tape.Input(t.Context(), "x", 0)
		require.NoError(t, err)
	}
	size = -1
	_, err = tape.Input(t.Context(), "x", 0)
	require.ErrorIs(t, err, snug.ErrConfig)
	require.ErrorContains(t, err, `value of "x" has -1 bytes`)
	_, err = tape.Do(t.Context(), Op{Name: "y", Bytes: math.MaxInt64}, run)
	var tooSmall *BudgetError
	require.True(t, errors.As(err, &tooSmall))
	require.Equal(t, int64(math.MaxInt64), tooSmall.Minimum)
}
