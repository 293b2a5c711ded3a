package transformer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"unsafe"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/offload"
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/qlora"
	"github.com/snug-ml/snug/remat"
)

// Checkpoints keeps outputs of stages, the checkpoints of a plan of package remat, until the backward pass needs them. A
// Store of package offload is one: it keeps them on disk, and HostLimit is the memory that they take on their way. A device
// copies them in parallel with its kernels, through [plan.CheckpointPinned] bytes of pinned host memory. Use a
// Store that holds nothing else, with a HostLimit of [plan.CheckpointBytes], so that checkpoints and pages of weights or
// state do not displace each other.
type Checkpoints interface {
	qlora.Storage
	// Delete forgets a blob that nobody holds.
	Delete(key string) error
}

// pieceBytes is the size of the blobs of a checkpoint. The last one is shorter.
const pieceBytes = 2 << 20

// outgoing is how many pieces are copied from a device at the same time. Their blobs are held meanwhile.
const outgoing = plan.CheckpointPinned / pieceBytes

// checkpointKeys counts the checkpoints of all models, so that models that share a storage have keys of their own.
var checkpointKeys atomic.Int64

// leaving is a piece on its way from a device to its blob, which is held until it has arrived.
type leaving struct {
	of   *checkpoint
	key  string
	move offload.Move
}

// checkpoint is a copy of an output. It implements [remat.Copy]. On the CPU its transfers are done when its methods
// return; a Store writes in the background. On a device that copies in parallel with its kernels, kernels that are queued
// later wait for the transfers where they must, and the host waits for a piece only if more than outgoing ones are under
// way.
type checkpoint struct {
	m      *Model
	number int64
	keys   []string // of pieces, of the largest output so far
	pieces int      // that the storage has
	bytes  int64
	last   offload.Move // its last transfer; those of one direction end in their order
}

// store copies an output.
func (m *Model) store(_ context.Context, _ remat.Tier, y *tensor) (remat.Copy[*tensor], error) {
	m.enter(m.headStage()+1, m.forwardPhase())
	c := m.takeCheckpoint()
	size := pieceBytes / y.DType().Size()
	for lo := 0; lo < y.Len(); lo += size {
		if len(c.keys) == c.pieces {
			c.keys = append(c.keys, fmt.Sprintf("checkpoints/%d/%d", c.number, c.pieces))
		}
		err := c.piece(part(y.View, lo, min(size, y.Len()-lo)), c.pieces, true)
		if err != nil {
			c.Release()
			return nil, err
		}
	}
	c.bytes = int64(y.Bytes())
	return c, nil
}

// makeMover makes what copies checkpoints from a device and to it.
func (m *Model) makeMover() (err error) {
	if m.options.Checkpoints == nil || m.dev.IsCPU() {
		return nil
	}
	if m.mover, err = offload.NewMover(m.dev, pieceBytes, outgoing); err != nil {
		return err
	}
	m.free = append(m.free, m.mover.Close)
	return nil
}

// takeCheckpoint returns a checkpoint without a copy, a released one if there is any.
func (m *Model) takeCheckpoint() *checkpoint {
	if n := len(m.unusedCheckpoints); n > 0 {
		c := m.unusedCheckpoints[n-1]
		m.unusedCheckpoints = m.unusedCheckpoints[:n-1]
		return c
	}
	return &checkpoint{m: m, number: checkpointKeys.Add(1)}
}

// arrive waits for the piece that left first, and lets its blob go.
func (m *Model) arrive() error {
	p := m.leaving[0]
	m.leaving = slices.Delete(m.leaving, 0, 1)
	return errors.Join(p.move.Wait(), m.options.Checkpoints.Release(p.key, true))
}

