package attention

import (
	"math"

	"github.com/snug-ml/snug/internal/cpu"
)

// sinkTask computes the gradient in one head's sink: minus the sum of its weights times
// delta, in the order of the queries.
var sinkTask = cpu.NewTask(func(j *backwardJob, h int) {
	c := &j.c
	sink, sum := float64(c.sink(h)), 0.0
	for b := range c.Batch {
		s := c.sequence(b)
		at := c.row(&s, h)
		lse, delta := j.lse.Float32s()[at:][:s.nq], j.delta.Float32s()[at:][:s.nq]
		for i, d := range delta {
			if math.IsInf(float64(lse[i]), -1) {
				continue // nothing seen, and no sink
			}
			if w := math.Exp(sink - float64(lse[i])); w != 0 {
				sum -= w * float64(d)
			}
		}
	}
	c.Sinks.Grad.Float32s()[h] = float32(sum)
})

// biasTiles returns the items of biasTask: tiles of the bias of tileQ × tileK elements,
// or of as many as it has.
func (c *Options) biasTiles() int {
	d := c.Bias.Dims
	return d[0] * d[1] * cpu.Chunks(d[2], tileQ) * cpu.Chunks(d[3], tileK)
}

// biasTask computes the gradient in one tile of the bias, over all that it was broadcast
// to.
var biasTask = cpu.NewTask(func(j *backwardJob, item int) {
	c := &j.c
	d, st := c.Bias.Dims, c.Bias.strides()
	columns := cpu.Chunks(d[3], tileK)
	item, tk := item/columns, item%columns
	rows := cpu.Chunks(d[2], tileQ)
	item, tq := item/rows, item%rows
	b, h := item/d[1], item%d[1]

	i0, i1 := cpu.Chunk(d[2], tileQ, tq)
	j0, j1 := cpu.Chunk(d[3], tileK, tk)
	to := biasGrad{at: c.Bias.Grad.Float32s()[b*st[0]+h*st[1]:], stride: st[2], step: st[3]}
	for i := i0; i < i1; i++ {
		clear(to.at[i*d[3]+j0 : i*d[3]+j1])
	}
	buf := scratch.Get(c.backwardScratch())
	defer scratch.Put(buf)
	g := newGradients(arena(*buf), c, j.q.DType())
	g.of = inBias
	for bb := range c.Batch {
		for hh := range c.Heads {
			if (st[0] == 0 || bb == b) && (st[1] == 0 || hh == h) {
				s := c.sequence(bb)
				g.addBias(j, &s, hh, tileRange(st[2], tq), tileRange(st[3], tk), to)
			}
		}
	}
})

// tileRange returns the first tile of a dimension that a bias is for, and the number of
// tiles: all if it is broadcast, of stride 0.
func tileRange(stride, tile int) [2]int {
	if stride == 0 {
		return [2]int{0, math.MaxInt}
	}
	return [2]int{tile, tile + 1}
}

// biasGrad is the gradient in the bias of one head. Element (i, j) is at[i*stride+j*step].
type biasGrad struct {
	at           []float32
	stride, step int
}

// addBias adds to the gradient in the bias what some tiles of queries and keys of a head
// contribute.
func (g *gradients) addBias(j *backwardJob, s *sequence, h int, queries, keys [2]int, to biasGrad) {
	for tq := queries[0]; tq < min(queries[1], cpu.Chunks(s.nq, tileQ)); tq++ {
		q0, q1 := cpu.Chunk(s.nq, tileQ, tq)
		g.loadQueries(j, s, h, q0, q1)
		lo, _ := s.keys(q0)
		_, hi := s.keys(q1 - 1)
		for tk := max(keys[0], lo/tileK); tk < min(keys[1], cpu.Chunks(hi, tileK)); tk++ {
			k0, k1 := cpu.Chunk(s.nk, tileK, tk)
			g.loadKeys(j, s, j.c.kvHead(h), k0, k1)
			g.seen.begin(q0)
			for g.next(s, q0, q1) {
				for i := range g.ds.rows {
					to.add(g.ds.row(i), g.seen.lo+i, g.seen.from)
				}
			}
		}
	}
}

// add adds the gradients of query i and the keys from j on.
func (t biasGrad) add(ds []float32, i, j int) {
	at := t.at[i*t.stride:]
	if t.step == 0 {
		sum := 0.0
		for _, x := range ds {
			sum += float64(x)
		}
		at[0] += float32(sum)
		return
	}
	for k, x := range ds {
		at[j+k] += x
	}
}
