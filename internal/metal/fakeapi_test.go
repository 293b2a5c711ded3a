//go:build metal

package metal

import (
	"encoding/binary"
	"math"
	"strings"
	"unsafe"

	"github.com/x448/float16"
)

// api returns the functions that the driver calls.
func (f *fake) api() *api {
	a := &api{systemVersion: func() string { return f.system }}
	f.objectFunctions(a)
	f.deviceFunctions(a)
	f.queueFunctions(a)
	f.encoderFunctions(a)
	f.kernelFunctions(a)
	f.productFunctions(a)
	return a
}

// locked calls do with the fake's lock held.
func locked[T any](f *fake, do func() T) T {
	f.mu.Lock()
	defer f.mu.Unlock()
	return do()
}

func (f *fake) do(work func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	work()
}

func (f *fake) objectFunctions(a *api) {
	a.pushPool = func() uintptr {
		f.do(func() { f.pools++ })
		return 0
	}
	a.popPool = func(uintptr) {
		f.do(func() {
			if f.pools--; f.pools > 0 {
				return
			}
			pooled := f.pooled
			f.pooled = nil
			for _, o := range pooled {
				f.drop(o)
			}
		})
	}
	a.retain = func(o object) {
		f.do(func() {
			if f.things[o] == nil {
				f.fault("retain of dead object %d", o)
				return
			}
			f.things[o].refs++
		})
	}
	a.release = func(o object) { f.do(func() { f.drop(o) }) }
}

func (f *fake) deviceFunctions(a *api) {
	a.newDevices = func() []object {
		if f.dev == 0 {
			return nil
		}
		a.retain(f.dev)
		return []object{f.dev}
	}
	a.deviceName = func(dev object) string { return locked(f, func() string { return f.things[dev].name }) }
	a.hasFamily = func(_ object, family int) bool { return family <= f.family }
	a.unified = func(object) bool { return !f.discrete }
	a.workingSet = func(object) int { return f.limit }
	a.longestBuffer = func(object) int { return f.limit }
	a.allocated = func(object) int { return locked(f, func() int { return f.used }) }
	a.newBuffer = func(dev object, n int, options uintptr) object {
		return locked(f, func() object {
			f.get(dev, "device")
			if f.used+n > f.limit {
				return 0
			}
			return f.make(f.newBuffer(n, options == storagePrivate))
		})
	}
	a.deviceOf = func(buf object) object {
		return locked(f, func() object {
			if f.get(buf, "buffer").name != "" {
				return 0 // of another device
			}
			return f.dev
		})
	}
	a.length = func(buf object) int { return locked(f, func() int { return len(f.get(buf, "buffer").data) }) }
	a.contents = func(buf object) unsafe.Pointer {
		return locked(f, func() unsafe.Pointer { return f.contents(buf) })
	}
	a.address = func(buf object) uintptr {
		if f.old {
			return 0
		}
		return locked(f, func() uintptr { return f.get(buf, "buffer").addr })
	}
}

func (f *fake) queueFunctions(a *api) {
	a.newQueue = func(object) object { return locked(f, func() object { return f.make(&thing{kind: "queue"}) }) }
	a.newEvent = func(object) object { return locked(f, func() object { return f.make(&thing{kind: "event"}) }) }
	a.setEvent = func(event object, value uint64) {
		f.do(func() { f.get(event, "event").value = value; f.changed.Broadcast() })
	}
	a.eventValue = func(event object) uint64 {
		return locked(f, func() uint64 { return f.get(event, "event").value })
	}
	a.commandBuffer = func(queue object) object {
		return locked(f, func() object {
			f.get(queue, "queue")
			return f.pool(&thing{kind: "command buffer", queue: queue})
		})
	}
	record := func(o, event object, command func(e *thing) bool) {
		f.do(func() {
			cb, e := f.get(o, "command buffer"), f.get(event, "event")
			if cb.encoder != 0 {
				f.fault("event encoded while an encoder is open")
			}
			f.keep(cb, event)
			cb.commands = append(cb.commands, func() bool { return command(e) })
		})
	}
	a.signal = func(cb, event object, value uint64) {
		record(cb, event, func(e *thing) bool { e.value = max(e.value, value); f.changed.Broadcast(); return true })
	}
	a.await = func(cb, event object, value uint64) {
		record(cb, event, func(e *thing) bool { return e.value >= value })
	}
	a.commit = func(o object) {
		f.do(func() {
			cb := f.get(o, "command buffer")
			if cb.encoder != 0 || cb.status != 0 {
				f.fault("commit of a command buffer with status %d and encoder %d", cb.status, cb.encoder)
			}
			cb.status = 2
			cb.refs++
			f.commits++
			q := f.get(cb.queue, "queue")
			q.list = append(q.list, o)
			if !q.busy {
				q.busy = true
				go f.run(q)
			}
		})
	}
	// A command buffer has finished once its queue has dropped what it used.
	status := func(o object) int {
		cb := f.get(o, "command buffer")
		if cb.status >= statusCompleted && cb.uses != nil {
			return 3
		}
		return cb.status
	}
	a.status = func(o object) int { return locked(f, func() int { return status(o) }) }
	a.wait = func(o object) {
		f.do(func() {
			for status(o) < statusCompleted {
				f.changed.Wait()
			}
		})
	}
	a.gpuTime = func(o object) float64 {
		if f.unmeasured {
			return 0
		}
		return locked(f, func() float64 { return f.get(o, "command buffer").seconds })
	}
	a.failure = func(o object) (int, string) {
		return locked2(f, func() (int, string) { return f.get(o, "command buffer").code, "injected" })
	}
}

