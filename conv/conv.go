package conv

import (
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
)

// Forward computes y = the convolution of x with w, plus bias for each channel:
//
//	y[b, o, p] = bias[o] + Σ over c, t of w[o, c, t] · x[b, c, p·stride + t·dilation − padBefore]
//
// or, of a transposed convolution, with q over the positions of x,
//
//	y[b, o, p] = bias[o] + Σ over c, t, q with p = q·stride + t·dilation − padBefore of w[c, o, t] · x[b, c, q]
//
// x has [Shape.XLen] elements, w [Shape.WLen], y [Shape.YLen], bias [Shape.BiasLen] or none. y may not overlap the
// others.
func Forward[V snug.Vector](y, x, w, bias V, s Shape) error {
	return forward(snug.ViewOf(y), snug.ViewOf(x), snug.ViewOf(w), snug.ViewOf(bias), s)
}

// BackwardInput computes the gradient of [Forward]'s x from the gradient dy of its y:
//
//	dx[b, c, q] ← Σ over o, t, p with q = p·stride + t·dilation − padBefore of w[o, c, t] · dy[b, o, p]
//
// and the gradient of a transposed convolution by Forward's first equation, where ← applies into, see [snug.Into].
// Lengths are those of Forward. dx may not overlap the others.
func BackwardInput[V snug.Vector](dx, dy, w V, s Shape, into snug.Into) error {
	return backwardInput(snug.ViewOf(dx), snug.ViewOf(dy), snug.ViewOf(w), s, into)
}

// BackwardWeight computes the gradients of [Forward]'s w and bias from the gradient dy of its y:
//
//	dw[o, c, t] ← Σ over b, p of dy[b, o, p] · x[b, c, p·stride + t·dilation − padBefore]
//	db[o]       ← Σ over b, p of dy[b, o, p]
//
// and of a transposed convolution with x and dy in each other's place in dw's equation. ← applies into, see
// [snug.Into]. dw has [Shape.WLen] elements, db [Shape.BiasLen]; either may be empty, which leaves it out: pass
// []float32(nil). ws has at least [Shape.WorkspaceLen] elements. Neither dw, db nor ws may overlap another operand.
func BackwardWeight[G, L snug.Vector32, V snug.Vector](dw, db G, x, dy V, s Shape, into snug.Into, ws L) error {
	return backwardWeight(snug.ViewOf(dw), snug.ViewOf(db), snug.ViewOf(x), snug.ViewOf(dy), s, into, snug.ViewOf(ws))
}

func forward(y, x, w, bias snug.View, s Shape) error {
	const op = "Forward"
	if err := s.check(); err != nil {
		return fmt.Errorf("conv: %s: %w", op, err)
	}
	if err := checkFloats(op, operand{"x", x}, operand{"w", w}, operand{"bias", bias}, operand{"y", y}); err != nil {
		return err
	}
	if err := checkLens(op, length{"x", x, s.xLen()}, length{"w", w, s.wLen()}, length{"y", y, s.yLen()}); err != nil {
		return err
	}
	if err := checkOptional(op, length{"bias", bias, s.Out}); err != nil {
		return err
	}
	dev, err := commonDevice(op, y, x, w, bias)
	if err != nil {
		return err
	}
	if err := checkApart(op, operand{"y", y}, operand{"x", x}, operand{"w", w}, operand{"bias", bias}); err != nil {
		return err
	}
	job := forwardJob{y, x, w, bias, s}
	return device.Run(dev, job)
}

func backwardInput(dx, dy, w snug.View, s Shape, into snug.Into) error {
	const op = "BackwardInput"
	into, err := resolve(op, &s, into)
	if err != nil {
		return err
	}
	if err := checkFloats(op, operand{"dy", dy}, operand{"w", w}, operand{"dx", dx}); err != nil {
		return err
	}
	if err := checkLens(op, length{"dy", dy, s.yLen()}, length{"w", w, s.wLen()}, length{"dx", dx, s.xLen()}); err != nil {
		return err
	}
	dev, err := commonDevice(op, dx, dy, w)
	if err != nil {
		return err
	}
	if err := checkApart(op, operand{"dx", dx}, operand{"dy", dy}, operand{"w", w}); err != nil {
		return err
	}
	job := inputJob{dx, dy, w, s, into}
	return device.Run(dev, job)
}

