package accum

import (
	"fmt"
	"math"
	"sync"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/crc32c"
)

// Pages is memory for weights that the ranks of data-parallel training divide, as ZeRO-3 divides parameters
// (Rajbhandari et al. 2020, arXiv:1910.02054). Each rank holds its part of every page, contiguous and of 1/ranks of its
// bytes, rounded up to a multiple of 1024. When a layer uses a page, the ranks gather it:
//
//	pages, err := accum.NewPages(world, accum.PagesOptions{})  // world: a Reducer
//	model, err := transformer.Open(dir, transformer.Options{Pages: pages, PageFloats: true})
//	t, err := train.New(model, train.Options{Ranks: train.Ranks{Reducer: pages, Shard: plan.ShardWeights}}) // not world
//	...
//	err = pages.Close()                                       // all ranks; then close world
//
// Pages is a Storage of packages qlora and transformer. The first Acquire of a key gives zeroed memory. The caller fills
// it, and all ranks write the same bytes, as ranks do that read one folder. After Release the rank keeps its part. A later
// Acquire gathers the parts of all ranks. Weights that train change by [Pages.Update], in which each rank changes its part.
//
// # Order
//
// All ranks call Acquire for the same keys in the same order. If a Pages is the Storage of a model, all ranks therefore
// make the same number of passes over the model, and call its Evaluate, Generate and Save together. Package train does so.
// A model whose rows choose their pages, such as one with experts, does not keep this order.
//
// A Pages is also a [Reducer], and a [Broadcaster], an [AllToAller] and a [SendReceiver] if the Reducer below is one.
// Gathers and calls of these methods reach the Reducer one after the other, in the order in which the program made them.
// Make all calls through the Pages, none past it. Do not reduce on one goroutine while another acquires pages: the order
// would differ from rank to rank. A [Window] or a [Sharded] with the Pages as its Reducer keeps the order, although it
// reduces while the backward pass goes on. A Pages is safe for concurrent use, if the program keeps the order of its calls.
//
// # Pages that come next
//
// For each two successive pages Pages remembers the third. When the two come again, it gathers the third on a goroutine,
// while the caller computes. Two pages also tell the direction, so that forward and backward passes are both predicted. A
// wrong guess costs the transfer. The guess depends on the order of calls alone, and all ranks guess the same.
//
// # Errors
//
// With each gather the ranks compare the key, the size, the keys acquired before, and a CRC-32C of the bytes that each
// rank has written. If they differ, all ranks get an error that names the page and the rank, and wraps [snug.ErrConfig]. If
// the part of a rank arrives without its checksum, the error wraps [snug.ErrCorrupt], and ranks where it arrives whole get
// an error from their next call. The first error, also of the Reducer, stays: all later calls return it. A panic of the
// Reducer reaches the caller, but while Pages gathers ahead it becomes an error.
//
// # Memory
//
// For pages of n bytes in all, a rank holds n/ranks bytes, the pages in use, and up to PagesOptions.Held; also the memory
// of pages above Held, as much as was in use at one time. It keeps an entry for each sequence of three keys. A gather is
// one AllGather, in which each rank sends its part and 44 bytes; it allocates a few hundred bytes.
type Pages struct {
	reducer    Reducer
	rank, size int
	order      order

	mu          sync.Mutex
	o           PagesOptions
	index       map[string]*page
	kept        []*page                                          // whole pages that nobody uses; the least recently used one is first
	spare       []slot                                           // memory of whole pages to use again; the oldest is first
	guess       *page                                            // the kept page that comes next
	largest     int64                                            // bytes of the largest page that can be kept
	largestOver int64                                            // bytes of the largest one that cannot
	bytes       struct{ parts, inUse, kept, spare, large int64 } // large: memory of pages above Held, in use or not
	most        int64                                            // bytes of pages in use at one time, without large ones
	peak        int64

	before, last string // the keys that were acquired last
	successors   map[pair]string
	history      uint64 // a hash of all keys that were acquired
}

