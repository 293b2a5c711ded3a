package amp

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/rounding"
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

// Sender copies vectors from host memory to a device in parallel with the device's queue.
// A Mover of package offload can do that. [Master.Update] and [Master.Copy] call Wait
// before they return, also after an error or a panic.
type Sender interface {
	// Send starts to copy src to dst, after the work queued there. src may be reused
	// when Send returns.
	Send(dst, src snug.View) error
	// Wait waits for all copies that Send has started, and returns the error of a copy.
	Wait() error
}

// MasterOptions configures a [Master]. The zero value is FullMaster in plain memory of the
// CPU.
type MasterOptions struct {
	// Form is the form of the kept data of each element: [FullMaster], [SplitMaster],
	// [Split24Master] or [NoMaster].
	Form MasterForm
	// Storage holds the kept data; nil means plain memory of Device. Keys have the
	// form "master/<parameter>/<chunk>".
	Storage Storage
	// Device is where the kept data lies without a Storage, and where updates
	// work; nil means the CPU. On another device the parameters lie there too, and
	// with FullMaster a parameter is one chunk.
	Device *snug.Device
	// Sender, unless nil, copies new weights to parameters on a device other than the
	// CPU, if the masters are on the CPU. The next chunk is then updated while the
	// weights of this one are copied. nil copies them in the device's queue.
	Sender Sender
	// Chunk is the number of elements that are acquired at a time. 0 means 65536
	// elements, 256 KiB of float32. On a device other than the CPU, forms other than
	// FullMaster take 64 times as many, 16 MiB. An optimizer that updates ranges
	// wants a multiple of its own Chunk (quant8: 65536 by default).
	Chunk int
	// Stochastic rounds updates of Split24Master to 24 bits at random, as NoMaster always rounds, so that
	// updates smaller than half a gap are there on average. With other forms it is an error.
	Stochastic bool
	// CountLost counts the updates that rounding loses, see [Master.LostUpdates]. It counts with Split24Master and
	// NoMaster only. An update then takes another pass over the chunk, and the Master holds 32 KiB more. On a device
	// other than the CPU it holds 512 KiB there and 768 KiB on the host, and all weights are copied through the host.
	CountLost bool
	// Seed seeds the random numbers of NoMaster, and of Split24Master with Stochastic.
	Seed uint64
}

// Master holds float32 master weights of parameters that the model keeps in
// float16 or bfloat16: the optimizer updates the masters, in which small
// updates are not lost, and the result is rounded into the parameter. It costs
// 4, 2, 1 or 0 bytes for each element, see [MasterForm], and acquires one chunk at a
// time. [Master.Add] or [Master.AddFrom] registers a parameter, [Master.Update] updates it:
//
//	err := master.Update(name, param, func(lo int, w snug.View) error {
//		g, err := grad.Slice(lo, lo+w.Len())
//		if err != nil {
//			return err
//		}
//		return opt.StepRange(name, lo, w, g, clip) // of package quant8
//	})
//
// Forms other than FullMaster also hold one chunk of float32 on the Master's device.
// If parameters or masters are on a device other than the CPU, the Master holds one
// chunk in host memory too (for masters, 256 KiB at most). Both stay until Close.
//
// A Master keeps no parameters, only their names and lengths. It is not safe
// for concurrent use. Functions that you pass in must not call its methods. If one
// panics, the panic reaches the caller and every chunk is released.
type Master struct {
	form    MasterForm
	storage Storage
	sender  Sender       // nil: copies take their turn in the device's queue
	dev     *snug.Device // of the weights
	chunk   int
	random  bool   // updates round at random
	seed    uint64 // of the random numbers
	params  map[string]*masterParam
	scratch snug.Array[float32] // on dev: the weights of a chunk, unless FullMaster keeps them
	host    []float32           // data in transit to or from another device
	lost    *lostMeter          // nil unless updates are counted
	busy    bool                // in a call
}