func (f *fake) encoderFunctions(a *api) {
	open := func(name string) func(object) object {
		return func(o object) object {
			return locked(f, func() object {
				cb := f.get(o, "command buffer")
				if cb.encoder != 0 {
					f.fault("two encoders are open")
				}
				cb.encoder = f.pool(&thing{kind: "encoder", name: name, owner: o, bound: map[int]fakeRange{}})
				return cb.encoder
			})
		}
	}
	a.computeEncoder, a.blitEncoder = open("compute"), open("blit")
	encoder := func(o object, name string, do func(enc, cb *thing)) {
		f.do(func() {
			enc := f.get(o, "encoder")
			cb := f.get(enc.owner, "command buffer")
			if enc.name != name || cb.encoder != o {
				f.fault("%s command to an encoder for %s", name, enc.name)
			}
			do(enc, cb)
		})
	}
	a.endEncoding = func(o object) {
		f.do(func() { f.get(f.get(o, "encoder").owner, "command buffer").encoder = 0 })
	}
	a.setPipeline = func(o, p object) { encoder(o, "compute", func(enc, _ *thing) { enc.pipeline = p }) }
	a.setBuffer = func(o, buf object, off, index int) {
		encoder(o, "compute", func(enc, cb *thing) {
			if off > len(f.get(buf, "buffer").data) {
				f.fault("offset %d beyond buffer", off)
			}
			f.keep(cb, buf)
			enc.bound[index] = fakeRange{buf, off}
		})
	}
	a.setBytes = func(o object, data []byte, index int) {
		encoder(o, "compute", func(enc, _ *thing) {
			switch index {
			case paramsIndex:
				enc.params = append([]byte(nil), data...)
			case pieceIndex:
				enc.piece = append([]byte(nil), data...)
			default:
				f.fault("bytes at index %d", index)
			}
		})
	}
	a.dispatch = func(o object, groups, threads size) {
		encoder(o, "compute", func(enc, cb *thing) {
			kernel := f.kernels[f.get(enc.pipeline, "pipeline").name]
			var operands [][]byte
			for i := range len(enc.bound) {
				r := enc.bound[i]
				operands = append(operands, f.get(r.buf, "buffer").data[r.off:])
			}
			params, n := enc.params, int(groups.width*groups.height*groups.depth*threads.width)
			clear(enc.bound)
			f.dispatched(cb, enc.piece, groups)
			cb.commands = append(cb.commands, func() bool { kernel(operands, params, n); return true })
		})
	}
	a.copyBuffer = func(o, src object, srcOff int, dst object, dstOff, n int) {
		encoder(o, "blit", func(_, cb *thing) {
			if (srcOff|dstOff|n)%4 != 0 {
				f.fault("blit of %d bytes from %d to %d", n, srcOff, dstOff)
			}
			from, to := f.get(src, "buffer").data[srcOff:srcOff+n], f.get(dst, "buffer").data[dstOff:dstOff+n]
			f.keep(cb, src)
			f.keep(cb, dst)
			cb.commands = append(cb.commands, func() bool { copy(to, from); return true })
		})
	}
	a.fillBuffer = func(o, buf object, off, n int, value byte) {
		encoder(o, "blit", func(_, cb *thing) {
			to := f.get(buf, "buffer").data[off : off+n]
			f.keep(cb, buf)
			cb.commands = append(cb.commands, func() bool {
				for i := range to {
					to[i] = value
				}
				return true
			})
		})
	}
}

