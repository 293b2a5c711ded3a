package fused

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/rowwise"
)

// Column sums run in two steps that do not depend on the number of workers.
// The rows are cut into at most maxParts parts; each part adds its rows, in
// order, to its own partial sum in the workspace; then the partial sums
// are added, in order.
const (
	maxParts    = 64
	minPartRows = 16
)

// On devices other than the CPU they run in the same two steps, with up to maxDeviceParts parts. A block sums a part, and as
// many threads as a row leaves room for divide its rows, see kernels/sums.h and kernels/norm_grads.h. So many blocks are
// enough to read at the speed of the memory, and do not depend on the number of multiprocessors.
const maxDeviceParts = 128

// devicePartRows and deviceParts are partRows and parts on devices other than the CPU.
func devicePartRows(rows int) int { return max(minPartRows, cpu.Chunks(rows, maxDeviceParts)) }

func deviceParts(rows int) int { return cpu.Chunks(rows, devicePartRows(rows)) }

// partRows returns the rows of a part; the last part may have fewer.
func partRows(rows int) int { return max(minPartRows, cpu.Chunks(rows, maxParts)) }

// parts returns the number of parts.
func parts(rows int) int { return cpu.Chunks(rows, partRows(rows)) }

// partialLen returns the workspace for the sums of cols columns, in float32
// elements: on devices, which take as much as the CPU or more.
func partialLen(rows, cols int) int {
	if rows <= 0 || cols <= 0 {
		return 0
	}
	return product(deviceParts(rows), cols)
}

// columnBlock is how many columns an item of addParts adds up, a multiple of what
// order wants.
const columnBlock = 256

type addPartsArgs struct {
	acc, partial        []float32
	from, parts, stride int
	into                snug.Into
	order               func(dst, src []float32) // nil if the sums are in order
}

var addPartsTask = cpu.NewTask(func(a *addPartsArgs, item int) {
	lo, hi := cpu.Chunk(len(a.acc), columnBlock, item)
	buf := scratch.Get(2 * (hi - lo))
	defer scratch.Put(buf)
	total, other := cut(buf, 0, hi-lo), cut(buf, 1, hi-lo)
	clear(total)
	for p := range a.parts {
		rowwise.F32.Best().Add(total, total, a.partial[a.from+p*a.stride+lo:][:hi-lo], false)
	}
	if a.order != nil {
		a.order(other, total)
		total = other
	}
	addInto(a.into, a.acc[lo:hi], total)
})

// addParts adds up the partial sums of len(acc) columns, which begin at from
// and lie stride elements apart, and puts the totals, in order, into acc.
func addParts(acc, partial []float32, from, parts, stride int, into snug.Into, order func(dst, src []float32)) {
	addPartsTask.Run(cpu.Chunks(len(acc), columnBlock), addPartsArgs{acc, partial, from, parts, stride, into, order})
}
