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
	m      *Model
	tower  *squares
	tap    *tap
	images []Pixels
	rows   []int // of each image in the text
	ctx    context.Context
	draw   uint64
}

// sample returns what the projector reads of the tower's rows, in the model's memory.
func (l *through) sample(y snug.View) (s layers.Sample, err error) {
	l.tower.rows = grown(l.tower.rows, y.Len())
	l.m.x = grown(l.m.x, len(l.m.join.rows)*l.m.per*l.m.reads)
	if err = toHost(l.tower.rows, y); err == nil {
		err = l.tower.collect(l.m.x, l.images)
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
	dy = p.Get(l.tower.config.Width)
	p.Do(func() error {
		s, err := l.sample(y.View)
		if err != nil {
			return err
		}
		if loss, err = l.m.projector.Backprop(l.ctx, s, scale, p.Window); err != nil {
			return err
		}
		l.tower.spread(l.tower.rows, l.tap.dx)
		return fromHost(dy.View, l.tower.rows)
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

// spread writes the gradient of the tower's rows from that of what the projector reads of them: the transpose of collect, for towers that train.
func (t *squares) spread(rows, read []float32) {
	c := &t.config
	clear(rows)
	for each := c.Rows() * c.Width; len(rows) > 0; rows = rows[each:] {
		tile := read[:t.reads]
		if read = read[t.reads:]; t.scatter == nil {
			copy(rows[t.from*c.Width:each], tile)
		} else {
			t.scatter(rows[t.from*c.Width:each], tile)
		}
	}
}

// trainEncoder makes the tower train beside the projector.
func (m *Model) trainEncoder() error {
	tower, is := m.Encoder.images.(*squares)
	if !is || tower.pack != nil || tower.gather != nil && tower.scatter == nil {
		return fmt.Errorf("the encoder of a %s does not train here, want TrainEncoder nil: %w", m.family.modelType, snug.ErrConfig)
	}
	for range tower.Model.Trainable() {
		m.through.tower = tower // unless none trains
	}
	return nil
}

// trains returns the tower's model if it trains, else nil.
func (m *Model) trains() *layers.Model {
	if m == nil || m.through == nil || m.through.tower == nil {
		return nil
	}
	return m.through.tower.Model
}

// seen calls do with the patches of a batch's images, for a tower that trains.
func (m *Model) seen(ctx context.Context, b Batch, images []int, do func(s layers.Sample) (fused.Loss, error)) (fused.Loss, error) {
	l := m.through
	in, err := l.tower.sampleOf(b.Images)
	if err != nil {
		return fused.Loss{}, err
	}
	in.Draw = b.Text.Draw
	l.images, l.rows, l.ctx, l.draw = b.Images, images, ctx, b.Text.Draw
	defer func() { l.images, l.ctx = nil, nil }()
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

// EncoderCosts returns what a tower that trains takes for a number of images, for SetEncoderPlan: see [layers.Model.Costs].
func (m *Model) EncoderCosts(images int) (remat.Costs, error) {
	tower := m.trains()
	if tower == nil || images < 1 {
		return remat.Costs{}, fmt.Errorf("vision: EncoderCosts of %d images, of a Model whose encoder trains: %w", images, snug.ErrConfig)
	}
	return tower.Costs(images, images*m.through.tower.config.Rows())
}
