package fused

import (
	"fmt"
	"math"

	"github.com/snug-ml/snug"
)

// Distill returns the Kullback-Leibler divergence of a student's classes from a teacher's, without
// the logits of either. With p and q the softmax of the logits of student and teacher, as
// [CrossEntropy] defines them, and ω the student's weight of the row
//
//	loss[i] = ω·Σ q[j]·(log q[j] − log p[j])
//
// The temperature of both is usually the same, T. Hinton et al., "Distilling the Knowledge in a
// Neural Network" (2015), multiply the loss by T², to keep the size of the gradients: pass T² times
// the gradScale.
//
// A row with the weight 0 is ignored: its logits may even be NaN. Targets of the result are the
// other rows.
//
// Shapes: x [rows, student.Cols]; w [Vocab, student.Cols]; teacherX [rows, teacher.Cols]; teacherW
// [Vocab, teacher.Cols], of a type of their own; ws at least DistillWorkspaceLen(student, teacher,
// rows) elements. Both have the same Vocab; Chunk and Tile are the student's. The teacher may have
// Cap, Temperature and Bias. Smoothing and ZLoss of both are 0. The call waits for the device.
//
// A divergence below 0, which only rounding gives, counts as 0.
func Distill[V, T snug.Vector, L snug.Vector32](student, teacher CrossEntropy, x, w V, teacherX, teacherW T, ws L) (Loss, error) {
	job := distillJob{
		head:    head{config: student, x: snug.ViewOf(x), w: snug.ViewOf(w)},
		teacher: head{config: teacher, x: snug.ViewOf(teacherX), w: snug.ViewOf(teacherW)}, ws: snug.ViewOf(ws),
	}
	return job.launch("Distill")
}

// DistillBackward is [Distill], and computes the student's gradients of gradScale·Sum:
//
//	g[j] = gradScale·ω·(p[j] − q[j])
//	dx = g·w
//	dw ← gᵀ·x
//
// with g times 1/Temperature, and times the slope of the cap, as in [CrossEntropyBackward]. dx, dw and
// into are those of that function, also what they may be. With one tile the products for the logits
// are computed once, else twice.
func DistillBackward[V, T snug.Vector, G, L snug.Vector32](student, teacher CrossEntropy, dx V, dw G, x, w V, teacherX, teacherW T, gradScale float32, into snug.Into, ws L) (Loss, error) {
	job := distillJob{
		head:    head{config: student, dx: snug.ViewOf(dx), dw: snug.ViewOf(dw), x: snug.ViewOf(x), w: snug.ViewOf(w), into: into},
		teacher: head{config: teacher, x: snug.ViewOf(teacherX), w: snug.ViewOf(teacherW)}, ws: snug.ViewOf(ws),
		gradients: true, gradScale: gradScale,
	}
	return job.launch("DistillBackward")
}

// DistillWorkspaceLen returns the workspace of [Distill] and [DistillBackward] for rows rows, in
// float32 elements: the student's WorkspaceLen and, for each of a chunk's rows, Tile+6 elements for the
// teacher. It is 0 when the arguments are not valid.
func DistillWorkspaceLen(student, teacher CrossEntropy, rows int) int {
	own := student.WorkspaceLen(rows)
	if own == 0 || !teacher.valid() {
		return 0
	}
	more := product(student.chunk(rows), min(student.tile(), math.MaxInt-teacherLen)+teacherLen)
	return own + min(more, math.MaxInt-own)
}

func (j distillJob) launch(op string) (Loss, error) {
	if err := j.check(op); err != nil {
		return Loss{}, err
	}
	dev, err := commonDevice(op, j.dx, j.dw, j.x, j.w, j.config.Bias, j.config.DBias, j.teacher.x, j.teacher.w, j.teacher.config.Bias, j.ws)
	if err != nil {
		return Loss{}, err
	}
	j.rows = j.x.Len() / j.config.Cols
	loss := Loss{Targets: j.rows, Weight: float64(j.rows)}
	if weights := j.config.Weights; weights != nil {
		loss.Targets, loss.Weight = 0, 0
		for _, x := range weights {
			loss.Weight += float64(x)
			if x != 0 {
				loss.Targets++
			}
		}
	}
	if dev.IsCPU() {
		j.weights = snug.SliceView(j.config.Weights)
		loss.Sum = j.run()
		return loss, nil
	}
	queued := j
	if loss.Sum, err = launchSum(dev, &queued, &queued.sum, weightsUpload(nil, j.config.Weights, &queued.weights)); err != nil {
		return Loss{}, err
	}
	return loss, nil
}

// ofTeacher is the operation that errors of the teacher's operands name.
const ofTeacher = "the teacher of Distill"

func (j *distillJob) check(op string) error {
	for _, c := range []CrossEntropy{j.config, j.teacher.config} {
		if err := c.check(op); err != nil {
			return err
		}
		if c.Smoothing != 0 || c.ZLoss != 0 {
			return fmt.Errorf("fused: %s: Smoothing or ZLoss, which belong to the cross-entropy: %w", op, snug.ErrConfig)
		}
	}
	t := j.teacher.config
	if t.Vocab != j.config.Vocab || t.Chunk != 0 || t.Tile != 0 || t.Weights != nil {
		return fmt.Errorf("fused: %s: the teacher has Vocab %d, Chunk %d, Tile %d and %d Weights, want the student's Vocab %d and no others: %w",
			op, t.Vocab, t.Chunk, t.Tile, len(t.Weights), j.config.Vocab, snug.ErrConfig)
	}
	j.teacher.config.DBias = snug.View{}
	j.teacher.config.Tile = j.config.tile()
	if !j.gradients {
		j.config.DBias = snug.View{}
	} else if err := j.checkGradients(op, j.gradScale); err != nil {
		return err
	}
	if err := j.checkTypes(op, j.gradients); err != nil {
		return err
	}
	if err := j.teacher.checkTypes(ofTeacher, false); err != nil {
		return err
	}
	if err := checkF32(op, operand{"ws", j.ws}); err != nil {
		return err
	}
	rows, err := checkRows(op, operand{"x", j.x}, j.config.Cols)
	if err != nil {
		return err
	}
	if err := j.checkLens(op, rows, j.gradients); err != nil {
		return err
	}
	if err := j.teacher.checkLens(ofTeacher, rows, false); err != nil {
		return err
	}
	if err := checkWorkspace(op, j.ws, DistillWorkspaceLen(j.config, j.teacher.config, rows)); err != nil {
		return err
	}
	return j.config.checkWeights(op, rows, "rows")
}
