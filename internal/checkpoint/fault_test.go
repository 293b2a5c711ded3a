package checkpoint_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug/internal/checkpoint"
	"github.com/snug-ml/snug/internal/files/filestest"
	"github.com/snug-ml/snug/internal/kerneltest"
)

// TestFailingCalls lets every call to the file system fail, once or with all that follow,
// while a folder is opened, restored, cleaned and saved to. After each failure, and after
// a power cut then, the newest checkpoint before or the new one is there bit for bit, and
// the next run that opens and saves leaves nothing else.
func TestFailingCalls(t *testing.T) {
	crashes := uint64(3)
	if !kerneltest.Full() {
		crashes = 1
	}
	for _, c := range []struct {
		name   string
		before []int // the steps that are there
		keep   int
		save   []int
	}{
		{"the first", nil, 2, []int{1}},
		{"one more", []int{1, 2}, 2, []int{3}},
		{"the same step", []int{1, 2}, 2, []int{2}},
		{"the same step, alone", []int{2}, 1, []int{2, 2}},
		{"the only one", []int{1}, 1, []int{2, 3}},
		{"fewer", []int{1, 2, 3}, 1, []int{5}},
	} {
		t.Run(c.name, func(t *testing.T) {
			base := filestest.New()
			save(t, base, checkpoint.Options{Keep: 9}, c.before...)
			leftover(t, base)
			failed := 0
			for _, stop := range []bool{false, true} {
				for k := 1; ; k++ {
					dir := base.Crash(rand.New(rand.NewPCG(1, 1))) // a copy: all is synced
					_, _, before := dir.Counts()
					dir.FailCall(k, stop, syscall.EIO)
					saved, err := resume(dir, c.keep, c.save)
					dir.FailCall(0, false, nil)
					_, _, calls := dir.Counts()
					last := 0
					if n := len(c.before); n > 0 {
						last = c.before[n-1]
					}
					if n := len(saved); n > 0 {
						last = saved[n-1] // that Save called whole
					}
					what := fmt.Sprintf("call %d fails, and all that follow: %v", k, stop)
					for seed := range crashes {
						survivor := dir.Crash(rand.New(rand.NewPCG(seed, uint64(k))))
						wholeAfter(t, survivor, last, c.save, c.keep, fmt.Sprintf("%s, then the power, seed %d", what, seed))
					}
					dir.Unlock()
					wholeAfter(t, dir, last, c.save, c.keep, what)
					if err == nil {
						require.Equal(t, c.save, saved)
						if k > calls-before {
							break
						}
						continue // such as the closing of a file that was read
					}
					failed++
					require.True(t, errors.Is(err, syscall.EIO), "%v", err)
				}
			}
			require.Greater(t, failed, 40)
		})
	}
}

// leftover is what a killed process leaves.
func leftover(t *testing.T, dir *filestest.Dir) {
	for _, name := range []string{"unfinished-" + run + "-00000002", "unfinished-" + run + "-step-00000001", "snug-scratch-" + run} {
		require.NoError(t, dir.Mkdir(name))
		sub, err := dir.Sub(name)
		require.NoError(t, err)
		sub.SetBytes("weights", []byte("half"))
	}
	require.NoError(t, dir.Sync())
}

// resume is a process that goes on from the newest checkpoint and saves steps. It returns
// those that were saved without an error.
func resume(dir *filestest.Dir, keep int, steps []int) (saved []int, err error) {
	if _, err := load(dir); err != nil {
		return nil, err
	}
	f, err := checkpoint.Open(dir, checkpoint.Options{Keep: keep})
	if err != nil {
		return nil, err
	}
	if _, err := f.Scratch(); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	for _, step := range steps {
		if errSave := f.Save(step, anyAbout, partsOf(step)); errSave != nil {
			err = errors.Join(err, errSave)
		} else {
			saved = append(saved, step)
		}
	}
	return saved, errors.Join(err, f.Close())
}

// wholeAfter checks that the newest checkpoint is the last that was saved or a later one,
// and that the next process leaves nothing but checkpoints.
func wholeAfter(t *testing.T, dir *filestest.Dir, last int, later []int, keep int, what string) {
	t.Helper()
	results, err := checkpoint.Verify(dir)
	require.NoError(t, err, what)
	for _, r := range results {
		require.NoError(t, r.Err, what)
	}
	step, err := load(dir)
	require.NoError(t, err, what)
	if step != last {
		require.Contains(t, later, step, what)
		require.Greater(t, step, last, what)
	}
	save(t, dir, checkpoint.Options{Keep: keep}, step+1)
	names := dir.Names()
	require.LessOrEqual(t, len(names), keep, what)
	for _, name := range names {
		require.Regexp(t, "^step-[0-9]{8}$", name, what)
	}
	got, err := load(dir)
	require.NoError(t, err, what)
	require.Equal(t, step+1, got, what)
}
