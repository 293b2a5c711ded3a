//go:build metal

package metal

import "unsafe"

// object is a reference to an Objective-C object; 0 is nil. As there, the
// caller owns objects that a function named new returns and objects that it retained, and
// everything else lives until the autorelease pool is popped.
type object uintptr

// size is MTLSize.
type size struct{ width, height, depth uint64 }

// api is the raw layer: what the driver asks of Objective-C, Metal and Metal
// Performance Shaders.
type api struct {
	pushPool func() uintptr
	popPool  func(uintptr)
	retain   func(object)
	release  func(object)

	systemVersion func() string // of macOS: "14.5"

	// devices. newDevices returns them all.
	newDevices    func() []object
	deviceName    func(dev object) string
	hasFamily     func(dev object, family int) bool
	unified       func(dev object) bool // memory is the host's
	workingSet    func(dev object) int  // bytes that the GPU can use without paging
	allocated     func(dev object) int  // bytes in use by this process
	longestBuffer func(dev object) int

	// buffers. contents and address return 0 where there is none.
	newBuffer func(dev object, bytes int, options uintptr) object
	deviceOf  func(buf object) object
	length    func(buf object) int
	contents  func(buf object) unsafe.Pointer
	address   func(buf object) uintptr

	// queues
	newQueue      func(dev object) object
	newEvent      func(dev object) object
	setEvent      func(event object, value uint64)
	eventValue    func(event object) uint64
	commandBuffer func(queue object) object
	signal        func(cb, event object, value uint64)
	await         func(cb, event object, value uint64)
	commit        func(cb object)
	wait          func(cb object)
	status        func(cb object) int
	failure       func(cb object) (code int, reason string)
	gpuTime       func(cb object) float64 // seconds that the GPU took, 0 if the system does not know

	// encoders
	computeEncoder func(cb object) object
	blitEncoder    func(cb object) object
	endEncoding    func(enc object)
	setPipeline    func(enc, pipeline object)
	setBuffer      func(enc, buf object, off, index int)
	setBytes       func(enc object, data []byte, index int)
	dispatch       func(enc object, groups, threads size)
	copyBuffer     func(enc, src object, srcOff int, dst object, dstOff, bytes int)
	fillBuffer     func(enc, buf object, off, bytes int, value byte)

	// kernels. A nil object comes with the compiler's message.
	newLibrary  func(dev object, source string, o compileOptions) (object, string)
	newFunction func(lib object, name string) object
	newPipeline func(dev, function object) (object, string)
	lanes       func(pipeline object) int // of a SIMD-group
	maxThreads  func(pipeline object) int // of a threadgroup

	// products. canMultiply is false where the framework or the device lacks
	// them.
	canMultiply   func(dev object) bool
	newMatrix     func(buf object, off, rows, columns, rowBytes int, dataType uint32) object
	newProduct    func(dev object, p product) object
	encodeProduct func(product, cb, a, b, c object)
}

// product is what makes one kernel of MPSMatrixMultiplication.
type product struct {
	transA, transB bool
	m, n, k        int
	alpha, beta    float32
}

// compileOptions is MTLCompileOptions. A system before macOS 15 has one switch for both forms of
// mathematics.
type compileOptions struct {
	language  language
	mathMode  uintptr // MTLMathMode
	functions uintptr // MTLMathFloatingPointFunctions
}

// Values of Metal's enumerations.
const (
	familyApple7 = 1007 // the first with simdgroup_matrix: A14, M1

	storageShared  = 0 << 4 // MTLResourceOptions
	storagePrivate = 2 << 4

	mathSafe         = 0 // MTLMathMode: no fused, reordered or inexact arithmetic
	functionsPrecise = 1 // MTLMathFloatingPointFunctions; fast ones are the default in every mode

	statusCompleted = 4 // MTLCommandBufferStatus
	statusError     = 5

	codePageFault     = 3 // MTLCommandBufferError
	codeAccessRevoked = 4
	codeNotPermitted  = 7
	codeOutOfMemory   = 8
	codeDeviceRemoved = 11

	dataFloat32 = 0x10000000 | 32 // MPSDataType
	dataFloat16 = 0x10000000 | 16
)
