//go:build (cuda || hip) && (linux || windows) && (amd64 || arm64)

package cuda

import (
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"unsafe"

	"github.com/ebitengine/purego"
	"github.com/snug-ml/snug/internal/driver"
)

// loadDriver opens the CUDA driver's library.
func loadDriver() (*api, error) {
	library, _, err := openFirst(driverNames)
	if err != nil {
		return nil, fmt.Errorf("no CUDA driver: %w; snug needs NVIDIA driver %s or later: %w", err, minDriverName, driver.ErrNotBuilt)
	}
	a := &api{}
	a.missing = bind(library, a.symbols())
	bind(library, a.optional())
	return a, nil
}

// loadLt opens the cuBLASLts that there are, the newest first, until the caller has one that
// works: a library may be there that its driver does not take.
func loadLt(yield func(*ltAPI) bool) { openLts(&cublasLt, paths(ltNames, toolkitDirs()), yield) }

// openLts opens those of the libraries that there are.
func openLts(v *ltVendor, files []string, yield func(*ltAPI) bool) {
	for _, path := range files {
		library, err := openLibrary(path)
		if err != nil {
			continue
		}
		lt := &ltAPI{vendor: v, name: path}
		if missing := bind(library, lt.symbols()); len(missing) == 0 && !yield(lt) {
			return
		}
	}
}

// paths returns names, for the system to find, then the files of these names in folders.
func paths(names, dirs []string) []string {
	all := slices.Clone(names)
	for _, dir := range dirs {
		for _, name := range names {
			all = append(all, filepath.Join(dir, name))
		}
	}
	return all
}

// openFirst opens the first library that there is, and returns its name too.
func openFirst(names []string) (library uintptr, name string, err error) {
	for _, name = range names {
		if library, err = openLibrary(name); err == nil {
			return library, name, nil
		}
	}
	return 0, "", err
}

// bind is Bind for the functions of this package.
func bind(library uintptr, symbols []Symbol) (missing []string) {
	return Bind(library, symbols, bindOne)
}

// Bind has one set the fields of symbols, and returns the names that library lacks.
func Bind(library uintptr, symbols []Symbol, one func(field any, addr uintptr)) (missing []string) {
	for _, s := range symbols {
		addr, err := lookUp(library, s.Name)
		if err != nil || addr == 0 {
			missing = append(missing, s.Name)
			continue
		}
		one(s.Fn, addr)
	}
	return missing
}

// bindOne sets a function field to the C function at addr.
func bindOne(field any, addr uintptr) {
	native := &Function{Addr: addr}
	switch fn := field.(type) {
	case *pushFunc:
		*fn = func(ctx uintptr) Result { return Result(native.Call(ctx)) }
	case *popFunc:
		popped := new(uintptr) // C writes it, nobody reads it
		*fn = func() Result { return Result(native.Call(uintptr(unsafe.Pointer(popped)))) }
	case *currentFunc:
		free := sync.Pool{New: func() any { return new(int32) }} // C writes them
		*fn = func() (int32, Result) {
			device := free.Get().(*int32)
			defer free.Put(device)
			r := Result(native.Call(uintptr(unsafe.Pointer(device))))
			return *device, r
		}
	case *deviceFunc:
		*fn = func(device int32) Result { return Result(native.Call(uintptr(device))) }
	case *queryFunc:
		*fn = func(stream uintptr) Result { return Result(native.Call(stream)) }
	case *launchFunc:
		*fn = func(function uintptr, bx, by, bz, tx, ty, tz, shared uint32, stream uintptr, params, extra unsafe.Pointer) Result {
			return Result(native.Call(function, uintptr(bx), uintptr(by), uintptr(bz), uintptr(tx), uintptr(ty), uintptr(tz),
				uintptr(shared), stream, uintptr(params), uintptr(extra)))
		}
	case *encodeFunc:
		*fn = func(tensorMap unsafe.Pointer, dtype int32, rank uint32, addr uintptr, dims, strides, box, steps unsafe.Pointer,
			interleave, swizzle, promotion, fill int32) Result {
			return Result(native.Call(uintptr(tensorMap), uintptr(dtype), uintptr(rank), addr, uintptr(dims), uintptr(strides),
				uintptr(box), uintptr(steps), uintptr(interleave), uintptr(swizzle), uintptr(promotion), uintptr(fill)))
		}
	case *ltMatmulFunc:
		*fn = func(handle, desc uintptr, alpha unsafe.Pointer, a, aLayout, b, bLayout uintptr, beta unsafe.Pointer,
			c, cLayout, d, dLayout uintptr, algo unsafe.Pointer, workspace, workspaceSize, stream uintptr) ltStatus {
			return ltStatus(native.Call(handle, desc, uintptr(alpha), a, aLayout, b, bLayout, uintptr(beta),
				c, cLayout, d, dLayout, uintptr(algo), workspace, workspaceSize, stream))
		}
	default:
		purego.RegisterFunc(field, addr)
	}
}

// maxCall is the most arguments that a bound function takes.
const maxCall = 16

// Function is a C function of integers and pointers. SyscallN lets its list of
// arguments escape, so the lists are used again.
type Function struct {
	Addr uintptr
	free sync.Pool // of *[maxCall]uintptr
}

// Call calls the function. Pointers among args are to memory that does not move
// and that the caller keeps: on the heap or not Go's.
func (f *Function) Call(args ...uintptr) uintptr {
	list, _ := f.free.Get().(*[maxCall]uintptr)
	if list == nil {
		list = new([maxCall]uintptr)
	}
	r, _, _ := purego.SyscallN(f.Addr, list[:copy(list[:], args)]...)
	f.free.Put(list)
	return r
}
