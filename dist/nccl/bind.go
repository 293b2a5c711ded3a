//go:build (cuda || hip) && linux && (amd64 || arm64)

package nccl

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"unsafe"

	"github.com/ebitengine/purego"
	"github.com/snug-ml/snug"
)

// built returns an error where this package has no library.
func built() error { return nil }

// openLibrary opens the library that is named, or the first for a kind of device.
func openLibrary(name, kind string) (*library, error) {
	names := libraryNames(kind)
	if name == "" {
		name = os.Getenv(LibraryVariable)
	}
	if name != "" {
		names = []string{name}
	}
	var first error
	for _, path := range names {
		at, err := purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_LOCAL)
		if err == nil {
			l := &library{path: path}
			l.missing = bind(at, l.symbols())
			bind(at, l.optional())
			return l, l.usable()
		}
		if first == nil {
			first = err
		}
	}
	if name != "" {
		return nil, fmt.Errorf("%w: %w", first, snug.ErrNotBuilt)
	}
	return nil, fmt.Errorf("no library of NCCL: looked for %s where the system looks; %s can name one: %w: %w",
		strings.Join(names, ", "), LibraryVariable, first, snug.ErrNotBuilt)
}

// symbol is a function of the library and the field for it.
type symbol struct {
	name string
	fn   any // a pointer to the field
}

func (l *library) symbols() []symbol {
	return []symbol{
		{"ncclGetVersion", &l.getVersion},
		{"ncclGetUniqueId", &l.getUniqueID},
		{"ncclCommInitRank", &l.initRank},
		{"ncclCommDestroy", &l.destroy},
		{"ncclCommAbort", &l.abort},
		{"ncclCommGetAsyncError", &l.asyncError},
		{"ncclGetErrorString", &l.errorString},
		{"ncclGroupStart", &l.groupStart},
		{"ncclGroupEnd", &l.groupEnd},
		{"ncclSend", &l.send},
		{"ncclRecv", &l.receive},
		{"ncclAllGather", &l.allGather},
		{"ncclBroadcast", &l.broadcast},
	}
}

// optional are functions of later versions.
func (l *library) optional() []symbol {
	return []symbol{{"ncclCommInitRankScalable", &l.initScalable}, {"ncclGetLastError", &l.lastError}}
}

// bind fills the fields of symbols and returns the names that the library lacks.
func bind(at uintptr, symbols []symbol) (missing []string) {
	for _, s := range symbols {
		addr, err := purego.Dlsym(at, s.name)
		if err != nil || addr == 0 {
			missing = append(missing, s.name)
			continue
		}
		bindOne(s.fn, addr)
	}
	return missing
}

// bindOne sets a function field to the C function at addr.
func bindOne(field any, addr uintptr) {
	c := &cFunction{addr: addr}
	switch fn := field.(type) {
	case *commFunc:
		*fn = func(comm uintptr) result { return c.call(comm) }
	case *errorFunc:
		*fn = func(comm uintptr, r *result) result { return c.call(comm, uintptr(unsafe.Pointer(r))) }
	case *groupFunc:
		*fn = func() result { return c.call() }
	case *moveFunc:
		*fn = func(at uintptr, count uint64, dtype, peer int32, comm, stream uintptr) result {
			return c.call(at, uintptr(count), uintptr(dtype), uintptr(peer), comm, stream)
		}
	case *gatherFunc:
		*fn = func(src, dst uintptr, count uint64, dtype int32, comm, stream uintptr) result {
			return c.call(src, dst, uintptr(count), uintptr(dtype), comm, stream)
		}
	case *broadcastFunc:
		*fn = func(src, dst uintptr, count uint64, dtype, root int32, comm, stream uintptr) result {
			return c.call(src, dst, uintptr(count), uintptr(dtype), uintptr(root), comm, stream)
		}
	default:
		purego.RegisterFunc(field, addr)
	}
}

// cFunction is a C function of integers and of addresses that are not Go's. SyscallN lets its list of arguments escape,
// so the lists are used again.
type cFunction struct {
	addr uintptr
	free sync.Pool // of *[maxCall]uintptr
}

// maxCall is the most arguments that call takes.
const maxCall = 8

func (f *cFunction) call(args ...uintptr) result {
	list, _ := f.free.Get().(*[maxCall]uintptr)
	if list == nil {
		list = new([maxCall]uintptr)
	}
	r, _, _ := purego.SyscallN(f.addr, list[:copy(list[:], args)]...)
	f.free.Put(list)
	return result(r)
}
