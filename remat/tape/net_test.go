package tape

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/stretchr/testify/require"
)

// net records layers on a Tape and goes backward through them. After an error it
// does nothing more.
type net struct {
	ctx    context.Context
	w      *world
	tape   *Tape[[]float32]
	r      *rand.Rand
	shift  float32 // of all leaves, along their directions
	nodes  []*node
	leaves []*node
	err    error
}

// node is a value of a net and its gradient.
type node struct {
	layer layer
	in    []*node
	y, d  *Value[[]float32] // d is nil until there is one

	// Of a leaf.
	value, along []float32 // along is the direction of its shift
	gradient     []float32 // outside of the Tape, as that of a parameter
}

// layer is an operation of a net. The result of forward or, with view, a part of
// the first operand has n elements.
type layer struct {
	op       Op
	n        int
	view     func(x []float32) []float32
	forward  func(y []float32, in [][]float32)
	backward func(dx []float32, k int, dy, y []float32, in [][]float32) // the gradient of operand k, over zeros
}

func values(nodes []*node) []*Value[[]float32] {
	var all []*Value[[]float32]
	for _, x := range nodes {
		all = append(all, x.y)
	}
	return all
}

// leaf is a random input of n elements.
func (g *net) leaf(n int) *node {
	x := &node{layer: layer{n: n}, value: make([]float32, n), along: make([]float32, n), gradient: make([]float32, n)}
	for i := range n {
		x.value[i], x.along[i] = float32(g.r.NormFloat64()/2), float32(g.r.NormFloat64())
		x.value[i] += g.shift * x.along[i]
	}
	if g.err == nil {
		x.y, g.err = g.tape.Input(g.ctx, "leaf", x.value)
	}
	g.nodes, g.leaves = append(g.nodes, x), append(g.leaves, x)
	return x
}

// do runs an operation with a result of n elements.
func (g *net) do(op Op, n int, f func(y []float32, in [][]float32), operands ...*Value[[]float32]) (y *Value[[]float32]) {
	if g.err != nil {
		return nil
	}
	op.Bytes = int64(4 * n)
	y, g.err = g.tape.Do(g.ctx, op, func(_ context.Context, in [][]float32) ([]float32, error) {
		if err := g.w.Call(); err != nil {
			return nil, err
		}
		y := g.w.p.Get(n)
		f(y, in)
		g.w.check()
		return y, nil
	}, operands...)
	return y
}

func (g *net) apply(l layer, in ...*node) *node {
	x := &node{layer: l, in: in}
	if l.view == nil {
		x.y = g.do(l.op, l.n, l.forward, values(in)...)
	} else if g.err == nil {
		x.y, g.err = g.tape.Alias(l.op.Name, in[0].y, l.view)
	}
	g.nodes = append(g.nodes, x)
	return x
}

// backward goes back from the loss of half the sum of squares of the last node.
// Whatever has had its last use is freed.
func (g *net) backward() {
	last := g.nodes[len(g.nodes)-1]
	last.d = g.do(Op{Name: "loss backward", Cost: 1}, last.layer.n, func(d []float32, in [][]float32) { copy(d, in[0]) }, last.y)
	for _, x := range slices.Backward(g.nodes) {
		if len(x.in) == 0 || g.err != nil {
			continue
		}
		for k, p := range x.in {
			op := Op{Name: x.layer.op.Name + " backward", Cost: x.layer.op.Cost}
			g.accumulate(p, g.do(op, p.layer.n, func(dx []float32, in [][]float32) {
				x.layer.backward(dx, k, in[0], in[1], in[2:])
			}, append([]*Value[[]float32]{x.d, x.y}, values(x.in)...)...))
		}
		if g.err == nil {
			g.err = g.tape.Free(x.y, x.d)
		}
	}
}

// accumulate adds dx to the gradient of p, in place.
func (g *net) accumulate(p *node, dx *Value[[]float32]) {
	switch {
	case g.err != nil:
		return
	case p.gradient != nil:
		g.take(p, dx)
		return
	case p.d == nil:
		p.d = dx
		return
	}
	op := Op{Name: "sum backward", Bytes: int64(4 * p.layer.n), Cost: float64(p.layer.n)}
	p.d, g.err = g.tape.Overwrite(g.ctx, op, func(_ context.Context, d []float32, in [][]float32) error {
		for i, v := range in[0] {
			d[i] += v
		}
		g.w.check()
		return nil
	}, p.d, dx)
	if g.err == nil {
		g.err = g.tape.Free(dx)
	}
}

