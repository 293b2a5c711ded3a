package train

import (
	"cmp"
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/accum"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/internal/fault"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/quant8"
)

// Options say how a Trainer trains. The zero value is [quant8.Default] with 32-bit state at a learning rate of
// 0.001, without checkpoints.
type Options struct {
	// Optimizer is the rule; nil is [quant8.Default]. Its [quant8.Traits] say what it goes with; see also
	// [Trainer.Average]. A rule that is ForwardOnly needs no backward pass, see [ForwardOnly]. It has no gradients, no state, no
	// master weights and no loss scale; options that concern these are errors.
	//
	// A rule whose Unit is quant8.Matrix needs a model with [Matrices]. If the Unit is Matrix or Parameter, then with Masters
	// other than FullMaster, and without steps in the backward pass, the Trainer holds a float32 copy of the largest, 4 bytes
	// an element. With Storage, such matrices and parameters of more than Chunk elements must not have 16 bits.
	Optimizer quant8.Rule
	StateBits int                          // bits of an element of the optimizer's state: 32, 16, 8 or 4; 0 is 32
	Schedule  func(step int) (lr float32)  // learning rate of a step, counted from 0; nil is Constant(1e-3)
	Clip      float64                      // maximum norm of all gradients together; 0 does not clip
	Masters   amp.MasterForm               // form of master weights of 16-bit parameters; NoMaster rounds stochastically
	Fill      func(name string) FirstValue // initial master weights, for models made in float32; nil: the parameters
	// Stochastic rounds master weights of the form Split24Master stochastically, so that updates smaller than their
	// gaps are not lost on average. With other forms it is an error.
	Stochastic bool
	Seed       uint64 // seed of stochastic rounding, and of random directions

	// Params, unless nil, are options of single parameters, such as a factor of the learning rate; qlora.LoRAPlus makes
	// those of LoRA+.
	Params func(name string) quant8.ParamOptions
	// CountLost counts the updates that rounding loses, see [Trainer.LostUpdates]. It counts for parameters of 16 bits
	// without master weights of the form FullMaster or SplitMaster.
	CountLost bool
	// Scaler is the dynamic loss scale; nil is amp's default when a parameter is float16, else no
	// loss scale.
	Scaler *amp.ScalerOptions
	// SkipNonFinite skips a step with a gradient that is not finite, also without a loss scale. Otherwise
	// such a step is an error, and nothing is updated.
	SkipNonFinite bool
	// Measure makes errors and Report.Skipped name the first micro-batch with a gradient that is not finite. It costs
	// another pass over the gradients of each micro-batch.
	Measure bool
	// Gradients says how a step gets its gradients. The default is [plan.SumF32]: all are held in float32 until the update.
	//
	// [plan.InBackward] updates each parameter as soon as its gradient is complete, which the model must say, see
	// [Completer]. There are no master weights then: updates of bfloat16 are rounded stochastically. There is no loss
	// scale, and so no float16. A step has one micro-batch, and with Clip the backward pass runs twice. A step that runs out
	// of memory is not run again by [Trainer.SplitBy].
	//
	// [plan.Folded] takes several micro-batches in the same way: each gradient is folded into the optimizer's state as soon
	// as it is complete, by [quant8.Optimizer.FoldInBackward]. The step is that of the mean gradient only with rules without squares of gradients.
	// Clip clips with the norm of the previous step. Optimizer must be one that Folds, and there is no
	// SkipNonFinite. A micro-batch of less than 2^-29 of the step's weight is left out. After an error in the second
	// micro-batch or a later one, only resuming a checkpoint helps.
	//
	// [plan.SumBF16] is an error.
	Gradients plan.Gradient

	// Storage holds master weights and the optimizer's state in pages; a Store of package offload is one. nil: they are
	// in memory, on the device of the parameters. With parameters on a device other than the CPU, the host updates a
	// page while the device copies the gradients of the next page to the host and weights back. This takes 16 bytes of
	// host memory for each element of a page, and as much pinned memory if the device can copy at the same time.
	Storage Storage
	Chunk   int // elements of a page; 0 is 65536

	// Losses, unless nil, is what the model's losses are collected in, such as that of [transformer.Options]. A
	// step then waits for them once, after its last micro-batch, and not after each; it adds their sum to the losses that
	// Backprop returns.
	Losses *fused.Losses

	// Monitor, unless nil, counts the bytes that the Trainer holds. If the Monitor has a history, it counts them by
	// layer and records steps and updates. The pages of a Storage are not counted; to count them, set Storage to a
	// [meter.Pages].
	Monitor *meter.Monitor

	Ranks
	Checkpoints
}

