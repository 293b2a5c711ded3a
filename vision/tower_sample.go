package vision

import (
	"cmp"
	"context"
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/internal/fault"
	"github.com/snug-ml/snug/layers"
)

// Sample returns a micro-batch of images, each [Channels, Image, Image] as a processor gives it, with the label of each; labels may be
// nil. It cuts them into patches: 4 bytes a pixel and channel, and as much again for a patch more for each image with a class token.
// The error wraps [snug.ErrShape].
func (t *Tower) Sample(images [][]float32, labels []int32) (s layers.Sample, err error) {
	defer fault.Named(&err, "vision: Sample")
	if err := t.usable(); err != nil {
		return s, err
	}
	c := &t.config
	if len(images) == 0 || labels != nil && len(labels) != len(images) {
		return s, fmt.Errorf("%d images and %d labels, want a label for each of 1 image or more: %w", len(images), len(labels), snug.ErrShape)
	}
	for i, x := range images {
		if want := c.Channels * c.Image * c.Image; len(x) != want {
			return s, fmt.Errorf("image %d has %d elements, want %d channels of %d by %d pixels: %w", i, len(x), c.Channels, c.Image, c.Image, snug.ErrShape)
		}
	}
	n, patch := c.Image/c.Patch, c.Channels*c.Patch*c.Patch
	s = layers.Sample{X: make([]float32, len(images)*c.Rows()*patch), Sequences: len(images), Labels: labels}
	for i, x := range images {
		to := s.X[i*c.Rows()*patch:][(c.Rows()-n*n)*patch:]
		for y := range n {
			for column := range n {
				for channel := range c.Channels {
					for row := range c.Patch {
						to = to[copy(to[:c.Patch], x[(channel*c.Image+y*c.Patch+row)*c.Image+column*c.Patch:]):]
					}
				}
			}
		}
	}
	return s, nil
}

// Features writes the rows of the tower for a sample to out, [images, TowerConfig.Rows, Width], in float32: the last hidden state of
// transformers. Errors are those of [layers.Model.Predict].
func (t *Tower) Features(ctx context.Context, out []float32, s layers.Sample) (err error) {
	defer fault.Named(&err, "vision: Features")
	if err := t.usable(); err != nil {
		return err
	}
	return t.Model.Predict(ctx, out, s)
}

// Logits writes the logits of the classes for a sample to out, [images, len(Labels)]. It holds the rows of the sample on the host in
// float32. The error wraps [snug.ErrConfig] for a tower without Labels, and [snug.ErrShape].
func (t *Tower) Logits(ctx context.Context, out []float32, s layers.Sample) (err error) {
	defer fault.Named(&err, "vision: Logits")
	if err := t.usable(); err != nil {
		return err
	}
	c := &t.config
	images := max(1, s.Sequences)
	if t.loss == nil || len(out) != images*len(c.Labels) {
		return fmt.Errorf("out has %d elements for %d images and %d labels: want labels, and an element for each: %w", len(out), images, len(c.Labels), snug.ErrShape)
	}
	rows := make([]float32, images*c.Rows()*c.Width)
	if err := t.Model.Predict(ctx, rows, s); err != nil {
		return err
	}
	head, bias, err := t.hostHead()
	if err != nil {
		return err
	}
	pooled := make([]float32, 0, images*c.Width*len(t.family.means))
	for i := range images {
		for _, m := range t.family.meansOf(c) {
			pooled = append(pooled, mean(rows[i*c.Rows()*c.Width:][:c.Rows()*c.Width], c.Width, m)...)
		}
	}
	err = amp.MatMul(out, pooled, head, amp.MatMulOptions{M: images, N: len(c.Labels), K: c.Width * len(t.family.means), TransB: true, Into: snug.Into{Alpha: 1}})
	for i := range out {
		out[i] += bias[i%len(bias)]
	}
	return err
}

// hostHead returns the parameters of the head in float32 on the host.
func (t *Tower) hostHead() (head, bias []float32, err error) {
	list := [2][]float32{}
	for i, p := range []*layers.Param{t.loss.Head, t.loss.Bias} {
		host, _, e := snug.MakeView(snug.CPU(), p.Value.DType(), p.Len())
		list[i] = make([]float32, p.Len())
		if e == nil {
			e = snug.Copy(host, p.Value)
		}
		if e == nil {
			e = amp.Cast(list[i], host)
		}
		err = cmp.Or(err, e)
	}
	return list[0], list[1], err
}

// mean returns the mean of some rows.
func mean(rows []float32, width int, m layers.Mean) []float32 {
	n := cmp.Or(m.To, len(rows)/width)
	sum := make([]float64, width)
	for r := m.From; r < n; r++ {
		for j, v := range rows[r*width:][:width] {
			sum[j] += float64(v)
		}
	}
	out := make([]float32, width)
	for j, v := range sum {
		out[j] = float32(v / float64(n-m.From))
	}
	return out
}