type masterParam struct {
	name    string
	n       int          // elements of the shard
	lo      int          // its first element in the parameter
	total   int          // elements of the parameter
	keys    []string     // of the chunks in the Storage
	there   snug.View    // all that is kept, where dev is not the CPU
	free    func() error // of there
	tensor  uint64       // number in random numbers
	updates uint64       // number of updates so far, if they round at random
	lost    LostUpdates  // counts of all updates
	update  LostUpdates  // counts of the update under way
	half    bool         // an update or a restore has stopped half-way
}

// NewMaster returns a Master without parameters. The error wraps
// [snug.ErrConfig].
func NewMaster(o MasterOptions) (*Master, error) {
	if !o.Form.known() {
		return nil, fmt.Errorf("amp: master: Form is %v, want FullMaster, SplitMaster, NoMaster or Split24Master: %w", o.Form, snug.ErrConfig)
	}
	if o.Stochastic && o.Form != Split24Master {
		return nil, fmt.Errorf("amp: master: Stochastic with the form %s, want it with split24 only: %w", o.Form, snug.ErrConfig)
	}
	if o.Device == nil {
		o.Device = snug.CPU()
	}
	if o.Form == FullMaster || o.Device.IsCPU() {
		setDefault(&o.Chunk, 1<<16)
	} else {
		setDefault(&o.Chunk, 1<<22) // enough to keep a device busy
	}
	if o.Chunk < 1 || o.Chunk > math.MaxInt/4 {
		return nil, fmt.Errorf("amp: master: Chunk is %d elements, want 1 or more: %w", o.Chunk, snug.ErrConfig)
	}
	if o.Storage != nil && !o.Device.IsCPU() {
		return nil, fmt.Errorf("amp: master: a Storage, and weights on %s: want one of both: %w", o.Device, snug.ErrConfig)
	}
	if o.Storage == nil {
		o.Storage = memory{}
	}
	m := &Master{
		form: o.Form, storage: o.Storage, sender: o.Sender, dev: o.Device, chunk: o.Chunk, params: map[string]*masterParam{},
		random: o.Stochastic || o.Form == NoMaster, seed: o.Seed,
	}
	if o.CountLost {
		m.lost = &lostMeter{}
	}
	return m, nil
}

// Add registers a parameter of n elements with FullMaster; [Master.Copy] then
// gives the parameter its values. For a model that starts anew, call Add with a fill that
// computes the initial weights in float32. To restore one, call it with a nil fill, then
// [Master.ReadFrom] and Copy. It calls fill for each chunk in order, to write
// the initial weights lo to lo+len(w)-1 to w, so that no float32 copy of the whole
// parameter is needed on the host. With a nil fill the weights are zero, or what the
// Storage holds under their keys, until [Master.ReadFrom] restores them. When fill or the
// Storage fails, that error is wrapped and the parameter is not registered. Other errors:
// [snug.ErrConfig] for a name that is taken or longer than 64 KiB, or another form,
// [snug.ErrShape] for a negative or overflowing n, and [snug.ErrNoMemory].
func (m *Master) Add(name string, n int, fill func(lo int, w []float32) error) error {
	if m.form != FullMaster {
		return fmt.Errorf("amp: master %q: Add with the form %s, which needs the parameter: use AddFrom: %w", name, m.form, snug.ErrConfig)
	}
	if err := m.checkNew(name, n); err != nil {
		return err
	}
	defer m.enter()()
	if fill == nil {
		return m.register(masterParam{name: name, n: n, total: n}, nil)
	}
	return m.register(masterParam{name: name, n: n, total: n}, func(c masterChunk) error { return m.fill(c.lo, c.kept, fill) })
}

// AddFrom registers a parameter of any form. For a model that was initialized or loaded in
// 16 bits, call it with a nil fill. To restore, do the same after the parameter itself was
// loaded, then call [Master.ReadFrom]. The weights start with the values of
// param, and param is only read, if fill is nil. Else fill is called for each chunk
// in order and writes the initial weights lo to lo+len(w)-1 to w, from where they
// go to the Master and, rounded to nearest, to param. param is what [Master.Update]
// takes.
//
// When fill, the Storage or the device fails, that error is wrapped and the
// parameter is not registered; chunks of param before it are written. Other
// errors, with nothing written: [snug.ErrConfig] for a name that is taken or
// longer than 64 KiB, [snug.ErrDType], [snug.ErrShape] for a length that
// overflows, [snug.ErrDevice] and [snug.ErrNoMemory].
func (m *Master) AddFrom(name string, param snug.View, fill func(lo int, w []float32) error) error {
	return m.AddShard(name, param.Len(), 0, param, fill)
}

