package amp

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"unsafe"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/state"
)

// Storage is where master weights lie, such as a store that pages them to
// disk. A key is one chunk of a parameter.
type Storage interface {
	// Acquire returns the size bytes of key in host memory, zeros when the key
	// is new, aligned to 4 bytes and valid until Release.
	Acquire(key string, size int) ([]byte, error)
	// Release ends the use of what Acquire returned. dirty says that the bytes
	// may have changed.
	Release(key string, dirty bool) error
}

// MasterOptions configures a [Master].
type MasterOptions struct {
	// Storage holds the weights; nil means plain memory of Device. Keys have the
	// form "master/<parameter>/<chunk>".
	Storage Storage
	// Device is where the weights lie without a Storage; nil means the CPU. On
	// another device a parameter is one chunk, and the parameters lie there too.
	Device *snug.Device
	// Chunk is the number of elements that are acquired at a time; 0 means
	// 65536, 256 KiB. With an optimizer that works on blocks it should be a
	// multiple of the block.
	Chunk int
}

// Master holds float32 master weights of parameters that the model keeps in
// float16 or bfloat16: the optimizer updates the masters, in which small
// updates are not lost, and the result is rounded into the parameter. It costs
// 4 bytes for each element in its Storage and acquires one chunk at a time.
//
// A Master keeps no parameters, only their names and lengths. It is not safe
// for concurrent use.
type Master struct {
	storage Storage
	dev     *snug.Device // of the weights
	chunk   int
	host    []float32 // a chunk on its way to or from dev, unless that is the CPU
	params  map[string]*masterParam
}

type masterParam struct {
	n     int
	keys  []string            // of the chunks
	there snug.Array[float32] // all weights, where dev is not the CPU
}

// NewMaster returns a Master without parameters. The error wraps
// [snug.ErrConfig].
func NewMaster(o MasterOptions) (*Master, error) {
	setDefault(&o.Chunk, 1<<16)
	if o.Chunk < 1 || o.Chunk > math.MaxInt/4 {
		return nil, fmt.Errorf("amp: master: Chunk is %d elements, want 1 or more: %w", o.Chunk, snug.ErrConfig)
	}
	if o.Device == nil {
		o.Device = snug.CPU()
	}
	if o.Storage != nil && !o.Device.IsCPU() {
		return nil, fmt.Errorf("amp: master: a Storage, and weights on %s: want one of both: %w", o.Device, snug.ErrConfig)
	}
	if o.Storage == nil {
		o.Storage = memory{}
	}
	return &Master{storage: o.Storage, dev: o.Device, chunk: o.Chunk, params: map[string]*masterParam{}}, nil
}

// Add registers a parameter of n elements. It calls fill for each chunk in
// order, to write the initial weights lo to lo+len(w)-1 to w, so that no
// float32 copy of the whole parameter is needed on the host. When fill or the
// Storage fails, that error is wrapped and the parameter is not registered. Other
// errors: [snug.ErrConfig] for a name that is taken or longer than 64 KiB or a
// nil fill, [snug.ErrShape] for a negative or overflowing n, and
// [snug.ErrNoMemory].
func (m *Master) Add(name string, n int, fill func(lo int, w []float32) error) error {
	if fill == nil {
		return fmt.Errorf("amp: master %q: the function that fills it is nil: %w", name, snug.ErrConfig)
	}
	if err := m.checkNew(name); err != nil {
		return err
	}
	if n < 0 || n > math.MaxInt/4 {
		return fmt.Errorf("amp: master %q of %d elements: %w", name, n, snug.ErrShape)
	}
	p, err := m.create(name, n, fill)
	if err != nil {
		return fmt.Errorf("amp: %w", err)
	}
	m.params[name] = p
	return nil
}

func (m *Master) checkNew(name string) error {
	if len(name) > state.MaxName {
		return fmt.Errorf("amp: master: a name of %d bytes, want at most %d: %w", len(name), state.MaxName, snug.ErrConfig)
	}
	if _, taken := m.params[name]; taken {
		return fmt.Errorf("amp: master %q was added before: %w", name, snug.ErrConfig)
	}
	return nil
}

// create makes a parameter chunk by chunk, so that a false length in saved
// state costs no more memory than there is data.
func (m *Master) create(name string, n int, fill func(lo int, w []float32) error) (*masterParam, error) {
	p := &masterParam{n: n}
	if err := m.reserve(p); err != nil {
		return nil, fmt.Errorf("master %q: %w", name, err)
	}
	for i := range cpu.Chunks(n, m.chunk) {
		p.keys = append(p.keys, "master/"+name+"/"+strconv.Itoa(i))
		if err := m.visit(p, i, true, fill); err != nil {
			return nil, errors.Join(err, p.there.Close())
		}
	}
	return p, nil
}

