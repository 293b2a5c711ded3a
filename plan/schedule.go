package plan

import (
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/remat"
)

// Operation is one operation of a micro-batch, as [Task.Schedule] lists them.
type Operation struct {
	// Kind is the operation of the plan of recomputation. It is 0 for the loss, and [remat.ForwardDiscard] for all forward
	// steps of an optimizer without gradients.
	Kind  remat.Kind
	Stage int    // of the chain, from 0; the number of stages for the loss
	Name  string // of the stage's layer; "loss" for the loss
	Again bool   // a forward step that computes again what was computed before
	// Device is the number of bytes of activations that the device holds while the operation runs. With unified memory it
	// counts the host's pages of checkpoints too. Host and Disk are the bytes of copies in the host's memory and on disk
	// after the operation.
	Device, Host, Disk int64
}

// Schedule returns the operations of a micro-batch of r, in their order: the forward steps, the loss, and the backward
// steps with the forward steps that run again between them. The maximum of Device is the number of bytes of activations
// of the device's peak that [Task.Predict] returns. All other components hold as much throughout as they hold at the
// peak. The schedule takes about 100 bytes for each operation. Errors are the errors of Predict.
func (t Task) Schedule(r Run) ([]Operation, error) {
	p, err := t.Predict(r) // checks both
	if err != nil {
		return nil, err
	}
	if t, err = t.check(); err != nil {
		return nil, err
	}
	samples := int64(r.Micro)
	c := t.costs(r, samples)
	var list []Operation
	if t.forwardOnly() {
		list = forwardOperations(c)
	} else if list, err = t.operations(c, r.Remat, samples); err != nil {
		return nil, err
	}
	most := int64(0)
	for _, op := range list {
		most = max(most, op.Device)
	}
	for i := range list { // what lies beside the chain's values all the time, such as the teacher's
		list[i].Device += p.Peak[meter.OnDevice][meter.Activations] - most
	}
	return list, nil
}

// operations returns the operations of a plan of recomputation, with the loss before the first backward step.
func (t Task) operations(c remat.Costs, plan remat.Plan, samples int64) (list []Operation, err error) {
	if plan, err = plan.For(len(c.Stages)); err != nil {
		return nil, err
	}
	report, err := plan.Simulate(c)
	if err != nil {
		return nil, err
	}
	list = make([]Operation, 0, len(plan.Ops)+1)
	ran, lost := make([]bool, plan.Stages), false
	for i, op := range plan.Ops {
		held := report.Timeline[i]
		forward := op.Kind == remat.ForwardDiscard || op.Kind == remat.ForwardSave
		list = append(list, Operation{op.Kind, op.Stage, c.Stages[op.Stage].Name, forward && ran[op.Stage], held.Peak, held.Host, held.Disk})
		ran[op.Stage] = ran[op.Stage] || forward
		if op.Stage == plan.Stages-1 && !lost {
			lost = true
			list = append(list, Operation{0, plan.Stages, "loss", false, held.Held + t.lossBytes(c, samples), held.Host, held.Disk})
		}
	}
	return list, nil
}

// lossBytes returns the bytes of activations that the loss holds besides what the chain holds before it: the statistics
// of the last norm, and the second gradient of a loss that has a teacher's part too.
func (t Task) lossBytes(c remat.Costs, samples int64) int64 {
	n := 4 * t.Model.Head.Stats * samples
	if t.Teacher != nil && t.Teacher.Both {
		n += c.Stages[len(c.Stages)-1].Output
	}
	return n
}

// forwardOperations returns the operations of a step that consists of two forward passes.
func forwardOperations(c remat.Costs) (list []Operation) {
	for pass := range 2 {
		input := c.Input
		for i, s := range c.Stages {
			list = append(list, Operation{remat.ForwardDiscard, i, s.Name, pass > 0, input + s.Output + s.ForwardExtra, 0, 0})
			input = s.Output
		}
	}
	return list
}
