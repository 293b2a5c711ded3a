package fused

import (
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
	check := &checks{}
	if checkPair(check, student, teacher); student.WorkspaceLen(rows) == 0 || check.err != nil {
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
	check := &checks{op: op}
	j.check(check)
	dev := check.device(j.dx, j.dw, j.x, j.w, j.config.Bias, j.config.DBias, j.teacher.x, j.teacher.w, j.teacher.config.Bias, j.ws)
	if check.err != nil {
		return Loss{}, check.err
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
	sum, err := launchSum(dev, &queued, &queued.sum, weightsUpload(nil, j.config.Weights, &queued.weights))
	if err != nil {
		return Loss{}, err
	}
	loss.Sum = sum
	return loss, nil
}

// checkPair reports what is wrong with the configurations, or how they do not go together.
func checkPair(check *checks, student, teacher CrossEntropy) {
	student.checkPlain(check, "the student's ", false)
	student.check(check, "the student's ")
	teacher.checkPlain(check, "the teacher's ", false)
	teacher.check(check, "the teacher's ")
	if t := teacher; t.Vocab != student.Vocab || t.Chunk != 0 || t.Tile != 0 || t.Weights != nil || t.DBias.Len() > 0 {
		check.failf(snug.ErrConfig, "the teacher has Vocab %d, Chunk %d, Tile %d, %d Weights and %d elements of DBias, want the student's Vocab %d and none of the others",
			t.Vocab, t.Chunk, t.Tile, len(t.Weights), t.DBias.Len(), student.Vocab)
	}
}

func (j *distillJob) check(check *checks) {
	checkPair(check, j.config, j.teacher.config)
	j.teacher.config.Tile = j.config.tile()
	j.checkGradients(check, j.gradients, j.gradScale)
	j.checkTypes(check, studentNames, j.gradients)
	j.teacher.checkTypes(check, teacherNames, false)
	check.f32(operand{"ws", j.ws})
	rows := check.rows(operand{"x", j.x}, j.config.Cols)
	j.checkLens(check, studentNames, rows, j.gradients)
	j.teacher.checkLens(check, teacherNames, rows, false)
	check.workspace(j.ws, distillLen(j.config, rows))
	j.config.checkWeights(check, rows, "rows")
}
