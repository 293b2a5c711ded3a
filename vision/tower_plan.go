package vision

import (
	"errors"
	"fmt"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/fault"
	"github.com/snug-ml/snug/layers"
	memplan "github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/remat"
)

// Plan describes the training of a tower with Labels to package plan, which predicts its memory and finds what fits. A sample is an image. train is
// TowerOptions.Train. The layers are those of the [Tower]'s Model, with the bytes of its Costs, and the plan of recomputation of its Run is one for
// its SetPlan. Attention is always tiled. Nothing is allocated in the size of the model.
//
// The error wraps [snug.ErrConfig] for a TowerConfig that no tower has, for one without Labels, and where nothing trains, and [snug.ErrShape] for a model
// that is too large for package plan.
func (c TowerConfig) Plan(train func(name string) bool) (m memplan.Model, err error) {
	defer fault.Named(&err, "vision: Plan")
	f, err := c.check()
	if err != nil {
		return m, err
	}
	if len(c.Labels) < 2 {
		return m, fmt.Errorf("%d Labels, want 2 or more: %w", len(c.Labels), snug.ErrConfig)
	}
	t := &Tower{config: c, family: f}
	list, loss := t.stages(TowerOptions{Train: train}, f.prefix, true)
	m = memplan.Model{Name: f.modelType, Input: int64(c.Rows()) * int64(c.Channels*c.Patch*c.Patch)}
	add := func(to *[][]int) func(p *layers.Param) bool {
		return func(p *layers.Param) bool {
			if p.Trains {
				*to = append(*to, p.Shape)
			} else {
				m.Frozen += int64(p.Len())
			}
			return true
		}
	}
	passes, err := bothPasses()
	if err != nil {
		return m, err
	}
	width := c.Channels * c.Patch * c.Patch
	for i, l := range list {
		one := c.planLayer(passes, l, width)
		one.Name = fmt.Sprintf("layers.%d", i)
		l.Params(add(&one.Params))
		m.Layers = append(m.Layers, one)
		if width, err = l.Width(width); err != nil {
			return m, err
		}
	}
	m.Head = memplan.Head{Rows: 1, Cols: c.Width * len(f.means), Classes: len(c.Labels)}
	loss.Params(add(&m.Head.Params))
	trains := m.Head.Params
	for _, l := range m.Layers {
		trains = append(trains, l.Params...)
	}
	if len(trains) == 0 {
		return m, fmt.Errorf("no parameter trains: %w", snug.ErrConfig)
	}
	return m, m.Validate()
}

// bothPasses returns passes in float32 and in bfloat16, whose costs tell what depends on the type.
func bothPasses() (list [2]*layers.Pass, err error) {
	for i, dt := range []snug.DType{snug.F32, snug.BF16} {
		p, e := layers.NewPass(layers.Options{DType: dt})
		list[i], err = p, errors.Join(err, e)
	}
	return list, err
}

// planLayer describes a layer whose rows have a width.
func (c *TowerConfig) planLayer(passes [2]*layers.Pass, l layers.Layer, width int) (out memplan.Layer) {
	rows := c.Rows()
	var costs [2]remat.Cost
	for i, p := range passes {
		costs[i] = p.Cost(l, width, layers.Batch{Rows: rows, Sequences: 1, Longest: rows})
	}
	// both returns the elements of the type, and the float32 numbers, in a number of bytes.
	both := func(of func(c remat.Cost) int64) (elements, floats int64) {
		wide, narrow := of(costs[0]), of(costs[1])
		elements = (wide - narrow) / 2
		return max(0, elements), max(0, (wide-4*elements)/4)
	}
	out.Output, _ = both(func(c remat.Cost) int64 { return c.Output })
	out.Kept, out.Stats = both(func(c remat.Cost) int64 { return c.Saved - c.Output })
	out.Forward, out.ForwardStats = both(func(c remat.Cost) int64 { return c.ForwardExtra })
	out.Backward, out.BackwardStats = both(func(c remat.Cost) int64 { return c.BackwardExtra })
	out.Rows = rows
	l.Params(func(p *layers.Param) bool {
		if len(p.Shape) >= 2 && !strings.Contains(p.Name, "embeddings.position") {
			out.MACs += int64(rows) * int64(p.Len())
		}
		return true
	})
	c.needs(&out, l)
	return out
}

// needs adds what decides the workspace of a layer.
func (c *TowerConfig) needs(out *memplan.Layer, l layers.Layer) {
	switch l := l.(type) {
	case layers.NoGrad:
		kept := out.Stats
		c.needs(out, l.Layer)
		if a := out.Attention; a.Heads > 0 { // which keeps nothing, and has numbers for its rows in the workspace
			out.ForwardStats += int64(a.Heads) * int64(a.Queries)
		}
		out.Stats, out.Attention, out.MACs = kept, memplan.Attention{}, out.MACs/3 // of a forward step, and of a backward step, which there is not
	case layers.Sequential:
		for _, inner := range l {
			c.needs(out, inner)
		}
	case *layers.Attention:
		out.LayerNorm, out.Bias = c.Width, c.Width
		rows := c.Rows()
		out.Attention = memplan.Attention{Heads: c.Heads, Queries: rows, Keys: rows, Dim: c.Width / c.Heads, Tiled: true}
		out.Stats -= int64(c.Heads) * int64(rows)
	case *layers.MLP:
		if out.LayerNorm, out.GELU = c.Width, c.Hidden; c.Gated {
			out.GELU, out.Bias = 0, c.Hidden
		}
		out.Bias = max(out.Bias, c.Width)
	default:
		out.LayerNorm, out.Bias = max(out.LayerNorm, c.Width), max(out.Bias, c.Width)
	}
}
