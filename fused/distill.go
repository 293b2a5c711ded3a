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
// A row with the weight 0 is ignored: its loss and gradients are 0, whatever its logits are. A NaN in
// such a row of x still reaches dw, as 0·NaN. Loss.Targets counts the other rows.
//
// Shapes: x [rows, student.Cols]; w [Vocab, student.Cols]; teacherX [rows, teacher.Cols]; teacherW
// [Vocab, teacher.Cols], of a type of their own; ws at least DistillWorkspaceLen(student, teacher,
// rows) elements. Both have the same Vocab. The student's Chunk, Tile and Weights are used, and the
// teacher's must be unset. The teacher may have Cap, Temperature and Bias, and no DBias. Smoothing and
// ZLoss of both are 0. The call waits for the device.
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
//	DBias ← Σ g over the rows
//
// with g times 1/Temperature, and times the slope of the cap, as in [CrossEntropyBackward]. dx, dw and
// into are those of that function, also what they may be. The products for the logits are computed once
// with one tile, and twice with more, or on the CPU with a Cap of the student.
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
	if student.WorkspaceLen(rows) == 0 || checkPair("", student, teacher) != nil {
		return 0
	}
	return distillLen(student, rows)
}

func distillLen(student CrossEntropy, rows int) int {
	own := student.WorkspaceLen(rows)
	more := product(student.chunk(max(0, rows)), min(student.tile(), math.MaxInt-teacherLen)+teacherLen)
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
		loss.Sum = j.sumLosses(j.rows, j.chunk)
		return loss, nil
	}
	queued := j
	if loss.Sum, err = launchSum(dev, &queued, &queued.sum, weightsUpload(nil, j.config.Weights, &queued.weights)); err != nil {
		return Loss{}, err
	}
	return loss, nil
}

// checkPair reports what is wrong with the configurations, or how they do not go together.
func checkPair(op string, student, teacher CrossEntropy) error {
	if err := student.checkPlain(op, "the student's ", false); err != nil {
		return err
	}
	if err := student.check(op, "the student's "); err != nil {
		return err
	}
	if err := teacher.checkPlain(op, "the teacher's ", false); err != nil {
		return err
	}
	if err := teacher.check(op, "the teacher's "); err != nil {
		return err
	}
	if t := teacher; t.Vocab != student.Vocab || t.Chunk != 0 || t.Tile != 0 || t.Weights != nil || t.DBias.Len() > 0 {
		return fmt.Errorf("fused: %s: the teacher has Vocab %d, Chunk %d, Tile %d, %d Weights and %d elements of DBias, want the student's Vocab %d and none of the others: %w",
			op, t.Vocab, t.Chunk, t.Tile, len(t.Weights), t.DBias.Len(), student.Vocab, snug.ErrConfig)
	}
	return nil
}

func (j *distillJob) check(op string) error {
	if err := checkPair(op, j.config, j.teacher.config); err != nil {
		return err
	}
	j.teacher.config.Tile = j.config.tile()
	if !j.gradients {
		j.config.DBias = snug.View{}
	} else if err := j.checkGradients(op, j.gradScale); err != nil {
		return err
	}
	if err := j.checkTypes(op, studentNames, j.gradients); err != nil {
		return err
	}
	if err := j.teacher.checkTypes(op, teacherNames, false); err != nil {
		return err
	}
	if err := checkF32(op, operand{"ws", j.ws}); err != nil {
		return err
	}
	rows, err := checkRows(op, operand{"x", j.x}, j.config.Cols)
	if err != nil {
		return err
	}
	if err := j.checkLens(op, studentNames, rows, j.gradients); err != nil {
		return err
	}
	if err := j.teacher.checkLens(op, teacherNames, rows, false); err != nil {
		return err
	}
	if err := checkWorkspace(op, j.ws, distillLen(j.config, rows)); err != nil {
		return err
	}
	return j.config.checkWeights(op, rows, "rows")
}
