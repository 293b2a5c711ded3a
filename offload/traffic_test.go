package offload

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/snug-ml/snug/internal/files"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

// trafficFile opens a file for transfers, past the cache of the operating system or not.
func trafficFile(t testing.TB, dir, name string, past bool) files.File {
	path := filepath.Join(dir, name)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	require.NoError(t, err)
	if past {
		if d := directFile(path, files.Of(f)); d != nil {
			return d
		}
	}
	return files.Of(f)
}

// plainTraffic returns the bytes a second of a reader and a writer that go through two
// files of size bytes side by side, in pieces of piece bytes, from and to memory bytes, as
// much as a store has.
func plainTraffic(t testing.TB, dir string, size, memory, piece int, past bool) float64 {
	from, to := trafficFile(t, dir, "from", past), trafficFile(t, dir, "to", past)
	defer from.Close()
	defer to.Close()
	half := memory / 2 / piece * piece
	in, out := heapMemory(half, directAlignment), heapMemory(half, directAlignment)
	part := func(of []byte, off int) []byte {
		lo := off % half
		return of[lo : lo+piece : lo+piece]
	}
	for off := 0; off < size; off += piece { // both files have their blocks
		for _, f := range []files.File{from, to} {
			_, err := f.WriteAt(part(out, off), int64(off))
			require.NoError(t, err)
		}
	}
	start := time.Now()
	written := make(chan error, 1)
	go func() {
		var err error
		for off := 0; off < size && err == nil; off += piece {
			_, err = to.WriteAt(part(out, off), int64(off))
		}
		written <- err
	}()
	for off := 0; off < size; off += piece {
		_, err := from.ReadAt(part(in, off), int64(off))
		require.NoError(t, err)
	}
	require.NoError(t, <-written)
	return 2 * float64(size) / time.Since(start).Seconds()
}

// pageThrough changes every page of x, compute takes so long for each.
func pageThrough(t testing.TB, x *Tensor[float32], compute time.Duration) {
	for i := range x.Pages() {
		p, err := x.Pin(context.Background(), i)
		require.NoError(t, err)
		p.Data[0]++
		for start := time.Now(); time.Since(start) < compute; {
		}
		require.NoError(t, p.Unpin(true))
	}
}

// traffic is a tensor that is paged through a limit of an eighth of it.
type traffic struct {
	dir             string
	size, pageBytes int
	past            bool
	store           *Store
	x               *Tensor[float32]
}

func newTraffic(t testing.TB, size, pageBytes int, past bool) traffic {
	tr := traffic{dir: t.TempDir(), size: size, pageBytes: pageBytes, past: past}
	s, err := Open(filepath.Join(tr.dir, "store"), Options{HostLimit: int64(size / 8), Direct: past})
	require.NoError(t, err)
	x, err := Create[float32](s, "x", size/4, pageBytes/4)
	require.NoError(t, err)
	tr.store, tr.x = s, x
	pageThrough(t, x, 0)
	pageThrough(t, x, 0) // the order is known from here on
	return tr
}

// measure returns the bytes a second of a plain reader and writer and of pages, on one file
// system, and what part of the transfers is hidden behind a computation that takes 1.5 times
// as long as they do.
func (tr traffic) measure(t testing.TB) (plain, paged, hidden float64) {
	plain = plainTraffic(t, tr.dir, tr.size, tr.size/8, tr.pageBytes, tr.past)
	before, start := tr.store.Stats(), time.Now()
	pageThrough(t, tr.x, 0)
	took, after := time.Since(start), tr.store.Stats()
	paged = float64(after.ReadBytes+after.WriteBytes-before.ReadBytes-before.WriteBytes) / took.Seconds()

	before = tr.store.Stats()
	pageThrough(t, tr.x, time.Duration(1.5*float64(took)/float64(tr.x.Pages())))
	after = tr.store.Stats()
	return plain, paged, 1 - (after.Stall-before.Stall).Seconds()/took.Seconds()
}

// TestTraffic holds pages to four fifths of what a plain reader and writer move, and of that
// to four fifths hidden behind a computation. On a machine or a disk with other users one of
// some tries shows each.
func TestTraffic(t *testing.T) {
	kerneltest.Slow(t) // its files have 192 MiB
	tr := newTraffic(t, 64<<20, 256<<10, true)
	var best, hidden float64
	for range 20 {
		plain, paged, behind := tr.measure(t)
		best, hidden = max(best, paged/plain), max(hidden, behind)
		if best > 0.8 && hidden > 0.8 {
			break
		}
	}
	require.Greater(t, best, 0.8)
	require.Greater(t, hidden, 0.8)
	require.NoError(t, tr.store.Close())
}

// BenchmarkTraffic reports medians of what traffic.measure returns.
func BenchmarkTraffic(b *testing.B) {
	for _, past := range []bool{false, true} {
		for _, pageBytes := range []int{64 << 10, 256 << 10, 1 << 20} {
			b.Run(fmt.Sprintf("direct=%v/%d", past, pageBytes), func(b *testing.B) {
				tr := newTraffic(b, 128<<20, pageBytes, past)
				var plain, paged, ratio, hidden []float64
				for range b.N {
					p, q, h := tr.measure(b)
					plain, paged, ratio, hidden = append(plain, p), append(paged, q), append(ratio, q/p), append(hidden, h)
				}
				median := func(x []float64) float64 {
					slices.Sort(x)
					return x[len(x)/2]
				}
				b.ReportMetric(median(plain)/1e9, "plain-GB/s")
				b.ReportMetric(median(paged)/1e9, "paged-GB/s")
				b.ReportMetric(median(ratio), "of-plain")
				b.ReportMetric(median(hidden), "hidden")
				require.NoError(b, tr.store.Close())
			})
		}
	}
}
