// Package offload trains what does not fit in memory. Named pages live in a file and are
// brought into host memory, and from there onto a device, while they are used, under limits
// in bytes.
//
//	store, err := offload.Open(dir, offload.Options{HostLimit: 64 << 20})
//	opt, err := quant8.New(quant8.Default(), quant8.Options{Bits: 32, Storage: store})
//	err = opt.Add("w", len(w)) // the state of the optimizer becomes pages of the store
//	for each step {
//		opt.Advance(lr)
//		err = opt.Step("w", snug.ViewOf(w), snug.ViewOf(g), 1)
//	}
//	err = store.Commit() // all pages become durable together; BeginCommit does not stop the steps
//
// The package follows ZeRO-Offload (Ren et al. 2021, arXiv:2101.06840) and ZeRO-Infinity
// (Rajbhandari et al. 2021, arXiv:2104.07857) on one machine.
//
//   - A [Store] holds pages. A blob is one page under a key. A [Tensor] is a vector of a
//     fixed element type, cut into pages of equal length. [Attach] makes the pages of a
//     tensor from a file of weights. [Contents] and [Verify] inspect a store.
//   - An [Updater] keeps float32 weights and gradients in a Store too, and steps page by
//     page with an optimizer whose state is there.
//   - [Greedy] and [Optimal] choose which layers of a model stay on a device. The result is
//     a [DeviceMap], and a [Runner] pages the other layers in, forward and backward.
//   - A [DeviceTier] holds pages in the memory of a device. A [Mover] copies vectors between
//     host memory and a device while the device computes; [Tensor.LoadTo] and
//     [Tensor.SaveFrom] copy tensors with it.
//   - [MeasurePages] finds the size of pages that suits a file system.
//
// # Order
//
// Training uses its pages in the same order in every step. The store records the order of
// all Acquire and Pin calls. When the order has repeated, the store knows the next use of
// every page: it evicts the page whose next use is farthest (Belady 1966), and in the
// background it reads the coming pages ahead and writes dirty pages before they are evicted.
// Until then it evicts the page that was used least recently and reads ahead what
// [Store.Prefetch] names.
//
// # Durability
//
// [Store.Commit] makes the contents of all pages durable together. A page that changes after
// a commit is written to a part of the file that the commit does not use. Therefore [Open]
// gives exactly the last commit, whatever happens to the process or the machine, and
// [Store.Recovered] reports that the process before did not close the store. Every page and
// the index have a CRC-32C that is checked on each read; a [PageError] names the file, the
// page and the offset of the damage. The price is disk space for the pages that change between
// two commits, up to twice the state.
//
// [Store.BeginCommit] commits while training goes on. It takes a snapshot of all pages and returns;
// [Commit.Wait] waits until the snapshot is durable. A page that is pinned before the commit has
// written it is first copied, if HostLimit has space, or else written. If the computation of the
// steps takes longer than the writing, it hides the commit. Steps that are bound by the disk share
// the disk with the commit. The page file may be three times as large as the state.
//
// # Errors
//
// Errors wrap the sentinels of package snug; errors of files also wrap the error of the
// operating system, such as syscall.ENOSPC, and errors of limits wrap [snug.ErrNoMemory].
// After such an error the last commit is readable, the pages in memory are intact, and the
// call can be repeated. An Updater cannot be used after an error in a step: close the store,
// open it again, which gives the last commit, and continue with [Updater.Resume] of a new
// Updater.
//
// A panic of a caller's function (a Stepper, a Source, or what a Runner calls) reaches the
// goroutine of the call that needs the function's result, also when the function ran in the
// background. It leaves nothing pinned. The same holds for [runtime.Goexit].
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
	defaultDepth   = 16 // pages
	defaultWorkers = 4
)

// Options configure a Store. The zero value is valid.
type Options struct {
	// HostLimit is the maximum of bytes that the store's page buffers take in host memory:
	// pages in use, cached, read ahead and being written. A buffer is rounded up to 64 bytes,
	// and from 64 KiB on to 4096 bytes. On Linux and macOS buffers from 64 KiB on are not
	// part of Go's heap, so that evicted memory is free at once. In addition a page takes
	// about 500 bytes of bookkeeping, and the operating system caches the page file as long
	// as memory is free. If the system refuses memory below the limit, the limit falls to
	// three quarters of what the store holds then, and [Stats] shows that. 0 means no limit:
	// a page stays in memory from its first use, and only Commit writes dirty pages.
	HostLimit int64
	// DiskLimit is the maximum of bytes of the page file, each page rounded up to 4096.
	// Pages that change between two commits take space twice, and three times while
	// BeginCommit's commit is under way. A write beyond the limit is an error, as on a full
	// disk; while a commit is under way it waits. 0 means no limit.
	DiskLimit int64
	// PrefetchDepth is the number of pages that the store looks ahead, 1024 at most. 0
	// means 16.
	PrefetchDepth int
	// NoPrefetch turns all reading and writing in the background off.
	NoPrefetch bool
	// Workers is the number of pages that are read at the same time in the background,
	// and the number that are written, 64 at most. 0 means 4. HostLimit includes the
	// buffers of these pages.
	Workers int
	// Direct reads and writes pages without the operating system's cache if the system
	// and the file system support it (O_DIRECT on Linux). If they do not, it changes
	// nothing, and [Stats] shows that. The cache takes no memory then, and reading from
	// fast disks takes less work. Page buffers are rounded up to 4096 bytes; page sizes
	// that are multiples of 4096 suit best.
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
	HostPeak   int64         // the maximum of HostBytes so far
	HostLimit  int64         // the limit of Options, or less after the system refused memory; 0 means no limit
	DiskBytes  int64         // bytes of the page file
	Hits       int64         // Acquire and Pin calls that found the page in memory or being read
	Misses     int64         // Acquire and Pin calls that read the page from disk
	Prefetched int64         // pages read in the background
	Evicted    int64         // pages dropped from memory to make space for others
	ReadBytes  int64         // bytes of pages read from disk
	WriteBytes int64         // bytes of pages written to disk
	Copied     int64         // pages copied because a commit under way had yet to write them
	ReadTime   time.Duration // sum of the times of all reads of pages
	WriteTime  time.Duration // sum of the times of all writes of pages
	Stall      time.Duration // time that Acquire and Pin calls waited for disk, memory or a commit
	Direct     bool          // pages do not pass through the operating system's cache
}

// Overlap returns the share of the time of all transfers that no call waited for, from 0
// to 1: the share that the program's own work hides. It is 1 without transfers.
func (s Stats) Overlap() float64 {
	if moved := s.ReadTime + s.WriteTime; moved > 0 {
		return max(0, 1-s.Stall.Seconds()/moved.Seconds())
	}
	return 1
}
