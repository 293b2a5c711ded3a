//go:build cuda || hip

package cuda

import (
	"fmt"
	"log/slog"
	"math/bits"
	"sync"
	"time"
	"unsafe"

	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/gpu"
)

// The workspace of MatMul in bytes, of the sizes that NVIDIA recommends for
// compute capability 9.0 and later, and before. AMD's devices have the larger one.
const (
	workspaceLarge = 32 << 20
	workspaceSmall = 4 << 20
)

// maxPlans bounds the cache of plans; when it is full it starts anew.
const maxPlans = 1024

// blas is cuBLASLt on one device.
type blas struct {
	mu        sync.Mutex
	lt        *ltAPI
	tried     bool // to open it
	handle    uintptr
	workspace uintptr
	size      uint64 // of the workspace
	plans     map[shape]*plan
}

// shape is everything on which the choice of an algorithm depends. cuBLASLt's
// matrices are column-major, so a row-major product is the product of the
// transposes in the other order: its first operand is b.
type shape struct {
	m, n, k                   int // of the row-major product
	aStride, bStride, cStride int
	aTrans, bTrans            bool
	input, output             gpu.Type
	aAlign, bAlign, cAlign    uint32
}

// plan is how to compute products of one shape.
type plan struct {
	desc, a, b, c uintptr
	algo          [8]uint64
	ok            bool // cuBLASLt has an algorithm
}

// MatMul queues c = alpha·a·b + beta·c with cuBLASLt, if it is installed and takes the product. Sums
// are in float32 and no TF32 is used. a and b are of one type, c of the same or
// float32; other products return false. The first call allocates a workspace of
// 32 MiB on the device, of 4 MiB for compute capabilities below 9.0. Later calls
// of a known shape allocate nothing.
func (d *Device) MatMul(m, n, k int, alpha float32, a, b gpu.Matrix, beta float32, c gpu.Matrix) (bool, error) {
	m, n, a, b, c = upright(m, n, a, b, c)
	s, ok := shapeOf(m, n, k, a, b, c)
	if !ok {
		return false, nil
	}
	if err := d.enter(); err != nil {
		return false, err
	}
	defer d.leave()
	d.blas.mu.Lock()
	defer d.blas.mu.Unlock()
	p, err := d.blas.find(d, s)
	if p == nil {
		return false, err
	}
	f, err := d.frame()
	if err != nil {
		return false, err
	}
	f.scale = [2]float32{alpha, beta}
	status := d.blas.lt.matmul(d.blas.handle, p.desc, unsafe.Pointer(&f.scale[0]), b.Mem.Addr, p.a, a.Mem.Addr, p.b,
		unsafe.Pointer(&f.scale[1]), c.Mem.Addr, p.c, c.Mem.Addr, p.c,
		unsafe.Pointer(&p.algo), d.blas.workspace, uintptr(d.blas.size), d.queue)
	d.putFrame(f)
	if err := d.blas.lt.check("Matmul", status); err != nil {
		if unusable(err) {
			p.ok = false
			return false, nil
		}
		return false, fmt.Errorf("%v: product of %d×%d and %d×%d: %w", d, m, k, k, n, err)
	}
	return true, nil
}

// HasMatMul implements [gpu.MatMulChecker].
func (d *Device) HasMatMul(m, n, k int, a, b, c gpu.Matrix) (bool, error) {
	m, n, a, b, c = upright(m, n, a, b, c)
	s, ok := shapeOf(m, n, k, a, b, c)
	if !ok {
		return false, nil
	}
	if err := d.enter(); err != nil {
		return false, err
	}
	defer d.leave()
	d.blas.mu.Lock()
	defer d.blas.mu.Unlock()
	p, err := d.blas.find(d, s)
	return p != nil, err
}

// HasProducts implements [driver.Multiplier]. It opens the library as the first MatMul does.
func (d *Device) HasProducts() (bool, error) {
	if err := d.enter(); err != nil {
		return false, err
	}
	defer d.leave()
	d.blas.mu.Lock()
	defer d.blas.mu.Unlock()
	return d.blas.open(d)
}

// upright returns a product a·b = c of m×n whose c is not transposed. If c is, that is bᵀ·aᵀ = cᵀ of n×m.
func upright(m, n int, a, b, c gpu.Matrix) (int, int, gpu.Matrix, gpu.Matrix, gpu.Matrix) {
	if !c.Trans {
		return m, n, a, b, c
	}
	a.Trans, b.Trans, c.Trans = !a.Trans, !b.Trans, false
	return n, m, b, a, c
}

