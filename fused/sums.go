package fused

import "github.com/snug-ml/snug/internal/cpu"

// sum returns Σ x[i] in float32, on four lanes. The error is at most
// (n/4+3)·2⁻²⁴·Σ|x[i]|.
func sum(x []float32) float32 {
	var s0, s1, s2, s3 float32
	for ; len(x) >= 4; x = x[4:] {
		s0 += x[0]
		s1 += x[1]
		s2 += x[2]
		s3 += x[3]
	}
	for _, v := range x {
		s0 += v
	}
	return (s0 + s1) + (s2 + s3)
}

// dot returns Σ x[i]·y[i] in float32, on four lanes. The error is at most
// (n/4+4)·2⁻²⁴·Σ|x[i]·y[i]|.
func dot(x, y []float32) float32 {
	var s0, s1, s2, s3 float32
	for y = y[:len(x)]; len(x) >= 4 && len(y) >= 4; x, y = x[4:], y[4:] {
		s0 += float32(x[0] * y[0])
		s1 += float32(x[1] * y[1])
		s2 += float32(x[2] * y[2])
		s3 += float32(x[3] * y[3])
	}
	for i, v := range x {
		s0 += float32(v * y[i])
	}
	return (s0 + s1) + (s2 + s3)
}

// Column sums run in two steps that do not depend on the number of workers.
// The rows are cut into at most maxParts parts; each part adds its rows, in
// order, to a partial sum of its own in the workspace; then the partial sums
// are added, in order.
const (
	maxParts    = 64
	minPartRows = 16
)

// partRows returns the rows of a part, the last of which may have fewer.
func partRows(rows int) int { return max(minPartRows, cpu.Chunks(rows, maxParts)) }

// parts returns the number of parts.
func parts(rows int) int { return cpu.Chunks(rows, partRows(rows)) }

// partialLen returns the workspace for the sums of cols columns, in float32
// elements.
func partialLen(rows, cols int) int {
	if rows <= 0 || cols <= 0 {
		return 0
	}
	return product(parts(rows), cols)
}

// columnBlock is how many columns an item of addParts adds up.
const columnBlock = 256

type addPartsArgs struct {
	acc, partial        []float32
	from, parts, stride int
	into                Into
}

var addPartsTask = cpu.NewTask(func(a *addPartsArgs, item int) {
	var block [columnBlock]float32
	lo, hi := cpu.Chunk(len(a.acc), columnBlock, item)
	total := block[:hi-lo]
	for p := range a.parts {
		for i, x := range a.partial[a.from+p*a.stride+lo:][:hi-lo] {
			total[i] += x
		}
	}
	a.into.apply(a.acc[lo:hi], total)
})

// addParts adds up the partial sums of len(acc) columns, which begin at from
// and lie stride elements apart, and puts the totals into acc.
func addParts(acc, partial []float32, from, parts, stride int, into Into) {
	addPartsTask.Run(cpu.Chunks(len(acc), columnBlock), addPartsArgs{acc, partial, from, parts, stride, into})
}
