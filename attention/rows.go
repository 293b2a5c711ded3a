package attention

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/sweep"
)

// rowsJob copies the rows of a tensor [batch, heads, n, dim] from one layout to another, with a
// cast to the element type of dst:
//
//	dst = src        with an empty src: dst = 0
//	dst = dst + src  with add, for a dst of float32
//
// dst has the type of src, or one of them is float32.
type rowsJob struct {
	dst, src             snug.View // from the first row on
	to, from             Strides
	batch, heads, n, dim int
	add                  bool
}

// headMajor returns the strides of a contiguous [batch, heads, n, dim].
func headMajor(heads, n, dim int) Strides {
	return Strides{Batch: heads * n * dim, Head: n * dim, Row: dim}
}

func (j rowsJob) run(dev *snug.Device) error {
	if j.rows() == 0 || j.dim == 0 {
		return nil
	}
	return device.Run(dev, j)
}

func (j *rowsJob) rows() int { return j.batch * j.heads * j.n }

// Kernel implements [driver.Job].
func (*rowsJob) Kernel() string { return "attention.rows" }

// Operands implements [driver.Job].
func (j *rowsJob) Operands(yield func(*driver.Mem)) { device.Each(yield, &j.dst, &j.src) }

// rowsGrain is the number of elements that a worker copies at a time, if it has rows so short.
const rowsGrain = 1 << 14

func (j *rowsJob) grain() int { return max(1, rowsGrain/j.dim) }

// Run implements [driver.Job].
func (j rowsJob) Run() { rowsTask.Run(cpu.Chunks(j.rows(), j.grain()), j) }

var rowsTask = cpu.NewTask(func(j *rowsJob, item int) {
	lo, hi := cpu.Chunk(j.rows(), j.grain(), item)
	for row := lo; row < hi; row++ {
		head, i := row/j.n, row%j.n
		j.row(j.to.start(head/j.heads, head%j.heads, i), j.from.start(head/j.heads, head%j.heads, i))
	}
})

// start returns the first element of a row.
func (s Strides) start(b, h, i int) int { return b*s.Batch + h*s.Head + i*s.Row }

// row copies the row at element from of src to element to of dst.
func (j *rowsJob) row(to, from int) {
	switch wide := j.dst.Float32s(); {
	case j.src.Len() == 0:
		size := j.dst.DType().Size()
		clear(device.Mem(&j.dst).Bytes()[to*size : (to+j.dim)*size])
	case j.add:
		sweep.Accumulate(wide[to:to+j.dim], j.src, from, 1, 1)
	case j.dst.DType() == j.src.DType():
		size := j.dst.DType().Size()
		copy(device.Mem(&j.dst).Bytes()[to*size:(to+j.dim)*size], device.Mem(&j.src).Bytes()[from*size:])
	case wide != nil:
		half.Load(wide[to:to+j.dim], j.src, from)
	default:
		half.Store(j.dst, to, j.src.Float32s()[from:from+j.dim])
	}
}
