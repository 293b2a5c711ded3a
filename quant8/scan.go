package quant8

import (
	"sync"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/sweep"
)

// devicePieces is the maximum number of pieces into which another device splits a vector;
// each piece has an element of the result. minDevicePiece is the minimum number of
// elements of a piece.
const (
	devicePieces   = 4096
	minDevicePiece = 1 << 11
)

var foundPool = sync.Pool{New: func() any { return new([devicePieces]int32) }}

// firstAboveOn is [sweep.First] on a device other than the CPU. It waits for the device,
// which lends up to 16 KiB for the call.
func firstAboveOn(dev *snug.Device, v snug.View, scale float32, limit uint32) (int, error) {
	j := scanJob{v: v, scale: scale, limit: limit}
	there, err := device.Lend(dev, snug.I32, cpu.Chunks(v.Len(), j.piece()))
	if err != nil {
		return 0, err
	}
	all := foundPool.Get().(*[devicePieces]int32)
	defer foundPool.Put(all)
	found := all[:there.Len()]
	j.found = there
	if err = device.Queue(dev, j); err == nil {
		err = snug.Copy(snug.SliceView(found), there)
	}
	if e := device.Return(there); err == nil {
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

// scanJob writes for each piece of v the first index that firstAbove looks for, counted
// from the start of the piece, or -1.
type scanJob struct {
	found, v snug.View
	scale    float32
	limit    uint32
}

func (j *scanJob) Kernel() string { return "quant8.scan" }

func (j *scanJob) Operands(yield func(*driver.Mem)) { device.Each(yield, &j.found, &j.v) }

// piece returns the number of elements of a piece, a multiple of the minimum, so that
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
