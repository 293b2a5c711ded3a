package nccl

import (
	"fmt"
	"strings"

	"github.com/snug-ml/snug"
)

// LibraryVariable is the environment variable that names the library.
const LibraryVariable = "SNUG_NCCL"

// result is an ncclResult_t, what every function of the library returns.
type result int32

// Values of nccl.h.
const (
	success    result = 0
	inProgress result = 7 // of a communicator that does not block, which NCCL_COMM_BLOCKING=0 makes

	asBytes = 1 // ncclUint8: data moves as it is
)

// uniqueID is an ncclUniqueId.
type uniqueID struct{ Bytes [128]byte }

// library is the functions of NCCL by their C signatures: an int and an enum are an int32, a size_t is a uint64, and
// a communicator, a stream and an address of the device are a uintptr.
type library struct {
	path    string
	release int32 // what getVersion returns

	getVersion   func(version *int32) result
	getUniqueID  func(id *uniqueID) result
	initRank     func(comm *uintptr, ranks int32, id uniqueID, rank int32) result
	initScalable func(comm *uintptr, ranks, rank, ids int32, id *uniqueID, config uintptr) result // nil before 2.23
	destroy      commFunc
	abort        commFunc
	asyncError   errorFunc
	errorString  func(r result) string
	lastError    func(comm uintptr) string // nil before 2.13; it does not look at its argument

	groupStart, groupEnd groupFunc
	send, receive        moveFunc
	allGather            gatherFunc
	broadcast            broadcastFunc

	missing []string // functions that the library lacks
}

// The functions on the path of every call have named types: bind makes them without reflection.
type (
	commFunc      func(comm uintptr) result
	errorFunc     func(comm uintptr, r *result) result // r is on the heap
	groupFunc     func() result
	moveFunc      func(addr uintptr, count uint64, dtype, peer int32, comm, stream uintptr) result
	gatherFunc    func(src, dst uintptr, count uint64, dtype int32, comm, stream uintptr) result
	broadcastFunc func(src, dst uintptr, count uint64, dtype, root int32, comm, stream uintptr) result
)

// minVersion is the code of NCCL 2.7, the first version with ncclSend and ncclRecv.
const minVersion = 2700

// usable looks the version up and returns an error unless the library has what is needed.
func (l *library) usable() error {
	if l.getVersion == nil {
		return fmt.Errorf("%s is not NCCL, it lacks ncclGetVersion: %w", l.path, snug.ErrNotBuilt)
	}
	if r := l.getVersion(&l.release); r != success {
		return fmt.Errorf("%s: ncclGetVersion: result %d: %w", l.path, r, snug.ErrNotBuilt)
	}
	if l.release < minVersion {
		return fmt.Errorf("%s is NCCL %s, want 2.7 or later, which sends and receives: %w", l.path, l.version(), snug.ErrNotBuilt)
	}
	if len(l.missing) > 0 {
		return fmt.Errorf("%s, NCCL %s, lacks %s: %w", l.path, l.version(), strings.Join(l.missing, ", "), snug.ErrNotBuilt)
	}
	return nil
}

// version returns the version as people write it. Its code is 2708 for 2.7.8 and 20908 for 2.9.8.
func (l *library) version() string {
	v := l.release
	if v < 10000 {
		return fmt.Sprintf("%d.%d.%d", v/1000, v/100%10, v%100)
	}
	return fmt.Sprintf("%d.%d.%d", v/10000, v/100%100, v%100)
}

// libraryError is a function of the library that failed.
type libraryError struct{ text string }

func (e *libraryError) Error() string { return e.text }

// Unwrap returns ErrDevice.
func (*libraryError) Unwrap() error { return snug.ErrDevice }

// check returns the error of a function of the library, with the library's texts.
func (l *library) check(call string, r result) error {
	if r == success {
		return nil
	}
	text := fmt.Sprintf("%s: %s (%d)", call, l.errorString(r), r)
	if l.lastError != nil {
		if last := strings.Join(strings.Fields(l.lastError(0)), " "); last != "" {
			text += ": " + last
		}
	}
	return &libraryError{text}
}

// libraryNames returns the names of the library for a kind of device.
func libraryNames(kind string) []string {
	if kind == "hip" {
		return []string{"librccl.so.1", "librccl.so"}
	}
	return []string{"libnccl.so.2", "libnccl.so"}
}
