//go:build hip

package cuda

// hipCalls are the functions of HIP by those of CUDA whose place they take.
var hipCalls = map[string]string{
	"cuInit":               "hipInit",
	"cuDriverGetVersion":   "hipDriverGetVersion",
	"cuDeviceGetCount":     "hipGetDeviceCount",
	"cuDeviceGet":          "hipDeviceGet",
	"cuDeviceGetName":      "hipDeviceGetName",
	"cuDeviceGetAttribute": "hipDeviceGetAttribute",
	"cuStreamCreate":       "hipStreamCreateWithFlags",
	"cuStreamDestroy":      "hipStreamDestroy",
	"cuStreamSynchronize":  "hipStreamSynchronize",
	"cuStreamQuery":        "hipStreamQuery",
	"cuStreamWaitEvent":    "hipStreamWaitEvent",
	"cuEventCreate":        "hipEventCreateWithFlags",
	"cuEventDestroy":       "hipEventDestroy",
	"cuEventRecord":        "hipEventRecord",
	"cuEventQuery":         "hipEventQuery",
	"cuEventSynchronize":   "hipEventSynchronize",
	"cuMemGetInfo":         "hipMemGetInfo",
	"cuMemAlloc":           "hipMalloc",
	"cuMemFree":            "hipFree",
	"cuMemsetD8Async":      "hipMemsetD8Async",
	"cuMemHostAlloc":       "hipHostMalloc",
	"cuMemFreeHost":        "hipHostFree",
	"cuMemcpyHtoDAsync":    "hipMemcpyHtoDAsync",
	"cuMemcpyDtoHAsync":    "hipMemcpyDtoHAsync",
	"cuMemcpyDtoDAsync":    "hipMemcpyDtoDAsync",
	"cuModuleLoadData":     "hipModuleLoadData",
	"cuModuleUnload":       "hipModuleUnload",
	"cuModuleGetFunction":  "hipModuleGetFunction",
	"cuLaunchKernel":       "hipModuleLaunchKernel",
	"cuStreamBeginCapture": "hipStreamBeginCapture",
	"cuStreamEndCapture":   "hipStreamEndCapture",
	"cuGraphInstantiate":   "hipGraphInstantiateWithFlags",
	"cuGraphDestroy":       "hipGraphDestroy",
	"cuGraphLaunch":        "hipGraphLaunch",
	"cuGraphExecDestroy":   "hipGraphExecDestroy",

	// CUDA has contexts where HIP has devices; the last is what the limit of block memory stands for.
	"cuCtxPushCurrent":          "hipSetDevice",
	"cuStreamGetCtx":            "hipStreamGetDevice",
	"cuDevicePrimaryCtxRetain":  "hipSetDevice",
	"cuDevicePrimaryCtxRelease": "hipSetDevice",
	"cuFuncSetAttribute":        "hipFuncSetAttribute",
}
