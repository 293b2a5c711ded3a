package segment

import (
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/layers"
)

// Prompt says what of an image is meant. Coordinates are pixels of the image that the encoder gets: multiply those of a photo by Width/OriginalWidth
// and Height/OriginalHeight of its vision.Layout. The zero Prompt says nothing.
//
// Points and corners of a box are tokens. In a batch zeros take the place of those that a prompt has fewer than another one, as in
// transformers, and attention sees them: its masks are not quite those that it gets alone.
type Prompt struct {
	Points []Point
	Box    *Box
	Mask   []float32 // logits of an earlier mask, [Config.Side, Config.Side]; nil for none
}

// Point is a point of what is meant, or of what is not.
type Point struct {
	X, Y       float32
	Background bool
}

// Box is a rectangle around what is meant: its first and its last column and row.
type Box struct{ Left, Top, Right, Bottom float32 }

// prompts are those of a batch.
type prompts []Prompt

// token is one that a prompt becomes, at a place from 0 to 1.
type token struct {
	kind int // of points of the prompt encoder, or one of those below
	x, y float64
}

const (
	background, foreground, corner = 0, 1, 2
	notPoint                       = -1 // in place of a box
)

// tokens returns the tokens of a prompt for images of so many pixels.
func (p *Prompt) tokens(side int) (list []token) {
	add := func(kind int, x, y float32) {
		list = append(list, token{kind, (float64(x) + 0.5) / float64(side), (float64(y) + 0.5) / float64(side)})
	}
	for _, at := range p.Points {
		kind := foreground
		if at.Background {
			kind = background
		}
		add(kind, at.X, at.Y)
	}
	if len(p.Points) > 0 && p.Box == nil {
		list = append(list, token{kind: notPoint})
	}
	if b := p.Box; b != nil {
		add(corner, b.Left, b.Top)
		add(corner+1, b.Right, b.Bottom)
	}
	return list
}

// mostPoints bounds the points of a prompt.
const mostPoints = 1 << 12

func (p *Prompt) check(side int) error {
	if len(p.Points) > mostPoints {
		return fmt.Errorf("%d points, want up to 2^12: %w", len(p.Points), snug.ErrShape)
	}
	if p.Mask != nil && len(p.Mask) != side*side {
		return fmt.Errorf("a mask of %d elements, want %d by %d: %w", len(p.Mask), side, side, snug.ErrShape)
	}
	numbers := []float32{}
	for _, at := range p.Points {
		numbers = append(numbers, at.X, at.Y)
	}
	if b := p.Box; b != nil {
		numbers = append(numbers, b.Left, b.Top, b.Right, b.Bottom)
	}
	for _, v := range p.Mask {
		if v-v != 0 {
			return fmt.Errorf("a mask with %v, want finite logits: %w", v, snug.ErrNonFinite)
		}
	}
	for _, v := range numbers {
		if v-v != 0 {
			return fmt.Errorf("a coordinate %v, want finite ones: %w", v, snug.ErrNonFinite)
		}
	}
	return nil
}

// count returns the tokens of the longest prompt.
func (p prompts) count() (n int) {
	for i := range p {
		n = max(n, len(p[i].tokens(1)))
	}
	return n
}

// of returns prompt i, the zero one if there are fewer, as where a pass counts bytes.
func (p prompts) of(i int) *Prompt {
	if i < len(p) {
		return &p[i]
	}
	return &Prompt{}
}

// tokens are the token of scores, those of masks, and those of prompts. Zeros fill up prompts that are shorter than others, as the processor
// of transformers has it.
func (m *decoder) tokens(g *graph) *value {
	p, width := g.p, m.config.Decoder.Width
	own := 1 + m.maskToken.Len()/width
	kinds := make([][]token, p.Rows())
	for i := range kinds {
		kinds[i] = m.prompts.of(i).tokens(m.config.Encoder.Image)
	}
	each := (own + m.prompts.count()) * width
	v := p.Get(each)
	p.Do(func() error {
		waves, to := m.waves.Value.Float32s(), v.Float32s()
		clear(to)
		for i, list := range kinds {
			row := to[i*each:][:each]
			copy(row[copy(row, m.iouToken.Value.Float32s()):], m.maskToken.Value.Float32s())
			for j, t := range list {
				at := row[(own+j)*width:][:width]
				if t.kind == notPoint {
					copy(at, m.notPoint.Value.Float32s())
					continue
				}
				wave(at, waves, t.x, t.y)
				if err := fused.Add(snug.ViewOf(at), snug.ViewOf(at), m.points[t.kind].Value); err != nil {
					return err
				}
			}
		}
		return nil
	})
	return g.add(each, v, func(y *value) {
		// rows returns n tokens from token i on of each prompt, where keep says so.
		rows := func(w *layers.Param, keep func(row, at int) bool) {
			g.sum(w, func() snug.View {
				var list []float32
				for row := range p.Rows() {
					for at := 0; at+w.Len() <= each; at += width {
						if keep(row, at/width) {
							list = append(list, y.d.Float32s()[row*each+at:][:w.Len()]...)
						}
					}
				}
				return snug.ViewOf(list)
			})
		}
		is := func(kind int) func(row, at int) bool {
			return func(row, at int) bool {
				return at >= own && at-own < len(kinds[row]) && kinds[row][at-own].kind == kind
			}
		}
		rows(m.iouToken, func(_, at int) bool { return at == 0 })
		rows(m.maskToken, func(_, at int) bool { return at == 1 })
		for kind, w := range m.points {
			rows(w, is(kind))
		}
		rows(m.notPoint, is(notPoint))
	})
}

// dense is x and the embedding of the masks of prompts, or of none.
func (m *decoder) dense(g *graph, x *value) *value {
	p := g.p
	if m.prompts.of(0).Mask == nil {
		v := p.Get(x.width)
		p.Do(func() error { return fused.BiasAdd(v.View, x.v.View, m.noMask.Value) })
		return g.add(x.width, v, func(y *value) {
			g.sum(m.noMask, func() snug.View { return y.d.View })
			m.maskEmbed.Params(func(w *layers.Param) bool {
				g.sum(w, func() snug.View { return snug.View{} })
				return true
			})
		})
	}
	n := m.config.Side() * m.config.Side()
	v := p.Get(n)
	p.Do(func() error {
		for i := range p.Rows() {
			copy(v.Float32s()[i*n:][:n], m.prompts.of(i).Mask)
		}
		return nil
	})
	masks := g.add(n, v, func(*value) { g.sum(m.noMask, func() snug.View { return snug.View{} }) })
	masks.fixed = true
	return g.plus(x, g.layer(m.maskEmbed, masks))
}

// positions returns the positions of the patches of an image.
func (m *decoder) positions() snug.View {
	width, grid := m.config.Decoder.Width, m.config.Grid()
	if m.at == nil {
		m.at = make([]float32, grid*grid*width)
		for i := range grid * grid {
			wave(m.at[i*width:][:width], m.waves.Value.Float32s(), (float64(i%grid)+0.5)/float64(grid), (float64(i/grid)+0.5)/float64(grid))
		}
	}
	return snug.ViewOf(m.at)
}
