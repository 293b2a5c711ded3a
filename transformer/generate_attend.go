package transformer

import (
	"cmp"
	"context"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/attention"
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/layers"
	"github.com/snug-ml/snug/meter"
)

// This file has the layers of a pass of generation, in which each text sees the keys and values of its own cache.

// attendAll returns the output of the last layer for the batch, in which each text of the list has so many rows, one after the other.
// The rows that follow are of no text.
func (m *Model) attendAll(ctx context.Context, list []*Generator, rows int) (*tensor, error) {
	x := m.table.Forward(m.begins(ctx, 0, meter.Forward), nil)
	for i := range m.config.Windows {
		var z *tensor
		var err error
		at := m.config.halves() * i
		o := m.begins(ctx, at, meter.Forward)
		switch first := m.stages[at].half.(type) {
		case attends:
			z, err = attend(o, first, x, i, list, rows)
		case mixing:
			z, err = mix(o, first, x, i, list, rows)
		}
		if err != nil {
			return nil, err
		}
		m.pass.Put(x)
		if x = z; m.config.halves() == 1 {
			m.stages[at].vectors().AddTo(o, x)
			continue
		}
		if x, err = m.stages[at+1].Forward(ctx, z); err != nil {
			return nil, err
		}
		m.pass.Put(z)
	}
	return x, nil
}

// attend is Forward of a stage with attention for tokens that also see the keys and values in the cache of their text. It adds
// theirs to the cache.
func attend(o *layers.Pass, a attends, x *tensor, layer int, list []*Generator, rows int) (*tensor, error) {
	var states []snug.View
	hybrid, is := a.(*layers.Parallel)
	if is = is && hybrid.Mamba != nil; is { // before the cache has the rows
		states = list[0].m.statesOf(layer, list)
	}
	q, k, v := a.Query(o, x)
	width, keys := list[0].m.config.attended(layer), list[0].m.config.keysOf(layer)
	att := o.Get(width)
	b := o.Batch
	for i, g := range list {
		of := func(t *tensor) (some snug.View) {
			if t == nil || t.View.Len() == 0 {
				return some
			}
			n := t.View.Len() / b.Rows * rows
			return part(t.View, i*n, n)
		}
		o.Batch.Rows, o.Batch.Sequences, o.Batch.Longest = rows, 1, len(g.tokens)
		g.look(o, a, &g.layers[keys], keys == layer, of(att), of(q), of(k), of(v))
	}
	o.Do(func() error { return seeAll(list) })
	o.Batch = b
	for i := len(list) * rows; i < b.Rows; i++ {
		o.Do(func() error {
			return snug.Copy(part(att.View, i*width, width), part(att.View, 0, width))
		})
	}
	o.Put(q, k, v)
	if is {
		z := hybrid.LeaveFrom(o, x, att, states)
		return z, o.Err
	}
	z := a.Leave(o, x, att)
	return z, o.Err
}

// sight is the attention of the rows of a text in a layer.
type sight struct {
	att, q, k, v snug.View
	options      attention.Options
	err          error
}

// look adds the rows of a text to a cache, if that is the layer's own, and prepares their attention. Without a k the rows of q have q, k and v side by side.
func (g *Generator) look(o *layers.Pass, a attends, l *cache, own bool, att, q, k, v snug.View) {
	if own {
		g.append(o, l, q, k, v)
	}
	c := a.Options(o)
	c.SeqK, c.Align = l.used, attention.BottomRight
	o.Do(func() error { return g.seeSpans(&c, o.Batch.Rows) })
	if k.Len() == 0 && own { // queries lie within wider rows, keys and values do not any more
		apart := attention.SequenceMajor(c)
		c.K, c.V = apart.K, apart.V
	}
	g.sight = sight{att: att, q: q, k: part(l.k, 0, l.used*l.widths[0]), v: part(l.v, 0, l.used*l.widths[1]), options: c}
}

// see computes the attention.
func (s *sight) see() {
	s.err = attention.Forward(s.att, snug.ViewOf([]float32(nil)), s.q, s.k, s.v, s.options)
}

var sightTask = cpu.NewTask(func(list *[]*Generator, i int) { (*list)[i].sight.see() })

// seeAll computes the attention of texts, on the processor of several at a time: one has too few heads for all cores.
func seeAll(list []*Generator) (err error) {
	if list[0].m.dev.IsCPU() && len(list) > 1 {
		sightTask.Run(len(list), list)
	} else {
		for _, g := range list {
			g.sight.see()
		}
	}
	for _, g := range list {
		err = cmp.Or(err, g.sight.err)
		g.sight = sight{}
	}
	return err
}

// append adds the rows of k and v to a cache. It first drops rows that no query will see, if the cache is full.
func (g *Generator) append(o *layers.Pass, l *cache, q, k, v snug.View) {
	rows := o.Batch.Rows
	if l.used+rows > l.rows {
		for j, from := range [...]snug.View{l.k, l.v} {
			o.Do(func() error {
				width := l.widths[j]
				return snug.Copy(part(from, 0, l.keep*width), part(from, (l.used-l.keep)*width, l.keep*width))
			})
		}
		l.used = l.keep
	}
	to := [...]snug.View{part(l.k, l.used*l.widths[0], rows*l.widths[0]), part(l.v, l.used*l.widths[1], rows*l.widths[1])}
	l.used += rows
	if k.Len() > 0 {
		o.Do(func() error { return snug.Copy(to[0], k) })
		o.Do(func() error { return snug.Copy(to[1], v) })
		return
	}
	for i, at := range g.packed(rows) { // q, k and v are side by side
		o.Do(func() error {
			return fused.Embedding(to[i], q, at, part(q, 0, 0), nil, l.widths[0])
		})
	}
}

// packed returns where the keys and the values of rows lie, in units of the width of keys.
func (g *Generator) packed(rows int) [2][]int32 {
	q := g.m.config.Heads / g.m.config.KVHeads // units of the queries
	for i := len(g.gather[0]); i < rows; i++ {
		k := int32((q+2)*i + q)
		g.gather[0], g.gather[1] = append(g.gather[0], k), append(g.gather[1], k+1)
	}
	return [2][]int32{g.gather[0][:rows], g.gather[1][:rows]}
}
