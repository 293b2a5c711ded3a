package safetensors

import (
	"fmt"
	"io"
)

// Write writes a file to w and returns the number of bytes that w took: what Bytes returns, and
// the data of every tensor, in their order, which data passes to write in one or several pieces.
// Errors that data returns, also errors of w, name the tensor.
func (h *Header) Write(w io.Writer, data func(t *Tensor, write func(b []byte) error) error) (n int64, err error) {
	prefix, err := h.Bytes()
	if err != nil {
		return 0, err
	}
	write := func(b []byte) error {
		took, err := w.Write(b)
		n += int64(took)
		if err == nil && took < len(b) {
			err = io.ErrShortWrite
		}
		return err
	}
	if err := write(prefix); err != nil {
		return n, err
	}
	for i := range h.Tensors {
		t := &h.Tensors[i]
		if err := data(t, write); err != nil {
			return n, fmt.Errorf("tensor %q: %w", t.Name, err)
		}
	}
	return n, nil
}
