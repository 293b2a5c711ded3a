package offload

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/files"
)

// PageRate is the rate at which pages of one size move to and from a file system.
type PageRate struct {
	PageBytes int
	Direct    bool    // as in Options
	Read      float64 // bytes a second
	Write     float64 // bytes a second, including the time to make them durable
}

// both returns the bytes a second of reading and writing equally many bytes, one after
// the other.
func (r PageRate) both() float64 { return 2 / (1/r.Read + 1/r.Write) }

// The sizes that MeasurePages tries.
const (
	minMeasured = 64 << 10
	maxMeasured = 4 << 20
)

// mostMeasured is the maximum size of the file that MeasurePages makes, in bytes.
const mostMeasured = 64 << 30

// MeasurePages writes and reads size bytes, 4 MiB to 64 GiB, in pages of 64 KiB to 4 MiB,
// without direct I/O and, if possible, with it. It uses a temporary file in directory
// dir. It returns all rates and the best one: of the rates within 5 % of the fastest, the
// rate with the smallest pages, because a host limit holds more of them. Its PageBytes/4
// is a PageLen for [Updater]. Without direct I/O pages come from the operating system's
// cache, which may be faster than the disk. MeasurePages takes 4 MiB of memory.
//
// Errors: [snug.ErrConfig] for a size outside these limits, and errors of the operating
// system, such as for a full disk.
func MeasurePages(dir string, size int64) (best PageRate, all []PageRate, err error) {
	if size < maxMeasured || size > mostMeasured {
		return best, nil, fmt.Errorf("offload: measure pages with %d bytes, want %d to %d: %w", size, maxMeasured, int64(mostMeasured), snug.ErrConfig)
	}
	if err := checkFolder(dir); err != nil {
		return best, nil, err
	}
	f, err := os.CreateTemp(dir, ".snug-measure-*")
	if err != nil {
		return best, nil, in(err, "measure pages")
	}
	all, err = measurePages(f, size)
	err = errors.Join(err, f.Close())
	if gone := os.Remove(f.Name()); !errors.Is(gone, os.ErrNotExist) {
		err = errors.Join(err, gone)
	}
	if err != nil {
		return best, nil, in(err, "measure pages")
	}
	fastest := 0.0
	for _, r := range all {
		fastest = max(fastest, r.both())
	}
	for _, r := range all {
		if r.both() >= 0.95*fastest && (best.PageBytes == 0 || r.PageBytes < best.PageBytes) {
			best = r
		}
	}
	return best, all, nil
}

func measurePages(f *os.File, size int64) (all []PageRate, err error) {
	buf := heapMemory(maxMeasured, directAlignment)
	plain := files.Of(f)
	past := directFile(f.Name(), plain)
	if past != nil {
		defer func() { err = errors.Join(err, past.past.Close()) }()
	}
	_ = os.Remove(f.Name())                              // so that a killed process leaves no file; some systems cannot remove it yet
	if _, err := measure(plain, buf, size); err != nil { // the file gets its blocks
		return nil, err
	}
	for n := minMeasured; n <= maxMeasured; n *= 4 {
		r, err := measure(plain, buf[:n], size)
		if err != nil {
			return nil, err
		}
		all = append(all, r)
		if past == nil {
			continue
		}
		if r, err = measure(past, buf[:n], size); err != nil {
			return nil, err
		}
		if r.Direct = !past.refused.Load(); r.Direct {
			all = append(all, r)
		}
	}
	return all, nil
}

// measure moves size bytes in pages of len(buf), first to f and then from it.
func measure(f files.File, buf []byte, size int64) (PageRate, error) {
	r := PageRate{PageBytes: len(buf)}
	pages := size / int64(len(buf))
	rate := func(move func(off int64) error) (float64, error) {
		start := time.Now()
		for i := range pages {
			if err := move(i * int64(len(buf))); err != nil {
				return 0, err
			}
		}
		return float64(pages) * float64(len(buf)) / max(time.Since(start), 1).Seconds(), nil
	}
	var err error
	r.Write, err = rate(func(off int64) error {
		_, err := f.WriteAt(buf, off)
		if err == nil && off/int64(len(buf)) == pages-1 {
			err = f.Sync()
		}
		return err
	})
	if err != nil {
		return r, err
	}
	r.Read, err = rate(func(off int64) error {
		_, err := f.ReadAt(buf, off)
		return err
	})
	return r, err
}
