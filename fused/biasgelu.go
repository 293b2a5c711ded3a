package fused

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/rowwise"
)

// BiasGELU adds a bias to each row and applies GELU in the tanh approximation of GPT-2
// (Hendrycks and Gimpel, 2016), which Hugging Face calls gelu_new. [BiasGELUErf] computes
// the exact GELU.
//
//	out[j] = gelu(x[j] + bias[j])
//	gelu(z) = ½z(1 + tanh(√(2/π)(z + 0.044715z³)))
//
// Shapes: bias [cols], at least one column; x and out [rows, cols]. The
// backward pass needs x and bias, so nothing else is kept; neither z nor tanh is
// stored.
//
// Aliasing: out may be x, when no backward pass follows. gelu(z) is within
// 1.2e-7·max(1, |z|) of the true one and the derivative of the backward pass
// within 2e-7. For bfloat16 they may be off by 1.2e-5·max(1, |z|) and 5e-6 before
// the result is rounded. gelu(−Inf) is −0, the limit. Each worker holds cols
// float32 and 8 KiB.
func BiasGELU[V snug.Vector](out, x, bias V) error {
	return biasGELU("BiasGELU", geluTanh, snug.ViewOf(out), snug.ViewOf(x), snug.ViewOf(bias))
}

// BiasGELUBackward computes the gradients of [BiasGELU] from the gradient dy
// of its output and its input:
//
//	dx[j] = dy[j]·gelu′(x[j] + bias[j])
//	dbias[j] ← Σ over rows of dx[j]
//
// where ← applies into, see [snug.Into]. The sum is of dx before it is rounded to its type.
//
// Shapes: dx, dy and x [rows, cols]; bias and dbias [cols], at least one
// column. With a frozen bias, dbias and ws may be empty: []float32(nil). ws has at least
// BiasGELUWorkspaceLen(rows, cols) elements.
//
// Aliasing: dx may be dy or x. Each worker holds 2·cols float32 and 16 KiB.
func BiasGELUBackward[V snug.Vector, G, L snug.Vector32](dx V, dbias G, dy, x, bias V, into snug.Into, ws L) error {
	return biasGELUBackward("BiasGELUBackward", geluTanh, snug.ViewOf(dx), snug.ViewOf(dbias),
		snug.ViewOf(dy), snug.ViewOf(x), snug.ViewOf(bias), into, snug.ViewOf(ws))
}

// BiasGELUErf is [BiasGELU] with GELU itself, as BERT and PyTorch's default have it
// (approximate='none'):
//
//	gelu(z) = z·Φ(z) = ½z(1 + erf(z/√2))
//
// The two differ by up to 4.8e-4. For bfloat16 too, gelu(z) is within
// 1.2e-7·max(1, |z|) of the true one before the result is rounded, and the derivative
// within 2e-7.
func BiasGELUErf[V snug.Vector](out, x, bias V) error {
	return biasGELU("BiasGELUErf", geluErf, snug.ViewOf(out), snug.ViewOf(x), snug.ViewOf(bias))
}

// BiasGELUErfBackward computes the gradients of [BiasGELUErf] as [BiasGELUBackward]
// does those of BiasGELU, with gelu′(z) = Φ(z) + z·φ(z). ws has at least
// BiasGELUWorkspaceLen(rows, cols) elements.
func BiasGELUErfBackward[V snug.Vector, G, L snug.Vector32](dx V, dbias G, dy, x, bias V, into snug.Into, ws L) error {
	return biasGELUBackward("BiasGELUErfBackward", geluErf, snug.ViewOf(dx), snug.ViewOf(dbias),
		snug.ViewOf(dy), snug.ViewOf(x), snug.ViewOf(bias), into, snug.ViewOf(ws))
}

// geluForm is one of the two definitions of GELU, or none: then there is the bias alone, see [BiasAdd].
type geluForm int

const (
	geluTanh geluForm = iota
	geluErf
	noGELU
)

// BiasGELUWorkspaceLen returns the workspace of [BiasGELUBackward] and
// [BiasGELUErfBackward] in float32 elements: a sum a column for each of at most 128 parts of the rows.
func BiasGELUWorkspaceLen(rows, cols int) int { return partialLen(rows, cols) }

func biasGELU(op string, form geluForm, out, x, bias snug.View) error {
	check := &checks{op: op}
	check.floats(operand{"x", x}, operand{"out", out}, operand{"bias", bias})
	cols := bias.Len()
	rows := check.rows(operand{"x", x}, cols)
	check.matrix(rows, cols, operand{"out", out})
	return run(check, biasGELUJob{out, x, bias, rows, cols, form}, out, x, bias)
}

func biasGELUBackward(op string, form geluForm, dx, dbias, dy, x, bias snug.View, into snug.Into, ws snug.View) error {
	check := &checks{op: op}
	into = check.into(into)
	check.floats(operand{"x", x}, operand{"dx", dx}, operand{"dy", dy}, operand{"bias", bias})
	check.f32(operand{"dbias", dbias}, operand{"ws", ws})
	cols := bias.Len()
	rows := check.rows(operand{"x", x}, cols)
	check.matrix(rows, cols, operand{"dx", dx}, operand{"dy", dy})
	frozen := dbias.Len() == 0
	if !frozen {
		check.len(cols, operand{"dbias", dbias})
		check.workspace(ws, BiasGELUWorkspaceLen(rows, cols))
	}
	return run(check, biasGELUBackwardJob{dx, dbias, dy, x, bias, ws, rows, cols, into, frozen, form}, dx, dbias, dy, x, bias, ws)
}

