//go:build cuda || hip

package cuda

import (
	"errors"
	"fmt"
	"log/slog"
	"unsafe"

	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/gpu"
)

// mapBytes is the size of a CUtensorMap, whose address is a multiple of 64.
const mapBytes = 128

// mapColumns is the columns of a box: 128 bytes, the most that are permuted.
const mapColumns = 64

// mapShape is what cuTensorMapEncodeTiled reads through pointers.
type mapShape struct {
	dims       [4]uint64 // of the tensor, the one of neighbours first
	strides    [3]uint64 // bytes of the others
	box, steps [4]uint32
}

// Hopper implements [gpu.HopperLauncher]: on compute capability 9.0, unless the
// environment variable SNUG_CUDA is 80 or the driver does not load all kernels of m. They
// are loaded at the first question, before any of them is launched.
func (d *Device) Hopper(m *gpu.Module) bool {
	if !d.hopper {
		return false
	}
	k := &d.kernels
	k.mu.RLock()
	whole, asked := k.whole[m]
	k.mu.RUnlock()
	if asked {
		return whole
	}
	if d.enter() != nil {
		return false // the next call says why
	}
	defer d.leave()
	err := d.loadEntries(m)
	if err != nil && d.lost.Load() == nil {
		slog.Warn("snug: cuda: kernels for compute capability 9.0 cannot be used, others take their place", "module", m.Name, "error", err)
	}
	k.mu.Lock()
	k.whole[m] = err == nil
	k.mu.Unlock()
	return err == nil
}

func (d *Device) loadEntries(m *gpu.Module) error {
	for _, e := range m.Entries {
		if _, err := d.load(&gpu.Launch{Module: m, Func: e.Name, Shared: e.Shared}); err != nil {
			return err
		}
	}
	return nil
}

// encodeMaps writes tensor maps where the arguments of a launch begin.
func (d *Device) encodeMaps(f *frame, maps []gpu.TensorMap) error {
	if len(maps) > 0 && !d.hopper {
		return fmt.Errorf("%v takes no tensor maps: %w", d, driver.ErrDevice)
	}
	for i := range maps {
		m := &maps[i]
		f.shape = mapShape{box: [4]uint32{mapColumns, uint32(m.Rows), 1, 1}, steps: [4]uint32{1, 1, 1, 1}}
		for j, n := range m.Dims {
			f.shape.dims[j] = uint64(n)
		}
		for j, n := range m.Strides {
			f.shape.strides[j] = uint64(n)
		}
		s := &f.shape
		r := d.api.encodeMap(unsafe.Pointer(&f.args[i*mapBytes]), mapWords, uint32(len(s.dims)), m.Mem.Addr,
			unsafe.Pointer(&s.dims), unsafe.Pointer(&s.strides), unsafe.Pointer(&s.box), unsafe.Pointer(&s.steps),
			mapPlain, mapSwizzle, mapLines, mapZeros)
		if err := d.check("cuTensorMapEncodeTiled", r); err != nil {
			return errors.Join(gpu.ErrTensorMap, err)
		}
	}
	return nil
}
