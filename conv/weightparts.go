package conv

import (
	"errors"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/device"
)

// On a GPU the gradient of weights is a sum over the positions of all images. It is cut into parts of the positions (split-K), so
// that there are thread blocks for all multiprocessors, and the sums of the parts are added in order. The cut depends on the shape
// alone, so that the order of the sums is the same on every GPU.

const (
	wantBlocks = 256  // thread blocks
	leastPart  = 1024 // positions of a part
	mostParts  = 64
	fewRows    = 4 // a group of up to so many channels of y is summed a column at a time, without tiles, if there are several groups
)

// weightPass is one product on a GPU: for the gradient of the weights, of the bias, or of both.
type weightPass struct {
	s                    Shape
	weights, bias        bool
	parts, part          int  // parts of the positions, and positions of a part
	each                 bool // a thread block sums one column at a time
	rows, cols, elements int  // of dw as a matrix [channels of y, channels of x in a group × taps], and its length
}

// passes returns the products for the gradients of a convolution. The bias has one of its own if the convolution is transposed, whose
// dy is the x of its problem, and if there are no weights.
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

// sums returns the float32 elements for the sums of all parts, 0 for a single part.
func (w *weightPass) sums() int {
	if w.parts == 1 {
		return 0
	}
	return w.parts * (w.elements + w.rows)
}

// start queues the gradients on a GPU. The sums of the parts lie in memory that it allocates and frees. Errors are those of the device.
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
