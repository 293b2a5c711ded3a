package offload

import (
	"fmt"
	"unsafe"

	"github.com/snug-ml/snug"
)

// Source reads the elements of tensors that are not in the store, such as the *amp.Weights
// of a safetensors file.
type Source interface {
	// LoadAt writes elements lo to lo+dst.Len()-1 of a named tensor to dst, in host
	// memory, converted to dst's element type. Many goroutines call it at a time.
	LoadAt(name string, lo int, dst snug.View) error
}

// Attach makes the tensor that src has under from readable as tensor name of the store,
// n elements in pages of pageLen elements. A page is read when it is used; src converts its
// elements to T. Pages are read ahead, cached and evicted like the pages of other tensors, and
// never written: [Tensor.WriteAt] is an error, and so is unpinning a page as dirty, which
// leaves it pinned. A commit does not include the tensor; attach it again when the store is
// opened again. src must stay usable until the tensor is deleted or the store closed.
//
// The error of a read wraps what src returns, and names the page. Other errors:
// [snug.ErrConfig] when src is nil or name is in use, and errors of [Create].
func Attach[T snug.Element](s *Store, name string, src Source, from string, n, pageLen int) (*Tensor[T], error) {
	dt := snug.DTypeOf[T]()
	if err := checkTensor(name, dt, n, pageLen); err != nil {
		return nil, err
	}
	if src == nil {
		return nil, fmt.Errorf("offload: attach %q: the source is nil: %w", name, snug.ErrConfig)
	}
	if err := s.enter(); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	if s.objects[name] != nil {
		return nil, fmt.Errorf("offload: attach %q: the store has an object of this name: %w", name, snug.ErrConfig)
	}
	obj := newTensor(name, dt, n, pageLen)
	obj.source, obj.from = src, from
	s.add(obj)
	return &Tensor[T]{s, obj}, nil
}

// loadFromSource fills p.buf from the source of p's tensor.
func (p *page) loadFromSource() error {
	obj := p.obj
	if err := obj.source.LoadAt(obj.from, p.num*obj.pageLen, viewOf(p.buf, obj.dtype)); err != nil {
		return in(err, "load %v", p)
	}
	return nil
}

// viewOf returns the memory of a page as elements.
func viewOf(buf []byte, dt snug.DType) snug.View {
	switch dt {
	case snug.F32:
		return snug.SliceView(elements[float32](buf))
	case snug.F16:
		return snug.SliceView(elements[snug.Float16](buf))
	case snug.BF16:
		return snug.SliceView(elements[snug.BFloat16](buf))
	case snug.I32:
		return snug.SliceView(elements[int32](buf))
	case snug.F8E4M3:
		return snug.SliceView(elements[snug.Float8E4M3](buf))
	case snug.F8E5M2:
		return snug.SliceView(elements[snug.Float8E5M2](buf))
	}
	return snug.SliceView(buf)
}

// elements returns the memory of a page as a slice.
func elements[T snug.Element](buf []byte) []T {
	var zero T
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(buf))), len(buf)/int(unsafe.Sizeof(zero)))
}
