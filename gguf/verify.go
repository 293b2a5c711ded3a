package gguf

import (
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/fault"
	"github.com/snug-ml/snug/internal/sweep"
)

// Verify reads all tensors, decodes those whose types [Type.Decode] knows, and returns the number of bytes that it has decoded. A GGUF file
// has no checksum: what can be seen is that bytes are missing, and that a scale or an element is not finite. The error then wraps
// [snug.ErrCorrupt] and names the tensor and the element. Other errors are those of reading. It takes 5 MiB.
func (f *File) Verify() (decoded int64, err error) {
	defer fault.Named(&err, "gguf: Verify")
	if f == nil {
		return 0, fmt.Errorf("the File is nil: %w", snug.ErrConfig)
	}
	const piece = 1 << 20 // elements; a multiple of every block
	values, codes := make([]float32, piece), []byte(nil)
	for _, t := range f.Tensors() {
		total, err := t.Bytes()
		if err != nil {
			return decoded, err
		}
		known := t.Type.Decode(nil, nil) == nil
		elements, size := t.Type.Block()
		if elements < 1 || size < 1 { // of no type that is known: the bytes alone
			elements, size = 1, 1
		}
		step := int64(piece / elements * size)
		for at := int64(0); at < total; at += step {
			n := min(step, total-at)
			if int64(cap(codes)) < n {
				codes = make([]byte, n)
			}
			b := codes[:n]
			if err := f.ReadAt(t.Name, b, at); err != nil {
				return decoded, err
			}
			if !known {
				continue
			}
			v := values[:int(n)/size*elements]
			if err := t.Type.Decode(v, b); err != nil {
				return decoded, fmt.Errorf("%s: %w", t.Name, err)
			}
			if i := sweep.FirstNotBelow(snug.SliceView(v), 0, len(v), 1, sweep.Infinity); i >= 0 {
				return decoded, fmt.Errorf("%s: element %d of %s is %v, want a finite number: %w", t.Name, at/int64(size)*int64(elements)+int64(i), t.Type, v[i], snug.ErrCorrupt)
			}
			decoded += n
		}
	}
	return decoded, nil
}
