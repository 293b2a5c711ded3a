package vision

import (
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/internal/fault"
	"github.com/snug-ml/snug/internal/saturate"
	"github.com/snug-ml/snug/layers"
)

// Input is how a [Model] reads: the processor of its images, and how many rows of the text an image has. It has no weights, does not change,
// and serves any number of goroutines.
type Input struct {
	Processor *Processor
	connection
	family *modelFamily
}

var errNoInput = fmt.Errorf("an Input that OpenInput did not make: %w", snug.ErrConfig)

// OpenInput reads the files of a model's folder that [OpenProcessor] reads, and config.json. Errors are those of OpenProcessor, and of
// [OpenModel] about config.json.
func OpenInput(dir string) (in *Input, err error) {
	defer fault.Named(&err, "vision: OpenInput")
	in = &Input{}
	if in.family, in.connection, _, err = readConnection(dir); err != nil {
		return nil, err
	}
	if in.Processor, err = OpenProcessor(dir); err != nil {
		return nil, err
	}
	return in, nil
}

// AddsSpecial reports whether transformers' processor adds the tokenizer's special tokens to a conversation that a chat template has written:
// unless it begins with bos, the token that begins a text, as LLaVA's do not.
func (in *Input) AddsSpecial(bos, text string) bool {
	return bos == "" || !strings.HasPrefix(text, bos)
}

// MaxPixels is [Processor.MaxPixels].
func (in *Input) MaxPixels(pixels int) (*Input, error) {
	if in == nil {
		return nil, fmt.Errorf("vision: %w", errNoInput)
	}
	other := *in
	var err error
	other.Processor, err = in.Processor.MaxPixels(pixels)
	return &other, err
}

// Known reports whether [OpenModel] knows the model of a folder. It is false also where config.json cannot be read.
func Known(dir string) bool {
	_, _, _, err := readConnection(dir)
	return err == nil
}

// Token is [Model.Token].
func (in *Input) Token() int32 {
	if in == nil {
		return 0
	}
	return in.token
}

// Rows returns the rows of the text for an image of a layout. The error wraps [snug.ErrShape] if the model does not take such images, and
// [snug.ErrConfig] if the processor writes another number of placeholders than the model has rows.
func (in *Input) Rows(l Layout) (int, error) {
	if in == nil || in.connection.rows == nil {
		return 0, fmt.Errorf("vision: %w", errNoInput)
	}
	rows, err := in.connection.rows(l)
	if err == nil && rows != l.Tokens {
		err = fmt.Errorf("vision: the processor writes %d placeholders for an image of which the model has %d rows: its files do not fit config.json: %w", l.Tokens, rows, snug.ErrConfig)
	}
	return rows, err
}

// Projector yields the names and the shapes of the projector's parameters.
func (in *Input) Projector() iter.Seq2[string, []int] {
	return func(yield func(string, []int) bool) {
		if in == nil || in.connection.layers == nil {
			return
		}
		layers.Sequential(in.connection.layers(in.family.projector)).Params(func(p *layers.Param) bool { return yield(p.Name, p.Shape) })
	}
}

// ProjectorBytes returns about how much memory a Model's pass takes for images that have a number of rows in all, beside the text and the
// parameters of the projector: what the projector reads, in float32, and its rows and their gradients in the type.
func (in *Input) ProjectorBytes(rows int, dt snug.DType) int64 {
	if in == nil || in.connection.layers == nil || rows <= 0 {
		return 0
	}
	each := 4*int64(in.reads*in.per) + 2*int64(dt.Size()*in.reads*in.per)
	if in.per > 1 { // which the model puts in order
		each += 4 * int64(in.reads*in.per)
	}
	for _, shape := range in.Projector() {
		if len(shape) > 1 {
			each += 3 * int64(dt.Size()*shape[0])
		}
	}
	return saturate.Mul(int64(rows), each)
}

// EncoderTraining returns a function that says about how much memory an encoder that trains takes for a number of images in a pass, with
// ModelOptions.TrainEncoder: weights in a type, and for each a gradient, a master weight and the two averages of AdamW in float32; and the
// activations of all blocks. It reads the headers of the folder's weights. Errors are those of [amp.OpenWeights].
func (in *Input) EncoderTraining(dir string, dt snug.DType) (func(images int) int64, error) {
	if in == nil || in.connection.rows == nil {
		return nil, fmt.Errorf("vision: EncoderTraining: %w", errNoInput)
	}
	n, err := in.towerElements(dir)
	if err != nil {
		return nil, fmt.Errorf("vision: EncoderTraining: %w", err)
	}
	c, size := in.tower, int64(dt.Size())
	row := int64(8*c.Width+4*c.Channels*c.Patch*c.Patch) + size*int64(c.Layers)*int64(8*c.Width+2*c.Hidden)
	return func(images int) int64 {
		return saturate.Add(n*(size+16), saturate.Mul(saturate.Mul(int64(max(0, images)), int64(c.Rows())), row))
	}, nil
}

// towerElements returns how many elements the tower's tensors have in a folder.
func (in *Input) towerElements(dir string) (n int64, err error) {
	w, err := amp.OpenWeights(dir)
	if err != nil {
		return 0, err
	}
	for _, t := range w.Tensors() {
		name := strings.TrimPrefix(t.Name, "model.")
		if slices.ContainsFunc(in.family.towers, func(prefix string) bool { return strings.HasPrefix(name, prefix) }) {
			n += int64(t.Len())
		}
	}
	return n, w.Close()
}

// EncoderBytes returns about how much memory an [Encoder] in a type takes to encode one image of a layout, its weights included. It reads the
// headers of the folder's weights. Errors are those of [amp.OpenWeights].
func (in *Input) EncoderBytes(dir string, l Layout, dt snug.DType) (n int64, err error) {
	defer fault.Named(&err, "vision: EncoderBytes")
	if in == nil || in.connection.rows == nil {
		return 0, errNoInput
	}
	if n, err = in.towerElements(dir); err != nil {
		return 0, err
	}
	n *= int64(dt.Size())
	rows, err := in.connection.rows(l)
	if err != nil {
		return 0, err
	}
	c := in.tower
	patches := max(c.Rows(), rows*in.reads/max(1, c.Width))
	row := 8*c.Width + 4*c.Channels*c.Patch*c.Patch + dt.Size()*(8*c.Width+2*c.Hidden)
	return n + l.Bytes + int64(patches)*int64(row) + 4*int64(rows)*int64((in.per-1)*in.reads), nil
}