// take adds dx to the gradient of a leaf.
func (g *net) take(leaf *node, dx *Value[[]float32]) {
	d, err := g.tape.Take(g.ctx, dx)
	if g.err = err; err != nil {
		return
	}
	for i, v := range d {
		leaf.gradient[i] += v
	}
	g.w.p.Put(d)
}

// gradients returns the bits of those of all leaves.
func (g *net) gradients() (all []uint32) {
	for _, x := range g.leaves {
		for _, v := range x.gradient {
			all = append(all, math.Float32bits(v))
		}
	}
	return all
}

// linear is b + Σ W_k·x_k of the operands b, W_1, x_1, W_2, x_2, and so on.
func (g *net) linear(b *node, in ...*node) *node {
	n, work := b.layer.n, 0
	for k := 0; k < len(in); k += 2 {
		work += 2 * in[k].layer.n
	}
	return g.apply(layer{
		op: Op{Name: "linear", Class: MatMul, Cost: float64(work)}, n: n,
		forward: func(y []float32, in [][]float32) {
			copy(y, in[0])
			for k := 1; k < len(in); k += 2 {
				for i := range y {
					for j, x := range in[k+1] {
						y[i] += in[k][i*len(in[k+1])+j] * x
					}
				}
			}
		},
		backward: func(dx []float32, k int, dy, _ []float32, in [][]float32) {
			for i, d := range dy {
				switch {
				case k == 0:
					dx[i] = d
				case k%2 == 1:
					for j, x := range in[k+1] {
						dx[i*len(in[k+1])+j] = d * x
					}
				default:
					for j := range dx {
						dx[j] += d * in[k-1][i*len(dx)+j]
					}
				}
			}
		},
	}, append([]*node{b}, in...)...)
}

// elementwise is f of every element, with a derivative that is a function of f.
func (g *net) elementwise(name string, f, derivative func(float64) float64, x *node) *node {
	return g.apply(layer{
		op: Op{Name: name, Cost: float64(x.layer.n)}, n: x.layer.n,
		forward: func(y []float32, in [][]float32) {
			for i, v := range in[0] {
				y[i] = float32(f(float64(v)))
			}
		},
		backward: func(dx []float32, _ int, dy, y []float32, _ [][]float32) {
			for i, v := range y {
				dx[i] = dy[i] * float32(derivative(float64(v)))
			}
		},
	}, x)
}

func (g *net) tanh(x *node) *node {
	return g.elementwise("tanh", math.Tanh, func(y float64) float64 { return 1 - y*y }, x)
}

func (g *net) sigmoid(x *node) *node {
	return g.elementwise("sigmoid", func(x float64) float64 { return 1 / (1 + math.Exp(-x)) }, func(y float64) float64 { return y * (1 - y) }, x)
}

func (g *net) mul(a, b *node) *node {
	return g.apply(layer{
		op: Op{Name: "mul", Cost: float64(a.layer.n)}, n: a.layer.n,
		forward: func(y []float32, in [][]float32) {
			for i, v := range in[0] {
				y[i] = v * in[1][i]
			}
		},
		backward: func(dx []float32, k int, dy, _ []float32, in [][]float32) {
			for i, v := range in[1-k] {
				dx[i] = dy[i] * v
			}
		},
	}, a, b)
}

// add is the sum, a value of the name cell.
func (g *net) add(in ...*node) *node {
	n := in[0].layer.n
	return g.apply(layer{
		op: Op{Name: "add", Value: "cell", Cost: float64(n)}, n: n,
		forward: func(y []float32, in [][]float32) {
			for _, x := range in {
				for i, v := range x {
					y[i] += v
				}
			}
		},
		backward: func(dx []float32, _ int, dy, _ []float32, _ [][]float32) { copy(dx, dy) },
	}, in...)
}

