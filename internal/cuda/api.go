//go:build cuda || hip

package cuda

import (
	"sync"
	"unsafe"
)

// api is the part of the CUDA driver that this package calls: functions of
// libcuda by their C signatures. A CUdevice and an enum are an int32, every
// other handle and every device address a uintptr.
type api struct {
	init          func(flags uint32) Result
	driverVersion func(version *int32) Result

	deviceCount     func(count *int32) Result
	deviceGet       func(device *int32, ordinal int32) Result
	deviceName      func(name *byte, size int32, device int32) Result
	deviceAttribute func(value *int32, attribute, device int32) Result

	primaryRetain  func(ctx *uintptr, device int32) Result
	primaryRelease func(device int32) Result
	ctxPush        pushFunc
	ctxPop         popFunc

	streamCreate  func(stream *uintptr, flags uint32) Result
	streamDestroy func(stream uintptr) Result
	streamSync    func(stream uintptr) Result
	streamQuery   queryFunc
	streamWait    func(stream, event uintptr, flags uint32) Result
	streamCtx     func(stream uintptr, ctx *uintptr) Result

	eventCreate  func(event *uintptr, flags uint32) Result
	eventDestroy func(event uintptr) Result
	eventRecord  func(event, stream uintptr) Result
	eventQuery   func(event uintptr) Result
	eventSync    func(event uintptr) Result

	memInfo   func(free, total *uint64) Result
	memAlloc  func(addr *uintptr, size uint64) Result
	memFree   func(addr uintptr) Result
	memSet    func(addr uintptr, value uint8, n uint64, stream uintptr) Result
	hostAlloc func(p *unsafe.Pointer, size uint64, flags uint32) Result
	hostFree  func(p unsafe.Pointer) Result

	copyToDevice func(dst uintptr, src unsafe.Pointer, n uint64, stream uintptr) Result
	copyToHost   func(dst unsafe.Pointer, src uintptr, n uint64, stream uintptr) Result
	copyOnDevice func(dst, src uintptr, n uint64, stream uintptr) Result

	poolCreate  func(pool *uintptr, props *poolProps) Result
	poolDestroy func(pool uintptr) Result
	poolSet     func(pool uintptr, attribute int32, value *uint64) Result
	poolGet     func(pool uintptr, attribute int32, value *uint64) Result
	poolTrim    func(pool uintptr, keep uint64) Result
	poolAlloc   func(addr *uintptr, size uint64, pool, stream uintptr) Result
	freeAsync   func(addr, stream uintptr) Result

	moduleLoad     func(module *uintptr, image *byte) Result
	moduleUnload   func(module uintptr) Result
	moduleFunction func(function *uintptr, module uintptr, name string) Result
	functionSet    func(function uintptr, attribute, value int32) Result
	launchKernel   launchFunc
	encodeMap      encodeFunc // nil where the driver lacks it

	properties func(p unsafe.Pointer, device int32) Result // of HIP: a hipProperties

	captureBegin     func(stream uintptr, mode int32) Result
	captureEnd       func(stream uintptr, graph *uintptr) Result
	graphInstantiate func(exec *uintptr, graph uintptr, flags uint64) Result
	graphDestroy     func(graph uintptr) Result
	execLaunch       func(exec, stream uintptr) Result
	execDestroy      func(exec uintptr) Result

	captures *sync.RWMutex // read-locked during each capture

	missing []string // functions that the library lacks
	vendor  *vendor
}

// The functions on the path of every launch have named types: bind makes them
// without reflection, so that calling them allocates nothing.
type (
	pushFunc    func(ctx uintptr) Result
	popFunc     func() Result // the popped context is dropped
	queryFunc   func(stream uintptr) Result
	currentFunc func() (device int32, r Result)
	deviceFunc  func(device int32) Result
	launchFunc  func(function uintptr, blockX, blockY, blockZ, threadX, threadY, threadZ, shared uint32,
		stream uintptr, params, extra unsafe.Pointer) Result
	encodeFunc func(tensorMap unsafe.Pointer, dtype int32, rank uint32, addr uintptr, dims, strides, box, steps unsafe.Pointer,
		interleave, swizzle, promotion, fill int32) Result
)

// Values of cuda.h.
const (
	attributeProcessors = 16 // CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT

	attributeMajor = 75  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
	attributeMinor = 76  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR
	attributePools = 115 // CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED

	streamNonBlocking = 1 // CU_STREAM_NON_BLOCKING
	streamPerThread   = 2 // CU_STREAM_PER_THREAD

	eventBlockingSync  = 1 // CU_EVENT_BLOCKING_SYNC
	eventDisableTiming = 2 // CU_EVENT_DISABLE_TIMING

	hostPortable = 1 // CU_MEMHOSTALLOC_PORTABLE
	hostMapped   = 2 // CU_MEMHOSTALLOC_DEVICEMAP

	poolKeep     = 4 // CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
	poolReserved = 5 // CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT
	poolUsed     = 7 // CU_MEMPOOL_ATTR_USED_MEM_CURRENT

	captureRelaxed = 2 // CU_STREAM_CAPTURE_MODE_RELAXED

	functionShared = 8 // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES

	mapWords   = 1 // CU_TENSOR_MAP_DATA_TYPE_UINT16
	mapPlain   = 0 // CU_TENSOR_MAP_INTERLEAVE_NONE
	mapSwizzle = 3 // CU_TENSOR_MAP_SWIZZLE_128B
	mapLines   = 3 // CU_TENSOR_MAP_L2_PROMOTION_L2_256B
	mapZeros   = 0 // CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE

	launchBuffer     = 1 // CU_LAUNCH_PARAM_BUFFER_POINTER
	launchBufferSize = 2 // CU_LAUNCH_PARAM_BUFFER_SIZE
)

// poolProps is CUmemPoolProps: pinned memory of one device, not shared with
// other processes.
type poolProps struct {
	allocType int32 // 1: CU_MEM_ALLOCATION_TYPE_PINNED
	_         int32
	location  int32 // 1: CU_MEM_LOCATION_TYPE_DEVICE
	device    int32
	_         [72]byte
}
