package recurrent

import (
	"fmt"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
)

// SSD is the selective state space of Mamba-2, Dao and Gu, "Transformers are SSMs: Generalized Models and Efficient Algorithms Through
// Structured State Space Duality" (2024, arXiv:2405.21060). Each head has a state S of StateDim rows and Dim columns, which a row of
// the sequence decays by one number, adds to, and reads:
//
//	Δ_t = clamp(softplus(Factor·dt_t + bias), Min, Max)
//	S   ← exp(−exp(A_log)·Δ_t)·S + B_t ⊗ Δ_t·x_t
//	y_t = SᵀC_t + D·x_t
//
// It is computed in chunks of 64 rows, as products of matrices. With a_t = −exp(A_log)·Δ_t, Γ the sums of a from a chunk's first row on, S the
// state before the chunk, X = Δ·x, and L_ij = exp(Γ_i − Γ_j) for j ≤ i, else 0,
//
//	Y = exp(Γ)·(C S) + ((C Bᵀ)∘L) X + D·x
//	S ← exp(Γ_last)·S + (exp(Γ_last − Γ)·B)ᵀ X
//
// No exponent is above 0, so large Δ give decays of 0 and nothing overflows. A chunk of one row, as in generating, takes the recurrence
// itself. Heads/Groups heads one after the other share a B and a C.
type SSD struct {
	Batch
	Groups, Heads int // Heads is a multiple of Groups
	StateDim, Dim int // of a B and a C, and of a head of x
	// Min and Max are the limits of Δ; a Max of 0 is none. Gradients do not pass where a limit holds.
	Min, Max float32
	Factor   float32 // dt is multiplied by it before the bias; 0 stands for 1
	// XRow, BRow, CRow and DtRow are the elements from row to row of x, B, C and dt and of their gradients; 0: rows lie side by side.
	XRow, BRow, CRow, DtRow int
	// Initial and Final are the states before and behind each sequence, [sequences, Heads, StateDim, Dim] of float32, of
	// which an empty Initial is zeros and an empty Final is not written. GradInitial and GradFinal are their gradients in SSDBackward.
	Initial, Final, GradInitial, GradFinal snug.View
}

const ssdHeads = 8 // that an item of the forward pass has, and computes C Bᵀ for

func (d *SSD) check() error {
	if err := d.Batch.check(); err != nil {
		return err
	}
	if d.Groups < 1 || d.Heads < 1 || d.Heads%d.Groups != 0 {
		return fmt.Errorf("%d heads in %d groups, want a multiple of these: %w", d.Heads, d.Groups, snug.ErrShape)
	}
	if d.Factor-d.Factor != 0 {
		return fmt.Errorf("the Factor is %v, want a number: %w", d.Factor, snug.ErrConfig)
	}
	if !(d.Min >= 0) || !(d.Max >= 0) || d.Min-d.Min != 0 || d.Max != 0 && d.Max < d.Min {
		return fmt.Errorf("the limits are Min %v and Max %v, want 0 or more, and Max at least Min, or 0 for none: %w", d.Min, d.Max, snug.ErrConfig)
	}
	for _, f := range [...][4]int{{d.Rows, d.Groups, d.StateDim, 1}, {d.Rows, d.Heads, d.Dim, 1}, {d.count(), d.Heads, d.StateDim, d.Dim}, {d.Rows/SegmentRows + 1, d.Heads, d.StateDim, d.Dim}} {
		if _, err := product(f[0], f[1], f[2], f[3]); err != nil {
			return err
		}
	}
	for _, row := range [...]struct {
		name       string
		have, want int
	}{{"XRow", d.XRow, d.Heads * d.Dim}, {"BRow", d.BRow, d.Groups * d.StateDim}, {"CRow", d.CRow, d.Groups * d.StateDim}, {"DtRow", d.DtRow, d.Heads}} {
		if row.have != 0 && row.have < row.want || row.have > math.MaxInt32 {
			return fmt.Errorf("%s is %d, want %d or more: %w", row.name, row.have, row.want, snug.ErrShape)
		}
	}
	_, err := product(d.Rows, max(d.XRow, d.BRow, d.CRow, d.DtRow, 1))
	return err
}

