package vision

import (
	"context"
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/layers"
	"github.com/snug-ml/snug/remat"
)

// through is the loss of a tower that trains in a Model: that of the projector, which reads the tower's rows, and of the text.
type through struct {
	m     *Model
	tower imageTower // unless nil, it trains
	tap   *tap
	host  []float32 // rows of the tower
	rows  []int     // of each image in the text
	ctx   context.Context
	draw  uint64
}

// sample returns what the projector reads of the tower's rows, in the model's memory.
func (l *through) sample(y snug.View) (s layers.Sample, err error) {
	l.host = grown(l.host, y.Len())
	if err = toHost(l.host, y); err == nil {
		err = l.tower.read(l.host)
	}
	return layers.Sample{X: l.m.grouped(l.rows), Draw: l.draw}, err
}

// Weight implements [layers.Loss].
func (l *through) Weight(s layers.Sample, rows int) float64 { return l.m.join.Weight(s, rows) }

// Check implements [layers.Loss].
func (l *through) Check(int) error { return nil }

// Params implements [layers.Loss]: those of the projector and of the text train by themselves.
func (l *through) Params(func(*layers.Param) bool) {}

// Evaluate implements [layers.Loss].
func (l *through) Evaluate(p *layers.Pass, y *layers.Tensor, _ layers.Sample) (loss fused.Loss) {
	p.Do(func() error {
		s, err := l.sample(y.View)
		if err == nil {
			loss, err = l.m.projector.Evaluate(l.ctx, s)
		}
		return err
	})
	return loss
}

// Backward implements [layers.Loss].
func (l *through) Backward(p *layers.Pass, y *layers.Tensor, _ layers.Sample, scale float32) (dy *layers.Tensor, loss fused.Loss) {
	dy = p.Get(l.m.tower.Width)
	p.Do(func() error {
		s, err := l.sample(y.View)
		if err != nil {
			return err
		}
		if loss, err = l.m.projector.Backprop(l.ctx, s, scale, p.Window); err != nil {
			return err
		}
		l.tower.spread(l.host, l.m.ungrouped(l.tap.dx, l.rows))
		return fromHost(dy.View, l.host)
	})
	return dy, loss
}

// tap is the first layer of a projector whose tower trains: the identity, which keeps the gradient of what the projector reads.
type tap struct {
	width int
	dx    []float32
}

// tapSaved is the output.
type tapSaved struct{ y *layers.Tensor }

// Tensors implements [layers.Saved].
func (s tapSaved) Tensors(list []*layers.Tensor) []*layers.Tensor { return append(list, s.y) }

// Width implements [layers.Layer].
func (*tap) Width(in int) (int, error) { return in, nil }

// Params implements [layers.Layer].
func (*tap) Params(func(*layers.Param) bool) {}

// Forward implements [layers.Layer].
func (t *tap) Forward(p *layers.Pass, x *layers.Tensor) *layers.Tensor {
	y := p.Get(t.width)
	p.Do(func() error { return snug.Copy(y.View, x.View) })
	return y
}

// ForwardSave implements [layers.Layer].
func (t *tap) ForwardSave(p *layers.Pass, x *layers.Tensor) (*layers.Tensor, layers.Saved) {
	y := t.Forward(p, x)
	return y, tapSaved{y}
}

// Backward implements [layers.Layer].
func (t *tap) Backward(p *layers.Pass, _ *layers.Tensor, _ layers.Saved, dy *layers.Tensor) *layers.Tensor {
	p.Do(func() error {
		t.dx = grown(t.dx, dy.Len())
		return toHost(t.dx, dy.View)
	})
	return dy
}

// toHost reads a vector of any device and type in float32.
func toHost(dst []float32, v snug.View) error {
	host, _, err := snug.MakeView(snug.CPU(), v.DType(), v.Len())
	if err == nil {
		err = snug.Copy(host, v)
	}
	if err == nil {
		err = amp.Cast(dst, host)
	}
	return err
}

// fromHost writes a vector of any device and type from float32.
func fromHost(v snug.View, src []float32) error {
	host, _, err := snug.MakeView(snug.CPU(), v.DType(), v.Len())
	if err == nil {
		err = amp.Cast(host, src)
	}
	if err == nil {
		err = snug.Copy(v, host)
	}
	return err
}

// trains returns the tower's model if it trains, else nil.
func (m *Model) trains() *layers.Model {
	if m == nil || m.through == nil || m.through.tower == nil {
		return nil
	}
	return m.through.tower.trainer()
}

// seen calls do with the patches of a batch's images, for a tower that trains.
func (m *Model) seen(ctx context.Context, b Batch, images []int, do func(s layers.Sample) (fused.Loss, error)) (fused.Loss, error) {
	l := m.through
	m.x = grown(m.x, len(m.join.rows)*m.per*m.reads)
	in, err := l.tower.begin(m.x, b.Images)
	if err != nil {
		return fused.Loss{}, err
	}
	in.Draw = b.Text.Draw
	l.rows, l.ctx, l.draw = images, ctx, b.Text.Draw
	defer func() {
		l.ctx = nil
		l.tower.end()
	}()
	return do(in)
}

// SetEncoderPlan plans what a tower that trains computes again in its backward pass, as [layers.Model.SetPlan] does. The error wraps
// [snug.ErrConfig] for a model that was not opened with ModelOptions.TrainEncoder.
func (m *Model) SetEncoderPlan(plan remat.Plan) error {
	tower := m.trains()
	if tower == nil {
		return fmt.Errorf("vision: SetEncoderPlan of a Model whose encoder does not train: %w", snug.ErrConfig)
	}
	return tower.SetPlan(plan)
}

// EncoderCosts returns what a tower that trains takes for images of these layouts, for SetEncoderPlan: see [layers.Model.Costs]. Where images have
// different sizes it is for as many frames of their mean size.
func (m *Model) EncoderCosts(images []Layout) (remat.Costs, error) {
	tower := m.trains()
	if tower == nil || len(images) == 0 {
		return remat.Costs{}, fmt.Errorf("vision: EncoderCosts of %d images, of a Model whose encoder trains: %w", len(images), snug.ErrConfig)
	}
	sequences, patches := 0, 0
	for i, l := range images {
		n, of, err := 0, 0, error(nil)
		if _, err = m.rows(l); err == nil {
			n, of, err = m.through.tower.sizes(l)
		}
		if err != nil {
			return remat.Costs{}, fmt.Errorf("vision: EncoderCosts: image %d: %w", i, err)
		}
		sequences, patches = sequences+n, patches+n*of
	}
	return tower.Costs(sequences, (patches-1)/sequences+1)
}