// AddShard is [Master.AddFrom] of elements lo to lo+param.Len()-1 of a parameter of n elements, for a program that splits
// parameters among processes, each with a Master. It may be of no elements. param, fill and the steps of Update count
// elements from the first of the shard. Updates of all shards together give the same bits as updates of the whole
// parameter. [Master.WriteShards] saves whole parameters, and [Master.ReadFrom] takes the shard from them.
//
// The errors are those of AddFrom; [snug.ErrShape] also means that the shard lies outside of the parameter.
func (m *Master) AddShard(name string, n, lo int, param snug.View, fill func(lo int, w []float32) error) error {
	if err := m.checkNew(name, n); err != nil {
		return err
	}
	if lo < 0 || lo > n || param.Len() > n-lo {
		return fmt.Errorf("amp: master %q: %d elements from element %d, of %d: %w", name, param.Len(), lo, n, snug.ErrShape)
	}
	if err := m.checkParam(param, param.Len()); err != nil {
		return fmt.Errorf("amp: master %q: %w", name, err)
	}
	defer m.enter()()
	p := masterParam{name: name, n: param.Len(), lo: lo, total: n}
	if fill == nil {
		return m.register(p, func(c masterChunk) error { return m.adopt(c, param) })
	}
	u := update{param: param, nearest: true, step: func(lo int, w snug.View) error { return m.fill(lo, w, fill) }}
	return m.register(p, func(c masterChunk) error { return m.change(c, &u) })
}

func (m *Master) checkNew(name string, n int) error {
	if err := m.ready(); err != nil {
		return fmt.Errorf("amp: master %q: %w", name, err)
	}
	if len(name) > state.MaxName {
		return fmt.Errorf("amp: master: a name of %d bytes, want at most %d: %w", len(name), state.MaxName, snug.ErrConfig)
	}
	if _, taken := m.params[name]; taken {
		return fmt.Errorf("amp: master %q was added before: %w", name, snug.ErrConfig)
	}
	if n < 0 || n > math.MaxInt/4 {
		return fmt.Errorf("amp: master %q of %d elements: %w", name, n, snug.ErrShape)
	}
	return nil
}

// Update changes a parameter through its master weights. For each chunk in
// order it calls step, which changes weights lo to lo+w.Len()-1 in w (as an
// optimizer does for that range), and rounds w into param[lo:lo+w.Len()] as the
// form says. w holds float32 on the CPU, or on MasterOptions.Device, and is valid
// during the call. With SplitMaster and Split24Master a step that changes nothing reads the
// weights, and leaves them.
//
// param has the length of the registered parameter and a type of the form. With masters on the CPU it may lie on any
// device, and goes through host memory chunk by chunk; else it lies where the masters do. The first error of step,
// the Storage or the Sender ends the update and is wrapped. When nothing has changed before, the update may be repeated: a step that
// returns an error is to leave w as it was. Otherwise the parameter is half updated, also where step panics with
// FullMaster, whose weights it may have changed: then all calls for it, and WriteTo, are errors that wrap
// [snug.ErrConfig], until [Master.ReadFrom] restores a saved state. Other errors, with nothing written:
// [snug.ErrConfig] for an unknown name or a nil step, [snug.ErrDType], [snug.ErrShape], [snug.ErrDevice], and, in a
// first call, [snug.ErrNoMemory].
func (m *Master) Update(name string, param snug.View, step func(lo int, w snug.View) error) error {
	if step == nil {
		return fmt.Errorf("amp: master %q: the step function is nil: %w", name, snug.ErrConfig)
	}
	p, err := m.lookup(name, param)
	if err != nil {
		return err
	}
	u := update{param: param, step: step}
	if m.random {
		u.draw = Draw{Seed: rounding.Seed(m.seed, p.updates), Tensor: p.tensor, First: uint64(p.lo)}
	}
	defer m.enter()()
	if m.countsLost() {
		p.update = LostUpdates{Stochastic: m.random, Remedy: m.remedy()}
		u.lost = &p.update
	}
	if err := m.run(p, true, u); err != nil {
		return err
	}
	if u.lost != nil {
		p.lost.Add(p.update)
	}
	if m.random {
		p.updates++
	}
	return nil
}

