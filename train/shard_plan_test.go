package train

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/accum"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/qlora"
	"github.com/snug-ml/snug/transformer"
)

// shardCase is a model of package transformer and what its ranks divide.
type shardCase struct {
	tied  bool
	rank  int // of adapters
	dtype snug.DType
	form  amp.MasterForm
	bits  int
	shard plan.Sharding
	ranks int
}

// TestShardsPlan: ranks hold what package plan predicts, for each component, up to the blocks to which parts are rounded.
func TestShardsPlan(t *testing.T) {
	for _, c := range []shardCase{
		{false, 0, snug.BF16, amp.SplitMaster, 8, plan.Replicate, 2}, {false, 0, snug.BF16, amp.SplitMaster, 8, plan.ShardState, 2},
		{false, 0, snug.BF16, amp.FullMaster, 32, plan.ShardGradients, 2}, {true, 0, snug.BF16, amp.FullMaster, 8, plan.ShardGradients, 4},
		{true, 0, snug.F32, amp.FullMaster, 32, plan.ShardGradients, 3}, {false, 4, snug.BF16, amp.FullMaster, 32, plan.ShardGradients, 2},
		{false, 0, snug.BF16, amp.FullMaster, 8, plan.ShardWeights, 2}, {true, 0, snug.F32, amp.FullMaster, 32, plan.ShardWeights, 4},
		{false, 4, snug.BF16, amp.FullMaster, 32, plan.ShardWeights, 3},
	} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			predicted, held := c.plan(t), c.train(t)
			for _, component := range []meter.Component{meter.Weights, meter.Masters, meter.Gradients, meter.State} {
				for rank, b := range held {
					require.GreaterOrEqual(t, float64(predicted[component]+8<<10), 0.97*float64(b[component]), "%s on rank %d", component, rank)
					require.InEpsilon(t, float64(predicted[component]+1<<10), float64(b[component]+1<<10), 0.15, "%s on rank %d: %d of %d", component, rank, b[component], predicted[component])
				}
			}
		})
	}
}

const shardContext, shardBucket = 8, 16 << 10

func (c shardCase) config() *transformer.Config {
	o := tinyConfig("llama", c.tied)
	o.Vocab, o.Dim, o.Hidden, o.Layers, o.HeadDim, o.Rope.Dim = 500, 128, 352, 6, 32, 32
	o.Windows = make([]int, o.Layers)
	return o
}

// plan returns what package plan predicts for a rank.
func (c shardCase) plan(t *testing.T) meter.Bytes {
	task, r := c.task(t)
	p, err := task.Predict(r)
	require.NoError(t, err)
	require.Positive(t, p.Sent)
	require.Positive(t, p.Waits)
	return p.Peak[meter.OnDevice]
}

func (c shardCase) task(t *testing.T) (plan.Task, plan.Run) {
	model, err := c.config().Plan(shardContext)
	require.NoError(t, err)
	d, err := plan.DeviceNamed("24GB")
	require.NoError(t, err)
	task := plan.Task{Model: model, Device: d, Own: true, Batch: 2, Ranks: c.ranks, Bucket: shardBucket, Rank: c.rank}
	r := plan.Run{Micro: 1, Window: 2, Compute: c.dtype, Masters: c.form, StateBits: c.bits, Shard: c.shard}
	if c.rank > 0 {
		r.Frozen = 16
	}
	return task, r
}

// train trains two steps and returns the bytes of each rank.
func (c shardCase) train(t *testing.T) []meter.Bytes {
	reducers, err := accum.Local(t.Context(), c.ranks)
	require.NoError(t, err)
	task, run := c.task(t)
	whole, err := task.PageBytes(run)
	require.NoError(t, err)
	errs, held := make([]error, c.ranks), make([]meter.Bytes, c.ranks)
	var wait sync.WaitGroup
	for rank, r := range reducers {
		wait.Go(func() {
			errs[rank] = func() error {
				o := transformer.Options{DType: c.dtype, Seed: 3}
				if c.rank > 0 {
					o.Adapter = &qlora.AdapterOptions{Rank: c.rank, Alpha: 4}
				}
				to := Options{Ranks: Ranks{Reducer: r, Shard: c.shard, Bucket: shardBucket}, StateBits: c.bits, Masters: c.form, Clip: 1}
				var pages *accum.Pages
				if c.shard == plan.ShardWeights {
					var err error
					if pages, err = accum.NewPages(r, accum.PagesOptions{Held: whole}); err != nil {
						return err
					}
					o.Pages, o.PageFloats, to.Reducer = pages, true, pages
				}
				m, err := transformer.New(c.config(), o)
				if err != nil {
					return err
				}
				tr, err := New(Model[transformer.Batch](m), to)
				if err != nil {
					return err
				}
				for step := range 2 {
					if _, err := tr.Train(context.Background(), []transformer.Batch{tokens(2 * step), tokens(2*step + rank)}); err != nil {
						return err
					}
				}
				held[rank] = tr.Bytes()
				held[rank][meter.Weights] = m.Memory().Weights + pages.Peak()
				return errors.Join(tr.Close(), pages.Close())
			}()
		})
	}
	wait.Wait()
	require.NoError(t, errors.Join(errs...))
	return held
}
