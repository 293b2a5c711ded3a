package offload

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/files/filestest"
)

// TestResumeIsNotForgotten: what a store has is not continued as something else: by an
// Updater that has not resumed, with other parameters, or with an optimizer whose state
// is elsewhere.
func TestResumeIsNotForgotten(t *testing.T) {
	dir := filestest.New()
	begin := func(where func(s *Store) *Store, names ...string) (*Store, *Updater) {
		s, err := open(dir, Options{})
		require.NoError(t, err)
		opt, err := adamW(where(s), 0)
		require.NoError(t, err)
		u, err := NewUpdater(s, opt, UpdaterOptions{})
		require.NoError(t, err)
		for _, name := range names {
			require.NoError(t, u.Add(name, 3, nil))
		}
		return s, u
	}
	same := func(s *Store) *Store { return s }
	other := memStore(t, Options{})
	train := func(u *Updater) error {
		if err := u.Accumulate("a", 0, snug.ViewOf([]float32{1, 2, 3}), 1); err != nil {
			return err
		}
		return u.Step(0.1, 1)
	}
	s, u := begin(same, "a", "b")
	require.NoError(t, train(u), "a new store has nothing to resume")
	require.NoError(t, train(u))
	require.NoError(t, u.Commit())
	require.NoError(t, s.Close())

	s, u = begin(same, "a", "b")
	require.ErrorIs(t, u.Accumulate("a", 0, snug.ViewOf([]float32{1, 2, 3}), 1), snug.ErrConfig)
	require.ErrorIs(t, u.Step(0.1, 1), snug.ErrConfig)
	require.ErrorContains(t, u.Commit(), "call Resume first")
	steps, err := u.Resume()
	require.NoError(t, err)
	require.Equal(t, 2, steps)
	require.NoError(t, train(u))
	require.NoError(t, s.Close()) // without a commit

	for what, c := range map[string]struct {
		where func(*Store) *Store
		names []string
		text  string
	}{
		"one less":     {same, []string{"a"}, `the store has parameter "b", which was not added`},
		"one more":     {same, []string{"a", "b", "c"}, `parameter "c" is new, the store has 2 steps without it`},
		"state of own": {func(*Store) *Store { return other }, []string{"a", "b"}, "not in the Updater's store"},
	} {
		t.Run(what, func(t *testing.T) {
			s, u = begin(c.where, c.names...)
			_, err = u.Resume()
			require.ErrorIs(t, err, snug.ErrConfig, what)
			require.ErrorContains(t, err, c.text, what)
			require.ErrorContains(t, u.Commit(), "call Resume first", what)
			require.NoError(t, s.Close())
		})
	}
}

// TestResumeOfARestoredOptimizer: an optimizer that brings its state itself is not
// advanced, and must be of the same step.
func TestResumeOfARestoredOptimizer(t *testing.T) {
	dir := filestest.New()
	for _, made := range []int{0, 2, 3} {
		s, err := open(dir, Options{})
		require.NoError(t, err)
		opt := &counting{}
		u, err := NewUpdater(s, opt, UpdaterOptions{})
		require.NoError(t, err)
		require.NoError(t, u.Add("a", 3, nil))
		if made == 0 {
			require.NoError(t, u.Step(0.1, 1))
			require.NoError(t, u.Step(0.1, 1))
			require.NoError(t, u.Commit())
		} else {
			opt.steps = made
			_, err = u.Resume()
			require.Equal(t, made == 2, err == nil, "%v", err)
			require.Equal(t, made, opt.steps)
		}
		require.NoError(t, s.Close())
	}
}

// counting is an optimizer that keeps its state to itself.
type counting struct{ steps int }

func (c *counting) Add(string, int) error                                      { return nil }
func (c *counting) Advance(float32)                                            { c.steps++ }
func (c *counting) Steps() int                                                 { return c.steps }
func (c *counting) StoredIn(any) bool                                          { return false }
func (c *counting) StepRange(string, int, snug.View, snug.View, float32) error { return nil }
