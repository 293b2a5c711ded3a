package layers

import (
	"fmt"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/fused"
)

// BatchNorm normalizes the channels of rows that are images, signals or volumes, see [fused.BatchNorm]. In Backprop the statistics
// are those of the rows of the micro-batch, in evaluation the running averages, which each micro-batch of Backprop updates once,
// whatever is computed again. Backprop runs on the CPU, where the statistics lie; evaluation runs on any device.
//
// The averages follow PyTorch's rules, with the unbiased variance. Mean and Var may be read and set between the calls of a model; as
// parameters that do not train they are loaded and saved with the others. Statistics that are not finite, which make gradients
// that are not finite, leave them as they are.
//
// The statistics of a micro-batch are those of one rank, as in PyTorch without SyncBatchNorm. Package train sets the averages of
// all ranks to their mean after each step, which is as if the statistics of the ranks had been averaged, and takes back what a step
// that failed has added. Optimizers without gradients run no training pass, and leave the averages as they are.
//
// The layer holds the statistics of the micro-batch from its forward to its backward step, 8 bytes a channel, in memory of its own.
// So it computes its output again without measuring again, and cannot be in a model twice.
type BatchNorm struct {
	Weight, Bias *Param // factors and shifts of the channels
	Mean, Var    *Param // running averages of the channels: each a Buffer
	Positions    int    // of a row: height times width
	ChannelsLast bool
	Momentum     float32 // of a micro-batch in the averages
	Eps          float32
	Frozen       bool // normalizes by the averages in training too, and leaves them as they are, as eval() of a module in PyTorch

	batch   []float32 // mean and 1/σ of the channels in the micro-batch
	batches uint64    // that were measured
}

// NewBatchNorm returns a BatchNorm, channels first, with PyTorch's names and defaults: the parameters name.weight, which begins as 1,
// and name.bias, which begins as 0, the averages name.running_mean and name.running_var, a Momentum of 0.1 and an Eps of 1e-5.
func NewBatchNorm(name string, channels, positions int) *BatchNorm {
	n := &BatchNorm{Weight: ones(name+".weight", channels), Bias: newParam(name+".bias", 0, channels), Mean: newParam(name+".running_mean", 0, channels),
		Var: ones(name+".running_var", channels), Positions: positions, Momentum: 0.1, Eps: 1e-5}
	for _, w := range []*Param{n.Mean, n.Var} {
		w.Trains, w.Buffer = false, true
	}
	return n
}

// image returns the shape of so many rows.
func (n *BatchNorm) image(rows int) fused.Image {
	return fused.Image{Batch: rows, Channels: n.Weight.Len(), Positions: n.Positions, ChannelsLast: n.ChannelsLast}
}

func (n *BatchNorm) list() []*Param { return []*Param{n.Weight, n.Bias, n.Mean, n.Var} }

// Width implements [Layer].
func (n *BatchNorm) Width(in int) (int, error) {
	if n == nil || n.Positions < 1 || !(n.Eps >= 0) || !(n.Momentum >= 0 && n.Momentum <= 1) {
		return 0, fmt.Errorf("layers: a BatchNorm without Positions, with a Momentum outside of 0 to 1, or an Eps below 0: %w", snug.ErrConfig)
	}
	for i, w := range n.list() {
		if w == nil || w.Len() < 1 || w.Len() != n.Weight.Len() || w.Buffer != (i >= 2) {
			return 0, fmt.Errorf("layers: a BatchNorm without Weight and Bias, or Mean and Var that are a Buffer, of as many channels: %w", snug.ErrConfig)
		}
	}
	return in, widthOf(n.Weight.Name, in, n.image(1).Len())
}

// Params implements [Layer].
func (n *BatchNorm) Params(yield func(*Param) bool) { yieldAll(yield, n.list()) }

// measures reports whether a pass normalizes by the statistics of its rows.
func (n *BatchNorm) measures(p *Pass) bool { return p.Window != nil && !n.Frozen }

// ofBatch returns the mean and 1/σ of the micro-batch.
func (n *BatchNorm) ofBatch() (mean, rstd snug.View) {
	c := n.Weight.Len()
	return snug.ViewOf(n.batch[:c]), snug.ViewOf(n.batch[c:])
}

// running returns the running mean, and 1/σ of the running variance in a workspace.
func (n *BatchNorm) running(ws snug.View) (mean, rstd snug.View, err error) {
	rstd = part(ws, 0, n.Weight.Len())
	return n.Mean.Value, rstd, fused.BatchRstd(rstd, n.Var.Value, 1, n.Eps)
}