// shapeOf returns the shape of a product that cuBLASLt may have.
func shapeOf(m, n, k int, a, b, c gpu.Matrix) (shape, bool) {
	s := shape{
		m: m, n: n, k: k,
		aStride: a.Stride, bStride: b.Stride, cStride: c.Stride,
		aTrans: a.Trans, bTrans: b.Trans,
		input: a.Type, output: c.Type,
		aAlign: alignment(a.Mem.Addr), bAlign: alignment(b.Mem.Addr), cAlign: alignment(c.Mem.Addr),
	}
	ok := min(m, n, k) > 0 && a.Type <= gpu.BF16 && a.Type == b.Type && (c.Type == a.Type || c.Type == gpu.F32) &&
		covers(a, m, k) && covers(b, k, n) && covers(c, m, n)
	return s, ok
}

// covers reports whether x holds rows×cols elements on the device.
func covers(x gpu.Matrix, rows, cols int) bool {
	if x.Trans {
		rows, cols = cols, rows
	}
	return x.Mem.Addr != 0 && x.Stride >= cols && x.Mem.Size >= ((rows-1)*x.Stride+cols)*x.Type.Size()
}

// alignment returns the largest power of two up to 256 that divides addr.
func alignment(addr uintptr) uint32 { return 1 << min(bits.TrailingZeros64(uint64(addr)), 8) }

// open opens the first cuBLASLt that works and allocates the workspace. It tries once, unless memory
// is short.
func (b *blas) open(d *Device) (bool, error) {
	if b.handle != 0 {
		return true, nil
	}
	if b.tried {
		return false, nil
	}
	if err := b.start(d); err != nil {
		return false, err
	}
	if b.lt == nil {
		b.tried = true
		return false, nil
	}
	size := workspaceSmall
	if d.capability >= 90 || d.capability == 0 {
		size = workspaceLarge
	}
	// Not from the pool: this may be called during a capture.
	r := d.api.memAlloc(&b.workspace, uint64(size))
	if r == success {
		b.size, b.plans = uint64(size), map[shape]*plan{}
		return true, nil
	}
	err := b.lt.check("Destroy", b.lt.destroy(b.handle))
	b.lt, b.handle = nil, 0
	if r == errOutOfMemory { // an error, because which kernels multiply must not depend on what is free
		return false, first(d.noMemory("cuMemAlloc", size), err)
	}
	return false, first(d.fail("cuMemAlloc", r), err)
}

// start makes the handle of the first library that can be used.
func (b *blas) start(d *Device) error {
	prepared := d.api.vendor.blasMemory == 0
	for lt := range d.loadLt {
		if !prepared {
			prepared = true
			done, err := d.prepareStart(d.api.vendor.blasMemory)
			if err != nil {
				return err
			}
			defer done()
		}
		err := lt.check("Create", lt.create(&b.handle))
		if err == nil {
			b.lt = lt
			return nil
		}
		slog.Warn("snug: "+d.api.vendor.kind+": "+lt.vendor.title+" cannot be used", "library", lt.name, "error", err)
		b.handle = 0
	}
	return nil
}

// startWait is how long the start of a library waits for captures to end: not for ever, because
// this goroutine may be in one. Tests change it.
var startWait = 10 * time.Second

// prepareStart waits until no device captures, and lets none begin until done. It checks that need bytes are free.
func (d *Device) prepareStart(need int) (done func(), err error) {
	const what = "the first product"
	if err := d.notCapturing(what); err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(startWait); !d.api.captures.TryLock(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("%v: %s waited for %v, and another device still captures; do it before: %w", d, what, startWait, driver.ErrDevice)
		}
	}
	done = d.api.captures.Unlock
	var free, total uint64
	if err = d.check("cuMemGetInfo", d.api.memInfo(&free, &total)); err == nil && free < uint64(need) {
		if err = d.giveBack(); err == nil {
			err = d.check("cuMemGetInfo", d.api.memInfo(&free, &total))
		}
		if err == nil && free < uint64(need) {
			err = d.noMemory("cuMemAlloc", need)
		}
	}
	if err != nil {
		done()
		return nil, err
	}
	return done, nil
}

// aligned reports whether operands and their rows begin where a library that cannot be told
// their alignment expects them.
func (b *blas) aligned(s shape) bool {
	align := b.lt.vendor.align
	if align == 0 {
		return true
	}
	for _, x := range [...]struct {
		addr   uint32
		stride int
		t      gpu.Type
	}{{s.aAlign, s.aStride, s.input}, {s.bAlign, s.bStride, s.input}, {s.cAlign, s.cStride, s.output}} {
		if int(x.addr) < align || x.stride*x.t.Size()%align != 0 {
			return false
		}
	}
	return true
}

// find returns how to compute products of a shape, or nil if the library is not there or has none of it.
func (b *blas) find(d *Device, s shape) (*plan, error) {
	if ok, err := b.open(d); !ok {
		return nil, err
	}
	if !b.aligned(s) {
		return nil, nil
	}
	p, err := b.plan(s)
	if err != nil || !p.ok {
		return nil, err
	}
	return p, nil
}

