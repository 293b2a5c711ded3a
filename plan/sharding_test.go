package plan

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/meter"
)

// ranked returns a task of several ranks.
func ranked(t *testing.T, ranks int) Task {
	m, err := ModelNamed("gpt2", 0)
	require.NoError(t, err)
	d, err := DeviceNamed("24GB")
	require.NoError(t, err)
	return Task{Model: m, Device: d, Batch: 8, Ranks: ranks}
}

// TestRanks: what a rank holds of what is divided falls with the number of ranks, and what it sends is a formula.
func TestRanks(t *testing.T) {
	r := Run{Micro: 4, Window: 2, Compute: snug.BF16, Masters: amp.FullMaster, StateBits: 32, Tiled: true}
	one, err := ranked(t, 1).Predict(r)
	require.NoError(t, err)
	require.Zero(t, one.Sent)
	require.Zero(t, one.Waits)
	_, n, _ := ranked(t, 1).counts()
	for _, ranks := range []int{2, 8, 64} {
		for _, r.Shard = range []Sharding{Replicate, ShardState, ShardGradients} {
			p, err := ranked(t, ranks).Predict(r)
			require.NoError(t, err)
			got, whole := p.Peak[meter.OnDevice], one.Peak[meter.OnDevice]
			part := func(c meter.Component, divided Sharding) float64 {
				if r.Shard < divided {
					return float64(whole[c])
				}
				return float64(whole[c]) / float64(ranks)
			}
			require.InDelta(t, part(meter.Masters, ShardState), float64(got[meter.Masters]), 1)
			require.InDelta(t, part(meter.State, ShardState), float64(got[meter.State]), 1)
			extra := int64(0)
			if r.Shard != Replicate {
				extra = 2 << 20 // bf16 passes through the elements of a bucket
			}
			if r.Shard == ShardGradients {
				extra += 3 * 4 * (1<<20 - 1 + 50257*768 + 256*int64(ranks)) // the head is tied
			}
			require.InEpsilon(t, part(meter.Gradients, ShardGradients)+float64(extra), float64(got[meter.Gradients]), 0.02)
			require.GreaterOrEqual(t, float64(got[meter.Gradients]), part(meter.Gradients, ShardGradients)+float64(extra)-4)
			require.Equal(t, whole[meter.Activations], got[meter.Activations])
			sent := map[Sharding]int64{Replicate: 8 * n, ShardState: 6 * n, ShardGradients: 10 * n}[r.Shard]
			require.InEpsilon(t, float64(sent)*float64(ranks-1)/float64(ranks), float64(p.Sent), 1e-6)
			require.Positive(t, p.Waits)
		}
	}
}

// TestRanksWeights: matrices are divided, beside two layers, a matrix and an embedding, and sent for each pass.
//
//check:not bits32
func TestRanksWeights(t *testing.T) {
	m, err := ModelNamed("llama-7b", 0)
	require.NoError(t, err)
	task := ranked(t, 8)
	task.Model, task.Rank, task.Batch, task.Device.Unified = m, 16, 4, true
	r := Run{Micro: 2, Window: 2, Compute: snug.BF16, Frozen: 4, StateBits: 32, Tiled: true}
	whole, err := task.Predict(r)
	require.NoError(t, err)
	r.Shard = ShardWeights
	p, err := task.Predict(r)
	require.NoError(t, err)
	const byElement, matrix = 0.5 + 1.0/64 + 4.0/64/256, 4096 * 11008 // of an MLP, which has three
	layers, hold := float64(4*4096*4096+3*matrix)*byElement, 7*matrix*byElement
	const table = 2 * 32000 * 4096 // bytes of the embedding, and of the head
	require.InEpsilon(t, float64(whole.Peak[meter.OnDevice][meter.Weights])-(32*layers+2*table)*7/8+hold+table, float64(p.Peak[meter.OnDevice][meter.Weights]), 0.01)
	require.InDelta(t, float64(whole.Peak[meter.OnDevice][meter.State])/8, float64(p.Peak[meter.OnDevice][meter.State]), 1)
	require.InEpsilon(t, float64(whole.Peak[meter.OnDevice][meter.Gradients]), float64(p.Peak[meter.OnDevice][meter.Gradients]), 0.002) // and padding
	require.InEpsilon(t, float64(whole.Sent)+4*(32*layers+2*table)*7/8, float64(p.Sent), 0.01)
	held, err := task.PageBytes(r)
	require.NoError(t, err)
	require.InEpsilon(t, 6.0/7*hold, float64(held), 0.01)
	require.Greater(t, p.Seconds, whole.Seconds)
	for want, change := range map[string]func(r *Run){
		"and they are on the hos": func(r *Run) { r.WeightsOn = meter.OnHost },
	} {
		r := r
		change(&r)
		_, err := task.Predict(r)
		require.ErrorContains(t, err, want)
	}
	r.Frozen = 16 // in bf16
	p, err = task.Predict(r)
	require.NoError(t, err)
	const n = 32*(4*4096*4096+3*matrix) + table
	require.InEpsilon(t, 2*float64(n/8+6*matrix+table/2)+4*16*32*float64(4*2*4096+3*(4096+11008)), float64(p.Peak[meter.OnDevice][meter.Weights]), 0.01)

	task.Rank, r.Frozen = 0, 0 // all weights train
	r.Shard = ShardGradients
	whole, err = task.Predict(r)
	require.NoError(t, err)
	r.Shard = ShardWeights
	p, err = task.Predict(r)
	require.NoError(t, err)
	require.InEpsilon(t, 2*float64(n/8+6*matrix+table/2), float64(p.Peak[meter.OnDevice][meter.Weights]), 0.01)
	require.InEpsilon(t, 4*float64(n/8+table/2+1.5*matrix), float64(p.Peak[meter.OnDevice][meter.Gradients]), 0.01)
	for _, c := range []meter.Component{meter.Masters, meter.State, meter.Activations} {
		require.Equal(t, whole.Peak[meter.OnDevice][c], p.Peak[meter.OnDevice][c])
	}
	// The gradients of two micro-batches, and four passes over the weights, in place of one gather.
	require.InEpsilon(t, (2*4+4*2)*float64(n)*7/8, float64(p.Sent), 0.01)
	task.Rank, task.Frozen = 16, []int{4}
	miss := &MissError{}
	task.Shard = []Sharding{Replicate, ShardState, ShardGradients}
	_, err = Best(task.Fit(1))
	require.ErrorAs(t, err, &miss)
	task.Shard = nil
	fit, err := Best(task.Fit(miss.Minimum - 1))
	require.NoError(t, err)
	require.Equal(t, ShardWeights, fit.Run.Shard)
}

