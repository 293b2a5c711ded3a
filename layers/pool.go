package layers

import (
	"cmp"
	"errors"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/meter"
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

// buffer is the memory of a tensor, with room for the longest batch so far.
type buffer struct {
	t     Tensor
	bytes int64 // of t
	key   poolKey
	all   snug.View
	free  func() error
	used  bool
	by    *meter.Holder // counts its bytes while it is in use
}

type poolKey struct {
	dt    snug.DType
	width int
	rows  rowsOf
}

// rowsOf says which rows a buffer has room for.
type rowsOf uint8

const (
	rowsOfBatch rowsOf = iota
	rowsOfTile
	rowsOfGroup   // the rows of the longest group so far, such as those that choose one expert
	rowsOfSource  // of a cross-attention
	rowsOfSection // of a Tiled
)

// pool allocates tensors and reuses freed ones. A buffer has room for capacity rows, so that
// batches of different lengths share it.
type pool struct {
	dev     *snug.Device
	monitor *meter.Monitor // counts tensors in use, unless nil
	holder  *meter.Holder  // for what computes now
	counts  bool           // tensors have no memory: their bytes are counted
	rows    int            // rows of a tensor: of the current batch, or of a part of it
	of      rowsOf         // what the rows are
	room    [5]int         // rows that a buffer holds, by what its rows are
	unused  map[poolKey][]*buffer
	all     []*buffer
	used    int64 // bytes of tensors that are in use
	peak    int64 // the largest used
	marked  int64 // the largest used since the last mark
	held    int64 // bytes of all buffers
	err     error // the first of the device, such as that its memory is full
}

// PutAll frees the tensors that a failed call left in use.
func (p *pool) PutAll() {
	for _, b := range p.all {
		if b.used {
			p.Put(&b.t)
		}
	}
}

// begin prepares for a batch, cut into up to so many tiles.
func (p *pool) begin(rows, tiles int) error {
	p.whole(rows)
	p.err, p.peak = nil, 0
	if rows <= p.room[rowsOfBatch] {
		return nil
	}
	p.room = [5]int{rows, tileRoom(rows, tiles)}
	return p.close()
}

// whole and group set the number of rows of the tensors that Get returns: the rows of the batch, or of a group whose
// number differs from batch to batch.
func (p *pool) whole(rows int) { p.rows, p.of = rows, rowsOfBatch }

// group is for the rows of a group.
func (p *pool) group(rows int) {
	p.rows, p.of = rows, rowsOfGroup
	if rows > p.room[rowsOfGroup] { // and an eighth more, so that a group that grows makes few buffers
		p.room[rowsOfGroup] = min(rows+rows/8, p.room[rowsOfBatch])
	}
}

// close frees all buffers.
func (p *pool) close() error {
	var err error
	for _, b := range p.all {
		err = errors.Join(err, b.free())
	}
	clear(p.unused)
	p.all, p.used, p.held = nil, 0, 0
	return err
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
	key, room := poolKey{dt, width, p.of}, p.room[p.of]
	b := p.take(key, p.rows*width)
	switch {
	case b != nil:
	case p.counts:
		b = &buffer{}
	default:
		all, free, err := snug.MakeView(p.dev, dt, room*width)
		if p.err = cmp.Or(p.err, err); err != nil {
			p.holder.Add(-n)
			return &Tensor{}
		}
		b = &buffer{key: key, all: all, free: free}
		p.all = append(p.all, b)
		p.held += int64(all.Bytes())
	}
	b.used, b.by, b.bytes, b.t.buffer = true, p.holder, n, b
	if !p.counts {
		b.t.View = part(b.all, 0, p.rows*width)
	}
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

// take returns an unused buffer of at least n elements, or nil. It frees buffers that have become too short.
func (p *pool) take(key poolKey, n int) *buffer {
	list := p.unused[key]
	for len(list) > 0 {
		b := list[len(list)-1]
		list = list[:len(list)-1]
		p.unused[key] = list
		if b.all.Len() >= n {
			return b
		}
		p.held -= int64(b.all.Bytes())
		p.all = slices.DeleteFunc(p.all, func(other *buffer) bool { return other == b })
		p.err = cmp.Or(p.err, b.free())
	}
	return nil
}

// count tells the monitor of n bytes that will be in use, and checks its limit.
func (p *pool) count(n int64) error {
	if p.monitor == nil {
		return nil
	}
	p.holder.Add(n)
	err := p.monitor.Check()
	if err != nil {
		p.holder.Add(-n)
	}
	return err
}

// Hold makes h count the tensors that Get returns from now on, in the Monitor of the options.
func (p *pool) Hold(h *meter.Holder) { p.holder = h }

// Give makes a holder count a tensor, in place of the holder that counts it now.
func (p *pool) Give(t *Tensor, to *meter.Holder) {
	if t == nil || t.buffer == nil || !t.buffer.used {
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
		if !b.used {
			panic("layers: a tensor was freed twice") // a layer is wrong
		}
		b.used = false
		p.used -= b.bytes
		b.by.Add(-b.bytes)
		if !p.counts {
			p.unused[b.key] = append(p.unused[b.key], b)
		}
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

// Held returns the bytes of the buffers of tensors, in use or not.
func (p *pool) Held() int64 { return p.held }

// part returns n elements of v from lo on, which v must have.
func part(v snug.View, lo, n int) snug.View {
	s, err := v.Slice(lo, lo+n)
	if err != nil {
		panic(err) // the layout of a layer is wrong
	}
	return s
}
