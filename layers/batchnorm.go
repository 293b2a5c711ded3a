package layers

import (
	"fmt"
	"math"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/fused"
)

// BatchNorm is batch normalization of rows that are images, signals or volumes (Ioffe and Szegedy 2015): see [fused.BatchNorm].
//
// In Backprop it normalizes by the mean and variance of each channel in the micro-batch, and updates the running averages of both once
// a micro-batch, however often a plan computes the layer again. A channel needs two elements or more. In evaluation it normalizes by
// the running averages.
//
// The running averages Mean and Var follow PyTorch's rule, with the unbiased variance. They are parameters that do not train, so
// weights are loaded and saved with them; the caller may read and set them between calls of the model. A micro-batch whose statistics
// are not finite leaves them unchanged; its gradients are not finite either.
//
// Each rank normalizes by its own micro-batch, as in PyTorch without SyncBatchNorm. After a step package train sets the running
// averages of all ranks to their mean. When a step fails, it restores them. Optimizers without gradients, such as quant8.MeZO, run
// no Backprop and never update them.
//
// Memory: the layer keeps its output, unless a [Sequential] computes it again. The statistics of the micro-batch take 8 bytes a channel
// beside the pass's tensors; recomputation uses them again. Therefore a model cannot have the same BatchNorm twice. On a device other
// than the CPU a step waits for each BatchNorm, whose statistics the host looks at.
type BatchNorm struct {
	Weight, Bias *Param // [channels]: gamma and beta
	Mean, Var    *Param // [channels] of float32: running averages, each with Buffer set
	Positions    int    // positions of a row, such as height times width of an image
	ChannelsLast bool
	Momentum     float32 // weight of a micro-batch in the running averages, 0 to 1
	Eps          float32 // added to the variance, 0 or more
	Frozen       bool    // Backprop, too, normalizes by the running averages and leaves them unchanged, like a PyTorch module in eval()

	batch   *scratch  // mean and 1/σ of each channel in the micro-batch; the pass owns it
	host    []float32 // a copy of batch, of another device's
	batches uint64    // how many micro-batches were measured
}

// NewBatchNorm returns a BatchNorm, channels first, with PyTorch's names and defaults. Parameters: name.weight begins as 1 and
// name.bias as 0. Running averages: name.running_mean begins as 0 and name.running_var as 1. Momentum is 0.1, Eps 1e-5.
func NewBatchNorm(name string, channels, positions int) *BatchNorm {
	n := &BatchNorm{Weight: ones(name+".weight", channels), Bias: newParam(name+".bias", 0, channels), Mean: newParam(name+".running_mean", 0, channels),
		Var: ones(name+".running_var", channels), Positions: positions, Momentum: 0.1, Eps: 1e-5}
	for _, w := range []*Param{n.Mean, n.Var} {
		w.Trains, w.Buffer = false, true
	}
	return n
}

// image returns the shape of a batch of so many rows.
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

// measures reports whether a pass normalizes by the statistics of its own rows.
func (n *BatchNorm) measures(p *Pass) bool { return p.Window != nil && !n.Frozen }

// ofBatch returns the mean and 1/σ of the micro-batch.
func (n *BatchNorm) ofBatch() (mean, rstd snug.View) {
	c := n.Weight.Len()
	return part(n.batch.v, 0, c), part(n.batch.v, c, c)
}

// running returns the running mean, and in the workspace ws 1/σ of the running variance.
func (n *BatchNorm) running(ws snug.View) (mean, rstd snug.View, err error) {
	rstd = part(ws, 0, n.Weight.Len())
	return n.Mean.Value, rstd, fused.BatchRstd(rstd, n.Var.Value, 1, n.Eps)
}

// measure computes the statistics of x and updates the running averages.
func (n *BatchNorm) measure(p *Pass, x *Tensor) error {
	s := n.image(p.rows)
	if s.Batch*s.Positions < 2 {
		return fmt.Errorf("%s: a channel of the micro-batch has one element, want two or more, or a Frozen BatchNorm: %w", n.Weight.Name, snug.ErrShape)
	}
	ws, err := p.Workspace(fused.BatchNormWorkspaceLen(s))
	if err != nil {
		return err
	}
	if !slices.Contains(p.owned, n.batch) {
		n.batch = &scratch{dev: p.dev, dt: snug.F32}
		p.owned = append(p.owned, n.batch)
	}
	if err := n.batch.grow(2 * s.Channels); err != nil {
		return err
	}
	mean, m2 := n.ofBatch()
	n.batches++
	if err := fused.BatchMoments(mean, m2, x.View, s, ws); err != nil {
		return err
	}
	momentum, values := n.Momentum, n.host
	if p.dev.IsCPU() {
		values = n.batch.v.Float32s()
	} else {
		values = slices.Grow(values[:0], 2*s.Channels)[:2*s.Channels]
		if err := snug.Copy(snug.ViewOf(values), n.batch.v); err != nil {
			return err
		}
		n.host = values
	}
	for _, v := range values {
		if math.IsInf(float64(v), 0) || v != v {
			momentum = 0
		}
	}
	if momentum > 0 {
		if err := fused.UpdateRunning(n.Mean.Value, n.Var.Value, mean, m2, s.Batch*s.Positions, momentum); err != nil {
			return err
		}
	}
	return fused.BatchRstd(m2, m2, s.Batch*s.Positions, n.Eps)
}

// compute writes the output for x to y. It measures x in the first pass of training only.
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

// batchSaved is what the layer keeps.
type batchSaved struct {
	output
	batch uint64 // BatchNorm.batches of the forward step, to find statistics that a later one has overwritten
}

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
