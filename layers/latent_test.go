package layers

import (
	"math"

	"pgregory.net/rapid"
)

// someLatent draws a Latent, whose norms and matrices are drawn by the functions.
func someLatent(t *rapid.T, width int, norm func(string, int) Norm, linear func(string, int, int) Linear) *Latent {
	flip := func(name string) bool { return rapid.Bool().Draw(t, name) }
	number := func(name string, most int) int { return rapid.IntRange(1, most).Draw(t, name) }
	b := &Latent{
		Norm: norm("norm", width), Heads: number("heads", 3), KeyDim: number("key", 4), RopeDim: 2 * number("rope", 2), ValueDim: number("value", 4), Scale: 0.4,
	}
	rank := number("rank", 5)
	b.In = []Linear{linear("q", width, b.queries()), linear("down", width, rank+b.RopeDim)}
	if flip("two steps") {
		qrank := number("query rank", 5)
		b.In[0], b.QNorm = linear("qdown", width, qrank), *NewRMSNorm("qnorm", qrank)
		b.QUp = []Linear{linear("qup", qrank, b.queries())}
	}
	b.KVNorm, b.Up = *NewRMSNorm("kvnorm", rank), []Linear{linear("up", rank, b.pairs())}
	b.Out = []Linear{linear("out", b.Heads*b.ValueDim, width)}
	if flip("rope") {
		r := Rope{Kind: RopeDefault, Theta: 100, Dim: b.RopeDim, Interleaved: flip("interleaved")}
		if b.queries()%2 == 0 && flip("query scale") {
			r.QueryScale, r.OriginalPositions = 0.75, 2
		}
		b.Rope = NewAngles(r, nil).Factors()
	}
	return b
}

// latent computes a Latent row by row.
func (d *definition) latent(b *Latent, x []float64) []float64 {
	h, rows := d.norm(b.Norm, x), d.batch.Rows
	q := d.linear(&b.In[0], h)
	if len(b.QUp) == 1 {
		q = d.linear(&b.QUp[0], d.norm(b.QNorm, q))
	}
	var c, shared []float64
	rank, dim := b.Up[0].In, b.KeyDim+b.RopeDim
	both := d.linear(&b.In[1], h)
	for row := range rows {
		at := both[row*(rank+b.RopeDim):][:rank+b.RopeDim]
		c, shared = append(c, at[:rank]...), append(shared, d.turned(b.Rope, at[rank:], row)...)
	}
	kv := d.linear(&b.Up[0], d.norm(b.KVNorm, c))
	query := func(row, head int) []float64 {
		of := q[(row*b.Heads+head)*dim:][:dim]
		q := append(append([]float64(nil), of[:b.KeyDim]...), d.turned(b.Rope, of[b.KeyDim:], row)...)
		if b.Rope != nil && b.Rope.Rope().QueryScale != 0 {
			r := b.Rope.Rope()
			for i := range q {
				q[i] *= 1 + r.QueryScale*math.Log(1+math.Floor(float64(d.batch.Positions[row])/float64(r.OriginalPositions)))
			}
		}
		return q
	}
	pair := func(row, head int) []float64 {
		return kv[(row*b.Heads+head)*(b.KeyDim+b.ValueDim):][:b.KeyDim+b.ValueDim]
	}
	out := make([]float64, rows*b.Heads*b.ValueDim)
	for row := range rows {
		for head := range b.Heads {
			y, sum, of := out[(row*b.Heads+head)*b.ValueDim:][:b.ValueDim], 0.0, query(row, head)
			for j := row - int(d.batch.Positions[row]); j <= row; j++ {
				score := 0.0
				for e, v := range pair(j, head)[:b.KeyDim] {
					score += of[e] * v
				}
				for e := range b.RopeDim {
					score += of[b.KeyDim+e] * shared[j*b.RopeDim+e]
				}
				weight := math.Exp(b.Scale * score)
				sum += weight
				for e, v := range pair(j, head)[b.KeyDim:] {
					y[e] += weight * v
				}
			}
			for e := range y {
				y[e] /= sum
			}
		}
	}
	return d.add(x, d.norm(b.Post, d.linear(&b.Out[0], out)))
}

// turned returns elements turned by the position of a row.
func (d *definition) turned(a *Angles, x []float64, row int) []float64 {
	y := append([]float64(nil), x...)
	if a == nil {
		return y
	}
	inverse, _, err := a.Rope().Frequencies(0)
	if err != nil {
		panic(err)
	}
	for i, f := range inverse {
		one, two := i, i+len(inverse)
		if a.Rope().Interleaved {
			one, two = 2*i, 2*i+1
		}
		sin, cos := math.Sincos(float64(d.batch.Positions[row]) * float64(f))
		y[one], y[two] = x[one]*cos-x[two]*sin, x[two]*cos+x[one]*sin
	}
	return y
}
