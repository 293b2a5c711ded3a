package segment

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/attention"
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/layers"
)

// windowed is a block of TinyViT: attention within windows with learned biases of distances, a convolution of each channel, and an MLP:
//
//	a = x + out(attention(norm(x)))        z = near(a)        y = z + down(GELU(up(norm(z))))
//
// A query at row i and column j of a window and a key at row u and column v have the score q·k/√dim + B[|i−u|, |j−v|]. Windows at the
// right and at the bottom are filled up with zeros before the norm, which attention sees, as the model was trained.
type windowed struct {
	frozen
	norms              [2]*layers.Norm
	qkv, out, up, down *layers.Linear
	biases             *layers.Param // B, [heads, window, window]
	near               *folded
	Stage
	grid int
}

func newWindowed(name string, s Stage, grid int) *windowed {
	w := &windowed{
		norms: [2]*layers.Norm{layers.NewLayerNorm(name+"attn.norm", s.Width), layers.NewLayerNorm(name+"mlp.norm", s.Width)},
		qkv:   layers.NewLinear(name+"attn.qkv", s.Width, 3*s.Width, true), out: layers.NewLinear(name+"attn.proj", s.Width, s.Width, true),
		up: layers.NewLinear(name+"mlp.fc1", s.Width, s.Hidden, true), down: layers.NewLinear(name+"mlp.fc2", s.Hidden, s.Width, true),
		biases: layers.NewEmbedding("", s.Heads, s.Window*s.Window).Table, near: newFolded(name+"local_conv", s.Width, s.Width, 3, 1, s.Width),
		Stage: s, grid: grid,
	}
	w.biases.Name = name + "attn.attention_biases"
	return w
}

func (w *windowed) folds() []*folded { return []*folded{w.near} }

// Params implements [layers.Layer].
func (w *windowed) Params(yield func(*layers.Param) bool) {
	more := true
	layers.Sequential{w.norms[0], w.qkv, w.out, w.near.Conv, w.norms[1], w.up, w.down}.Params(func(p *layers.Param) bool {
		more = yield(p)
		return more
	})
	if more {
		yield(w.biases)
	}
}

// Width implements [layers.Layer].
func (w *windowed) Width(in int) (int, error) {
	n := w.grid * w.grid * w.Stage.Width
	return fits(w.biases.Name, in, n, n)
}

// linear computes y = x·Wᵀ or y + x·Wᵀ, without the bias.
func linear(l *layers.Linear, y, x snug.View, into snug.Into) error {
	return amp.MatMul(y, x, l.Weight.Value, amp.MatMulOptions{M: y.Len() / l.Out, N: l.Out, K: l.In, TransB: true, Into: into})
}

// normalize computes a norm of rows, in place if both are the same.
func normalize(n *layers.Norm, y, x snug.View) error {
	none := snug.ViewOf([]float32(nil))
	return fused.LayerNorm(y, none, none, x, n.Weight.Value, n.Bias.Value, n.Eps)
}

// Forward implements [layers.Layer].
func (w *windowed) Forward(p *layers.Pass, x *layers.Tensor) *layers.Tensor {
	width := w.grid * w.grid * w.Stage.Width
	side, windows := w.Window, (w.grid-1)/w.Window+1
	tokens := windows * side * side
	a := p.Get(width)
	h, qkv, zeros := scratch(p, tokens*w.Stage.Width), scratch(p, 3*tokens*w.Stage.Width), scratch(p, side*w.Stage.Width)
	biases := p.Stat((w.Heads*side*side*side*side-1)/p.Rows() + 1)
	p.Do(func() error {
		err := steps(
			func() error { return amp.Cast(zeros.View, make([]float32, zeros.Len())) },
			func() error { return w.spread(biases.Float32s()) })
		for i := 0; i < p.Rows() && err == nil; i++ {
			for top := 0; top < w.grid && err == nil; top += side {
				n := min(side, w.grid-top) * w.grid * w.Stage.Width
				at := i*width + top*w.grid*w.Stage.Width
				err = w.attend(cut(a.View, at, n), cut(x.View, at, n), cut(h.View, 0, tokens*w.Stage.Width), qkv.View, biases.View, zeros.View)
			}
		}
		return err
	})
	p.Put(h, qkv, biases, zeros)
	y := p.Get(width)
	p.Do(func() error {
		for i := range p.Rows() {
			if err := w.near.rows(cut(y.View, i*width, width), cut(a.View, i*width, width), 0, w.grid, 0, w.grid); err != nil {
				return err
			}
		}
		return w.near.bias(y.View)
	})
	p.Put(a)
	w.feed(p, y)
	return y
}