// ready returns an error for the zero value, and within another call.
func (m *Master) ready() error {
	switch {
	case m.params == nil:
		return fmt.Errorf("the Master was not made by NewMaster: %w", snug.ErrConfig)
	case m.busy:
		return fmt.Errorf("a function that was passed in, such as fill or step, called a method of the same Master: %w", snug.ErrConfig)
	}
	return nil
}

// enter notes that a call runs, and returns what ends it.
func (m *Master) enter() (leave func()) {
	m.busy = true
	return m.leave
}

// Copy rounds the master weights of FullMaster to nearest even into param, as
// after [Master.Add] or a restore. It takes the parameters that [Master.Update]
// takes and returns its errors, and [snug.ErrConfig] for another form: its weights lie in
// the parameter itself, which is restored with the model.
func (m *Master) Copy(name string, param snug.View) error {
	if m.form != FullMaster {
		return fmt.Errorf("amp: master %q: Copy with the form %s, whose weights lie in the parameter itself: %w", name, m.form, snug.ErrConfig)
	}
	p, err := m.lookup(name, param)
	if err != nil {
		return err
	}
	defer m.enter()()
	return m.run(p, false, update{param: param, step: func(int, snug.View) error { return nil }})
}

// lookup returns the parameter of a name, whose vector is param, and makes
// the memory that work on it takes.
func (m *Master) lookup(name string, param snug.View) (*masterParam, error) {
	if err := m.ready(); err != nil {
		return nil, fmt.Errorf("amp: master %q: %w", name, err)
	}
	p := m.params[name]
	if p == nil {
		return nil, fmt.Errorf("amp: master %q was not added: %w", name, snug.ErrConfig)
	}
	if err := p.whole(); err != nil {
		return nil, fmt.Errorf("amp: %w", err)
	}
	if err := m.checkParam(param, p.n); err != nil {
		return nil, fmt.Errorf("amp: master %q: %w", name, err)
	}
	return p, nil
}

// checkParam checks a parameter of n elements, and makes the memory that work on
// it takes.
func (m *Master) checkParam(param snug.View, n int) error {
	if want := masterForms[m.form].params; !slices.Contains(want, param.DType()) {
		return fmt.Errorf("param is %s, want one of %v for the form %s: %w", param.DType(), want, m.form, snug.ErrDType)
	}
	if param.Len() != n {
		return fmt.Errorf("param has %d elements, want %d: %w", param.Len(), n, snug.ErrShape)
	}
	dev, err := snug.CommonDevice(param)
	if err != nil {
		return err
	}
	if !m.dev.IsCPU() && n > 0 && dev != m.dev {
		return fmt.Errorf("param lies on %s, the masters on %s: %w", dev, m.dev, snug.ErrDevice)
	}
	return m.prepare(n)
}

// Bytes returns the size of the kept data of all parameters, in bytes.
func (m *Master) Bytes() int64 {
	var n int64
	for _, p := range m.params {
		n += int64(m.form.bytes(p.n))
	}
	return n
}

// Close frees memory on a device other than the CPU and forgets all parameters.
func (m *Master) Close() error {
	if m.busy {
		return fmt.Errorf("amp: master: close: %w", m.ready())
	}
	err := errors.Join(closeAll(m.params), m.scratch.Close())
	if m.lost != nil {
		err = errors.Join(err, m.lost.before.Close(), m.lost.after.Close())
		m.lost = &lostMeter{}
	}
	m.params, m.scratch, m.host = map[string]*masterParam{}, snug.Array[float32]{}, nil
	return err
}
