package conv

import (
	"errors"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/device"
)

// On other devices than the CPU the sums of a gradient of weights are cut into parts of the positions, so that there are blocks
// for all multiprocessors, and added in order. The cut depends on the shape alone.

const (
	wantBlocks = 256
	leastPart  = 1024 // positions of a part
	mostParts  = 64
	fewRows    = 4 // the most channels of y in a group for which a block adds one column by itself
)

// weightPass is one product: of a gradient of weights, with or without that of the bias, or of the bias alone.
type weightPass struct {
	s                    Shape
	weights, bias        bool
	parts, part          int // of the positions, and how many a part has
	each                 bool
	rows, cols, elements int // of dw as a matrix, and its elements
}

// passes returns the products that make the gradients of a convolution. The bias of a transposed one is of its problem's x.
func (s *Shape) passes(weights, bias bool) (all []weightPass) {
	apart := bias && (s.Transposed || !weights)
	if weights {
		all = append(all, s.pass(true, bias && !apart))
	}
	if apart {
		sum := Shape{Batch: s.Batch, In: 1, Out: s.Out, Dims: s.Dims, Size: s.outSize(), Layout: s.Layout}
		for i := range s.Dims {
			sum.Kernel[i] = 1
		}
		all = append(all, sum.pass(false, true))
	}
	return all
}

func (s *Shape) pass(weights, bias bool) weightPass {
	p := newProblem(s)
	w := weightPass{s: *s, weights: weights, bias: bias, rows: p.groups * p.cout, cols: p.cin * volume(p.kernel)}
	w.elements = w.rows * w.cols
	w.each = !weights || p.cout <= fewRows && p.groups > 1
	blocks := p.groups * cpu.Chunks(p.cout, 64) * cpu.Chunks(w.cols+1, 64)
	if w.each {
		blocks = w.rows * (w.cols + 1)
		if !weights {
			blocks = w.rows
		}
		if p.last {
			blocks = cpu.Chunks(blocks, 32)
		}
	}
	n := p.batch * volume(p.out)
	w.parts = min(max(1, min(wantBlocks/blocks, n/leastPart)), mostParts)
	w.part = cpu.Chunks(n, w.parts)
	return w
}

// sums returns the elements of the sums of all parts.
func (w *weightPass) sums() int {
	if w.parts == 1 {
		return 0
	}
	return w.parts * (w.elements + w.rows)
}

// start queues the gradients on a device that is not the CPU.
func (j weightJob) start(dev *snug.Device) (err error) {
	n := 0
	for _, w := range j.s.passes(j.dw.Len() > 0, j.db.Len() > 0) {
		n = max(n, w.sums())
	}
	if j.sums, err = device.Lend(dev, snug.F32, n); err != nil {
		return err
	}
	if n > 0 {
		sums := j.sums
		defer func() { err = errors.Join(err, device.Return(sums)) }()
	}
	return device.Queue(dev, j)
}