// StateLen returns the elements of Initial and Final, 0 for an SSD that is not valid.
func (d SSD) StateLen() int {
	if d.check() != nil {
		return 0
	}
	return d.count() * d.stateLen() * d.Heads
}

// StatesLen returns the elements of what SSDForward keeps for SSDBackward: a state for every SegmentRows rows of a sequence
// but the first; 0 for an SSD that is not valid.
func (d SSD) StatesLen() int {
	if d.check() != nil {
		return 0
	}
	return d.kept(d.count()) * d.Heads * d.stateLen()
}

// WorkspaceLen returns the elements of the workspace of SSDBackward: as many as StatesLen says, and 3·Heads for every SegmentRows
// rows of a sequence; 0 for an SSD that is not valid.
func (d SSD) WorkspaceLen() int {
	if d.check() != nil {
		return 0
	}
	return d.workspace()
}

// ScratchBytes returns the most bytes that a worker holds while it computes forward, or backward.
func (d SSD) ScratchBytes(backward bool) int64 {
	if d.check() != nil {
		return 0
	}
	return 4 * int64(d.scratch(backward))
}

func (d *SSD) stateLen() int { return d.StateDim * d.Dim }

// segments returns how many segments the first sequences have.
func (d *SSD) segments(sequences int) int { return d.kept(sequences) + sequences }

func (d *SSD) workspace() int {
	return d.kept(d.count())*d.Heads*d.stateLen() + d.segments(d.count())*3*d.Heads
}

func (d *SSD) scratch(backward bool) int {
	c, square, heads := chunkRows, chunkRows*chunkRows, min(ssdHeads, d.Heads/d.Groups)
	common := 6*c + 2*square + c*d.StateDim + 3*c*d.Dim // an ssdTile
	n := 2*c*d.StateDim + square + heads*d.stateLen()
	if backward {
		rows := (d.longest(SegmentRows) + c - 1) / c * c
		n = max(n, 4*rows*d.StateDim+2*rows*c+(rows/c+1)*d.stateLen()+c*d.StateDim+c*d.Dim+square+2*c)
	}
	return common + n
}

// blocks returns the number of items of a group in the forward pass.
func (d *SSD) blocks() int { return cpu.Chunks(d.Heads/d.Groups, ssdHeads) }

// SSDForward computes y. x and y have Rows·Heads·Dim elements, b and c Rows·Groups·StateDim and dt Rows·Heads, unless XRow, BRow, CRow or DtRow say that
// rows lie further apart; aLog, skip, which is D, and bias, which dt has added, have Heads. skip and bias may be empty, for 0. states, of
// StatesLen elements, takes what the backward pass needs; it may be empty if there is none.
func SSDForward[V snug.Vector, L snug.Vector32](y, x, b, c, dt, aLog, skip, bias V, states L, d SSD) error {
	j := ssdJob{y: snug.ViewOf(y), x: snug.ViewOf(x), b: snug.ViewOf(b), c: snug.ViewOf(c), dt: snug.ViewOf(dt),
		aLog: snug.ViewOf(aLog), skip: snug.ViewOf(skip), bias: snug.ViewOf(bias), states: snug.ViewOf(states), d: d}
	if err := j.check("SSDForward"); err != nil {
		return err
	}
	ssdForward.Run(d.count()*d.Groups*d.blocks(), j)
	return nil
}

// SSDGrads are the gradients that SSDBackward computes. It overwrites those of x, B, C and dt, which have the shapes of what they are of. Those
// of A_log, D and the bias enter float32 accumulators of Heads elements as Into says; an empty one is left out.
type SSDGrads struct {
	X, B, C, Dt      snug.View
	ALog, Skip, Bias snug.View
	Into             snug.Into
}

