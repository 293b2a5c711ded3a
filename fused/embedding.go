package fused

import (
	"errors"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/gemm"
	"github.com/snug-ml/snug/internal/rowwise"
)

// Embedding looks up a row of table for each token and, unless pos is empty,
// adds a row of pos, the table of positions:
//
//	out[i] = table[tokens[i]] + pos[positions[i]]
//
// Shapes: table [vocabulary, cols]; pos [context, cols]; positions as long as
// tokens, or empty with pos; out [len(tokens), cols]; cols at least 1. Without
// pos the rows are copied, bit for bit.
//
// An index outside its table gives an error that wraps [snug.ErrShape] and names
// the first such index. out overlaps no operand. Each worker holds 2·cols
// float32.
func Embedding[V snug.Vector](out, table V, tokens []int32, pos V, positions []int32, cols int) error {
	return embedding(snug.ViewOf(out), snug.ViewOf(table), tokens, snug.ViewOf(pos), positions, cols)
}

// EmbeddingBackward puts the gradient of the table into dtable, from the gradient dy of an
// [Embedding]'s output. It first multiplies dtable by into.Beta, unless that is 1, and then
// adds, for each token in order:
//
//	dtable[tokens[i]] += Alpha·dy[i]
//
// With a Beta of 1 it touches the rows of the tokens only. With tied weights this is the cheap
// second half after [CrossEntropyBackward] on the same accumulator; the other order is right too. For the gradient of a
// positional table call it with positions.
//
// Shapes: dtable [vocabulary, cols]; dy [len(tokens), cols]; cols at least 1.
// into is finite. An index outside the table gives an error, as in
// Embedding. It works in parallel over rows of the table, so that equal tokens
// need no locks and the order of every sum is that of tokens. Each worker holds
// cols float32. On other devices the call borrows 12 bytes a token from the device, to sort them.
func EmbeddingBackward[G snug.Vector32, V snug.Vector](dtable G, dy V, tokens []int32, cols int, into snug.Into) error {
	return embeddingBackward(snug.ViewOf(dtable), snug.ViewOf(dy), tokens, cols, into)
}

func embedding(out, table snug.View, tokens []int32, pos snug.View, positions []int32, cols int) error {
	check := &checks{op: "Embedding"}
	check.floats(operand{"table", table}, operand{"out", out}, operand{"pos", pos})
	vocab := check.rows(operand{"table", table}, cols)
	context := check.rows(operand{"pos", pos}, cols)
	check.matrix(len(tokens), cols, operand{"out", out})
	check.indices("tokens", tokens, "table", vocab, false)
	if context == 0 && len(positions) > 0 || context > 0 && len(positions) != len(tokens) {
		check.failf(snug.ErrShape, "%d positions for %d tokens and a pos of %d rows", len(positions), len(tokens), context)
	}
	check.indices("positions", positions, "pos", context, false)
	dev := check.device(out, table, pos)
	if check.err != nil {
		return check.err
	}
	job := embeddingJob{out, table, snug.SliceView(tokens), pos, snug.SliceView(positions), cols}
	if dev.IsCPU() {
		job.Run()
		return nil
	}
	queued := job
	return launchWith(dev, &queued, []upload{indices(tokens, &queued.tokens), indices(positions, &queued.positions)})
}

func embeddingBackward(dtable, dy snug.View, tokens []int32, cols int, into snug.Into) (err error) {
	check := &checks{op: "EmbeddingBackward"}
	into = check.into(into)
	check.floats(operand{"dy", dy})
	check.f32(operand{"dtable", dtable})
	vocab := check.rows(operand{"dtable", dtable}, cols)
	check.matrix(len(tokens), cols, operand{"dy", dy})
	check.indices("tokens", tokens, "dtable", vocab, false)
	dev := check.device(dtable, dy)
	if check.err != nil {
		return check.err
	}
	job := embeddingBackwardJob{dtable: dtable, dy: dy, tokens: snug.SliceView(tokens), cols: cols, into: into}
	if dev.IsCPU() {
		job.Run()
		return nil
	}
	order, err := device.Lend(dev, snug.I32, 2*len(tokens))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, device.Return(order)) }()
	queued := job // which is the device's once it is launched
	queued.order = order
	return launchWith(dev, &queued, []upload{indices(tokens, &queued.tokens)})
}

// upload is a host slice that a job needs on its device, and the operand that
// names it there.
type upload struct {
	host snug.View
	view *snug.View
}

func indices(host []int32, view *snug.View) upload { return upload{snug.SliceView(host), view} }

// launchWith queues a job after copying what it needs to the device, in memory
// that the device lends until the job has run.
func launchWith(dev *snug.Device, job driver.Job, uploads []upload) (err error) {
	for _, u := range uploads {
		v, e := device.Lend(dev, u.host.DType(), u.host.Len())
		if e != nil {
			return e
		}
		defer func() { err = errors.Join(err, device.Return(v)) }()
		if e := snug.Copy(v, u.host); e != nil {
			return e
		}
		*u.view = v
	}
	return device.Launch(dev, job)
}

type embeddingJob struct {
	out, table, tokens, pos, positions snug.View

	cols int
}

func (*embeddingJob) Kernel() string { return "fused.embedding" }

func (j *embeddingJob) Operands(yield func(*driver.Mem)) {
	device.Each(yield, &j.out, &j.table, &j.tokens, &j.pos, &j.positions)
}

func (j *embeddingJob) Run() {
	embeddingTask.Run(cpu.Chunks(j.tokens.Len(), itemRows(j.cols)), *j)
}

var embeddingTask = cpu.NewTask(func(j *embeddingJob, item int) {
	lo, hi := cpu.Chunk(j.tokens.Len(), itemRows(j.cols), item)
	if j.pos.Len() == 0 {
		j.copyRows(lo, hi)
	} else {
		j.addRows(lo, hi)
	}
})

