package train

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/offload"
	"github.com/snug-ml/snug/quant8"
)

func init() { driver.Register("beside", besideBackend{}) }

// besideBackend opens opaque devices that copy beside their queue: each copy runs in a goroutine of its own, after the
// work queued before it and the copies started before it, and takes its time. Under the race detector an access that
// nothing orders is an error.
type besideBackend struct{}

func (besideBackend) Count() (int, error) { return 1, nil }

func (besideBackend) Open(int) (driver.Driver, error) {
	b, err := driver.Lookup("opaque")
	if err != nil {
		return nil, err
	}
	d, err := b.Open(0)
	return &beside{Driver: d, pinned: map[unsafe.Pointer]int{}, last: make(chan struct{}), fails: -1}, err
}

type beside struct {
	driver.Driver
	mu      sync.Mutex
	pinned  map[unsafe.Pointer]int
	last    chan struct{} // closed when the copies started so far are done
	begun   bool
	active  int
	copies  int
	overlap int  // copies that started before another was done
	fails   int  // number of the copy that fails
	late    bool // when it is waited for
}

func (b *beside) AllocPinned(size int) (driver.Mem, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := unsafe.Pointer(unsafe.SliceData(make([]byte, size)))
	b.pinned[p] = size
	return driver.Mem{Host: p, Addr: uintptr(p), Size: size}, nil
}

func (b *beside) FreePinned(m driver.Mem) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, known := b.pinned[m.Host]; !known || b.active > 0 {
		return fmt.Errorf("pinned memory is freed, known %t, with %d copies under way: %w", known, b.active, driver.ErrDevice)
	}
	delete(b.pinned, m.Host)
	return nil
}

func (b *beside) Point() (driver.Fence, error) { return nil, errors.New("not in this test") }

func (b *beside) StartCopyIn(dst, src driver.Mem, _ driver.Fence) (driver.Fence, error) {
	return b.start(func() error { return errors.Join(b.Driver.CopyIn(dst, src.Bytes()), b.Driver.Sync()) })
}

func (b *beside) StartCopyOut(dst, src driver.Mem, _ driver.Fence) (driver.Fence, error) {
	return b.start(func() error { return b.Driver.CopyOut(dst.Bytes(), src) })
}

// moment is a job that closes done.
type moment struct{ done chan struct{} }

func (*moment) Kernel() string             { return "train.test" }
func (*moment) Operands(func(*driver.Mem)) {}
func (m *moment) Run()                     { close(m.done) }

func (b *beside) start(do func() error) (driver.Fence, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	number := b.copies
	b.copies++
	if number == b.fails && !b.late {
		return nil, fmt.Errorf("the copy does not start: %w", kerneltest.ErrFault)
	}
	queued, before, f := &moment{make(chan struct{})}, b.last, &besideFence{done: make(chan struct{})}
	if !b.begun {
		close(before)
		b.begun = true
	}
	if err := b.Driver.Launch(queued); err != nil {
		return nil, err
	}
	b.last = f.done
	if b.active > 0 {
		b.overlap++
	}
	b.active++
	pause := time.Duration(rand.IntN(50)) * time.Microsecond
	fails := number == b.fails
	go func() {
		<-before
		<-queued.done
		time.Sleep(pause)
		if f.err = do(); fails {
			f.err = fmt.Errorf("the copy fails: %w", kerneltest.ErrFault)
		}
		b.mu.Lock()
		b.active--
		b.mu.Unlock()
		close(f.done)
	}()
	return f, nil
}

type besideFence struct {
	done chan struct{}
	err  error
}

func (f *besideFence) Wait() error {
	<-f.done
	return f.err
}

func (f *besideFence) Await() error { return errors.New("not in this test") }

func (f *besideFence) Release() {}

// farToy is a toy whose parameters lie on a device.
type farToy struct {
	*toy
	far map[string]snug.View
}

func newFarToy(t testing.TB, dev *snug.Device, w, b snug.DType) *farToy {
	m := &farToy{newToy(t, w, b), map[string]snug.View{}}
	for name, v := range m.values {
		far, free, err := snug.MakeView(dev, v.DType(), v.Len())
		require.NoError(t, err)
		t.Cleanup(func() { _ = free() }) // the device may be closed
		require.NoError(t, snug.Copy(far, v))
		m.far[name] = far
	}
	return m
}

