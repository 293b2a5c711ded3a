package recurrent

import (
	"fmt"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
)

// Delta is the gated delta rule of Yang, Kautz and Hatamizadeh, "Gated Delta Networks" (2024, arXiv:2412.06464). Each head has a state S of
// KeyDim rows and Dim columns, which a row of the sequence decays, corrects where its key points, and reads:
//
//	S   ← exp(g_t)·S
//	S   ← S + k_t ⊗ β_t·(v_t − Sᵀk_t)
//	o_t = Sᵀ(Scale·q_t)
//
// It is computed in chunks of 64 rows, as products of matrices. With Γ the sums of g from a chunk's first row on, S the state before the
// chunk, and D_ij = exp(Γ_i − Γ_j) for j ≤ i, else 0,
//
//	A = strictly lower part of β·(K Kᵀ)∘D
//	X = (I + A)⁻¹ β·(V − exp(Γ)·(K S))
//	O = exp(Γ)·(Q S) + ((Q Kᵀ)∘D) X
//	S ← exp(Γ_last)·S + (exp(Γ_last − Γ)·K)ᵀ X
//
// A chunk of one row, as in generating, takes the recurrence itself. Heads/KeyHeads heads one after the other share a q and a k.
type Delta struct {
	Batch
	KeyHeads, Heads int     // Heads is a multiple of KeyHeads
	KeyDim, Dim     int     // of a head of q and k, and of v
	Scale           float32 // of q; 0: 1/√KeyDim
	Normalize       bool    // q and k are divided by √(Σx² + 1e-6) first
	// QRow, KRow and VRow are the elements from row to row of q, k and v and of their gradients; 0: rows lie side by side.
	QRow, KRow, VRow int
	// Initial and Final are the states before and behind each sequence, [sequences, Heads, KeyDim, Dim] of float32, of
	// which an empty Initial is zeros and an empty Final is not written. GradInitial and GradFinal are their gradients in DeltaBackward.
	Initial, Final, GradInitial, GradFinal snug.View
}

const (
	chunkRows = 64
	segment   = 8 // chunks
	// SegmentRows is after how many rows of a sequence the forward pass keeps a state.
	SegmentRows = segment * chunkRows
	normEps     = 1e-6
)

func (d *Delta) check() error {
	if err := d.Batch.check(); err != nil {
		return err
	}
	if d.KeyHeads < 1 || d.Heads < 1 || d.Heads%d.KeyHeads != 0 {
		return fmt.Errorf("%d heads and %d of keys, want a multiple of these: %w", d.Heads, d.KeyHeads, snug.ErrShape)
	}
	if d.Scale-d.Scale != 0 || d.Scale < 0 {
		return fmt.Errorf("the Scale is %v, want a positive number, or 0 for 1/√KeyDim: %w", d.Scale, snug.ErrConfig)
	}
	for _, row := range [...]struct {
		name       string
		have, want int
	}{{"QRow", d.QRow, d.KeyHeads * d.KeyDim}, {"KRow", d.KRow, d.KeyHeads * d.KeyDim}, {"VRow", d.VRow, d.Heads * d.Dim}} {
		if row.have != 0 && row.have < row.want || row.have > math.MaxInt32 {
			return fmt.Errorf("%s is %d, want %d or more: %w", row.name, row.have, row.want, snug.ErrShape)
		}
	}
	if _, err := product(d.Rows, max(d.QRow, d.KRow, d.VRow, 1)); err != nil {
		return err
	}
	for _, f := range [...][4]int{{d.Rows, d.Heads, max(d.KeyDim, d.Dim), 1}, {d.count(), d.Heads, d.KeyDim, d.Dim}, {d.Rows/SegmentRows + 1, d.Heads, d.KeyDim, d.Dim}} {
		if _, err := product(f[0], f[1], f[2], f[3]); err != nil {
			return err
		}
	}
	return nil
}

// StateLen returns the elements of Initial and Final, 0 for a Delta that is not valid.
func (d Delta) StateLen() int {
	if d.check() != nil {
		return 0
	}
	return d.count() * d.stateLen() * d.Heads
}

// StatesLen returns the elements of what DeltaForward keeps for DeltaBackward: a state for every SegmentRows rows of a sequence
// but the first; 0 for a Delta that is not valid.
func (d Delta) StatesLen() int {
	if d.check() != nil {
		return 0
	}
	return d.kept(d.count()) * d.Heads * d.stateLen()
}

// ScratchBytes returns the most bytes that a worker holds while it computes forward, or backward.
func (d Delta) ScratchBytes(backward bool) int64 {
	if d.check() != nil {
		return 0
	}
	return 4 * int64(d.scratch(backward))
}

func (d *Delta) stateLen() int { return d.KeyDim * d.Dim }

