package train

import (
	"cmp"
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/internal/fault"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/quant8"
)

// Follow sets what a plan decides: StateBits, Masters, Stochastic, Gradients, Chunk, Bucket and Shard, and the Optimizer
// if it is nil. It removes a Storage that the plan does not use. The error wraps [snug.ErrConfig] for another
// optimizer than the plan's, for a Reducer of another number of ranks, and if the plan uses a Storage and there is none.
func (o *Options) Follow(p plan.Plan) (err error) {
	defer fault.Named(&err, "train: Follow")
	if o == nil {
		return fmt.Errorf("the options are nil: %w", snug.ErrConfig)
	}
	t, r := p.Task, p.Run
	t.Optimizer, t.Ranks = cmp.Or(t.Optimizer, quant8.TraitsOf(quant8.Default()).Name), max(1, t.Ranks)
	rule, err := quant8.RuleNamed(t.Optimizer)
	if err != nil {
		return err
	}
	if t.OptimizerRank > 0 {
		rule, _ = quant8.WithRank(rule, t.OptimizerRank)
	}
	if o.Optimizer != nil {
		rule = o.Optimizer
	}
	ranks, traits := 1, quant8.TraitsOf(rule)
	if o.Reducer != nil {
		ranks = o.Reducer.Size()
	}
	paged := r.StateOn != meter.OnDevice
	if err := fault.Check(snug.ErrConfig, []fault.Rule{
		{traits.Name != t.Optimizer, fmt.Sprintf("the plan is for the optimizer %s, and Optimizer is %s", t.Optimizer, traits.Name)},
		{t.Ranks != ranks, fmt.Sprintf("the plan is for %d ranks, and the Reducer has %d", t.Ranks, ranks)},
		{paged && o.Storage == nil, "the plan has the optimizer's state in pages, and Storage is nil"},
	}...); err != nil {
		return err
	}
	if !paged {
		o.Storage = nil
	}
	o.Optimizer, o.StateBits, o.Masters, o.Stochastic = rule, r.StateBits, r.Masters, r.Masters == amp.Split24Master
	o.Gradients, o.Chunk, o.Bucket, o.Shard = r.Gradients, t.Chunk, t.Bucket, r.Shard
	return nil
}
