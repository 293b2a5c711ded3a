package quant8

import (
	"errors"
	"fmt"
	"reflect"
	"unsafe"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/optim"
)

// Storage keeps optimizer state outside of the optimizer, for example in an offloading
// store. Every acquired blob is released, also when the update panics. A key always comes
// with the same size. Between Acquire and Release of a key there is no other Acquire of
// it. A Storage must allow concurrent calls if the optimizer's methods are called
// concurrently.
//
// A Storage that is also a [Prefetcher] or a [Grouper] makes steps faster.
type Storage interface {
	// Acquire returns the size bytes of a blob, 4-byte aligned and zero at
	// first. They stay valid until Release.
	Acquire(key string, size int) ([]byte, error)
	// Release ends the use of a blob; dirty says that its bytes have changed.
	Release(key string, dirty bool) error
}

// Prefetcher is a [Storage] that reads ahead. Prefetch receives the keys of the blobs that the same call of Step acquires
// next.
type Prefetcher interface {
	Prefetch(keys ...string)
}

// Grouper is a [Storage] that holds several blobs at once. Together returns how many blobs of size bytes a step should
// hold. A step holds at most 8, and one if the Storage is no Grouper.
type Grouper interface {
	Together(size int) int
}

// Locator is a [Storage] around another one. StoredIn reports whether its blobs lie in storage.
type Locator interface {
	StoredIn(storage any) bool
}

// StoredIn reports whether the optimizer keeps its state in storage: storage is its [Storage], or its Storage is a
// [Locator] that says so.
func (a *Optimizer) StoredIn(storage any) bool {
	if a.o.Storage == nil || storage == nil {
		return false
	}
	if before, ok := a.o.Storage.(Locator); ok {
		return before.StoredIn(storage)
	}
	return reflect.TypeOf(storage).Comparable() && any(a.o.Storage) == storage
}

// layout is the form of the states of some elements: the number of states, their width,
// and the block size of 8 and 4 bits.
type layout struct{ states, bits, block int }

// narrow says whether the states have a form that only this package knows.
func (l layout) narrow() bool { return l.bits == 4 || l.bits == 16 }

// signs says which states have the form with signs.
func (l layout) signs(rule optim.Rule) []bool {
	if l.bits == 8 {
		return rule.Signed8()[:l.states]
	}
	return rule.Signed()[:l.states]
}

// chunks returns the number of blobs that hold the states, of so many elements each.
func (q *param) chunks(elements int) int {
	if q.states == 0 {
		return 0
	}
	return Blocks(q.held(q.n), elements)
}

// bytes returns the size of the state of n elements that begin at a block.
func (l layout) bytes(n int) int64 {
	if l.bits >= 16 {
		return int64(l.bits/8) * int64(l.states) * int64(n)
	}
	return int64(l.states) * (4*int64(Blocks(n, l.block)) + int64(l.codes(n)))
}

// codes returns the bytes of the codes of n elements: 4-bit ones begin at a byte.
func (l layout) codes(n int) int {
	if l.bits == 4 {
		return n/2 + n%2 // n+1 may overflow
	}
	return n
}

// state8 is the state of one chunk in codes of 8 bits, or of 4 bits, two in a byte. In
// its memory the absmax of all states come first.
type state8 struct {
	absmax [optim.MaxStates][]float32 // absmax of the blocks
	codes  [optim.MaxStates][]uint8   // codes of the elements
}

func (l layout) split8(blob []byte, n int) (s state8) {
	blocks, size := Blocks(n, l.block), l.codes(n)
	absmax, codes := floats(blob, l.states*blocks), blob[4*l.states*blocks:]
	for i := range l.states {
		s.absmax[i], s.codes[i] = absmax[i*blocks:][:blocks], codes[i*size:][:size]
	}
	return s
}

// state16 is the state of one chunk in bfloat16, one after the other in its memory.
type state16 [optim.MaxStates][]snug.BFloat16

func (l layout) split16(blob []byte, n int) (s state16) {
	all := unsafe.Slice((*snug.BFloat16)(unsafe.Pointer(unsafe.SliceData(blob[:2*l.states*n]))), l.states*n)
	for i := range l.states {
		s[i] = all[i*n:][:n]
	}
	return s
}

// state32 is the 32-bit state of one chunk, one after the other in its memory.
type state32 [optim.MaxStates][]float32

func (l layout) split32(blob []byte, n int) (s state32) {
	all := floats(blob, l.states*n)
	for i := range l.states {
		s[i] = all[i*n:][:n]
	}
	return s
}

// floats returns the first 4n bytes of blob, which is 4-byte aligned, as n
// numbers.
func floats(blob []byte, n int) []float32 {
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(blob[:4*n]))), n)
}

