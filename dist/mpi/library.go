//go:build (linux || darwin) && (amd64 || arm64)

package mpi

import (
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
	"unsafe"

	"github.com/ebitengine/purego"
	"github.com/snug-ml/snug"
)

// library is an opened MPI library. Its methods return MPI's errors. One thread calls them.
type library struct {
	abi
	path string

	initThread, finalize, abort, commRank, commSize, commDup, setErrhandler, errorString uintptr
	isend, irecv, testall, iallgather, ibcast                                            uintptr

	args [8]uintptr // of a call, which must not be allocated
	flag *int32     // that C writes, as it does made; on the heap, which does not move
	made *uint64
	text []byte // of an error, that C writes
}

// openLibrary opens the first library that there is.
func openLibrary() (*library, error) {
	protectSignals()
	var errs []error
	for _, path := range candidates() {
		// Open MPI's own plugins want the symbols of the library.
		at, err := purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_GLOBAL)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		l, err := bind(at, path)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		return l, nil
	}
	if len(errs) == 1 { // the user has named it
		return nil, fmt.Errorf("%w: %w", errs[0], snug.ErrNotBuilt)
	}
	return nil, fmt.Errorf("no library of MPI: looked for %s beside the launcher and where the system looks; %s can name one: %w",
		strings.Join(libraryNames(), ", "), LibraryVariable, snug.ErrNotBuilt)
}

// bind looks the functions up and finds out which ABI they have.
func bind(at uintptr, path string) (*library, error) {
	l := &library{path: path, flag: new(int32), made: new(uint64), text: make([]byte, 8192)}
	find := func(name string) (uintptr, error) { return purego.Dlsym(at, name) }
	_, err := find("ompi_mpi_comm_world")
	switch {
	case strings.Contains(filepath.Base(path), "mpi_abi"):
		l.abi = standard
	case err == nil:
		if l.abi, err = openMPI(find); err != nil {
			return nil, err
		}
	default:
		l.abi = mpich
	}
	for _, f := range []struct {
		name string
		to   *uintptr
	}{
		{"MPI_Init_thread", &l.initThread}, {"MPI_Finalize", &l.finalize}, {"MPI_Abort", &l.abort}, {"MPI_Comm_rank", &l.commRank},
		{"MPI_Comm_size", &l.commSize}, {"MPI_Comm_dup", &l.commDup}, {"MPI_Comm_set_errhandler", &l.setErrhandler},
		{"MPI_Error_string", &l.errorString}, {"MPI_Isend", &l.isend}, {"MPI_Irecv", &l.irecv}, {"MPI_Testall", &l.testall},
		{"MPI_Iallgather", &l.iallgather}, {"MPI_Ibcast", &l.ibcast},
	} {
		if *f.to, err = find(f.name); err != nil {
			return nil, fmt.Errorf("it is no library of MPI 3 or later: %w: %w", err, snug.ErrNotBuilt)
		}
	}
	return l, nil
}

// protectSignals keeps UCX, a transport of MPI libraries, from catching signals that Go's runtime needs. UCX reads the
// variable of C's environment when it is loaded.
func protectSignals() {
	if setenv := libc("setenv"); setenv != 0 {
		key, value := []byte("UCX_ERROR_SIGNALS\x00"), []byte("SIGILL,SIGBUS,SIGFPE\x00")
		const keep = 0 // what the user has set
		purego.SyscallN(setenv, address(key), address(value), keep)
		runtime.KeepAlive(key)
		runtime.KeepAlive(value)
	}
}

// libc returns a function of the C library, or 0.
func libc(name string) uintptr {
	file := "libc.so.6"
	if runtime.GOOS == "darwin" {
		file = "/usr/lib/libSystem.B.dylib"
	}
	at, err := purego.Dlopen(file, purego.RTLD_NOW)
	if err != nil {
		return 0
	}
	function, err := purego.Dlsym(at, name)
	if err != nil {
		return 0
	}
	return function
}

