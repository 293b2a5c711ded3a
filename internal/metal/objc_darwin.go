//go:build metal && (arm64 || amd64)

package metal

import (
	"fmt"
	"sync"
	"syscall"
	"unsafe"

	"github.com/ebitengine/purego"
	"github.com/ebitengine/purego/objc"

	"github.com/snug-ml/snug/internal/driver"
)

func init() { driver.Register("metal", backend{sync.OnceValues(load)}) }

const (
	frameworks   = "/System/Library/Frameworks/"
	metalPath    = frameworks + "Metal.framework/Metal"
	graphicsPath = frameworks + "CoreGraphics.framework/CoreGraphics"
	shadersPath  = frameworks + "MetalPerformanceShaders.framework/MetalPerformanceShaders"
)

// messenger is the address of objc_msgSend. It calls methods whose arguments
// and result are integers and pointers; the ABIs pass an NSRange as two.
type messenger uintptr

// send sends a message: the receiver, the selector and the arguments. A
// pointer to Go memory is converted to uintptr in the call itself.
//
//go:uintptrescapes
func (m messenger) send(args ...uintptr) uintptr {
	r, _, _ := purego.SyscallN(uintptr(m), args...)
	return r
}

// truth is a BOOL; only its low byte is defined.
func truth(r uintptr) bool { return uint8(r) != 0 }

func sel(name string) uintptr { return uintptr(objc.RegisterName(name)) }

func class(name string) uintptr { return uintptr(objc.GetClass(name)) }

// load opens the frameworks and fills an api in.
func load() (*api, error) {
	lib, err := open(metalPath)
	if err != nil {
		return nil, err
	}
	// Without it the system has no default device for programs without windows.
	if _, err := open(graphicsPath); err != nil {
		return nil, err
	}
	f := finder{}
	m := messenger(f.find(purego.RTLD_DEFAULT, "objc_msgSend"))
	if f.err != nil {
		return nil, f.err
	}
	a := &api{systemVersion: func() string {
		version, _ := syscall.Sysctl("kern.osproductversion")
		return version
	}}
	loadObjects(a, m, &f)
	loadDevices(a, m, &f, lib)
	loadBuffers(a, m)
	loadQueues(a, m)
	loadEncoders(a, m)
	loadKernels(a, m)
	loadProducts(a, m)
	return a, f.err
}

func open(path string) (uintptr, error) {
	lib, err := purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_GLOBAL)
	if err != nil {
		return 0, fmt.Errorf("metal: %w: %w", err, driver.ErrNotBuilt)
	}
	return lib, nil
}

// finder looks symbols up and keeps the first error.
type finder struct{ err error }

func (f *finder) find(lib uintptr, name string) uintptr {
	addr, err := purego.Dlsym(lib, name)
	if err != nil && f.err == nil {
		f.err = fmt.Errorf("metal: %w: %w", err, driver.ErrNotBuilt)
	}
	return addr
}

// call returns a C function of integers and pointers.
func (f *finder) call(lib uintptr, name string) func(args ...uintptr) uintptr {
	return messenger(f.find(lib, name)).send
}

func loadObjects(a *api, m messenger, f *finder) {
	push := f.call(purego.RTLD_DEFAULT, "objc_autoreleasePoolPush")
	pop := f.call(purego.RTLD_DEFAULT, "objc_autoreleasePoolPop")
	retain, release := sel("retain"), sel("release")
	a.pushPool = func() uintptr { return push() }
	a.popPool = func(pool uintptr) { pop(pool) }
	a.retain = func(o object) { m.send(uintptr(o), retain) }
	a.release = func(o object) { m.send(uintptr(o), release) }
}

func loadDevices(a *api, m messenger, f *finder, lib uintptr) {
	all := f.call(lib, "MTLCopyAllDevices")
	first := f.call(lib, "MTLCreateSystemDefaultDevice")
	count, at, name := sel("count"), sel("objectAtIndex:"), sel("name")
	a.newDevices = func() []object {
		array := object(all())
		var devs []object
		for i := range m.send(uintptr(array), count) {
			dev := object(m.send(uintptr(array), at, i))
			a.retain(dev)
			devs = append(devs, dev)
		}
		a.release(array)
		if len(devs) > 0 {
			return devs
		}
		if dev := object(first()); dev != 0 { // as some sandboxes have it
			devs = append(devs, dev)
		}
		return devs
	}
	a.deviceName = func(dev object) string { return m.text(m.send(uintptr(dev), name)) }
	family := sel("supportsFamily:")
	a.hasFamily = func(dev object, n int) bool { return truth(m.send(uintptr(dev), family, uintptr(n))) }
	unified := sel("hasUnifiedMemory")
	a.unified = func(dev object) bool { return truth(m.send(uintptr(dev), unified)) }
	a.workingSet = m.number("recommendedMaxWorkingSetSize")
	a.allocated = m.number("currentAllocatedSize")
	a.longestBuffer = m.number("maxBufferLength")
}

