//go:build cuda || hip

package cuda

import (
	"errors"
	"slices"
	"strconv"
	"unsafe"

	"github.com/snug-ml/snug/internal/driver"
)

// ltAPI is the part of cuBLASLt, or of hipBLASLt, that MatMul calls, by its C signatures.
type ltAPI struct {
	vendor        *ltVendor
	name          string // of the library
	create        func(handle *uintptr) ltStatus
	destroy       func(handle uintptr) ltStatus
	descCreate    func(desc *uintptr, computeType, scaleType int32) ltStatus
	descDestroy   func(desc uintptr) ltStatus
	descSet       func(desc uintptr, attribute int32, value *int32, size uint64) ltStatus
	layoutCreate  func(layout *uintptr, dataType int32, rows, cols uint64, stride int64) ltStatus
	layoutDestroy func(layout uintptr) ltStatus
	preferCreate  func(preference *uintptr) ltStatus
	preferDestroy func(preference uintptr) ltStatus
	preferSet     func(preference uintptr, attribute int32, value unsafe.Pointer, size uint64) ltStatus
	heuristic     func(handle, desc, a, b, c, d, preference uintptr, want int32, results *ltResult, got *int32) ltStatus
	matmul        ltMatmulFunc
}

type ltMatmulFunc func(handle, desc uintptr, alpha unsafe.Pointer, a, aLayout, b, bLayout uintptr, beta unsafe.Pointer,
	c, cLayout, d, dLayout uintptr, algo unsafe.Pointer, workspace, workspaceSize, stream uintptr) ltStatus

// ltVendor is what differs between cuBLASLt and hipBLASLt, whose functions have the same parameters.
type ltVendor struct {
	title   string // "cuBLASLt"
	prefix  string // of functions: "cublasLt"
	compute int32  // float32 products and sums, no TF32

	plain, transposed    int32 // operations
	descTransA           int32 // attributes of a product
	descTransB           int32
	reduction, alignment int32 // preferences: how parts are added, and the alignment of A, which B, C and D follow; 0 for none
	align                int   // of operands and rows in bytes, without such a preference

	status   int // word of a heuristic result that has its status
	names    map[ltStatus]string
	noMemory ltStatus
	invalid  ltStatus
	unusable []ltStatus // the library does not start, has no code for the device, or has no such product
}

// Values of cublasLt.h, cublas_api.h and library_types.h.
const (
	real32F  = 0  // CUDA_R_32F
	real16F  = 2  // CUDA_R_16F
	real16BF = 14 // CUDA_R_16BF

	preferWorkspace  = 1 // CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES
	reductionCompute = 2 // CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE
)

var cublasLt = ltVendor{
	title: "cuBLASLt", prefix: "cublasLt",
	compute: 68,               // CUBLAS_COMPUTE_32F
	plain:   0, transposed: 1, // CUBLAS_OP_N, CUBLAS_OP_T
	descTransA: 3, descTransB: 4, // CUBLASLT_MATMUL_DESC_TRANSA and the next
	reduction: 3, alignment: 5, // CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES
	status: 9,
	names: map[ltStatus]string{
		0:  "CUBLAS_STATUS_SUCCESS",
		1:  "CUBLAS_STATUS_NOT_INITIALIZED",
		3:  "CUBLAS_STATUS_ALLOC_FAILED",
		7:  "CUBLAS_STATUS_INVALID_VALUE",
		8:  "CUBLAS_STATUS_ARCH_MISMATCH",
		11: "CUBLAS_STATUS_MAPPING_ERROR",
		13: "CUBLAS_STATUS_EXECUTION_FAILED",
		14: "CUBLAS_STATUS_INTERNAL_ERROR",
		15: "CUBLAS_STATUS_NOT_SUPPORTED",
		16: "CUBLAS_STATUS_LICENSE_ERROR",
	},
	noMemory: 3, invalid: 7, unusable: []ltStatus{1, 8, 13, 15},
}

// ltResult is cublasLtMatmulHeuristicResult_t: 8 words of the algorithm, one of the workspace's
// bytes, a status, and more. That of hipBLASLt is shorter: it has 3 words of the algorithm.
type ltResult [12]uint64

// ltStatus is a cublasStatus_t or a hipblasStatus_t.
type ltStatus uint32

// unusable reports whether a call says that the library cannot do what it is asked here. Nothing
// was queued then, and snug's own kernels do the work.
func unusable(err error) bool {
	var e *ltError
	return errors.As(err, &e) && slices.Contains(e.vendor.unusable, e.status)
}

// ltError is a call of the library that failed.
type ltError struct {
	call   string
	status ltStatus
	vendor *ltVendor
}

func (e *ltError) Error() string {
	name, ok := e.vendor.names[e.status]
	if !ok {
		name = e.vendor.title + " status"
	}
	return e.call + ": " + name + " (" + strconv.Itoa(int(e.status)) + ")"
}

func (e *ltError) Unwrap() error {
	if e.status == e.vendor.noMemory {
		return driver.ErrNoMemory
	}
	return driver.ErrDevice
}

// check returns the error of a call, by its name without the prefix.
func (lt *ltAPI) check(call string, s ltStatus) error {
	if s == 0 {
		return nil
	}
	return &ltError{lt.vendor.prefix + call, s, lt.vendor}
}
