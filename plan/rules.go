package plan

import (
	"cmp"
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/internal/fault"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/quant8"
)

// This file says what packages train and transformer can do. They refuse by it, and [Task.Fit] offers by it.

// traitRules returns what an optimizer excludes.
func (r Run) traitRules(o quant8.Traits, ranks bool) (list []fault.Rule) {
	for _, u := range []struct {
		asked bool
		what  string
		use   quant8.Use
	}{
		{r.Gradients.onePer(), "InBackward", quant8.InBackward},
		{r.Gradients == Folded, "Folded", quant8.Folded},
		{ranks, "Reducer", quant8.Reduced},
		{r.Shard != Replicate, "Shard", quant8.Sharded},
	} {
		why := o.Conflict(u.what, u.use)
		list = append(list, fault.Rule{u.asked && why != "", why})
	}
	return list
}

// CheckStep returns an error that wraps [snug.ErrConfig] if package train cannot make the steps of r with an optimizer, on
// several ranks or alone. trained is the type of the parameters that train: [snug.F32] for adapters. New of package train
// asks CheckStep too.
func (r Run) CheckStep(o quant8.Traits, trained snug.DType, ranks bool) error {
	list, name, one := r.traitRules(o, ranks), "InBackward", r.Gradients.onePer()
	if r.Gradients == Folded {
		name = "Folded"
	}
	list = append(list,
		fault.Rule{r.Gradients != SumF32 && !one, fmt.Sprintf("Gradients is %v, want f32, in-backward or folded", r.Gradients)},
		fault.Rule{r.GradientsOn != meter.OnDevice, fmt.Sprintf("gradients on the %v, want them on the device of the parameters", r.GradientsOn)},
		fault.Rule{one && (r.Masters == amp.SplitMaster || r.Masters == amp.Split24Master), name + " has no master weights: leave Masters unset, or set NoMaster"},
		fault.Rule{one && ranks, "ranks do not go with " + name + ", because they add their gradients before an update"},
		fault.Rule{one && trained == snug.F16, name + " does not go with f16, which needs a loss scale"},
	)
	if o.ForwardOnly {
		not := "the optimizer " + o.Name + " does not go with "
		list = append(list,
			fault.Rule{r.StateOn != meter.OnDevice, not + "Storage, because there is no state"},
			fault.Rule{cmp.Or(r.StateBits, 32) != 32, not + "StateBits, because there is no state"},
			fault.Rule{r.Masters != amp.FullMaster, not + "Masters, because there are no master weights"})
	}
	return fault.Check(snug.ErrConfig, list...)
}

// CheckUnit returns an error if package train cannot update a parameter of n elements with an optimizer: one that is no
// matrix of a layer, for an optimizer of matrices only; and of those that it takes whole, one that is not on the CPU, or has
// 16 bits and all gradients (mastered) and more elements than a page of its paged master weights, 0 for none. The error wraps
// [snug.ErrDevice] or [snug.ErrConfig]. New of package train asks CheckUnit too.
func CheckUnit(o quant8.Traits, name string, n int64, matrix, cpu, mastered bool, page int) error {
	switch {
	case o.MatricesOnly && !matrix:
		return fmt.Errorf("parameter %s is no matrix of a layer, which the optimizer %s wants: give vectors, embeddings and the output layer to another rule: %w", name, o.Name, snug.ErrConfig)
	case o.Unit == quant8.Element || o.Unit == quant8.Matrix && !matrix:
	case !cpu && !o.Devices:
		return fmt.Errorf("%s: %w", o.Conflict("parameter "+name+" on a device", quant8.OnDevice), snug.ErrDevice)
	case mastered && page > 0 && n > int64(page):
		return fmt.Errorf("%s: %w", o.Conflict("Storage of the master weights of "+name, quant8.Paged), snug.ErrConfig)
	}
	return nil
}

// CheckWeights returns an error if package transformer cannot hold the weights of r where r has them, on the CPU or on
// another device. It wraps [snug.ErrConfig] or [snug.ErrDevice]. New and Open of package transformer ask CheckWeights too.
func (r Run) CheckWeights(cpu bool) error {
	paged := r.WeightsOn != meter.OnDevice
	switch {
	case (paged || r.Shard == ShardWeights) && !cpu:
		return fmt.Errorf("pages of weights are for the CPU: %w", snug.ErrDevice)
	case paged && !r.quantized():
		return fmt.Errorf("the option Pages keeps quantized matrices, and the weights have %d bits: want a Base, or PageFloats: %w", 8*r.elem(), snug.ErrConfig)
	}
	return nil
}

// roundsUpdates reports whether parameters of 16 bits train, which lose updates without master weights.
func (t Task) roundsUpdates(r Run) bool { return r.elem() == 2 && t.mastered(1) > 0 }

// checkDone returns an error for what nothing in this module does, unless the program is one's own.
func (t Task) checkDone(r Run) (err error) {
	defer fault.Named(&err, "plan")
	o, trained := t.traits(), r.Compute
	if t.mastered(1) == 0 {
		trained = snug.F32
	}
	if t.Own {
		return fault.Check(snug.ErrConfig, r.traitRules(o, t.Ranks > 1)...)
	}
	err = r.CheckStep(o, trained, t.Ranks > 1)
	if err == nil {
		err = r.CheckWeights(t.Device.Unified)
	}
	if err == nil && t.VeRA && !t.Device.Unified {
		err = fmt.Errorf("adapters of VeRA are for the CPU: %w", snug.ErrDevice)
	}
	if err == nil && o.Unit != quant8.Element {
		page, mastered := 0, t.roundsUpdates(r) && !r.Gradients.onePer()
		if r.StateOn != meter.OnDevice {
			page = t.Chunk
		}
		for p := range t.trained() {
			if err == nil {
				err = CheckUnit(o, fmt.Sprintf("%q", fmt.Sprint(p.shape)), p.len(), p.linear, t.Device.Unified, mastered, page)
			}
		}
	}
	return err
}
