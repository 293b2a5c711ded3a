//go:build !noasm && gc && (amd64 || arm64)

package gemm

import (
	"unsafe"

	"github.com/snug-ml/snug"
)

// place returns where an element of v lies, and the number by which assembly knows its type.
func place(v snug.View, i int) (at *byte, kind int) {
	switch v.DType() {
	case snug.F16:
		return (*byte)(unsafe.Pointer(&v.Float16s()[i])), 1
	case snug.BF16:
		return (*byte)(unsafe.Pointer(&v.BFloat16s()[i])), 2
	}
	return (*byte)(unsafe.Pointer(&v.Float32s()[i])), 0
}
