package offload

import (
	"math/rand/v2"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/files/filestest"
)

// training is a run of four steps with a commit after every other, over a store with
// room for some of its pages.
type training struct {
	delayed   bool
	async     bool // commit in the background
	s         *Store
	resumed   int // steps that it found
	committed int // steps that it has made durable, or found
	begun     int // steps of the last commit
	pending   Commit
	weights   []float32 // at the end
}

// run goes on from the last commit in a folder.
func (tr *training) run(dir *filestest.Dir) error {
	const n, pageLen, steps = 140, 32, 4
	o, err := Options{HostLimit: 7 * 4 * pageLen, PrefetchDepth: 2, Workers: 1}.check()
	if err != nil {
		return err
	}
	if tr.s, err = open(dir, o); err != nil {
		return err
	}
	opt, err := adamW(tr.s, pageLen)
	if err != nil {
		return err
	}
	u, err := NewUpdater(tr.s, opt, UpdaterOptions{PageLen: pageLen, Delayed: tr.delayed})
	if err != nil {
		return err
	}
	first := normals(n, 3)
	if err := u.Add("w", n, func(lo int, w []float32) error { copy(w, first[lo:]); return nil }); err != nil {
		return err
	}
	if tr.resumed, err = u.Resume(); err != nil {
		return err
	}
	tr.committed = tr.resumed
	tr.weights = make([]float32, n)
	if err := u.Bind("w", snug.ViewOf(tr.weights)); err != nil {
		return err
	}
	for u.Steps() < steps {
		if err := u.Accumulate("w", 0, snug.ViewOf(normals(n, uint64(u.Steps()))), 1); err != nil {
			return err
		}
		if err := u.Step(0.01, 1); err != nil {
			return err
		}
		if u.Steps()%2 == 0 {
			if err := tr.commit(u); err != nil {
				return err
			}
		}
	}
	return tr.wait()
}

// commit makes the state durable. In the background the commit may run during two steps.
func (tr *training) commit(u *Updater) (err error) {
	if err = tr.wait(); err != nil {
		return err
	}
	if tr.async {
		tr.pending, err = u.BeginCommit()
	} else {
		err = u.Commit()
	}
	tr.begun = u.Steps()
	return err
}

// wait waits until the last commit is durable.
func (tr *training) wait() error {
	if err := tr.pending.Wait(); err != nil {
		return err
	}
	tr.committed = max(tr.committed, tr.begun)
	return nil
}

// TestTrainingWithFailingCalls fails each call of the file system under an Updater, once
// and with all that follow, and cuts the power then: the run that goes on finds the last
// commit, and ends with the bits of a run that nothing disturbed.
//
//check:not race
func TestTrainingWithFailingCalls(t *testing.T) {
	for _, form := range [][2]bool{{false, false}, {false, true}, {true, false}, {true, true}} {
		delayed, async := form[0], form[1]
		whole, dir := training{delayed: delayed}, filestest.New()
		require.NoError(t, whole.run(dir))
		require.NoError(t, whole.s.Close())
		_, _, calls := dir.Counts()
		failed := 0
		for k := 1; k <= calls; k++ {
			for _, stop := range []bool{false, true} {
				dir := filestest.New()
				dir.FailCall(k, stop, syscall.EIO)
				tr := training{delayed: delayed, async: async}
				err := tr.run(dir)
				survivor := dir.Crash(rand.New(rand.NewPCG(uint64(k), 1)))
				if tr.s != nil {
					_ = tr.s.Close()
				}
				if err != nil {
					failed++
					require.ErrorIs(t, err, syscall.EIO, "call %d", k)
				}
				again := training{delayed: delayed, async: async}
				require.NoError(t, again.run(survivor), "call %d", k)
				require.NoError(t, again.s.Close())
				require.GreaterOrEqual(t, again.resumed, tr.committed, "call %d", k)
				requireSameBits(t, whole.weights, again.weights)
			}
		}
		require.Greater(t, failed, calls/2)
	}
}
