package fused

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/rowwise"
)

// AddRows multiplies the outputs x of one expert by their weights and adds them to the rows of y that chose the expert.
// pairs is the group of the expert that [Group] returns. For each index i, with p = pairs[i]:
//
//	y[p/chosen] += weights[p]·x[i]
//
// If weights is empty, such as []float32(nil), every weight is 1. Then AddRows is the backward pass of the gather by
// [Embedding]: it adds the gradients x of the gathered rows to the gradient y of all rows.
//
// Shapes: y [rows, cols]; x [len(pairs), cols]; weights rows·chosen elements of float32; cols and chosen at least 1.
// The rows p/chosen are strictly ascending, as in every group, and lie within y. Otherwise the error wraps
// [snug.ErrShape] and names the first pair that is wrong. With chosen = 1, pairs are the indices of rows themselves.
//
// Products and sums are float32; each element of y is rounded once a call. y overlaps no operand. Each worker holds
// 16 KiB.
func AddRows[V snug.Vector, L snug.Vector32](y, x V, weights L, pairs []int32, chosen, cols int) error {
	j := addRowsJob{rowPairs: rowPairs{weights: snug.ViewOf(weights), chosen: chosen, cols: cols}, y: snug.ViewOf(y), x: snug.ViewOf(x)}
	check := &checks{op: "AddRows"}
	j.check(check, pairs, operand{"y", j.y}, operand{"x", j.x})
	dev := check.device(j.y, j.x, j.weights)
	if check.err != nil {
		return check.err
	}
	if dev.IsCPU() {
		j.pairs = snug.SliceView(pairs)
		j.Run()
		return nil
	}
	queued := j
	return launchWith(dev, &queued, []upload{indices(pairs, &queued.pairs)})
}

// AddRowsBackward computes the gradients of [AddRows] from the gradient dy of y, and from x:
//
//	dx[i] = weights[p]·dy[p/chosen]
//	dweights[p] = Σ dy[p/chosen][c]·x[i][c]      over the columns c
//
// A call writes only the elements of dweights that pairs names, so that the calls for all experts together write every
// element. If dweights is empty, such as []float32(nil), it is not computed, and x may be empty too.
//
// Shapes: dx has the shape of x in AddRows, dy that of y, and dweights that of weights. dx may be x. Sums are float32;
// their error is at most (cols/4+cols/2048+4)·2^-24 times the sum of magnitudes, as in the other sums of this package.
// Errors are as for AddRows. Each worker holds 16 KiB.
func AddRowsBackward[V snug.Vector, L snug.Vector32](dx V, dweights L, dy, x V, weights L, pairs []int32, chosen, cols int) error {
	check := &checks{op: "AddRowsBackward"}
	j := addRowsBackwardJob{
		rowPairs: rowPairs{weights: snug.ViewOf(weights), chosen: chosen, cols: cols},
		dx:       snug.ViewOf(dx), dweights: snug.ViewOf(dweights), dy: snug.ViewOf(dy), x: snug.ViewOf(x),
	}
	check.f32(operand{"dweights", j.dweights})
	outputs := operand{"x", j.x}
	if j.dweights.Len() == 0 && j.x.Len() == 0 { // neither is used
		outputs = operand{"dx", j.dx}
	}
	rows := j.check(check, pairs, operand{"dy", j.dy}, operand{"dx", j.dx}, outputs)
	check.matrixIfAny(rows, chosen, operand{"dweights", j.dweights})
	dev := check.device(j.dx, j.dweights, j.dy, j.x, j.weights)
	if check.err != nil {
		return check.err
	}
	if dev.IsCPU() {
		j.pairs = snug.SliceView(pairs)
		j.Run()
		return nil
	}
	queued := j
	return launchWith(dev, &queued, []upload{indices(pairs, &queued.pairs)})
}

// rowPairs says to which row of a matrix of all rows each row of the matrix of one expert belongs.
type rowPairs struct {
	weights, pairs snug.View
	chosen, cols   int
}

// check checks the operands of the forward or the backward pass. The first operand is the matrix of all rows; the other
// operands have one row for each pair. It returns the number of all rows.
func (r *rowPairs) check(check *checks, pairs []int32, operands ...operand) (rows int) {
	all := operands[0]
	check.floats(operands...)
	check.f32(operand{"weights", r.weights})
	rows = check.rows(all, r.cols)
	if r.chosen < 1 {
		check.failf(snug.ErrShape, "%d pairs a row, want at least 1", r.chosen)
	}
	check.matrix(len(pairs), r.cols, operands[1:]...)
	check.matrixIfAny(rows, r.chosen, operand{"weights", r.weights})
	if check.err != nil {
		return rows
	}
	last := -1
	for i, p := range pairs {
		row := int(p) / r.chosen
		if p < 0 || row >= rows {
			check.failf(snug.ErrShape, "pairs[%d] is %d, %s has %d rows of %d", i, p, all.name, rows, r.chosen)
		}
		if row <= last {
			check.failf(snug.ErrShape, "pairs[%d] is %d of row %d, want a row above %d", i, p, row, last)
		}
		last = row
	}
	return rows
}