// number returns a function that reads a property of 64 bits.
func (m messenger) number(property string) func(object) int {
	s := sel(property)
	return func(o object) int { return int(m.send(uintptr(o), s)) }
}

// object returns a function that reads a property, or calls a method without
// arguments, that gives an object.
func (m messenger) object(method string) func(object) object {
	s := sel(method)
	return func(o object) object { return object(m.send(uintptr(o), s)) }
}

func loadBuffers(a *api, m messenger) {
	newBuffer, contents := sel("newBufferWithLength:options:"), sel("contents")
	responds, address := sel("respondsToSelector:"), sel("gpuAddress")
	a.newBuffer = func(dev object, bytes int, options uintptr) object {
		return object(m.send(uintptr(dev), newBuffer, uintptr(bytes), options))
	}
	a.deviceOf = m.object("device")
	a.length = m.number("length")
	a.contents = func(buf object) unsafe.Pointer {
		p := m.send(uintptr(buf), contents)
		return *(*unsafe.Pointer)(unsafe.Pointer(&p)) // not memory of Go's
	}
	a.address = func(buf object) uintptr {
		if !truth(m.send(uintptr(buf), responds, address)) {
			return 0 // before macOS 13
		}
		return m.send(uintptr(buf), address)
	}
}

func loadQueues(a *api, m messenger) {
	a.newQueue = m.object("newCommandQueue")
	a.newEvent = m.object("newSharedEvent")
	a.commandBuffer = m.object("commandBuffer")
	setValue, signal, await := sel("setSignaledValue:"), sel("encodeSignalEvent:value:"), sel("encodeWaitForEvent:value:")
	a.setEvent = func(event object, value uint64) { m.send(uintptr(event), setValue, uintptr(value)) }
	a.signal = func(cb, event object, value uint64) { m.send(uintptr(cb), signal, uintptr(event), uintptr(value)) }
	a.await = func(cb, event object, value uint64) { m.send(uintptr(cb), await, uintptr(event), uintptr(value)) }
	value := sel("signaledValue")
	a.eventValue = func(event object) uint64 { return uint64(m.send(uintptr(event), value)) }
	commit, wait := sel("commit"), sel("waitUntilCompleted")
	a.commit = func(cb object) { m.send(uintptr(cb), commit) }
	a.wait = func(cb object) { m.send(uintptr(cb), wait) }
	a.status = m.number("status")
	var seconds func(o object, sel uintptr) float64
	purego.RegisterFunc(&seconds, uintptr(m))
	start, end := sel("GPUStartTime"), sel("GPUEndTime")
	a.gpuTime = func(cb object) float64 { return seconds(cb, end) - seconds(cb, start) }
	failure, code := m.object("error"), m.number("code")
	a.failure = func(cb object) (int, string) {
		e := failure(cb)
		return code(e), m.reason(uintptr(e))
	}
}

func loadEncoders(a *api, m messenger) {
	const serial = 0 // MTLDispatchTypeSerial
	compute := sel("computeCommandEncoderWithDispatchType:")
	a.computeEncoder = func(cb object) object { return object(m.send(uintptr(cb), compute, serial)) }
	a.blitEncoder = m.object("blitCommandEncoder")
	end, setPipeline := sel("endEncoding"), sel("setComputePipelineState:")
	a.endEncoding = func(enc object) { m.send(uintptr(enc), end) }
	a.setPipeline = func(enc, pipeline object) { m.send(uintptr(enc), setPipeline, uintptr(pipeline)) }
	setBuffer, setBytes := sel("setBuffer:offset:atIndex:"), sel("setBytes:length:atIndex:")
	a.setBuffer = func(enc, buf object, off, index int) {
		m.send(uintptr(enc), setBuffer, uintptr(buf), uintptr(off), uintptr(index))
	}
	a.setBytes = func(enc object, data []byte, index int) {
		m.send(uintptr(enc), setBytes, uintptr(unsafe.Pointer(unsafe.SliceData(data))), uintptr(len(data)), uintptr(index))
	}

	// MTLSize goes by value: 24 bytes that amd64 passes on the stack and arm64
	// as the address of a copy.
	var send func(o object, sel uintptr, groups, threads size)
	purego.RegisterFunc(&send, uintptr(m))
	dispatch := sel("dispatchThreadgroups:threadsPerThreadgroup:")
	a.dispatch = func(enc object, groups, threads size) { send(enc, dispatch, groups, threads) }

	copyBuffer := sel("copyFromBuffer:sourceOffset:toBuffer:destinationOffset:size:")
	a.copyBuffer = func(enc, src object, srcOff int, dst object, dstOff, bytes int) {
		m.send(uintptr(enc), copyBuffer, uintptr(src), uintptr(srcOff), uintptr(dst), uintptr(dstOff), uintptr(bytes))
	}
	fill := sel("fillBuffer:range:value:")
	a.fillBuffer = func(enc, buf object, off, bytes int, value byte) {
		m.send(uintptr(enc), fill, uintptr(buf), uintptr(off), uintptr(bytes), uintptr(value))
	}
}

