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
	return in.axes.Image
}

// VideoToken is [Model.VideoToken].
func (in *Input) VideoToken() int32 {
	if in == nil || in.connection.rows == nil {
		return noToken
	}
	return in.axes.Video
}

// Axes returns how the model places images and videos, for [Positions]. It is of use for models that have positions in three axes, Qwen's.
func (in *Input) Axes() Axes {
	if in == nil {
		return Axes{}
	}
	return in.axes
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

// Encoder yields the names and the shapes of the encoder's parameters, which train with ModelOptions.TrainEncoder. Names begin behind what all of
// them have in the folder.
func (in *Input) Encoder() iter.Seq2[string, []int] {
	return func(yield func(string, []int) bool) {
		if in == nil || in.stack == nil {
			return
		}
		list, _ := in.stack()
		layers.Sequential(list).Params(func(p *layers.Param) bool { return yield(p.Name, p.Shape) })
	}
}

// EncoderTraining returns about how much memory an encoder that trains takes in a pass of a type for images that have a number of rows in all,
// beside its parameters: the images, what its layers keep for the backward pass and hold in it, and its rows in float32.
func (in *Input) EncoderTraining(rows int, dt snug.DType) (bytes int64) {
	if in == nil || in.stack == nil || rows <= 0 {
		return 0
	}
	pass, err := layers.NewPass(layers.Options{DType: dt})
	if err != nil {
		return 0
	}
	const sample = 1 << 10 // rows whose bytes those of a row follow from
	list, width := in.stack()
	size, most := int64(dt.Size()), int64(0)
	bytes = sample * int64(width) * (2*4 + size) // the images, and their patches in float32 and in the type
	for _, l := range list {
		c := pass.Cost(l, width, layers.Batch{Rows: sample, Sequences: 1, Longest: sample})
		bytes, most = bytes+c.Saved, max(most, c.ForwardExtra, c.BackwardExtra)
		if width, err = l.Width(width); err != nil {
			return 0
		}
	}
	bytes += most + sample*int64(width)*(2*4+2*size) // the rows in float32, twice, and their gradient
	return saturate.Mul(in.patches(int64(rows)), (bytes+sample-1)/sample)
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
