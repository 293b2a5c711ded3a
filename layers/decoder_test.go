package layers_test

import (
	"context"
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/conv"
	"github.com/snug-ml/snug/layers"
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/quant8"
	"github.com/snug-ml/snug/remat"
	"github.com/snug-ml/snug/train"
)

// seen returns a network for volumes whose 2·2·3 positions a decoder of tokens sees, and a sample of two sequences.
func seen(t *testing.T) (m, decoder *layers.Model, s layers.Sample) {
	src := &layers.Source{Each: 12}
	cross := layers.NewAttention("text.cross", 8, 2, 2)
	cross.Source = src
	for i := range 2 {
		cross.QKV[i+1] = *layers.NewLinear(fmt.Sprint("text.cross.kv", i), 4, 8, false)
	}
	decoder, err := layers.NewModel(0, layers.NewCrossEntropy("text.head", 5, 8), layers.Options{Seed: 2}, layers.NewEmbedding("text.table", 7, 8),
		layers.NewAttention("text.self", 8, 2, 2), cross, layers.NewMLP("text.mlp", 8, 12, layers.GELU, false))
	require.NoError(t, err)
	shape := conv.Shape{In: 2, Out: 4, Dims: 3, Size: [3]int{2, 2, 3}, Kernel: [3]int{2, 2, 2}, Layout: conv.ChannelsLast}.Same()
	m, err = layers.NewModel(24, layers.Decoder{decoder, src}, layers.Options{Seed: 1}, layers.NewConv("video", shape, true), layers.GELU)
	require.NoError(t, err)
	s = layers.Sample{X: make([]float32, 48), Sequences: 2, Decoder: &layers.Sample{Tokens: []int32{1, 2, 3, 4, 5, 6}, Labels: []int32{2, -1, 4, 0, 1, 3}, Sequences: 2}}
	for i := range s.X {
		s.X[i] = float32(math.Sin(float64(i)))
	}
	return m, decoder, s
}

// TestDecoder: the gradients of both models are those of the one loss, under any plan of either, and the costs of both are exact.
func TestDecoder(t *testing.T) {
	ctx := context.Background()
	m, decoder, s := seen(t)
	require.Len(t, m.Params(), 2+len(decoder.Params()))
	require.Equal(t, 5.0, m.Weight(s))
	require.NoError(t, train.CheckGradients(ctx, m, s))
	straight, loss, err := train.Gradients(ctx, m, s)
	require.NoError(t, err)
	for i, of := range []*layers.Model{m, decoder} {
		costs, err := of.Costs(2, []int{1, 3}[i])
		require.NoError(t, err)
		plan, err := remat.RecomputeAll(costs)
		require.NoError(t, err)
		require.NoError(t, of.SetPlan(plan))
	}
	again, same, err := train.Gradients(ctx, m, s)
	require.NoError(t, err)
	require.Equal(t, loss, same)
	require.Equal(t, straight, again)
	require.Empty(t, m.Report.Mismatches)
	require.Empty(t, decoder.Report.Mismatches)
	require.Positive(t, decoder.Report.Extra)
	evaluated, err := m.Evaluate(ctx, s)
	require.NoError(t, err)
	require.InDelta(t, loss.Sum, evaluated.Sum, 1e-5)

	_, _, err = train.Gradients(ctx, decoder, *s.Decoder)
	require.ErrorIs(t, err, snug.ErrConfig) // outside of the encoder
	other := *s.Decoder
	other.Sequences = 3
	for _, d := range []*layers.Sample{nil, &other} {
		s := s
		s.Decoder = d
		_, err = m.Evaluate(ctx, s)
		require.ErrorIs(t, err, snug.ErrShape)
	}
	for _, l := range []layers.Decoder{{}, {decoder, nil}, {decoder, &layers.Source{}}, {decoder, &layers.Source{Each: 1, Rows: 1}}} {
		_, err := layers.NewModel(24, l, layers.Options{}, layers.NewLinear("a", 24, 24, true))
		require.ErrorIs(t, err, snug.ErrConfig)
	}
}

