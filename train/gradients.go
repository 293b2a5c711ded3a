package train

import (
	"context"

	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/internal/fault"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/quant8"
)

// gradients is a way to get the gradients of a step, and to update the parameters with them: [Trainer.Train] is the
// methods pass, norm and apply in turn. A new way is a type in a file of its own, and a case of chosen. It embeds updater
// for the optimizer and the master weights, and inPass if it updates parameters while the model runs.
type gradients[B any] interface {
	traits() traits
	// excludes returns the options that do not go with the way.
	excludes(o *Options) []fault.Rule
	// make makes the optimizer and the memory of the gradients. Where the ranks divide the parameters it says how.
	make() error

	// pass runs the micro-batches, and returns their loss.
	pass(ctx context.Context, batches []B, rate float32) (fused.Loss, error)
	// norm divides the gradients by the loss scale, and measures them.
	norm() (found, error)
	// apply updates the parameters with the gradients, clipped by their norm.
	apply(ctx context.Context, rate float32, norm float64) error
	// end begins the next window. skipped says that the gradients were not finite, and nothing was updated.
	end(skipped bool)

	// bytes returns what is held between steps, lost the counts of lost updates, and parts what a checkpoint saves.
	bytes() meter.Bytes
	lost() []counter
	parts() []savedPart
	// begin gives master weights their first values.
	begin() error
	// average puts averages into the model, or puts the parameters in training back.
	average(on bool) error
	// gather sends the parts of the parameters to all ranks, and together makes a checkpoint on rank 0 with their help.
	gather() error
	together(save func() error) error
}

// traits are what the Trainer asks about a way to get gradients.
type traits struct {
	held     bool // all gradients are, until the update: there may be master weights and a loss scale
	backward bool // the model runs backward
	changes  bool // pass changes parameters, also where it fails
	final    bool // a step that has changed something and failed cannot be repeated
}

// chosen returns the way that the options, which checkStep has seen, choose.
func (t *Trainer[B]) chosen() gradients[B] {
	o, u := &t.options, updater[B]{t: t}
	switch {
	case quant8.TraitsOf(o.Optimizer).ForwardOnly:
		return &zerothOrder[B]{t: t}
	case o.Gradients == plan.SumF32 && o.Shard != plan.Replicate:
		return &sharded[B]{updater: u}
	case o.Gradients == plan.SumF32:
		return &window[B]{updater: u}
	case o.Gradients == plan.InBackward:
		return &inBackward[B]{updater: u}
	}
	return &folded[B]{inBackward[B]{updater: u}}
}

// found is what norm has found.
type found struct {
	amp.Stats
	overflows string // names the gradients that are not finite
}

// inPass is norm, apply and end of a way that updates the parameters in pass.
type inPass struct{ found found }

func (p *inPass) norm() (found, error)                        { return p.found, nil }
func (*inPass) apply(context.Context, float32, float64) error { return nil }
func (*inPass) end(bool)                                      {}
