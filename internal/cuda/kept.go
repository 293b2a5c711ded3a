//go:build cuda || hip

package cuda

import (
	"cmp"
	"slices"
)

// block is device memory of one call of the driver.
type block struct {
	addr uintptr
	size int
}

// kept is the freed memory of a device without memory pools, for later allocations. The driver
// waits for all streams when it frees, and so is asked only for what goes beyond a limit, when
// the queue is empty. All use of a block is in the order of the queue, so that a freed one can be
// used again at once.
//
// HIP's own pools are not used: those of ROCm 7 fail on RDNA 3 (out of memory, null, freed twice),
// and those of 6.2 and 6.3 take more than is allocated.
type kept struct {
	blocks []block // by size
	bytes  int     // of blocks
	live   int     // bytes that are allocated
	peak   int     // the most of live
	limit  int     // of bytes that stay when the queue is empty
}

// take returns the smallest block that size fits and fills well.
func (k *kept) take(size int) (b block, ok bool) {
	i, _ := slices.BinarySearchFunc(k.blocks, size, func(b block, size int) int { return cmp.Compare(b.size, size) })
	if i == len(k.blocks) || k.blocks[i].size-size > max(size/8, 4<<10-1) {
		return block{}, false
	}
	b = k.blocks[i]
	k.blocks = slices.Delete(k.blocks, i, i+1)
	k.bytes -= b.size
	k.add(b.size)
	return b, true
}

// add counts bytes that are allocated.
func (k *kept) add(size int) {
	k.live += size
	k.peak = max(k.peak, k.live)
}

// put keeps a block that is no longer allocated.
func (k *kept) put(b block) {
	k.live -= b.size
	k.insert(b)
}

func (k *kept) insert(b block) {
	i, _ := slices.BinarySearchFunc(k.blocks, b.size, func(b block, size int) int { return cmp.Compare(b.size, size) })
	k.blocks = slices.Insert(k.blocks, i, b)
	k.bytes += b.size
}

// largest takes out the largest block.
func (k *kept) largest() block {
	b := k.blocks[len(k.blocks)-1]
	k.blocks = k.blocks[:len(k.blocks)-1]
	k.bytes -= b.size
	return b
}

// crowded reports whether size more bytes of the driver, beside what is kept, would be more than
// the device has ever needed at a time: then another process lacks them.
func (k *kept) crowded(size int) bool {
	return k.bytes > 0 && k.live+k.bytes+size > max(k.peak, k.live+size)
}

// trim frees blocks, the largest first, until at most limit bytes are kept. The queue is empty.
// A block that the driver does not free is kept.
func (d *Device) trim(limit int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	k := &d.kept
	for k.bytes > limit {
		b := k.largest()
		if err := d.check("cuMemFree", d.api.memFree(b.addr)); err != nil {
			k.insert(b)
			return err
		}
	}
	return nil
}
