//go:build metal

package metal

import (
	"errors"
	"fmt"

	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/gpu"
)

const (
	maxOperands = 29   // the buffer indices below those of the piece and the parameters
	pieceIndex  = 29   // as SNUG_POSITION of the dialect says
	paramsIndex = 30   // as PARAMS of the dialect says
	maxParams   = 4096 // bytes that a command carries
	simdWidth   = 32   // WARP of the dialect
)

// kernels is what was compiled so far.
type kernels struct {
	libraries map[*gpu.Module]library
	pipelines map[kernelName]*pipeline
}

// library is a compiled module, or why it does not compile.
type library struct {
	object object
	err    error
}

type kernelName struct {
	module *gpu.Module
	name   string
}

// pipeline is a kernel that can be launched.
type pipeline struct {
	object     object
	maxThreads int // of a threadgroup
	costs      costs
}

func (k *kernels) release(a *api) {
	for _, l := range k.libraries {
		if l.object != 0 {
			a.release(l.object)
		}
	}
	for _, p := range k.pipelines {
		a.release(p.object)
	}
	*k = kernels{}
}

// LaunchGrid queues one grid of threads.
func (d *device) LaunchGrid(l *gpu.Launch) error {
	if err := check(l); err != nil {
		return err
	}
	pool, err := d.enter()
	if err != nil {
		return err
	}
	defer d.leave(pool)
	k, err := d.pipeline(l.Module, l.Func)
	if err != nil {
		return err
	}
	if l.Threads > k.maxThreads {
		return fmt.Errorf("metal: kernel %s: %d threads in a block, the GPU takes %d: %w", l.Func, l.Threads, k.maxThreads, driver.ErrDevice)
	}
	var operands [maxOperands]part
	for i, m := range l.Operands {
		if m.Size == 0 || m.Addr == 0 {
			continue // bound to the empty buffer
		}
		if operands[i], err = d.buffers.find(m); err != nil {
			return fmt.Errorf("kernel %s: operand %d: %w", l.Func, i, err)
		}
	}
	d.launches++
	return d.encodeGrid(&d.work, k, operands[:len(l.Operands)], l.Params, l.Blocks, l.Threads)
}

// Launches implements [driver.LaunchCounter]. A grid in pieces is one.
func (d *device) Launches() int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.launches
}

// check returns an error for a launch that no GPU of this kind takes.
func check(l *gpu.Launch) error {
	var what string
	switch {
	case l.Module == nil || l.Module.Source == nil:
		return fmt.Errorf("metal: kernel %s: its package has no Metal source in this build: %w", l.Func, driver.ErrNotBuilt)
	case min(l.Blocks[0], l.Blocks[1], l.Blocks[2]) < 1:
		what = fmt.Sprintf("%d blocks, want at least 1 each", l.Blocks)
	case l.Threads < simdWidth || l.Threads > 1024 || l.Threads%simdWidth != 0:
		what = fmt.Sprintf("%d threads in a block, want a multiple of 32 up to 1024", l.Threads)
	case len(l.Operands) > maxOperands:
		what = fmt.Sprintf("%d operands, want at most %d", len(l.Operands), maxOperands)
	case len(l.Params) > maxParams:
		what = fmt.Sprintf("%d bytes of parameters, want at most %d", len(l.Params), maxParams)
	default:
		return nil
	}
	return fmt.Errorf("metal: kernel %s: %s: %w", l.Func, what, driver.ErrDevice)
}