// plan returns the plan for a shape, made at first use.
func (b *blas) plan(s shape) (*plan, error) {
	if p, ok := b.plans[s]; ok {
		return p, nil
	}
	if len(b.plans) == maxPlans {
		if err := b.dropPlans(); err != nil {
			return nil, err
		}
	}
	p := &plan{}
	if err := b.fill(p, s); unusable(err) {
		p.ok = false
	} else if err != nil {
		return nil, first(err, b.drop(p))
	}
	b.plans[s] = p
	return p, nil
}

// fill describes the product to cuBLASLt and asks for an algorithm.
func (b *blas) fill(p *plan, s shape) error {
	if err := b.lt.check("MatmulDescCreate", b.lt.descCreate(&p.desc, b.lt.vendor.compute, real32F)); err != nil {
		return err
	}
	v := b.lt.vendor
	transA, transB := v.operation(s.bTrans), v.operation(s.aTrans)
	err := b.lt.check("MatmulDescSetAttribute", b.lt.descSet(p.desc, v.descTransA, &transA, 4))
	err = first(err, b.lt.check("MatmulDescSetAttribute", b.lt.descSet(p.desc, v.descTransB, &transB, 4)))
	err = first(err, b.layout(&p.a, s.input, s.k, s.n, s.bStride, s.bTrans))
	err = first(err, b.layout(&p.b, s.input, s.m, s.k, s.aStride, s.aTrans))
	err = first(err, b.layout(&p.c, s.output, s.m, s.n, s.cStride, false))
	if err != nil {
		return err
	}
	return b.choose(p, s)
}

func (v *ltVendor) operation(trans bool) int32 {
	if trans {
		return v.transposed
	}
	return v.plain
}

// layout describes a row-major matrix of rows×cols, or its transpose, whose
// memory is a column-major matrix of as many columns as there are rows.
func (b *blas) layout(layout *uintptr, t gpu.Type, rows, cols, stride int, trans bool) error {
	if trans {
		rows, cols = cols, rows
	}
	types := [...]int32{gpu.F32: real32F, gpu.F16: real16F, gpu.BF16: real16BF}
	return b.lt.check("MatrixLayoutCreate",
		b.lt.layoutCreate(layout, types[t], uint64(cols), uint64(rows), int64(stride)))
}

// choose asks for the algorithm. Parts of a sum are added in float32 only.
func (b *blas) choose(p *plan, s shape) error {
	var preference uintptr
	if err := b.lt.check("MatmulPreferenceCreate", b.lt.preferCreate(&preference)); err != nil {
		return err
	}
	defer b.lt.preferDestroy(preference)
	v := b.lt.vendor
	err := b.prefer(preference, preferWorkspace, unsafe.Pointer(&b.size), 8)
	if v.reduction > 0 {
		reduction := uint32(reductionCompute)
		err = first(err, b.prefer(preference, v.reduction, unsafe.Pointer(&reduction), 4))
	}
	if v.alignment > 0 {
		for i, align := range [...]uint32{s.bAlign, s.aAlign, s.cAlign, s.cAlign} {
			err = first(err, b.prefer(preference, v.alignment+int32(i), unsafe.Pointer(&align), 4))
		}
	}
	if err != nil {
		return err
	}
	var result ltResult
	var got int32
	status := b.lt.heuristic(b.handle, p.desc, p.a, p.b, p.c, p.c, preference, 1, &result, &got)
	if status == v.invalid {
		return nil // it has no product of these types and strides
	}
	p.algo, p.ok = [8]uint64(result[:]), status == 0 && got > 0 && uint32(result[v.status]) == 0
	return b.lt.check("MatmulAlgoGetHeuristic", status)
}

func (b *blas) prefer(preference uintptr, attribute int32, value unsafe.Pointer, size uint64) error {
	return b.lt.check("MatmulPreferenceSetAttribute", b.lt.preferSet(preference, attribute, value, size))
}

// drop destroys the descriptors of a plan.
func (b *blas) drop(p *plan) error {
	var err error
	for _, layout := range []uintptr{p.a, p.b, p.c} {
		if layout != 0 {
			err = first(err, b.lt.check("MatrixLayoutDestroy", b.lt.layoutDestroy(layout)))
		}
	}
	if p.desc != 0 {
		err = first(err, b.lt.check("MatmulDescDestroy", b.lt.descDestroy(p.desc)))
	}
	return err
}

func (b *blas) dropPlans() error {
	var err error
	for _, p := range b.plans {
		err = first(err, b.drop(p))
	}
	clear(b.plans)
	return err
}

// close frees everything; the queue is empty.
func (b *blas) close(d *Device) error {
	if b.handle == 0 {
		return nil
	}
	err := b.dropPlans()
	err = first(err, b.lt.check("Destroy", b.lt.destroy(b.handle)))
	return first(err, d.check("cuMemFree", d.api.memFree(b.workspace)))
}
