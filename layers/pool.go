package layers

import (
	"cmp"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/device"
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

// pool hands out tensors. Their memory comes from an arena, so that it is used again by tensors of any size.
type pool struct {
	dev     *snug.Device
	monitor *meter.Monitor // counts tensors in use, unless nil
	holder  *meter.Holder  // for what computes now
	counts  bool           // tensors have no memory: their bytes are counted
	rows    int            // rows of a tensor: of the current batch, or of a part of it
	arena   arena
	tensors []*buffer // of the batch
	spare   []*buffer // without a tensor
	used    int64     // bytes of tensors that are in use
	peak    int64     // the largest used
	marked  int64     // the largest used since the last mark
	err     error     // the first of the device, such as that its memory is full
}

// buffer is a tensor and its block.
type buffer struct {
	t     Tensor
	bytes int64 // of t
	at    block
	index int           // in tensors
	by    *meter.Holder // counts its bytes
}

// PutAll frees the tensors that a failed call left in use.
func (p *pool) PutAll() {
	for len(p.tensors) > 0 {
		p.Put(&p.tensors[len(p.tensors)-1].t)
	}
}

// begin prepares for a batch.
func (p *pool) begin(rows int) { p.rows, p.err, p.peak = rows, nil, 0 }

// Reserve makes the memory that tensors take while a chain of such costs runs a plan, in one piece. Without it, or where the costs are
// too low, tensors get memory as they need it, in several pieces, of which they use less. It does nothing while there are tensors.
// Errors are those of [snug.MakeView].
func (p *pool) Reserve(plan remat.Plan, c remat.Costs) error {
	r, err := plan.Simulate(c)
	bytes := r.Peak + r.Peak/32 + 1<<16 // tensors that stay between others leave gaps, and blocks are multiples of their alignment
	if err != nil || p.used > 0 || bytes <= p.arena.held() || p.monitor.Fits(meter.OnDevice, r.Peak) != nil {
		return nil // over the monitor's limit, the tensor that does not fit is the error
	}
	return cmp.Or(p.arena.close(), p.arena.grow(p.dev, bytes))
}

// close frees all memory.
func (p *pool) close() error {
	p.tensors, p.used = nil, 0
	return p.arena.close()
}

// made reports whether a pool is of NewPass or counting.
func (p *pool) made() bool { return p != nil && p.dev != nil }

// get returns a tensor of the batch's rows, or of the tile's, with arbitrary contents. Where the device or the
// monitor's limit has no room it keeps the error and returns an empty tensor.
func (p *pool) get(dt snug.DType, width int) *Tensor {
	if !p.made() || width < 0 {
		return &Tensor{}
	}
	n := int64(dt.Size()) * int64(p.rows) * int64(width)
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
	p.peak, p.marked = max(p.peak, p.used), max(p.marked, p.used)
	return &b.t
}

// marks makes a pool the Monitor of a chain, which measures the transient bytes of its stages.
type marks struct{ *pool }

// Mark implements [remat.Monitor].
func (m marks) Mark() (held, peak int64) {
	held, peak = m.used, max(m.marked, m.used)
	m.marked = held
	return held, peak
}

// count tells the monitor of n bytes that will be in use, and checks its limit.
func (p *pool) count(n int64) error {
	err := p.monitor.Fits(meter.OnDevice, n)
	if err == nil {
		p.holder.Add(n)
	}
	return err
}

// Hold makes h count the tensors that Get returns from now on, in the Monitor of the options.
func (p *pool) Hold(h *meter.Holder) { p.holder = h }

// Give makes a holder count a tensor, in place of the holder that counts it now.
func (p *pool) Give(t *Tensor, to *meter.Holder) {
	if t == nil || t.buffer == nil {
		return
	}
	t.buffer.by.Add(-t.Bytes())
	to.Add(t.Bytes())
	t.buffer.by = to
}

// Put frees tensors for reuse. It ignores nil, and tensors that are not of Get.
func (p *pool) Put(list ...*Tensor) {
	for _, t := range list {
		if t == nil || t.buffer == nil {
			continue
		}
		b := t.buffer
		if b.index >= len(p.tensors) || p.tensors[b.index] != b {
			panic("layers: a tensor was freed twice") // a layer is wrong
		}
		last := p.tensors[len(p.tensors)-1]
		p.tensors[b.index], last.index = last, b.index
		p.tensors = p.tensors[:len(p.tensors)-1]
		p.spare = append(p.spare, b)
		p.used -= b.bytes
		b.by.Add(-b.bytes)
		p.arena.put(b.at)
	}
}

// Measure calls do, and returns how many bytes of tensors it held at most besides those that were in use before.
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

// Peak returns the most bytes of tensors that were in use at a time since the batch began.
func (p *pool) Peak() int64 { return p.peak }

// Held returns the bytes of memory for tensors, in use or not.
func (p *pool) Held() int64 { return p.arena.held() }

// part returns n elements of v from lo on, which v must have.
func part(v snug.View, lo, n int) snug.View {
	s, err := v.Slice(lo, lo+n)
	if err != nil {
		panic(err) // the layout of a layer is wrong
	}
	return s
}