// measure computes the statistics of x, and updates the running averages.
func (n *BatchNorm) measure(p *Pass, x *Tensor) error {
	s := n.image(p.rows)
	ws, err := p.Workspace(fused.BatchNormWorkspaceLen(s))
	if err != nil {
		return err
	}
	if len(n.batch) != 2*s.Channels {
		n.batch = make([]float32, 2*s.Channels)
	}
	mean, m2 := n.ofBatch()
	n.batches++
	if err := fused.BatchMoments(mean, m2, x.View, s, ws); err != nil {
		return err
	}
	momentum := n.Momentum
	for _, v := range n.batch {
		if math.IsInf(float64(v), 0) || v != v {
			momentum = 0
		}
	}
	if momentum > 0 || s.Batch*s.Positions < 2 { // the error of a single element is that of UpdateRunning
		if err := fused.UpdateRunning(n.Mean.Value, n.Var.Value, mean, m2, s.Batch*s.Positions, momentum); err != nil {
			return err
		}
	}
	return fused.BatchRstd(m2, m2, s.Batch*s.Positions, n.Eps)
}

// compute computes y.
func (n *BatchNorm) compute(p *Pass, y, x *Tensor) {
	p.Do(func() (err error) {
		var mean, rstd snug.View
		if n.measures(p) {
			if p.FirstPass() {
				if err := n.measure(p, x); err != nil {
					return err
				}
			}
			mean, rstd = n.ofBatch()
		} else {
			ws, e := p.Workspace(n.Weight.Len())
			if e != nil {
				return e
			}
			if mean, rstd, err = n.running(ws); err != nil {
				return err
			}
		}
		return fused.BatchNorm(y.View, x.View, mean, rstd, n.Weight.Value, n.Bias.Value, n.image(p.rows))
	})
}

// batchSaved is the output, and which micro-batch the statistics in the layer are of.
type batchSaved struct {
	y     *Tensor
	batch uint64
}

// Tensors implements [Saved].
func (s *batchSaved) Tensors(list []*Tensor) []*Tensor { return append(list, s.y) }

// Forward implements [Layer].
func (n *BatchNorm) Forward(p *Pass, x *Tensor) *Tensor {
	if p.refuses(n, x) {
		return &Tensor{}
	}
	y := p.Get(p.width(x))
	n.compute(p, y, x)
	return y
}

// ForwardSave implements [Layer].
func (n *BatchNorm) ForwardSave(p *Pass, x *Tensor) (*Tensor, Saved) {
	if p.refuses(n, x) {
		return &Tensor{}, &batchSaved{}
	}
	s := newSaved[batchSaved](p)
	s.y = n.Forward(p, x)
	s.batch = n.batches
	return s.y, s
}

// Backward implements [Layer]. It turns dy, in place, into the gradient of x.
func (n *BatchNorm) Backward(p *Pass, x *Tensor, kept Saved, dy *Tensor) *Tensor {
	s, is := kept.(*batchSaved)
	if p.refuses(n, x) || !is {
		return dy
	}
	p.Do(func() error {
		shape, c := n.image(p.rows), n.Weight.Len()
		if n.measures(p) && s.batch != n.batches {
			return fmt.Errorf("the statistics of %s are of another micro-batch than its gradient: %w", n.Weight.Name, snug.ErrConfig)
		}
		dweight, dbias, into, err := p.gradients(n.Weight, n.Bias)
		if err != nil {
			return err
		}
		ws, err := p.Workspace(3*c + fused.BatchNormWorkspaceLen(shape))
		if err != nil {
			return err
		}
		sums, rest := part(ws, c, 2*c), part(ws, 3*c, ws.Len()-3*c)
		mean, rstd := snug.View{}, snug.View{}
		if n.measures(p) {
			mean, rstd = n.ofBatch()
		} else if mean, rstd, err = n.running(ws); err != nil {
			return err
		}
		if err := fused.BatchNormSums(sums, dweight, dbias, dy.View, x.View, mean, rstd, shape, into, rest); err != nil {
			return err
		}
		if !n.measures(p) {
			sums = none32
		}
		return fused.BatchNormBackward(dy.View, dy.View, x.View, mean, rstd, sums, n.Weight.Value, shape, shape.Batch*shape.Positions, snug.Into{})
	})
	p.Done(n.Weight, n.Bias)
	return dy
}

// untiled implements untiled.
func (n *BatchNorm) untiled() string {
	if n.Frozen {
		return ""
	}
	return "a BatchNorm, whose statistics are those of all rows"
}

func (*BatchNorm) cheap() {}