// weight returns the weight of a pair.
func (r *rowPairs) weight(p int32) float32 {
	if w := r.weights.Float32s(); len(w) > 0 {
		return w[p]
	}
	return 1
}

type addRowsJob struct {
	rowPairs
	y, x snug.View
}

func (*addRowsJob) Kernel() string { return "fused.add_rows" }

func (j *addRowsJob) Operands(yield func(*driver.Mem)) {
	device.Each(yield, &j.y, &j.x, &j.weights, &j.pairs)
}

func (j addRowsJob) Run() {
	if n := j.pairs.Len(); n > 0 { // without pairs, cols may be larger than memory
		addRowsTask.Run(cpu.Chunks(n, itemRows(j.cols)), j)
	}
}

var addRowsTask = cpu.NewTask(func(j *addRowsJob, item int) {
	pairs := snug.Host[int32](j.pairs)
	lo, hi := cpu.Chunk(len(pairs), itemRows(j.cols), item)
	if j.y.DType() != snug.F32 {
		j.convert(pairs, lo, hi)
		return
	}
	y, x, k := j.y.Float32s(), j.x.Float32s(), rowwise.F32.Best()
	rowOf := func(i int) []float32 { return y[int(pairs[i])/j.chosen*j.cols:][:j.cols] }
	for i := lo; i < hi; i++ {
		next := min(i+1, len(pairs)-1)
		k.AddScaled(rowOf(i), x[i*j.cols:][:j.cols], j.weight(pairs[i]), rowOf(next), x[next*j.cols:][:j.cols])
	}
})

// convert adds rows lo to hi-1 of x to y, through float32 copies.
func (j *addRowsJob) convert(pairs []int32, lo, hi int) {
	block := min(blockCols, j.cols)
	buf := scratch.Get(2 * block)
	defer scratch.Put(buf)
	for i := lo; i < hi; i++ {
		row := int(pairs[i]) / j.chosen * j.cols
		for c := 0; c < j.cols; c += block {
			n := min(block, j.cols-c)
			y, x := load(cut(buf, 0, n), j.y, row+c), load(cut(buf, 1, n), j.x, i*j.cols+c)
			rowwise.F32.Best().AddScaled(y, x, j.weight(pairs[i]), y, x)
			half.Store(j.y, row+c, y)
		}
	}
}

type addRowsBackwardJob struct {
	rowPairs
	dx, dweights, dy, x snug.View
}

func (*addRowsBackwardJob) Kernel() string { return "fused.add_rows_backward" }

func (j *addRowsBackwardJob) Operands(yield func(*driver.Mem)) {
	device.Each(yield, &j.dx, &j.dweights, &j.dy, &j.x, &j.weights, &j.pairs)
}

func (j addRowsBackwardJob) Run() {
	if n := j.pairs.Len(); n > 0 {
		addRowsBackwardTask.Run(cpu.Chunks(n, itemRows(j.cols)), j)
	}
}

var addRowsBackwardTask = cpu.NewTask(func(j *addRowsBackwardJob, item int) {
	pairs, dweights := snug.Host[int32](j.pairs), j.dweights.Float32s()
	lo, hi := cpu.Chunk(len(pairs), itemRows(j.cols), item)
	block := min(blockCols, j.cols)
	buf := scratch.Get(2 * block)
	defer finish(buf)
	k := rowwise.Registry.Best()
	for i := lo; i < hi; i++ {
		row, weight, sum := int(pairs[i])/j.chosen*j.cols, j.weight(pairs[i]), float32(0)
		for c := 0; c < j.cols; c += block {
			n := min(block, j.cols-c)
			dy := load(cut(buf, 0, n), j.dy, row+c)
			if len(dweights) > 0 {
				sum += k.Dot(dy, load(cut(buf, 1, n), j.x, i*j.cols+c))
			}
			dx := target(cut(buf, 1, n), j.dx, i*j.cols+c)
			k.Scale(dx, dy, weight)
			store(j.dx, i*j.cols+c, dx)
		}
		if len(dweights) > 0 {
			dweights[pairs[i]] = sum
		}
	}
})
