package offload

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// plainTraffic returns the bytes a second of a reader and a writer that go through two
// files of size bytes side by side, in pieces of piece bytes.
func plainTraffic(t testing.TB, dir string, size, piece int, past bool) float64 {
	open := func(name string) file {
		path := filepath.Join(dir, name)
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		require.NoError(t, err)
		if past {
			return directFile(path, osFile{f})
		}
		return osFile{f}
	}
	from, to := open("from"), open("to")
	defer from.Close()
	defer to.Close()
	in, out := heapMemory(piece, directAlignment), heapMemory(piece, directAlignment)
	for off := 0; off < size; off += piece { // both files have their blocks
		for _, f := range []file{from, to} {
			_, err := f.WriteAt(out, int64(off))
			require.NoError(t, err)
		}
	}
	start := time.Now()
	written := make(chan error, 1)
	go func() {
		var err error
		for off := 0; off < size && err == nil; off += piece {
			_, err = to.WriteAt(out, int64(off))
		}
		written <- err
	}()
	for off := 0; off < size; off += piece {
		_, err := from.ReadAt(in, int64(off))
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

// BenchmarkTraffic pages a tensor through a limit of an eighth of it, and reports its
// bytes a second as a part of those of a plain reader and writer on the same file
// system, and what part of the transfers is hidden behind a computation that takes 1.5
// times as long as they do.
func BenchmarkTraffic(b *testing.B) {
	const size = 128 << 20
	for _, past := range []bool{false, true} {
		for _, pageBytes := range []int{64 << 10, 256 << 10, 1 << 20} {
			b.Run(fmt.Sprintf("direct=%v/%d", past, pageBytes), func(b *testing.B) {
				dir := b.TempDir()
				s, err := Open(filepath.Join(dir, "store"), Options{HostLimit: size / 8, Direct: past})
				require.NoError(b, err)
				x, err := Create[float32](s, "x", size/4, pageBytes/4)
				require.NoError(b, err)
				pageThrough(b, x, 0)
				pageThrough(b, x, 0) // the order is known from here on
				var plain, paged, hidden float64
				for range b.N {
					plain += plainTraffic(b, dir, size, pageBytes, past)
					before, start := s.Stats(), time.Now()
					pageThrough(b, x, 0)
					took, after := time.Since(start), s.Stats()
					moved := float64(after.ReadBytes + after.WriteBytes - before.ReadBytes - before.WriteBytes)
					paged += moved / took.Seconds()

					before = s.Stats()
					pageThrough(b, x, time.Duration(1.5*float64(took)/float64(x.Pages())))
					after = s.Stats()
					hidden += 1 - (after.Stall-before.Stall).Seconds()/took.Seconds()
				}
				b.ReportMetric(plain/float64(b.N)/1e9, "plain-GB/s")
				b.ReportMetric(paged/float64(b.N)/1e9, "paged-GB/s")
				b.ReportMetric(paged/plain, "of-plain")
				b.ReportMetric(hidden/float64(b.N), "hidden")
				require.NoError(b, s.Close())
			})
		}
	}
}