// bytesOfFloats returns the memory of x.
func bytesOfFloats(x []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), 4*len(x))
}

// stateOn returns the in-memory state of q on dev. It allocates the state if it does not
// exist yet, and moves it if it lies elsewhere.
func (a *Optimizer) stateOn(dev *snug.Device, q *param) (snug.Array[uint8], error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if q.state.Len() > 0 && q.state.Device() == dev {
		return q.state, nil
	}
	moved, err := makeState(dev, int(q.stateBytes(q.layout, q.n)))
	if err != nil {
		return q.state, err
	}
	if q.state.Len() > 0 {
		if err := copyState(moved, q.state); err != nil {
			return q.state, errors.Join(err, moved.Close())
		}
		if err := q.state.Close(); err != nil {
			return q.state, errors.Join(err, moved.Close())
		}
	}
	q.state = moved
	return moved, nil
}

// makeState returns zeros that are 4-byte aligned. A []byte need not be aligned.
func makeState(dev *snug.Device, size int) (snug.Array[uint8], error) {
	if !dev.IsCPU() {
		return snug.Make[uint8](dev, size)
	}
	words := make([]float32, (size+3)/4)
	return snug.FromSlice(unsafe.Slice((*uint8)(unsafe.Pointer(unsafe.SliceData(words))), size)), nil
}

// copyState copies between devices, through host memory.
func copyState(dst, src snug.Array[uint8]) error {
	host := src.Host()
	if !src.Device().IsCPU() {
		host = make([]uint8, src.Len())
		if err := src.CopyOut(host); err != nil {
			return err
		}
	}
	return dst.CopyIn(host)
}

// factors is the number of the blob with the factors of a matrix.
const factors = -1

// span returns where the blob of a chunk, or of the factors, begins in memory, and its
// size.
func (q *param) span(chunk, elements int) (begin, size int) {
	if chunk == factors {
		return 0, int(q.factors)
	}
	begin = int(q.factors) + chunk*int(q.bytes(elements))
	return begin, int(q.bytes(min(elements, q.held(q.n)-chunk*elements)))
}

// withBlob calls use with the state of one chunk of q, or of its factors. use may change
// it if dirty. Without a Storage and on a device other than the CPU the state is a copy.
func (a *Optimizer) withBlob(q *param, chunk int, dirty bool, use func(blob []byte) error) (err error) {
	begin, size := q.span(chunk, a.o.Chunk)
	if a.o.Storage == nil {
		return a.withBlobInMemory(q, begin, size, dirty, use)
	}
	blob, err := a.acquire(q, chunk, size)
	if err != nil {
		return err
	}
	ended := false
	defer func() {
		if e := a.release(q, chunk, dirty && ended && err == nil); err == nil {
			err = e
		}
	}()
	err = use(blob)
	ended = true
	return err
}

// storageKey returns the key of a chunk of q, or of its factors.
func (q *param) storageKey(chunk int) string {
	if chunk == factors {
		return q.key
	}
	return q.keys[chunk]
}

// acquire returns a blob of size bytes of the Storage.
func (a *Optimizer) acquire(q *param, chunk, size int) ([]byte, error) {
	key := q.storageKey(chunk)
	blob, err := a.o.Storage.Acquire(key, size)
	switch {
	case err != nil:
		return nil, fmt.Errorf("acquire %q, %d bytes: %w", key, size, err)
	case len(blob) != size:
		err = fmt.Errorf("the Storage gave %d bytes for %q, want %d: %w", len(blob), key, size, snug.ErrConfig)
	case uintptr(unsafe.Pointer(unsafe.SliceData(blob)))%4 != 0:
		err = fmt.Errorf("the Storage gave bytes for %q that are not 4-byte aligned: %w", key, snug.ErrConfig)
	default:
		return blob, nil
	}
	_ = a.release(q, chunk, false) // nothing was changed
	return nil, err
}

// release ends the use of a blob that acquire began.
func (a *Optimizer) release(q *param, chunk int, dirty bool) error {
	key := q.storageKey(chunk)
	if err := a.o.Storage.Release(key, dirty); err != nil {
		return fmt.Errorf("release %q: %w", key, err)
	}
	return nil
}

func (a *Optimizer) withBlobInMemory(q *param, begin, size int, dirty bool, use func(blob []byte) error) error {
	dev := q.state.Device() // the CPU before the first step
	state, err := a.stateOn(dev, q)
	if err != nil {
		return err
	}
	blob, err := state.Slice(begin, begin+size)
	if err != nil {
		return err
	}
	if dev.IsCPU() {
		return use(blob.Host())
	}
	staged := make([]byte, size)
	if err := blob.CopyOut(staged); err != nil {
		return err
	}
	if err := use(staged); err != nil || !dirty {
		return err
	}
	return blob.CopyIn(staged)
}
