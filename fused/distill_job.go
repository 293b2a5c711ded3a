package fused

import (
	"encoding/binary"
	"math"
	"unsafe"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/rowwise"
)

type distillJob struct {
	head
	teacher head
	ws      snug.View
	weights snug.View // of the rows; empty: 1
	sum     snug.View // the bits of a float64, little-endian

	rows      int
	gradients bool
	gradScale float32
}

func (j *distillJob) Kernel() string {
	if j.gradients {
		return "fused.distill_backward"
	}
	return "fused.distill"
}

func (j *distillJob) Operands(yield func(*driver.Mem)) {
	j.operands(yield)
	j.teacher.operands(yield)
	device.Each(yield, &j.ws, &j.weights, &j.sum)
}

func (j *distillJob) Run() {
	binary.LittleEndian.PutUint64(snug.Host[uint8](j.sum), math.Float64bits(j.sumLosses(j.rows, j.chunk)))
}

// teacherStats is what the tiles of a row of the teacher's logits leave, TeacherStats of distill.h.
type teacherStats struct {
	rowStats
	gapHi, gapLo float32 // Σ of the exponentials times what the teacher's logits are above the student's
}

func (s *teacherStats) gap() float64 { return float64(s.gapHi) + float64(s.gapLo) }

func (s *teacherStats) setGap(x float64) {
	s.gapHi, s.gapLo = float32(x), 0
	if d := x - float64(s.gapHi); d == d { // x is finite
		s.gapLo = float32(d)
	}
}

// teacherLen is the float32 elements of them.
const teacherLen = int(unsafe.Sizeof(teacherStats{}) / 4)

// distillSpace is the workspace of a chunk of rows.
type distillSpace struct {
	headSpace
	logits, stats snug.View // the teacher's
}

func (j *distillJob) distillSpace(rows int) distillSpace {
	at := rows * j.config.rowLen()
	logits := rows * j.config.tile()
	return distillSpace{j.space(j.ws, rows), span(j.ws, at, logits), span(j.ws, at+logits, rows*teacherLen)}
}

// chunk does rows lo to hi-1 and returns their losses. Logits of one tile, without a cap, are
// exponentials after the fold, which is what the gradients need.
func (j *distillJob) chunk(lo, hi int, beta float32) []float32 {
	s := j.distillSpace(hi - lo)
	j.tiles(lo, hi, func(t tile) {
		j.logitsOf(t, s)
		a := j.args(t, s)
		foldPairTask.Run(a.items(), a)
	})
	a := j.args(j.tileAt(lo, hi, 0), s)
	for r := range a.losses {
		a.losses[r] = a.loss(r)
	}
	if !j.gradients {
		return a.losses
	}
	j.tiles(lo, hi, func(t tile) {
		a := j.args(t, s)
		a.exps = t.classes == j.config.Vocab && j.config.Cap == 0
		if !a.exps {
			j.logitsOf(t, s)
		}
		pairGradTask.Run(a.items(), a)
		j.backprop(t, s.headSpace, beta)
	})
	j.store(lo, hi, s.headSpace)
	return a.losses
}

// logitsOf computes the products of a tile for both.
func (j *distillJob) logitsOf(t tile, s distillSpace) {
	j.multiply(t, s.headSpace.logits)
	j.teacher.multiply(t, s.logits)
}

// pairArgs are the logits of a tile of both.
type pairArgs struct {
	logitArgs // the student's
	teacher   logitArgs
	losses    []float32
	stats     []rowStats
	teachers  []teacherStats
	weights   rowWeights
	gradScale float32
	exps      bool // the logits are exponentials already
}

func (j *distillJob) args(t tile, s distillSpace) pairArgs {
	return pairArgs{
		logitArgs: j.head.logitsOf(t, s.headSpace.logits), teacher: j.teacher.logitsOf(t, s.logits),
		losses: s.losses.Float32s(), stats: statsOf(s.headSpace.stats), teachers: teachersOf(s.stats), gradScale: j.gradScale, weights: rowWeightsOf(j.weights, t),
	}
}

func teachersOf(v snug.View) []teacherStats {
	x := v.Float32s()
	return unsafe.Slice((*teacherStats)(unsafe.Pointer(unsafe.SliceData(x))), len(x)/teacherLen)
}

// foldPairTask adds the logits of a tile, which become exponentials, to the statistics.
var foldPairTask = cpu.NewTask(func(a *pairArgs, item int) {
	a.each(item, func(r int, buf []float32) {
		s, t := &a.stats[r], &a.teachers[r]
		if a.from == 0 {
			*s, *t = noLogits(), teacherStats{rowStats: noLogits()}
		}
		if a.weights.of(r) != 0 {
			z, q := a.logitsOf(r), a.teacher.logitsOf(r)
			a.finish(z, buf)
			a.teacher.finish(q, buf)
			t.fold(q, z, buf)
			s.fold(z)
		}
	})
})

// fold adds the teacher's logits q of a tile, which become exponentials, beside the student's z.
func (s *teacherStats) fold(q, z, buf []float32) {
	k := rowwise.Registry.Best()
	max, factor := s.raise(q)
	sumExp, gap := s.sumExp()*factor, 0.0
	if factor != 0 { // of an infinite gap too
		gap = s.gap() * factor
	}
	for at := 0; at < len(q); at += expBlock {
		block := q[at:min(at+expBlock, len(q))]
		above := buf[:len(block)]
		copy(above, z[at:])
		k.Axpby(above, block, 1, -1)
		sumExp += float64(k.ExpSum(block, block, max))
		gap += dotPositive(block, above)
	}
	s.setSumExp(sumExp)
	s.setGap(gap)
}

// dotPositive returns Σ p[j]·x[j] over the positive p[j]: a class that the teacher excludes may have any logit.
func dotPositive(p, x []float32) float64 {
	if sum := rowwise.Registry.Best().Dot(p, x); sum == sum {
		return float64(sum)
	}
	sum := 0.0
	for i, x := range x {
		if p[i] != 0 {
			sum += float64(p[i]) * float64(x)
		}
	}
	return sum
}

// loss returns the loss of a row from its statistics.
func (a *pairArgs) loss(r int) float32 {
	if a.weights.of(r) == 0 {
		return 0
	}
	s, t := &a.stats[r], &a.teachers[r]
	loss := t.gap()/t.sumExp() - (t.lse() - s.lse())
	if loss < 0 {
		loss = 0
	}
	return float32(float64(a.weights.of(r)) * loss)
}

// pairGradTask replaces the student's logits of a tile by their gradients.
var pairGradTask = cpu.NewTask(func(a *pairArgs, item int) {
	a.each(item, func(r int, buf []float32) {
		if a.weights.of(r) == 0 {
			clear(a.logitsOf(r))
		} else {
			a.dlogits(r, buf)
		}
		a.round(r)
	})
})

func (a *pairArgs) dlogits(r int, buf []float32) {
	k := rowwise.Registry.Best()
	z, q, s, t := a.logitsOf(r), a.teacher.logitsOf(r), &a.stats[r], &a.teachers[r]
	if !a.exps {
		a.finish(z, buf)
		a.teacher.finish(q, buf)
		expSum(q, q, t.max, nil)
	}
	scale := float64(a.gradScale * a.weights.of(r) * a.scale)
	k.ScaleAbove(q, float32(scale/t.sumExp()), flushBelow)
	a.gradient(z, dlogits{exps: a.exps, max: s.max, factor: float32(scale / s.sumExp()), less: q}, buf)
}
