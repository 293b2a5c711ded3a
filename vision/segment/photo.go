package segment

import (
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/conv"
)

// Size is that of an image in pixels.
type Size struct{ Height, Width int }

// Photo returns the logits of a mask for the pixels of a photo, [photo.Height, photo.Width], as post_process_masks of transformers without
// its threshold: interpolated to the image that the encoder gets, of which resized is without padding (vision.Layout has its Height and
// Width), and to the photo. It takes 4 bytes a pixel of both besides. The error wraps [snug.ErrShape],
// or [snug.ErrConfig] for a Config that no model has.
func (c Config) Photo(logits []float32, resized, photo Size) (mask []float32, err error) {
	if err := c.check(); err != nil {
		return nil, fmt.Errorf("segment: Photo: %w", err)
	}
	side, image := c.Side(), c.Encoder.Image
	switch {
	case len(logits) != side*side:
		err = fmt.Errorf("%d logits, want %d by %d", len(logits), side, side)
	case resized.Height < 1 || resized.Width < 1 || resized.Height > image || resized.Width > image:
		err = fmt.Errorf("a resized photo of %d by %d pixels, want up to %d", resized.Height, resized.Width, image)
	case photo.Height < 1 || photo.Width < 1 || photo.Height > most || photo.Width > most || photo.Height > 1<<28/photo.Width:
		err = fmt.Errorf("a photo of %d by %d pixels, want up to 2^28 in all", photo.Height, photo.Width)
	}
	if err != nil {
		return nil, fmt.Errorf("segment: Photo: %w: %w", err, snug.ErrShape)
	}
	whole, err := interpolate(logits, Size{side, side}, Size{image, image})
	if err != nil {
		return nil, err
	}
	for row := range resized.Height {
		copy(whole[row*resized.Width:][:resized.Width], whole[row*image:])
	}
	return interpolate(whole[:resized.Height*resized.Width], resized, photo)
}

// Target returns the Target of an [Item], [Config.Side, Config.Side], from a mask of a photo, [photo.Height, photo.Width] with values from 0 to
// 1: of each of its pixels the nearest one of the photo, and 0 where the image that the encoder gets is padded. resized is as in [Config.Photo]. Errors
// are those of Photo.
func (c Config) Target(mask []float32, resized, photo Size) (target []float32, err error) {
	if err := c.check(); err != nil {
		return nil, fmt.Errorf("segment: Target: %w", err)
	}
	side, image := c.Side(), c.Encoder.Image
	switch {
	case resized.Height < 1 || resized.Width < 1 || resized.Height > image || resized.Width > image:
		err = fmt.Errorf("a resized photo of %d by %d pixels, want up to %d", resized.Height, resized.Width, image)
	case photo.Height < 1 || photo.Width < 1 || photo.Height > most || photo.Width > most || len(mask) != photo.Height*photo.Width:
		err = fmt.Errorf("a mask of %d elements for a photo of %d by %d pixels", len(mask), photo.Height, photo.Width)
	}
	if err != nil {
		return nil, fmt.Errorf("segment: Target: %w: %w", err, snug.ErrShape)
	}
	target = make([]float32, side*side)
	at := func(i, resized, photo int) int { // of the photo, for row or column i
		place := (float64(i) + 0.5) * float64(image) / float64(side)
		if place >= float64(resized) {
			return -1
		}
		return min(int(place*float64(photo)/float64(resized)), photo-1)
	}
	for y := range side {
		row := at(y, resized.Height, photo.Height)
		for x := range side {
			if column := at(x, resized.Width, photo.Width); row >= 0 && column >= 0 {
				target[y*side+x] = mask[row*photo.Width+column]
			}
		}
	}
	return target, nil
}

func interpolate(x []float32, from, to Size) ([]float32, error) {
	s := conv.ResizeShape{Batch: 1, Channels: 1, Dims: 2, Size: [3]int{from.Height, from.Width}, Out: [3]int{to.Height, to.Width}, Interpolation: conv.Linear}
	y := make([]float32, to.Height*to.Width)
	return y, conv.Resize(y, x, s, make([]float32, s.WorkspaceLen()))
}
