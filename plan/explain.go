package plan

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/remat"
)

// Choice is one decision of a [Plan].
type Choice struct {
	Name   string // name of the decision
	Value  string // chosen value
	Reason string // reason, as a sentence without its period
	Undone string // alternative, such as "state in 32 bits"
	// Other is the run with this decision undone and all others unchanged, except that
	// its cache of pages is as large as fits. Without is the prediction for Other. Fits
	// says whether Other is within the limit, the host and the disk. Saves is the number
	// of bytes on the device that the plan takes less than Other.
	Other   Run
	Without Prediction
	Fits    bool
	Saves   int64
}

// explain makes the Plan of a run.
func (t Task) explain(limit int64, r Run) (Plan, error) {
	p := Plan{Task: t, Limit: limit, Run: r}
	var err error
	if p.Prediction, err = t.predict(r); err != nil {
		return p, err
	}
	if p.Without, err = t.predict(Run{Micro: t.Batch, Window: 1, Compute: snug.F32, StateBits: 32}); err != nil {
		return p, err
	}
	for _, d := range t.decisions(r) {
		c := Choice{Name: d.name, Value: d.value, Undone: d.instead, Other: d.undone}
		if c.Other.Cache, err = t.cacheOf(c.Other); err != nil {
			return p, err
		}
		if c.Without, err = t.predict(c.Other); err != nil {
			return p, err
		}
		c.Fits = p.excess(c.Without.Peak) == ""
		c.Saves = c.Without.Peak[meter.OnDevice].Total() - p.Peak[meter.OnDevice].Total()
		c.Reason = p.reason(c, d)
		p.Choices = append(p.Choices, c)
	}
	return p, nil
}

// decision is one part of a run, and the run without it.
type decision struct {
	name, value string
	plain       bool   // the same as without techniques
	instead     string // the alternative
	undone      Run
}

const microBatch = "micro-batch"

// decisions returns the decisions of r that have an alternative.
func (t Task) decisions(r Run) (list []decision) {
	add := func(name, value string, plain bool, instead string, undo func(u *Run)) {
		u := r
		undo(&u)
		list = append(list, decision{name, value, plain, instead, u})
	}
	add(microBatch, fmt.Sprintf("%d of %d, %d in a step", r.Micro, t.Batch, r.Window), r.Window == 1, "the batch at once", func(u *Run) {
		u.Micro, u.Window = t.Batch, 1
	})
	add("precision", r.Compute.String(), r.Compute == snug.F32, "f32 throughout", func(u *Run) { u.Compute = snug.F32 })
	if r.elem() == 2 && t.mastered(1) > 0 {
		add("master weights", r.Masters.String(), r.Masters == amp.FullMaster, "full master weights", func(u *Run) { u.Masters = amp.FullMaster })
	}
	if t.Rank > 0 {
		value := cmp.Or(t.FrozenBits(r), fmt.Sprintf("%d bits", r.Frozen))
		if all, floats := t.Model.matrices(); floats > 0 && r.quantized() {
			value += fmt.Sprintf(", %d matrices of %d in %s", floats, all, cmp.Or(r.Compute, snug.F32))
		}
		add("frozen weights", value, r.Frozen == 16, "frozen weights in 16 bits", func(u *Run) {
			if u.Frozen = 16; !t.Own {
				u.WeightsOn, u.LayersHeld = meter.OnDevice, 0
			}
		})
	}
	add("gradients", r.Gradients.String(), r.Gradients == SumF32, "gradients added up in f32", func(u *Run) { u.Gradients = SumF32 })
	if t.Ranks > 1 {
		add("sharding", r.Shard.String(), r.Shard == Replicate, "nothing divided among ranks", func(u *Run) { u.Shard = Replicate })
	}
	add("optimizer state", fmt.Sprintf("%d bits", r.StateBits), r.StateBits == 32, "state in 32 bits", func(u *Run) { u.StateBits = 32 })
	if t.tiles() {
		value := "whole"
		if r.Tiled {
			value = "tiled"
		}
		add("attention", value, !r.Tiled, "attention not in tiles", func(u *Run) { u.Tiled = false })
	}
	if t.canTile() && (r.Tiles > 1 || len(t.Tiles) > 1) {
		add("tiles", fmt.Sprintf("up to %d, in layers that can run in tiles of rows", max(1, r.Tiles)), r.Tiles <= 1, "no tiles of rows", func(u *Run) { u.Tiles = 1 })
	}
	extra := extraSteps(r.Remat)
	value := "keep all"
	if extra > 0 {
		value = fmt.Sprintf("%s, %d forward steps more for %d layers", r.Remat.Name, extra, r.Remat.Stages)
	}
	if slices.ContainsFunc(r.Remat.Ops, func(op remat.Op) bool { return op.Kind == remat.PageDisk }) {
		value += ", with checkpoints on disk"
	}
	add("rematerialization", value, extra == 0, "nothing computed again", func(u *Run) { u.Remat = remat.Plan{} })
	state := r.StateOn.String()
	if r.StateOn == meter.OnDisk {
		state += " with " + meter.FormatBytes(r.Cache) + " in memory"
	}
	on := fmt.Sprintf("state on %v, gradients on %v, weights on %v", state, r.GradientsOn, r.WeightsOn)
	if r.LayersHeld > 0 {
		on += fmt.Sprintf(" except %d layers of %d", r.LayersHeld, t.Model.stages())
	}
	add("placement", on, r.StateOn == meter.OnDevice && r.WeightsOn == meter.OnDevice, "all on the device", func(u *Run) {
		u.StateOn, u.GradientsOn, u.WeightsOn, u.LayersHeld, u.Cache = meter.OnDevice, meter.OnDevice, meter.OnDevice, 0, 0
	})
	return list
}

