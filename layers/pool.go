package layers

import (
	"cmp"
	"runtime/debug"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/saturate"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/remat"
)

// Tensor is an activation, a gradient of one, or a statistic of rows: rows × width elements, row-major. A Tensor of
// [Pass.Get] belongs to the pass; one with a View of the caller's is the caller's.
type Tensor struct {
	snug.View
	buffer *buffer
}

// Bytes returns the bytes of the elements.
func (t *Tensor) Bytes() int64 {
	if t.buffer != nil {
		return t.buffer.bytes
	}
	return int64(t.View.Bytes())
}

// pool allocates tensors from an arena, so that tensors of other sizes reuse the memory of freed ones.
type pool struct {
	dev     *snug.Device
	monitor *meter.Monitor // counts tensors in use, unless nil
	holder  *meter.Holder  // counts the tensors that get returns, unless nil
	counts  bool           // a dry run: tensors have no memory, their bytes are counted
	rows    int            // rows of a new tensor: of the batch, or of the tile that computes
	arena   arena
	tensors []*buffer // in use
	spare   []*buffer // freed, to be filled again
	used    int64     // bytes of the tensors in use
	peak    int64     // the largest used since begin
	most    int64     // the largest used of all batches
	longest int       // the most rows of a batch
	marked  int64     // the largest used since the last Mark
	err     error     // the first error of the device, of the monitor's limit or of Pass.Fail
}

// buffer is a tensor and its block.
type buffer struct {
	t     Tensor
	bytes int64 // of t, without padding
	at    block
	index int           // in pool.tensors
	by    *meter.Holder // counts the bytes
}

// PutAll frees the tensors that a failed call left in use.
func (p *pool) PutAll() {
	for len(p.tensors) > 0 {
		p.Put(&p.tensors[len(p.tensors)-1].t)
	}
}

// begin prepares for a batch. Pieces, which would add up while batches grow, become one before a batch of more rows than all others.
func (p *pool) begin(rows int) {
	p.rows, p.err, p.peak = rows, nil, 0
	if rows > p.longest && len(p.tensors) == 0 && len(p.arena.pieces) > 1 {
		p.err = p.one(p.most)
	}
	p.longest = max(p.longest, rows)
}

// withGaps returns the bytes of a piece for tensors of so many bytes.
func withGaps(bytes int64) int64 { return bytes + bytes/32 + 1<<16 }

// one makes one piece, for tensors of so many bytes, in place of all.
func (p *pool) one(bytes int64) error {
	if err := p.close(); err != nil {
		return err
	}
	n := withGaps(bytes)
	if p.dev.IsCPU() && n >= 1<<20 { // one piece does not fit into memory that others left, which would be resident beside it
		debug.FreeOSMemory()
	}
	return p.arena.grow(p.dev, n)
}

// Reserve allocates the memory of a plan's tensors in one piece: the peak bytes that the plan predicts from costs c, 1/32 more for
// gaps between tensors, and 64 KiB for alignment. Without it, or where c is too low, tensors allocate pieces as they need them,
// which together are larger.
//
// It does nothing while tensors are in use, if the pool already holds that much, if the plan is not valid for c, or if the peak
// exceeds the monitor's limit: then the Get that does not fit fails. Errors are those of [snug.MakeView].
func (p *pool) Reserve(plan remat.Plan, c remat.Costs) error {
	r, err := plan.Simulate(c)
	if err != nil || len(p.tensors) > 0 || withGaps(r.Peak) <= p.arena.held() || p.monitor.Fits(meter.OnDevice, r.Peak) != nil {
		return nil
	}
	return p.one(r.Peak)
}

// close frees all memory.
func (p *pool) close() error {
	p.tensors, p.used = nil, 0
	return p.arena.close()
}

// made reports whether a pool is of NewPass or counting.
func (p *pool) made() bool { return p != nil && p.dev != nil }

