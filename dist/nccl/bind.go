//go:build (cuda || hip) && linux && (amd64 || arm64)

package nccl

import (
	"fmt"
	"os"
	"strings"
	"unsafe"

	"github.com/ebitengine/purego"
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cuda"
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
			l.missing = cuda.Bind(at, l.symbols(), bindOne)
			cuda.Bind(at, l.optional(), bindOne)
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

func (l *library) symbols() []cuda.Symbol {
	return []cuda.Symbol{
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
func (l *library) optional() []cuda.Symbol {
	return []cuda.Symbol{{"ncclCommInitRankScalable", &l.initScalable}, {"ncclGetLastError", &l.lastError}}
}

// bindOne sets a function field to the C function at addr.
func bindOne(field any, addr uintptr) {
	c := &cuda.Function{Addr: addr}
	switch fn := field.(type) {
	case *commFunc:
		*fn = func(comm uintptr) result { return result(c.Call(comm)) }
	case *errorFunc:
		*fn = func(comm uintptr, r *result) result { return result(c.Call(comm, uintptr(unsafe.Pointer(r)))) }
	case *groupFunc:
		*fn = func() result { return result(c.Call()) }
	case *moveFunc:
		*fn = func(at uintptr, count uint64, dtype, peer int32, comm, stream uintptr) result {
			return result(c.Call(at, uintptr(count), uintptr(dtype), uintptr(peer), comm, stream))
		}
	case *gatherFunc:
		*fn = func(src, dst uintptr, count uint64, dtype int32, comm, stream uintptr) result {
			return result(c.Call(src, dst, uintptr(count), uintptr(dtype), comm, stream))
		}
	case *broadcastFunc:
		*fn = func(src, dst uintptr, count uint64, dtype, root int32, comm, stream uintptr) result {
			return result(c.Call(src, dst, uintptr(count), uintptr(dtype), uintptr(root), comm, stream))
		}
	default:
		purego.RegisterFunc(field, addr)
	}
}