func loadKernels(a *api, m messenger) {
	newOptions, setLanguage := m.object("new"), sel("setLanguageVersion:")
	responds, setMode, setFast := sel("respondsToSelector:"), sel("setMathMode:"), sel("setFastMathEnabled:")
	newLibrary, newFunction := sel("newLibraryWithSource:options:error:"), sel("newFunctionWithName:")
	newPipeline := sel("newComputePipelineStateWithFunction:error:")
	optionsClass := object(class("MTLCompileOptions"))
	setFunctions := sel("setMathFloatingPointFunctions:")
	a.newLibrary = func(dev object, source string, o compileOptions) (object, string) {
		options := newOptions(optionsClass)
		defer a.release(options)
		m.send(uintptr(options), setLanguage, uintptr(o.language))
		if truth(m.send(uintptr(options), responds, setMode)) {
			m.send(uintptr(options), setMode, o.mathMode)
			m.send(uintptr(options), setFunctions, o.functions)
		} else {
			const no = 0
			m.send(uintptr(options), setFast, no)
		}
		failure := new(uintptr)
		lib := m.send(uintptr(dev), newLibrary, m.string(source), uintptr(options), uintptr(unsafe.Pointer(failure)))
		return object(lib), m.reason(*failure)
	}
	a.newFunction = func(lib object, name string) object {
		return object(m.send(uintptr(lib), newFunction, m.string(name)))
	}
	a.newPipeline = func(dev, function object) (object, string) {
		failure := new(uintptr)
		p := m.send(uintptr(dev), newPipeline, uintptr(function), uintptr(unsafe.Pointer(failure)))
		return object(p), m.reason(*failure)
	}
	a.lanes = m.number("threadExecutionWidth")
	a.maxThreads = m.number("maxTotalThreadsPerThreadgroup")
}

// loadProducts adds Metal Performance Shaders, or nothing where a Mac lacks it.
func loadProducts(a *api, m messenger) {
	a.canMultiply = func(object) bool { return false }
	lib, err := open(shadersPath)
	if err != nil {
		return
	}
	f := finder{}
	supports := f.call(lib, "MPSSupportsMTLDevice")
	if f.err != nil {
		return
	}
	a.canMultiply = func(dev object) bool { return truth(supports(uintptr(dev))) }

	alloc := m.object("alloc")
	descriptors, describe := class("MPSMatrixDescriptor"), sel("matrixDescriptorWithRows:columns:rowBytes:dataType:")
	matrices, initMatrix := object(class("MPSMatrix")), sel("initWithBuffer:offset:descriptor:")
	a.newMatrix = func(buf object, off, rows, columns, rowBytes int, dataType uint32) object {
		d := m.send(descriptors, describe, uintptr(rows), uintptr(columns), uintptr(rowBytes), uintptr(dataType))
		return object(m.send(uintptr(alloc(matrices)), initMatrix, uintptr(buf), uintptr(off), d))
	}
	var send func(o object, sel uintptr, dev object, transA, transB bool, m, n, k int, alpha, beta float64) object
	purego.RegisterFunc(&send, uintptr(m))
	products := object(class("MPSMatrixMultiplication"))
	initProduct := sel("initWithDevice:transposeLeft:transposeRight:resultRows:resultColumns:interiorColumns:alpha:beta:")
	a.newProduct = func(dev object, p product) object {
		return send(alloc(products), initProduct, dev, p.transA, p.transB, p.m, p.n, p.k, float64(p.alpha), float64(p.beta))
	}
	encode := sel("encodeToCommandBuffer:leftMatrix:rightMatrix:resultMatrix:")
	a.encodeProduct = func(product, cb, x, y, z object) {
		m.send(uintptr(product), encode, uintptr(cb), uintptr(x), uintptr(y), uintptr(z))
	}
}

// string returns an autoreleased NSString.
func (m messenger) string(s string) uintptr {
	text := append([]byte(s), 0)
	return m.send(class("NSString"), sel("stringWithUTF8String:"), uintptr(unsafe.Pointer(&text[0])))
}

// text returns the text of an NSString, or "".
func (m messenger) text(s uintptr) string {
	p := m.send(s, sel("UTF8String"))
	if p == 0 {
		return ""
	}
	start := *(*unsafe.Pointer)(unsafe.Pointer(&p))
	n := 0
	for *(*byte)(unsafe.Add(start, n)) != 0 {
		n++
	}
	return string(unsafe.Slice((*byte)(start), n))
}

// reason returns what an NSError says, or "" for none.
func (m messenger) reason(e uintptr) string {
	return m.text(m.send(e, sel("localizedDescription")))
}