// SSDBackward computes the gradients from dy, that of y, and from the operands and the states of SSDForward. The workspace has
// WorkspaceLen elements.
func SSDBackward[V snug.Vector, L snug.Vector32](g SSDGrads, dy, x, b, c, dt, aLog, skip, bias V, states, workspace L, d SSD) error {
	alpha, beta, err := g.Into.Factors()
	if err != nil {
		return fmt.Errorf("recurrent: SSDBackward: %w", err)
	}
	g.Into = snug.Into{Alpha: alpha, Beta: beta}
	j := ssdJob{y: snug.ViewOf(dy), x: snug.ViewOf(x), b: snug.ViewOf(b), c: snug.ViewOf(c), dt: snug.ViewOf(dt),
		aLog: snug.ViewOf(aLog), skip: snug.ViewOf(skip), bias: snug.ViewOf(bias), states: snug.ViewOf(states), d: d,
		back: true, g: g, ws: snug.ViewOf(workspace)}
	if err := j.check("SSDBackward"); err != nil {
		return err
	}
	if d.kept(d.count()) > 0 || d.GradInitial.Len() > 0 {
		ssdStates.Run(d.count()*d.Groups*d.blocks(), j)
	}
	ssdBackward.Run(d.segments(d.count())*d.Groups, j)
	j.enter()
	return nil
}

type ssdJob struct {
	y, x, b, c, dt, aLog, skip, bias snug.View // y: its gradient in the backward pass
	states                           snug.View
	back                             bool
	g                                SSDGrads
	ws                               snug.View
	d                                SSD
}

func (j *ssdJob) check(op string) error {
	d := &j.d
	if err := d.check(); err != nil {
		return fmt.Errorf("recurrent: %s: %w", op, err)
	}
	rows := func(name string, v snug.View, row, width int) operand {
		if row == 0 {
			return operand{name: name, view: v, want: d.Rows * width}
		}
		return operand{name: name, view: v, want: (d.Rows-1)*row + width, longer: true}
	}
	values, keys, g := d.Heads*d.Dim, d.Groups*d.StateDim, &j.g
	list := [12]operand{rows("x", j.x, d.XRow, values), rows("B", j.b, d.BRow, keys), rows("C", j.c, d.CRow, keys), rows("dt", j.dt, d.DtRow, d.Heads),
		rows("y", j.y, 0, values), {name: "A_log", view: j.aLog, want: d.Heads}, {name: "D", view: j.skip, want: d.Heads, optional: true},
		{name: "the bias", view: j.bias, want: d.Heads, optional: true}}
	state := d.count() * d.Heads * d.stateLen()
	singles := [9]operand{{name: "states", view: j.states, want: d.kept(d.count()) * d.Heads * d.stateLen(), optional: !j.back},
		{name: "Initial", view: d.Initial, want: state, optional: true}, {name: "Final", view: d.Final, want: state, optional: true}}
	if j.back {
		list[4].name = "dy"
		list[8], list[9], list[10], list[11] = rows("dx", g.X, d.XRow, values), rows("dB", g.B, d.BRow, keys), rows("dC", g.C, d.CRow, keys), rows("ddt", g.Dt, d.DtRow, d.Heads)
		singles[3], singles[4] = operand{name: "GradInitial", view: d.GradInitial, want: state, optional: true}, operand{name: "GradFinal", view: d.GradFinal, want: state, optional: true}
		singles[5] = operand{name: "the gradient of A_log", view: g.ALog, want: d.Heads, optional: true}
		singles[6] = operand{name: "the gradient of D", view: g.Skip, want: d.Heads, optional: true}
		singles[7] = operand{name: "the gradient of the bias", view: g.Bias, want: d.Heads, optional: true}
		singles[8] = operand{name: "the workspace", view: j.ws, want: d.workspace()}
	}
	return check(op, list[:], singles[:])
}

var ssdScratch cpu.Scratch
