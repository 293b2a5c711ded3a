package qlora

import (
	"errors"
	"fmt"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/fault"
)

// denseTile is the number of float32 elements that a [Dense] works on at a time.
const denseTile = 1 << 18

// Dense multiplies by a frozen matrix of floats, as a [Linear] does by one in few bits:
//
//	y  = x·Wᵀ
//	dx = dy·W
//
// for a [DoRA], which needs the norms of its rows, and for merging. The matrix may be transposed, [in, out], as Conv1D
// of GPT-2 has it. A Dense is not safe for concurrent use.
type Dense struct {
	w          snug.View
	out, in    int
	transposed bool
	work       *denseWork // nil when d is closed
	shares     bool
}

// denseWork is the memory that several Dense share.
type denseWork struct {
	tile, ones    snug.View // float32
	freeT, freeO  func() error
	norms, scales []float32 // on the host, of another device
}

// NewDense returns the products by w, [out, in] elements of any floating-point type, or [in, out] if transposed.
// Activations have its type. It takes a tile of 1 MiB, or of a row or a column if that is more, and of a transposed
// matrix 4 bytes an output. The Dense does not own w.
//
// Errors: [snug.ErrShape] for a w of another length or out or in below 1, [snug.ErrDType], and
// [snug.ErrNoMemory].
func NewDense(w snug.View, out, in int, transposed bool) (*Dense, error) {
	d := &Dense{w: w, out: out, in: in, transposed: transposed, work: &denseWork{}}
	if err := d.make(); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// Share returns the products by another matrix with the memory of d, which grows to what the largest
// needs. Only one of them may be in use at a time. The memory is freed when d is closed, and the
// others cannot be used afterwards. Errors are the errors of [NewDense], and [snug.ErrDevice] for a
// matrix on another device.
func (d *Dense) Share(w snug.View, out, in int, transposed bool) (*Dense, error) {
	if err := d.usable(); err != nil {
		return nil, fmt.Errorf("qlora: dense: %w", err)
	}
	if w.Device() != d.w.Device() {
		return nil, fmt.Errorf("qlora: dense: a matrix on %s and a tile on %s: %w", w.Device().Name(), d.w.Device().Name(), snug.ErrDevice)
	}
	s := &Dense{w: w, out: out, in: in, transposed: transposed, work: d.work, shares: true}
	return s, s.make()
}

// make checks d and makes its memory.
func (d *Dense) make() error {
	switch {
	case d.out < 1 || d.in < 1 || d.w.Len() != times(d.out, d.in):
		return fmt.Errorf("qlora: dense: a matrix of %d elements, want %d×%d: %w", d.w.Len(), d.out, d.in, snug.ErrShape)
	case !d.w.DType().IsFloat():
		return fmt.Errorf("qlora: dense: a matrix of %s, want f32, f16 or bf16: %w", d.w.DType(), snug.ErrDType)
	}
	_, cols := d.layout()
	if err := d.grow(&d.work.tile, &d.work.freeT, max(cols, min(denseTile, d.w.Len()))); err != nil || !d.transposed {
		return err
	}
	if n := d.work.ones.Len(); n >= d.out {
		return nil
	}
	if err := d.grow(&d.work.ones, &d.work.freeO, d.out); err != nil {
		return err
	}
	ones := make([]float32, d.out)
	for i := range ones {
		ones[i] = 1
	}
	return snug.Copy(d.work.ones, ones)
}

// layout returns the rows and columns of the matrix as it lies.
func (d *Dense) layout() (rows, cols int) {
	if d.transposed {
		return d.in, d.out
	}
	return d.out, d.in
}

// grow makes a vector of float32 hold n elements.
func (d *Dense) grow(v *snug.View, free *func() error, n int) error {
	if v.Len() >= n {
		return nil
	}
	made, freeMade, err := snug.MakeView(d.w.Device(), snug.F32, n)
	if err != nil {
		return fmt.Errorf("qlora: dense: %w", err)
	}
	if *free != nil {
		err = (*free)()
	}
	*v, *free = made, freeMade
	return err
}

// Bytes returns the memory of the tile, shared or not.
func (d *Dense) Bytes() int64 {
	if d == nil || d.work == nil {
		return 0
	}
	return int64(d.work.tile.Bytes() + d.work.ones.Bytes())
}

// Close frees the memory of d, unless it is another's. d cannot be used afterwards. Closing twice does
// nothing.
func (d *Dense) Close() (err error) {
	if d == nil || d.work == nil {
		return nil
	}
	w := d.work
	if d.work = nil; d.shares {
		return nil
	}
	for _, free := range []func() error{w.freeT, w.freeO} {
		if free != nil {
			err = errors.Join(err, free())
		}
	}
	*w = denseWork{}
	return err
}

func (d *Dense) usable() error {
	if d == nil || d.work == nil || d.work.freeT == nil {
		return fmt.Errorf("the Dense is nil or closed, or was not made by NewDense: %w", snug.ErrConfig)
	}
	return nil
}

func (d *Dense) describe() shape { return shape{d.out, d.in, d.w.DType(), d.w.Device(), d.w} }

// Forward computes y = x·Wᵀ + beta·y for x of [rows, in] and y of [rows, out] elements by one
// [amp.MatMul], whose types and errors it has. It also returns [snug.ErrShape].
func (d *Dense) Forward(y, x snug.View, beta float32) error {
	if err := d.usable(); err != nil {
		return fmt.Errorf("qlora: dense: forward: %w", err)
	}
	return d.product("forward", y, d.out, x, d.in, beta, !d.transposed)
}

// Backward computes dx = dy·W + beta·dx. Errors are the errors of Forward.
func (d *Dense) Backward(dx, dy snug.View, beta float32) error {
	if err := d.usable(); err != nil {
		return fmt.Errorf("qlora: dense: backward: %w", err)
	}
	return d.product("backward", dx, d.in, dy, d.out, beta, d.transposed)
}

func (d *Dense) product(op string, y snug.View, n int, x snug.View, k int, beta float32, trans bool) error {
	rows := x.Len() / k
	if rows*k != x.Len() || y.Len() != times(rows, n) {
		return fmt.Errorf("qlora: dense: %s: %d elements from %d, want rows of %d from rows of %d: %w", op, y.Len(), x.Len(), n, k, snug.ErrShape)
	}
	if rows == 0 {
		return nil
	}
	c := amp.MatMulOptions{M: rows, N: n, K: k, TransB: trans, Into: snug.Into{Beta: beta}}
	return fault.Of(amp.MatMul(y, x, d.w, c), "qlora: dense", op)
}

// Norms writes the norms of the rows of W + s·B·A, or of W if a is nil, to norms, [out] of f32 on the matrix's device,
// as [Linear.Norms] does. It adds in float32, a tile at a time; the squares of a transposed matrix are also summed in
// float32 from tile to tile. Errors, with nothing written, are the errors of Linear.Norms.
func (d *Dense) Norms(norms snug.View, a *LoRA) error {
	if err := checkNorms(d, norms, a); err != nil {
		return err
	}
	return d.norms(norms, snug.View{}, a)
}

func (d *Dense) norms(norms, scale snug.View, a *LoRA) error {
	err := d.each(a, func(lo, hi int, rows snug.View) error {
		if d.transposed {
			return device.Run(d.w.Device(), dotsJob{norms, part(d.work.ones, 0, d.out), rows, rows, 1, float32(min(1, lo))})
		}
		return device.Run(d.w.Device(), d.normsOf(norms, scale, a, lo, hi, rows))
	})
	if err != nil || !d.transposed {
		return err
	}
	return d.roots(norms, scale, a)
}

// normsOf returns the job that computes the norms of rows lo to hi-1, and their factors unless scale is
// empty.
func (d *Dense) normsOf(norms, scale snug.View, a *LoRA, lo, hi int, rows snug.View) normsJob {
	j := normsJob{norms: part(norms, lo, hi), x: rows, cols: d.in}
	if scale.Len() > 0 {
		j.scale, j.magnitude = part(scale, lo, hi), part(a.Magnitude, lo, hi)
	}
	return j
}

// roots turns squares into norms, on the host, and divides magnitudes by them.
func (d *Dense) roots(norms, scale snug.View, a *LoRA) error {
	n, err := d.host(&d.work.norms, norms)
	if err != nil {
		return err
	}
	for i, square := range n {
		n[i] = float32(math.Sqrt(float64(square)))
	}
	if err := d.back(norms, n); err != nil || scale.Len() == 0 {
		return err
	}
	if err := snug.Copy(scale, a.Magnitude); err != nil {
		return err
	}
	c, err := d.host(&d.work.scales, scale)
	if err != nil {
		return err
	}
	for i := range c {
		if n[i] == 0 {
			c[i] = 0
		} else {
			c[i] /= n[i]
		}
	}
	return d.back(scale, c)
}

// host returns the elements of a vector on the host: the vector itself, or a copy in buffer.
func (d *Dense) host(buffer *[]float32, v snug.View) ([]float32, error) {
	if d.w.Device().IsCPU() {
		return v.Float32s(), nil
	}
	if len(*buffer) < v.Len() {
		*buffer = make([]float32, v.Len())
	}
	copied := (*buffer)[:v.Len()]
	return copied, snug.Copy(copied, v)
}

// back copies what host returned to where it was.
func (d *Dense) back(v snug.View, values []float32) error {
	if d.w.Device().IsCPU() {
		return nil
	}
	return snug.Copy(v, values)
}

// each passes do the rows of W + s·B·A, or of W if a is nil, as they lie, a tile in float32 after the other.
func (d *Dense) each(a *LoRA, do func(lo, hi int, rows snug.View) error) error {
	rows, cols := d.layout()
	step := max(1, d.work.tile.Len()/cols)
	for lo := 0; lo < rows; lo += step {
		hi := min(lo+step, rows)
		tile := part(d.work.tile, 0, (hi-lo)*cols)
		err := amp.Cast(tile, part(d.w, lo*cols, hi*cols))
		switch {
		case err != nil || a == nil:
		case d.transposed: // the transposed product, with columns lo to hi-1 of A
			err = amp.MatMul(tile, part(a.A, lo, a.A.Len()), a.B, amp.MatMulOptions{
				M: hi - lo, N: cols, K: a.Rank, TransA: true, TransB: true, LDA: d.in, Into: snug.Into{Alpha: a.Scale, Beta: 1}})
		default:
			err = a.addTo(tile, lo, hi)
		}
		if err == nil {
			err = do(lo, hi, tile)
		}
		if err != nil {
			return fmt.Errorf("qlora: dense: %w", err)
		}
	}
	return nil
}

// Merge writes W + s·B·A, the matrix with its adapter, to dst, which has the length of the matrix and
// lies as it does, of any floating-point type on its device. If a has a Magnitude, each row is scaled
// to that norm, as in [DoRA], which takes 8 bytes an output meanwhile. It adds in float32, a tile at a
// time, and rounds once. Its memory, the lost updates and its errors are those of package function [Merge].
func (d *Dense) Merge(dst snug.View, a *LoRA) (lost amp.LostUpdates, err error) {
	if err := d.checkMerge(dst, a); err != nil {
		return lost, err
	}
	var n, c snug.View
	if a.Magnitude.Len() > 0 {
		both, free, made := snug.MakeView(d.w.Device(), snug.F32, 2*d.out)
		if made != nil {
			return lost, fmt.Errorf("qlora: dense: merge: %w", made)
		}
		defer func() { err = errors.Join(err, free()) }()
		n, c = part(both, 0, d.out), part(both, d.out, 2*d.out)
		if err := d.norms(n, c, a); err != nil {
			return lost, err
		}
	}
	_, cols := d.layout()
	count, err := newMergeCount(d.w.Device(), dst.DType(), d.work.tile.Len())
	if err != nil {
		return lost, err
	}
	defer func() { err = errors.Join(err, count.close()) }()
	err = d.each(a, func(lo, hi int, rows snug.View) error {
		if err := count.begin(part(d.w, lo*cols, hi*cols)); err != nil {
			return err
		}
		if c.Len() > 0 {
			j := blendJob{dst: rows, src: rows, scale: c, cols: cols}
			if !d.transposed {
				j.scale, j.byRow = part(c, lo, hi), true
			}
			if err := device.Run(d.w.Device(), j); err != nil {
				return err
			}
		}
		return count.end(part(dst, lo*cols, hi*cols), rows, lo*cols)
	})
	return count.LostUpdates, err
}

func (d *Dense) checkMerge(dst snug.View, a *LoRA) error {
	if a == nil {
		return fmt.Errorf("qlora: dense: merge: the adapter is nil: %w", snug.ErrConfig)
	}
	if err := d.usable(); err != nil {
		return fmt.Errorf("qlora: dense: merge: %w", err)
	}
	if _, err := a.check("merge", part(a.A, 0, 0), snug.View{}, snug.View{}); err != nil {
		return err
	}
	switch {
	case a.In != d.in || a.Out != d.out:
		return fmt.Errorf("qlora: dense: merge: an adapter of %d to %d, a matrix of %d to %d: %w", a.In, a.Out, d.in, d.out, snug.ErrShape)
	case dst.Len() != d.w.Len():
		return fmt.Errorf("qlora: dense: merge: dst has %d elements, the matrix %d: %w", dst.Len(), d.w.Len(), snug.ErrShape)
	case !dst.DType().IsFloat() || a.A.DType() != snug.F32 || a.B.DType() != snug.F32:
		return fmt.Errorf("qlora: dense: merge: dst holds %s, A %s and B %s, want f32, f16 or bf16, and f32: %w", dst.DType(), a.A.DType(), a.B.DType(), snug.ErrDType)
	}
	if _, err := snug.CommonDevice(dst, d.w, a.A, a.B); err != nil {
		return fmt.Errorf("qlora: dense: merge: %w", err)
	}
	return nil
}
