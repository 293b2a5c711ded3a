package gpu

import "github.com/snug-ml/snug/internal/driver"

// Type is an element type of a matrix.
type Type uint8

// The element types.
const (
	F32 Type = iota
	F16
	BF16
)

// Size returns the bytes of an element.
func (t Type) Size() int {
	if t == F32 {
		return 4
	}
	return 2
}

// Matrix is a row-major matrix in device memory. Stride is the number of
// elements from the start of a row to the start of the next.
type Matrix struct {
	Mem    driver.Mem
	Type   Type
	Stride int
	Trans  bool // the memory holds the transpose of the operand
}

// MatMuler is a Launcher that multiplies matrices with its vendor's library:
// c = alpha·a·b + beta·c with a M×K, b K×N and c M×N, added in float32.
type MatMuler interface {
	Launcher
	// MatMul queues the product. It returns false, with nothing queued, when
	// the library is not there or has no product of these types and strides.
	MatMul(m, n, k int, alpha float32, a, b Matrix, beta float32, c Matrix) (bool, error)
}

// MatMulChecker is a MatMuler that says beforehand which products it takes.
type MatMulChecker interface {
	MatMuler
	// HasMatMul reports whether MatMul takes a product. It queues nothing. MatMul may still refuse a product when
	// the library first runs it; from then on HasMatMul returns false.
	HasMatMul(m, n, k int, a, b, c Matrix) (bool, error)
}