func backwardWeight(dw, db, x, dy snug.View, s Shape, into snug.Into, ws snug.View) error {
	const op = "BackwardWeight"
	into, err := resolve(op, &s, into)
	if err != nil {
		return err
	}
	if err := checkFloats(op, operand{"x", x}, operand{"dy", dy}); err != nil {
		return err
	}
	if err := checkF32(op, operand{"dw", dw}, operand{"db", db}, operand{"ws", ws}); err != nil {
		return err
	}
	if err := checkLens(op, length{"x", x, s.xLen()}, length{"dy", dy, s.yLen()}); err != nil {
		return err
	}
	if err := checkOptional(op, length{"dw", dw, s.wLen()}, length{"db", db, s.Out}); err != nil {
		return err
	}
	if n := s.workspaceLen(); ws.Len() < n {
		return fmt.Errorf("conv: %s: ws has %d elements, want at least %d: %w", op, ws.Len(), n, snug.ErrShape)
	}
	dev, err := commonDevice(op, dw, db, x, dy, ws)
	if err != nil {
		return err
	}
	inputs := [...]operand{{"x", x}, {"dy", dy}, {"ws", ws}, {"db", db}}
	for i, o := range [...]operand{{"dw", dw}, {"db", db}, {"ws", ws}} {
		if err := checkApart(op, o, inputs[:[...]int{4, 3, 2}[i]]...); err != nil {
			return err
		}
	}
	job := weightJob{dw: dw, db: db, x: x, dy: dy, ws: ws, s: s, into: into}
	if dev.IsCPU() {
		job.Run()
		return nil
	}
	return job.start(dev)
}

type forwardJob struct {
	y, x, w, bias snug.View

	s Shape
}

func (*forwardJob) Kernel() string { return "conv.forward" }

func (j *forwardJob) Operands(yield func(*driver.Mem)) {
	for _, v := range []*snug.View{&j.y, &j.x, &j.w, &j.bias} {
		yield(device.Mem(v))
	}
}

// Run is a product of w with x's patches, or with those of the adjoint.
func (j forwardJob) Run() {
	if p := newProblem(&j.s); j.s.Transposed {
		p.scatter(j.y, j.x, j.w, j.bias, snug.Into{Alpha: 1})
	} else {
		p.gather(j.y, j.x, j.w, j.bias, snug.Into{Alpha: 1})
	}
}

type inputJob struct {
	dx, dy, w snug.View

	s    Shape
	into snug.Into
}

func (*inputJob) Kernel() string { return "conv.backward_input" }

func (j *inputJob) Operands(yield func(*driver.Mem)) {
	for _, v := range []*snug.View{&j.dx, &j.dy, &j.w} {
		yield(device.Mem(v))
	}
}

func (j inputJob) Run() {
	if p := newProblem(&j.s); j.s.Transposed {
		p.gather(j.dx, j.dy, j.w, snug.View{}, j.into)
	} else {
		p.scatter(j.dx, j.dy, j.w, snug.View{}, j.into)
	}
}

type weightJob struct {
	dw, db, x, dy, ws snug.View
	sums              snug.View // of parts, on other devices than the CPU

	s    Shape
	into snug.Into
}

func (*weightJob) Kernel() string { return "conv.backward_weight" }

func (j *weightJob) Operands(yield func(*driver.Mem)) {
	for _, v := range []*snug.View{&j.dw, &j.db, &j.x, &j.dy, &j.ws, &j.sums} {
		yield(device.Mem(v))
	}
}

func (j weightJob) Run() {
	p := newProblem(&j.s)
	if j.dw.Len() > 0 {
		x, dy := j.x, j.dy
		if j.s.Transposed {
			x, dy = dy, x
		}
		p.weights(j.dw, x, dy, j.into, j.ws)
	}
	if j.db.Len() > 0 {
		sumChannels(j.db, j.dy, &j.s, j.into)
	}
}