// soon returns the row that is read about a page after number i, or the last.
func (j *embeddingJob) soon(rows []int32, i int) int {
	return int(rows[min(i+pageRows(j.out, j.cols), len(rows)-1)])
}

func (j *embeddingJob) copyRows(lo, hi int) {
	defer rowwise.Registry.Best().Fence()
	size, stream := j.cols*j.out.DType().Size(), streams(j.out)
	out, table := device.Mem(&j.out).Bytes(), device.Mem(&j.table).Bytes()
	tokens := snug.Host[int32](j.tokens)[lo:hi]
	for i, token := range tokens {
		to, from := out[(lo+i)*size:][:size], table[int(token)*size:][:size]
		if stream {
			rowwise.Registry.Best().CopyAround(to, from, table[j.soon(tokens, i)*size:][:size])
		} else {
			copy(to, from)
		}
	}
}

func (j *embeddingJob) addRows(lo, hi int) {
	buf := scratch.Get(2 * j.cols)
	defer finish(buf)
	k, stream := direct(j.out), streams(j.out)
	tokens, positions := snug.Host[int32](j.tokens)[lo:hi], snug.Host[int32](j.positions)[lo:hi]
	for i, token := range tokens {
		to, from, shift := (lo+i)*j.cols, int(token)*j.cols, int(positions[i])*j.cols
		nextFrom, nextShift := j.soon(tokens, i)*j.cols, j.soon(positions, i)*j.cols
		switch {
		case k != nil:
			k.AddNext(bits(j.out, to, to+j.cols), bits(j.table, from, from+j.cols), bits(j.pos, shift, shift+j.cols),
				bits(j.table, nextFrom, nextFrom+j.cols), bits(j.pos, nextShift, nextShift+j.cols), stream)
		case j.out.DType() == snug.F32:
			row := func(v snug.View, at int) []float32 { return v.Float32s()[at:][:j.cols] }
			rowwise.F32.Best().AddNext(row(j.out, to), row(j.table, from), row(j.pos, shift),
				row(j.table, nextFrom), row(j.pos, nextShift), stream)
		default:
			row := load(cut(buf, 0, j.cols), j.table, from)
			pos := load(cut(buf, 1, j.cols), j.pos, shift)
			rowwise.F32.Best().Add(row, row, pos, false)
			store(j.out, to, row)
		}
	}
}

type embeddingBackwardJob struct {
	dtable, dy, tokens snug.View
	order              snug.View // on devices: room for the tokens in order and their indices

	cols int
	into snug.Into
}

func (*embeddingBackwardJob) Kernel() string { return "fused.embedding_backward" }

func (j *embeddingBackwardJob) Operands(yield func(*driver.Mem)) {
	device.Each(yield, &j.dtable, &j.dy, &j.tokens, &j.order)
}

// table returns dtable as a matrix of one row of n elements. A product of no terms scales it.
func (j *embeddingBackwardJob) table() (m gemm.Matrix, n int) {
	return gemm.Matrix{Data: j.dtable, Stride: j.dtable.Len()}, j.dtable.Len()
}

// The scatter is cut by the rows of the table: an item has every scatterParts'th, so
// that no two items write the same row.
const scatterParts = 16

func (j *embeddingBackwardJob) Run() {
	if j.into.Beta != 1 {
		m, n := j.table()
		gemm.Mul(1, n, 0, 0, m, m, j.into.Beta, m)
	}
	if j.tokens.Len() > 0 { // else cols may be more than memory holds
		embeddingBackwardTask.Run(scatterParts, *j)
	}
}

var embeddingBackwardTask = cpu.NewTask(func(j *embeddingBackwardJob, item int) {
	dtable := j.dtable.Float32s()
	switch k := direct(j.dy); {
	case k != nil:
		scatter(k.AddScaled, dtable, bits(j.dy, 0, j.dy.Len()), j, item)
	case j.dy.DType() == snug.F32:
		scatter(rowwise.F32.Best().AddScaled, dtable, j.dy.Float32s(), j, item)
	default:
		j.convert(item)
	}
})

// scatter adds the rows of an item. While it adds one it fetches the next.
func scatter[T float32 | uint16](add func(acc []float32, x []T, alpha float32, nextAcc []float32, nextX []T),
	dtable []float32, dy []T, j *embeddingBackwardJob, item int) {
	tokens := snug.Host[int32](j.tokens)
	for i := nextToken(tokens, 0, item); i < len(tokens); {
		next := nextToken(tokens, i+1, item)
		soon := min(next, len(tokens)-1)
		add(dtable[int(tokens[i])*j.cols:][:j.cols], dy[i*j.cols:][:j.cols], j.into.Alpha,
			dtable[int(tokens[soon])*j.cols:][:j.cols], dy[soon*j.cols:][:j.cols])
		i = next
	}
}

// nextToken returns the first index from i on of a token whose row belongs to an
// item, or len(tokens).
func nextToken(tokens []int32, i, item int) int {
	for i < len(tokens) && int(tokens[i])%scatterParts != item {
		i++
	}
	return i
}

// convert is scatter for a dy that is converted.
func (j *embeddingBackwardJob) convert(item int) {
	buf := scratch.Get(j.cols)
	defer scratch.Put(buf)
	dtable, tokens := j.dtable.Float32s(), snug.Host[int32](j.tokens)
	for i := nextToken(tokens, 0, item); i < len(tokens); i = nextToken(tokens, i+1, item) {
		dy := load(*buf, j.dy, i*j.cols)
		row := dtable[int(tokens[i])*j.cols:][:j.cols]
		rowwise.F32.Best().AddScaled(row, dy, j.into.Alpha, row, dy)
	}
}
