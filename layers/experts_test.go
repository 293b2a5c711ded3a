package layers

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/fused"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// someExperts draws Experts, whose norm and matrices are drawn by the functions.
func someExperts(t *rapid.T, width int, norm func(string, int) Norm, linear func(string, int, int) Linear) *Experts {
	flip := func(name string) bool { return rapid.Bool().Draw(t, name) }
	count, hidden := rapid.IntRange(1, 4).Draw(t, "experts"), rapid.IntRange(1, 5).Draw(t, "hidden")
	b := &Experts{Norm: norm("norm", width), Router: *NewLinear("router", width, count, false), Activation: SiLU, Routing: fused.Router{
		Experts: count, Chosen: rapid.IntRange(1, count).Draw(t, "chosen"), Sigmoid: flip("sigmoid"), Normalize: flip("normalize"), Scale: 1.5}}
	for i := range count {
		of := func(name string) string { return fmt.Sprint(i, name) }
		b.Experts = append(b.Experts, Expert{
			In:   []Linear{linear(of("gate"), width, hidden), linear(of("up"), width, hidden)},
			Down: []Linear{linear(of("down"), hidden, width)},
		})
	}
	b.FloatLogits = flip("float logits")
	if flip("correction") {
		b.Correction = newParam("correction", 1, count)
		b.Correction.Trains = false
	}
	if b.WeighInput = flip("weigh input"); flip("router norm") {
		b.RouterNorm, b.RouterScale = *NewRMSNorm("router norm", width), 0.7
	}
	if flip("scales") {
		b.Scales = newParam("scales", 1, count)
	}
	if flip("post") {
		b.Post = *NewRMSNorm("post", width)
	}
	if flip("shared") {
		hidden := rapid.IntRange(1, 5).Draw(t, "shared hidden")
		b.Shared = &SharedExpert{
			In:   []Linear{linear("shared gate", width, hidden), linear("shared up", width, hidden)},
			Down: []Linear{linear("shared down", hidden, width)},
		}
		if flip("shared gate") {
			l := linear("shared switch", width, 1)
			b.Shared.Gate = &l
		}
	}
	return b
}

// someBeside returns Experts beside an MLP.
func someBeside(t *rapid.T, width int, norm func(string, int) Norm, linear func(string, int, int) Linear) *Beside {
	b := &Beside{Experts: someExperts(t, width, norm, linear), Post: *NewRMSNorm("last", width)}
	b.Experts.Post = *NewRMSNorm("post2", width)
	b.MLP = &MLP{Norm: norm("norm1", width), Activation: SiLU, Down: []Linear{linear("down", 5, width)},
		In: []Linear{linear("gate", width, 5), linear("up", width, 5)}, Post: *NewRMSNorm("post1", width)}
	return b
}

// linears returns the matrices that may have adapters.
func (b *Experts) linears() (list []Linear) {
	for _, e := range b.Experts {
		list = slices.Concat(list, e.In, e.Down)
	}
	if s := b.Shared; s != nil {
		if list = slices.Concat(list, s.In, s.Down); s.Gate != nil {
			list = append(list, *s.Gate)
		}
	}
	return list
}

// experts computes Experts row by row, with the choice that the first call makes, which has no gradient.
func (d *definition) experts(b *Experts, x []float64) []float64 {
	h := d.norm(b.Norm, x)
	width := b.Router.In
	expert := func(in, down []Linear, h []float64) []float64 {
		up := d.linear(&in[1], h)
		for i, g := range d.linear(&in[0], h) {
			up[i] *= function["silu"](g)
		}
		return d.linear(&down[0], up)
	}
	read := h
	if !b.RouterNorm.none() {
		read = d.norm(b.RouterNorm, x)
		for i := range read {
			read[i] *= float64(b.RouterScale)
		}
	}
	var y []float64
	for row := range slices.Chunk(h, width) {
		scores := d.linear(&b.Router, read[len(y):len(y)+width])
		total := 0.0
		for e, z := range scores {
			if b.Routing.Sigmoid {
				scores[e] = function["sigmoid"](z)
			} else {
				scores[e] = math.Exp(z)
			}
			total += scores[e]
		}
		if b.Routing.Sigmoid {
			total = 1
		}
		at := len(y) / width
		if len(d.chosen) == at {
			order := make([]int, len(scores))
			for e := range order {
				order[e] = e
			}
			rank := slices.Clone(scores)
			for e := range rank {
				if rank[e] /= total; b.Correction != nil {
					rank[e] += d.values[b.Correction][e]
				}
			}
			slices.SortStableFunc(order, func(a, b int) int { return -int(math.Copysign(1, rank[a]-rank[b])) })
			d.chosen = append(d.chosen, order[:b.Routing.Chosen])
		}
		if b.Routing.Normalize {
			total = 0
			for _, e := range d.chosen[at] {
				total += scores[e]
			}
		}
		sum := make([]float64, width)
		for _, e := range d.chosen[at] {
			weight, in := float64(b.Routing.Scale)*scores[e]/total, slices.Clone(row)
			if b.Scales != nil {
				weight *= d.values[b.Scales][e]
			}
			if b.WeighInput {
				for i := range in {
					in[i] *= weight
				}
				weight = 1
			}
			for i, v := range expert(b.Experts[e].In, b.Experts[e].Down, in) {
				sum[i] += weight * v
			}
		}
		if s := b.Shared; s != nil {
			open := 1.0
			if s.Gate != nil {
				open = function["sigmoid"](d.linear(s.Gate, row)[0])
			}
			for i, v := range expert(s.In, s.Down, row) {
				sum[i] += open * v
			}
		}
		y = append(y, sum...)
	}
	return d.add(x, d.norm(b.Post, y))
}

// TestFloatLogits: logits that differ by less than bfloat16 has digits for are equal in a model of that type, unless they are float32: the
// first of two experts is chosen, or the one with the larger logit.
func TestFloatLogits(t *testing.T) {
	const width = 4
	in := func(x ...float32) snug.View {
		v, _, err := snug.MakeView(snug.CPU(), snug.BF16, len(x))
		require.NoError(t, err)
		require.NoError(t, amp.Cast(v, x))
		return v
	}
	for float, want := range map[bool]int32{false: 0, true: 1} {
		b := NewExperts("mlp", width, 3, 2, 1)
		b.FloatLogits = float
		for l := range b.Params {
			l.Value = in(make([]float32, l.Len())...)
		}
		b.Norm.Weight.Value = in(1, 1, 1, 1)
		b.Router.Weight.Value = in(1, 0, 0, 0, 1, 0x1p-9, 0, 0)
		p, err := NewPass(Options{DType: snug.BF16})
		require.NoError(t, err)
		require.NoError(t, p.Batch.Shape(1, 1, nil))
		p.Begin()
		x := p.Get(width)
		require.NoError(t, amp.Cast(x.View, []float32{1, 1, 1, 1}))
		b.Forward(p, x)
		require.NoError(t, p.Failed())
		require.Equal(t, []int32{want}, p.routed.chosen)
	}
}
