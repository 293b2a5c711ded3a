package transformer

import (
	"cmp"
	"errors"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/meter"
)

// tensor is an activation, a gradient of one, or a statistic of rows: rows × width elements.
type tensor struct {
	snug.View
	buffer *buffer
}

// buffer is the memory of a tensor, with room for the longest batch so far.
type buffer struct {
	t    tensor
	key  poolKey
	all  snug.View
	free func() error
	used bool
	by   *meter.Holder // counts its bytes while it is in use
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
	rowsOfGroup // the rows of the longest group so far, such as those that choose one expert
)

// pool allocates tensors and reuses freed ones. A buffer has room for capacity rows, so that
// batches of different lengths share it.
type pool struct {
	dev     *snug.Device
	monitor *meter.Monitor // counts tensors in use, unless nil,
	holder  *meter.Holder  // for what computes now
	rows    int            // rows of a tensor: of the current batch, or of a part of it
	of      rowsOf         // what the rows are
	room    [3]int         // rows that a buffer holds, by what its rows are
	unused  map[poolKey][]*buffer
	all     []*buffer
	used    int64 // bytes of tensors that are in use
	peak    int64 // the largest used
	held    int64 // bytes of all buffers
	err     error // the first of the device, such as that its memory is full
}

func newPool(dev *snug.Device, monitor *meter.Monitor) *pool {
	return &pool{dev: dev, monitor: monitor, unused: map[poolKey][]*buffer{}}
}

// putAll frees the tensors that a failed call left in use.
func (p *pool) putAll() {
	for _, b := range p.all {
		if b.used {
			p.put(&b.t)
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
	p.room = [3]int{rows, tileRoom(rows, tiles), 0}
	return p.close()
}

// whole, cut and group set the number of rows of the tensors that get returns: the rows of the batch, of a tile, or of
// a group, whose number differs from batch to batch.
func (p *pool) whole(rows int) { p.rows, p.of = rows, rowsOfBatch }
func (p *pool) cut(rows int)   { p.rows, p.of = rows, rowsOfTile }

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

// get returns a tensor of the batch's rows, or of the tile's, with arbitrary contents. Where the device or the
// monitor's limit has no room it keeps the error and returns an empty tensor.
func (p *pool) get(dt snug.DType, width int) *tensor {
	if err := p.count(int64(dt.Size() * p.rows * width)); err != nil {
		p.err = cmp.Or(p.err, err)
		return &tensor{}
	}
	key, room := poolKey{dt, width, p.of}, p.room[p.of]
	b := p.take(key, p.rows*width)
	if b == nil {
		all, free, err := snug.MakeView(p.dev, dt, room*width)
		if p.err = cmp.Or(p.err, err); err != nil {
			p.holder.Add(-int64(dt.Size() * p.rows * width))
			return &tensor{}
		}
		b = &buffer{key: key, all: all, free: free}
		b.t.buffer = b
		p.all = append(p.all, b)
		p.held += int64(all.Bytes())
	}
	b.used, b.by = true, p.holder
	b.t.View = part(b.all, 0, p.rows*width)
	p.used += int64(b.t.Bytes())
	p.peak = max(p.peak, p.used)
	return &b.t
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

// give makes the holder to count a tensor, in place of the holder that counts it now.
func (p *pool) give(t *tensor, to *meter.Holder) {
	if t.buffer == nil || !t.buffer.used {
		return
	}
	n := int64(t.Bytes())
	t.buffer.by.Add(-n)
	to.Add(n)
	t.buffer.by = to
}

// put frees tensors for reuse. It ignores nil and the empty tensors of a failed get.
func (p *pool) put(list ...*tensor) {
	for _, t := range list {
		if t == nil || t.buffer == nil {
			continue
		}
		b := t.buffer
		if !b.used {
			panic("transformer: a tensor was freed twice") // a stage is wrong
		}
		b.used = false
		p.used -= int64(t.Bytes())
		p.unused[b.key] = append(p.unused[b.key], b)
		b.by.Add(-int64(t.Bytes()))
	}
}

// part returns n elements of v from lo on, which v must have.
func part(v snug.View, lo, n int) snug.View {
	s, err := v.Slice(lo, lo+n)
	if err != nil {
		panic(err) // the layout of the model is wrong
	}
	return s
}
