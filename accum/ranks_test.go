package accum

import (
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/stretchr/testify/require"
)

// all runs a function on each rank of Local, and returns their errors.
func all(t *testing.T, size int, do func(rank int, r Reducer) error) []error {
	t.Helper()
	reducers, err := Local(t.Context(), size)
	require.NoError(t, err)
	errs := make([]error, size)
	var wait sync.WaitGroup
	for rank, r := range reducers {
		wait.Go(func() { errs[rank] = do(rank, r) })
	}
	wait.Wait()
	return errs
}

// TestMoves: what ranks send arrives where the definitions say, of any type.
func TestMoves(t *testing.T) {
	const size = 3
	name := func(rank, n int) []uint8 { // the vector of a rank
		return slices.Repeat([]uint8{uint8('a' + rank)}, n)
	}
	require.NoError(t, errors.Join(all(t, size, func(rank int, r Reducer) error {
		v := name(rank, 4)
		if err := r.(Broadcaster).Broadcast(1, snug.SliceView(v)); err != nil || string(v) != "bbbb" {
			return errors.Join(err, errors.New(string(v)))
		}
		src := []uint8{'0', '1', '2', '3', '4', '5'} // two for each rank
		for i := range src {
			src[i] += uint8(10 * rank)
		}
		dst := make([]uint8, 6)
		if err := r.(AllToAller).AllToAll(snug.SliceView(dst), snug.SliceView(src)); err != nil {
			return err
		}
		for from := range size {
			for i := range 2 {
				if want := uint8('0' + 10*from + 2*rank + i); dst[2*from+i] != want {
					return errors.New(string(dst))
				}
			}
		}
		before := (rank + size - 1) % size
		got := make([]uint8, before+1)
		if err := r.(SendReceiver).SendReceive(snug.SliceView(got), before, snug.SliceView(name(rank, rank+1)), (rank+1)%size); err != nil {
			return err
		}
		if string(got) != string(name(before, before+1)) {
			return errors.New(string(got))
		}
		return nil
	})...))
}

// overlap receives where it sends.
func overlap(_ int, r Reducer) error {
	v := make([]uint8, 6)
	return r.(AllToAller).AllToAll(snug.SliceView(v[:4]), snug.SliceView(v[2:]))
}

// TestMovesErrors: all ranks get the error of calls that do not fit together, and nothing moves.
func TestMovesErrors(t *testing.T) {
	bytes := func(n int) snug.View { return snug.SliceView(make([]uint8, n)) }
	floats := func(n int) snug.View { return snug.ViewOf(make([]float32, n)) }
	for name, c := range map[string]struct {
		do   func(rank int, r Reducer) error
		want error
		says string
	}{
		"roots":  {func(rank int, r Reducer) error { return r.(Broadcaster).Broadcast(rank, bytes(3)) }, snug.ErrConfig, "rank 0 says root 0, rank 1 says 1"},
		"root":   {func(rank int, r Reducer) error { return r.(Broadcaster).Broadcast(2, bytes(3)) }, snug.ErrConfig, "rank 0 says root 2, want 0 to 1"},
		"length": {func(rank int, r Reducer) error { return r.(Broadcaster).Broadcast(0, bytes(3+rank)) }, snug.ErrShape, "rank 0 has 3 elements, rank 1 has 4"},
		"type": {func(rank int, r Reducer) error {
			return r.(Broadcaster).Broadcast(0, []snug.View{bytes(3), floats(3)}[rank])
		}, snug.ErrDType, "rank 0 has u8, rank 1 has f32"},
		"multiple":    {func(rank int, r Reducer) error { return r.(AllToAller).AllToAll(bytes(3), bytes(3)) }, snug.ErrShape, "want a common multiple of 2"},
		"two lengths": {func(rank int, r Reducer) error { return r.(AllToAller).AllToAll(bytes(2), bytes(4)) }, snug.ErrShape, "sends 4 elements and receives 2"},
		"two types":   {func(rank int, r Reducer) error { return r.(AllToAller).AllToAll(floats(2), bytes(2)) }, snug.ErrDType, "sends u8 and receives f32"},
		"nobody":      {func(rank int, r Reducer) error { return r.(SendReceiver).SendReceive(bytes(1), 0, bytes(1), 0) }, snug.ErrConfig, "rank 1 receives from rank 0, which sends to rank 0"},
		"short": {func(rank int, r Reducer) error {
			return r.(SendReceiver).SendReceive(bytes(2), 1-rank, bytes(1), 1-rank)
		}, snug.ErrShape, "rank 0 receives 2 elements, rank 1 sends 1"},
		"other": {func(rank int, r Reducer) error {
			return r.(SendReceiver).SendReceive(floats(1), 1-rank, bytes(1), 1-rank)
		}, snug.ErrDType, "rank 0 receives f32, rank 1 sends u8"},
		"outside": {func(rank int, r Reducer) error { return r.(SendReceiver).SendReceive(bytes(1), -1, bytes(1), 5) }, snug.ErrConfig, "want ranks from 0 to 1"},
		"overlap": {overlap, snug.ErrConfig, "on rank 0 what is received overlaps with what is sent"},
		"other call": {func(rank int, r Reducer) error {
			if rank == 0 {
				return r.AllReduce(floats(1))
			}
			return r.(Broadcaster).Broadcast(0, floats(1))
		}, snug.ErrConfig, "rank 0 calls AllReduce, rank 1 calls Broadcast"},
		"sums of bytes": {func(rank int, r Reducer) error { return r.AllReduce(bytes(1)) }, snug.ErrDType, "has u8, want f32 or bf16"},
	} {
		for rank, err := range all(t, 2, c.do) {
			require.ErrorIs(t, err, c.want, "%s, rank %d", name, rank)
			require.ErrorContains(t, err, c.says, "%s, rank %d", name, rank)
			require.ErrorContains(t, err, "accum: ", name)
		}
	}
}
