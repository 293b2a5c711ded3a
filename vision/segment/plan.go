package segment

import (
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/conv"
	"github.com/snug-ml/snug/internal/fault"
	"github.com/snug-ml/snug/internal/saturate"
	"github.com/snug-ml/snug/layers"
	"github.com/snug-ml/snug/plan"
)

// Plan describes the training of a [Model] with a box for each item to package plan, which predicts its memory and finds what fits, in float32. A sample
// is an [Item], whose features and Target are not counted. Nothing is allocated in the size of the model. The error wraps [snug.ErrConfig] for a Config
// that no model has.
func (c Config) Plan() (m plan.Model, err error) {
	defer fault.Named(&err, "segment: Plan")
	if err := c.check(); err != nil {
		return m, err
	}
	d := newDecoder(&c)
	d.prompts = prompts{{Box: &Box{}}}
	p, err := layers.NewPass(layers.Options{})
	if err != nil {
		return m, err
	}
	of := p.Cost(d, c.FeatureLen(), layers.Batch{Rows: 1, Sequences: 1, Longest: 1})
	l := plan.Layer{
		Name: "decoder", Output: of.Output / 4, Kept: max(0, of.Saved-of.Output) / 4, Forward: max(0, of.ForwardExtra) / 4, Backward: max(0, of.BackwardExtra) / 4,
		MACs: int64(of.ForwardTime * 1e9), Rows: 1,
	}
	m = plan.Model{Name: "sam", Input: int64(c.FeatureLen())}
	d.Params(func(p *layers.Param) bool {
		if p.Trains {
			l.Params = append(l.Params, p.Shape)
		} else {
			m.Frozen += int64(p.Len())
		}
		return true
	})
	side := c.Side()
	resize := conv.ResizeShape{Batch: 1, Channels: 1, Dims: 2, Size: [3]int{side, side}, Out: [3]int{side, side}, Interpolation: conv.Linear}
	m.Vectors = int64(3*side*side+resize.WorkspaceLen()) + int64(c.Rows()*c.Decoder.Width) // of the loss, and the positions of an image
	m.Layers = []plan.Layer{l}
	return m, m.Validate()
}

// EncoderBytes returns about how much memory an [Encoder] in a type takes for an image, with its weights and the image.
func (c Config) EncoderBytes(dt snug.DType) (bytes int64, err error) {
	if err := c.check(); err != nil {
		return 0, fmt.Errorf("segment: EncoderBytes: %w", err)
	}
	k, err := c.kind()
	if err != nil {
		return 0, fmt.Errorf("segment: EncoderBytes: %w", err)
	}
	p, err := layers.NewPass(layers.Options{DType: dt})
	if err != nil {
		return 0, err
	}
	list, width, rows, most := k.layers(&c), k.width(&c.Encoder), 0, int64(0)
	image := int64(c.Encoder.Channels) * int64(c.Encoder.Image) * int64(c.Encoder.Image)
	rows = int(image / int64(max(1, width)))
	layers.Sequential(list).Params(func(w *layers.Param) bool {
		bytes += int64(w.Len()) * int64(dt.Size())
		return true
	})
	for _, l := range list {
		of := p.Cost(layers.NoGrad{Layer: l}, width, layers.Batch{Rows: rows, Sequences: 1, Longest: rows})
		most = max(most, int64(rows)*int64(width)*int64(dt.Size())+of.Output+of.ForwardExtra)
		if width, err = l.Width(width); err != nil {
			return 0, fmt.Errorf("segment: EncoderBytes: %w", err)
		}
	}
	return saturate.Add(bytes, most+4*(3*image+2*int64(c.FeatureLen()))), nil
}