// Ranks say who makes the steps. The zero value is one process alone.
type Ranks struct {
	// Reducer joins the Trainers of data-parallel training, one for each rank: in processes, by package dist/mpi or
	// dist/nccl, or in goroutines, by [accum.Local]. Each rank has a model with the same parameters, and passes its own
	// micro-batches to Train; it may have none. A step uses the micro-batches of all ranks, so that all models stay equal
	// bit for bit. Report.Loss and Targets are of all ranks. All ranks call New, and then Train and Save equally often.
	// New compares the ranks' builds of snug, parameters and options, About included, and each step compares their rates.
	// After an error on one rank the others wait for it: end the job, as mpi.World.Abort does. Gradients
	// other than SumF32 and rules without gradients are errors. Checkpoints want a Reducer that is an [accum.Broadcaster], and Shard an
	// [accum.SendReceiver].
	//
	// Rank 0 writes the checkpoints, in Dir or Folder, and sends the others what it reads when it resumes one: a run goes
	// on with any number of ranks, and with any Shard. SaveEvery is the same on all ranks. On the others Dir is ignored,
	// and Folder is nil.
	//
	// With an [accum.Pages] as Reducer, which also holds weights of the model, all ranks make the same number of passes over
	// the model: a rank with fewer micro-batches than another runs its first one again, and throws these gradients away.
	// Each rank needs a micro-batch in every step, or the step is an error on all ranks. All ranks call Evaluate, with the
	// same number of micro-batches.
	Reducer accum.Reducer
	// Bucket ends a bucket of gradients, which the ranks add at a time while the backward pass goes on: at the parameter
	// that brings it to Bucket elements, so that it has up to Bucket-1 and those of the largest parameter. 0 is 1048576.
	Bucket int
	// Shard is what the ranks divide among themselves. The losses are the same up to rounding. [plan.ShardState] and
	// [plan.ShardGradients] are for rules that are not refused as [quant8.Sharded], without Measure
	// and CountLost. ShardGradients saves memory if the model calls Done of the Window for each parameter,
	// from the last to the first. [plan.ShardWeights] is for an accum.Pages as Reducer, which divides weights of the model,
	// see [Paged]: where they train it is ShardGradients besides, and where all are frozen ShardState.
	Shard plan.Sharding
}

// Checkpoints say where checkpoints are, and when they are written. The zero value is none.
type Checkpoints struct {
	// Dir is the folder of checkpoints; empty: none.
	Dir       string
	SaveEvery int // steps between checkpoints; 0: only Save writes them
	Keep      int // how many of the newest checkpoints to keep; 0 is 2
	// Folder, unless nil, is the folder of checkpoints, in place of Dir and Keep. [OpenFolder] opens it, and the caller
	// closes it.
	Folder *Folder
	// About describes the run, such as the model's name and the data's checksum. Each checkpoint has it as JSON, and
	// New refuses a checkpoint whose About differs. See also [Trainer.SetNotes].
	About any
}

// FirstValue writes elements lo to lo+len(w)-1 of a parameter's initial values to w.
type FirstValue = func(lo int, w []float32) error

// Storage is memory of named blobs, see [quant8.Storage].
type Storage = quant8.Storage

// check sets defaults, and returns an error for options that do not fit together.
func (o *Options) check(noModel bool) error {
	o.Optimizer = cmp.Or(o.Optimizer, quant8.Default())
	if o.Schedule == nil {
		o.Schedule = Constant(1e-3)
	}
	o.StateBits, o.Chunk, o.Bucket = cmp.Or(o.StateBits, 32), cmp.Or(o.Chunk, 1<<16), cmp.Or(o.Bucket, 1<<20)
	err := fault.Check(snug.ErrConfig, []fault.Rule{
		{noModel, "the model is nil"},
		{!(o.Clip >= 0), fmt.Sprintf("Clip is %v, want 0 or more", o.Clip)},
		{o.SaveEvery < 0 || o.Keep < 0 || o.Chunk < 0, fmt.Sprintf("SaveEvery is %d, Keep %d and Chunk %d, want 0 or more", o.SaveEvery, o.Keep, o.Chunk)},
		{o.SaveEvery > 0 && o.Dir == "" && o.Folder == nil && !o.follows(), "SaveEvery wants Dir or Folder"},
		{o.Folder != nil && (o.Dir != "" || o.Keep != 0 || o.Folder.folder == nil), "Folder must come from OpenFolder, without Dir and Keep"},
		{o.Stochastic && o.Masters != amp.Split24Master, fmt.Sprintf("Stochastic is for Split24Master, and Masters is %v", o.Masters)},
		{o.Bucket < 0, fmt.Sprintf("Bucket is %d, want 0 or more", o.Bucket)},
		{o.Shard < plan.Replicate || o.Shard > plan.ShardWeights, fmt.Sprintf("Shard is %d, want Replicate, ShardState, ShardGradients or ShardWeights", o.Shard)},
		{o.Shard != plan.Replicate && o.Reducer == nil, "Shard wants a Reducer"},
		{o.follows() && o.Folder != nil, "Folder is for rank 0: it writes the checkpoints"},
	}...)
	return cmp.Or(err, o.checkStep(snug.F32))
}

// checkStep returns an error for steps that the Trainer cannot make with parameters of a type.
func (o *Options) checkStep(trained snug.DType) error {
	r := plan.Run{Gradients: o.Gradients, Masters: o.Masters, StateBits: o.StateBits, Shard: o.Shard}
	if o.Storage != nil {
		r.StateOn = meter.OnDisk
	}
	return r.CheckStep(quant8.TraitsOf(o.Optimizer), trained, o.Reducer != nil)
}
