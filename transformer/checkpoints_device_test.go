package transformer

import (
	"errors"
	"fmt"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/offload"
)

func init() { driver.Register("turns", turnsBackend{}) }

// turnsBackend opens opaque devices whose copies of pinned memory take their turn in the queue, and whose caller goes on
// meanwhile.
type turnsBackend struct{}

func (turnsBackend) Count() (int, error) { return 1, nil }

func (turnsBackend) Open(int) (driver.Driver, error) {
	b, err := driver.Lookup("opaque")
	if err != nil {
		return nil, err
	}
	d, err := b.Open(0)
	return &turns{Driver: d, pinned: map[unsafe.Pointer]int{}, fails: -1}, err
}

type turns struct {
	driver.Driver
	pinned map[unsafe.Pointer]int
	bytes  int // pinned
	copies int
	waits  int // for a copy that had not ended
	fails  int // number of the copy that fails
}

func (d *turns) AllocPinned(size int) (driver.Mem, error) {
	p := unsafe.Pointer(unsafe.SliceData(make([]byte, size)))
	d.pinned[p] = size
	d.bytes += size
	return driver.Mem{Host: p, Addr: uintptr(p), Size: size}, nil
}

func (d *turns) FreePinned(m driver.Mem) error {
	d.bytes -= d.pinned[m.Host]
	delete(d.pinned, m.Host)
	return nil
}

// turnCopy copies between a vector on the device and pinned memory.
type turnCopy struct {
	there driver.Mem
	host  []byte
	out   bool
	done  chan struct{}
}

func (*turnCopy) Kernel() string                       { return "transformer.test" }
func (t *turnCopy) Operands(yield func(m *driver.Mem)) { yield(&t.there) }
func (t *turnCopy) Run() {
	if t.out {
		copy(t.host, t.there.Bytes())
	} else {
		copy(t.there.Bytes(), t.host)
	}
	close(t.done)
}

type turnFence struct {
	d    *turns
	done chan struct{}
	err  error
}

func (f turnFence) Wait() error {
	select {
	case <-f.done:
	default:
		f.d.waits++
		<-f.done
	}
	return f.err
}
func (turnFence) Await() error { return nil }
func (turnFence) Release()     {}

func (d *turns) Point() (driver.Fence, error) { return turnFence{}, nil }

func (d *turns) start(there, host driver.Mem, out bool) (driver.Fence, error) {
	t := &turnCopy{there, host.Bytes(), out, make(chan struct{})}
	t.there.Size = len(t.host)
	f := turnFence{d, t.done, nil}
	if d.copies++; d.copies == d.fails {
		f.err = fmt.Errorf("the copy fails: %w", kerneltest.ErrFault)
	}
	return f, d.Launch(t)
}

func (d *turns) StartCopyIn(dst, src driver.Mem, _ driver.Fence) (driver.Fence, error) {
	return d.start(dst, src, false)
}

func (d *turns) StartCopyOut(dst, src driver.Mem, _ driver.Fence) (driver.Fence, error) {
	return d.start(src, dst, true)
}

// TestCheckpointsOnDevice: checkpoints of a model on a device have the same gradients bit for bit, wait for the queue no
// more often than a step without them, and hold as many blobs as may be under way. Without copies in parallel each piece
// waits.
func TestCheckpointsOnDevice(t *testing.T) {
	c := tiny()
	b := someBatch(7, c.Vocab, 9, 13)
	for _, kind := range []string{"turns", "opaque"} {
		t.Run(kind, func(t *testing.T) {
			dev, err := snug.Open(kind)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, dev.Close()) })
			waits := func(m *Model) int64 {
				before := device.Counts(dev).Waits
				gradients(t, m, b)
				return device.Counts(dev).Waits - before
			}
			o := Options{Device: dev}
			plain := newTiny(t, c, o)
			want, without := gradients(t, plain, b), waits(plain)
			s, err := offload.Open(t.TempDir(), offload.Options{HostLimit: 4 * pieceBytes})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, s.Close()) })
			o.Checkpoints = s
			m := newTiny(t, c, o)
			p, _ := paged(t, m, 9, 13)
			require.NoError(t, m.SetPlan(p))
			for range 2 {
				require.Equal(t, want, gradients(t, m, b))
			}
			require.Empty(t, m.leaving)
			require.Empty(t, s.Keys())
			if kind == "turns" {
				d := copierOf(t, dev)
				require.Equal(t, outgoing*pieceBytes, d.bytes)
				require.GreaterOrEqual(t, d.copies, 8)
				require.Equal(t, without, waits(m))
			} else {
				require.Greater(t, waits(m), without)
			}
		})
	}
}

func copierOf(t *testing.T, dev *snug.Device) *turns {
	c, err := device.Copier(dev)
	require.NoError(t, err)
	d, ok := c.(*turns)
	require.True(t, ok)
	return d
}

// TestCheckpointsOnDeviceFail: whatever copy fails, or call of the storage, the error arrives, nothing is held, and no copy
// to the storage is under way.
func TestCheckpointsOnDeviceFail(t *testing.T) {
	c := tiny()
	b := someBatch(7, c.Vocab, 3, 9)
	for _, storage := range []bool{false, true} {
		for at := 1; ; at++ {
			dev, err := snug.Open("turns")
			require.NoError(t, err)
			d, s := copierOf(t, dev), newShelf()
			m := newTiny(t, c, Options{Device: dev, Checkpoints: s})
			p, _ := paged(t, m, 3, 9)
			require.NoError(t, m.SetPlan(p))
			w := newWindow(t, m)
			require.NoError(t, w.Begin(1))
			if storage {
				s.fail = at
			} else {
				d.fails = at
			}
			_, err = m.Backprop(t.Context(), b, 1, w)
			require.Empty(t, m.leaving)
			for _, n := range s.held {
				require.Zero(t, n)
			}
			calls := d.copies
			if storage {
				calls = s.calls
			}
			done := calls < at
			if done {
				require.NoError(t, err)
				require.Greater(t, at, 4)
			} else if err == nil { // a copy to the device, whose error a later call returns, as that of a kernel
				require.False(t, storage, "call %d", at)
				err = m.Close()
			}
			if !done {
				require.True(t, errors.Is(err, errShelf) || errors.Is(err, kerneltest.ErrFault), "%v", err)
			}
			_ = m.Close()
			require.Zero(t, d.bytes)
			require.NoError(t, dev.Close())
			if done {
				break
			}
		}
	}
}