func (m *farToy) Trainable() iter.Seq2[string, snug.View] {
	return func(yield func(string, snug.View) bool) {
		for _, name := range m.names {
			if !yield(name, m.far[name]) {
				return
			}
		}
	}
}

// fetch copies the parameters to the toy.
func (m *farToy) fetch() error {
	for name, v := range m.far {
		if err := snug.Copy(m.values[name], v); err != nil {
			return err
		}
	}
	return nil
}

func (m *farToy) Backprop(ctx context.Context, b []int, scale float32, w Window) (fused.Loss, error) {
	if err := m.fetch(); err != nil {
		return fused.Loss{}, err
	}
	near := &nearWindow{w: w}
	loss, err := m.toy.Backprop(ctx, b, scale, near)
	return loss, errors.Join(err, near.flush())
}

func (m *farToy) Evaluate(ctx context.Context, b []int) (fused.Loss, error) {
	if err := m.fetch(); err != nil {
		return fused.Loss{}, err
	}
	return m.toy.Evaluate(ctx, b)
}

// nearWindow is a Window of copies in host memory.
type nearWindow struct {
	w         Window
	far, near []snug.View
}

func (n *nearWindow) Into(name string) (snug.View, snug.Into, error) {
	far, into, err := n.w.Into(name)
	near := snug.ViewOf(make([]float32, far.Len()))
	if err == nil {
		err = snug.Copy(near, far)
	}
	n.far, n.near = append(n.far, far), append(n.near, near)
	return near, into, err
}

func (n *nearWindow) flush() error {
	for i, far := range n.far {
		if err := snug.Copy(far, n.near[i]); err != nil {
			return err
		}
	}
	return nil
}

// stagedCases are the options with which pages are on the host and parameters on a device.
var stagedCases = []struct {
	name string
	w, b snug.DType
	o    Options
}{
	{"masters", snug.BF16, snug.BF16, Options{StateBits: 8}},
	{"split masters", snug.BF16, snug.BF16, Options{StateBits: 8, Masters: amp.SplitMaster}},
	{"24 bits", snug.BF16, snug.BF16, Options{Masters: amp.Split24Master, Stochastic: true, CountLost: true}},
	{"no masters", snug.BF16, snug.BF16, Options{StateBits: 8, Masters: amp.NoMaster}},
	{"float32", snug.F32, snug.F32, Options{StateBits: 8}},
	{"both", snug.BF16, snug.F32, Options{}},
	{"float16", snug.F16, snug.F32, Options{StateBits: 8}},
	{"averages", snug.BF16, snug.F32, Options{Optimizer: quant8.ScheduleFree{}}},
}

// stagedStore returns the options with pages of 2048 elements: w has six, and the last has fewer.
func stagedStore(t testing.TB, o Options) Options {
	s, err := offload.Open(t.TempDir(), offload.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	o.Storage, o.Chunk, o.Seed = s, 2048, 5
	return o
}

func openBeside(t testing.TB) (*snug.Device, *beside) {
	dev, err := snug.Open("beside:0")
	require.NoError(t, err)
	c, err := device.Copier(dev)
	require.NoError(t, err)
	d := c.(*beside)
	t.Cleanup(func() {
		require.Empty(t, d.pinned, "pinned memory that was not freed")
		require.NoError(t, dev.Close())
	})
	return dev, d
}

// TestStaging: parameters on a device with pages on the host have the bits of parameters on the CPU, whether or not the
// device copies in parallel with its queue.
func TestStaging(t *testing.T) {
	for _, c := range stagedCases {
		t.Run(c.name, func(t *testing.T) {
			want := newToy(t, c.w, c.b)
			wanted := newTrainer(t, want, stagedStore(t, c.o))
			losses := trainTo(t, wanted, 4)
			require.NoError(t, wanted.Average())
			opaque, err := snug.Open("opaque:0")
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, opaque.Close()) })
			dev, d := openBeside(t)
			for _, dev := range []*snug.Device{opaque, dev} {
				m := newFarToy(t, dev, c.w, c.b)
				tr, err := New(Model[[]int](m), stagedStore(t, c.o))
				require.NoError(t, err)
				require.Equal(t, losses, trainTo(t, tr, 4), dev)
				require.NoError(t, tr.Average())
				require.NoError(t, m.fetch())
				require.Equal(t, want.bits(), m.bits(), dev)
				require.NoError(t, tr.Close())
			}
			require.Positive(t, d.copies)
			require.Positive(t, d.overlap)
		})
	}
}