// TestSplit: the gradients of both halves add up to those of the whole, which has other sequences.
func TestSplit(t *testing.T) {
	ctx := context.Background()
	m, _, s := seen(t)
	whole, loss, err := train.Gradients(ctx, m, s)
	require.NoError(t, err)
	a, b, ok := s.Split()
	require.True(t, ok)
	sum, both := 0.0, map[string][]float32{}
	for _, half := range []layers.Sample{a, b} {
		g, loss, err := train.Gradients(ctx, m, half)
		require.NoError(t, err)
		sum += loss.Sum
		for name, g := range g {
			if both[name] == nil {
				both[name] = make([]float32, len(g))
			}
			for i, v := range g {
				both[name][i] += v * float32(m.Weight(half)/m.Weight(s))
			}
		}
	}
	require.InDelta(t, loss.Sum, sum, 1e-5)
	for name, g := range whole {
		require.InDeltaSlice(t, g, both[name], 1e-6, name)
	}
	_, _, ok = a.Split()
	require.False(t, ok)

	packed := layers.Sample{X: make([]float32, 12), Y: make([]float32, 6), Labels: make([]int32, 6), Starts: []int{0, 1, 3, 6}, Draw: 5}
	a, b, ok = packed.Split()
	require.True(t, ok)
	require.Equal(t, layers.Sample{X: packed.X[:2], Y: packed.Y[:1], Labels: packed.Labels[:1], Starts: []int{0, 1}, Draw: 5}, a)
	require.Equal(t, layers.Sample{X: packed.X[2:], Y: packed.Y[1:], Labels: packed.Labels[1:], Starts: []int{0, 2, 5}, Draw: 6}, b)
	packed.Decoder = &layers.Sample{}
	_, _, ok = packed.Split()
	require.False(t, ok)

	placed := layers.Sample{X: make([]float32, 12), Starts: []int{0, 4, 6}, Parts: []int{0, 1, 4, 5, 6}, Positions: [][]int32{{1, 2, 3, 4, 5, 6}}}
	a, b, ok = placed.Split()
	require.True(t, ok)
	require.Equal(t, layers.Sample{X: placed.X[:8], Starts: []int{0, 4}, Parts: []int{0, 1, 4}, Positions: [][]int32{{1, 2, 3, 4}}}, a)
	require.Equal(t, layers.Sample{X: placed.X[8:], Starts: []int{0, 2}, Parts: []int{0, 1, 2}, Positions: [][]int32{{5, 6}}, Draw: 1}, b)

	for _, s := range []layers.Sample{{Starts: []int{0, 1, 4}, Parts: []int{0, 2, 4}}, {Starts: []int{0, 1, 4}, Positions: [][]int32{{0, 1}}},
		{Sequences: 3}, {Sequences: math.MaxInt}, {Sequences: -2}, {Starts: []int{0, 0, 0}}, {Starts: []int{0, 6, 4}},
		{Starts: []int{0, -1, 4}}, {Starts: []int{1, 2, 4}}, {Starts: []int{}}} {
		s.X, s.Labels = make([]float32, 8), make([]int32, 4) // which Backprop refuses
		_, _, ok := s.Split()
		require.False(t, ok)
	}
}

// TestTiedDecoder: a parameter that a decoder uses twice is complete after the second time, so that updates in the backward pass are those of gradients
// that are all held.
func TestTiedDecoder(t *testing.T) {
	ctx := context.Background()
	var first map[string][]float32
	for _, way := range []plan.Gradient{plan.SumF32, plan.InBackward} {
		src, table := &layers.Source{Each: 2}, layers.NewEmbedding("table", 7, 8)
		cross := layers.NewAttention("cross", 8, 2, 2)
		cross.Source = src
		decoder, err := layers.NewModel(0, &layers.CrossEntropy{Head: table.Table}, layers.Options{Seed: 2}, table, cross)
		require.NoError(t, err)
		m, err := layers.NewModel(16, layers.Decoder{decoder, src}, layers.Options{Seed: 1}, layers.NewLinear("a", 16, 16, true))
		require.NoError(t, err)
		tr, err := train.New(m, train.Options{Optimizer: quant8.AdamW{}, Schedule: train.Constant(0.1), Gradients: way})
		require.NoError(t, err)
		s := layers.Sample{X: make([]float32, 16), Decoder: &layers.Sample{Tokens: []int32{1, 2, 3}, Labels: []int32{2, 3, 4}}}
		s.X[3] = 1
		got := map[string][]float32{}
		for range 2 {
			_, err = tr.Train(ctx, []layers.Sample{s})
			require.NoError(t, err)
		}
		for name, v := range m.Trainable() {
			got[name] = v.Float32s()
		}
		if first == nil {
			first = got
		}
		require.Equal(t, first, got)
	}
}

// TestTiledSource: a tile has not the sequences of a Source.
func TestTiledSource(t *testing.T) {
	cross := layers.NewAttention("cross", 8, 2, 2)
	tiled := layers.Tiled{layers.Residual{cross}, 4}
	_, err := tiled.Width(8)
	require.NoError(t, err)
	cross.Source = &layers.Source{Each: 3}
	_, err = tiled.Width(8)
	require.ErrorIs(t, err, snug.ErrConfig)
}
