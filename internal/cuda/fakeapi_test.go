//go:build (cuda || hip) && linux

package cuda

import (
	"slices"
	"syscall"
	"unsafe"
)

// asHIP makes an api that of HIP, in builds with HIP.
var asHIP func(f *fake, a *api)

// driverAPI returns the functions of the fake driver of its vendor.
func (f *fake) driverAPI() *api {
	a := f.api()
	if f.vendor != &nvidia {
		asHIP(f, a)
	}
	return a
}

// api returns the functions of the fake driver of CUDA.
func (f *fake) api() *api {
	a := &api{}
	f.deviceCalls(a)
	f.streamCalls(a)
	f.memoryCalls(a)
	f.copyCalls(a)
	f.poolCalls(a)
	f.kernelCalls(a)
	f.graphCalls(a)
	return a
}

func (f *fake) deviceCalls(a *api) {
	a.init = func(uint32) Result {
		r, end := f.call("cuInit", true)
		defer end()
		return r
	}
	a.driverVersion = func(v *int32) Result {
		*v = f.version
		return success
	}
	a.deviceCount = func(n *int32) Result {
		r, end := f.call("cuDeviceGetCount", true)
		defer end()
		*n = f.count
		return r
	}
	a.deviceGet = func(d *int32, ordinal int32) Result {
		*d = ordinal
		return success
	}
	a.deviceName = func(name *byte, size int32, _ int32) Result {
		copy(unsafe.Slice(name, size), "Fake V100\x00")
		return success
	}
	a.deviceAttribute = func(v *int32, attribute, _ int32) Result {
		r, end := f.call("cuDeviceGetAttribute", true)
		defer end()
		*v = map[int32]int32{attributeMajor: f.major, attributeMinor: f.minor, attributePools: f.pools, attributeProcessors: 108}[attribute]
		return r
	}
	a.primaryRetain = func(ctx *uintptr, _ int32) Result {
		r, end := f.call("cuDevicePrimaryCtxRetain", true)
		defer end()
		if r == success {
			f.retained++
			*ctx = primary
		}
		return r
	}
	a.primaryRelease = func(int32) Result {
		r, end := f.call("cuDevicePrimaryCtxRelease", true)
		defer end()
		f.retained--
		if f.lost != success {
			clear(f.memory) // which queued work would have freed
		}
		return r
	}
	a.ctxPush = func(ctx uintptr) Result {
		r, end := f.call("cuCtxPushCurrent", true)
		defer end()
		if r == success && ctx == primary {
			f.contexts[syscall.Gettid()]++
		}
		return r
	}
	a.ctxPop = func() Result {
		_, end := f.call("cuCtxPopCurrent", true)
		defer end()
		f.contexts[syscall.Gettid()]--
		return success
	}
}