// Update changes a parameter through its master weights. For each chunk in
// order it calls step, which changes weights lo to lo+w.Len()-1 in w (as an
// optimizer does for that range), and rounds w to nearest even into
// param[lo:lo+w.Len()]. w holds float32 on the CPU, or on MasterOptions.Device.
//
// param has the length of the registered parameter and any floating-point type.
// With masters on the CPU it may lie on any device, and for one other than the
// CPU, a chunk of float32 is allocated there during the call; else it lies
// where the masters do. The first error of step or the Storage ends
// the update and is wrapped; chunks before it are updated, and in its own
// chunk the masters may be while the parameter is not: Copy makes them agree.
// Other errors, with nothing written: [snug.ErrConfig] for an unknown name or
// a nil step, [snug.ErrDType], [snug.ErrShape], [snug.ErrDevice].
func (m *Master) Update(name string, param snug.View, step func(lo int, w snug.View) error) error {
	if step == nil {
		return fmt.Errorf("amp: master %q: the step function is nil: %w", name, snug.ErrConfig)
	}
	return m.cast(name, param, true, step)
}

// Copy rounds the master weights to nearest even into param, as after a
// restore. It takes the parameters that [Master.Update] takes and returns its
// errors.
func (m *Master) Copy(name string, param snug.View) error {
	return m.cast(name, param, false, func(int, snug.View) error { return nil })
}

func (m *Master) cast(name string, param snug.View, dirty bool, step func(lo int, w snug.View) error) error {
	p, err := m.lookup(name, param)
	if err != nil {
		return err
	}
	if !m.dev.IsCPU() {
		return p.castThere(name, param, step)
	}
	out := target{param: param}
	if !param.Device().IsCPU() {
		if out.stage, err = snug.Make[float32](param.Device(), min(m.chunk, p.n)); err != nil {
			return fmt.Errorf("amp: master %q: %w", name, err)
		}
	}
	for i := 0; i < len(p.keys) && err == nil; i++ {
		err = m.visit(p, i, dirty, func(lo int, w []float32) error {
			if err := step(lo, snug.SliceView(w)); err != nil {
				return err
			}
			return out.store(lo, w)
		})
	}
	if e := out.stage.Close(); err == nil {
		err = e
	}
	if err != nil {
		return fmt.Errorf("amp: %w", err)
	}
	return nil
}

func (m *Master) lookup(name string, param snug.View) (*masterParam, error) {
	p := m.params[name]
	if p == nil {
		return nil, fmt.Errorf("amp: master %q was not added: %w", name, snug.ErrConfig)
	}
	if !param.DType().IsFloat() {
		return nil, fmt.Errorf("amp: master %q: param is %s, want f32, f16 or bf16: %w", name, param.DType(), snug.ErrDType)
	}
	if param.Len() != p.n {
		return nil, fmt.Errorf("amp: master %q: param has %d elements, want %d: %w", name, param.Len(), p.n, snug.ErrShape)
	}
	if _, err := snug.CommonDevice(param); err != nil {
		return nil, fmt.Errorf("amp: master %q: %w", name, err)
	}
	if !m.dev.IsCPU() && param.Len() > 0 && param.Device() != m.dev {
		return nil, fmt.Errorf("amp: master %q: param lies on %s, the masters on %s: %w", name, param.Device(), m.dev, snug.ErrDevice)
	}
	return p, nil
}

// Bytes returns the size of all master weights in bytes.
func (m *Master) Bytes() int64 {
	var n int64
	for _, p := range m.params {
		n += 4 * int64(p.n)
	}
	return n
}

// visit calls f with chunk i of p in host memory.
func (m *Master) visit(p *masterParam, i int, dirty bool, f func(lo int, w []float32) error) error {
	key := p.keys[i]
	lo, hi := cpu.Chunk(p.n, m.chunk, i)
	if !m.dev.IsCPU() {
		if err := m.visitThere(p, lo, hi, dirty, f); err != nil {
			return fmt.Errorf("%q: %w", key, err)
		}
		return nil
	}
	b, err := m.storage.Acquire(key, 4*(hi-lo))
	if err != nil {
		return fmt.Errorf("acquire %q: %w", key, err)
	}
	w, err := float32s(b, hi-lo)
	if err == nil {
		err = f(lo, w)
	}
	if e := m.storage.Release(key, dirty); err == nil {
		err = e
	}
	if err != nil {
		return fmt.Errorf("%q: %w", key, err)
	}
	return nil
}

// float32s returns the n floats whose memory b is.
func float32s(b []byte, n int) ([]float32, error) {
	start := unsafe.Pointer(unsafe.SliceData(b))
	if len(b) != 4*n || uintptr(start)%4 != 0 {
		return nil, fmt.Errorf("the storage returned %d bytes at %p, want %d, aligned to 4: %w", len(b), start, 4*n, snug.ErrConfig)
	}
	return unsafe.Slice((*float32)(start), n), nil
}

// target is a parameter that chunks are cast to.
type target struct {
	param snug.View
	stage snug.Array[float32] // a chunk on the parameter's device, unless that is the CPU
}

func (t *target) store(lo int, w []float32) error {
	dst, err := t.param.Slice(lo, lo+len(w))
	if err != nil {
		return err
	}
	if t.param.Device().IsCPU() {
		return cast(dst, snug.SliceView(w))
	}
	if err := t.stage.CopyIn(w); err != nil {
		return err
	}
	src, err := t.stage.View().Slice(0, len(w))
	if err != nil {
		return err
	}
	return cast(dst, src)
}

// memory is the Storage of plain memory.
type memory map[string][]float32

func (m memory) Acquire(key string, size int) ([]byte, error) {
	w := m[key]
	if len(w) != size/4 {
		w = make([]float32, size/4)
		m[key] = w
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(w))), size), nil
}

func (memory) Release(string, bool) error { return nil }
