package train

import (
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/quant8"
)

// check sets defaults, and returns an error for options that do not fit together.
func (o *Options) check(noModel bool) error {
	if o.Optimizer == nil {
		o.Optimizer = quant8.AdamW{}
	}
	if o.StateBits == 0 {
		o.StateBits = 32
	}
	if o.Schedule == nil {
		o.Schedule = Constant(1e-3)
	}
	if o.Chunk == 0 {
		o.Chunk = 1 << 16
	}
	if o.Bucket == 0 {
		o.Bucket = 1 << 20
	}
	for _, c := range []struct {
		bad  bool
		what string
	}{
		{noModel, "the model is nil"},
		{!(o.Clip >= 0), fmt.Sprintf("Clip is %v, want 0 or more", o.Clip)},
		{o.SaveEvery < 0 || o.Keep < 0 || o.Chunk < 0, fmt.Sprintf("SaveEvery is %d, Keep %d and Chunk %d, want 0 or more", o.SaveEvery, o.Keep, o.Chunk)},
		{o.SaveEvery > 0 && o.Dir == "" && o.Folder == nil && !o.follows(), "SaveEvery wants Dir or Folder"},
		{o.Folder != nil && (o.Dir != "" || o.Keep != 0 || o.Folder.folder == nil), "Folder must come from OpenFolder, without Dir and Keep"},
		{o.InBackward && o.Scaler != nil, "InBackward does not go with a loss scale, because one parameter is updated before another is known to be finite"},
		{o.InBackward && (o.Masters == amp.SplitMaster || o.Masters == amp.Split24Master), "InBackward has no master weights: leave Masters unset, or set NoMaster"},
		{o.Stochastic && o.Masters != amp.Split24Master, fmt.Sprintf("Stochastic is for Split24Master, and Masters is %v", o.Masters)},
		{o.InBackward && o.Fill != nil, "InBackward has no master weights to fill"},
		{o.InBackward && o.averages(), "InBackward does not go with quant8.ScheduleFree: without gradients in memory nothing holds the parameters that train while their averages are evaluated"},
		{o.Fold && !o.InBackward, "Fold wants InBackward"},
		{o.Fold && !quant8.Folds(o.Optimizer), fmt.Sprintf("Fold does not go with %T, whose update needs the whole gradient", o.Optimizer)},
		{o.Bucket < 0, fmt.Sprintf("Bucket is %d, want 0 or more", o.Bucket)},
		{o.Reducer != nil && o.InBackward, "Reducer does not go with InBackward, because ranks add their gradients before an update"},
		{o.Shard < plan.Replicate || o.Shard > plan.ShardWeights, fmt.Sprintf("Shard is %d, want Replicate, ShardState, ShardGradients or ShardWeights", o.Shard)},
		{o.Shard != plan.Replicate && o.Reducer == nil, "Shard wants a Reducer"},
		{o.Shard == plan.ShardWeights && !o.paged(), "ShardWeights wants an accum.Pages as Reducer"},
		{o.Shard != plan.Replicate && !o.shardable(), fmt.Sprintf("Shard does not go with %T, whose step takes a whole parameter, or its averages", o.Optimizer)},
		{o.Shard != plan.Replicate && (o.Measure || o.CountLost), "Shard does not go with Measure and CountLost, which look at whole parameters"},
		{o.Shard == plan.ShardGradients && o.paged(), "ShardGradients does not go with an accum.Pages as Reducer: ranks would add the gradients of a micro-batch while the next one gathers weights, in another order on each rank; ShardState does"},
		{o.Reducer != nil && o.Split != nil, "Reducer does not go with Split, because the ranks make a step together"},
		{o.follows() && o.Folder != nil, "Folder is for rank 0: it writes the checkpoints"},
		{o.Fold && o.SkipNonFinite, "Fold does not go with SkipNonFinite, because what is folded cannot be taken back"},
	} {
		if c.bad {
			return fmt.Errorf("%s: %w", c.what, snug.ErrConfig)
		}
	}
	return o.checkMeZO()
}