// extraSteps returns the number of forward steps of a plan beyond one for each stage.
func extraSteps(p remat.Plan) int {
	n := 0
	for _, op := range p.Ops {
		if op.Kind == remat.ForwardDiscard || op.Kind == remat.ForwardSave {
			n++
		}
	}
	return max(0, n-p.Stages)
}

// forwardsAgain returns them in passes through the chain.
func forwardsAgain(p remat.Plan) float64 { return float64(extraSteps(p)) / float64(max(1, p.Stages)) }

// reason gives the reason of a decision.
func (p Plan) reason(c Choice, d decision) string {
	slower := func() string {
		change := 100 * (c.Without.Seconds/p.Seconds - 1)
		switch {
		case change > 0.05:
			return fmt.Sprintf("a step would be %.1f %% slower without it", change)
		case change < -0.05:
			return fmt.Sprintf("a step would be %.1f %% faster without it", -change)
		}
		return "a step takes as long without it"
	}
	switch {
	case d.name == microBatch && p.Task.Micro > 0:
		return "it is given"
	case d.plain:
		return "it fits, and nothing else that fits is faster"
	case c.Fits:
		return "it would fit without it; " + slower()
	case c.Without.Peak[meter.OnDevice].Total() > p.Limit:
		return "it does not fit without it; " + slower()
	}
	return "without it " + p.excess(c.Without.Peak) + "; " + slower()
}

// excess says which tier holds more bytes than its limit. It is "" if all tiers fit.
func (p Plan) excess(u meter.Usage) string {
	for tier, limit := range p.Task.limits(p.Limit) {
		if n := u[tier].Total(); n > limit {
			return fmt.Sprintf("the %v would hold %s of %s", meter.Tier(tier), meter.FormatBytesUp(n), meter.FormatBytes(limit))
		}
	}
	return ""
}

// limits returns the bytes that each tier may hold under a limit of the device.
func (t Task) limits(limit int64) [meter.Tiers]int64 {
	return [meter.Tiers]int64{meter.OnDevice: limit, meter.OnHost: t.Device.Host, meter.OnDisk: t.Device.Disk}
}

// reasons returns a line for each choice: its value, the bytes that it saves, and its
// reason.
func (p Plan) reasons() []string {
	var lines []string
	for _, c := range p.Choices {
		saves := ""
		switch {
		case c.Saves > 0:
			saves = ", saves " + meter.FormatBytes(c.Saves)
		case c.Saves < 0:
			saves = ", takes " + meter.FormatBytes(-c.Saves) + " more"
		}
		lines = append(lines, fmt.Sprintf("%s: %s%s: %s", c.Name, c.Value, saves, c.Reason))
	}
	return lines
}
