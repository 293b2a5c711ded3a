package transformer

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/fault"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/qlora"
	"github.com/snug-ml/snug/remat"
)

// Follow sets what a plan decides: DType, LossRows, LossClasses, Tiles, Remat, PlainAttention, Base and PageFloats, and the
// rank and the kind of the Adapter. It removes Pages and Checkpoints that the plan does not use. The error wraps
// [snug.ErrConfig] if it uses those that are nil, or if the model is on a device whose plan it is not.
//
// Where the plan has matrices in floats beside quantized ones, as a folder has them, Base becomes 0, so that Open keeps
// both.
func (o *Options) Follow(p plan.Plan) (err error) {
	defer fault.Named(&err, "transformer: Follow")
	if o == nil {
		return fmt.Errorf("the options are nil: %w", snug.ErrConfig)
	}
	t, r := p.Task, p.Run
	if err := r.CheckWeights(o.Device == nil || o.Device.IsCPU()); err != nil {
		return err
	}
	paged := r.WeightsOn != meter.OnDevice || r.Shard == plan.ShardWeights
	onDisk := slices.ContainsFunc(r.Remat.Ops, func(op remat.Op) bool { return op.Kind == remat.PageDisk })
	switch {
	case paged && o.Pages == nil:
		return fmt.Errorf("the plan has weights in pages, and Pages is nil: %w", snug.ErrConfig)
	case onDisk && o.Checkpoints == nil:
		return fmt.Errorf("the plan has checkpoints on disk, and Checkpoints is nil: %w", snug.ErrConfig)
	case (t.Rank == 0) != (o.Adapter == nil) && (t.Rank == 0 || o.AdapterDir != ""):
		return fmt.Errorf("the plan has adapters of rank %d, and the options have others: %w", t.Rank, snug.ErrConfig)
	}
	o.DType, o.LossRows, o.LossClasses, o.Tiles, o.Remat = cmp.Or(r.Compute, snug.F32), t.LossRows, t.LossClasses, r.Tiles, r.Remat
	o.PageFloats, o.PlainAttention, o.Base = r.Shard == plan.ShardWeights, false, 0
	if !paged {
		o.Pages = nil
	}
	if !onDisk {
		o.Checkpoints = nil
	}
	floats := false
	for _, l := range t.Model.Layers {
		o.PlainAttention = o.PlainAttention || l.Attention.Heads > 0 && !l.Attention.Tiled && !r.Tiled
		floats = floats || len(l.Floats) > 0
	}
	if t.Rank == 0 {
		return nil
	}
	if quantized := r.Frozen == 4 || r.Frozen == 8; quantized && !floats {
		o.Base = cmp.Or(t.Base, qlora.NF4)
	}
	a := qlora.AdapterOptions{}
	if o.Adapter != nil {
		a = *o.Adapter
	}
	if a.Dropout > 0 && !t.Dropout {
		return fmt.Errorf("the plan is without Dropout, and that of the Adapter is %v: %w", a.Dropout, snug.ErrConfig)
	}
	a.Rank, a.DoRA, a.FrozenA, a.Init = t.Rank, t.DoRA, t.FrozenA, t.Init
	if t.VeRA && a.VeRA == nil {
		a.VeRA = &qlora.VeRAOptions{}
	}
	o.Adapter = &a
	return nil
}
