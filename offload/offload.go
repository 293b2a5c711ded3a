// Package offload trains what does not fit in memory: named pages that live in a file
// and are brought into host memory, and from there onto a device, while they are used,
// under limits in bytes. It follows ZeRO-Offload (Ren et al. 2021, arXiv:2101.06840)
// and ZeRO-Infinity (Rajbhandari et al. 2021, arXiv:2104.07857) in what is moved, on
// one machine.
//
//   - [Store] holds pages. A blob is one page under a key; a [Tensor] is a
//     vector of a fixed element type cut into pages of equal length. [Attach] has
//     the pages of a tensor in a file of weights. [Contents] and [Verify] inspect a
//     store.
//   - [Updater] keeps float32 weights, gradients and the state of an optimizer in a
//     Store and steps page by page. The optimizers of package quant8, with the Store as
//     their Storage, are such ones.
//   - [Greedy] and [Optimal] say which layers of a model stay on a device, a
//     [DeviceMap], and a [Runner] pages the others in, forward and backward.
//   - [DeviceTier] holds pages in the memory of a device, and [Mover] copies vectors,
//     and with [Tensor.LoadTo] and [Tensor.SaveFrom] tensors, between host memory and a
//     device while the device computes.
//   - [MeasurePages] finds the size of pages that suits a file system.
//
// # Order
//
// Training touches its pages in the same order every step. The store records
// the order of all Acquire and Pin calls. Once the order has repeated, it
// evicts the page whose next use is farthest (Belady 1966), reads the coming
// pages ahead and writes the pages about to be evicted behind, in the
// background. As long as no repetition is known it evicts the page that was
// used least recently and reads ahead what [Store.Prefetch] names.
//
// # Durability
//
// [Store.Commit] makes the state of all pages durable as one. Pages written
// since then, by eviction or by a commit that was cut off, go to places of the
// file that the last commit does not refer to, so that whatever happens to the
// process or the machine, [Open] gives exactly the last commit, and
// [Store.Recovered] says that the process before did not close the store. Every page
// and the index carry a CRC-32C that is checked on each read; a [PageError] names the
// file, the page and the offset of one that is damaged. The price is room on disk for
// the pages that change between two commits, up to twice the state.
//
// # Errors
//
// Besides the sentinels of package snug, errors of files wrap the operating system's error
// (such as syscall.ENOSPC), those of limits [snug.ErrNoMemory]. After one, the last commit
// is readable, the pages in memory are intact, and the call can be repeated. After an error
// in a step an Updater cannot be used: close the store, open it again, which gives the last
// commit, and call [Updater.Resume] of a new Updater, which continues from there.
//
// A panic of a function that the caller gave, a Stepper, a Source or one that a Runner
// calls, reaches the goroutine of the call that needs it, also from work in the
// background. It leaves nothing pinned, and so does [runtime.Goexit].
package offload

import (
	"cmp"
	"fmt"
	"time"

	"github.com/snug-ml/snug"
)

// Limits of a store.
const (
	maxKey     = 1 << 10 // bytes of a key
	maxPage    = 1 << 30 // bytes of a page
	maxPages   = 1 << 22 // pages of a tensor
	maxDepth   = 1 << 10 // PrefetchDepth
	maxWorkers = 64      // Workers
)

const (
	defaultDepth   = 16 // what a program uses at once waits for none of it
	defaultWorkers = 4
)

// Options configure a Store. The zero value is valid.
type Options struct {
	// HostLimit is the bytes of page buffers that the store holds in host
	// memory at any time: pages in use, cached, read ahead and written behind.
	// Each is rounded up to 64 bytes; from 64 KiB on to 4096 and, on Linux and
	// macOS, not of Go's heap, so that what is evicted is free at once. On top
	// come about 500 bytes of bookkeeping a page, and what the operating system
	// caches of the page file, which it gives up when memory is short. Where
	// the system refuses memory before, the limit falls to three quarters of what
	// there is, and [Stats] says so. 0 means no limit: a page stays in memory from its first
	// use, and dirty ones are written by Commit only.
	HostLimit int64
	// DiskLimit is the bytes that the page file may have, each page rounded up
	// to 4096. Pages that change between two commits take space twice. A write
	// beyond the limit is an error, as on a full disk. 0 means no limit.
	DiskLimit int64
	// PrefetchDepth is how many pages the store looks ahead, 1024 at most. 0 means 16.
	PrefetchDepth int
	// NoPrefetch turns all reading and writing in the background off.
	NoPrefetch bool
	// Workers is how many pages are read ahead at a time, and how many written
	// behind, 64 at most. 0 means 4. They have no buffers of their own: all
	// pages on their way count to HostLimit.
	Workers int
	// Direct moves pages past the operating system's cache, where the system and the
	// file system can (O_DIRECT on Linux); where they cannot, it changes nothing, and
	// [Stats] says so. Memory that the cache would take then stays free, and disks as
	// fast as memory are read with less work. Page buffers are rounded up to 4096
	// bytes, to which pages are best a multiple of.
	Direct bool
}

func (o Options) check() (Options, error) {
	switch {
	case o.HostLimit < 0:
		return o, fmt.Errorf("offload: HostLimit is %d bytes, want 0 or more: %w", o.HostLimit, snug.ErrConfig)
	case o.DiskLimit < 0:
		return o, fmt.Errorf("offload: DiskLimit is %d bytes, want 0 or more: %w", o.DiskLimit, snug.ErrConfig)
	case o.PrefetchDepth < 0 || o.PrefetchDepth > maxDepth:
		return o, fmt.Errorf("offload: PrefetchDepth is %d pages, want 0 to %d: %w", o.PrefetchDepth, maxDepth, snug.ErrConfig)
	case o.Workers < 0 || o.Workers > maxWorkers:
		return o, fmt.Errorf("offload: Workers is %d, want 0 to %d: %w", o.Workers, maxWorkers, snug.ErrConfig)
	}
	o.PrefetchDepth = cmp.Or(o.PrefetchDepth, defaultDepth)
	o.Workers = cmp.Or(o.Workers, defaultWorkers)
	if o.NoPrefetch {
		o.PrefetchDepth = 0
	}
	return o, nil
}

// Stats counts what a Store did since it was opened.
type Stats struct {
	HostBytes  int64         // bytes of page buffers in host memory now
	HostPeak   int64         // the most HostBytes ever was
	HostLimit  int64         // that of Options, or less since the system refused memory; 0 for none
	DiskBytes  int64         // bytes of the page file
	Hits       int64         // Acquire and Pin calls that found the page in memory, or on its way there
	Misses     int64         // Acquire and Pin calls that read the page from disk
	Prefetched int64         // pages read in the background
	Evicted    int64         // pages dropped from memory for others
	ReadBytes  int64         // bytes of pages read from disk
	WriteBytes int64         // bytes of pages written to disk
	ReadTime   time.Duration // time that reads of pages took, each for itself
	WriteTime  time.Duration // time that writes of pages took, each for itself
	Stall      time.Duration // time that Acquire and Pin calls waited for disk, memory or a commit
	Direct     bool          // pages move past the operating system's cache
}

// Overlap returns the part of the time of all transfers that no call waited for, from 0
// to 1: what was hidden behind the program's own work. It is 1 if there were none.
func (s Stats) Overlap() float64 {
	if moved := s.ReadTime + s.WriteTime; moved > 0 {
		return max(0, 1-s.Stall.Seconds()/moved.Seconds())
	}
	return 1
}
