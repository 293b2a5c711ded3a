//go:build metal

package metal

import (
	"embed"
	"fmt"
	"io/fs"
	"unsafe"

	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/gpu"
)

// stageLimit is the longest copy to memory in use that goes through a staging
// buffer; a longer one waits for the queue, so that it needs no memory.
const stageLimit = 4 << 20

// CopyIn copies src to dst. Where the queue may still use dst it copies by way
// of the queue, or waits for it.
func (d *device) CopyIn(dst driver.Mem, src []byte) error {
	if len(src) == 0 {
		return nil
	}
	dst.Size = len(src)
	pool, err := d.enter()
	if err != nil {
		return err
	}
	to, err := d.buffers.find(dst)
	if err != nil {
		d.leave(pool)
		return err
	}
	d.reapAll()
	used, copied := to.used, to.copied
	busy := used > d.work.done || copied > d.copies.done
	if to.host == nil || busy && len(src) <= stageLimit {
		defer d.leave(pool)
		return d.stageIn(to, src)
	}
	if busy {
		d.commit(&d.work)
	}
	d.api.retain(to.object)
	d.leave(pool)

	defer d.release(to.object)
	if busy {
		if err := d.await(&d.work, used); err != nil {
			return err
		}
		if err := d.await(&d.copies, copied); err != nil {
			return err
		}
	}
	copy(to.bytes(), src)
	return nil
}

// release releases an object outside of the lock.
func (d *device) release(o object) {
	defer d.api.scope()()
	d.api.release(o)
}

// bytes returns the part where the host can address it.
func (p part) bytes() []byte {
	return unsafe.Slice((*byte)(unsafe.Add(p.host, p.off)), p.n)
}

// stageIn queues a copy of src, by way of a buffer that the command buffer
// keeps.
func (d *device) stageIn(to part, src []byte) error {
	staging, err := d.newStaging(len(src))
	if err != nil {
		return err
	}
	defer d.api.release(staging.object)
	copy(staging.bytes(), src)
	return d.copyPart(&d.work, to, staging)
}

// newStaging returns shared memory that is in no table.
func (d *device) newStaging(n int) (part, error) {
	obj := d.newBuffer(n, false)
	if obj == 0 {
		return part{}, d.noMemory(n)
	}
	return part{&buffer{object: obj, size: n, host: d.api.contents(obj)}, 0, n}, nil
}

// CopyOut waits for the queue and copies len(dst) bytes from src.
func (d *device) CopyOut(dst []byte, src driver.Mem) error {
	if len(dst) == 0 {
		return d.Sync()
	}
	src.Size = len(dst)
	from, last, err := d.readable(src)
	if err != nil {
		return err
	}
	defer d.release(from.object)
	if err := d.await(&d.work, last); err != nil {
		return err
	}
	copy(dst, from.bytes())
	return nil
}

// readable returns memory that holds what src will hold when command buffer
// last has finished, and which the host can address then. The caller releases
// it.
func (d *device) readable(src driver.Mem) (from part, last uint64, err error) {
	pool, err := d.enter()
	if err != nil {
		return part{}, 0, err
	}
	defer d.leave(pool)
	if from, err = d.buffers.find(src); err != nil {
		return part{}, 0, err
	}
	if from.host == nil {
		staging, err := d.newStaging(from.n)
		if err != nil {
			return part{}, 0, err
		}
		if err := d.copyPart(&d.work, staging, from); err != nil {
			d.api.release(staging.object)
			return part{}, 0, err
		}
		from = staging
	} else {
		d.api.retain(from.object)
	}
	d.commit(&d.work)
	return from, d.work.committed, nil
}

// Copy copies src.Size bytes on the device.
func (d *device) Copy(dst, src driver.Mem) error {
	if src.Size == 0 {
		return nil
	}
	pool, err := d.enter()
	if err != nil {
		return err
	}
	defer d.leave(pool)
	return d.copyMem(&d.work, dst, src)
}

func (d *device) copyMem(s *stream, dst, src driver.Mem) error {
	dst.Size = src.Size
	from, err := d.buffers.find(src)
	if err != nil {
		return err
	}
	to, err := d.buffers.find(dst)
	if err != nil {
		return err
	}
	return d.copyPart(s, to, from)
}

