package fused

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/rowwise"
)

// BiasAdd adds a bias to each row, in float32 and rounded once:
//
//	out[j] = x[j] + bias[j]
//
// Shapes: bias [cols], at least one column; x and out [rows, cols]. The backward pass
// keeps nothing: the gradient of x equals the gradient of out, and [BiasAddBackward] computes the
// gradient of bias.
//
// Aliasing: out may be x. Each worker holds cols float32 and 8 KiB.
func BiasAdd[V snug.Vector](out, x, bias V) error {
	return biasGELU("BiasAdd", noGELU, snug.ViewOf(out), snug.ViewOf(x), snug.ViewOf(bias))
}

// BiasAddBackward computes the gradient of [BiasAdd]'s bias from the gradient dy of its
// output:
//
//	dbias[j] ← Σ over rows of dy[j]
//
// where ← applies into, see [snug.Into]. The sum is float32, in an order that depends on rows alone.
//
// Shapes: dbias [cols], at least one column; dy [rows, cols], whose sum is 0 without
// rows. ws has at least BiasAddWorkspaceLen(rows, cols) elements. Each worker holds cols
// float32.
func BiasAddBackward[G, L snug.Vector32, V snug.Vector](dbias G, dy V, into snug.Into, ws L) error {
	return biasAddBackward(snug.ViewOf(dbias), snug.ViewOf(dy), into, snug.ViewOf(ws))
}

// BiasAddWorkspaceLen returns the workspace of [BiasAddBackward] in float32 elements: a
// sum a column for each of at most 128 parts of the rows.
func BiasAddWorkspaceLen(rows, cols int) int { return partialLen(rows, cols) }

func biasAddBackward(dbias, dy snug.View, into snug.Into, ws snug.View) error {
	check := &checks{op: "BiasAddBackward"}
	into = check.into(into)
	check.floats(operand{"dy", dy})
	check.f32(operand{"dbias", dbias}, operand{"ws", ws})
	cols := dbias.Len()
	rows := check.rows(operand{"dy", dy}, cols)
	check.workspace(ws, BiasAddWorkspaceLen(rows, cols))
	return run(check, biasAddBackwardJob{dbias, dy, ws, rows, cols, into}, dbias, dy, ws)
}

type biasAddBackwardJob struct {
	dbias, dy, ws snug.View

	rows, cols int
	into       snug.Into
}

func (*biasAddBackwardJob) Kernel() string { return "fused.bias_add_backward" }

func (j *biasAddBackwardJob) Operands(yield func(*driver.Mem)) {
	device.Each(yield, &j.dbias, &j.dy, &j.ws)
}

// Run leaves the partial sums of part p at ws[p][cols].
func (j biasAddBackwardJob) Run() {
	n := parts(j.rows)
	biasSumsTask.Run(n, j)
	addParts(j.dbias.Float32s(), j.ws.Float32s(), 0, n, j.cols, j.into, nil)
}

var biasSumsTask = cpu.NewTask(func(j *biasAddBackwardJob, part int) {
	buf := scratch.Get(j.cols)
	defer scratch.Put(buf)
	sums := j.ws.Float32s()[part*j.cols:][:j.cols]
	clear(sums)
	lo, hi := cpu.Chunk(j.rows, partRows(j.rows), part)
	ahead := j.cols * pageRows(j.dy, j.cols)
	for at := lo * j.cols; at < hi*j.cols; at += j.cols {
		next := min(at+ahead, (hi-1)*j.cols) // a kernel fetches it early
		if k := direct(j.dy); k != nil {
			k.AddScaled(sums, bits(j.dy, at, at+j.cols), 1, sums, bits(j.dy, next, next+j.cols))
			continue
		}
		dy := load(*buf, j.dy, at)
		soon := dy
		if j.dy.DType() == snug.F32 {
			soon = j.dy.Float32s()[next:][:j.cols]
		}
		rowwise.F32.Best().AddScaled(sums, dy, 1, sums, soon)
	}
})
