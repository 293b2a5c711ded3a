package fused

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/device"
)

// lossSlots is how many losses wait on a device before a call waits for them.
const lossSlots = 64

// Losses collects the losses of calls of [CrossEntropyLoss] and [CrossEntropyBackward] that have it
// in CrossEntropy.Losses. Such calls do not wait for the device, so that the host goes on to queue
// the rest of a step; one wait brings all sums. The zero value is ready to use, on one device. It is not safe for
// concurrent use.
//
// It holds 512 bytes on the device from the first call until Take. The 65th call since waits for the
// losses before.
type Losses struct {
	dev   *snug.Device // of the sums that are on the way
	sums  snug.View    // lossSlots doubles, or pairs of float32
	n     int          // of sums on the way
	pairs uint64       // a bit for each slot that has a pair
	known float64      // the sum of those that came
}

// Take waits for the device and returns the sum of the losses that were collected since the last
// Take, in their order. Losses are forgotten, after an error too.
func (l *Losses) Take() (float64, error) {
	if l == nil {
		return 0, nil
	}
	err := l.bring()
	sum := l.known
	l.known, l.n, l.pairs, l.dev = 0, 0, 0, nil
	if l.sums.Len() > 0 {
		err = errors.Join(err, device.Return(l.sums))
		l.sums = snug.View{}
	}
	return sum, err
}

// bring adds the sums on the way to those that are known.
func (l *Losses) bring() error {
	if l.n == 0 {
		return nil
	}
	sums, err := l.sums.Slice(0, 8*l.n)
	if err != nil {
		return err
	}
	var all [8 * lossSlots]byte
	bytes := all[:8*l.n]
	if err := snug.Copy(snug.SliceView(bytes), sums); err != nil {
		return err
	}
	for ; len(bytes) > 0; bytes, l.pairs = bytes[8:], l.pairs>>1 {
		if l.pairs&1 != 0 {
			l.known += pairOf(bytes)
		} else {
			l.known += math.Float64frombits(binary.LittleEndian.Uint64(bytes))
		}
	}
	l.n = 0
	return nil
}

// next returns the place of the next sum on a device, which counts when it is queued.
func (l *Losses) next(op string, dev *snug.Device) (snug.View, error) {
	if l.dev != nil && l.dev != dev {
		return snug.View{}, fmt.Errorf("fused: %s: Losses has losses on %v, and the operands are on %v: call Take before: %w", op, l.dev, dev, snug.ErrConfig)
	}
	if l.sums.Len() == 0 {
		sums, err := device.Lend(dev, snug.U8, 8*lossSlots)
		if err != nil {
			return snug.View{}, err
		}
		l.dev, l.sums = dev, sums
	}
	if l.n == lossSlots {
		if err := l.bring(); err != nil {
			return snug.View{}, err
		}
	}
	return l.sums.Slice(8*l.n, 8*l.n+8)
}
