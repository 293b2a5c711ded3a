//go:build metal

package metal

import (
	"fmt"

	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/gpu"
)

const (
	// maxProducts is how many kernels of MPSMatrixMultiplication are kept.
	maxProducts = 128
	// maxReach bounds the bytes that MPSMatrixMultiplication counts in signed 32
	// bits: (m + 2k) rows of the result. Beyond it M1 and M2 are reported to
	// write rows of NaN.
	maxReach = 1<<31 - 1

	// maxMACs bounds the multiplications of one command, by its rows, of which it computes
	// stepRows or a multiple: 35 ms at 1 TFLOP/s. Pieces depend on the shape alone, because the
	// library may add in another order for another number of rows.
	maxMACs  = 1 << 34
	stepRows = 64
)

// operand is a matrix as MPSMatrix takes it.
type operand struct {
	part
	rows, columns, rowBytes int // as they lie in memory
	elem                    int // bytes of an element
	dataType                uint32
}

// MatMul queues c = alpha·a·b + beta·c with MPSMatrixMultiplication. It takes
// a and b both of F32 or both of F16, and c of F32, not transposed, none of
// them empty or so long that the library's offsets overflow.
func (d *device) MatMul(m, n, k int, alpha float32, a, b gpu.Matrix, beta float32, c gpu.Matrix) (bool, error) {
	if m < 1 || n < 1 || k < 1 || a.Type != b.Type || c.Type != gpu.F32 || c.Trans {
		return false, nil
	}
	pool, err := d.enter()
	if err != nil {
		return false, err
	}
	defer d.leave(pool)
	if !d.api.canMultiply(d.dev) {
		return false, nil
	}
	var all [3]operand
	for i, x := range [3]struct {
		gpu.Matrix
		rows, columns int
	}{{a, m, k}, {b, k, n}, {c, m, n}} {
		var ok bool
		if all[i], ok, err = d.operand(x.Matrix, x.rows, x.columns); !ok || err != nil {
			return false, err
		}
	}
	if rowBytes := all[2].rowBytes; m > maxReach/rowBytes || k > (maxReach/rowBytes-m)/2 {
		return false, nil
	}
	for at, rows := 0, pieceRows(n, k); at < m; at += rows {
		p := product{a.Trans, b.Trans, min(rows, m-at), n, k, alpha, beta}
		if done, err := d.multiplyRows(p, all[0].lines(a.Trans, at, p.m), all[1], all[2].lines(false, at, p.m)); !done || err != nil {
			if at > 0 && err == nil {
				err = fmt.Errorf("metal: the library made a part of a product only: %w", driver.ErrDevice)
			}
			return false, err
		}
	}
	return true, nil
}

// pieceRows returns how many rows of a result one command computes.
func pieceRows(n, k int) int { return max(1, maxMACs/n/k/stepRows) * stepRows }

// multiplyRows queues a product whose operands are rows of a caller's.
func (d *device) multiplyRows(p product, a, b, c operand) (bool, error) {
	kernel := d.product(p)
	if kernel == 0 {
		return false, nil
	}
	return d.encodeProduct(kernel, [3]operand{a, b, c}, p.m*p.n*p.k)
}

// lines returns n rows of an operand from row at on, or columns if it lies transposed.
func (x operand) lines(trans bool, at, n int) operand {
	if trans {
		x.columns = n
		x.off += at * x.elem
	} else {
		x.rows = n
		x.off += at * x.rowBytes
	}
	return x
}

// operand returns x, whose op has rows·columns elements, and false if the
// library does not take it.
func (d *device) operand(x gpu.Matrix, rows, columns int) (operand, bool, error) {
	var elem int
	var dataType uint32
	switch x.Type {
	case gpu.F32:
		elem, dataType = 4, dataFloat32
	case gpu.F16:
		elem, dataType = 2, dataFloat16
	default:
		return operand{}, false, nil
	}
	if x.Trans {
		rows, columns = columns, rows
	}
	if x.Stride < columns || x.Stride > maxReach/elem/rows {
		return operand{}, false, nil
	}
	rowBytes := x.Stride * elem
	if need := (rows-1)*rowBytes + columns*elem; x.Mem.Size < need {
		return operand{}, false, fmt.Errorf("metal: a matrix of %d×%d elements in rows of %d bytes needs %d bytes, has %d: %w",
			rows, columns, rowBytes, need, x.Mem.Size, driver.ErrDevice)
	}
	p, err := d.buffers.find(x.Mem)
	if err != nil {
		return operand{}, false, err
	}
	return operand{p, rows, columns, rowBytes, elem, dataType}, p.off%elem == 0, nil
}

// product returns the library's kernel, or 0.
func (d *device) product(p product) object {
	if kernel, ok := d.products[p]; ok {
		return kernel
	}
	if len(d.products) >= maxProducts {
		for _, kernel := range d.products {
			d.api.release(kernel)
		}
		clear(d.products)
	}
	kernel := d.api.newProduct(d.dev, p)
	if kernel != 0 {
		d.products[p] = kernel
	}
	return kernel
}

// encodeProduct queues a product of so many multiplications. The library opens encoders of its own.
func (d *device) encodeProduct(kernel object, all [3]operand, macs int) (bool, error) {
	var matrices [3]object
	for i, x := range all {
		matrices[i] = d.api.newMatrix(x.object, x.off, x.rows, x.columns, x.rowBytes, x.dataType)
		if matrices[i] == 0 {
			return false, nil
		}
		defer d.api.release(matrices[i])
	}
	d.work.endEncoding()
	if err := d.work.begin(); err != nil {
		return false, err
	}
	d.api.encodeProduct(kernel, d.work.buffer, matrices[0], matrices[1], matrices[2])
	d.uses(&d.work, all[0].part, all[1].part, all[2].part)
	d.counted(&d.work, &d.multiply, macs)
	return true, nil
}
