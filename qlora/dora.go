package qlora

import (
	"errors"
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/fault"
)

// Matrix is a frozen weight W of [out, in] elements on one device: a [Linear], which holds it in few
// bits, or a [Dense], which holds it in floats. A [DoRA] scales its rows.
type Matrix interface {
	// Forward computes y = x·Wᵀ + beta·y.
	Forward(y, x snug.View, beta float32) error
	// Backward computes dx = dy·W + beta·dx.
	Backward(dx, dy snug.View, beta float32) error
	// Norms writes the norms of the rows of W + s·B·A, or of W if a is nil.
	Norms(norms snug.View, a *LoRA) error

	usable() error
	describe() shape
	norms(norms, scale snug.View, a *LoRA) error
}

// shape is what checks need to know of a Matrix.
type shape struct {
	out, in int
	dt      snug.DType // of activations
	dev     *snug.Device
	at      snug.View // a vector on it, or an empty one
}

func (s shape) dims() []int { return []int{s.out, s.in} }

// DoRA is a [Matrix] with a [LoRA] that adapts the direction of each row of the weight. m,
// the trained magnitude, sets the length of each row:
//
//	y = c ⊙ h,  h = x·Wᵀ + s·(x·Aᵀ)·Bᵀ,  c = m/n,  n = the norms of the rows of W + s·B·A
//
// Liu et al. 2024, "DoRA: Weight-Decomposed Low-Rank Adaptation", arXiv:2402.09353. As in
// section 4.3 of the paper and in HuggingFace's PEFT, n is a constant in the backward pass.
// A row of zeros stays zero. With dropout, x̃ is x with the dropped elements removed, and
//
//	y = c ⊙ h + (x - x̃)·Wᵀ,  h = x̃·Wᵀ + s·(x̃·Aᵀ)·Bᵀ
//
// as in PEFT, with a second product by W. A DoRA is not safe for concurrent use.
type DoRA struct {
	l Matrix
	a *LoRA
	shape
	n, c snug.View // [out] each
	free func() error
}

