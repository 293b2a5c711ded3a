package offload

import (
	"context"
	"math"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

// committed is a training state of four times the host limit.
type committed struct {
	dir   string
	store *Store
	x     *Tensor[float32]
}

func newCommitted(t testing.TB, size, pageBytes int, past bool) committed {
	dir := t.TempDir()
	s, err := Open(filepath.Join(dir, "store"), Options{HostLimit: int64(size / 4), Direct: past})
	require.NoError(t, err)
	x, err := Create[float32](s, "x", size/4, pageBytes/4)
	require.NoError(t, err)
	c := committed{dir, s, x}
	for range 2 { // the order is known from here on
		c.step(t, 1)
	}
	return c
}

// step changes each page so many times, and returns its time and how much of it Pin and Unpin took.
func (c committed) step(t testing.TB, passes int) (all, paging time.Duration) {
	start := time.Now()
	for i := range c.x.Pages() {
		begun := time.Now()
		p, err := c.x.Pin(context.Background(), i)
		require.NoError(t, err)
		paging += time.Since(begun)
		for range passes {
			for j := range p.Data {
				p.Data[j] = p.Data[j]*0.999 + 1
			}
		}
		begun = time.Now()
		require.NoError(t, p.Unpin(true))
		paging += time.Since(begun)
	}
	return time.Since(start), paging
}

// passes returns how many passes a step needs to compute for factor times as long as its pages
// take.
func (c committed) passes(t testing.TB, factor float64) int {
	least := func(passes int) float64 {
		best := time.Hour
		for range 5 {
			all, _ := c.step(t, passes)
			best = min(best, all)
		}
		return best.Seconds()
	}
	paging := least(1)
	return int(max(1, factor*paging/(least(21)-paging)*20))
}

// stepWithCommit is a step that begins with BeginCommit. Its time is in both results.
func (c committed) stepWithCommit(t testing.TB, passes int) (commit Commit, all, paging time.Duration) {
	start := time.Now()
	commit, err := c.store.BeginCommit()
	require.NoError(t, err)
	begun := time.Since(start)
	all, paging = c.step(t, passes)
	return commit, all + begun, paging + begun
}

// steps are the times in seconds of steps without a commit, of steps that begin with BeginCommit, of
// the waits after them, of steps that begin with Commit, and of a plain writer.
type steps struct{ plain, paging, behind, pagingBehind, left, stopped, durable []float64 }

// measure makes a step of each kind, and a plain writer make as many bytes durable as a step changes.
// Another store is for Commit.
func (c committed) measure(t testing.TB, other committed, passes int, s *steps) {
	timed := func(list *[]float64, do func()) {
		start := time.Now()
		do()
		*list = append(*list, time.Since(start).Seconds())
	}
	all, paging := c.step(t, passes)
	s.plain, s.paging = append(s.plain, all.Seconds()), append(s.paging, paging.Seconds())
	commit, all, paging := c.stepWithCommit(t, passes)
	s.behind, s.pagingBehind = append(s.behind, all.Seconds()), append(s.pagingBehind, paging.Seconds())
	timed(&s.left, func() { require.NoError(t, commit.Wait()) })
	other.step(t, passes)
	timed(&s.stopped, func() {
		require.NoError(t, other.store.Commit())
		other.step(t, passes)
	})
	timed(&s.durable, func() {
		f := trafficFile(t, c.dir, "durable", c.store.opts.Direct)
		defer f.Close()
		b := heapMemory(4*c.x.PageLen(), directAlignment)
		for i := range c.x.Pages() {
			_, err := f.WriteAt(b, int64(i*len(b)))
			require.NoError(t, err)
		}
		require.NoError(t, f.Sync())
	})
}

// TestStepsDuringCommits holds what a commit adds to the calls of the store in a step that computes, from
// BeginCommit on, to a tenth of the step. On a machine or a disk with other users one of some tries shows
// it. What the step computes meanwhile is not counted, because it shares the processors with others.
func TestStepsDuringCommits(t *testing.T) {
	kerneltest.Slow(t) // its file has 48 MiB
	c := newCommitted(t, 16<<20, 128<<10, false)
	passes := c.passes(t, 3)
	least := math.Inf(1)
	for try := 0; try < 20 && least > 0.1; try++ {
		plain, paging := c.step(t, passes)
		commit, _, withCommit := c.stepWithCommit(t, passes)
		require.NoError(t, commit.Wait())
		least = min(least, (withCommit-paging).Seconds()/plain.Seconds())
	}
	require.LessOrEqual(t, least, 0.1)
	require.NoError(t, c.store.Close())
	requireWithin(t, c.store)
}

// BenchmarkCommitDuringSteps reports what committed.measure returns, as shares of a step without a
// commit, and as paging the share of Pin, Unpin and BeginCommit. It takes first quartiles, because other
// users of the machine and of the disk only add time. Steps compute once for each page, or three times as
// long as their pages take.
func BenchmarkCommitDuringSteps(b *testing.B) {
	for _, form := range []struct {
		name   string
		past   bool
		factor float64
	}{
		{"cached/io-bound", false, 0}, {"cached/compute-bound", false, 3},
		{"direct/io-bound", true, 0}, {"direct/compute-bound", true, 3},
	} {
		b.Run(form.name, func(b *testing.B) {
			c, other := newCommitted(b, 32<<20, 256<<10, form.past), newCommitted(b, 32<<20, 256<<10, form.past)
			passes := c.passes(b, form.factor)
			var s steps
			for range 3 { // the files have their lengths
				c.measure(b, other, passes, &s)
			}
			s = steps{}
			for range b.N {
				c.measure(b, other, passes, &s)
			}
			quartile := func(x []float64) float64 {
				slices.Sort(x)
				return x[len(x)/4]
			}
			plain := quartile(s.plain)
			b.ReportMetric(1e3*plain, "ms/step")
			b.ReportMetric(quartile(s.behind)/plain, "with-commit")
			b.ReportMetric(quartile(s.paging)/plain, "paging")
			b.ReportMetric(quartile(s.pagingBehind)/plain, "paging-with-commit")
			b.ReportMetric(quartile(s.left)/plain, "left-after")
			b.ReportMetric(quartile(s.stopped)/plain, "stop-the-world")
			b.ReportMetric(quartile(s.durable)/plain, "plain-writer")
			require.NoError(b, c.store.Close())
			require.NoError(b, other.store.Close())
		})
	}
}