// spread writes the biases of all pairs of a window, [heads, window², window²].
func (w *windowed) spread(to []float32) error {
	side, table := w.Window, make([]float32, w.biases.Len())
	if err := amp.Cast(table, w.biases.Value); err != nil {
		return err
	}
	distance := func(i, j int) int { return max(i-j, j-i) }
	positions := side * side
	for head := range w.Heads {
		of := table[head*positions:][:positions]
		for q := range positions {
			row := to[(head*positions+q)*positions:][:positions]
			for k := range row {
				row[k] = of[distance(q/side, k/side)*side+distance(q%side, k%side)]
			}
		}
	}
	return nil
}

// segments calls do for each row of a window of a row of windows, with what it has of an image of so many rows: n elements at image, those
// at window, and the pad elements behind them.
func (w *windowed) segments(rows int, do func(image, window, n, pad int) error) error {
	side, width := w.Window, w.Stage.Width
	for left := 0; left < w.grid; left += side {
		for row := range side {
			n := min(side, w.grid-left)
			if row >= rows {
				n = 0
			}
			if err := do((min(row, rows-1)*w.grid+left)*width, (left+row)*side*width, n*width, (side-n)*width); err != nil {
				return err
			}
		}
	}
	return nil
}

// attend computes a = x + attention for a row of windows.
func (w *windowed) attend(a, x, h, qkv, biases, zeros snug.View) error {
	width, rows, side := w.Stage.Width, x.Len()/(w.grid*w.Stage.Width), w.Window
	dim, window := width/w.Heads, side*side
	c := attention.SequenceMajor(attention.Options{Batch: h.Len() / (window * width), Heads: w.Heads, SeqQ: window, SeqK: window, Dim: dim})
	c.Q = attention.Strides{Batch: window * 3 * width, Head: 3 * dim, Row: 3 * width} // [windows, window², heads, 3, dim]
	c.K, c.V = c.Q, c.Q
	c.Bias = attention.Bias{X: cut(biases, 0, w.Heads*window*window), Dims: [4]int{1, w.Heads, window, window}}
	qkv = cut(qkv, 0, 3*h.Len())
	after := func(i int) snug.View { return cut(qkv, i*dim, qkv.Len()-i*dim) }
	out := cut(qkv, 0, h.Len())
	return steps(
		func() error {
			return w.segments(rows, func(image, window, n, pad int) error {
				if err := snug.Copy(cut(h, window, n), cut(x, image, n)); err != nil {
					return err
				}
				return snug.Copy(cut(h, window+n, pad), cut(zeros, 0, pad))
			})
		},
		func() error { return normalize(w.norms[0], h, h) },
		func() error { return linear(w.qkv, qkv, h, snug.Into{}) },
		func() error { return fused.BiasAdd(qkv, qkv, w.qkv.Bias.Value) },
		func() error { return attention.Forward(h, snug.ViewOf([]float32(nil)), qkv, after(1), after(2), c) },
		func() error { return linear(w.out, out, h, snug.Into{}) },
		func() error {
			return w.segments(rows, func(image, window, n, _ int) error { return snug.Copy(cut(a, image, n), cut(out, window, n)) })
		},
		func() error { return fused.BiasAdd(a, a, w.out.Bias.Value) },
		func() error { return fused.Add(a, a, x) })
}

// feed adds the MLP of the norm to y, some positions at once.
func (w *windowed) feed(p *layers.Pass, y *layers.Tensor) {
	width, hidden := w.Stage.Width, w.Hidden
	each := w.rows(w.grid*w.grid, hidden)
	h, u := scratch(p, each*width), scratch(p, each*hidden)
	p.Do(func() error {
		for at := 0; at < y.Len(); at += each * width {
			to := cut(y.View, at, min(each*width, y.Len()-at))
			from, up := cut(h.View, 0, to.Len()), cut(u.View, 0, to.Len()/width*hidden)
			err := steps(
				func() error { return normalize(w.norms[1], from, to) },
				func() error { return linear(w.up, up, from, snug.Into{}) },
				func() error { return fused.BiasGELUErf(up, up, w.up.Bias.Value) },
				func() error { return linear(w.down, to, up, snug.Into{Alpha: 1, Beta: 1}) },
				func() error { return fused.BiasAdd(to, to, w.down.Bias.Value) })
			if err != nil {
				return err
			}
		}
		return nil
	})
	p.Put(h, u)
}
