package vision

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/accum"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/internal/fault"
	"github.com/snug-ml/snug/layers"
	"github.com/snug-ml/snug/transformer"
)

// begin checks a batch, and returns the rows of each image in the text.
func (m *Model) begin(ctx context.Context, b Batch) (images []int, err error) {
	switch {
	case ctx == nil:
		return nil, fmt.Errorf("the context is nil: %w", snug.ErrConfig)
	case m == nil || m.projector == nil || len(m.projector.Params()) == 0:
		return nil, fmt.Errorf("a Model that OpenModel did not make, or is closed: %w", snug.ErrConfig)
	case len(b.Text.Embeddings.Rows) > 0 || len(b.Text.Added) > 0:
		return nil, fmt.Errorf("the batch has Embeddings or Added of its own, want images: %w", snug.ErrConfig)
	}
	if m.spans && len(b.Text.Spans) > 0 {
		return nil, fmt.Errorf("the batch has Spans of its own, want those of its images: %w", snug.ErrConfig)
	}
	if m.spans {
		b.Text.Spans = nil // whose memory is not ours
	}
	if m.prefixes {
		if b.Text.Spans == nil {
			b.Text.Spans = prefixesOf(&b.Text)
		}
		if err := checkPrefixes(&b.Text, m.axes.Image); err != nil {
			return nil, err
		}
	}
	images, err = m.layouts(b)
	if err != nil {
		return nil, err
	}
	if m.announce != nil {
		m.announce(layoutsOf(b))
	}
	rows, err := m.placeholders(&b, images)
	if err != nil {
		return nil, err
	}
	if m.placed && len(rows) > 0 {
		if b.Text.Positions != nil {
			return nil, fmt.Errorf("the batch has Positions of its own, want those of its images: %w", snug.ErrConfig)
		}
		if b.Text.Positions, err = m.place(b, images); err != nil {
			return nil, err
		}
	}
	m.join.rows, m.join.batch, m.join.ctx = rows, b.Text, ctx
	return images, nil
}

// placeholders returns where the text has the rows of images and videos, of which each has so many, and makes the spans of a batch.
func (m *Model) placeholders(b *Batch, images []int) ([]int32, error) {
	layouts, rows := layoutsOf(*b), m.join.rows[:0]
	var next, left int // the images before, and the placeholders that the last of them lacks
	for i, token := range b.Text.Tokens {
		begins := beginsAt(&b.Text, i)
		if begins && left > 0 {
			return nil, fmt.Errorf("a sequence begins with token %d, which lacks %d placeholders of image %d: %w", i, left, next-1, snug.ErrShape)
		}
		if !m.isPlaceholder(token) {
			continue
		}
		if left == 0 {
			if next == len(images) {
				return nil, fmt.Errorf("a placeholder (token %d) at %d behind those of %d images: %w", token, i, len(images), snug.ErrShape)
			}
			left, next = images[next], next+1
		}
		if want := m.axes.token(layouts[next-1]); token != want {
			return nil, fmt.Errorf("a placeholder (token %d) at %d, want %d of image or video %d: %w", token, i, want, next-1, snug.ErrShape)
		}
		left--
		if rows = append(rows, int32(i)); !m.spans {
			continue
		}
		if n := len(b.Text.Spans) - 1; n >= 0 && b.Text.Spans[n][1] == i && !begins {
			b.Text.Spans[n][1]++
		} else {
			b.Text.Spans = append(b.Text.Spans, [2]int{i, i + 1})
		}
	}
	if left > 0 || next < len(images) {
		return nil, fmt.Errorf("%d placeholders for %d images, which want %v: %w", len(rows), len(images), images, snug.ErrShape)
	}
	return rows, nil
}

// sample returns what the projector reads of the images of a batch, empty without images.
func (m *Model) sample(ctx context.Context, b Batch, images []int) (s layers.Sample, err error) {
	rows := len(m.join.rows)
	if rows == 0 {
		return s, nil
	}
	m.x = grown(m.x, rows*m.per*m.reads)
	if b.Features == nil {
		err = m.Encoder.images.encode(ctx, m.x, b.Images)
	} else {
		x := m.x
		for _, f := range b.Features {
			if err = amp.Cast(x[:f.Values.Len()], f.Values); err != nil {
				break
			}
			x = x[f.Values.Len():]
		}
	}
	return layers.Sample{X: m.grouped(images), Draw: b.Text.Draw}, err
}

// layouts returns the rows of each image of a batch in the text.
func (m *Model) layouts(b Batch) (rows []int, err error) {
	n := len(b.Images)
	switch {
	case b.Features != nil && b.Images != nil:
		return nil, fmt.Errorf("the batch has Images and Features, want one of them: %w", snug.ErrConfig)
	case b.Features != nil:
		n = len(b.Features)
	case n > 0 && m.Encoder == nil:
		return nil, fmt.Errorf("the batch has Images, and the Model no Encoder: want Features: %w", snug.ErrConfig)
	}
	for i, l := range layoutsOf(b) {
		if l.Frames > 0 && m.axes.Video == noToken {
			return nil, fmt.Errorf("image %d is a video, and a %s here takes images: give the frames as images: %w", i, m.family.modelType, snug.ErrConfig)
		}
	}
	rows = make([]int, n)
	for i := range rows {
		if b.Features == nil {
			rows[i], err = m.Encoder.check(b.Images[i])
		} else if rows[i], err = m.rows(b.Features[i].Layout); err == nil && b.Features[i].Values.Len() != rows[i]*m.per*m.reads {
			err = fmt.Errorf("the features have %d elements, want %d rows of %d: %w", b.Features[i].Values.Len(), rows[i]*m.per, m.reads, snug.ErrShape)
		}
		if err != nil {
			return nil, fmt.Errorf("image %d: %w", i, err)
		}
	}
	return rows, nil
}

