package main

import (
	"cmp"
	"fmt"
	"slices"
	"sync"

	"github.com/snug-ml/snug"
)

// component is a part of the memory of a training run.
type component int

const (
	weights    component = iota // what the forward pass reads
	masters                     // float32 copies of low-precision weights
	gradients                   // accumulated over the window
	optimizer                   // the optimizer's state
	activation                  // kept or passing through between layers
	workspace                   // scratch of the layers
	numComponents
)

var componentNames = [numComponents]string{
	"weights", "master weights", "gradients", "optimizer state", "activations", "workspace",
}

// bytesBy is a number of bytes for each component.
type bytesBy [numComponents]int64

func (b bytesBy) total() (sum int64) {
	for _, n := range b {
		sum += n
	}
	return sum
}

// meter counts the bytes that a run holds, by component.
type meter struct {
	mu        sync.Mutex
	now, peak bytesBy
	peakTotal int64
	limit     int64 // of the total; 0 for none
}

// add counts n more bytes, or fewer when n is negative.
func (m *meter) add(c component, n int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now[c] += n
	m.note()
}

// set says how many bytes a component holds, for parts that count themselves.
func (m *meter) set(c component, now, peak int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now[c] = now
	m.peak[c] = max(m.peak[c], peak)
	m.note()
}

// check returns an error when the total has exceeded the limit.
func (m *meter) check() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.limit == 0 || m.peakTotal <= m.limit {
		return nil
	}
	return fmt.Errorf("%d bytes are needed or more, %d are allowed: %w", m.peakTotal, m.limit, snug.ErrNoMemory)
}

func (m *meter) note() {
	for c, n := range m.now {
		m.peak[c] = max(m.peak[c], n)
	}
	m.peakTotal = max(m.peakTotal, m.now.total())
}

// tensor is a vector whose bytes a meter counts.
type tensor struct {
	snug.View
	part component
}

func bytesOf(t *tensor) int64 { return int64(t.Bytes()) }

// pool makes tensors and uses freed ones again. Its memory counts while it is
// in use.
type pool struct {
	dev   *snug.Device
	meter *meter
	free  map[poolKey][]*tensor
	err   error // the first of the device, such as that its memory is full
}

type poolKey struct {
	dt snug.DType
	n  int
}

func newPool(dev *snug.Device, m *meter) *pool {
	return &pool{dev: dev, meter: m, free: map[poolKey][]*tensor{}}
}

// get returns a tensor of n elements with arbitrary contents. Where the device
// has no room it keeps the error and returns an empty tensor.
func (p *pool) get(part component, dt snug.DType, n int) *tensor {
	key := poolKey{dt, n}
	p.meter.add(part, int64(n*dt.Size()))
	if err := p.meter.check(); err != nil {
		p.err = cmp.Or(p.err, err)
		p.meter.add(part, -int64(n*dt.Size()))
		return &tensor{part: part}
	}
	list := p.free[key]
	if len(list) == 0 {
		v, err := newVector(p.dev, dt, n)
		p.err = cmp.Or(p.err, err)
		return &tensor{v, part}
	}
	t := list[len(list)-1]
	t.part = part
	p.free[key] = list[:len(list)-1]
	return t
}

// put gives tensors back. A nil tensor is nothing.
func (p *pool) put(list ...*tensor) {
	for _, t := range list {
		if t == nil {
			continue
		}
		key := poolKey{t.DType(), t.Len()}
		if slices.Contains(p.free[key], t) {
			panic(fmt.Sprintf("a tensor of %d %s was freed twice", t.Len(), t.DType()))
		}
		p.meter.add(t.part, -bytesOf(t))
		p.free[key] = append(p.free[key], t)
	}
}

// newVector allocates n zeroed elements, which live as long as the device.
func newVector(dev *snug.Device, dt snug.DType, n int) (snug.View, error) {
	v, _, err := snug.MakeView(dev, dt, n)
	return v, err
}

// sub returns n elements of v from lo on. The caller knows that they are there.
func sub(v snug.View, lo, n int) snug.View {
	s, err := v.Slice(lo, lo+n)
	if err != nil {
		panic(err) // the layout of the model is wrong
	}
	return s
}

// total returns the bytes in use.
func (m *meter) total() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.now.total()
}
