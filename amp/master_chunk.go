package amp

import (
	"errors"
	"fmt"
	"strconv"
	"unsafe"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/rounding"
)

// This file is how a Master goes through the chunks of a parameter.

// masterChunk is elements lo to lo+n-1 of a parameter, and their kept data.
type masterChunk struct {
	lo, n int
	kept  snug.View
}

// span is the number of elements of a chunk of p.
func (m *Master) span(p *masterParam) int {
	if m.form == FullMaster && !m.dev.IsCPU() {
		return max(1, p.n)
	}
	return m.chunk
}

// leave ends a call.
func (m *Master) leave() { m.busy = false }

// whole returns an error for a parameter that is half updated or restored.
func (p *masterParam) whole() error {
	if p.half {
		return fmt.Errorf("master %q: an update or a restore stopped half-way, call ReadFrom: %w", p.name, snug.ErrConfig)
	}
	return nil
}

// register adds a parameter. start writes the kept data of each chunk.
func (m *Master) register(made masterParam, start func(c masterChunk) error) error {
	p, err := m.create(made, start)
	if err != nil {
		return fmt.Errorf("amp: %w", err)
	}
	m.params[p.name] = p
	return nil
}

// create makes a parameter. start may be nil.
func (m *Master) create(of masterParam, start func(c masterChunk) error) (made *masterParam, err error) {
	p := &of
	p.tensor = rounding.Tensor(p.name)
	if err := m.reserve(p); err != nil {
		return nil, fmt.Errorf("master %q: %w", p.name, err)
	}
	defer func() {
		if made == nil { // also after a panic
			err = errors.Join(err, p.close())
		}
	}()
	for i := range cpu.Chunks(p.n, m.span(p)) {
		if m.stored() {
			p.keys = append(p.keys, "master/"+p.name+"/"+strconv.Itoa(i))
		}
		if start == nil {
			continue
		}
		if err := m.visit(p, i, true, start); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// stored reports whether parameters are kept in the Storage.
func (m *Master) stored() bool { return m.dev.IsCPU() && m.form != NoMaster }

// visit calls f with chunk i of p.
func (m *Master) visit(p *masterParam, i int, dirty bool, f func(c masterChunk) error) error {
	lo, hi := cpu.Chunk(p.n, m.span(p), i)
	if m.stored() {
		return m.acquire(p.keys[i], lo, hi, dirty, f)
	}
	kept, err := m.form.part(p.there, lo, hi)
	if err == nil {
		err = f(masterChunk{lo, hi - lo, kept})
	}
	if err != nil {
		return fmt.Errorf("master %q: %w", p.name, err)
	}
	return nil
}

// acquire calls f with elements lo to hi-1, which the Storage keeps under key.
func (m *Master) acquire(key string, lo, hi int, dirty bool, f func(c masterChunk) error) (err error) {
	b, err := m.storage.Acquire(key, m.form.bytes(hi-lo))
	if err != nil {
		return fmt.Errorf("acquire %q: %w", key, err)
	}
	defer func() {
		if e := m.storage.Release(key, dirty); err == nil {
			err = e
		}
		if err != nil {
			err = fmt.Errorf("%q: %w", key, err)
		}
	}()
	kept, err := m.form.viewOf(b, hi-lo)
	if err != nil {
		return err
	}
	return f(masterChunk{lo, hi - lo, kept})
}

// adopt sets the weights of a chunk to the weights in param.
func (m *Master) adopt(c masterChunk, param snug.View) error {
	switch m.form {
	case FullMaster:
		_, near, err := m.locate(param, c, true)
		if err != nil {
			return err
		}
		return cast(c.kept, near)
	case SplitMaster, Split24Master:
		clear(device.Mem(&c.kept).Bytes()) // what is new on another device is zero
	}
	return nil
}

// update is a change of weights.
type update struct {
	param   snug.View
	step    func(lo int, w snug.View) error
	draw    Draw         // random numbers for the whole parameter
	nearest bool         // forms that round at random round to nearest instead
	begun   bool         // something has changed
	sender  Sender       // of the new weights; nil copies them in the device's queue
	sent    bool         // the sender has to be waited for
	lost    *LostUpdates // nil, or where to count updates
}

// run updates p. dirty says that its kept data changes.
func (m *Master) run(p *masterParam, dirty bool, u update) (err error) {
	u.sender = m.sender
	ended := false
	defer func() {
		if e := u.wait(); e != nil {
			ended, err = false, errors.Join(err, fmt.Errorf("amp: master %q: %w", p.name, e))
		}
		p.half = p.half || dirty && u.begun && !ended
	}()
	for i := range cpu.Chunks(p.n, m.span(p)) {
		if err := m.visit(p, i, dirty, func(c masterChunk) error { return m.change(c, &u) }); err != nil {
			return fmt.Errorf("amp: %w", err)
		}
	}
	ended = true
	return nil
}

// change updates a chunk.
func (m *Master) change(c masterChunk, u *update) error {
	param, near, err := m.locate(u.param, c, m.form != FullMaster)
	if err != nil {
		return err
	}
	w, err := m.weights(c, near)
	if err != nil {
		return err
	}
	before := u.begun
	u.begun = before || m.form == FullMaster // until step returns
	if err := u.step(c.lo, w); err != nil {
		u.begun = before
		return err
	}
	u.begun = true
	if err := m.round(c, near, w, u); err != nil {
		return err
	}
	if near.Device() == param.Device() {
		return nil
	}
	return u.send(param, near)
}

// send copies new weights from host memory to a parameter.
func (u *update) send(param, near snug.View) error {
	if u.sender == nil {
		return snug.Copy(param, near)
	}
	u.sent = true
	return u.sender.Send(param, near)
}

// wait waits until the weights that were sent have arrived.
func (u *update) wait() error {
	if !u.sent {
		return nil
	}
	return u.sender.Wait()
}

// locate returns a chunk of a parameter, and near the masters: the chunk itself or
// host memory for it, with its values if read.
func (m *Master) locate(param snug.View, c masterChunk, read bool) (there, near snug.View, err error) {
	there, err = param.Slice(c.lo, c.lo+c.n)
	if err != nil || there.Device() == m.dev {
		return there, there, err
	}
	near = m.onHost(there.DType(), c.n)
	if read {
		err = snug.Copy(near, there)
	}
	return there, near, err
}

// weights returns the weights of a chunk as float32. param is the parameter's.
func (m *Master) weights(c masterChunk, param snug.View) (snug.View, error) {
	if m.form == FullMaster {
		return c.kept, nil
	}
	w, err := m.scratch.View().Slice(0, c.n)
	if err != nil {
		return w, err
	}
	return w, m.join(w, param, c.kept)
}

// join makes the float32 weights w of a parameter and its kept data. FullMaster, which keeps w itself, does not need
// it.
func (m *Master) join(w, param, kept snug.View) error {
	if m.form == SplitMaster || m.form == Split24Master {
		return splitJob{w: w, upper: param, rest: kept}.do()
	}
	return cast(w, param)
}

// round rounds the weights of a chunk into the parameter and the kept data of the form, and counts
// lost updates where that is asked for.
func (m *Master) round(c masterChunk, param, w snug.View, u *update) error {
	if m.countsLost() && u.lost != nil {
		return m.roundCounting(c, param, w, u)
	}
	return m.store(c, param, w, u)
}

// store is round without the count.
func (m *Master) store(c masterChunk, param, w snug.View, u *update) error {
	draw, random := u.draw, m.random && !u.nearest
	draw.First += uint64(c.lo)
	if m.form == SplitMaster || m.form == Split24Master {
		return splitJob{w: w, upper: param, rest: c.kept, apart: true, random: random, draw: draw}.do()
	}
	return castWith(param, w, CastOptions{Stochastic: random, Draw: draw})
}

// prepare makes the memory for chunks of a parameter of n elements.
func (m *Master) prepare(n int) error {
	n = min(n, m.chunk)
	if m.countsLost() {
		if err := m.lost.prepare(m.dev); err != nil {
			return err
		}
	}
	if m.form == FullMaster || m.scratch.Len() >= n {
		return nil
	}
	larger, err := snug.Make[float32](m.dev, n)
	if err != nil {
		return err
	}
	err = m.scratch.Close()
	m.scratch = larger
	return err
}

// viewOf returns the view of the kept data of n elements, whose memory is b.
func (f MasterForm) viewOf(b []byte, n int) (snug.View, error) {
	start := unsafe.Pointer(unsafe.SliceData(b))
	if len(b) != f.bytes(n) || uintptr(start)%4 != 0 {
		return snug.View{}, fmt.Errorf("the storage returned %d bytes at %p, want %d, aligned to 4: %w", len(b), start, f.bytes(n), snug.ErrConfig)
	}
	if f == FullMaster {
		return snug.SliceView(unsafe.Slice((*float32)(start), n)), nil
	}
	return snug.SliceView(b), nil
}

// memory is the Storage of plain memory.
type memory map[string][]float32

func (m memory) Acquire(key string, size int) ([]byte, error) {
	w, words := m[key], cpu.Chunks(size, 4)
	if len(w) != words {
		w = make([]float32, words)
		m[key] = w
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(w))), size), nil
}

func (memory) Release(string, bool) error { return nil }
