package layers

import (
	"math"
	"slices"

	"pgregory.net/rapid"
)

// sparse is what an MLP with a Sparsity makes of rows of a gate.
func (d *definition) sparse(share float64, n int, gate []float64) []float64 {
	if share == 0 {
		return gate
	}
	for row := range slices.Chunk(gate, n) {
		mean, square := 0.0, 0.0
		for _, v := range row {
			mean += v / float64(n)
		}
		for _, v := range row {
			square += (v - mean) * (v - mean) / float64(n)
		}
		c := mean + math.Sqrt(square)*math.Sqrt2*math.Erfinv(2*share-1)
		for i, v := range row {
			row[i] = max(v-c, 0)
		}
	}
	return gate
}

// someAltUp draws an AltUp of rows of so many elements, whose parts are drawn by the functions.
func someAltUp(t *rapid.T, dim int, linear func(string, int, int) Linear, flip func(string) bool) *AltUp {
	const heads, size, hidden, low, tokens = 2, 4, 5, 2, 6
	n := rapid.IntRange(2, 3).Draw(t, "streams")
	own := rapid.IntRange(1, 3).Draw(t, "own")
	norm := func(name string) Norm { return *NewRMSNorm(name, dim) }
	b := &AltUp{
		Streams: n, Active: rapid.IntRange(0, n-1).Draw(t, "active"), RouterNorm: norm("router norm"), Norm: norm("norm"), LaurelPost: norm("laurel post"),
		Router: *NewLinear("router", dim, n, false), Predict: *NewLinear("predict", n, n*n, false), Correct: *NewLinear("correct", n, n, false),
		Laurel: []Linear{linear("left", dim, low), linear("right", low, dim)},
		Attention: &Attention{Heads: heads, KVHeads: 1, HeadDim: size, Scale: 0.4, Post: norm("attention post"), Out: []Linear{linear("out", heads*size, dim)},
			QKV: []Linear{linear("q", dim, heads*size), linear("k", dim, size), linear("v", dim, size)}},
		MLP: &MLP{Activation: SiLU, Norm: norm("mlp norm"), Post: norm("mlp post"), In: []Linear{linear("gate", dim, hidden), linear("up", dim, hidden)},
			Down: []Linear{linear("down", hidden, dim)}},
		PerLayer: &PerLayer{Table: &Embedding{Table: newParam("table", 1, tokens, dim), Scale: 1.5}, Tokens: newParam("tokens", 1, tokens-1, own),
			Projection: newParam("projection", 1, own, dim), Norm: *NewRMSNorm("own norm", own), Gate: []Linear{linear("own gate", dim, own)},
			Out: []Linear{linear("own out", own, dim)}, Activation: SiLU, Post: norm("own post"), Count: 1},
	}
	if flip("sparse") {
		b.MLP.Sparsity = 0.3
	}
	if flip("scale") {
		b.Scale = newParam("scale", 1, dim)
	}
	streams := func(name string) (l *Streams) {
		if flip(name) {
			l = &Streams{}
			for i := range n - 1 {
				l.Projections = append(l.Projections, linear(name+string(rune('0'+i)), dim, dim))
			}
		}
		return l
	}
	b.First, b.Last = streams("first"), streams("last")
	return b
}

// linears returns the matrices that may have adapters.
func (b *AltUp) linears() []Linear {
	list := slices.Concat(b.Laurel, b.Attention.QKV, b.Attention.Out, b.MLP.In, b.MLP.Down, b.PerLayer.Gate, b.PerLayer.Out)
	for _, l := range []*Streams{b.First, b.Last} {
		if l != nil {
			list = append(list, l.Projections...)
		}
	}
	return list
}

// altUp computes an AltUp as its documentation defines it.
func (d *definition) altUp(b *AltUp, x []float64) []float64 {
	dim, n, rows := b.dim(), b.Streams, d.batch.Rows
	rescale := func(y, x []float64) []float64 {
		for r := range rows {
			have, want := 0.0, 0.0
			for j := range dim {
				have += y[r*dim+j] * y[r*dim+j] / float64(dim)
				want += x[r*dim+j] * x[r*dim+j] / float64(dim)
			}
			for j := range dim {
				y[r*dim+j] *= math.Sqrt(want) / math.Sqrt(max(have, 1e-5))
			}
		}
		return y
	}
	add := func(x, y []float64) []float64 {
		sum := slices.Clone(x)
		for i, v := range y {
			sum[i] += v
		}
		return sum
	}
	h := make([][]float64, n)
	for i := range h {
		switch {
		case b.First == nil:
			h[i] = x[i*rows*dim:][:rows*dim]
		case i == 0:
			h[i] = x
		default:
			h[i] = rescale(d.linear(&b.First.Projections[i-1], x), x)
		}
	}
	hear := func(r []float64) []float64 {
		r = d.norm(b.RouterNorm, r)
		for i := range r {
			r[i] /= float64(dim)
		}
		m := d.linear(&b.Router, r)
		for i := range m {
			m[i] = math.Tanh(m[i])
		}
		return m
	}
	c, p := d.linear(&b.Predict, hear(h[b.Active])), make([][]float64, n)
	for i := range p {
		p[i] = slices.Clone(h[i])
		for j := range n {
			for at, v := range h[j] {
				p[i][at] += c[at/dim*n*n+i*n+j] * v
			}
		}
	}
	in := d.norm(b.Norm, p[b.Active])
	z := add(add(p[b.Active], in), d.norm(b.LaurelPost, d.linear(&b.Laurel[1], d.linear(&b.Laurel[0], in))))
	for i, v := range d.attention(b.Attention, slices.Clone(in)) {
		z[i] = (z[i] + v - in[i]) * math.Sqrt2 / 2
	}
	y := d.layer(b.MLP, "silu", slices.Clone(z))
	e := d.linear(&b.Correct, hear(y))
	out := make([][]float64, n)
	for i := range out {
		out[i] = slices.Clone(p[i])
		for at := range y {
			out[i][at] += (1 + e[at/dim*n+i]) * (y[at] - p[b.Active][at])
		}
	}
	l := b.PerLayer
	own := l.n()
	active := slices.Clone(out[b.Active])
	for i := range active {
		if b.Scale != nil {
			active[i] *= d.values[b.Scale][i%dim]
		}
	}
	gate := d.linear(&l.Gate[0], active)
	var t, tokens []float64
	for _, token := range d.batch.Tokens {
		for j := range dim {
			t = append(t, float64(l.Table.Scale)*d.values[l.Table.Table][int(token)*dim+j])
		}
		if int(token) >= l.Tokens.Shape[0] {
			token = 0
		}
		tokens = append(tokens, d.values[l.Tokens][int(token)*own:][:own]...)
	}
	for i, v := range d.norm(l.Norm, d.linear(&Linear{Weight: l.Projection, In: dim, Out: own}, t)) {
		gate[i] = function["silu"](gate[i]) * (v + math.Sqrt(float64(own))*tokens[i]) * math.Sqrt2 / 2
	}
	for at, v := range d.norm(l.Post, d.linear(&l.Out[0], gate)) {
		for i := 1; i < n; i++ {
			out[i][at] += v
		}
	}
	if b.Last == nil {
		return slices.Concat(out...)
	}
	sum := slices.Clone(out[0])
	for i := 1; i < n; i++ {
		sum = add(sum, rescale(d.linear(&b.Last.Projections[i-1], out[i]), out[0]))
	}
	for i := range sum {
		sum[i] /= float64(n)
	}
	return sum
}