// encodeGrid queues a launch on s, in pieces that are worth at most budget. Of a large grid of
// unknown cost it runs and measures one piece first; then the host waits, as it does at the first
// use of a kernel for the compiler.
func (d *device) encodeGrid(s *stream, k *pipeline, operands []part, params []byte, grid [3]int, threads int) error {
	cost := k.costs.of(operands)
	total := grid[0] * grid[1] * grid[2]
	for at := 0; at < total; {
		limit := probe
		if cost.seconds > 0 {
			limit = int(min(float64(total), budget/cost.seconds))
		}
		measure := cost.seconds == 0 && total > probe
		if measure {
			d.commit(s)
		}
		first, extent := next(grid, at, limit)
		if err := d.encodeKernel(s, k, operands, params, grid, first, extent, threads); err != nil {
			return err
		}
		blocks := extent[0] * extent[1] * extent[2]
		d.counted(s, cost, blocks)
		if measure {
			d.commit(s)
			d.drain(s)
			if err := d.takeError(); err != nil {
				return err
			}
			if cost.seconds == 0 { // the system does not measure
				cost.seconds = guess / probe
			}
		}
		at += blocks
	}
	return nil
}

// encodeKernel encodes a piece of a launch.
func (d *device) encodeKernel(s *stream, k *pipeline, operands []part, params []byte, grid, first, extent [3]int, threads int) error {
	if err := s.encode(false); err != nil {
		return err
	}
	a, enc := d.api, s.encoder
	if s.pipeline != k.object {
		a.setPipeline(enc, k.object)
		s.pipeline = k.object
	}
	for i, p := range operands {
		if p.buffer == nil {
			a.setBuffer(enc, d.empty, 0, i)
			continue
		}
		a.setBuffer(enc, p.object, p.off, i)
		d.uses(s, p)
	}
	if len(params) > 0 {
		a.setBytes(enc, params, paramsIndex)
	}
	s.piece = piece{words(first), words(grid)}
	a.setBytes(enc, gpu.Params(&s.piece), pieceIndex)
	a.dispatch(enc, size{uint64(extent[0]), uint64(extent[1]), uint64(extent[2])}, size{uint64(threads), 1, 1})
	return nil
}

func words(x [3]int) [3]uint32 { return [3]uint32{uint32(x[0]), uint32(x[1]), uint32(x[2])} }

// pipeline returns a kernel of a module, compiled at its first use.
func (d *device) pipeline(m *gpu.Module, name string) (*pipeline, error) {
	key := kernelName{m, name}
	if p, ok := d.kernels.pipelines[key]; ok {
		return p, nil
	}
	lib, ok := d.kernels.libraries[m]
	if !ok {
		lib.object, lib.err = d.compile(m)
		d.kernels.libraries[m] = lib
	}
	if lib.err != nil {
		return nil, lib.err
	}
	p, err := d.link(lib.object, name)
	if err != nil {
		return nil, fmt.Errorf("metal: kernel %s of %s: %w: %w", name, m.Name, err, driver.ErrDevice)
	}
	d.kernels.pipelines[key] = p
	return p, nil
}

// compile returns the library of a module.
func (d *device) compile(m *gpu.Module) (object, error) {
	text, err := m.Text(m.Name + ".metal")
	if err != nil {
		return 0, fmt.Errorf("metal: kernels of %s: %w: %w", m.Name, err, driver.ErrNotBuilt)
	}
	lib, message := d.api.newLibrary(d.dev, text, compileOptions{d.language, mathSafe, functionsPrecise})
	if lib == 0 {
		return 0, fmt.Errorf("metal: kernels of %s do not compile as Metal %v: %s: %w", m.Name, d.language, message, driver.ErrDevice)
	}
	return lib, nil
}

// link returns a kernel of a library.
func (d *device) link(lib object, name string) (*pipeline, error) {
	function := d.api.newFunction(lib, name)
	if function == 0 {
		return nil, errors.New("there is no such function")
	}
	defer d.api.release(function)
	obj, message := d.api.newPipeline(d.dev, function)
	if obj == 0 {
		return nil, errors.New(message)
	}
	if lanes := d.api.lanes(obj); lanes != simdWidth {
		d.api.release(obj)
		return nil, fmt.Errorf("%d lanes in a SIMD-group, want %d", lanes, simdWidth)
	}
	return &pipeline{object: obj, maxThreads: d.api.maxThreads(obj)}, nil
}
