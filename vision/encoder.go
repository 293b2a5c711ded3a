package vision

import (
	"context"
	"errors"
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/internal/fault"
	"github.com/snug-ml/snug/layers"
)

// Encoder is the frozen tower of a [Model]. It computes of an image what the projector reads.
//
// An Encoder is not safe for concurrent use.
type Encoder struct {
	tower *Tower
	connection
	rowsOf []float32 // of the tower, for all images of a call
}

// Features are what an [Encoder] computed of an image.
type Features struct {
	Layout Layout
	Values snug.View // [rows, elements] of the projector's input, on the host, in float32, float16 or bfloat16
}

// OpenEncoder opens the tower of a model's folder alone: see [OpenModel]. Options.DType is that of the model.
func OpenEncoder(dir string, o layers.Options) (e *Encoder, err error) {
	defer fault.Named(&err, "vision: OpenEncoder")
	w, c, _, err := readConnection(dir)
	if err != nil {
		return nil, err
	}
	file, err := amp.OpenWeights(dir)
	if err != nil {
		return nil, err
	}
	e, err = w.open(file, &c, o)
	return e, errors.Join(err, file.Close())
}

// open reads the tower of a model.
func (w *modelFamily) open(file *amp.Weights, c *connection, o layers.Options) (*Encoder, error) {
	f, _ := byType(c.tower.Family)
	from := &origin{Weights: file, place: f.place(file, w.places(f))}
	if err := from.deep(c.tower.Layers); err != nil {
		return nil, err
	}
	t, err := newTower(c.tower, TowerOptions{Options: o, Train: func(string) bool { return false }}, from.prefix, c.norms, from)
	if err != nil {
		return nil, err
	}
	if err := t.loadParams(from, map[string]bool{}); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return &Encoder{tower: t, connection: *c}, nil
}

// Rows is [Model.Rows].
func (e *Encoder) Rows(l Layout) (int, error) {
	if e == nil || e.tower == nil {
		return 0, fmt.Errorf("vision: %w", errNoEncoder)
	}
	return e.rows(l)
}

var errNoEncoder = fmt.Errorf("an Encoder that OpenEncoder or OpenModel did not make: %w", snug.ErrConfig)

// Encode returns what the tower computes of images, in new memory of 4 bytes an element. The tower runs over all of them at once. Errors
// are those of [layers.Model.Predict], and wrap [snug.ErrShape] for pixels that are not of the model.
func (e *Encoder) Encode(ctx context.Context, images []Pixels) (list []Features, err error) {
	defer fault.Named(&err, "vision: Encode")
	if e == nil || e.tower == nil {
		return nil, errNoEncoder
	}
	elements := make([]int, len(images))
	total := 0
	for i, x := range images {
		rows, err := e.check(x)
		if err != nil {
			return nil, fmt.Errorf("image %d: %w", i, err)
		}
		elements[i] = rows * e.per * e.reads
		total += elements[i]
	}
	if total == 0 {
		return nil, nil
	}
	out := make([]float32, total)
	if err := e.encode(ctx, out, images); err != nil {
		return nil, err
	}
	for i, n := range elements {
		list = append(list, Features{Layout: images[i].Layout, Values: snug.ViewOf(out[:n:n])})
		out = out[n:]
	}
	return list, nil
}

// check returns the rows of an image in the text, or an error if its pixels are not of the model.
func (e *Encoder) check(x Pixels) (rows int, err error) {
	c := &e.tower.config
	if want := c.Channels * c.Image * c.Image; len(x.Values) != want {
		return 0, fmt.Errorf("%d elements, want %d channels of %d by %d pixels: %w", len(x.Values), c.Channels, c.Image, c.Image, snug.ErrShape)
	}
	return e.rows(x.Layout)
}

// encode writes what the projector reads of images that are checked.
func (e *Encoder) encode(ctx context.Context, out []float32, images []Pixels) error {
	pixels := make([][]float32, len(images))
	for i, x := range images {
		pixels[i] = x.Values
	}
	in, err := e.tower.Sample(pixels, nil)
	if err != nil {
		return err
	}
	each := e.tower.config.Rows() * e.tower.config.Width
	e.rowsOf = grown(e.rowsOf, len(images)*each)
	if err := e.tower.Features(ctx, e.rowsOf, in); err != nil {
		return err
	}
	for i := range images {
		e.gather(out[i*e.each*e.reads:], e.rowsOf[i*each:][:each])
	}
	return nil
}

// Config returns what the tower computes.
func (e *Encoder) Config() TowerConfig {
	if e == nil {
		return TowerConfig{}
	}
	return e.tower.Config()
}

// Close frees the memory of a device; the encoder cannot be used afterwards.
func (e *Encoder) Close() error {
	if e == nil {
		return nil
	}
	return e.tower.Close()
}
