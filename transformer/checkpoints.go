package transformer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/qlora"
	"github.com/snug-ml/snug/remat"
)

// Checkpoints keeps outputs of stages, the checkpoints of a plan of package remat, until the backward pass needs them. A
// Store of package offload is one: it keeps them on disk, and HostLimit is the memory that they take on their way. Use a
// Store that holds nothing else, with a HostLimit of [plan.CheckpointBytes], so that checkpoints and pages of weights or
// state do not displace each other.
type Checkpoints interface {
	qlora.Storage
	// Delete forgets a blob that nobody holds.
	Delete(key string) error
}

// pieceBytes is the size of the blobs of a checkpoint. The last one is shorter.
const pieceBytes = 2 << 20

// checkpointKeys counts the checkpoints of all models, so that models that share a storage have keys of their own.
var checkpointKeys atomic.Int64

// checkpoint is a copy of an output. It implements [remat.Copy]. Its transfers are done when its methods return; a
// Store writes in the background.
type checkpoint struct {
	m      *Model
	number int64
	keys   []string // of pieces, of the largest output so far
	pieces int      // that the storage has
	bytes  int64
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

// takeCheckpoint returns a checkpoint without a copy, a released one if there is any.
func (m *Model) takeCheckpoint() *checkpoint {
	if n := len(m.unusedCheckpoints); n > 0 {
		c := m.unusedCheckpoints[n-1]
		m.unusedCheckpoints = m.unusedCheckpoints[:n-1]
		return c
	}
	return &checkpoint{m: m, number: checkpointKeys.Add(1)}
}

// piece copies elements to a blob, or from it.
func (c *checkpoint) piece(v snug.View, i int, out bool) (err error) {
	storage, key := c.m.options.Checkpoints, c.keys[i]
	blob, err := storage.Acquire(key, v.Bytes())
	if err != nil {
		return err
	}
	if out {
		c.pieces++
	}
	defer func() { err = errors.Join(err, storage.Release(key, out)) }()
	if at := uintptr(unsafe.Pointer(unsafe.SliceData(blob))); len(blob) != v.Bytes() || at%4 != 0 {
		return fmt.Errorf("the storage gives %d bytes at an address of remainder %d by 4, want %d bytes at a multiple of 4: %w", len(blob), at%4, v.Bytes(), snug.ErrCorrupt)
	}
	there := viewOfBytes(blob, v.DType())
	if out {
		return snug.Copy(there, v)
	}
	return snug.Copy(v, there)
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

// Stored implements [remat.Copy].
func (c *checkpoint) Stored(context.Context) error { return nil }

// Loaded implements [remat.Copy].
func (c *checkpoint) Loaded(context.Context) error { return nil }

// Load implements [remat.Copy].
func (c *checkpoint) Load(ctx context.Context) (*tensor, error) {
	o := c.m.begins(c.m.headStage()+1, plan.Backward)
	y := o.get(c.m.config.Dim)
	size := pieceBytes / c.m.dtype.Size()
	for i := range c.pieces {
		o.do(func() error {
			if err := ctx.Err(); err != nil {
				return err
			}
			lo := i * size
			return c.piece(part(y.View, lo, min(size, y.Len()-lo)), i, false)
		})
	}
	if o.err = cmp.Or(o.err, c.m.pool.err); o.err != nil {
		c.m.pool.put(y)
		return nil, o.err
	}
	return y, nil
}

// Release implements [remat.Copy]. The call that runs fails with the error of the storage.
func (c *checkpoint) Release() {
	for _, key := range c.keys[:c.pieces] {
		c.m.pool.err = cmp.Or(c.m.pool.err, c.m.options.Checkpoints.Delete(key))
	}
	c.pieces, c.bytes = 0, 0
	c.m.unusedCheckpoints = append(c.m.unusedCheckpoints, c)
}