//go:embed kernels
var kernelFiles embed.FS

// bytewise is the kernel that copies what a blit command cannot.
var bytewise = func() *gpu.Module {
	source, err := fs.Sub(kernelFiles, "kernels")
	if err != nil {
		panic(err) // an error of the program's build
	}
	return &gpu.Module{Name: "copy", Source: source}
}()

const bytewiseThreads = 256

// bytewiseParams is struct CopyParams of kernels/copy.metal.
type bytewiseParams struct{ bytes uint64 }

// copyPart queues a copy on s. A blit command takes multiples of 4 on macOS.
func (d *device) copyPart(s *stream, to, from part) error {
	if (to.off|from.off|from.n)%4 != 0 {
		k, err := d.pipeline(bytewise, "copy_bytes")
		if err != nil {
			return err
		}
		blocks := [3]int{gpu.CeilDiv(from.n, bytewiseThreads), 1, 1}
		params := bytewiseParams{uint64(from.n)}
		return d.encodeGrid(s, k, []part{from, to}, gpu.Params(&params), blocks, bytewiseThreads)
	}
	if err := s.encode(true); err != nil {
		return err
	}
	d.api.copyBuffer(s.encoder, from.object, from.off, to.object, to.off, from.n)
	d.uses(s, from, to)
	d.counted(s, &d.copying, from.n)
	return nil
}

// uses notes that the open command buffer of s uses buffers.
func (d *device) uses(s *stream, parts ...part) {
	for _, p := range parts {
		if s == &d.copies {
			p.copied = s.current()
		} else {
			p.used = s.current()
		}
	}
}

// fence is the end of one copy that runs concurrently with the kernels, or of queued work.
type fence struct {
	d      *device
	s      *stream
	number uint64 // of its command buffer
}

// Point commits the work queued so far and returns its end.
func (d *device) Point() (driver.Fence, error) {
	pool, err := d.enter()
	if err != nil {
		return nil, err
	}
	defer d.leave(pool)
	d.commit(&d.work)
	return fence{d, &d.work, d.work.committed}, nil
}

// StartCopyIn starts a copy of src.Size pinned bytes to dst.
func (d *device) StartCopyIn(dst, src driver.Mem, after driver.Fence) (driver.Fence, error) {
	return d.startCopy(dst, src, after)
}

// StartCopyOut starts a copy of src.Size bytes to pinned memory dst.
func (d *device) StartCopyOut(dst, src driver.Mem, after driver.Fence) (driver.Fence, error) {
	return d.startCopy(dst, src, after)
}

// startCopy commits, on the other queue, a copy that waits for a fence, or for the work queued so far, which it
// commits first. Copies run in one order, so that they need not wait for the fence of another.
func (d *device) startCopy(dst, src driver.Mem, after driver.Fence) (driver.Fence, error) {
	pool, err := d.enter()
	if err != nil {
		return nil, err
	}
	defer d.leave(pool)
	f, ok := after.(fence)
	switch {
	case after != nil && (!ok || f.d != d):
		return nil, fmt.Errorf("metal: a copy after a fence of another device: %w", driver.ErrDevice)
	case src.Size == 0 && after != nil:
		return f, nil // of no copy
	case src.Size == 0:
		return fence{d, &d.copies, 0}, nil
	case after == nil:
		d.commit(&d.work)
		f = fence{d, &d.work, d.work.committed}
	}
	if f.s == &d.work {
		if err := d.copies.await(&d.work, f.number); err != nil {
			return nil, err
		}
	}
	if err := d.copyMem(&d.copies, dst, src); err != nil {
		return nil, err
	}
	d.commit(&d.copies)
	return fence{d, &d.copies, d.copies.committed}, nil
}

// Wait blocks the caller until the copy or the work is done.
func (f fence) Wait() error { return f.d.await(f.s, f.number) }

// Release does nothing.
func (f fence) Release() {}

// Await makes work queued from now on wait for the copy.
func (f fence) Await() error {
	pool, err := f.d.enter()
	if err != nil {
		return err
	}
	defer f.d.leave(pool)
	f.d.reapAll()
	if f.s == &f.d.work {
		return nil
	}
	return f.d.work.await(&f.d.copies, f.number)
}
