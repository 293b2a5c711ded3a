package recurrent

import (
	"fmt"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/rowwise"
)

// GatedNorm is the gated RMSNorm behind the state space of Mamba-2 (Dao and Gu 2024, arXiv:2405.21060), of each group of Dim elements of a row:
//
//	y = w·u/√(mean(u²) + Eps)             for u = x·silu(gate)
//	y = w·x/√(mean(x²) + Eps)·silu(gate)  with Before
//	y = x·silu(gate)                      without w
//
// Nothing is kept: the backward pass computes the norm again.
type GatedNorm struct {
	Rows, Groups, Dim int
	Eps               float32
	Before            bool    // the norm is before the gate
	Factor            float32 // the gate is multiplied by it; 0 stands for 1
	GateRow           int     // elements from row to row of the gate and of its gradient; 0: rows lie side by side
}

func (n *GatedNorm) check() error {
	if _, err := product(n.Rows, n.Groups, n.Dim); err != nil {
		return err
	}
	if !(n.Eps >= 0) || n.Eps-n.Eps != 0 || n.Factor-n.Factor != 0 {
		return fmt.Errorf("an Eps of %v and a Factor of %v, want numbers, and an Eps of 0 or more: %w", n.Eps, n.Factor, snug.ErrConfig)
	}
	if n.GateRow != 0 && n.GateRow < n.width() || n.GateRow > math.MaxInt32 {
		return fmt.Errorf("GateRow is %d, want %d or more: %w", n.GateRow, n.width(), snug.ErrShape)
	}
	_, err := product(n.Rows, max(n.GateRow, 1))
	return err
}

func (n *GatedNorm) width() int { return n.Groups * n.Dim }

// The gradient of w is summed over parts of the rows, and then over the parts, which do not depend on the number of workers.
const (
	mostNormParts = 128
	fewNormRows   = 16
)

func (n *GatedNorm) partRows() int { return max(fewNormRows, cpu.Chunks(n.Rows, mostNormParts)) }

// WorkspaceLen returns the elements of the workspace of GatedNormBackward: a row for every 16 rows, and at most 128; 0 for one
// that is not valid.
func (n GatedNorm) WorkspaceLen() int {
	if n.check() != nil {
		return 0
	}
	return cpu.Chunks(n.Rows, n.partRows()) * n.width()
}

// ScratchBytes returns the most bytes that a worker holds while it computes.
func (n GatedNorm) ScratchBytes() int64 {
	if n.check() != nil {
		return 0
	}
	return 4 * int64(n.scratch())
}

func (n *GatedNorm) scratch() int { return 7*n.Dim + n.width() }

type gatedNormJob struct {
	y, x, gate, w snug.View // y: its gradient in the backward pass
	back          bool
	dx, dgate, dw snug.View
	ws            snug.View
	n             GatedNorm
}

// GatedNormForward computes y. x and y have Rows·Groups·Dim elements, and so has the gate, unless GateRow says that its rows lie further
// apart; w has Groups·Dim, or none. y may be x.
func GatedNormForward[V snug.Vector](y, x, gate, w V, n GatedNorm) error {
	j := gatedNormJob{y: snug.ViewOf(y), x: snug.ViewOf(x), gate: snug.ViewOf(gate), w: snug.ViewOf(w), n: n}
	if err := j.check("GatedNormForward"); err != nil {
		return err
	}
	gatedNorm.Run(cpu.Chunks(n.Rows, n.partRows()), j)
	return nil
}

// GatedNormBackward computes the gradients of x and the gate from dy, that of y, and from the operands. It overwrites them; dx may be dy. dw enters a
// float32 accumulator as into says; an empty one is left out. The workspace has WorkspaceLen elements, and may be empty with dw.
func GatedNormBackward[V snug.Vector, L snug.Vector32](dx, dgate V, dw L, dy, x, gate, w V, workspace L, n GatedNorm, into snug.Into) error {
	alpha, beta, err := into.Factors()
	if err != nil {
		return fmt.Errorf("recurrent: GatedNormBackward: %w", err)
	}
	j := gatedNormJob{y: snug.ViewOf(dy), x: snug.ViewOf(x), gate: snug.ViewOf(gate), w: snug.ViewOf(w), n: n,
		back: true, dx: snug.ViewOf(dx), dgate: snug.ViewOf(dgate), dw: snug.ViewOf(dw), ws: snug.ViewOf(workspace)}
	if err := j.check("GatedNormBackward"); err != nil {
		return err
	}
	parts, width := cpu.Chunks(n.Rows, n.partRows()), n.width()
	gatedNorm.Run(parts, j)
	for to, i := floats(j.dw, 0, j.dw.Len()), 0; i < len(to); i++ {
		sum := float32(0)
		for part := range parts {
			sum += floats(j.ws, part*width+i, 1)[0]
		}
		to[i] = enter(snug.Into{Alpha: alpha, Beta: beta}, to[i], sum)
	}
	return nil
}

