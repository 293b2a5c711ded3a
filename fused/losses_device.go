package fused

import (
	"encoding/binary"
	"errors"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
)

// pairOf returns a sum that a device has stored as a pair of float32: the rounded sum, and its rounding error.
func pairOf(bytes []byte) float64 {
	at := func(i int) float64 { return float64(math.Float32frombits(binary.LittleEndian.Uint32(bytes[4*i:]))) }
	return at(0) + at(1)
}

// lossParts is the memory on a device for the sum of a loss: partial sums in parts, and the total as a pair, see pairOf.
type lossParts struct{ parts, total snug.View }

// launchParts runs a job on dev that writes n partial sums and the total to at, for which it borrows 4·(n+2) bytes of the device. It
// waits for the sum and returns it. If losses is not nil, it does not wait: the total goes to losses, and sum is 0.
func launchParts(op string, dev *snug.Device, job driver.Job, at *lossParts, n int, losses *Losses, uploads []upload) (sum float64, err error) {
	room, err := device.Lend(dev, snug.F32, 2+n)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, device.Return(room)) }()
	at.parts, at.total = span(room, 2, n), span(room, 0, 2)
	if losses != nil {
		slot, err := losses.next(op, dev)
		if err != nil {
			return 0, err
		}
		at.total = device.As(slot, snug.F32)
		if err := launchWith(dev, job, uploads); err != nil {
			return 0, err
		}
		losses.pairs |= 1 << losses.n
		losses.n++
		return 0, nil
	}
	if err := launchWith(dev, job, uploads); err != nil {
		return 0, err
	}
	var bytes [8]byte
	if err := snug.Copy(snug.SliceView(bytes[:]), device.As(at.total, snug.U8)); err != nil {
		return 0, err
	}
	return pairOf(bytes[:]), nil
}

// putTotal writes the total of sums, which are pairs. It is for devices whose jobs run in Go.
func (l *lossParts) putTotal(sums []float32) {
	putSum(l.total.Float32s(), 0, collect(Loss{}, nil, sums).Sum)
}