func address(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

// call calls a function of the library.
func (l *library) call(function uintptr, args ...uintptr) error {
	r, _, _ := purego.SyscallN(function, l.args[:copy(l.args[:], args)]...)
	if code := int32(r); code != 0 {
		return l.error(code)
	}
	return nil
}

// error returns the library's text of an error.
func (l *library) error(code int32) error {
	*l.flag = 0
	r, _, _ := purego.SyscallN(l.errorString, uintptr(code), address(l.text), uintptr(unsafe.Pointer(l.flag)))
	if int32(r) != 0 || *l.flag <= 0 || int(*l.flag) > len(l.text) {
		return fmt.Errorf("MPI error %d", code)
	}
	line, _, _ := strings.Cut(string(l.text[:*l.flag]), "\n")
	return errors.New(line)
}

// start begins MPI on this thread.
func (l *library) start() error {
	*l.flag = 0
	if err := l.call(l.initThread, 0, 0, l.funneled, uintptr(unsafe.Pointer(l.flag))); err != nil {
		return err
	}
	if uintptr(*l.flag) < l.funneled {
		return fmt.Errorf("the library gives thread level %d, want MPI_THREAD_FUNNELED: %w", *l.flag, snug.ErrConfig)
	}
	return l.call(l.setErrhandler, l.world, l.returns)
}

// place returns the rank of this process and the number of ranks.
func (l *library) place() (rank, size int, err error) {
	if err = l.call(l.commRank, l.world, uintptr(unsafe.Pointer(l.flag))); err != nil {
		return 0, 0, err
	}
	rank = int(*l.flag)
	err = l.call(l.commSize, l.world, uintptr(unsafe.Pointer(l.flag)))
	return rank, int(*l.flag), err
}

// communicator returns a communicator of all ranks, whose messages meet no others.
func (l *library) communicator() (uintptr, error) {
	if err := l.call(l.commDup, l.world, uintptr(unsafe.Pointer(l.made))); err != nil {
		return 0, err
	}
	comm := uintptr(*l.made)
	if l.handle == 4 {
		comm = uintptr(*(*uint32)(unsafe.Pointer(l.made)))
	}
	return comm, l.call(l.setErrhandler, comm, l.returns)
}

// requests are operations that are under way.
type requests struct {
	handles []uint64 // memory for them, which C writes
	n       int
}

// next returns the address where C writes the handle of the next request.
func (l *library) next(r *requests) uintptr {
	if uintptr(r.n+1)*l.handle > uintptr(len(r.handles))*8 {
		r.handles = append(r.handles, make([]uint64, len(r.handles)+8)...)
	}
	r.n++
	return uintptr(unsafe.Pointer(unsafe.SliceData(r.handles))) + uintptr(r.n-1)*l.handle
}

// most is the largest message in bytes, below the largest int of C.
const most = 1 << 30

// send begins to send bytes to a rank.
func (l *library) send(r *requests, comm uintptr, b []byte, to, tag int) error {
	for first := true; first || len(b) > 0; first = false {
		n := min(len(b), most)
		if err := l.call(l.isend, address(b), uintptr(n), l.bytes, uintptr(to), uintptr(tag), comm, l.next(r)); err != nil {
			r.n--
			return err
		}
		b = b[n:]
	}
	return nil
}

// receive begins to receive bytes from a rank.
func (l *library) receive(r *requests, comm uintptr, b []byte, from, tag int) error {
	for first := true; first || len(b) > 0; first = false {
		n := min(len(b), most)
		if err := l.call(l.irecv, address(b), uintptr(n), l.bytes, uintptr(from), uintptr(tag), comm, l.next(r)); err != nil {
			r.n--
			return err
		}
		b = b[n:]
	}
	return nil
}

// gather begins to send bytes to all ranks, and to receive as many from each into all.
func (l *library) gather(r *requests, comm uintptr, own, all []byte) error {
	n := uintptr(len(own))
	if err := l.call(l.iallgather, address(own), n, l.bytes, address(all), n, l.bytes, comm, l.next(r)); err != nil {
		r.n--
		return err
	}
	return nil
}

// broadcast begins to send the bytes of a rank to all.
func (l *library) broadcast(r *requests, comm uintptr, b []byte, root int) error {
	for first := true; first || len(b) > 0; first = false {
		n := min(len(b), most)
		if err := l.call(l.ibcast, address(b), uintptr(n), l.bytes, uintptr(root), comm, l.next(r)); err != nil {
			r.n--
			return err
		}
		b = b[n:]
	}
	return nil
}

// done reports whether all requests have ended, and forgets them then.
func (l *library) done(r *requests) (bool, error) {
	if r.n == 0 {
		return true, nil
	}
	*l.flag = 0
	if err := l.call(l.testall, uintptr(r.n), uintptr(unsafe.Pointer(unsafe.SliceData(r.handles))), uintptr(unsafe.Pointer(l.flag)), l.ignore); err != nil {
		return false, err
	}
	if *l.flag == 0 {
		return false, nil
	}
	r.n = 0
	return true, nil
}

// stop ends MPI.
func (l *library) stop() error {
	if err := l.call(l.finalize); err != nil || !l.atExit {
		return err
	}
	// MPICH takes leave of the launcher in a handler that C's exit calls, and Go's os.Exit does not. Without it, the
	// launcher kills the ranks that end later.
	if handlers := libc("__cxa_finalize"); handlers != 0 {
		const all = 0
		purego.SyscallN(handlers, all)
	}
	return nil
}

// end ends all ranks.
func (l *library) end() { _ = l.call(l.abort, l.world, 1) }
