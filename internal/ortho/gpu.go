//go:build cuda || hip || metal || emu

package ortho

import (
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/gemm"
	"github.com/snug-ml/snug/internal/gpu"
)

var kernels = gpu.Module{Name: "ortho"}

const (
	threads = 256
	// perPart is about how many elements each part of the sum of squares covers, and
	// maxParts how many parts there are at most: their 8 bytes each fit in the scratch.
	perPart  = 1 << 12
	maxParts = 1 << 9
	// maxRows bounds the second side of a grid.
	maxRows = 1 << 15
)

func (j *job) Grids(q gpu.Launcher) error {
	k := min(j.rows, j.cols)
	if k == 0 {
		return nil
	}
	work := *device.Mem(&j.work)
	m := queued{q: q, job: j, k: k, x: *device.Mem(&j.x), b: floats(work, 0, k*k), gram: floats(work, k*k, strip(j.rows, j.cols)*k)}
	if err := m.normalize(work); err != nil {
		return err
	}
	for range steps {
		if err := m.polynomial(); err != nil {
			return err
		}
		if err := m.multiply(); err != nil {
			return err
		}
	}
	return nil
}

// floats returns n elements of m from number lo on.
func floats(m driver.Mem, lo, n int) driver.Mem { return m.Slice(4*lo, 4*n) }

// queued is [matrix] on a device.
type queued struct {
	q gpu.Launcher
	*job
	k          int
	x, b, gram driver.Mem
}

// launch queues a kernel of two operands.
func (m *queued) launch(name string, blocks [3]int, dst, src driver.Mem, params []byte) error {
	return kernels.Launch(m.q, name, blocks, threads, params, dst, src)
}

// normalize divides x by its norm. The parts of the sum lie in the scratch.
func (m *queued) normalize(work driver.Mem) error {
	n := m.rows * m.cols
	parts := min(gpu.CeilDiv(n, perPart), maxParts)
	sum := struct{ n uint64 }{uint64(n)}
	if err := m.launch("ortho_squares", [3]int{parts, 1, 1}, floats(work, 0, 2*parts), m.x, gpu.Params(&sum)); err != nil {
		return err
	}
	scale := struct {
		n        uint64
		parts    uint32
		smallest float32
	}{uint64(n), uint32(parts), eps}
	return m.launch("ortho_scale", gpu.Grid(n, 4*threads), m.x, floats(work, 0, 2*parts), gpu.Params(&scale))
}

// square is a k×k operand.
func (m *queued) square(x driver.Mem) gpu.Matrix {
	return gpu.Matrix{Mem: floats(x, 0, m.k*m.k), Stride: m.k}
}

func (m *queued) polynomial() error {
	k := m.k
	left := gpu.Matrix{Mem: m.x, Stride: m.cols}
	right := left
	if m.rows > m.cols {
		left.Trans = true
	} else {
		right.Trans = true
	}
	a, b := m.square(m.gram), m.square(m.b)
	if err := gemm.Grids(m.q, k, k, max(m.rows, m.cols), 1, left, right, 0, a); err != nil {
		return err
	}
	start := struct {
		k                uint64
		factor1, factor3 float32
	}{uint64(k), factor1, factor3}
	if err := m.launch("ortho_start", gpu.Grid(k*k, threads), b.Mem, a.Mem, gpu.Params(&start)); err != nil {
		return err
	}
	return gemm.Grids(m.q, k, k, k, factor5, a, a, 1, b)
}

func (m *queued) multiply() error {
	k, width, n := m.k, strip(m.rows, m.cols), max(m.rows, m.cols)
	for lo := 0; lo < n; lo += width {
		w := min(width, n-lo)
		product := floats(m.gram, 0, w*k)
		var err error
		if m.rows > m.cols {
			err = m.lines(lo, w, product)
		} else {
			err = m.columns(lo, w, product)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// lines multiplies w rows of a tall matrix from row lo on.
func (m *queued) lines(lo, w int, product driver.Mem) error {
	k, x := m.k, floats(m.x, lo*m.k, w*m.k)
	if err := gemm.Grids(m.q, w, k, k, 1, gpu.Matrix{Mem: x, Stride: k}, m.square(m.b), 0, gpu.Matrix{Mem: product, Stride: k}); err != nil {
		return err
	}
	return m.q.Copy(x, product)
}

// columns multiplies w columns of a wide matrix from column lo on.
func (m *queued) columns(lo, w int, product driver.Mem) error {
	k, n := m.k, m.cols
	x := floats(m.x, lo, (k-1)*n+w)
	if err := gemm.Grids(m.q, k, w, k, 1, m.square(m.b), gpu.Matrix{Mem: x, Stride: n}, 0, gpu.Matrix{Mem: product, Stride: w}); err != nil {
		return err
	}
	shape := struct{ rows, cols, stride uint64 }{uint64(k), uint64(w), uint64(n)}
	blocks := [3]int{gpu.CeilDiv(w, threads), min(k, maxRows), 1}
	return m.launch("ortho_copy", blocks, x, product, gpu.Params(&shape))
}
