//go:build (cuda || hip) && (linux || windows) && (amd64 || arm64)

package cuda

// Symbol is a function of a library and the field for it.
type Symbol = struct {
	Name string
	Fn   any // a pointer to the field
}

func (a *api) symbols() []Symbol {
	return []Symbol{
		{"cuInit", &a.init},
		{"cuDriverGetVersion", &a.driverVersion},
		{"cuDeviceGetCount", &a.deviceCount},
		{"cuDeviceGet", &a.deviceGet},
		{"cuDeviceGetName", &a.deviceName},
		{"cuDeviceGetAttribute", &a.deviceAttribute},
		{"cuDevicePrimaryCtxRetain", &a.primaryRetain},
		{"cuDevicePrimaryCtxRelease_v2", &a.primaryRelease},
		{"cuCtxPushCurrent_v2", &a.ctxPush},
		{"cuCtxPopCurrent_v2", &a.ctxPop},
		{"cuStreamCreate", &a.streamCreate},
		{"cuStreamDestroy_v2", &a.streamDestroy},
		{"cuStreamSynchronize", &a.streamSync},
		{"cuStreamQuery", &a.streamQuery},
		{"cuStreamWaitEvent", &a.streamWait},
		{"cuStreamGetCtx", &a.streamCtx},
		{"cuEventCreate", &a.eventCreate},
		{"cuEventDestroy_v2", &a.eventDestroy},
		{"cuEventRecord", &a.eventRecord},
		{"cuEventQuery", &a.eventQuery},
		{"cuEventSynchronize", &a.eventSync},
		{"cuMemGetInfo_v2", &a.memInfo},
		{"cuMemAlloc_v2", &a.memAlloc},
		{"cuMemFree_v2", &a.memFree},
		{"cuMemsetD8Async", &a.memSet},
		{"cuMemHostAlloc", &a.hostAlloc},
		{"cuMemFreeHost", &a.hostFree},
		{"cuMemcpyHtoDAsync_v2", &a.copyToDevice},
		{"cuMemcpyDtoHAsync_v2", &a.copyToHost},
		{"cuMemcpyDtoDAsync_v2", &a.copyOnDevice},
		{"cuMemPoolCreate", &a.poolCreate},
		{"cuMemPoolDestroy", &a.poolDestroy},
		{"cuMemPoolSetAttribute", &a.poolSet},
		{"cuMemPoolGetAttribute", &a.poolGet},
		{"cuMemPoolTrimTo", &a.poolTrim},
		{"cuMemAllocFromPoolAsync", &a.poolAlloc},
		{"cuMemFreeAsync", &a.freeAsync},
		{"cuModuleLoadData", &a.moduleLoad},
		{"cuModuleUnload", &a.moduleUnload},
		{"cuModuleGetFunction", &a.moduleFunction},
		{"cuFuncSetAttribute", &a.functionSet},
		{"cuLaunchKernel", &a.launchKernel},
		{"cuStreamBeginCapture_v2", &a.captureBegin},
		{"cuStreamEndCapture", &a.captureEnd},
		{"cuGraphInstantiateWithFlags", &a.graphInstantiate},
		{"cuGraphDestroy", &a.graphDestroy},
		{"cuGraphLaunch", &a.execLaunch},
		{"cuGraphExecDestroy", &a.execDestroy},
	}
}

// optional are functions without which kernels for compute capability 9.0 are not used.
func (a *api) optional() []Symbol {
	return []Symbol{{"cuTensorMapEncodeTiled", &a.encodeMap}}
}

func (lt *ltAPI) symbols() []Symbol {
	symbols := []Symbol{
		{"Create", &lt.create},
		{"Destroy", &lt.destroy},
		{"MatmulDescCreate", &lt.descCreate},
		{"MatmulDescDestroy", &lt.descDestroy},
		{"MatmulDescSetAttribute", &lt.descSet},
		{"MatrixLayoutCreate", &lt.layoutCreate},
		{"MatrixLayoutDestroy", &lt.layoutDestroy},
		{"MatmulPreferenceCreate", &lt.preferCreate},
		{"MatmulPreferenceDestroy", &lt.preferDestroy},
		{"MatmulPreferenceSetAttribute", &lt.preferSet},
		{"MatmulAlgoGetHeuristic", &lt.heuristic},
		{"Matmul", &lt.matmul},
	}
	for i := range symbols {
		symbols[i].Name = lt.vendor.prefix + symbols[i].Name
	}
	return symbols
}
