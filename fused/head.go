package fused

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/gemm"
	"github.com/snug-ml/snug/internal/half"
)

// head is the linear layer of [CrossEntropy] under way: a chunk of rows and a tile of classes at a time.
type head struct {
	config       CrossEntropy
	dx, dw, x, w snug.View // without gradients dx and dw are empty; dw may be
	into         snug.Into // of dw and of config.DBias
}

func (h *head) operands(yield func(*driver.Mem)) {
	device.Each(yield, &h.dx, &h.dw, &h.x, &h.w, &h.config.Bias, &h.config.DBias)
}

// checkGradients checks the factors of gradients, and replaces an Alpha of 0 by its default. Without gradients it drops DBias.
func (h *head) checkGradients(check *checks, gradients bool, gradScale float32) {
	if !gradients {
		h.config.DBias = snug.View{}
		return
	}
	check.finite("gradScale", gradScale)
	h.into = check.into(h.into)
}

// headNames are the names of a head's vectors in errors.
type headNames struct{ x, w, bias string }

var (
	studentNames = headNames{"x", "w", "Bias"}
	teacherNames = headNames{"teacherX", "teacherW", "the teacher's Bias"}
)

// checkTypes reports the first vector whose type is wrong. Without backward there are no gradients.
func (h *head) checkTypes(check *checks, names headNames, backward bool) {
	check.floats(operand{names.x, h.x}, operand{"dx", h.dx}, operand{names.w, h.w}, operand{names.bias, h.config.Bias})
	if backward {
		check.f32(operand{"dw", h.dw}, operand{"DBias", h.config.DBias})
	}
}

// checkLens reports the first vector whose length is not right for rows rows.
func (h *head) checkLens(check *checks, names headNames, rows int, backward bool) {
	c := h.config
	check.matrix(rows, c.Cols, operand{names.x, h.x})
	check.matrix(c.Vocab, c.Cols, operand{names.w, h.w})
	check.lenIfAny(c.Vocab, operand{names.bias, c.Bias})
	if backward {
		check.matrixIfAny(rows, c.Cols, operand{"dx", h.dx})
		check.matrixIfAny(c.Vocab, c.Cols, operand{"dw", h.dw})
		check.lenIfAny(c.Vocab, operand{"DBias", c.DBias})
	}
}

// chunks calls f for chunks of rows, at least once, if only of zero rows: gradients of parameters must take their Beta. Later
// chunks add.
func (h *head) chunks(rows int, f func(lo, hi int, beta float32)) {
	size, beta := max(1, h.config.chunk(rows)), h.into.Beta
	for lo := 0; lo < rows || lo == 0; lo += size {
		f(lo, min(lo+size, rows), beta)
		beta = 1
	}
}

// sumLosses returns the sum of the losses of all rows, which chunk returns.
func (h *head) sumLosses(rows int, chunk func(lo, hi int, beta float32) []float32) (sum float64) {
	h.chunks(rows, func(lo, hi int, beta float32) {
		for _, loss := range chunk(lo, hi, beta) {
			sum += float64(loss)
		}
	})
	return sum
}

// rowWeights are the weights of the rows of a tile; nil: 1.
type rowWeights []float32

func rowWeightsOf(v snug.View, t tile) rowWeights {
	if v.Len() == 0 {
		return nil
	}
	return v.Float32s()[t.row:][:t.rows]
}

func (w rowWeights) of(r int) float32 {
	if w == nil {
		return 1
	}
	return w[r]
}

// tile is a part of the logits: rows from row on, classes from class on.
type tile struct{ row, rows, class, classes int }

// tiles calls f for the tiles of rows lo to hi-1.
func (h *head) tiles(lo, hi int, f func(tile)) {
	for at := 0; at < h.config.Vocab; at += h.config.tile() {
		f(h.tileAt(lo, hi, at))
	}
}

func (h *head) tileAt(lo, hi, class int) tile {
	return tile{lo, hi - lo, class, min(h.config.tile(), h.config.Vocab-class)}
}

// headSpace is the workspace of a chunk of rows.
type headSpace struct {
	logits snug.View // of a tile
	dx     snug.View // the sum over tiles, which dx cannot hold: it may be x, or of 16 bits; empty with one tile
	losses snug.View
	stats  snug.View
}

func (h *head) space(ws snug.View, rows int) headSpace {
	at := 0
	take := func(n int) snug.View {
		v := span(ws, at, rows*n)
		at += rows * n
		return v
	}
	s := headSpace{logits: take(h.config.tile())}
	if h.config.tile() < h.config.Vocab {
		s.dx = take(h.config.Cols)
	}
	s.losses, s.stats = take(1), take(statsLen)
	return s
}