// get returns a tensor [rows, width] of type dt with arbitrary contents, for the rows of the batch or of the tile that computes.
// If the device or the monitor's limit has no room, it keeps the error in p.err and returns an empty tensor.
func (p *pool) get(dt snug.DType, width int) *Tensor {
	if !p.made() || width < 0 {
		return &Tensor{}
	}
	n := saturate.Mul(int64(dt.Size())*int64(p.rows), int64(width))
	if err := p.count(n); err != nil {
		p.err = cmp.Or(p.err, err)
		return &Tensor{}
	}
	if len(p.spare) == 0 {
		p.spare = append(p.spare, &buffer{})
	}
	last := len(p.spare) - 1
	b := p.spare[last]
	p.spare = p.spare[:last]
	*b = buffer{bytes: n, index: len(p.tensors), by: p.holder}
	if !p.counts {
		var err error
		if b.at, err = p.arena.take(p.dev, n); err != nil {
			p.err = cmp.Or(p.err, err)
			p.holder.Add(-n)
			return &Tensor{}
		}
		bytes := p.arena.view(b.at, int(n))
		b.t.View = device.View(p.dev, *device.Mem(&bytes), dt, p.rows*width)
	}
	b.t.buffer = b
	p.tensors = append(p.tensors, b)
	p.used += n
	p.peak, p.most, p.marked = max(p.peak, p.used), max(p.most, p.used), max(p.marked, p.used)
	return &b.t
}

// marks makes a pool a [remat.Monitor], so that a chain measures the transient bytes of its stages.
type marks struct{ *pool }

// Mark implements [remat.Monitor].
func (m marks) Mark() (held, peak int64) {
	held, peak = m.used, max(m.marked, m.used)
	m.marked = held
	return held, peak
}

// count adds n bytes to the holder that counts now, or returns an error that wraps [snug.ErrNoMemory] if they exceed the
// monitor's limit.
func (p *pool) count(n int64) error {
	err := p.monitor.Fits(meter.OnDevice, n)
	if err == nil {
		p.holder.Add(n)
	}
	return err
}

// Hold makes h, a holder of Options.Monitor, count the tensors that Get returns from now on.
func (p *pool) Hold(h *meter.Holder) { p.holder = h }

// Give moves the bytes of a tensor from the holder that counts them to another one.
func (p *pool) Give(t *Tensor, to *meter.Holder) {
	if t == nil || t.buffer == nil {
		return
	}
	t.buffer.by.Add(-t.Bytes())
	to.Add(t.Bytes())
	t.buffer.by = to
}

// Put frees tensors for reuse. It ignores nil and tensors that Get did not return. It panics if a tensor is freed twice.
func (p *pool) Put(list ...*Tensor) {
	for _, t := range list {
		if t == nil || t.buffer == nil {
			continue
		}
		b := t.buffer
		if b.index >= len(p.tensors) || p.tensors[b.index] != b {
			panic("layers: a tensor was freed twice")
		}
		last := p.tensors[len(p.tensors)-1]
		p.tensors[b.index], last.index = last, b.index
		p.tensors = p.tensors[:len(p.tensors)-1]
		p.spare = append(p.spare, b)
		p.used -= b.bytes
		b.by.Add(-b.bytes)
		b.t.View = snug.View{} // a freed set must not keep the memory of a piece that is freed later
		p.arena.put(b.at)
	}
}

// Measure calls do, and returns the peak of its tensors in bytes, above what was in use before. It returns 0 for a nil do.
func (p *pool) Measure(do func()) int64 {
	if do == nil {
		return 0
	}
	before, peak := p.used, p.peak
	p.peak = before
	do()
	most := p.peak - before
	p.peak = max(p.peak, peak)
	return most
}

// Used returns the bytes of tensors in use.
func (p *pool) Used() int64 { return p.used }

// Peak returns the largest number of bytes in use since the batch began.
func (p *pool) Peak() int64 { return p.peak }

// Held returns the bytes of memory for tensors, in use or not.
func (p *pool) Held() int64 { return p.arena.held() }

// part returns elements lo to lo+n-1 of v. It panics if v is shorter.
func part(v snug.View, lo, n int) snug.View {
	s, err := v.Slice(lo, lo+n)
	if err != nil {
		panic(err)
	}
	return s
}
