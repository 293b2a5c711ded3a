package segment

import (
	"fmt"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/conv"
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/layers"
)

// Loss is the loss of a prompt, of Kirillov et al. 2023 (arXiv:2304.02643), with weights of its parts:
//
//	loss = Focal·focal + Dice·dice + IoU·mean of (score − iou)²
//
// for the logits of a mask, which are interpolated to the size of the target where that differs. focal is the mean over pixels of the focal
// loss with α = 0.25 and γ = 2, see [fused.Focal]; dice is that of [fused.Dice]; iou is the intersection of the mask, where logits are above
// 0, and of the target, where it is above ½, divided by their union. Of several masks the one with the least Focal·focal + Dice·dice counts
// for these two, and all count for the scores. The zero Loss is {20, 1, 1}.
type Loss struct{ Focal, Dice, IoU float64 }

func (l Loss) check() error {
	for _, w := range []float64{l.Focal, l.Dice, l.IoU} {
		if !(w >= 0) || w > 1e6 {
			return fmt.Errorf("the weights of the loss are %v, want 0 to 1e6: %w", l, snug.ErrConfig)
		}
	}
	return nil
}

// loss is the Loss of a batch, as [layers.Model] takes one.
type loss struct {
	Loss
	config  *Config
	several bool
	targets [][]float32 // of the batch
}

// masks returns the first mask that counts, and the one behind the last.
func (l *loss) masks() (lo, hi int) {
	if l.several {
		return 1, 1 + l.config.Decoder.Masks
	}
	return 0, 1
}

// Weight implements [layers.Loss].
func (l *loss) Weight(layers.Sample, int) float64 { return float64(len(l.targets)) }

// Check implements [layers.Loss].
func (l *loss) Check(int) error { return l.check() }

// Params implements [layers.Loss].
func (*loss) Params(func(*layers.Param) bool) {}

// Evaluate implements [layers.Loss].
func (l *loss) Evaluate(p *layers.Pass, y *layers.Tensor, _ layers.Sample) (sum fused.Loss) {
	p.Do(func() (err error) {
		sum, err = l.compute(p, y.Float32s(), nil, 0)
		return err
	})
	return sum
}

// Backward implements [layers.Loss].
func (l *loss) Backward(p *layers.Pass, y *layers.Tensor, _ layers.Sample, scale float32) (dy *layers.Tensor, sum fused.Loss) {
	dy = p.Get(y.Len() / max(1, p.Rows()))
	p.Do(func() (err error) {
		sum, err = l.compute(p, y.Float32s(), dy.Float32s(), scale/float32(len(l.targets)))
		return err
	})
	return dy, sum
}

// compute returns the loss of a batch, and writes its gradient times scale to dy, unless that is nil.
func (l *loss) compute(p *layers.Pass, y, dy []float32, scale float32) (sum fused.Loss, err error) {
	side, count := l.config.Side(), 1+l.config.Decoder.Masks
	lo, hi := l.masks()
	width := count*side*side + count
	clear(dy)
	for b, target := range l.targets {
		m, err := newMeasure(p, side, target)
		if err != nil {
			return sum, err
		}
		best, least := 0, math.Inf(1)
		logits, scores := y[b*width:][:count*side*side], y[(b+1)*width-count:][:count]
		total := 0.
		for i := lo; i < hi; i++ {
			of, iou, err := m.loss(l.Loss, logits[i*side*side:][:side*side])
			if err != nil {
				return sum, err
			}
			if of < least || i == lo {
				best, least = i, of
			}
			off := float64(scores[i]) - iou
			total += l.IoU * off * off / float64(hi-lo)
			if dy != nil {
				dy[b*width+count*side*side+i] = float32(2 * l.IoU * off / float64(hi-lo) * float64(scale))
			}
		}
		if dy != nil {
			at := best * side * side
			if err := m.gradient(l.Loss, dy[b*width+at:][:side*side], logits[at:][:side*side], scale); err != nil {
				return sum, err
			}
		}
		sum = sum.Plus(fused.Loss{Sum: total + least, Targets: 1, Weight: 1})
	}
	return sum, nil
}

// measure compares masks with a target.
type measure struct {
	target        []float32
	resize        conv.ResizeShape
	logits, d, d2 []float32 // of the size of the target; logits only where it differs
	ws            []float32
}

// newMeasure returns a measure whose memory is the pass's workspace.
func newMeasure(p *layers.Pass, side int, target []float32) (m measure, err error) {
	to, n := int(math.Sqrt(float64(len(target)))), len(target)
	m.target = target
	m.resize = conv.ResizeShape{Batch: 1, Channels: 1, Dims: 2, Size: [3]int{side, side}, Out: [3]int{to, to}, Interpolation: conv.Linear}
	more := m.resize.WorkspaceLen()
	v, err := p.Workspace(3*n + more)
	if err != nil {
		return m, err
	}
	x := v.Float32s()
	m.d, m.d2, m.logits, m.ws = x[:n], x[n:2*n], x[2*n:3*n], x[3*n:3*n+more]
	return m, nil
}

// of returns logits in the size of the target.
func (m *measure) of(logits []float32) ([]float32, error) {
	if m.resize.Size == m.resize.Out {
		return logits, nil
	}
	return m.logits, conv.Resize(m.logits, logits, m.resize, m.ws)
}

func (m *measure) parts() (fused.Elementwise, fused.Dice) {
	return fused.Elementwise{Form: fused.Focal}, fused.Dice{Cols: len(m.target)}
}

// loss returns the loss of a mask, without that of its score, and the intersection over the union.
func (m *measure) loss(l Loss, logits []float32) (of, iou float64, err error) {
	x, err := m.of(logits)
	if err != nil {
		return 0, 0, err
	}
	focal, dice := m.parts()
	a, err := fused.ElementwiseLoss(focal, x, m.target)
	if err != nil {
		return 0, 0, err
	}
	b, err := fused.DiceLoss(dice, x, m.target)
	return l.Focal*a.Mean() + l.Dice*b.Mean(), IoU(x, m.target), err
}

// gradient writes the gradient of scale times the loss of a mask to d.
func (m *measure) gradient(l Loss, d, logits []float32, scale float32) error {
	x, err := m.of(logits)
	if err != nil {
		return err
	}
	focal, dice := m.parts()
	if _, err = fused.ElementwiseBackward(focal, m.d, x, m.target, float32(l.Focal)*scale/float32(len(x))); err != nil {
		return err
	}
	if _, err = fused.DiceBackward(dice, m.d2, x, m.target, float32(l.Dice)*scale); err != nil {
		return err
	}
	if m.resize.Size == m.resize.Out {
		return fused.Add(d, m.d, m.d2)
	}
	if err = fused.Add(m.d, m.d, m.d2); err != nil {
		return err
	}
	return conv.ResizeBackward(d, m.d, m.resize, snug.Into{}, m.ws)
}

// IoU returns the intersection over the union of a mask, where logits are above 0, and of a target, where it is above ½: 0 where both are
// empty or of different lengths.
func IoU(logits, target []float32) float64 {
	if len(logits) != len(target) {
		return 0
	}
	both, any := 0, 0
	for i, x := range logits {
		on, real := x > 0, target[i] > 0.5
		if on && real {
			both++
		}
		if on || real {
			any++
		}
	}
	return float64(both) / float64(max(1, any))
}
