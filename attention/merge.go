package attention

import (
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/rowwise"
)

// Merge computes the attention to all keys from the results of [Forward] for two parts of
// the keys, such as two steps of ring attention:
//
//	lse = log(exp(lse1) + exp(lse2))
//	out = exp(lse1 − lse)·out1 + exp(lse2 − lse)·out2
//
// for every query. Of c it uses only the layout c.Out and the queries. out may be out1 or
// out2, and lse may be lse1 or lse2; otherwise no operands overlap. If a query sees nothing
// of a part, lse −Inf, that part does not count, whatever its out holds. A sink belongs to
// one part only. Accumulate in float32: a 16-bit out is rounded at every call.
//
// [Backward] computes the gradients in q, k and v of a part from the merged out and lse, so
// ring attention needs nothing else. [MergeBackward] is for losses that use the parts.
//
// Devices compute lse in float32, within 2^-22 of the larger of 1 and its magnitude. Errors
// are the errors of [Forward].
func Merge[V snug.Vector, L snug.Vector32](out V, lse L, out1 V, lse1 L, out2 V, lse2 L, c Options) error {
	return merge(mergeJob{
		out: snug.ViewOf(out), lse: snug.ViewOf(lse), c: c,
		out1: snug.ViewOf(out1), lse1: snug.ViewOf(lse1), out2: snug.ViewOf(out2), lse2: snug.ViewOf(lse2),
	})
}

// MergeBackward computes the gradients of a loss in one part of [Merge], out1 and lse1,
// from its gradients in the results: dout, and c.GradLSE unless empty.
//
//	dout1 = w·dout
//	dlse1 = w·(dout · (out1 − out) + dlse)    w = exp(lse1 − lse)
//
// dout1 may be dout. Other operands and errors are as in Merge.
func MergeBackward[V snug.Vector, L snug.Vector32](dout1 V, dlse1 L, dout, out V, lse L, out1 V, lse1 L, c Options) error {
	return merge(mergeJob{
		dout1: snug.ViewOf(dout1), dlse1: snug.ViewOf(dlse1), dout: snug.ViewOf(dout), c: c,
		out: snug.ViewOf(out), lse: snug.ViewOf(lse), out1: snug.ViewOf(out1), lse1: snug.ViewOf(lse1),
		backward: true,
	})
}

// mergeJob is the kernel of Merge, and of MergeBackward, which has no second part.
type mergeJob struct {
	out, lse, out1, lse1, out2, lse2 snug.View
	dout1, dlse1, dout               snug.View
	c                                Options // resolved
	backward                         bool
}

func merge(j mergeJob) error {
	dev, err := j.check()
	if err != nil {
		return err
	}
	return device.Run(dev, j)
}

func (j *mergeJob) check() (*snug.Device, error) {
	var err error
	if j.c, err = j.c.resolve(); err != nil {
		return nil, err
	}
	like := j.c.operands()[3]
	tensors := [4]tensor{{name: "out", view: j.out, like: like}, {name: "out1", view: j.out1, like: like}, {name: "out2", view: j.out2, like: like}}
	vectors := [3]rowVector{{name: "lse", view: j.lse}, {name: "lse1", view: j.lse1}, {name: "lse2", view: j.lse2}}
	n := 3
	if j.backward {
		tensors[2], tensors[3], n = tensor{name: "dout", view: j.dout, like: like}, tensor{name: "dout1", view: j.dout1, like: like}, 4
		vectors[2] = rowVector{name: "dlse1", view: j.dlse1}
	}
	return checkOperands(&j.c, tensors[:n], vectors[:])
}

// Kernel implements [driver.Job].
func (j *mergeJob) Kernel() string { return "attention.merge" }

// Operands implements [driver.Job].
func (j *mergeJob) Operands(yield func(*driver.Mem)) {
	device.Each(yield, &j.out, &j.lse, &j.out1, &j.lse1, &j.out2, &j.lse2, &j.dout1, &j.dlse1, &j.dout)
	extras := j.c.extras()
	device.Each(yield, extras[:]...)
}

// Run implements [driver.Job].
func (j mergeJob) Run() { mergeTask.Run(j.c.queryItems(), j) }

var mergeTask = cpu.NewTask(func(j *mergeJob, item int) {
	c := &j.c
	s, h, q0, q1, ok := c.queryTile(item)
	if !ok {
		return
	}
	buf := scratch.Get(3 * tileQ * c.DimV)
	defer scratch.Put(buf)
	scratch, at := arena(*buf), c.row(&s, h)
	rows := func(v snug.View) tile {
		return s.queryHead(v, c.Out, h, c.DimV).load(scratch.tile(tileQ, c.DimV), q0, q1)
	}
	if j.backward {
		to := s.queryHead(j.dout1, c.Out, h, c.DimV)
		dout, out, out1 := rows(j.dout), rows(j.out), rows(j.out1)
		dout1 := to.target(dout, q0, q1)
		for i := range q1 - q0 {
			j.backwardRow(at+q0+i, dout1.row(i), dout.row(i), out.row(i), out1.row(i))
		}
		to.store(dout1, q0)
		return
	}
	to := s.queryHead(j.out, c.Out, h, c.DimV)
	out1, out2 := rows(j.out1), rows(j.out2)
	out := to.target(out1, q0, q1)
	for i := range q1 - q0 {
		j.row(at+q0+i, out.row(i), out1.row(i), out2.row(i))
	}
	to.store(out, q0)
})

// row merges query number n.
func (j *mergeJob) row(n int, out, out1, out2 []float32) {
	lse1, lse2 := float64(j.lse1.Float32s()[n]), float64(j.lse2.Float32s()[n])
	if math.IsInf(lse2, -1) {
		out2, lse2 = out1, lse1
		lse1 = math.Inf(-1)
	}
	k := rowwise.Registry.Best()
	switch {
	case !math.IsInf(lse1, -1):
		lse := logSum(lse1, lse2)
		w1, w2 := float32(math.Exp(lse1-lse)), float32(math.Exp(lse2-lse))
		for i, x := range out1 {
			out[i] = float32(w1*x) + float32(w2*out2[i])
		}
		lse2 = lse
	case math.IsInf(lse2, -1):
		clear(out)
	default:
		k.Scale(out, out2, 1)
	}
	j.lse.Float32s()[n] = float32(lse2)
}

// logSum returns log(exp(a) + exp(b)).
func logSum(a, b float64) float64 {
	top := max(a, b)
	if math.IsInf(top, 1) {
		return top
	}
	return top + math.Log1p(math.Exp(min(a, b)-top))
}

// backwardRow computes the gradients in query number n of the part.
func (j *mergeJob) backwardRow(n int, dout1, dout, out, out1 []float32) {
	lse, lse1 := float64(j.lse.Float32s()[n]), float64(j.lse1.Float32s()[n])
	dlse1 := &j.dlse1.Float32s()[n]
	if math.IsInf(lse1, -1) {
		clear(dout1)
		*dlse1 = 0
		return
	}
	w, sum := math.Exp(lse1-lse), 0.0
	for i, x := range dout {
		sum += float64(x) * (float64(out1[i]) - float64(out[i]))
	}
	if j.c.GradLSE.Len() > 0 {
		sum += float64(j.c.GradLSE.Float32s()[n])
	}
	*dlse1 = float32(w * sum)
	rowwise.Registry.Best().Scale(dout1, dout, float32(w))
}