// rowsOf returns n rows of x, dx, w or dw.
func (h *head) rowsOf(v snug.View, lo, n int) gemm.Matrix {
	cols := h.config.Cols
	return gemm.Matrix{Data: span(v, lo*cols, n*cols), Stride: cols}
}

// alpha is the factor of the products: Temperature's, unless the cap comes first.
func (h *head) alpha() float32 {
	if h.config.Cap != 0 {
		return 1
	}
	return h.config.scale()
}

// multiply computes the products of a tile, which logitArgs.finish makes logits of.
func (h *head) multiply(t tile, logits snug.View) {
	x, w := h.rowsOf(h.x, t.row, t.rows), h.rowsOf(h.w, t.class, t.classes)
	gemm.Mul(t.rows, t.classes, h.config.Cols, h.alpha(), x, transposed(w), 0, gemm.Matrix{Data: logits, Stride: t.classes})
}

// logitsOf returns the arguments that finish a tile's logits and make gradients of them.
func (h *head) logitsOf(t tile, logits snug.View) logitArgs {
	return logitArgs{
		logits: logits.Float32s(), rows: t.rows, vocab: t.classes, from: t.class, bias: h.config.Bias,
		limit: h.config.Cap, scale: h.config.scale(), narrow: h.narrow(),
	}
}

// backprop adds the gradients of a tile's logits to the gradients of the layer. beta is Beta for what sums over rows. dx
// comes last, because it may take the place of x.
func (h *head) backprop(t tile, s headSpace, beta float32) {
	cols := h.config.Cols
	z := gemm.Matrix{Data: s.logits, Stride: t.classes}
	if h.narrow() {
		z = gemm.Matrix{Data: bfloat16s(s.logits.Float32s()), Stride: 2 * t.classes}
	}
	if h.config.DBias.Len() > 0 {
		into := snug.Into{Alpha: h.into.Alpha, Beta: beta}
		a := biasGradArgs{z.Data, z.Stride, t.rows, span(h.config.DBias, t.class, t.classes).Float32s(), into}
		biasGradTask.Run(cpu.Chunks(t.classes, columnBlock), a)
	}
	if h.dw.Len() > 0 {
		x, dw := h.rowsOf(h.x, t.row, t.rows), h.rowsOf(h.dw, t.class, t.classes)
		gemm.Mul(t.classes, cols, t.rows, h.into.Alpha, transposed(z), x, beta, dw)
	}
	if h.dx.Len() == 0 {
		return
	}
	dx, old := h.rowsOf(h.dx, t.row, t.rows), float32(0)
	if s.dx.Len() > 0 {
		dx, old = gemm.Matrix{Data: s.dx, Stride: cols}, float32(min(t.class, 1)) // later tiles add
	}
	gemm.Mul(t.rows, cols, t.classes, 1, z, h.rowsOf(h.w, t.class, t.classes), old, dx)
}

// store rounds the sum of dx over the tiles, if there are several.
func (h *head) store(lo, hi int, s headSpace) {
	if s.dx.Len() == 0 || h.dx.Len() == 0 {
		return
	}
	cols := h.config.Cols
	storeTask.Run(cpu.Chunks(hi-lo, itemRows(cols)), storeArgs{span(h.dx, lo*cols, (hi-lo)*cols), s.dx.Float32s(), cols})
}

// narrow says whether the gradients of the logits are rounded to bfloat16, the
// type of the other factor.
func (h *head) narrow() bool { return h.w.DType() == snug.BF16 && gemm.HasPairs() }

func transposed(m gemm.Matrix) gemm.Matrix {
	m.Trans = !m.Trans
	return m
}

// biasGradArgs are gradients of logits, rows of stride elements, and where the sums of their columns go.
type biasGradArgs struct {
	z            snug.View
	stride, rows int
	dbias        []float32
	into         snug.Into
}

var biasGradTask = cpu.NewTask(func(a *biasGradArgs, item int) {
	lo, hi := cpu.Chunk(len(a.dbias), columnBlock, item)
	buf := scratch.Get(2 * (hi - lo))
	defer scratch.Put(buf)
	total := cut(buf, 0, hi-lo)
	clear(total)
	for r := range a.rows {
		row := load(cut(buf, 1, hi-lo), a.z, r*a.stride+lo)
		addInto(snug.Into{Alpha: 1, Beta: 1}, total, row)
	}
	addInto(a.into, a.dbias[lo:hi], total)
})

// storeArgs are rows of float32 and where they go.
type storeArgs struct {
	to   snug.View
	from []float32
	cols int
}

var storeTask = cpu.NewTask(func(a *storeArgs, item int) {
	lo, hi := cpu.Chunk(len(a.from)/a.cols, itemRows(a.cols), item)
	half.Store(a.to, lo*a.cols, a.from[lo*a.cols:hi*a.cols])
})
