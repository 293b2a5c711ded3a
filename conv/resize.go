package conv

import (
	"fmt"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
)

// Interpolation is how a resize makes elements that x does not have.
type Interpolation uint8

const (
	// Nearest takes the element at ⌊o·Size/Out⌋, PyTorch's "nearest".
	Nearest Interpolation = iota
	// NearestExact takes the element at ⌊(o+½)·Size/Out⌋, the nearest one, as PyTorch's "nearest-exact".
	NearestExact
	// Linear is linear in each dimension: PyTorch's "linear", "bilinear" and "trilinear".
	Linear
	// Cubic is the cubic convolution of Keys 1981 in each dimension, with a = −¾, and with Antialias −½: PyTorch's "bicubic".
	Cubic
)

// String returns PyTorch's name of two dimensions, such as "bilinear".
func (i Interpolation) String() string {
	if names := [...]string{"nearest", "nearest-exact", "bilinear", "bicubic"}; int(i) < len(names) {
		return names[i]
	}
	return fmt.Sprintf("Interpolation(%d)", uint8(i))
}

// ResizeShape says what a resize is. Of the arrays the first Dims elements count, the outermost dimension first; the others are 0.
// Batch may be 0; Channels, Size and Out are at least 1. No number is above 2^28.
type ResizeShape struct {
	Batch, Channels int

	Dims int    // 1, 2 or 3
	Size [3]int // of x
	Out  [3]int // of y

	Interpolation Interpolation
	// AlignCorners takes the first and the last elements of x and y for the same points, with Linear and Cubic. Otherwise the
	// elements are squares that fill the same area, and element o of y lies at (o+½)·Size/Out − ½ in x.
	AlignCorners bool
	// Antialias makes the filter of Linear and Cubic as many times wider as y is smaller than x, so that every element of x counts:
	// PyTorch's antialias=True, which is what Pillow does to an image.
	Antialias bool

	Layout Layout // of x and y
}

// Check reports what is wrong with s. Errors wrap [snug.ErrConfig] for Dims, Layout, Interpolation and fields that exclude one
// another, else [snug.ErrShape]. The functions of this package check so themselves.
func (s ResizeShape) Check() error {
	if err := s.check(); err != nil {
		return fmt.Errorf("conv: %w", err)
	}
	return nil
}

func (s *ResizeShape) check() error {
	if err := checkFrame(s.Dims, s.Layout, s.Batch, "Channels", s.Channels); err != nil {
		return err
	}
	if s.Interpolation > Cubic {
		return fmt.Errorf("unknown Interpolation %d: %w", s.Interpolation, snug.ErrConfig)
	}
	if s.Interpolation <= NearestExact && (s.AlignCorners || s.Antialias) {
		return fmt.Errorf("AlignCorners and Antialias are for linear and cubic interpolation, not for %v: %w", s.Interpolation, snug.ErrConfig)
	}
	for i := range 3 {
		least := 0
		if i < s.Dims {
			least = 1
		}
		for _, f := range [...]field{{"Size", s.Size[i], least}, {"Out", s.Out[i], least}} {
			if err := f.check(i, s.Dims); err != nil {
				return err
			}
		}
	}
	if s.xLen() > maxLen || s.yLen() > maxLen || s.workspaceLen() > maxLen {
		return fmt.Errorf("more elements than memory can hold: %w", snug.ErrShape)
	}
	return nil
}

func (s *ResizeShape) xLen() int { return elements(s.Batch, s.Channels, s.Size, s.Dims) }
func (s *ResizeShape) yLen() int { return elements(s.Batch, s.Channels, s.Out, s.Dims) }

func (s *ResizeShape) checked(n func(*ResizeShape) int) int {
	if s.check() != nil {
		return 0
	}
	return n(s)
}

// XLen returns the elements of x, [Batch, Channels, Size…] or [Batch, Size…, Channels]; 0 if [ResizeShape.Check] reports an
// error.
func (s ResizeShape) XLen() int { return s.checked((*ResizeShape).xLen) }

// YLen returns the elements of y, as XLen those of x.
func (s ResizeShape) YLen() int { return s.checked((*ResizeShape).yLen) }

// WorkspaceLen returns the workspace of [Resize] and [ResizeBackward] in float32 elements: the weights of each dimension,
// Out times 3 of Nearest, 4 of Linear, 6 of Cubic, and as many more as the filter of Antialias is wider. It is 0 if
// [ResizeShape.Check] reports an error.
func (s ResizeShape) WorkspaceLen() int { return s.checked((*ResizeShape).workspaceLen) }