// NewDoRA returns the layer of l with adapter a, whose Magnitude is set: the Norms of l
// without an adapter are its initial value. It calls [DoRA.Update]. It takes 8 bytes an output
// on the weight's device, and owns neither l nor a.
//
// Errors: [snug.ErrConfig] for a nil, zero or closed l and for an adapter that is nil or
// has no Magnitude, the errors of Norms, and [snug.ErrNoMemory].
func NewDoRA(l Matrix, a *LoRA) (*DoRA, error) {
	if l == nil {
		return nil, fmt.Errorf("qlora: DoRA: the Matrix is nil: %w", snug.ErrConfig)
	}
	if err := l.usable(); err != nil {
		return nil, fmt.Errorf("qlora: DoRA: %w", err)
	}
	if a == nil || a.Magnitude.Len() == 0 {
		return nil, fmt.Errorf("qlora: DoRA: an adapter that is nil or without magnitudes: %w", snug.ErrConfig)
	}
	if err := checkNorms(l, a.Magnitude, a); err != nil { // before there is memory for it
		return nil, err
	}
	s := l.describe()
	both, free, err := snug.MakeView(s.dev, snug.F32, 2*s.out)
	if err != nil {
		return nil, fmt.Errorf("qlora: DoRA: %w", err)
	}
	d := &DoRA{l: l, a: a, shape: s, n: part(both, 0, s.out), c: part(both, s.out, 2*s.out), free: free}
	if err := d.Update(); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// Close frees what NewDoRA made. Closing twice does nothing; d cannot be used afterwards.
func (d *DoRA) Close() error {
	if d == nil || d.free == nil {
		return nil
	}
	free := d.free
	d.free, d.n, d.c = nil, snug.View{}, snug.View{}
	return free()
}

// usable returns an error unless d was made and is not closed.
func (d *DoRA) usable() error {
	if d == nil || d.free == nil {
		return fmt.Errorf("the DoRA is nil or closed, or was not made by NewDoRA: %w", snug.ErrConfig)
	}
	return d.l.usable()
}

// Update recomputes n and c. Call it after every step that changed A, B or the Magnitude.
// It needs the tile of the Matrix and no other memory. Errors are the errors of its Norms.
func (d *DoRA) Update() error {
	if err := d.usable(); err != nil {
		return fmt.Errorf("qlora: DoRA: update: %w", err)
	}
	if err := checkNorms(d.l, d.a.Magnitude, d.a); err != nil {
		return err
	}
	return d.l.norms(d.n, d.c, d.a)
}

// Norms writes the norms of the rows of W + s·B·A, or of W if a is nil, to norms, [out] of
// f32 on the weight's device. They are the initial Magnitude of a [DoRA]. It decodes a tile
// of rows at a time and adds the adapter to it, rounded to the type of [NewLinear]. Squares
// are summed in float64 on the CPU and in float32, in a fixed order, on other devices,
// where a norm has a relative error of at most (in/64+16)·2^-24.
//
// Errors, with nothing written: [snug.ErrShape], [snug.ErrDType], [snug.ErrConfig],
// [snug.ErrDevice], and [snug.ErrNoMemory] for a tile that is not there yet.
func (l *Linear) Norms(norms snug.View, a *LoRA) error {
	if err := checkNorms(l, norms, a); err != nil {
		return err
	}
	return l.norms(norms, snug.View{}, a)
}

func (l *Linear) describe() shape {
	return shape{l.out, l.in, l.tile.DType(), l.w.Device(), l.w.Packed()}
}

// checkNorms checks the operands of Norms.
func checkNorms(m Matrix, norms snug.View, a *LoRA) error {
	if err := m.usable(); err != nil {
		return fmt.Errorf("qlora: norms: %w", err)
	}
	l := m.describe()
	if a != nil {
		if _, err := a.check("norms", part(a.A, 0, 0), snug.View{}, snug.View{}); err != nil {
			return err
		}
	}
	switch {
	case l.in == 0 || l.out == 0:
		return fmt.Errorf("qlora: norms: a weight of shape %v: %w", l.dims(), snug.ErrShape)
	case a != nil && (a.In != l.in || a.Out != l.out):
		return fmt.Errorf("qlora: norms: an adapter of %d to %d, a weight of shape %v: %w", a.In, a.Out, l.dims(), snug.ErrShape)
	case norms.DType() != snug.F32:
		return fmt.Errorf("qlora: norms: the norms of rows hold %s, want f32: %w", norms.DType(), snug.ErrDType)
	case norms.Len() != l.out:
		return fmt.Errorf("qlora: norms: %d elements, want %d: %w", norms.Len(), l.out, snug.ErrShape)
	}
	_, err := snug.CommonDevice(norms, l.at)
	if err == nil && a != nil {
		_, err = snug.CommonDevice(norms, a.A, a.B)
	}
	return fault.Of(err, "qlora: norms")
}

// norms writes norms and, unless scale is empty, the factors that scale rows to their magnitudes.
func (l *Linear) norms(norms, scale snug.View, a *LoRA) error {
	return l.each(func(lo, hi int, rows snug.View) error {
		j := normsJob{norms: part(norms, lo, hi), x: rows, cols: l.in}
		if scale.Len() > 0 {
			j.scale, j.magnitude = part(scale, lo, hi), part(a.Magnitude, lo, hi)
		}
		if a != nil {
			if err := a.addTo(rows, lo, hi); err != nil {
				return err
			}
		}
		return device.Run(l.w.Device(), j)
	})
}

// addTo adds rows lo to hi-1 of s·B·A to the same rows of a weight.
func (l *LoRA) addTo(rows snug.View, lo, hi int) error {
	c := amp.MatMulOptions{M: hi - lo, N: l.In, K: l.Rank, Into: snug.Into{Alpha: l.Scale, Beta: 1}}
	return amp.MatMul(rows, part(l.B, lo*l.Rank, hi*l.Rank), l.A, c)
}

// Forward computes y, and h and u = x·Aᵀ, which [DoRA.Backward] needs, for x of [rows,
// in], y and h of [rows, out] and u of [rows, rank] elements, all of the Matrix's type of
// activations and on its device. y may be h, where nothing needs h. draw drops elements of x
// on the way to h and u. Errors, with nothing written: [snug.ErrShape], [snug.ErrDType],
// [snug.ErrConfig], [snug.ErrDevice].
func (d *DoRA) Forward(y, h, u, x snug.View, draw Dropout) error {
	rows, err := d.check("forward", x, u, y, h, draw)
	if err != nil || rows == 0 {
		return err
	}
	left, err := d.inner(h, u, x, rows, draw)
	if err == nil {
		err = d.start(blendJob{dst: y, src: h, scale: d.c, cols: d.out})
	}
	if err == nil && d.a.drops(draw) {
		if err = d.start(blendJob{dst: left, src: x, cols: d.in, shift: 1, beta: -1}); err == nil { // x - x̃
			err = d.l.Forward(y, left, 1)
		}
	}
	return fault.Of(err, "qlora: DoRA: forward")
}

// Inner computes h and u alone, with the bits of [DoRA.Forward], for a backward pass whose forward
// pass has not kept them. Errors are the errors of Forward.
func (d *DoRA) Inner(h, u, x snug.View, draw Dropout) error {
	rows, err := d.check("inner", x, u, h, h, draw)
	if err != nil || rows == 0 {
		return err
	}
	if _, err := d.inner(h, u, x, rows, draw); err != nil {
		return fmt.Errorf("qlora: DoRA: inner: %w", err)
	}
	return nil
}

// inner computes h and u, and returns the x that is left.
func (d *DoRA) inner(h, u, x snug.View, rows int, draw Dropout) (left snug.View, err error) {
	if left, err = d.a.drop(x, draw); err != nil {
		return left, err
	}
	if err := d.l.Forward(h, left, 0); err != nil {
		return left, err
	}
	return left, d.a.add(h, u, left, rows)
}

// Backward computes, from dy and the h, u, x and draw of [DoRA.Forward], with e = c ⊙ dy,
//
//	du  = s·e·B
//	dm  = beta·dm + alpha·Σ dy ⊙ h/n over rows
//	dB  = beta·dB + alpha·s·eᵀ·u
//	dA  = beta·dA + alpha·duᵀ·x
//	dx += e·W + du·A
//
// and, with dropout, the gradients of its y. All operands have the type of activations,
// except the gradients of parameters. du has the size of u. The contents of du and h mean
// nothing afterwards. A dx of length 0 is not computed. dm has an error of at most
// (rows+4)·2^-24·alpha·Σ |dy ⊙ h|/n. Errors are the errors of Forward.
func (d *DoRA) Backward(dx, du, dy, h, u, x snug.View, g Grads, draw Dropout) error {
	rows, err := d.check("backward", x, u, dy, h, draw)
	if err == nil {
		g, err = d.a.checkGrads("backward", dx, du, u, x, g)
	}
	if err == nil {
		err = d.checkTypes("backward", du, dx)
	}
	if err != nil {
		return err
	}
	err = device.Run(d.dev, dotsJob{g.Magnitude, d.n, dy, h, g.Into.Alpha, g.Into.Beta})
	if err == nil {
		err = d.start(blendJob{dst: h, src: dy, scale: d.c, cols: d.out}) // e
	}
	left := x
	if err == nil {
		left, err = d.a.drop(x, draw)
	}
	if err == nil {
		err = d.a.gradients(du, h, u, left, rows, g)
	}
	if err == nil && dx.Len() > 0 {
		err = d.input(dx, du, dy, h, rows, draw)
	}
	return fault.Of(err, "qlora: DoRA: backward")
}

// input adds the gradient in x to dx, with e in h. The dropped elements of x get dy·W. The
// others get e·W + du·A through dropout, less the same share of dy·W.
func (d *DoRA) input(dx, du, dy, h snug.View, rows int, draw Dropout) error {
	if !d.a.drops(draw) {
		if err := d.l.Backward(dx, h, 1); err != nil {
			return err
		}
		return amp.MatMul(dx, du, d.a.A, d.a.input(rows, 1))
	}
	err := d.start(blendJob{dst: h, src: dy, cols: d.out, shift: -1, beta: 1}) // e - dy
	if err == nil {
		err = d.l.Backward(draw.Work, h, 0)
	}
	if err == nil {
		err = amp.MatMul(draw.Work, du, d.a.A, d.a.input(rows, 1))
	}
	if err == nil {
		err = d.a.addDropped(dx, draw)
	}
	if err == nil {
		err = d.l.Backward(dx, dy, 1)
	}
	return err
}

func (d *DoRA) start(j blendJob) error { return device.Run(d.dev, j) }

// check returns the rows of the operands.
func (d *DoRA) check(op string, x, u, y, h snug.View, draw Dropout) (rows int, err error) {
	if err := d.usable(); err != nil {
		return 0, fmt.Errorf("qlora: DoRA: %s: %w", op, err)
	}
	if rows, err = d.a.check(op, x, u, y); err != nil {
		return 0, err
	}
	switch {
	case d.a.Magnitude.Len() != d.out || d.a.In != d.in:
		return 0, fmt.Errorf("qlora: DoRA: %s: an adapter of %d to %d with %d magnitudes, a weight of shape %v: %w",
			op, d.a.In, d.a.Out, d.a.Magnitude.Len(), d.dims(), snug.ErrShape)
	case h.Len() != y.Len():
		return 0, fmt.Errorf("qlora: DoRA: %s: h has %d elements, want %d: %w", op, h.Len(), y.Len(), snug.ErrShape)
	}
	if err := d.a.checkDraw(op, x, draw); err != nil {
		return 0, err
	}
	if err := d.checkTypes(op, x, u, y, h); err != nil {
		return 0, err
	}
	if _, err := snug.CommonDevice(x, u, y, h, d.n, d.a.A, d.a.B); err != nil {
		return 0, fmt.Errorf("qlora: DoRA: %s: %w", op, err)
	}
	return rows, nil
}

// checkTypes checks the types of activations; an empty one may have any type.
func (d *DoRA) checkTypes(op string, activations ...snug.View) error {
	for _, v := range activations {
		if v.Len() > 0 && v.DType() != d.dt {
			return fmt.Errorf("qlora: DoRA: %s: an activation of %s, want %s: %w", op, v.DType(), d.dt, snug.ErrDType)
		}
	}
	return nil
}
