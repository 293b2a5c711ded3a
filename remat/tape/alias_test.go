package tape

import (
	"math"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/stretchr/testify/require"
)

// TestAlias: an alias takes nothing, goes with its memory and brings it back.
func TestAlias(t *testing.T) {
	s := newTestTape(t, 4*5, nil)
	op := Op{Name: "op", Cost: 1}
	y := s.mustDo(op, 4)
	half := s.mustAlias(y)
	quarter := s.mustAlias(half)
	require.Equal(t, y.want[3:], quarter.want)
	require.Equal(t, int64(16), s.tape.Stats().Held)
	require.NoError(t, s.free(y))
	require.Equal(t, "a", inMemory(y), "in use by its aliases")
	z := s.mustDo(op, 2)
	require.Equal(t, "-", inMemory(y))
	require.NoError(t, s.get(quarter))
	require.Equal(t, "a-", inMemory(y, z))
	require.NoError(t, s.get(z))
	sum := s.mustDo(op, 1, half, quarter)
	require.NoError(t, s.free(half))
	require.NoError(t, s.free(quarter))
	require.Equal(t, "-", inMemory(y))
	require.NoError(t, s.get(sum))
	s.finish()
}

// TestOverwrite: a value that was overwritten is recomputed for those that
// need it, and overwritten again.
func TestOverwrite(t *testing.T) {
	s := newTestTape(t, 4*6, nil)
	op := Op{Name: "op", Cost: 1}
	x := s.mustInput(2)
	y := s.mustDo(op, 2, x)
	reader := s.mustDo(op, 2, y)
	half := s.mustAlias(y)
	require.NoError(t, s.free(y))
	z, err := s.overwrite(op, half, x, reader)
	require.NoError(t, err)
	require.Len(t, z.want, 1)
	require.True(t, half.freed)
	require.Equal(t, "-bc", inMemory(y, reader, z))
	require.Equal(t, int64(24), s.tape.Stats().Held)
	for range 2 {
		large := s.mustDo(op, 4)
		require.Equal(t, "--", inMemory(reader, z))
		require.NoError(t, s.free(large))
		require.NoError(t, s.get(reader))
		require.NoError(t, s.get(z))
	}
	s.finish()
}

func TestOverwriteErrors(t *testing.T) {
	s := newTestTape(t, 0, byValue)
	op := Op{Name: "op"}
	x := s.mustInput(2)
	y := s.mustDo(op, 2, x)
	half := s.mustAlias(y)
	keep := s.mustDo(Op{Name: "keep", Value: "must save"}, 1)
	pinned := s.mustDo(op, 1, s.mustInput(1))
	require.NoError(t, s.banish(s.values[4]))
	refused := func(text string, y *tested, operands ...*tested) {
		stats := s.tape.Stats()
		_, err := s.overwrite(op, y, operands...)
		require.ErrorIs(t, err, snug.ErrConfig)
		require.ErrorContains(t, err, text)
		require.False(t, y.freed)
		require.Equal(t, stats, s.tape.Stats())
	}
	refused(`"input 0" cannot be overwritten: it is an input`, x)
	refused(`"op" cannot be overwritten: 1 more that share its memory are not freed`, y)
	refused(`"half" cannot be overwritten: 1 more that share its memory are not freed`, half)
	refused(`"must save" cannot be overwritten: the policy must save it`, keep)
	refused(`"op" cannot be overwritten: one of its operands is banished`, pinned)
	require.NoError(t, s.free(half))
	refused(`"op" cannot be overwritten: the operand "op" shares its memory`, y, x, y)
	_, done, err := s.tape.Get(s.ctx, y.Value)
	require.NoError(t, err)
	refused(`"op" cannot be overwritten: it is in use, between Get and done`, y)
	done()
	_, err = s.overwrite(op, y, x)
	require.NoError(t, err)
	s.finish()
}