func (f *fake) streamCalls(a *api) {
	a.streamCreate = func(s *uintptr, _ uint32) Result {
		r, end := f.call("cuStreamCreate", false)
		defer end()
		if r == success {
			*s = f.handle()
			f.streams[*s] = &stream{}
		}
		return r
	}
	a.streamDestroy = func(s uintptr) Result {
		r, end := f.call("cuStreamDestroy", false)
		defer end()
		delete(f.streams, s)
		return r
	}
	a.streamSync = func(s uintptr) Result {
		r, end := f.call("cuStreamSynchronize", false)
		defer end()
		if st := f.streams[s]; r == success && st != nil {
			if st.captured != nil {
				return 900
			}
			defer f.waited()
			return f.run(st, len(st.work))
		}
		return r
	}
	a.streamQuery = func(s uintptr) Result {
		r, end := f.call("cuStreamQuery", false)
		defer end()
		st := f.streams[s]
		if r != success || st == nil || st.done == len(st.work) {
			return r
		}
		if r := f.run(st, st.done+1); r != success { // a device is never idle
			return r
		}
		return errNotReady
	}
	a.streamWait = func(s, e uintptr, _ uint32) Result {
		r, end := f.call("cuStreamWaitEvent", false)
		defer end()
		if r != success {
			return r
		}
		m := f.events[e]
		return f.enqueue(s, func() { f.run(m.s, m.n) })
	}
	a.streamCtx = func(s uintptr, ctx *uintptr) Result {
		r, end := f.call("cuStreamGetCtx", false)
		defer end()
		*ctx = primary
		if s == 13 { // a stream of another context
			*ctx = 7
		}
		return r
	}
	a.eventCreate = func(e *uintptr, _ uint32) Result {
		r, end := f.call("cuEventCreate", false)
		defer end()
		if r == success {
			*e = f.handle()
			f.events[*e] = moment{}
		}
		return r
	}
	a.eventDestroy = func(e uintptr) Result {
		r, end := f.call("cuEventDestroy", false)
		defer end()
		delete(f.events, e)
		return r
	}
	a.eventRecord = func(e, s uintptr) Result {
		r, end := f.call("cuEventRecord", false)
		defer end()
		if st := f.streams[s]; r == success {
			f.events[e] = moment{st, len(st.work)}
		}
		return r
	}
	a.eventQuery = func(e uintptr) Result {
		r, end := f.call("cuEventQuery", false)
		defer end()
		if m := f.events[e]; r == success && m.s.done < m.n {
			return errNotReady
		}
		return r
	}
	a.eventSync = func(e uintptr) Result {
		r, end := f.call("cuEventSynchronize", false)
		defer end()
		if m := f.events[e]; r == success {
			defer f.waited()
			return f.run(m.s, m.n)
		}
		return r
	}
}

func (f *fake) memoryCalls(a *api) {
	a.memInfo = func(free, total *uint64) Result {
		r, end := f.call("cuMemGetInfo", false)
		defer end()
		*free, *total = f.total-f.used(), f.total
		return r
	}
	a.memAlloc = func(addr *uintptr, size uint64) Result {
		r, end := f.call("cuMemAlloc", false, size)
		defer end()
		if r == success {
			return f.allocate(addr, size, nil)
		}
		return r
	}
	a.memFree = func(addr uintptr) Result {
		r, end := f.call("cuMemFree", false)
		defer end()
		delete(f.memory, addr)
		return r
	}
	a.memSet = func(addr uintptr, value uint8, n uint64, s uintptr) Result {
		r, end := f.call("cuMemsetD8Async", false, n)
		defer end()
		if r != success {
			return r
		}
		return f.enqueue(s, func() {
			b := f.bytes(addr, n)
			for i := range b {
				b[i] = value
			}
		})
	}
	a.hostAlloc = func(p *unsafe.Pointer, size uint64, _ uint32) Result {
		r, end := f.call("cuMemHostAlloc", false, size)
		defer end()
		if r == success {
			words := make([]uint64, size/8+8) // the memory is at a multiple of 64, as the driver's
			start := (64 - uintptr(unsafe.Pointer(&words[0]))%64) % 64
			*p = unsafe.Add(unsafe.Pointer(&words[0]), start)
			f.pinned[uintptr(*p)] = unsafe.Slice((*byte)(*p), size)
		}
		return r
	}
	a.hostFree = func(p unsafe.Pointer) Result {
		r, end := f.call("cuMemFreeHost", false)
		defer end()
		delete(f.pinned, uintptr(p))
		return r
	}
}

