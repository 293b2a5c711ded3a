package offload

import (
	"context"
	"path/filepath"
	"slices"
	"testing"
	"time"

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
	for range 3 { // the file has its length
		require.NoError(t, s.Commit())
		c.step(t, 1)
	}
	return c
}

// step changes each page so many times, and returns its time.
func (c committed) step(t testing.TB, passes int) time.Duration {
	start := time.Now()
	for i := range c.x.Pages() {
		p, err := c.x.Pin(context.Background(), i)
		require.NoError(t, err)
		for range passes {
			for j := range p.Data {
				p.Data[j] = p.Data[j]*0.999 + 1
			}
		}
		require.NoError(t, p.Unpin(true))
	}
	return time.Since(start)
}

// passes returns how many passes a step needs to compute for factor times as long as its pages
// take.
func (c committed) passes(t testing.TB, factor float64) int {
	least := func(passes int) float64 {
		best := c.step(t, passes)
		for range 4 {
			best = min(best, c.step(t, passes))
		}
		return best.Seconds()
	}
	paging := least(1)
	return int(max(1, factor*paging/(least(21)-paging)*20))
}

// steps are the times in seconds of steps without a commit, of steps that begin with BeginCommit,
// of the waits after them, and of steps that begin with Commit.
type steps struct{ plain, behind, left, stopped, durable []float64 }

// measure makes a step of each kind, and a plain writer make as many bytes durable as a step changes.
func (c committed) measure(t testing.TB, passes int, s *steps) {
	timed := func(list *[]float64, do func()) {
		start := time.Now()
		do()
		*list = append(*list, time.Since(start).Seconds())
	}
	var commit Commit
	timed(&s.plain, func() { c.step(t, passes) })
	timed(&s.behind, func() {
		var err error
		commit, err = c.store.BeginCommit()
		require.NoError(t, err)
		c.step(t, passes)
	})
	timed(&s.left, func() { require.NoError(t, commit.Wait()) })
	c.step(t, passes)
	timed(&s.stopped, func() {
		require.NoError(t, c.store.Commit())
		c.step(t, passes)
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

// BenchmarkCommitDuringSteps reports what committed.measure returns, as shares of a step without a
// commit. It takes first quartiles, because other users of the machine and of the disk only add time: of steps that compute once for each page, and of steps that compute three times as
// long as their pages take.
func BenchmarkCommitDuringSteps(b *testing.B) {
	for _, form := range []struct {
		name   string
		past   bool
		factor float64
	}{{"cached/io-bound", false, 0}, {"cached/compute-bound", false, 3}, {"direct/io-bound", true, 0}, {"direct/compute-bound", true, 3}} {
		b.Run(form.name, func(b *testing.B) {
			c := newCommitted(b, 32<<20, 256<<10, form.past)
			passes := c.passes(b, form.factor)
			var s steps
			for range b.N {
				c.measure(b, passes, &s)
			}
			quartile := func(x []float64) float64 {
				slices.Sort(x)
				return x[len(x)/4]
			}
			plain := quartile(s.plain)
			b.ReportMetric(1e3*plain, "ms/step")
			b.ReportMetric(quartile(s.behind)/plain, "with-commit")
			b.ReportMetric(quartile(s.left)/plain, "left-after")
			b.ReportMetric(quartile(s.stopped)/plain, "stop-the-world")
			b.ReportMetric(quartile(s.durable)/plain, "plain-writer")
			require.NoError(b, c.store.Close())
		})
	}
}
