package vision

import (
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/internal/saturate"
	"github.com/snug-ml/snug/layers"
)

// llavaNextModel is LLaVA-NeXT (LLaVA 1.6): Liu et al. 2024. An image is first all of it in one tile, then the tiles that it was cut into: the
// lines of their patches, without those that see padding alone, and behind each line a row that is one vector. That vector,
// image_newline, does not train: it is no module that PEFT could save.
var llavaNextModel = &modelFamily{
	modelType: "llava_next", towers: llavaModel.towers, projector: llavaModel.projector, text: llavaModel.text,
	read: func(c *connection, text []byte) error {
		s, err := readLlava(c, text)
		if err != nil {
			return err
		}
		side := c.tower.Image / c.tower.Patch
		if s.each != side*side {
			return fmt.Errorf("vision_feature_select_strategy takes %d rows of a tile of %d by %d patches: %w", s.each, side, side, snug.ErrConfig)
		}
		s.count = func(l Layout) (int, error) {
			_, err := linesOf(l, side)
			if err == nil {
				_, err = c.tilesOf(l.Shape)
			}
			return l.Rows*l.Columns + 1, err
		}
		c.rows = func(l Layout) (int, error) {
			if _, err := s.count(l); err != nil {
				return 0, err
			}
			return rowsOf(l, side), nil
		}
		c.patches = func(rows int64) int64 { return saturate.Mul(2, rows) } // of those that see padding alone there is no row
		s.pack = func(dst, tiles []float32, l Layout) int { return packLines(dst, tiles, l, side, c.tower.Width) }
		s.unpack = func(dtiles, src []float32, l Layout) int { return unpackLines(dtiles, src, l, side, c.tower.Width) }
		end := &lineEnds{vector: &layers.Param{Name: "image_newline", Shape: []int{c.width}}}
		c.announce = func(images []Layout) { end.rows = lineRows(images, side) }
		inner := c.layers
		c.layers = func(prefix string) []layers.Layer { return append(inner(prefix), end) }
		return nil
	},
}

// lines are the part of the patches of an image that are rows of the text: of a grid, without so many at each side.
type lines struct{ high, wide, above, left int }

// linesOf returns the lines of an image whose tiles have side by side patches.
func linesOf(l Layout, side int) (lines, error) {
	from := size{l.OriginalHeight, l.OriginalWidth}
	if l.Rows < 1 || l.Columns < 1 || l.Rows > most/l.Columns || len(l.Shape) != 4 || l.Shape[0] != l.Rows*l.Columns+1 || from.height < 1 || from.width < 1 {
		return lines{}, fmt.Errorf("the Layout has %d by %d tiles, the Shape %v and an image of %d by %d pixels, want that of a LlavaNextImageProcessor: %w", l.Columns, l.Rows, l.Shape[:min(len(l.Shape), 8)], from.width, from.height, snug.ErrShape)
	}
	if float64(l.Rows)*float64(l.Columns)*float64(side)*float64(side) > most {
		return lines{}, fmt.Errorf("%d by %d tiles of %d by %d patches, want at most 2^24 patches: %w", l.Columns, l.Rows, side, side, snug.ErrShape)
	}
	n := lines{high: l.Rows * side, wide: l.Columns * side}
	n.above, n.left = unpadded(n.high, n.wide, from)
	return n, nil
}

// rowsOf returns the rows of an image in the text.
func rowsOf(l Layout, side int) int {
	n, _ := linesOf(l, side)
	return side*side + (n.high-2*n.above)*(n.wide-2*n.left+1)
}

// eachPatch calls do for each patch of an image that is a row of the text, of tiles behind each other, and with -1 for the row behind a line.
func eachPatch(l Layout, side int, do func(patch int)) {
	n, _ := linesOf(l, side)
	for i := range side * side {
		do(i)
	}
	for y := n.above; y < n.high-n.above; y++ {
		for x := n.left; x < n.wide-n.left; x++ {
			do(((y/side*l.Columns+x/side+1)*side+y%side)*side + x%side)
		}
		do(-1)
	}
}

// packLines writes the patches of the first tile, and the lines of the others, and returns how many elements they have.
func packLines(dst, tiles []float32, l Layout, side, width int) int {
	total := len(dst)
	eachPatch(l, side, func(patch int) {
		if patch < 0 {
			clear(dst[:width])
		} else {
			copy(dst[:width], tiles[patch*width:])
		}
		dst = dst[width:]
	})
	return total - len(dst)
}

// unpackLines is the transpose of packLines. It leaves patches that are no row.
func unpackLines(dtiles, src []float32, l Layout, side, width int) int {
	total := len(src)
	eachPatch(l, side, func(patch int) {
		if patch >= 0 {
			copy(dtiles[patch*width:][:width], src)
		}
		src = src[width:]
	})
	return total - len(src)
}

// lineRows returns the rows behind the lines of images.
func lineRows(images []Layout, side int) (list []int) {
	at := 0
	for _, l := range images {
		n, _ := linesOf(l, side)
		at += side * side
		for range n.high - 2*n.above {
			at += n.wide - 2*n.left + 1
			list = append(list, at-1)
		}
	}
	return list
}

// lineEnds puts a vector in place of some rows of a batch.
type lineEnds struct {
	vector *layers.Param
	rows   []int // of the images of the batch
}

// Width implements [layers.Layer].
func (e *lineEnds) Width(in int) (int, error) {
	if in != e.vector.Len() {
		return 0, fmt.Errorf("rows of %d elements, and %s has %d: %w", in, e.vector.Name, e.vector.Len(), snug.ErrShape)
	}
	return in, nil
}

// Params implements [layers.Layer].
func (e *lineEnds) Params(yield func(*layers.Param) bool) { yield(e.vector) }

// each calls do with each of the rows of a tensor.
func (e *lineEnds) each(y *layers.Tensor, do func(row snug.View) error) error {
	width := e.vector.Len()
	for _, at := range e.rows {
		row, err := y.View.Slice(at*width, (at+1)*width)
		if err == nil {
			err = do(row)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Forward implements [layers.Layer].
func (e *lineEnds) Forward(p *layers.Pass, x *layers.Tensor) *layers.Tensor {
	y := p.Get(e.vector.Len())
	p.Do(func() error {
		if err := snug.Copy(y.View, x.View); err != nil {
			return err
		}
		return e.each(y, func(row snug.View) error { return snug.Copy(row, e.vector.Value) })
	})
	return y
}

// ForwardSave implements [layers.Layer]. It keeps the output alone.
func (e *lineEnds) ForwardSave(p *layers.Pass, x *layers.Tensor) (*layers.Tensor, layers.Saved) {
	y := e.Forward(p, x)
	return y, output{y}
}

// output is the saved set of a layer that keeps its output alone.
type output struct{ y *layers.Tensor }

// Tensors implements [layers.Saved].
func (s output) Tensors(list []*layers.Tensor) []*layers.Tensor { return append(list, s.y) }

// Backward implements [layers.Layer]. It turns dy, in place, into the gradient of x, which is 0 in the rows that are not of x.
func (e *lineEnds) Backward(p *layers.Pass, _ *layers.Tensor, _ layers.Saved, dy *layers.Tensor) *layers.Tensor {
	p.Do(func() error {
		return e.each(dy, func(row snug.View) error {
			none, err := row.Slice(0, 0)
			if err != nil {
				return err
			}
			return amp.MatMul(row, none, none, amp.MatMulOptions{M: 1, N: row.Len()})
		})
	})
	return dy
}
