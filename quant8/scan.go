package quant8

import (
	"math"
	"sync"
	"sync/atomic"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/sweep"
)

// firstAbove returns the index of the first element of scale·v, a host view,
// whose magnitude has bits of limit or more, or -1.
func firstAbove(v snug.View, scale float32, limit uint32) int {
	found := indices.Get().(*atomic.Int64)
	defer indices.Put(found)
	found.Store(math.MaxInt64)
	scanTask.Run(cpu.Chunks(v.Len(), grain), scanArgs{v, scale, limit, found})
	if i := found.Load(); i != math.MaxInt64 {
		return int(i)
	}
	return -1
}

type scanArgs struct {
	v     snug.View
	scale float32
	limit uint32
	found *atomic.Int64 // the lowest index so far
}

var indices = sync.Pool{New: func() any { return new(atomic.Int64) }}

var scanTask = cpu.NewTask(func(a *scanArgs, item int) {
	lo, hi := cpu.Chunk(a.v.Len(), grain, item)
	i := sweep.FirstNotBelow(a.v, lo, hi, a.scale, a.limit)
	if i < 0 {
		return
	}
	for i64 := int64(i); ; {
		old := a.found.Load()
		if old <= i64 || a.found.CompareAndSwap(old, i64) {
			return
		}
	}
})

// devicePieces bounds the ranges that another device splits a vector into, each
// of which has an element of the result, and minDevicePiece the elements of one.
const (
	devicePieces   = 4096
	minDevicePiece = 1 << 11
)

var places = sync.Pool{New: func() any { return new([devicePieces]int32) }}

// firstAboveOn is firstAbove on a device other than the CPU, which it waits
// for. It takes up to 16 KiB there for the call.
func firstAboveOn(dev *snug.Device, v snug.View, scale float32, limit uint32) (int, error) {
	j := scanJob{v: v, scale: scale, limit: limit}
	there, err := snug.Make[int32](dev, cpu.Chunks(v.Len(), j.piece()))
	if err != nil {
		return 0, err
	}
	all := places.Get().(*[devicePieces]int32)
	defer places.Put(all)
	found := all[:there.Len()]
	j.found = there.View()
	if err = launch(dev, j); err == nil {
		err = there.CopyOut(found)
	}
	if e := there.Close(); err == nil {
		err = e
	}
	if err != nil {
		return 0, err
	}
	for piece, i := range found {
		if i >= 0 {
			return piece*j.piece() + int(i), nil
		}
	}
	return -1, nil
}

// scanJob writes for each piece of v the first index, from the start of the
// piece, that firstAbove looks for, or -1.
type scanJob struct {
	found, v snug.View
	scale    float32
	limit    uint32
}

func (j *scanJob) Kernel() string { return "quant8.scan" }

func (j *scanJob) Operands(yield func(*driver.Mem)) {
	yield(j.found.Mem())
	yield(j.v.Mem())
}

// piece returns the elements of a piece, a multiple of the least, so that
// pieces start where wide accesses do.
func (j *scanJob) piece() int {
	return max(1, cpu.Chunks(j.v.Len(), devicePieces*minDevicePiece)) * minDevicePiece
}

func (j *scanJob) Run() { pieceTask.Run(j.found.Len(), *j) }

var pieceTask = cpu.NewTask(func(j *scanJob, piece int) {
	lo, hi := cpu.Chunk(j.v.Len(), j.piece(), piece)
	i := sweep.FirstNotBelow(j.v, lo, hi, j.scale, j.limit)
	snug.Host[int32](j.found)[piece] = int32(max(i-lo, -1))
})