// dispatched notes a piece of a grid and its time.
func (f *fake) dispatched(cb *thing, data []byte, groups size) {
	var p [2][3]uint32
	if n, err := binary.Decode(data, binary.LittleEndian, &p); n != 24 || err != nil {
		f.fault("no piece: %d bytes, %v", n, err)
	}
	f.pieces = append(f.pieces, fakePiece{piece{p[0], p[1]}, [3]int{int(groups.width), int(groups.height), int(groups.depth)}})
	cb.seconds += f.blockTime * float64(groups.width*groups.height*groups.depth)
}

func (f *fake) kernelFunctions(a *api) {
	a.newLibrary = func(_ object, source string, o compileOptions) (object, string) {
		return locked2(f, func() (object, string) {
			f.spoken = append(f.spoken, o)
			f.sources = append(f.sources, source)
			if strings.HasSuffix(source, "?\n") {
				return 0, "program_source:1: expected expression"
			}
			return f.make(&thing{kind: "library"}), ""
		})
	}
	a.newFunction = func(lib object, name string) object {
		return locked(f, func() object {
			f.get(lib, "library")
			if f.kernels[name] == nil {
				return 0
			}
			return f.make(&thing{kind: "function", name: name})
		})
	}
	a.newPipeline = func(_, function object) (object, string) {
		return locked2(f, func() (object, string) {
			name := f.get(function, "function").name
			if name == "huge" {
				return 0, "threadgroup memory size exceeds 32768"
			}
			return f.make(&thing{kind: "pipeline", name: name}), ""
		})
	}
	a.lanes = func(object) int { return f.width }
	a.maxThreads = func(object) int { return 512 }
}

func locked2[T, U any](f *fake, do func() (T, U)) (T, U) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return do()
}

func (f *fake) productFunctions(a *api) {
	a.canMultiply = func(object) bool { return true }
	a.newMatrix = func(buf object, off, rows, columns, rowBytes int, dataType uint32) object {
		return locked(f, func() object {
			m := fakeMatrix{fakeRange{buf, off}, rows, columns, rowBytes, dataType}
			if off+(rows-1)*rowBytes+columns*m.elem() > len(f.get(buf, "buffer").data) {
				f.fault("buffer too short for a matrix")
			}
			t := &thing{kind: "matrix", matrix: m}
			f.keep(t, buf)
			return f.make(t)
		})
	}
	a.newProduct = func(_ object, p product) object {
		return locked(f, func() object { return f.make(&thing{kind: "product", product: p}) })
	}
	a.encodeProduct = func(o, buffer, x, y, z object) {
		f.do(func() {
			p, cb := f.get(o, "product").product, f.get(buffer, "command buffer")
			if cb.encoder != 0 {
				f.fault("product encoded while an encoder is open")
			}
			cb.seconds += f.productMAC * float64(p.m) * float64(p.n) * float64(p.k)
			var ms [3]fakeMatrix
			for i, m := range []object{x, y, z} {
				ms[i] = f.get(m, "matrix").matrix
				f.keep(cb, m)
			}
			cb.commands = append(cb.commands, func() bool { f.multiply(p, ms); return true })
		})
	}
}

func (m fakeMatrix) elem() int { return int(m.dataType & 0xff / 8) }

// at returns the address of an element, of the transpose if trans is set.
func (f *fake) at(m fakeMatrix, row, column int, trans bool) []byte {
	if trans {
		row, column = column, row
	}
	return f.things[m.buf].data[m.off+row*m.rowBytes+column*m.elem():]
}

func (f *fake) value(m fakeMatrix, row, column int, trans bool) float32 {
	p := f.at(m, row, column, trans)
	if m.elem() == 2 {
		return float16.Frombits(binary.LittleEndian.Uint16(p)).Float32()
	}
	return math.Float32frombits(binary.LittleEndian.Uint32(p))
}

func (f *fake) multiply(p product, m [3]fakeMatrix) {
	for i := range p.m {
		for j := range p.n {
			var sum float32
			for l := range p.k {
				sum += f.value(m[0], i, l, p.transA) * f.value(m[1], l, j, p.transB)
			}
			c := p.alpha*sum + p.beta*f.value(m[2], i, j, false)
			binary.LittleEndian.PutUint32(f.at(m[2], i, j, false), math.Float32bits(c))
		}
	}
}
