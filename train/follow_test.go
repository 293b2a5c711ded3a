package train

import (
	"context"
	"errors"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/accum"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/offload"
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/qlora"
	"github.com/snug-ml/snug/transformer"
)

// TestPlansTrain: what plan.Task.Fit offers, packages transformer and train do, for a step.
func TestPlansTrain(t *testing.T) { rapid.Check(t, propertyPlansTrain) }

func FuzzPlansTrain(f *testing.F) { f.Fuzz(rapid.MakeFuzz(propertyPlansTrain)) }

func propertyPlansTrain(t *rapid.T) {
	c := tinyConfig(rapid.SampledFrom([]string{"llama", "qwen3", "gpt2"}).Draw(t, "family"), rapid.Bool().Draw(t, "tied"))
	const tokens = 8
	model, err := c.Plan(tokens)
	require.NoError(t, err)
	d := plan.Device{Name: "d", Unified: true, Memory: 1 << 40, F32: 1e9, F16: 2e9, Bandwidth: 1e9, HostF32: 1e9, HostBandwidth: 1e9, Link: 1e9, DiskRate: 1e9}
	if rapid.Bool().Draw(t, "disk") {
		d.Disk = 1 << 40
	}
	task := plan.Task{Model: model, Device: d, Batch: rapid.IntRange(1, 5).Draw(t, "batch"), Chunk: 512,
		Optimizer: rapid.SampledFrom(plan.Optimizers()).Draw(t, "optimizer"),
		Compute:   rapid.SampledFrom([][]snug.DType{nil, {snug.F32}, {snug.BF16}, {snug.F16}}).Draw(t, "compute"),
		Masters:   rapid.SampledFrom([][]amp.MasterForm{nil, {amp.SplitMaster}, {amp.Split24Master}, {amp.NoMaster}, {amp.FullMaster, amp.NoMaster}}).Draw(t, "masters"),
		Gradients: rapid.SampledFrom([][]plan.Gradient{nil, nil, {plan.InBackward}, {plan.Folded}, {plan.SumBF16}}).Draw(t, "gradients"),
		StateBits: rapid.SampledFrom([][]int{nil, {4}, {16, 8}}).Draw(t, "state"),
		Tiles:     rapid.SampledFrom([][]int{nil, {2}}).Draw(t, "tiles"),
	}
	adapter := &qlora.AdapterOptions{Alpha: 4}
	if task.Rank = rapid.SampledFrom([]int{0, 2}).Draw(t, "rank"); task.Rank == 0 {
		adapter = nil
	} else {
		task.DoRA = rapid.Bool().Draw(t, "dora")
		task.FrozenA = !task.DoRA && rapid.Bool().Draw(t, "frozen A")
		task.Base = rapid.SampledFrom([]qlora.Type{0, qlora.FP8, qlora.INT8}).Draw(t, "base")
		task.Frozen = rapid.SampledFrom([][]int{nil, {16}}).Draw(t, "frozen")
	}
	var miss *plan.MissError
	if _, err := plan.Best(task.Fit(1)); !errors.As(err, &miss) {
		require.ErrorIs(t, err, snug.ErrConfig) // the lists exclude each other
		return
	}
	offered := 0
	for p, err := range task.Fit(miss.Minimum * rapid.Int64Range(100, 200).Draw(t, "percent") / 100) {
		require.NoError(t, err)
		trainAsPlanned(t, c, p, adapter, tokens)
		if offered++; offered == 3 {
			return
		}
	}
	require.Positive(t, offered)
}

// trainAsPlanned makes a step of a plan.
func trainAsPlanned(t require.TestingT, c *transformer.Config, p plan.Plan, adapter *qlora.AdapterOptions, tokens int) {
	dir, err := os.MkdirTemp("", "snug-follow-")
	require.NoError(t, err)
	defer func() { require.NoError(t, os.RemoveAll(dir)) }()
	store, err := offload.Open(dir, offload.Options{HostLimit: 64 << 20})
	require.NoError(t, err)
	defer func() { require.NoError(t, store.Close()) }()
	model, training := transformer.Options{Seed: 1, Adapter: adapter, Pages: store, Checkpoints: store}, Options{Schedule: Constant(1e-4), Storage: store}
	require.NoError(t, p.Apply(&model, &training))
	m, err := transformer.New(c, model)
	require.NoError(t, err, "%+v", p.Run)
	defer func() { require.NoError(t, m.Close()) }()
	trainer, err := New(Model[transformer.Batch](m), training)
	require.NoError(t, err, "%+v", p.Run)
	defer func() { require.NoError(t, trainer.Close()) }()
	var batches []transformer.Batch
	for left := p.Task.Batch; left > 0; left -= p.Run.Micro {
		b := transformer.Batch{Sequences: min(left, p.Run.Micro)}
		for i := range b.Sequences * tokens {
			b.Tokens, b.Labels = append(b.Tokens, int32(i*7%c.Vocab)), append(b.Labels, int32(i*5%c.Vocab))
		}
		batches = append(batches, b)
	}
	require.LessOrEqual(t, len(batches), p.Run.Window)
	_, err = trainer.Train(context.Background(), batches)
	require.NoError(t, err, "%+v", p.Run)
}

// TestFollow: options refuse a plan that is not theirs.
func TestFollow(t *testing.T) {
	c := tinyConfig("llama", false)
	model, err := c.Plan(8)
	require.NoError(t, err)
	d, err := plan.DeviceNamed("16GB-unified")
	require.NoError(t, err)
	p, err := plan.Best(plan.Task{Model: model, Device: d, Batch: 2}.Fit(0))
	require.NoError(t, err)
	ranks, err := accum.Local(t.Context(), 2)
	require.NoError(t, err)
	paged := p
	paged.Run.StateOn = 2
	for name, c := range map[string]struct {
		plan plan.Plan
		to   plan.Options
	}{
		"nil model": {p, (*transformer.Options)(nil)}, "nil training": {p, (*Options)(nil)}, "nothing": {p, nil},
		"adapters": {p, &transformer.Options{Adapter: &qlora.AdapterOptions{}}},
		"ranks":    {p, &Options{Ranks: Ranks{Reducer: ranks[0]}}},
		"storage":  {paged, &Options{}},
		"unknown":  {plan.Plan{Task: plan.Task{Optimizer: "unknown"}}, &Options{}},
	} {
		t.Run(name, func(t *testing.T) { require.ErrorIs(t, c.plan.Apply(c.to), snug.ErrConfig) })
	}
}
