//go:build hip && linux && (amd64 || arm64)

package cuda

// hipSymbols are the functions that have the same parameters as CUDA's.
func (a *api) hipSymbols() []Symbol {
	return []Symbol{
		{"hipInit", &a.init},
		{"hipDriverGetVersion", &a.driverVersion},
		{"hipGetDeviceCount", &a.deviceCount},
		{"hipDeviceGet", &a.deviceGet},
		{"hipDeviceGetName", &a.deviceName},
		{"hipGetDevicePropertiesR0600", &a.properties},
		{"hipDeviceGetAttribute", &a.deviceAttribute},
		{"hipStreamCreateWithFlags", &a.streamCreate},
		{"hipStreamDestroy", &a.streamDestroy},
		{"hipStreamSynchronize", &a.streamSync},
		{"hipStreamQuery", &a.streamQuery},
		{"hipStreamWaitEvent", &a.streamWait},
		{"hipEventCreateWithFlags", &a.eventCreate},
		{"hipEventDestroy", &a.eventDestroy},
		{"hipEventRecord", &a.eventRecord},
		{"hipEventQuery", &a.eventQuery},
		{"hipEventSynchronize", &a.eventSync},
		{"hipMemGetInfo", &a.memInfo},
		{"hipMalloc", &a.memAlloc},
		{"hipFree", &a.memFree},
		{"hipMemsetD8Async", &a.memSet},
		{"hipHostMalloc", &a.hostAlloc},
		{"hipHostFree", &a.hostFree},
		{"hipMemcpyHtoDAsync", &a.copyToDevice},
		{"hipMemcpyDtoHAsync", &a.copyToHost},
		{"hipMemcpyDtoDAsync", &a.copyOnDevice},
		{"hipModuleLoadData", &a.moduleLoad},
		{"hipModuleUnload", &a.moduleUnload},
		{"hipModuleGetFunction", &a.moduleFunction},
		{"hipModuleLaunchKernel", &a.launchKernel},
		{"hipStreamBeginCapture", &a.captureBegin},
		{"hipStreamEndCapture", &a.captureEnd},
		{"hipGraphInstantiateWithFlags", &a.graphInstantiate},
		{"hipGraphDestroy", &a.graphDestroy},
		{"hipGraphLaunch", &a.execLaunch},
		{"hipGraphExecDestroy", &a.execDestroy},
	}
}

func (h *hipAPI) symbols() []Symbol {
	return []Symbol{
		{"hipGetDevice", &h.getDevice},
		{"hipSetDevice", &h.setDevice},
		{"hipStreamGetDevice", &h.streamDevice},
	}
}
