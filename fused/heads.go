package fused

import (
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/device"
)

// Heads says where some elements of each head lie: those of head h in row r from element r·Row + h·Head on.
type Heads struct {
	Row  int // elements from a row to the next
	Head int // elements from a head to the next; 0: all heads have the same
}

// CopyHeads copies dim elements of each head of each row from src to dst. The layouts of src and dst are from and to. With it a caller
// makes heads of parts that lie apart: the keys of multi-head latent attention (DeepSeek-AI 2024, arXiv:2405.04434) have elements of
// their own, and rotated ones that all heads share. For shared elements from.Head is 0. It takes no memory.
//
// dst and src have one type. Errors wrap [snug.ErrShape] for vectors that the layouts exceed, and for heads of dst that overlap;
// [snug.ErrDType] for other types; and [snug.ErrDevice] for a device other than the CPU. dst and src must not overlap.
func CopyHeads[V snug.Vector](dst, src V, to, from Heads, rows, heads, dim int) error {
	check := &checks{op: "CopyHeads"}
	j := headsJob{snug.ViewOf(dst), snug.ViewOf(src), to, from, rows, heads, dim}
	j.check(check)
	j.fits(check, operand{"dst", j.dst}, to, heads)
	j.fits(check, operand{"src", j.src}, from, heads)
	if to.Head < dim && heads > 1 || to.Row < (heads-1)*to.Head+dim && rows > 1 {
		check.failf(snug.ErrShape, "heads of dst overlap: %d heads of %d elements, %d apart, in rows %d apart", heads, dim, to.Head, to.Row)
	}
	if check.err != nil || rows == 0 {
		return check.err
	}
	copyHeadsTask.Run(cpu.Chunks(rows, itemRows(heads*dim)), j)
	return nil
}

// SumHeads adds up the heads of each row of src, dim elements each, and writes the sums to dst. It is the backward step of a CopyHeads
// with from.Head 0. Each worker holds 8·dim bytes. Sums are of float32, in the order of the heads, and rounded once. Errors are those of CopyHeads.
func SumHeads[V snug.Vector](dst, src V, to, from Heads, rows, heads, dim int) error {
	check := &checks{op: "SumHeads"}
	j := headsJob{snug.ViewOf(dst), snug.ViewOf(src), to, from, rows, heads, dim}
	j.check(check)
	j.fits(check, operand{"dst", j.dst}, to, 1)
	j.fits(check, operand{"src", j.src}, from, heads)
	if to.Row < dim && rows > 1 {
		check.failf(snug.ErrShape, "rows of dst overlap: %d elements, %d apart", dim, to.Row)
	}
	if check.err != nil || rows == 0 {
		return check.err
	}
	sumHeadsTask.Run(cpu.Chunks(rows, itemRows(heads*dim)), j)
	return nil
}

type headsJob struct {
	dst, src         snug.View
	to, from         Heads
	rows, heads, dim int
}

// check checks what both operations want.
func (j *headsJob) check(check *checks) {
	if j.rows < 0 || j.heads < 1 || j.dim < 1 {
		check.failf(snug.ErrShape, "%d rows of %d heads of %d elements, want at least 0, 1 and 1", j.rows, j.heads, j.dim)
	}
	check.floats(operand{"dst", j.dst}, operand{"src", j.src})
	if dev := check.device(j.dst, j.src); check.err == nil && !dev.IsCPU() {
		check.failf(snug.ErrDevice, "vectors on %s, want the CPU", dev.Name())
	}
}

// fits wants a vector with all elements of a layout.
func (j *headsJob) fits(check *checks, o operand, at Heads, heads int) {
	if at.Row < 0 || at.Head < 0 || at.Row > math.MaxInt32 || at.Head > math.MaxInt32 {
		check.failf(snug.ErrShape, "%s has rows %d and heads %d apart, want 0 to %d", o.name, at.Row, at.Head, math.MaxInt32)
	}
	if check.err != nil || j.rows == 0 {
		return
	}
	n := o.view.Len() - j.dim
	if n < 0 || at.Row > 0 && j.rows-1 > n/at.Row || at.Head > 0 && heads-1 > (n-(j.rows-1)*at.Row)/at.Head {
		check.failf(snug.ErrShape, "%s has %d elements, want %d rows of %d heads of %d, %d and %d apart", o.name, o.view.Len(), j.rows, heads, j.dim, at.Row, at.Head)
	}
}

// eachRow calls do for each row of an item.
func (j *headsJob) eachRow(item int, do func(to, from int)) {
	lo, hi := cpu.Chunk(j.rows, itemRows(j.heads*j.dim), item)
	for r := lo; r < hi; r++ {
		do(r*j.to.Row, r*j.from.Row)
	}
}

var copyHeadsTask = cpu.NewTask(func(j *headsJob, item int) {
	size := j.dst.DType().Size()
	dst, src := device.Mem(&j.dst).Bytes(), device.Mem(&j.src).Bytes()
	j.eachRow(item, func(to, from int) {
		for h := range j.heads {
			copy(dst[(to+h*j.to.Head)*size:][:j.dim*size], src[(from+h*j.from.Head)*size:])
		}
	})
})

var sumHeadsTask = cpu.NewTask(func(j *headsJob, item int) {
	buf := scratch.Get(2 * j.dim)
	defer finish(buf)
	sum := cut(buf, 0, j.dim)
	j.eachRow(item, func(to, from int) {
		clear(sum)
		for h := range j.heads {
			for i, v := range load(cut(buf, 1, j.dim), j.src, from+h*j.from.Head) {
				sum[i] += v
			}
		}
		copy(target(cut(buf, 1, j.dim), j.dst, to), sum)
		store(j.dst, to, sum)
	})
})