// TestRanksWait: communication is hidden behind the backward pass as far as that is long enough.
func TestRanksWait(t *testing.T) {
	waits := func(network float64) float64 {
		task := ranked(t, 4)
		task.Device.Network, task.Device.Latency = network, 0
		p, err := task.Predict(Run{Micro: 8, Window: 1})
		require.NoError(t, err)
		alone, err := ranked(t, 1).Predict(Run{Micro: 8, Window: 1})
		require.NoError(t, err)
		require.InEpsilon(t, alone.Seconds+p.Waits, p.Seconds, 1e-9)
		return p.Waits
	}
	fast, slow := waits(1e12), waits(1e8)
	require.Less(t, fast, 1e-3)
	_, n, _ := ranked(t, 1).counts()
	sum := 8 * float64(n) * 3 / 4 / 1e8
	require.Less(t, slow, sum)
	require.Greater(t, slow, 0.9*sum)
}

// TestRanksFit: a plan divides what does not fit otherwise, and its table says what ranks send.
//
//check:not bits32
func TestRanksFit(t *testing.T) {
	task := ranked(t, 8)
	task.Compute = []snug.DType{snug.BF16}
	wide, err := Best(task.Fit(0))
	require.NoError(t, err)
	task.Shard = []Sharding{Replicate}
	miss := &MissError{}
	_, err = Best(task.Fit(1))
	require.ErrorAs(t, err, &miss)
	task.Shard = nil
	narrow, err := Best(task.Fit(miss.Minimum - 1))
	require.NoError(t, err)
	require.NotEqual(t, Replicate, narrow.Run.Shard)
	require.GreaterOrEqual(t, narrow.Seconds, wide.Seconds)
	var b strings.Builder
	require.NoError(t, narrow.WriteTable(&b))
	require.Contains(t, b.String(), "each of 8 ranks sends")
	require.Contains(t, b.String(), "\nsharding: "+narrow.Run.Shard.String())
}

// TestRanksErrors: what does not go with ranks is an error.
func TestRanksErrors(t *testing.T) {
	for want, change := range map[string]func(*Task, *Run){
		"Shard is state with 1 ranks": func(t *Task, r *Run) { t.Ranks, r.Shard = 1, ShardState },
		"Shard is Sharding(7)":        func(t *Task, r *Run) { r.Shard = 7 },
		"Shard does not go with the optimizer muon: its step takes whole matrices": func(t *Task, r *Run) { t.Optimizer, r.Shard, t.Own = "muon", ShardState, true },
		"ranks do not go with InBackward":                                          func(t *Task, r *Run) { r.Gradients = InBackward },
		"Reducer does not go with the optimizer mezo":                              func(t *Task, r *Run) { t.Optimizer = "mezo" },
		"these are on the host":                                                    func(t *Task, r *Run) { r.GradientsOn = meter.OnHost },
		"Ranks is -1":                                                              func(t *Task, r *Run) { t.Ranks = -1 },
		"Bucket is -1":                                                             func(t *Task, r *Run) { t.Bucket = -1 },
		`the Network of device "24GB" is 0`:                                        func(t *Task, r *Run) { t.Device.Network = 0 },
		"Network is -1":                                                            func(t *Task, r *Run) { t.Device.Network = -1 },
		"Shard does not go with the optimizer prodigy: it keeps numbers of whole parameters": func(t *Task, r *Run) { t.Optimizer, t.Shard = "prodigy", []Sharding{ShardGradients} },
	} {
		t.Run(want, func(t *testing.T) {
			task, r := ranked(t, 2), Run{Micro: 8, Window: 1}
			change(&task, &r)
			_, err := task.Predict(r)
			require.ErrorIs(t, err, snug.ErrConfig, want)
			require.ErrorContains(t, err, want)
		})
	}
	require.Equal(t, "gradients", ShardGradients.String())
	require.Equal(t, "Sharding(-1)", Sharding(-1).String())
}