func (f *fake) copyCalls(a *api) {
	a.copyToDevice = func(dst uintptr, src unsafe.Pointer, n uint64, s uintptr) Result {
		r, end := f.call("cuMemcpyHtoDAsync", false, n)
		defer end()
		if r != success {
			return r
		}
		return f.enqueue(s, func() { copy(f.bytes(dst, n), unsafe.Slice((*byte)(src), n)) })
	}
	a.copyToHost = func(dst unsafe.Pointer, src uintptr, n uint64, s uintptr) Result {
		r, end := f.call("cuMemcpyDtoHAsync", false, n)
		defer end()
		if r != success {
			return r
		}
		return f.enqueue(s, func() { copy(unsafe.Slice((*byte)(dst), n), f.bytes(src, n)) })
	}
	a.copyOnDevice = func(dst, src uintptr, n uint64, s uintptr) Result {
		r, end := f.call("cuMemcpyDtoDAsync", false, n)
		defer end()
		if r != success {
			return r
		}
		return f.enqueue(s, func() { copy(f.bytes(dst, n), f.bytes(src, n)) })
	}
}

func (f *fake) poolCalls(a *api) {
	a.poolCreate = func(p *uintptr, props *poolProps) Result {
		r, end := f.call("cuMemPoolCreate", false)
		defer end()
		if props.allocType != 1 || props.location != 1 || unsafe.Sizeof(*props) != 88 {
			return 1
		}
		if r == success {
			*p = f.handle()
			f.poolMade[*p] = &fakePool{}
		}
		return r
	}
	a.poolDestroy = func(p uintptr) Result {
		r, end := f.call("cuMemPoolDestroy", false)
		defer end()
		delete(f.poolMade, p)
		return r
	}
	a.poolSet = func(p uintptr, attribute int32, value *uint64) Result {
		r, end := f.call("cuMemPoolSetAttribute", false, attribute, *value)
		defer end()
		if r == success && attribute == poolKeep {
			f.poolMade[p].keep = *value
		}
		return r
	}
	a.poolGet = func(p uintptr, attribute int32, value *uint64) Result {
		r, end := f.call("cuMemPoolGetAttribute", false)
		defer end()
		*value = map[int32]uint64{poolReserved: f.poolMade[p].held, poolUsed: f.poolMade[p].live}[attribute]
		return r
	}
	a.poolTrim = func(p uintptr, keep uint64) Result {
		r, end := f.call("cuMemPoolTrimTo", false)
		defer end()
		if r == success {
			f.poolMade[p].release(keep)
		}
		return r
	}
	a.poolAlloc = func(addr *uintptr, size uint64, pool, _ uintptr) Result {
		r, end := f.call("cuMemAllocFromPoolAsync", false, size)
		defer end()
		if r == success {
			return f.allocate(addr, size, f.poolMade[pool])
		}
		return r
	}
	a.freeAsync = func(addr, s uintptr) Result {
		r, end := f.call("cuMemFreeAsync", false)
		defer end()
		if f.lost != success {
			delete(f.memory, addr) // the context's end frees it
		}
		if r != success {
			return r
		}
		return f.enqueue(s, func() {
			if p := f.poolOf[addr]; p != nil {
				p.live -= uint64(len(f.memory[addr]))
			}
			delete(f.memory, addr)
		})
	}
}