// piece starts to copy elements to a blob, or from it.
func (c *checkpoint) piece(v snug.View, i int, out bool) (err error) {
	storage, key := c.m.options.Checkpoints, c.keys[i]
	for out && len(c.m.leaving) >= outgoing {
		if err := c.m.arrive(); err != nil {
			return err
		}
	}
	blob, err := storage.Acquire(key, v.Bytes())
	if err != nil {
		return err
	}
	if out {
		c.pieces++
	}
	held := false
	defer func() {
		if !held {
			err = errors.Join(err, storage.Release(key, out))
		}
	}()
	if at := uintptr(unsafe.Pointer(unsafe.SliceData(blob))); len(blob) != v.Bytes() || at%4 != 0 {
		return fmt.Errorf("the storage gives %d bytes at an address of remainder %d by 4, want %d bytes at a multiple of 4: %w", len(blob), at%4, v.Bytes(), snug.ErrCorrupt)
	}
	there := viewOfBytes(blob, v.DType())
	switch {
	case c.m.mover == nil && out:
		return snug.Copy(there, v)
	case c.m.mover == nil:
		return snug.Copy(v, there)
	case !out:
		c.last, err = c.m.mover.Load(v, there)
		return err
	}
	if c.last, err = c.m.mover.Save(there, v); err != nil {
		return err
	}
	if held = c.last != (offload.Move{}); held {
		c.m.leaving = append(c.m.leaving, leaving{c, key, c.last})
	}
	return nil
}

// viewOfBytes returns bytes as elements.
func viewOfBytes(b []byte, dt snug.DType) snug.View {
	at, n := unsafe.Pointer(unsafe.SliceData(b)), len(b)/dt.Size()
	switch dt {
	case snug.BF16:
		return snug.SliceView(unsafe.Slice((*snug.BFloat16)(at), n))
	case snug.F16:
		return snug.SliceView(unsafe.Slice((*snug.Float16)(at), n))
	}
	return snug.SliceView(unsafe.Slice((*float32)(at), n))
}

// Bytes implements [remat.Copy].
func (c *checkpoint) Bytes() int64 { return c.bytes }

// Stored implements [remat.Copy]. Kernels that are queued from now on may overwrite the output.
func (c *checkpoint) Stored(context.Context) error { return c.last.Await() }

// Loaded implements [remat.Copy]. Kernels that are queued from now on see the output.
func (c *checkpoint) Loaded(context.Context) error { return c.last.Await() }

// Load implements [remat.Copy].
func (c *checkpoint) Load(ctx context.Context) (*tensor, error) {
	o := c.m.begins(ctx, c.m.headStage()+1, meter.Backward)
	for err := error(nil); c.leaves() && o.Err == nil; o.Err = err {
		err = c.m.arrive()
	}
	y := o.Get(int(c.bytes) / o.Rows() / c.m.dtype.Size())
	size := pieceBytes / c.m.dtype.Size()
	for i := range c.pieces {
		o.Do(func() error {
			if err := ctx.Err(); err != nil {
				return err
			}
			lo := i * size
			return c.piece(part(y.View, lo, min(size, y.Len()-lo)), i, false)
		})
	}
	if o.Failed() != nil {
		_ = c.last.Wait() // nothing writes y any more
		c.m.pass.Put(y)
		return nil, o.Err
	}
	return y, nil
}

// leaves reports whether a piece of c is on its way to the storage.
func (c *checkpoint) leaves() bool {
	return slices.ContainsFunc(c.m.leaving, func(p leaving) bool { return p.of == c })
}

// Release implements [remat.Copy]. The call that runs fails with the error of the storage or of a transfer.
func (c *checkpoint) Release() {
	for c.leaves() {
		c.m.pass.Fail(c.m.arrive())
	}
	c.m.pass.Fail(c.last.Await())
	c.last = offload.Move{}
	for _, key := range c.keys[:c.pieces] {
		c.m.pass.Fail(c.m.options.Checkpoints.Delete(key))
	}
	c.pieces, c.bytes = 0, 0
	c.m.unusedCheckpoints = append(c.m.unusedCheckpoints, c)
}
