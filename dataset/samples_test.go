package dataset

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// all returns the samples to train on, in the order of the files.
func (s *Set) all() (list []sample) {
	for i := range s.training() {
		list = append(list, s.sample(i))
	}
	return list
}

// sampleLists: a list returns what was added, and the samples that are held out are the others.
func sampleLists(t *rapid.T) {
	pairs := rapid.Bool().Draw(t, "pairs")
	var l sampleList
	var want []sample
	at := int64(0)
	for range rapid.IntRange(0, 300).Draw(t, "samples") {
		x := sample{at: at + int64(rapid.SampledFrom([]int{0, 0, 0, -1, -1, 1, 5, 1000}).Draw(t, "gap")), n: int32(rapid.IntRange(2, 40).Draw(t, "n"))}
		if len(want) == 0 {
			x.at = max(x.at, 0)
		}
		if pairs {
			x.mid = x.n / 2
		}
		l.add(x)
		want = append(want, x)
		at = x.at + int64(x.n)
	}
	require.Equal(t, len(want), l.n)
	for i, x := range want {
		require.Equal(t, x, l.get(i), i)
	}
	s := &Set{list: l}
	held := map[int]bool{}
	for i := range want {
		if rapid.IntRange(0, 3).Draw(t, "held") == 0 {
			held[i] = true
			s.held = append(s.held, uint32(i))
		}
	}
	var order []sample
	for _, out := range []bool{false, true} {
		for i, x := range want {
			if held[i] == out {
				order = append(order, x)
			}
		}
	}
	for i, x := range order {
		require.Equal(t, x, s.sample(i), i)
	}
}

func TestSampleLists(t *testing.T) { rapid.Check(t, sampleLists) }

// TestPermutation: the orders are those of the library's Perm, by which checkpoints were made.
func TestPermutation(t *testing.T) {
	for _, n := range []int{0, 1, 2, 17, 5000} {
		want := rand.New(rand.NewPCG(3, uint64(n))).Perm(n)
		got := permutation(make([]uint32, 100), n, 3, uint64(n))
		require.Len(t, got, n)
		for i := range got {
			require.EqualValues(t, want[i], got[i])
		}
	}
}

// TestOrderIsMadeOnce: the order of the samples has its memory from Open on, and later epochs take no more, so that a limit which
// is counted after Open holds.
func TestOrderIsMadeOnce(t *testing.T) {
	s, err := Open([]string{write(t, "a.txt", strings.Repeat("one two three ", 4000))}, tok, Options{Context: 4, EOS: eos, HeldOut: 0.1, Seed: 3})
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	require.GreaterOrEqual(t, cap(s.order), s.list.n)
	first := &s.order[0]
	for epoch := range 3 {
		_, err := s.Batch(epoch*s.training(), 1, 1)
		require.NoError(t, err)
		require.EqualValues(t, epoch, s.epoch)
		require.Same(t, first, &s.order[0])
	}
}

// TestHeldOutMost: the samples held out are a share, and at most so many.
func TestHeldOutMost(t *testing.T) {
	path := write(t, "a.txt", strings.Repeat("one two three ", 400))
	for most, want := range map[int]int{0: 30, 7: 7, 1000: 30} {
		s, err := Open([]string{path}, tok, Options{Context: 4, EOS: eos, HeldOut: 0.1, HeldOutMost: most, Seed: 3})
		require.NoError(t, err)
		require.Equal(t, want, s.Stats().HeldOut, most)
		require.Equal(t, 301, s.Stats().Samples+s.Stats().HeldOut)
		require.NoError(t, s.Close())
	}
	_, err := Open([]string{path}, tok, Options{Context: 4, EOS: eos, HeldOutMost: -1})
	require.ErrorIs(t, err, snug.ErrConfig)
}
