//go:build cuda

package cuda

import (
	"errors"
	"strconv"
	"unsafe"

	"github.com/snug-ml/snug/internal/driver"
)

// ltAPI is the part of cuBLASLt that MatMul calls, by its C signatures.
type ltAPI struct {
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

// Values of cublasLt.h, cublas_api.h and library_types.h.
const (
	compute32F = 68 // CUBLAS_COMPUTE_32F: float32 products and sums, no TF32

	real32F  = 0  // CUDA_R_32F
	real16F  = 2  // CUDA_R_16F
	real16BF = 14 // CUDA_R_16BF

	descTransA = 3 // CUBLASLT_MATMUL_DESC_TRANSA
	descTransB = 4 // CUBLASLT_MATMUL_DESC_TRANSB

	preferWorkspace  = 1 // CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES
	preferReduction  = 3 // CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK
	preferAlignmentA = 5 // CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES; B, C and D follow

	reductionCompute = 2 // CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE
)

// ltResult is cublasLtMatmulHeuristicResult_t.
type ltResult struct {
	algo   [8]uint64
	_      uint64 // bytes of workspace
	status ltStatus
	_      [5]int32
}

// ltStatus is a cublasStatus_t.
type ltStatus uint32

const (
	ltNotInitialized ltStatus = 1
	ltNoMemory       ltStatus = 3
	ltInvalid        ltStatus = 7
	ltArchMismatch   ltStatus = 8
	ltNotExecuted    ltStatus = 13
	ltNotSupported   ltStatus = 15
)

// unusable reports whether a call of cuBLASLt says that it cannot do what it is asked here: the
// library does not start, has no code for the device, or has no such product. Nothing was queued
// then, and snug's own kernels do the work.
func unusable(err error) bool {
	var e *ltError
	if !errors.As(err, &e) {
		return false
	}
	switch e.status {
	case ltNotInitialized, ltArchMismatch, ltNotExecuted, ltNotSupported:
		return true
	}
	return false
}

var ltStatusNames = map[ltStatus]string{
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
}

// ltError is a call of cuBLASLt that failed.
type ltError struct {
	call   string
	status ltStatus
}

func (e *ltError) Error() string {
	name, ok := ltStatusNames[e.status]
	if !ok {
		name = "cublasStatus_t"
	}
	return e.call + ": " + name + " (" + strconv.Itoa(int(e.status)) + ")"
}

func (e *ltError) Unwrap() error {
	if e.status == ltNoMemory {
		return driver.ErrNoMemory
	}
	return driver.ErrDevice
}

func ltCheck(call string, s ltStatus) error {
	if s == 0 {
		return nil
	}
	return &ltError{call, s}
}
