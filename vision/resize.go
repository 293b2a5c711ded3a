package vision

import (
	"fmt"
	"math"
	"slices"

	"github.com/snug-ml/snug"
)

// window is a part of an image.
type window struct{ x, y, width, height int }

// Resize returns the image in another size, with the bits of Pillow's Image.resize, or of torchvision's resize with antialias of
// uint8 tensors on a CPU. A pixel of the result is
//
//	out[i] = Σ_j w((j + ½ - c)/s) in[j] / Σ_j w(...),   c = (i + ½) in/out,   s = max(in/out, 1),
//
// along the rows, rounded to 8 bits and clipped, then along the columns; Pillow 13 begins with the columns where the height shrinks
// by more than twice as many pixels as the width, as older versions do not. Weights are integers: of 22 bits after the point for Pillow; for
// Torchvision of 16 bits in all, with as many after the point as the largest weight leaves. Torchvision has no Box and Hamming. An axis of the same size is
// left as it is. Nearest takes the pixel at the centre; where that lies between two, torch takes one or the other by the size of the image, and
// here it is always the same.
//
// The call holds both images, one of the new width and the old height, and 12 bytes for each weight, of which there are at most
// 2 ceil(support·max(in/out, 1)) + 1 for each new column and row. Errors wrap [snug.ErrConfig] and [snug.ErrShape].
func Resize(m *Image, width, height int, f Filter, b Backend) (*Image, error) {
	if err := m.check(); err != nil {
		return nil, fmt.Errorf("vision: %w", err)
	}
	if err := b.check(f); err != nil {
		return nil, fmt.Errorf("vision: %w", err)
	}
	if err := sizeFits(width, height); err != nil {
		return nil, fmt.Errorf("vision: %w", err)
	}
	return resize(m, width, height, window{0, 0, width, height}, f, backends[b]), nil
}

// The most that an image is resized to: pixels of an axis, also where only a window is computed, and pixels of the window.
const (
	maxSide   = 1 << 26
	maxPixels = 1 << 28
)

// sizeFits returns an error if an image has no pixels or too many.
func sizeFits(width, height int) error {
	if err := sideFits(width, height); err != nil {
		return err
	}
	if int64(width)*int64(height) > maxPixels {
		return fmt.Errorf("resized to %d x %d pixels, want at most %d in all: %w", width, height, maxPixels, snug.ErrNoMemory)
	}
	return nil
}

func sideFits(width, height int) error {
	if width < 1 || height < 1 {
		return fmt.Errorf("resized to %d x %d pixels, want at least 1 x 1: %w", width, height, snug.ErrShape)
	}
	if width > maxSide || height > maxSide {
		return fmt.Errorf("resized to %d x %d pixels, want at most %d a side: %w", width, height, maxSide, snug.ErrNoMemory)
	}
	return nil
}

// resize returns a window of the image in a new size. Only what the window needs is computed.
func resize(m *Image, width, height int, part window, f Filter, b backend) *Image {
	if f == Nearest {
		return nearest(m, b.nearest(m.Width, width), b.nearest(m.Height, height), part)
	}
	rows := b.weights(m.Height, height, f, part.y, part.height)
	columns := b.weights(m.Width, width, f, part.x, part.width)
	if b.columnsFirst(size{m.Height, m.Width}, size{height, width}) {
		return horizontal(vertical(m, rows), columns)
	}
	first, last := rows.inputs() // rows that no output reads are passed over
	for i := range rows.first {
		rows.first[i] -= first
	}
	return vertical(horizontal(&Image{m.Width, last - first, m.Pix[3*first*m.Width : 3*last*m.Width]}, columns), rows)
}

// inputs returns the range that is read.
func (w *weights) inputs() (first, last int) {
	first = math.MaxInt
	for i, f := range w.first {
		first, last = min(first, f), max(last, f+w.at[i+1]-w.at[i])
	}
	return first, last
}