// layoutsOf returns the layouts of a batch's images.
func layoutsOf(b Batch) (list []Layout) {
	for _, x := range b.Images {
		list = append(list, x.Layout)
	}
	for _, f := range b.Features {
		list = append(list, f.Layout)
	}
	return list
}

// beginsAt says whether a sequence of a batch begins with a token. The text refuses what is wrong with Sequences and Starts.
func beginsAt(b *transformer.Batch, token int) bool {
	if b.Starts == nil {
		return b.Sequences > 1 && token%max(1, len(b.Tokens)/b.Sequences) == 0
	}
	_, begins := slices.BinarySearch(b.Starts, token)
	return begins
}

// grown returns a slice of n elements, in the memory of another one if it has so many.
func grown(x []float32, n int) []float32 {
	if cap(x) < n {
		return make([]float32, n)
	}
	return x[:n]
}

// Backprop runs a micro-batch forward and backward. It adds to the window the gradients of scale times the mean loss, and returns the
// loss, not scaled. Errors are those of [transformer.Model.Backprop], and wrap [snug.ErrShape] for placeholders that are not those of
// the images.
func (m *Model) Backprop(ctx context.Context, b Batch, scale float32, w layers.Window) (loss fused.Loss, err error) {
	defer fault.Named(&err, "vision: Backprop")
	if w == nil {
		return loss, fmt.Errorf("the window is nil: %w", snug.ErrConfig)
	}
	images, err := m.begin(ctx, b)
	if err != nil {
		return loss, err
	}
	defer m.join.end()
	if len(m.join.rows) == 0 {
		if err := m.nothing(w); err != nil {
			return loss, err
		}
		return m.Text.Backprop(ctx, m.join.batch, scale, w)
	}
	if tower := m.trains(); tower != nil {
		if b.Features != nil {
			return loss, fmt.Errorf("the batch has Features, and the encoder trains: want Images: %w", snug.ErrConfig)
		}
		return m.seen(ctx, b, images, func(s layers.Sample) (fused.Loss, error) { return tower.Backprop(ctx, s, scale, w) })
	}
	s, err := m.sample(ctx, b, images)
	if err != nil {
		return loss, err
	}
	return m.projector.Backprop(ctx, s, scale, w)
}

// nothing adds the gradient of what is beside the text in a batch without images, 0.
func (m *Model) nothing(w layers.Window) error {
	for _, part := range m.beside() {
		if err := nothing(part, w); err != nil {
			return err
		}
	}
	return nil
}

func nothing(m *layers.Model, w layers.Window) error {
	for name, v := range m.Trainable() {
		acc, into, err := w.Into(name)
		if err == nil && into.Beta != 1 {
			none := snug.ViewOf([]float32(nil))
			err = amp.MatMul(acc, none, none, amp.MatMulOptions{M: 1, N: v.Len(), Into: snug.Into{Beta: into.Beta}})
		}
		if c, learns := w.(accum.Completer); err == nil && learns {
			err = c.Done(name)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Evaluate returns the loss of a micro-batch without training on it. Errors are those of Backprop.
func (m *Model) Evaluate(ctx context.Context, b Batch) (loss fused.Loss, err error) {
	defer fault.Named(&err, "vision: Evaluate")
	images, err := m.begin(ctx, b)
	if err != nil {
		return loss, err
	}
	defer m.join.end()
	s, err := m.sample(ctx, b, images)
	if err != nil {
		return loss, err
	}
	if s.X == nil {
		return m.Text.Evaluate(ctx, m.join.batch)
	}
	return m.projector.Evaluate(ctx, s)
}

// Logits writes the logits of rows of the text, the last of each sequence if rows is nil, to out in float32: see
// [transformer.Model.Logits].
func (m *Model) Logits(ctx context.Context, out []float32, b Batch, rows []int32) (err error) {
	defer fault.Named(&err, "vision: Logits")
	return m.embedded(ctx, b, func(b transformer.Batch) error { return m.Text.Logits(ctx, out, b, rows) })
}

// Prompt begins a text with images: see [transformer.Generator.PromptBatch]. The batch has one sequence, and the Generator is one of Text.
func (m *Model) Prompt(ctx context.Context, g *transformer.Generator, b Batch) (err error) {
	defer fault.Named(&err, "vision: Prompt")
	if m != nil && g.Model() != m.Text {
		return fmt.Errorf("the Generator is nil, or of another model: %w", snug.ErrConfig)
	}
	return m.embedded(ctx, b, func(b transformer.Batch) error {
		if m.placed && b.Embeddings.Rows != nil {
			for _, list := range b.Positions { // which are ours
				for i := range list {
					list[i] += int32(g.Position())
				}
			}
		}
		return g.PromptBatch(ctx, b)
	})
}

// embedded calls do with the text of a batch, whose Embeddings are the rows of its images in new memory.
func (m *Model) embedded(ctx context.Context, b Batch, do func(b transformer.Batch) error) error {
	images, err := m.begin(ctx, b)
	if err != nil {
		return err
	}
	defer m.join.end()
	s, err := m.sample(ctx, b, images)
	if err != nil {
		return err
	}
	if s.X == nil {
		return do(m.join.batch)
	}
	values := make([]float32, len(m.join.rows)*m.per*m.width)
	if err := m.projector.Predict(ctx, values, s); err != nil {
		return err
	}
	v, free, err := snug.MakeView(m.device, snug.F32, len(values))
	if err != nil {
		return err
	}
	if err = snug.Copy(v, snug.ViewOf(values)); err == nil {
		var text transformer.Batch
		if text, err = m.join.with(v, snug.View{}); err == nil {
			err = do(text)
		}
	}
	return errors.Join(err, free())
}