func (d *Delta) scratch(backward bool) int {
	c, square := chunkRows, chunkRows*chunkRows
	common := 3*c*d.KeyDim + 2*c*d.Dim + 4*square + 8*c
	if !backward {
		return common + d.stateLen()
	}
	rows := (d.longest(SegmentRows) + c - 1) / c * c
	n := common + 4*rows*d.KeyDim + 2*rows*d.Dim + 2*rows + 3*rows*c // of a segment
	n += (rows/c+1)*d.stateLen() + d.Heads/d.KeyHeads*d.stateLen()
	return n + 3*c*d.Dim + c*d.KeyDim + 3*square + 4*c
}

// scale returns the factor of q.
func (d *Delta) scale() float32 {
	if d.Scale == 0 {
		return float32(1 / math.Sqrt(float64(d.KeyDim)))
	}
	return d.Scale
}

// DeltaForward computes out. q and k have Rows·KeyHeads·KeyDim elements and v and out Rows·Heads·Dim, unless QRow, KRow or
// VRow say that rows lie further apart; g and beta have Rows·Heads. states, of StatesLen elements, takes what the backward pass
// needs; it may be empty if there is none.
func DeltaForward[V snug.Vector, L snug.Vector32](out, q, k, v V, g, beta, states L, d Delta) error {
	j := deltaJob{out: snug.ViewOf(out), q: snug.ViewOf(q), k: snug.ViewOf(k), v: snug.ViewOf(v),
		g: snug.ViewOf(g), beta: snug.ViewOf(beta), states: snug.ViewOf(states), d: d}
	if err := j.check("DeltaForward"); err != nil {
		return err
	}
	deltaForward.Run(d.count()*d.KeyHeads, j)
	return nil
}

// DeltaBackward computes the gradients of q, k, v, g and beta from dout, that of out, and from the operands and the states of
// DeltaForward. It overwrites them; they have the shapes of what they are of.
func DeltaBackward[V snug.Vector, L snug.Vector32](dq, dk, dv V, dg, dbeta L, dout, q, k, v V, g, beta, states L, d Delta) error {
	j := deltaJob{out: snug.ViewOf(dout), q: snug.ViewOf(q), k: snug.ViewOf(k), v: snug.ViewOf(v),
		g: snug.ViewOf(g), beta: snug.ViewOf(beta), states: snug.ViewOf(states), d: d, back: true,
		dq: snug.ViewOf(dq), dk: snug.ViewOf(dk), dv: snug.ViewOf(dv), dg: snug.ViewOf(dg), dbeta: snug.ViewOf(dbeta)}
	if err := j.check("DeltaBackward"); err != nil {
		return err
	}
	deltaBackward.Run(d.count()*d.KeyHeads, j)
	return nil
}

type deltaJob struct {
	out, q, k, v, g, beta, states snug.View // out: its gradient in the backward pass
	back                          bool
	dq, dk, dv, dg, dbeta         snug.View
	d                             Delta
}

func (j *deltaJob) check(op string) error {
	d := &j.d
	if err := d.check(); err != nil {
		return fmt.Errorf("recurrent: %s: %w", op, err)
	}
	keys, values := d.KeyHeads*d.KeyDim, d.Heads*d.Dim
	rows := func(name string, v snug.View, row, width int) operand {
		if row == 0 {
			return operand{name: name, view: v, want: d.Rows * width}
		}
		return operand{name: name, view: v, want: (d.Rows-1)*row + width, longer: true}
	}
	list := [7]operand{rows("q", j.q, d.QRow, keys), rows("k", j.k, d.KRow, keys), rows("v", j.v, d.VRow, values), rows("out", j.out, 0, values)}
	n, state := d.Rows*d.Heads, d.count()*d.Heads*d.stateLen()
	states := d.kept(d.count()) * d.Heads * d.stateLen()
	singles := [9]operand{{name: "g", view: j.g, want: n}, {name: "beta", view: j.beta, want: n}, {name: "states", view: j.states, want: states, optional: !j.back},
		{name: "Initial", view: d.Initial, want: state, optional: true}, {name: "Final", view: d.Final, want: state, optional: true}}
	if j.back {
		list[3].name = "dout"
		list[4], list[5], list[6] = rows("dq", j.dq, d.QRow, keys), rows("dk", j.dk, d.KRow, keys), rows("dv", j.dv, d.VRow, values)
		singles[5], singles[6] = operand{name: "dg", view: j.dg, want: n}, operand{name: "dbeta", view: j.dbeta, want: n}
		singles[7], singles[8] = operand{name: "GradInitial", view: d.GradInitial, want: state, optional: true}, operand{name: "GradFinal", view: d.GradFinal, want: state, optional: true}
	}
	return check(op, list[:], singles[:])
}

var deltaScratch cpu.Scratch
