//go:build (cuda || hip) && linux

package cuda

import (
	"encoding/binary"
	"math"
	"unsafe"

	"github.com/x448/float16"
)

// fakeLt is cuBLASLt on a fake driver: it multiplies column-major matrices.
type fakeLt struct {
	f         *fake
	vendor    *ltVendor
	descs     map[uintptr]*[2]int32 // the operations
	layouts   map[uintptr]layout
	prefers   map[uintptr]map[int32]uint64
	handles   int
	creates   int
	asked     map[int32]uint64 // the preferences of the last question
	questions int
	answer    ltStatus  // of the heuristic
	none      bool      // the heuristic finds nothing
	status    ltStatus  // of the product
	created   ltStatus  // of cublasLtCreate
	before    []*fakeLt // that the system finds first
}

type layout struct {
	dataType   int32
	rows, cols uint64
	stride     int64
}

func newFakeLt(f *fake) *fakeLt {
	return &fakeLt{f: f, vendor: &cublasLt, descs: map[uintptr]*[2]int32{}, layouts: map[uintptr]layout{}, prefers: map[uintptr]map[int32]uint64{}}
}

// open opens a device with cuBLASLt.
func (l *fakeLt) open() (*Device, error) {
	d, err := newBackend(l.f.vendor, func() (*api, error) { return l.f.driverAPI(), nil }, l.found).Open(0)
	if err != nil {
		return nil, err
	}
	return d.(*Device), nil
}

// found yields the libraries that the system finds.
func (l *fakeLt) found(yield func(*ltAPI) bool) {
	for _, b := range l.before {
		if !yield(b.api()) {
			return
		}
	}
	yield(l.api())
}

func (l *fakeLt) api() *ltAPI {
	lt := &ltAPI{vendor: l.vendor, matmul: l.matmul}
	lt.create = func(h *uintptr) ltStatus {
		l.creates++
		if l.vendor != &cublasLt {
			l.f.mu.Lock()
			for _, s := range l.f.streams {
				if s.captured != nil {
					panic("hipblasLtCreate ends the process during a capture")
				}
			}
			if l.f.total-l.f.used() < 3<<20 {
				panic("hipblasLtCreate ends the process without memory")
			}
			l.f.mu.Unlock()
		}
		if l.created != 0 {
			*h = 1 // which means nothing
			return l.created
		}
		*h = l.f.handle()
		l.handles++
		return 0
	}
	lt.destroy = func(uintptr) ltStatus {
		l.handles--
		return 0
	}
	lt.descCreate = func(desc *uintptr, compute, scale int32) ltStatus {
		if compute != l.vendor.compute || scale != real32F {
			return l.vendor.invalid
		}
		*desc = l.f.handle()
		l.descs[*desc] = &[2]int32{}
		return 0
	}
	lt.descDestroy = func(desc uintptr) ltStatus {
		delete(l.descs, desc)
		return 0
	}
	lt.descSet = func(desc uintptr, attribute int32, value *int32, size uint64) ltStatus {
		if size != 4 {
			return l.vendor.invalid
		}
		l.descs[desc][attribute-l.vendor.descTransA] = *value
		return 0
	}
	lt.layoutCreate = func(p *uintptr, dataType int32, rows, cols uint64, stride int64) ltStatus {
		*p = l.f.handle()
		l.layouts[*p] = layout{dataType, rows, cols, stride}
		return 0
	}
	lt.layoutDestroy = func(p uintptr) ltStatus {
		delete(l.layouts, p)
		return 0
	}
	lt.preferCreate = func(p *uintptr) ltStatus {
		*p = l.f.handle()
		l.prefers[*p] = map[int32]uint64{}
		return 0
	}
	lt.preferDestroy = func(p uintptr) ltStatus {
		delete(l.prefers, p)
		return 0
	}
	lt.preferSet = func(p uintptr, attribute int32, value unsafe.Pointer, size uint64) ltStatus {
		if size == 8 {
			l.prefers[p][attribute] = *(*uint64)(value)
		} else {
			l.prefers[p][attribute] = uint64(*(*uint32)(value))
		}
		return 0
	}
	lt.heuristic = func(_, _, _, _, _, _, p uintptr, want int32, results *ltResult, got *int32) ltStatus {
		if unsafe.Sizeof(*results) != 96 || want != 1 {
			return l.vendor.invalid
		}
		l.questions++
		l.asked = l.prefers[p]
		results[0] = 77
		if !l.none {
			*got = 1
		}
		return l.answer
	}
	return lt
}

func (l *fakeLt) matmul(_, desc uintptr, alpha unsafe.Pointer, a, aLayout, b, bLayout uintptr, beta unsafe.Pointer,
	c, cLayout, d, dLayout uintptr, algo unsafe.Pointer, workspace, size, s uintptr) ltStatus {
	if l.status != 0 {
		return l.status
	}
	l.f.mu.Lock()
	defer l.f.mu.Unlock()
	if *(*uint64)(algo) != 77 || c != d || cLayout != dLayout || uintptr(len(l.f.memory[workspace])) != size {
		return l.vendor.invalid
	}
	al, be := *(*float32)(alpha), *(*float32)(beta)
	op, la, lb, lc := *l.descs[desc], l.layouts[aLayout], l.layouts[bLayout], l.layouts[cLayout]
	depth := la.cols
	if op[0] == l.vendor.transposed {
		depth = la.rows
	}
	l.f.enqueue(s, func() {
		for i := range lc.rows {
			for j := range lc.cols {
				var sum float32
				for k := range depth {
					sum += l.load(a, la, op[0], i, k) * l.load(b, lb, op[1], k, j)
				}
				l.store(c, lc, i, j, al*sum+be*l.load(c, lc, 0, i, j))
			}
		}
	})
	return 0
}

// at returns the bytes of element (row, col), or of (col, row) if trans is 1.
func (l *fakeLt) at(addr uintptr, x layout, trans int32, row, col uint64) []byte {
	if trans == l.vendor.transposed {
		row, col = col, row
	}
	size := uint64(2)
	if x.dataType == real32F {
		size = 4
	}
	return l.f.bytes(addr+uintptr((row+col*uint64(x.stride))*size), size)
}

func (l *fakeLt) load(addr uintptr, x layout, trans int32, row, col uint64) float32 {
	b := l.at(addr, x, trans, row, col)
	switch x.dataType {
	case real32F:
		return math.Float32frombits(binary.LittleEndian.Uint32(b))
	case real16F:
		return float16.Frombits(binary.LittleEndian.Uint16(b)).Float32()
	default:
		return math.Float32frombits(uint32(binary.LittleEndian.Uint16(b)) << 16)
	}
}

func (l *fakeLt) store(addr uintptr, x layout, row, col uint64, v float32) {
	b := l.at(addr, x, 0, row, col)
	switch x.dataType {
	case real32F:
		binary.LittleEndian.PutUint32(b, math.Float32bits(v))
	case real16F:
		binary.LittleEndian.PutUint16(b, float16.Fromfloat32(v).Bits())
	default:
		binary.LittleEndian.PutUint16(b, uint16(math.Float32bits(v)>>16))
	}
}