func TestTakeAndBanish(t *testing.T) {
	s := newTestTape(t, 4*4, nil)
	op := Op{Name: "op", Cost: 1}
	x := s.mustInput(1)
	y := s.mustDo(op, 1, x)
	z := s.mustDo(op, 1, y)
	w := s.mustDo(op, 1, z)
	require.NoError(t, s.take(z))
	require.EqualError(t, s.take(x), `tape: value "input 0" cannot be taken: it is an input: snug: invalid configuration`)

	s.mustDo(op, 3)
	require.Equal(t, "---", inMemory(y, z, w))
	require.NoError(t, s.banish(x))
	require.Equal(t, "a", inMemory(y), "x was needed for it")
	x.want[0] = float32(math.NaN()) // the caller's alone
	require.NoError(t, s.get(w))
	require.ErrorContains(t, s.take(y), "others may be recomputed from it, and one of its operands is banished")
	_, err := s.do(op, 4)
	var tooSmall *BudgetError
	require.ErrorAs(t, err, &tooSmall)
	require.Equal(t, int64(4+16), tooSmall.Minimum, "y cannot be computed again")

	half := s.mustAlias(w)
	require.ErrorContains(t, s.take(w), "1 more that share its memory are not freed")
	require.ErrorContains(t, s.take(half), "it is an alias")
	require.ErrorContains(t, s.banish(w), "cannot be banished: 1 more that share its memory are not freed")
	require.NoError(t, s.free(half))
	require.NoError(t, s.free(w))
	require.NoError(t, s.take(y), "nothing is computed from it any more")
	require.Zero(t, s.tape.Stats().Held)
	s.finish()
}

// TestMustSaveStands: what must be saved needs nothing that it was computed
// from, and is there as long as others may need it.
func TestMustSaveStands(t *testing.T) {
	s := newTestTape(t, 0, byValue)
	keep := Op{Name: "keep", Value: "must save"}
	y := s.mustDo(Op{Name: "y"}, 1, s.mustInput(1))
	z := s.mustDo(keep, 1, y)
	require.NoError(t, s.free(s.values[0]))
	require.NoError(t, s.free(y))
	require.Equal(t, 1, s.tape.Stats().Values)
	w := s.mustDo(Op{Name: "w"}, 1, z)
	require.EqualError(t, s.take(z), `tape: value "must save" cannot be taken: others may be recomputed from it, and the policy must save it: snug: invalid configuration`)
	require.NoError(t, s.free(z))
	require.Equal(t, "aa", inMemory(z)+inMemory(w))
	require.NoError(t, s.free(w))
	require.Zero(t, s.tape.Stats().Values)

	// Over y, which is gone with that.
	y = s.mustDo(Op{Name: "y"}, 1)
	z, err := s.overwrite(keep, y)
	require.NoError(t, err)
	require.Equal(t, 1, s.tape.Stats().Values)
	require.NoError(t, s.take(z))
	require.Zero(t, s.tape.Stats().Values)
	s.finish()
}

// TestLoop: a loop that banishes its last state takes no more with every step,
// and hands the state over in the end.
func TestLoop(t *testing.T) {
	s := newTestTape(t, 4*4, nil)
	op := Op{Name: "op", Cost: 1}
	state := s.mustInput(1)
	for range 20 {
		d := s.mustDo(op, 1, s.mustDo(op, 1, state))
		next := s.mustDo(op, 1, state, d)
		require.NoError(t, s.free(s.values[len(s.values)-3]))
		require.NoError(t, s.free(d))
		require.NoError(t, s.banish(state))
		require.Equal(t, 1, s.tape.Stats().Values)
		require.Equal(t, int64(4), s.tape.Stats().Held)
		state = next
	}
	require.NoError(t, s.take(state))
	s.finish()
}

// TestBanishOverwritten: a value that is only needed for what overwrote it is
// not computed again to be rid of its operand.
func TestBanishOverwritten(t *testing.T) {
	s := newTestTape(t, 4*3, nil)
	op := Op{Name: "op", Cost: 1}
	x := s.mustInput(1)
	y := s.mustDo(op, 1, x)
	for range 2 {
		z, err := s.overwrite(op, y)
		require.NoError(t, err)
		y = z
	}
	require.Equal(t, 4, s.tape.Stats().Values)
	require.NoError(t, s.banish(x))
	require.Equal(t, 1, s.tape.Stats().Values)
	require.Zero(t, s.tape.Stats().Recomputed)
	s.finish()
}
