package driver

import (
	"errors"
	"fmt"
	"slices"
	"sync"
)

// A queue keeps up to keptBlocks blocks and keptBytes bytes of returned memory. Training repeats itself, so that a few
// sizes serve all calls of a step.
const (
	keptBlocks = 64
	keptBytes  = 8 << 20
)

// kept is returned memory that nobody has, the last returned block last.
type kept struct {
	mu     sync.Mutex
	blocks []Mem
	bytes  int
}

// take removes a block of size bytes.
func (k *kept) take(size int) (Mem, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for i, m := range slices.Backward(k.blocks) {
		if m.Size == size {
			k.remove(i)
			return m, true
		}
	}
	return Mem{}, false
}

func (k *kept) remove(i int) {
	k.bytes -= k.blocks[i].Size
	k.blocks = slices.Delete(k.blocks, i, i+1)
}

// put adds a block and returns the blocks that went out of use long ago and exceed the limits.
func (k *kept) put(m Mem) (over []Mem) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.blocks, k.bytes = append(k.blocks, m), k.bytes+m.Size
	for k.bytes > keptBytes || len(k.blocks) > keptBlocks {
		over = append(over, k.blocks[0])
		k.remove(0)
	}
	return over
}

// empty removes all blocks.
func (k *kept) empty() []Mem {
	k.mu.Lock()
	defer k.mu.Unlock()
	all := k.blocks
	k.blocks, k.bytes = nil, 0
	return all
}

// Lend returns size > 0 bytes of the device's memory, of any contents, until Return. It is for memory that one call
// needs on a device other than the CPU, such as the arguments of a kernel or its small results. Once the sizes of a
// step are kept, it costs the device nothing: no allocation, no zeros and no wait. A graph cannot borrow.
func (q *Queue) Lend(size int) (Mem, error) {
	if err := q.Check(); err != nil {
		return Mem{}, err
	}
	if q.Capturing.Load() {
		return Mem{}, fmt.Errorf("%s: memory that is lent for a call cannot be part of a captured graph: %w", q.Name, ErrDevice)
	}
	if m, ok := q.kept.take(size); ok {
		return m, nil
	}
	return q.Alloc(size)
}

// Return ends a Lend. Queued work may still use the memory: the queue runs it before the work of whoever borrows next.
// After the device is closed it does nothing.
func (q *Queue) Return(m Mem) error {
	if m.Size == 0 || q.Closed.Load() {
		return nil
	}
	return q.free(q.kept.put(m))
}

func (q *Queue) free(blocks []Mem) (err error) {
	for _, m := range blocks {
		err = errors.Join(err, q.Free(m))
	}
	return err
}

// Alloc returns size > 0 zeroed bytes. If the device has no room, it first waits and gets back
// the memory that the queue keeps.
func (q *Queue) Alloc(size int) (Mem, error) {
	q.counts.allocs.Add(1)
	m, err := q.Driver.Alloc(size)
	if !errors.Is(err, ErrNoMemory) {
		return m, err
	}
	blocks := q.kept.empty()
	if len(blocks) == 0 {
		return m, err
	}
	if err := errors.Join(q.free(blocks), q.Sync()); err != nil { // memory is free when the queue comes to it
		return Mem{}, err
	}
	return q.Driver.Alloc(size)
}

// Memory returns the free and total bytes of the device. Memory that the queue keeps counts as free.
func (q *Queue) Memory() (free, total int64, err error) {
	free, total, err = q.Driver.Memory()
	q.kept.mu.Lock()
	defer q.kept.mu.Unlock()
	return free + int64(q.kept.bytes), total, err
}

// Close closes the device, which frees its memory.
func (q *Queue) Close() error {
	q.kept.empty()
	return q.Driver.Close()
}