func (j *gatedNormJob) check(op string) error {
	n := &j.n
	if err := n.check(); err != nil {
		return fmt.Errorf("recurrent: %s: %w", op, err)
	}
	all := n.Rows * n.width()
	gate := func(name string, v snug.View) operand {
		return operand{name: name, view: v, want: (n.Rows-1)*step(n.GateRow, n.width()) + n.width(), longer: n.GateRow != 0}
	}
	list := [6]operand{{name: "x", view: j.x, want: all}, {name: "y", view: j.y, want: all}, gate("the gate", j.gate), {name: "w", view: j.w, want: n.width(), optional: true}}
	var singles [2]operand
	if j.back {
		list[1].name = "dy"
		list[4], list[5] = operand{name: "dx", view: j.dx, want: all}, gate("the gradient of the gate", j.dgate)
		singles[0] = operand{name: "dw", view: j.dw, want: n.width(), optional: true}
		if j.dw.Len() > 0 {
			singles[1] = operand{name: "the workspace", view: j.ws, want: cpu.Chunks(n.Rows, n.partRows()) * n.width(), longer: true}
			if j.w.Len() == 0 {
				return fmt.Errorf("recurrent: %s: dw has %d elements, and there is no w: %w", op, j.dw.Len(), snug.ErrShape)
			}
		} else {
			singles[1] = operand{name: "the workspace", view: j.ws, longer: true}
		}
	}
	return check(op, list[:], singles[:])
}

var gatedNorm = cpu.NewTask(func(j *gatedNormJob, item int) {
	buf := ssdScratch.Get(j.n.scratch())
	defer ssdScratch.Put(buf)
	n, rest := &j.n, tiles(*buf)
	d := n.Dim
	t := gatedNormTile{gatedNormJob: j, r: rowwise.Registry.Best(), f: rowwise.F32.Best(), w: rest.take(n.width()), zero: rest.take(d),
		x: rest.take(d), gate: rest.take(d), u: rest.take(d), y: rest.take(d), a: rest.take(d), b: rest.take(d)}
	clear(t.zero)
	if j.w.Len() > 0 {
		half.Load(t.w, j.w, 0)
	}
	if j.dw.Len() > 0 {
		t.dw = floats(j.ws, item*n.width(), n.width())
		clear(t.dw)
	}
	lo, hi := cpu.Chunk(n.Rows, n.partRows(), item)
	for row := lo; row < hi; row++ {
		for g := range n.Groups {
			t.group(row, g)
		}
	}
})

// gatedNormTile is the memory of an item: some rows.
type gatedNormTile struct {
	*gatedNormJob
	r                         *rowwise.Kernels
	f                         *rowwise.Layers[float32]
	w, dw                     []float32 // of all groups
	zero, x, gate, u, y, a, b []float32 // of a group
}

// times sets dst to a·b.
func (t *gatedNormTile) times(dst, a, b []float32) {
	t.r.ColumnAffine(dst, a, t.zero, b, t.zero, false)
}

// group computes a group of a row.
func (t *gatedNormTile) group(row, g int) {
	n, d := &t.n, t.n.Dim
	at, gateAt := row*n.width()+g*d, row*step(n.GateRow, n.width())+g*d
	half.Load(t.x, t.gatedNormJob.x, at)
	half.Load(t.gate, t.gatedNormJob.gate, gateAt)
	if n.Factor != 0 && n.Factor != 1 {
		t.r.Scale(t.gate, t.gate, n.Factor)
	}
	norm, u := t.gatedNormJob.w.Len() > 0, t.x // u is what is normalized
	if norm && !n.Before {
		u = t.u
		t.f.SiLUMul(u, t.gate, t.x, false)
	}
	rstd := float32(1)
	w := t.w[g*d:][:d]
	if norm {
		rstd = float32(1 / math.Sqrt(float64(t.r.Dot(u, u))/float64(d)+float64(n.Eps)))
	}
	if !t.back {
		switch {
		case !norm:
			t.f.SiLUMul(t.y, t.gate, t.x, false)
		case n.Before:
			t.r.Scale(t.y, u, rstd)
			t.times(t.y, t.y, w)
			t.f.SiLUMul(t.y, t.gate, t.y, false)
		default:
			t.r.Scale(t.y, u, rstd)
			t.times(t.y, t.y, w)
		}
		half.Store(t.gatedNormJob.y, at, t.y)
		return
	}
	dy := t.y
	half.Load(dy, t.gatedNormJob.y, at)
	if norm && n.Before { // y = silu(gate)·m, and m is w·x·rstd
		t.r.Scale(t.u, u, rstd)
		t.times(t.u, t.u, w)
		t.f.SiLUMulGrad(t.a, dy, dy, t.gate, t.u, false)
	}
	if norm { // dy is the gradient of w·n, and n is u·rstd
		t.r.Scale(t.b, u, rstd)
		if len(t.dw) > 0 {
			for i, v := range dy {
				t.dw[g*d+i] += v * t.b[i]
			}
		}
		t.times(dy, dy, w)
		mean := t.r.Dot(dy, t.b) / float32(d)
		t.r.Axpby(dy, t.b, -mean*rstd, rstd)
	}
	if !norm || !n.Before {
		t.f.SiLUMulGrad(t.a, dy, dy, t.gate, t.x, false)
	}
	if n.Factor != 0 && n.Factor != 1 {
		t.r.Scale(t.a, t.a, n.Factor)
	}
	half.Store(t.dx, at, dy)
	half.Store(t.dgate, gateAt, t.a)
}