// weights are what one axis needs: output i is the inputs from first[i], weighed with w[at[i]:at[i+1]].
type weights struct {
	first, at []int
	w         []int32
	bits      uint // of w after the point
}

// same reports whether outputs are all n inputs as they are.
func (w *weights) same(n int) bool { return w.bits == 0 && len(w.first) == n && w.first[0] == 0 }

// weights returns those of n outputs from the given one, of an axis with in pixels that gets out.
func (b backend) weights(in, out int, f Filter, from, n int) *weights {
	r := &weights{first: make([]int, n), at: make([]int, n+1)}
	if in == out {
		r.w = slices.Repeat([]int32{1}, n)
		for i := range n {
			r.first[i], r.at[i+1] = from+i, i+1
		}
		return r
	}
	k := kernels[f]
	scale := float64(in) / float64(out)
	stretch := max(scale, 1)
	support := float64(k.support * stretch)
	inverse := 1 / stretch
	most := int(math.Ceil(support))*2 + 1
	real, largest := make([]float64, 0, n*min(most, in)), 0.0
	one := make([]float64, 0, most)
	for i := range out { // all of them: the largest weight decides about bits
		center := float64((float64(i) + 0.5) * scale)
		lo := max(int(center-support+0.5), 0)
		hi := min(int(center+support+0.5), in, lo+most)
		one = one[:0]
		total := 0.0
		for j := lo; j < hi; j++ {
			v := k.weight(float64((float64(j) - center + 0.5) * inverse))
			one = append(one, v)
			total += v
		}
		for j := range one {
			if total != 0 {
				one[j] /= total
			}
			largest = max(largest, one[j])
		}
		if i >= from && i < from+n {
			real = append(real, one...)
			r.first[i-from], r.at[i-from+1] = lo, len(real)
		}
	}
	r.bits = b.bits(largest)
	r.w = make([]int32, len(real))
	for i, v := range real {
		r.w[i] = int32(math.Copysign(0.5, v) + float64(v*float64(int(1)<<r.bits)))
	}
	return r
}

// horizontal resizes rows.
func horizontal(m *Image, w *weights) *Image {
	if w.same(m.Width) {
		return m
	}
	width := len(w.first)
	out := newImage(width, m.Height)
	half := int32(1) << w.bits >> 1
	for y := range m.Height {
		in, to := m.Pix[3*y*m.Width:][:3*m.Width], out.Pix[3*y*width:][:3*width]
		for i, first := range w.first {
			r, g, b := half, half, half
			from := in[3*first:]
			for j, v := range w.w[w.at[i]:w.at[i+1]] {
				p := from[3*j : 3*j+3]
				r += int32(p[0]) * v
				g += int32(p[1]) * v
				b += int32(p[2]) * v
			}
			to[3*i], to[3*i+1], to[3*i+2] = clip(int(r>>w.bits)), clip(int(g>>w.bits)), clip(int(b>>w.bits))
		}
	}
	return out
}

// vertical resizes columns.
func vertical(m *Image, w *weights) *Image {
	if w.same(m.Height) {
		return m
	}
	height := len(w.first)
	out := newImage(m.Width, height)
	half := int32(1) << w.bits >> 1
	sums := make([]int32, 3*m.Width)
	for i, first := range w.first {
		for x := range sums {
			sums[x] = half
		}
		for j, v := range w.w[w.at[i]:w.at[i+1]] {
			for x, p := range m.Pix[(first+j)*len(sums):][:len(sums)] {
				sums[x] += int32(p) * v
			}
		}
		to := out.Pix[i*len(sums):][:len(sums)]
		for x, s := range sums {
			to[x] = clip(int(s >> w.bits))
		}
	}
	return out
}

// nearest takes for every output the input that columns and rows name.
func nearest(m *Image, columns, rows []int, part window) *Image {
	out := newImage(part.width, part.height)
	each(out, func(x, y int, p []byte) {
		copy(p, m.Pix[3*(rows[part.y+y]*m.Width+columns[part.x+x]):][:3])
	})
	return out
}