// TestStagingFaults: after a copy that does not start or does not end well, nothing is under way. The step is an error,
// and either has changed nothing or does not save what it has changed.
func TestStagingFaults(t *testing.T) {
	for _, i := range []int{0, 4, 5} {
		c := stagedCases[i]
		for _, late := range []bool{false, true} {
			for fails := 0; ; fails++ {
				if !stagedFault(t, c.w, c.b, c.o, fails, late) {
					require.Greater(t, fails, 12, c.name)
					break
				}
			}
		}
	}
}

// stagedFault reports whether there is a copy of a number in the second step. The copy fails.
func stagedFault(t *testing.T, w, b snug.DType, o Options, number int, late bool) (fails bool) {
	dev, d := openBeside(t)
	m := newFarToy(t, dev, w, b)
	o = stagedStore(t, o)
	o.Dir = t.TempDir()
	tr, err := New(Model[[]int](m), o)
	require.NoError(t, err)
	trainTo(t, tr, 1)
	require.NoError(t, m.fetch())
	before := m.bits()
	d.fails, d.late = d.copies+number, late
	_, err = tr.Train(context.Background(), steps(1))
	d.mu.Lock()
	require.Zero(t, d.active, "copies under way after an error")
	if fails = d.copies > d.fails; fails {
		require.ErrorIs(t, err, kerneltest.ErrFault)
	} else {
		require.NoError(t, err)
	}
	d.mu.Unlock()
	if fails {
		require.Equal(t, 1, tr.Step())
		require.NoError(t, m.fetch())
		if tr.halfway {
			require.ErrorIs(t, tr.Save(context.Background()), snug.ErrConfig)
		} else {
			require.Equal(t, before, m.bits())
		}
	}
	_ = tr.Close() // may return the error of the copy again
	return fails
}

// faulty is a Storage that ends in the way of fault when it is called the n-th time from now.
type faulty struct {
	Storage
	n     int
	fault func() error
}

func (f *faulty) Acquire(key string, size int) ([]byte, error) {
	if f.n--; f.n == 0 {
		if err := f.fault(); err != nil {
			return nil, err
		}
	}
	return f.Storage.Acquire(key, size)
}

// TestStagingStorage: after an error, a panic or the end of the goroutine in the Storage, and after the device was closed,
// no copy is under way.
//
//check:in race
func TestStagingStorage(t *testing.T) {
	for _, c := range stagedCases[:6] {
		for way := range 4 {
			for _, n := range []int{1, 6} {
				dev, err := snug.Open("beside:0")
				require.NoError(t, err)
				copier, err := device.Copier(dev)
				require.NoError(t, err)
				d := copier.(*beside)
				m := newFarToy(t, dev, c.w, c.b)
				o := stagedStore(t, c.o)
				f := &faulty{Storage: o.Storage}
				f.fault = []func() error{
					func() error { return kerneltest.ErrFault },
					func() error { panic(kerneltest.ErrFault) },
					func() error { runtime.Goexit(); return nil },
					dev.Close,
				}[way]
				o.Storage = f
				tr, err := New(Model[[]int](m), o)
				require.NoError(t, err)
				trainTo(t, tr, 1)
				f.n = n
				err = kerneltest.Recovered(func() error {
					_, err := tr.Train(context.Background(), steps(1))
					return err
				})
				if way == 3 {
					require.ErrorIs(t, err, snug.ErrDevice, "%s, call %d", c.name, n)
				} else {
					require.ErrorIs(t, err, kerneltest.ErrFault, "%s, call %d", c.name, n)
					d.mu.Lock()
					require.Zero(t, d.active, "%s, call %d", c.name, n)
					d.mu.Unlock()
				}
				_ = tr.Close()
				_ = dev.Close()
			}
		}
	}
}