func (s *ResizeShape) workspaceLen() int {
	n := 0
	for i := range s.Dims {
		m := product(s.Out[i], 2+s.taps(i))
		if n += m; n < 0 || m > maxLen {
			return math.MaxInt
		}
	}
	return n
}

// reach is the support of a filter on each side of its centre.
func (s *ResizeShape) reach() float64 {
	if s.Interpolation == Cubic {
		return 2
	}
	return 1
}

// taps returns the most elements of x that an element of y is made of in dimension i.
func (s *ResizeShape) taps(i int) int {
	switch {
	case s.Interpolation <= NearestExact:
		return 1
	case !s.Antialias:
		return min(int(2*s.reach()), s.Size[i])
	}
	return min(2*int(math.Ceil(s.reach()*max(s.scale(i), 1)))+1, s.Size[i])
}

// scale returns the elements of x for one of y.
func (s *ResizeShape) scale(i int) float64 {
	switch {
	case !s.AlignCorners:
		return float64(s.Size[i]) / float64(s.Out[i])
	case s.Out[i] == 1:
		return 0
	}
	return float64(s.Size[i]-1) / float64(s.Out[i]-1)
}

// Resize computes y, the x of another size:
//
//	y[b, c, o] = Σ over i of W[o, i] · x[b, c, i],   W[o, i] = the product over the dimensions d of w_d[o_d, i_d]
//
// with the weights w that the Interpolation gives. Elements beyond the border count as those at the border; with Antialias they do
// not count, and the weights of each o are divided by their sum.
//
// x has [ResizeShape.XLen] elements, y [ResizeShape.YLen], and ws at least [ResizeShape.WorkspaceLen]. y and ws may not overlap
// another operand. Sums are float32.
func Resize[V snug.Vector, L snug.Vector32](y, x V, s ResizeShape, ws L) error {
	job := resizeJob{y: snug.ViewOf(y), x: snug.ViewOf(x), ws: snug.ViewOf(ws), shape: s}
	return job.start("Resize", operand{"y", job.y}, operand{"x", job.x})
}

// ResizeBackward computes the gradient of [Resize]'s x from the gradient dy of its y:
//
//	dx[b, c, i] ← Σ over o of W[o, i] · dy[b, c, o]
//
// where ← applies into, see [snug.Into]. Lengths are those of Resize. dx and ws may not overlap another operand.
func ResizeBackward[V snug.Vector, L snug.Vector32](dx, dy V, s ResizeShape, into snug.Into, ws L) error {
	job := resizeJob{y: snug.ViewOf(dy), x: snug.ViewOf(dx), ws: snug.ViewOf(ws), shape: s, into: into, backward: true}
	return job.start("ResizeBackward", operand{"dx", job.x}, operand{"dy", job.y})
}

type resizeJob struct {
	y, x, ws snug.View // of a backward pass: their gradients

	shape    ResizeShape
	into     snug.Into
	backward bool
}

func (*resizeJob) Kernel() string { return "conv.resize" }

func (j *resizeJob) Operands(yield func(*driver.Mem)) { device.Each(yield, &j.y, &j.x, &j.ws) }

// start checks a job and runs it.
func (j *resizeJob) start(op string, to, from operand) (err error) {
	s := &j.shape
	if err := s.check(); err != nil {
		return fmt.Errorf("conv: %s: %w", op, err)
	}
	if j.into.Alpha, j.into.Beta, err = j.into.Factors(); err != nil {
		return fmt.Errorf("conv: %s: %w", op, err)
	}
	if err := checkFloats(op, from, to); err != nil {
		return err
	}
	if err := checkF32(op, operand{"ws", j.ws}); err != nil {
		return err
	}
	toLen, fromLen := s.yLen(), s.xLen()
	if j.backward {
		toLen, fromLen = fromLen, toLen
	}
	if err := checkLens(op, length{from.name, from.view, fromLen}, length{to.name, to.view, toLen}); err != nil {
		return err
	}
	if n := s.workspaceLen(); j.ws.Len() < n {
		return fmt.Errorf("conv: %s: ws has %d elements, want at least %d: %w", op, j.ws.Len(), n, snug.ErrShape)
	}
	dev, err := commonDevice(op, to.view, from.view, j.ws)
	if err != nil {
		return err
	}
	if err := checkApart(op, to, from, operand{"ws", j.ws}); err != nil {
		return err
	}
	if err := checkApart(op, operand{"ws", j.ws}, from); err != nil {
		return err
	}
	if !dev.IsCPU() && j.x.Len() > 0 {
		if err := j.upload(); err != nil {
			return fmt.Errorf("conv: %s: the weights: %w", op, err)
		}
	}
	return device.Run(dev, *j)
}
