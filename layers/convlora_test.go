package layers

import (
	"context"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/conv"
	"github.com/stretchr/testify/require"
)

// TestConvLoRA: an adapter begins as nothing, trains alone, and computes what Conv computes after Merge. Its numbers of parameters are
// those of PEFT.
func TestConvLoRA(t *testing.T) {
	for _, s := range []conv.Shape{
		{In: 4, Out: 6, Dims: 1, Size: [3]int{9}, Kernel: [3]int{3}, Stride: [3]int{2}, PadBefore: [3]int{1}, PadAfter: [3]int{1}},
		{In: 4, Out: 6, Dims: 2, Size: [3]int{5, 7}, Kernel: [3]int{3, 3}, Dilation: [3]int{2, 1}, Layout: conv.ChannelsLast},
		{In: 4, Out: 6, Groups: 2, Dims: 2, Size: [3]int{5, 7}, Kernel: [3]int{3, 3}},
		{In: 4, Out: 6, Dims: 3, Size: [3]int{3, 4, 5}, Kernel: [3]int{2, 2, 2}},
	} {
		c := NewConv("c", s, true)
		l := NewConvLoRA(c, 2, 1.5)
		s = c.one()
		m, err := NewModel(s.XLen(), MSE{}, Options{Seed: 3}, Sequential{l, ReLU})
		require.NoError(t, err)
		var names []string
		n := 0
		for name, v := range m.Trainable() {
			names = append(names, name)
			n += v.Len()
		}
		require.Equal(t, []string{"c.lora_A.weight", "c.lora_B.weight"}, names)
		taps := s.WLen() / s.Out / (s.In / max(1, s.Groups))
		require.Equal(t, 2*s.In*taps+s.Out*2/max(1, s.Groups), n)

		x := make([]float32, 3*s.XLen())
		for i := range x {
			x[i] = float32(i%7) - 3
		}
		of := func(list ...Layer) []float32 {
			y := make([]float32, 3*s.YLen())
			m, err := NewModel(s.XLen(), MSE{}, Options{}, list...)
			require.NoError(t, err)
			require.NoError(t, m.Predict(context.Background(), y, Sample{X: x}))
			return y
		}
		require.Equal(t, of(c), of(l))
		for i, b := 0, l.B.Weight.Value.Float32s(); i < len(b); i++ {
			b[i] = float32(i%3) - 0.9
		}
		want := of(l)
		require.NotEqual(t, of(c), want)
		costs, err := m.Costs(1, 3)
		require.NoError(t, err)
		require.Equal(t, int64(3*4*s.YLen()/s.Out*2), costs.Stages[0].Saved-costs.Stages[0].Output, "the output of A")
		gradientsOf(t, m, Sample{X: x, Y: make([]float32, 3*s.YLen())})
		require.Empty(t, m.Report.Mismatches)
		if s.Groups == 2 {
			require.ErrorIs(t, l.Merge(), snug.ErrConfig)
			continue
		}
		require.NoError(t, l.Merge())
		require.InDeltaSlice(t, want, of(c), 1e-4)
		require.Equal(t, of(c), of(l))
	}
	wide := NewConvLoRA(NewConv("c", conv.Shape{In: 4, Out: 6, Dims: 2, Size: [3]int{5, 7}, Kernel: [3]int{3, 3}}.Same(), false), 3, 1)
	wide.A = NewConv("a", conv.Shape{In: 4, Out: 3, Dims: 2, Size: [3]int{5, 7}, Kernel: [3]int{1, 1}}, false)
	_, err := NewModel(4*35, MSE{}, Options{}, wide)
	require.NoError(t, err)
	require.ErrorIs(t, wide.Merge(), snug.ErrConfig)

	two := [3]int{3, 3}
	for _, l := range []ConvLoRA{
		{}, NewConvLoRA(NewConv("c", conv.Shape{In: 4, Out: 6, Groups: 2, Dims: 2, Size: two, Kernel: two}, false), 3, 1),
		NewConvLoRA(NewConv("c", conv.Shape{In: 4, Out: 6, Dims: 2, Size: two, Kernel: two}, false), 0, 1),
		NewConvLoRA(NewConv("c", conv.Shape{In: 4, Out: 6, Dims: 2, Size: two, Kernel: two, Transposed: true}, false), 2, 1),
	} {
		_, err := l.Width(4 * 9)
		require.Error(t, err)
	}
}