// split returns n parts of equal size, which are aliases.
func (g *net) split(x *node, n int) []*node {
	size := x.layer.n / n
	parts := make([]*node, n)
	for i := range parts {
		parts[i] = g.apply(layer{
			op: Op{Name: "split", Cost: float64(size)}, n: size,
			view:     func(v []float32) []float32 { return v[i*size : (i+1)*size] },
			backward: func(dx []float32, _ int, dy, _ []float32, _ [][]float32) { copy(dx[i*size:], dy) },
		}, x)
	}
	return parts
}

func (g *net) concat(a, b *node) *node {
	n := a.layer.n + b.layer.n
	return g.apply(layer{
		op: Op{Name: "concat", Cost: float64(n)}, n: n,
		forward: func(y []float32, in [][]float32) { copy(y[copy(y, in[0]):], in[1]) },
		backward: func(dx []float32, k int, dy, _ []float32, in [][]float32) {
			copy(dx, dy[k*len(in[0]):])
		},
	}, a, b)
}

// conv is a convolution of width 3 from rows of x, length elements each, to as
// many rows as are needed for w.
func (g *net) conv(w, x *node, length int) *node {
	rows := x.layer.n / length
	out := w.layer.n / (3 * rows)
	// each calls do with the index of an element of y, of w and of x that belong together.
	each := func(do func(y, w, x int)) {
		for o := range out {
			for i := range length {
				for c := range rows {
					for k := max(0, 1-i); k < min(3, length+1-i); k++ {
						do(o*length+i, (o*rows+c)*3+k, c*length+i+k-1)
					}
				}
			}
		}
	}
	return g.apply(layer{
		op: Op{Name: "conv", Class: MatMul, Cost: float64(2 * w.layer.n * length)}, n: out * length,
		forward: func(y []float32, in [][]float32) {
			each(func(i, j, k int) { y[i] += in[0][j] * in[1][k] })
		},
		backward: func(dx []float32, operand int, dy, _ []float32, in [][]float32) {
			if operand == 0 {
				each(func(i, j, k int) { dx[j] += dy[i] * in[1][k] })
				return
			}
			each(func(i, j, k int) { dx[k] += dy[i] * in[0][j] })
		},
	}, w, x)
}

// pool halves the length of all rows.
func (g *net) pool(x *node) *node {
	return g.apply(layer{
		op: Op{Name: "pool", Cost: float64(x.layer.n)}, n: x.layer.n / 2,
		forward: func(y []float32, in [][]float32) {
			for i := range y {
				y[i] = (in[0][2*i] + in[0][2*i+1]) / 2
			}
		},
		backward: func(dx []float32, _ int, dy, _ []float32, _ [][]float32) {
			for i := range dx {
				dx[i] = dy[i/2] / 2
			}
		},
	}, x)
}

// up doubles it.
func (g *net) up(x *node) *node {
	return g.apply(layer{
		op: Op{Name: "up", Cost: float64(x.layer.n)}, n: 2 * x.layer.n,
		forward: func(y []float32, in [][]float32) {
			for i := range y {
				y[i] = in[0][i/2]
			}
		},
		backward: func(dx []float32, _ int, dy, _ []float32, _ [][]float32) {
			for i, d := range dy {
				dx[i/2] += d
			}
		},
	}, x)
}

// runNet makes a net of a model, with a Tape of its own, and calls use with it.
// Whatever happened, nothing is left.
func runNet(t require.TestingT, model func(*net), shift float32, o func(*Options[[]float32]), use func(*net)) {
	w := newWorld()
	options := w.options()
	if o != nil {
		o(&options)
	}
	tape, err := New(options)
	require.NoError(t, err)
	g := &net{ctx: context.Background(), w: w, tape: tape, r: rand.New(rand.NewPCG(1, 2)), shift: shift}
	w.check = func() {
		inputs := int64(0)
		for _, x := range g.leaves {
			inputs += int64(4 * x.layer.n)
		}
		require.LessOrEqual(t, w.p.Held+inputs, tape.budget)
	}
	model(g)
	use(g)
	require.NoError(t, tape.Close())
	require.Empty(t, w.Problems)
	require.Empty(t, w.p.Live)
	require.Empty(t, w.copies)
}
