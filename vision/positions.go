package vision

import (
	"fmt"
	"math"

	"github.com/snug-ml/snug"
)

// Axes is how a model places images and videos along time, height and width.
type Axes struct {
	Image, Video int32 // the tokens that stand for their rows
	// PerSecond is the positions along time of a second of a video, tokens_per_second of Qwen2.5-VL's vision_config; 0: one for each patch.
	PerSecond float64
	// Apart says that each patch of a video along time is placed as an image of its own, with text between them, as Qwen3-VL's are.
	Apart bool
}

// Positions returns the positions of tokens along time, height and width for multimodal rotary embedding, and the position of a token of text
// that would be next, as get_rope_index of Qwen2-VL, Qwen2.5-VL and Qwen3-VL computes them. ids is one sequence, and images the layouts of the
// images and videos in it, in turn: each run of a token is one image, one video or, with Apart, one patch of a video along time.
//
//	text:   t = h = w = p, p grows by 1
//	image:  (t, h, w) = (p, p + i, p + j) of row i and column j of merged patches, then p grows by max(rows, columns)
//	video:  (t, h, w) = (p + floor(k PerSecond Interval), p + i, p + j) of patch k along time, or with PerSecond 0 (p + k, p + i, p + j)
//
// The product is in float32, as the processor of transformers hands it to the model. positions[:] is Batch.Positions of package transformer.
// It allocates 12 bytes a token. The error wraps [snug.ErrShape] if the runs are not the images and videos.
func Positions(ids []int32, o Axes, images []Layout) (positions [3][]int32, next int32, err error) {
	left := images
	all := make([]int32, 3*len(ids))
	for a := range positions {
		positions[a] = all[a*len(ids):][:len(ids):len(ids)]
	}
	part := 0 // of a video along time, whose patches are apart
	for i := 0; i < len(ids); {
		if ids[i] != o.Image && ids[i] != o.Video {
			positions[0][i], positions[1][i], positions[2][i] = next, next, next
			next++
			i++
			continue
		}
		run := i
		for run < len(ids) && ids[run] == ids[i] {
			run++
		}
		if len(left) == 0 {
			return [3][]int32{}, 0, fmt.Errorf("vision: tokens of an image or a video at %d beyond the %d: %w", i, len(images), snug.ErrShape)
		}
		l := left[0]
		if err := l.check(); err != nil {
			return [3][]int32{}, 0, err
		}
		if ids[i] != o.token(l) {
			return [3][]int32{}, 0, fmt.Errorf("vision: token %d at %d, want %d for the next image or video: %w", ids[i], i, o.token(l), snug.ErrShape)
		}
		merge := max(l.Merge, 1)
		times, rows, columns := l.Grid[0], l.Grid[1]/merge, l.Grid[2]/merge
		if o.Apart && l.Frames > 0 {
			times = 1
			part++
		}
		if !o.Apart || part == l.Grid[0] || l.Frames == 0 {
			left, part = left[1:], 0
		}
		if n := int64(times) * int64(rows) * int64(columns); n != int64(run-i) {
			return [3][]int32{}, 0, fmt.Errorf("vision: %d tokens of an image or a video at %d, want %d for a grid of %v: %w", run-i, i, n, l.Grid, snug.ErrShape)
		}
		step, err := o.step(l)
		if err != nil {
			return [3][]int32{}, 0, err
		}
		for j := range run - i {
			positions[0][i+j] = next + int32(float32(j/(rows*columns))*step)
			positions[1][i+j] = next + int32(j/columns%rows)
			positions[2][i+j] = next + int32(j%columns)
		}
		next += int32(max(rows, columns))
		i = run
	}
	if len(left) > 0 {
		return [3][]int32{}, 0, fmt.Errorf("vision: %d images or videos without their tokens, want a run of them for each of %d: %w", len(left), len(images), snug.ErrShape)
	}
	return positions, next, nil
}

// token returns the one that stands for rows of a layout.
func (o Axes) token(l Layout) int32 {
	if l.Frames > 0 {
		return o.Video
	}
	return o.Image
}

// step returns the positions along time between patches.
func (o Axes) step(l Layout) (float32, error) {
	if l.Frames == 0 || o.PerSecond == 0 || o.Apart {
		return 1, nil
	}
	step := float64(float32(o.PerSecond) * float32(l.Interval))
	if most := float64(math.MaxInt32/4) / float64(max(l.Grid[0], 1)); !(step >= 0 && step <= most) {
		return 0, fmt.Errorf("vision: %v positions between patches of a video along time, want from 0 to %v: %w", step, most, snug.ErrShape)
	}
	return float32(step), nil
}
