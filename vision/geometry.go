package vision

import (
	"fmt"
	"math"

	"github.com/snug-ml/snug"
)

// target returns the size that an image gets by a field size, as the method resize of transformers' backends has it. Quotients are in
// float64 and cut to integers as Python's are.
func (s sizes) target(from size) (size, error) {
	switch {
	case s.shortest > 0 && s.longest > 0:
		return s.aspect(from), nil
	case s.shortest > 0:
		short, long := min(from.height, from.width), max(from.height, from.width)
		long = int(float64(int64(s.shortest)*int64(long)) / float64(short))
		if from.width <= from.height {
			return size{long, s.shortest}, nil
		}
		return size{s.shortest, long}, nil
	case s.maxHeight > 0 && s.maxWidth > 0:
		scale := min(float64(s.maxHeight)/float64(from.height), float64(s.maxWidth)/float64(from.width))
		return size{int(float64(from.height) * scale), int(float64(from.width) * scale)}, nil
	case s.height > 0 && s.width > 0:
		return size{s.height, s.width}, nil
	}
	return size{}, s.useless("height and width, shortest_edge, or max_height and max_width")
}

// useless is the error of a size whose form a processor does not take.
func (s sizes) useless(want string) error {
	return fmt.Errorf("size is in a form that this processor does not take, want %s: %w", want, snug.ErrConfig)
}

// aspect is get_size_with_aspect_ratio: the shortest edge as wanted, unless the longest would become too long.
func (s sizes) aspect(from size) size {
	h, w := float64(from.height), float64(from.width)
	short, raw := s.shortest, 0.0
	if max(h, w)/min(h, w)*float64(short) > float64(s.longest) {
		raw = float64(s.longest) * min(h, w) / max(h, w)
		short = int(math.RoundToEven(raw))
	}
	long := float64(short)
	if raw != 0 {
		long = raw
	}
	switch {
	case from.height <= from.width && from.height == short || from.width <= from.height && from.width == short:
		return from
	case from.width < from.height:
		return size{int(long * h / w), short}
	}
	return size{short, int(long * w / h)}
}

// smart is Qwen2-VL's smart_resize: sides that are multiples of factor, with a number of pixels within bounds.
func smart(from size, factor, minimum, maximum int) (size, error) {
	h, w, f := float64(from.height), float64(from.width), float64(factor)
	if max(h, w)/min(h, w) > 200 {
		return size{}, fmt.Errorf("image of %d x %d pixels, want sides with a ratio of at most 200: %w", from.width, from.height, snug.ErrShape)
	}
	height, width := math.RoundToEven(h/f)*f, math.RoundToEven(w/f)*f
	switch {
	case height*width > float64(maximum):
		beta := math.Sqrt(h * w / float64(maximum))
		height, width = max(f, math.Floor(h/beta/f)*f), max(f, math.Floor(w/beta/f)*f)
	case height*width < float64(minimum):
		beta := math.Sqrt(float64(minimum) / (h * w))
		height, width = math.Ceil(h*beta/f)*f, math.Ceil(w*beta/f)*f
	}
	return size{int(height), int(width)}, nil
}