func (f *fake) kernelCalls(a *api) {
	a.moduleLoad = func(m *uintptr, image *byte) Result {
		n := 0
		for *(*byte)(unsafe.Add(unsafe.Pointer(image), n)) != 0 {
			n++
		}
		code := string(unsafe.Slice(image, n)) // the tests' codes end in a zero byte
		if f.compile != nil {
			if r := f.compile(code); r != success {
				return r
			}
		}
		r, end := f.call("cuModuleLoadData", false)
		defer end()
		if r == success {
			*m = f.handle()
			f.modules[*m] = code
		}
		return r
	}
	a.moduleUnload = func(m uintptr) Result {
		r, end := f.call("cuModuleUnload", false)
		defer end()
		delete(f.modules, m)
		return r
	}
	a.moduleFunction = func(fn *uintptr, _ uintptr, name string) Result {
		r, end := f.call("cuModuleGetFunction", false)
		defer end()
		if _, ok := f.kernels[name]; r == success && !ok {
			return errNotFound
		}
		*fn = f.handle()
		f.names[*fn] = name
		return r
	}
	a.functionSet = func(_ uintptr, attribute, value int32) Result {
		r, end := f.call("cuFuncSetAttribute", false, attribute, value)
		defer end()
		return r
	}
	a.encodeMap = func(to unsafe.Pointer, dtype int32, rank uint32, addr uintptr, dims, strides, box, steps unsafe.Pointer,
		interleave, swizzle, promotion, fill int32) Result {
		r, end := f.call("cuTensorMapEncodeTiled", false, dtype, rank, *(*[4]uint64)(dims), *(*[3]uint64)(strides),
			*(*[4]uint32)(box), *(*[4]uint32)(steps), interleave, swizzle, promotion, fill)
		defer end()
		if uintptr(to)%64 != 0 || addr%16 != 0 {
			return 1
		}
		*(*[16]uint64)(to) = [16]uint64{uint64(addr)}
		return r
	}
	a.launchKernel = func(fn uintptr, bx, by, bz, tx, ty, tz, shared uint32, s uintptr, params, extra unsafe.Pointer) Result {
		f.mu.Lock()
		logging := f.logging
		f.mu.Unlock()
		var args []any
		if logging { // boxing allocates
			args = []any{bx, by, bz, tx, ty, tz, shared, params == nil}
		}
		r, end := f.call("cuLaunchKernel", false, args...)
		defer end()
		if r != success {
			return r
		}
		kernel := f.kernels[f.names[fn]]
		var packed []byte // the driver copies arguments in the call
		switch {
		case (params == nil) == (extra == nil):
			return 1
		case kernel == nil: // a launch that a benchmark times
			return success
		case params != nil:
			for i, n := range f.sizes[f.names[fn]] {
				packed = append(packed, unsafe.Slice(*(**byte)(unsafe.Add(params, 8*i)), n)...)
			}
		default:
			e := (*[5]uintptr)(extra)
			if e[0] != launchBuffer || e[2] != launchBufferSize || e[4] != f.vendor.launchEnd {
				return 1
			}
			packed = slices.Clone(unsafe.Slice(*(**byte)(unsafe.Pointer(&e[1])), **(**uintptr)(unsafe.Pointer(&e[3]))))
		}
		return f.enqueue(s, func() { kernel(packed) })
	}
}

func (f *fake) graphCalls(a *api) {
	a.captureBegin = func(s uintptr, mode int32) Result {
		r, end := f.call("cuStreamBeginCapture", false, mode)
		defer end()
		if r == success {
			f.streams[s].captured = &[]func(){}
		}
		return r
	}
	a.captureEnd = func(s uintptr, graph *uintptr) Result {
		r, end := f.call("cuStreamEndCapture", false)
		defer end()
		st := f.streams[s]
		work := st.captured
		st.captured = nil
		if r == success {
			*graph = f.handle()
			f.graphs[*graph] = *work
		}
		return r
	}
	a.graphInstantiate = func(exec *uintptr, graph uintptr, _ uint64) Result {
		r, end := f.call("cuGraphInstantiate", false)
		defer end()
		if r == success {
			*exec = f.handle()
			f.execs[*exec] = f.graphs[graph]
		}
		return r
	}
	a.graphDestroy = func(graph uintptr) Result {
		r, end := f.call("cuGraphDestroy", false)
		defer end()
		delete(f.graphs, graph)
		return r
	}
	a.execLaunch = func(exec, s uintptr) Result {
		r, end := f.call("cuGraphLaunch", false)
		defer end()
		if r != success {
			return r
		}
		work := f.execs[exec]
		return f.enqueue(s, func() {
			for _, w := range work {
				w()
			}
		})
	}
	a.execDestroy = func(exec uintptr) Result {
		r, end := f.call("cuGraphExecDestroy", false)
		defer end()
		delete(f.execs, exec)
		return r
	}
}