type biasGELUJob struct {
	out, x, bias snug.View

	rows, cols int
	form       geluForm
}

func (j *biasGELUJob) Kernel() string {
	return [...]string{"fused.bias_gelu", "fused.bias_gelu_erf", "fused.bias_add"}[j.form]
}

func (j *biasGELUJob) Operands(yield func(*driver.Mem)) { device.Each(yield, &j.out, &j.x, &j.bias) }

func (j biasGELUJob) Run() { biasGELUTask.Run(cpu.Chunks(j.rows, itemRows(j.cols)), j) }

var biasGELUTask = cpu.NewTask(func(j *biasGELUJob, item int) {
	lo, hi := cpu.Chunk(j.rows, itemRows(j.cols), item)
	block := min(blockCols, j.cols)
	buf := scratch.Get(block + j.cols)
	defer finish(buf)
	if k := direct(j.x); k != nil {
		bias, gelu, stream := bits(j.bias, 0, j.cols), geluLoop(k, j.form), streams(j.out, j.x)
		for at := lo * j.cols; at < hi*j.cols; at += j.cols {
			gelu(bits(j.out, at, at+j.cols), bits(j.x, at, at+j.cols), bias, stream)
		}
		return
	}
	row, bias, gelu := (*buf)[:block], load((*buf)[block:], j.bias, 0), geluLoop(rowwise.F32.Best(), j.form)
	stream := streams32(j.out, j.x)
	for r := lo; r < hi; r++ {
		for c := 0; c < j.cols; c += block {
			at, n := r*j.cols+c, min(block, j.cols-c)
			x := load(row[:n], j.x, at)
			out := target(row[:n], j.out, at)
			gelu(out, x, bias[c:c+n], stream)
			store(j.out, at, out)
		}
	}
})

type biasGELUBackwardJob struct {
	dx, dbias, dy, x, bias, ws snug.View

	rows, cols int
	into       snug.Into
	frozen     bool
	form       geluForm
}

func (j *biasGELUBackwardJob) Kernel() string {
	return [...]string{"fused.bias_gelu_backward", "fused.bias_gelu_erf_backward"}[j.form]
}

func (j *biasGELUBackwardJob) Operands(yield func(*driver.Mem)) {
	device.Each(yield, &j.dx, &j.dbias, &j.dy, &j.x, &j.bias, &j.ws)
}

// Run leaves the partial sums of part p at ws[p][cols].
func (j biasGELUBackwardJob) Run() {
	n := parts(j.rows)
	biasGELUBackwardTask.Run(n, j)
	if !j.frozen {
		addParts(j.dbias.Float32s(), j.ws.Float32s(), 0, n, j.cols, j.into, order(j.x))
	}
}

var biasGELUBackwardTask = cpu.NewTask(func(j *biasGELUBackwardJob, part int) {
	block := min(blockCols, j.cols)
	buf := scratch.Get(2*block + 2*j.cols)
	defer finish(buf)
	rest := (*buf)[2*block:]
	bias, sums := rest[:j.cols], rest[j.cols:]
	if !j.frozen {
		sums = j.ws.Float32s()[part*j.cols:][:j.cols]
	}
	clear(sums)
	lo, hi := cpu.Chunk(j.rows, partRows(j.rows), part)
	if k := direct(j.x); k != nil {
		bias, grad, stream := bits(j.bias, 0, j.cols), geluGradLoop(k, j.form), streams(j.dx, j.dy, j.x)
		for at := lo * j.cols; at < hi*j.cols; at += j.cols {
			end := at + j.cols
			grad(bits(j.dx, at, end), sums, bits(j.dy, at, end), bits(j.x, at, end), bias, stream)
		}
		return
	}
	bias = load(bias, j.bias, 0)
	for r := lo; r < hi; r++ {
		for c := 0; c < j.cols; c += block {
			n := min(block, j.cols-c)
			j.block(r*j.cols+c, sums[c:c+n], bias[c:c+n], buf)
		}
	}
})

// block does the elements of a row from element at on that the columns of sums
// and bias cover.
func (j *biasGELUBackwardJob) block(at int, sums, bias []float32, buf *[]float32) {
	n := len(sums)
	x := load(cut(buf, 0, n), j.x, at)
	dy := load(cut(buf, 1, n), j.dy, at)
	dx := target(cut(buf, 1, n), j.dx, at)
	geluGradLoop(rowwise.F32.Best(), j.form)(dx, sums, dy, x, bias, streams32(j.dx, j.dy, j.x))
	store(j.dx, at, dx)
}

// geluLoop and geluGradLoop return the loops of a form.
func geluLoop[T float32 | uint16](k *rowwise.Layers[T], form geluForm) func(dst, x, bias []T, stream bool) {
	switch form {
	case geluErf:
		return k.GELUErf
	case noGELU:
		return k.Add
	}
	return k.GELU
}

func geluGradLoop[T float32 | uint16](k *rowwise.Layers[T], form geluForm) func(dx []T, sums []float32, dy, x, bias []T, stream bool) {
	if form == geluErf {
		return k.GELUErfGrad
	}
	return k.GELUGrad
}
