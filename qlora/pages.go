package qlora

import (
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/fault"
)

// Storage keeps the memory of weights elsewhere while they are not used. A Store of package
// offload is one: it keeps them on disk, and reads ahead what the next layers use.
type Storage interface {
	// Acquire returns the size bytes of a blob, 4-byte aligned. They stay valid until
	// Release.
	Acquire(key string, size int) ([]byte, error)
	// Release ends the use of a blob; dirty says that its bytes have changed.
	Release(key string, dirty bool) error
}

// memory is the codes of a weight. Without double quantization codes and nested are empty, with it
// absmax is. kept has the columns of outliers, for which the others have codes of 0.
type memory struct{ packed, absmax, codes, nested, kept snug.View }

// pages is the memory of a weight in a Storage.
type pages struct {
	storage Storage
	key     string
	size    int // bytes of the blob
	closed  bool

	mu     sync.Mutex
	users  int
	memory memory // while there are users
}

// Page moves a weight on the CPU into a blob of a Storage, of [Weight.Bytes] and up to 6 bytes more.
// From then on every function that reads the weight acquires the blob and releases it before it
// returns, so that the weight takes memory only while a layer computes. Results have the same
// bits. The key is the caller's, one for each weight. The Storage must live as long as the
// weight; it keeps the blob when the weight is closed.
//
// [Weight.Packed] of such a weight is empty, and [WriteWeights] refuses it. Errors of the Storage
// come from the functions that read the weight, with nothing written. Errors of Page, which then
// leaves the weight as it was: [snug.ErrConfig] for a nil or zero weight, a nil Storage, an empty
// key and a weight that has been moved before, [snug.ErrDevice] for a closed weight and one that
// is not on the CPU, [snug.ErrCorrupt] for a blob of another size or alignment, and the errors of
// the Storage.
func (w *Weight) Page(s Storage, key string) error {
	return fault.Of(w.page(s, key), "qlora: page")
}

func (w *Weight) page(s Storage, key string) (err error) {
	if err := w.usable(); err != nil {
		return err
	}
	switch {
	case s == nil || key == "":
		return fmt.Errorf("the Storage is nil or the key is empty: %w", snug.ErrConfig)
	case w.pages != nil:
		return fmt.Errorf("the weight is in a Storage already: %w", snug.ErrConfig)
	case !w.Device().IsCPU():
		return fmt.Errorf("the weight is on %s, want the CPU: %w", w.Device().Name(), snug.ErrDevice)
	}
	from := w.arrays()
	p := &pages{storage: s, key: key, size: w.blobSize()}
	blob, err := s.Acquire(key, p.size)
	if err != nil {
		return err
	}
	dirty := false
	defer func() {
		if err = errors.Join(err, s.Release(key, dirty)); err == nil {
			w.pages = p
			w.packed, w.absmax, w.codes, w.nested = snug.Array[uint8]{}, snug.Array[float32]{}, snug.Array[uint8]{}, snug.Array[float32]{}
			w.kept = snug.Array[snug.BFloat16]{}
		}
	}()
	to, err := w.split(blob)
	if err != nil {
		return err
	}
	dirty = true
	return errors.Join(snug.Copy(to.packed, from.packed), snug.Copy(to.absmax, from.absmax), snug.Copy(to.codes, from.codes), snug.Copy(to.nested, from.nested),
		snug.Copy(to.kept, from.kept))
}

// arrays returns the memory of a weight that is not in a Storage.
func (w *Weight) arrays() memory {
	return memory{w.packed.View(), w.absmax.View(), w.codes.View(), w.nested.View(), w.kept.View()}
}

// lens returns how many elements the parts of the memory have.
func (w *Weight) lens() (packed, absmax, codes, nested, kept int) {
	packed, absmax = w.codeBytes(), w.scaleCount()
	switch {
	case w.grid.rows > 0:
		return packed, absmax, 0, 0, w.shape[0] * len(w.outliers)
	case w.groups != nil && w.groups.zeros:
		return packed, absmax, absmax, 0, 0
	case w.m != nil:
		return packed, 0, absmax, Blocks(absmax, nestedBlock), 0
	}
	return packed, absmax, 0, 0, 0
}

// scaleCount returns how many absmax, or scales, there are.
func (w *Weight) scaleCount() int {
	switch {
	case w.t == GGUF:
		return 0
	case w.grid.rows > 0:
		return w.grid.count(w.shape[0], w.shape[1])
	case w.groups != nil:
		return w.shape[0] * w.groups.across
	}
	return Blocks(w.n, w.block)
}

func roundUp4(n int) int { return (n + 3) &^ 3 }

// blobSize returns the bytes of a blob: the float32 parts, which come first, and the others, each from a
// multiple of 4 on.
func (w *Weight) blobSize() int {
	packed, absmax, codes, nested, kept := w.lens()
	return 4*(absmax+nested) + roundUp4(2*kept) + roundUp4(codes) + roundUp4(packed)
}

// split returns the parts of a blob.
func (w *Weight) split(blob []byte) (m memory, err error) {
	at := uintptr(unsafe.Pointer(unsafe.SliceData(blob)))
	if len(blob) != w.blobSize() || at%4 != 0 {
		return m, fmt.Errorf("the Storage gives %d bytes at an address of remainder %d by 4, want %d bytes at a multiple of 4: %w",
			len(blob), at%4, w.blobSize(), snug.ErrCorrupt)
	}
	packed, absmax, codes, nested, kept := w.lens()
	floats := func(n int) snug.View {
		part := unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(blob))), n)
		blob = blob[4*n:]
		return snug.SliceView(part)
	}
	bytes := func(n int) snug.View {
		part := blob[:n:n]
		blob = blob[roundUp4(n):]
		return snug.SliceView(part)
	}
	halves := func(n int) snug.View {
		part := unsafe.Slice((*snug.BFloat16)(unsafe.Pointer(unsafe.SliceData(blob))), n)
		blob = blob[roundUp4(2*n):]
		return snug.SliceView(part)
	}
	return memory{absmax: floats(absmax), nested: floats(nested), kept: halves(kept), codes: bytes(codes), packed: bytes(packed)}, nil
}

// hold returns the memory of the weight, which stays until drop.
func (w *Weight) hold() (m memory, err error) {
	if err := w.usable(); err != nil {
		return m, err
	}
	p := w.pages
	if p == nil {
		return w.arrays(), nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.users == 0 {
		blob, err := p.storage.Acquire(p.key, p.size)
		if err != nil {
			return m, err
		}
		if p.memory, err = w.split(blob); err != nil {
			return m, errors.Join(err, p.storage.Release(p.key, false))
		}
	}
	p.users++
	return p.memory, nil
}

// drop ends a hold.
func (w *Weight) drop() error {
	p := w.pages
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.users--; p.users > 0 {
		return nil
	}
	p.memory = memory{}
	return p.storage.Release(p.key, false)
}