// PagesOptions configure a [Pages].
type PagesOptions struct {
	// Held is how many bytes of memory of whole pages a rank keeps besides those in use: the page that comes next, and pages that it
	// need not gather again. The least recently used ones go first. 0 is two of the largest page. A page of more than Held
	// bytes, such as an embedding among layers, is gathered when it is acquired and not kept.
	Held int64
}

const longestPage = 1 << 40 // bytes

// pair are two keys that were acquired one after the other.
type pair struct{ before, last string }

// page is a blob.
type page struct {
	key     string
	size    int
	part    []byte // of this rank
	sums    sums
	whole   []byte // while it is in use or kept
	slot    slot   // the memory in which it lies
	job     *job   // that gathers whole, nil if nothing does
	users   int
	fresh   bool // nothing was written
	dirty   bool // and some user has written
	changes bool // Update is changing part
}

// sums are checksums of what this rank has written.
type sums struct{ whole, part uint32 }

// NewPages returns a Pages whose pages the ranks of r divide. It makes no calls of r. The error wraps [snug.ErrConfig] for a
// nil Reducer, a Reducer with a Rank that is not 0 to Size-1, and a negative Held.
func NewPages(r Reducer, o PagesOptions) (*Pages, error) {
	if r == nil {
		return nil, fmt.Errorf("accum: NewPages wants a Reducer: %w", snug.ErrConfig)
	}
	p := &Pages{reducer: r, rank: r.Rank(), size: r.Size(), o: o, index: map[string]*page{}, successors: map[pair]string{}}
	switch {
	case p.rank < 0 || p.rank >= p.size:
		return nil, fmt.Errorf("accum: NewPages: rank %d of %d: %w", p.rank, p.size, snug.ErrConfig)
	case o.Held < 0:
		return nil, fmt.Errorf("accum: NewPages: Held is %d bytes, want 0 or more: %w", o.Held, snug.ErrConfig)
	}
	return p, nil
}

// Acquire returns the size bytes of a page, at an address that is a multiple of 8. They stay valid until Release. The
// bytes of a page that was never written are 0. A page can be acquired several times, and then has as many users.
//
// The error wraps [snug.ErrConfig] for an empty key, a negative size, a page that Update changes, a closed Pages, and where
// the ranks differ, [snug.ErrCorrupt] for a damaged page, and [snug.ErrNoMemory] for a page of more than 2^40 bytes; or it
// comes from the Reducer. See also [Pages] on errors.
func (p *Pages) Acquire(key string, size int) ([]byte, error) {
	if err := p.usable("Acquire"); err != nil {
		return nil, err
	}
	if key == "" || size < 0 {
		return nil, fmt.Errorf("accum: Acquire: key %q of %d bytes, want a key and 0 bytes or more: %w", key, size, snug.ErrConfig)
	}
	if size > math.MaxInt/2 || int64(size) > longestPage {
		return nil, fmt.Errorf("accum: Acquire: key %q of %d bytes, want 2^40 or less: %w", key, size, snug.ErrNoMemory)
	}
	blob, j, runs, err := p.acquire(key, size)
	if err != nil || j == nil {
		return blob, err
	}
	if runs {
		j.run()
	}
	<-j.done
	if !j.ok {
		return nil, p.order.failed()
	}
	return blob, nil
}

