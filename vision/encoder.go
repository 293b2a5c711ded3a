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
	connection
	images imageTower
}

// imageTower computes rows of images.
type imageTower interface {
	// check returns an error if pixels are not of the tower.
	check(x Pixels) error
	// encode writes what the projector reads of images that are checked.
	encode(ctx context.Context, out []float32, images []Pixels) error
	// sizes returns how many sequences an image is to the tower, and the patches of each.
	sizes(l Layout) (sequences, patches int, err error)
	Close() error

	// These train it, one after the other. begin returns what the layers take of images that are checked, read writes what the projector
	// reads of the rows that they give to out, and spread writes the gradient of these rows from that of what the projector reads.
	trainer() *layers.Model
	begin(out []float32, images []Pixels) (layers.Sample, error)
	read(rows []float32) error
	spread(drows, dread []float32)
	end()
	// values returns the parameters that train, by the names of their tensors in the folder.
	values() map[string]snug.View
}

// Features are what an [Encoder] computed of an image.
type Features struct {
	Layout Layout
	Values snug.View // the projector's input for the image, [rows, elements], on the host, in float32, float16 or bfloat16; of Qwen3-VL one such group after the other
}

// OpenEncoder opens the tower of a model's folder alone: see [OpenModel]. Options.DType is the type of weights and activations, 0 for float32; that of
// the model gives the features that the model itself would compute.
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
	e, err = c.encoder(w, file, TowerOptions{Options: o, Train: never})
	return e, errors.Join(err, file.Close())
}

// encoder reads the tower of a model.
func (c connection) encoder(w *modelFamily, file *amp.Weights, o TowerOptions) (*Encoder, error) {
	tower, err := c.open(w, file, o)
	if err != nil {
		return nil, err
	}
	return &Encoder{connection: c, images: tower}, nil
}

// never says of a parameter that it does not train.
func never(string) bool { return false }

// Rows is [Model.Rows].
func (e *Encoder) Rows(l Layout) (int, error) {
	if e == nil || e.images == nil {
		return 0, fmt.Errorf("vision: %w", errNoEncoder)
	}
	return e.rows(l)
}

var errNoEncoder = fmt.Errorf("an Encoder that OpenEncoder or OpenModel did not make: %w", snug.ErrConfig)

// Encode returns what the tower computes of images, in new memory of 4 bytes an element. The tower runs over all of them at once. Errors
// are those of [layers.Model.Predict], and wrap [snug.ErrShape] for pixels that are not of the model.
func (e *Encoder) Encode(ctx context.Context, images []Pixels) (list []Features, err error) {
	defer fault.Named(&err, "vision: Encode")
	if e == nil || e.images == nil {
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
	if err := e.images.encode(ctx, out, images); err != nil {
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
	if rows, err = e.rows(x.Layout); err == nil {
		err = e.images.check(x)
	}
	return rows, err
}

// Config returns what the tower computes. Image is 0 for a tower of images of any size.
func (e *Encoder) Config() TowerConfig {
	if e == nil {
		return TowerConfig{}
	}
	return e.tower
}

// Close frees the memory of a device; the encoder cannot be used afterwards.
func (e *Encoder) Close() error {
	if e == nil || e.images == nil {
		return nil
	}
	return e.images.Close()
}
