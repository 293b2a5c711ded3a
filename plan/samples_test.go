package plan

import (
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/meter"
)

// TestSamples: micro-batches of samples that are two of a model's take what twice as many of the model's take.
func TestSamples(t *testing.T) {
	gpt, err := GPT{Vocab: 500, Dim: 64, Layers: 3, Heads: 4, Context: 32}.Model()
	require.NoError(t, err)
	for _, m := range []Model{gpt, tiledModel()} {
		two := m.Samples(2)
		require.NoError(t, two.Validate())
		for _, r := range []Run{{Compute: snug.BF16}, {Tiled: true, Compute: snug.F32, StateBits: 8}, {Tiles: 2, Compute: snug.BF16}} {
			for _, rank := range []int{0, 3} {
				one, pair := Task{Model: m, Device: devices[0], Batch: 12, Rank: rank, DoRA: rank > 0}, Task{Model: two, Device: devices[0], Batch: 6, Rank: rank, DoRA: rank > 0}
				a, b := r, r
				a.Micro, a.Window, b.Micro, b.Window = 4, 3, 2, 3
				want, err := one.Predict(a)
				require.NoError(t, err)
				got, err := pair.Predict(b)
				require.NoError(t, err)
				require.Equal(t, want.Peak, got.Peak)
				require.InEpsilon(t, want.Seconds, got.Seconds, 1e-9)
				one.Process = &Process{Base: 1 << 20, Cores: 2}
				pair.Process = one.Process
				resident, err := one.Resident(a)
				require.NoError(t, err)
				again, err := pair.Resident(b)
				require.NoError(t, err)
				require.Equal(t, resident, again)
			}
		}
		require.Equal(t, m, m.Samples(1).withoutSequences(), "m is not changed")
	}
	for _, n := range []int{0, -1, math.MaxInt} {
		require.ErrorIs(t, gpt.Samples(n).Validate(), snug.ErrShape)
	}
	p, err := Best(Task{Model: gpt.Samples(2), Device: devices[0], Batch: 6}.Fit(0))
	require.NoError(t, err)
	var b strings.Builder
	require.NoError(t, p.WriteTable(&b))
	require.Contains(t, b.String(), "6 samples of 2 sequences of 32 tokens a step")
}

func (m Model) withoutSequences() Model {
	m.Sequences = 0
	return m
}

// A loss of log-probabilities holds three numbers a row, and computes the products of the head once more.
func TestHeadLogProbs(t *testing.T) {
	m, err := GPT{Vocab: 500, Dim: 64, Layers: 3, Heads: 4, Context: 32}.Model()
	require.NoError(t, err)
	task, r := Task{Model: m, Device: devices[0], Batch: 3}, Run{Micro: 3, Window: 1}
	plain, err := task.Predict(r)
	require.NoError(t, err)
	task.Model.Head.LogProbs = true
	probs, err := task.Predict(r)
	require.NoError(t, err)
	require.Equal(t, int64(3*32*12), probs.Peak[meter.OnDevice][meter.Workspace]-plain.Peak[meter.OnDevice][meter.Workspace])
	require.Greater(t, probs.Seconds, plain.Seconds)
}