// acquire returns a page, and the job that makes it whole if there is one. runs says that the caller runs the job.
func (p *Pages) acquire(key string, size int) (blob []byte, j *job, runs bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.order.failed(); err != nil {
		return nil, nil, false, err
	}
	g := p.index[key]
	if g != nil && g.changes {
		return nil, nil, false, fmt.Errorf("accum: Acquire: page %q is being updated: %w", key, snug.ErrConfig)
	}
	p.note(key)
	if g != nil && g.size != size {
		j, err := p.job(g, size, nil) // it ends with an error, on all ranks
		return nil, j, true, err
	}
	p.guess = nil
	p.sees(int64(size))
	switch {
	case g == nil:
		g = &page{key: key, size: size, fresh: true}
		p.take(g)
		clear(g.whole)
		p.index[key] = g
	case p.size == 1 && !g.fresh:
		g.users++
		return g.part, nil, false, nil
	case g.whole == nil:
		p.take(g)
		if j, err = p.job(g, size, g.whole); err != nil {
			return nil, nil, false, err
		}
		g.job, runs = j, true
	}
	p.use(g)
	p.gatherNext()
	p.measure()
	return g.whole[:size:size], g.job, runs, nil
}

// note takes down the order of keys.
func (p *Pages) note(key string) {
	p.successors[pair{p.before, p.last}] = key
	p.before, p.last = p.last, key
	p.history = hash(p.history, key)
}

// gatherNext begins to gather the page that followed the last two keys before, if there is room.
func (p *Pages) gatherNext() {
	next := p.index[p.successors[pair{p.before, p.last}]]
	switch {
	case p.size == 1 || next == nil || next.users > 0 || next.changes:
		return
	case next.whole != nil:
		p.guess = next
		return
	case p.slotBytes(next.size) > p.held():
		return
	}
	p.makeRoom(p.slotBytes(next.size))
	p.take(next)
	j, err := p.job(next, next.size, next.whole)
	if err != nil {
		return // a call on another goroutine has failed, and so will the next one
	}
	next.job, p.guess = j, next
	p.keep(next)
	go j.runAhead()
}

// Release ends the use of a page; dirty says that this rank has written to it. When nobody uses the page any more, the
// rank keeps its part of what was written, or the whole page as far as Held allows. A page that nobody has ever written to
// is forgotten.
//
// The error wraps [snug.ErrConfig] for a page that is not in use, and a closed Pages; or it is the error of an earlier call.
func (p *Pages) Release(key string, dirty bool) error {
	if err := p.usable("Release"); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.order.failed(); err != nil {
		return err
	}
	g := p.index[key]
	if g == nil || g.users == 0 {
		return fmt.Errorf("accum: Release: page %q is not in use: %w", key, snug.ErrConfig)
	}
	g.dirty = g.dirty || dirty
	if g.users--; g.users > 0 {
		return nil
	}
	if g.whole != nil { // else there is one rank, and its part is the page
		if !p.large(int64(g.size)) {
			p.bytes.inUse -= g.slot.bytes
		}
		p.unused(g)
	}
	g.dirty = false
	p.trim(0)
	p.measure()
	return nil
}

// unused keeps what has to be kept of a page that nobody uses.
func (p *Pages) unused(g *page) {
	switch {
	case g.dirty && p.size == 1:
		if p.large(g.slot.bytes) {
			p.bytes.large -= g.slot.bytes
		}
		g.part, g.whole, g.slot = g.whole, nil, slot{}
		g.fresh, p.bytes.parts = false, p.bytes.parts+int64(g.size)
	case g.dirty:
		lo, hi := p.partOf(g.size, p.rank)
		if g.fresh {
			g.part = make([]byte, hi-lo)
			g.fresh, p.bytes.parts = false, p.bytes.parts+int64(hi-lo)
		}
		copy(g.part, g.whole[lo:hi])
		g.sums = sums{crc32c.Checksum(g.whole), crc32c.Checksum(g.part)}
		p.free(g) // the next Acquire compares what the ranks have written
	case g.fresh:
		delete(p.index, g.key)
		p.free(g)
	case p.large(int64(g.size)):
		p.free(g)
	default:
		p.keep(g)
		p.makeRoom(0)
	}
}

// usable returns an error unless NewPages made the Pages.
func (p *Pages) usable(op string) error {
	if p == nil || p.reducer == nil {
		return fmt.Errorf("accum: %s: NewPages has not made the Pages: %w", op, snug.ErrConfig)
	}
	return nil
}
