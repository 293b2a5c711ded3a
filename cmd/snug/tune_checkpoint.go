package main

import (
	"cmp"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/train"
)

// choices are the choices of a plan that change the bits of a run. Two processes with the same command line can have
// different free memory and so different plans. A process that resumes a run is therefore bound to the choices of the
// first one.
type choices struct {
	Micro     int            `json:"micro"`
	Masters   amp.MasterForm `json:"masters"`
	Gradients plan.Gradient  `json:"gradients"`
	StateBits int            `json:"state_bits"`
	Frozen    int            `json:"frozen"`
	Tiles     int            `json:"tiles,omitempty"` // 0 stands for 1, in runs without tiles
	Ranks     int            `json:"ranks,omitempty"` // more than one, which divide what Shard says
	Shard     plan.Sharding  `json:"shard,omitempty"`
	LossRows  int            `json:"loss_rows,omitempty"` // 0 stands for 128, in runs that do not name them
}

func choicesOf(p plan.Plan) choices {
	r := p.Run
	c := choices{r.Micro, r.Masters, r.Gradients, r.StateBits, r.Frozen, r.Tiles, 0, r.Shard, p.Task.LossRows}
	if p.Task.Ranks > 1 {
		c.Ranks = p.Task.Ranks
	}
	return c
}

// bind returns the task restricted to these choices.
func (c *choices) bind(t plan.Task) plan.Task {
	// With more ranks than before each has fewer samples.
	t.Micro, t.Masters, t.Gradients, t.StateBits = min(c.Micro, t.Batch), []amp.MasterForm{c.Masters}, []plan.Gradient{c.Gradients}, []int{c.StateBits}
	t.Tiles = []int{max(1, c.Tiles)}
	t.LossRows = cmp.Or(c.LossRows, 128)
	if t.Rank > 0 {
		t.Frozen = []int{c.Frozen}
	}
	if c.Ranks > 1 && c.Ranks == t.Ranks { // other numbers of ranks have other bits anyway
		t.Shard = []plan.Sharding{c.Shard}
	}
	return t
}

// openFolder opens the folder of checkpoints, and reads the choices in the newest one. A dry run opens no folder, and of several ranks only rank 0 does.
func (t *tuning) openFolder() (err error) {
	if t.checkpoint == "" || t.dryRun || t.follows() {
		return nil
	}
	if t.folder, err = train.OpenFolder(t.checkpoint, 0); err != nil {
		return err
	}
	step, notes, path := t.folder.Newest()
	if step == 0 {
		return nil
	}
	var saved map[string]any
	readable := json.Unmarshal(t.folder.About(), &saved) == nil
	if text, ok := saved[timeOfTemplate].(string); ok {
		if err := t.setChatTime(text); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	if err := t.folder.Matches(t.about()); err != nil {
		if readable && saved[weightsSum] == nil {
			return fmt.Errorf("%s is of a version of snug that did not bind a run to the weights of its model: end the run with that version, or begin it anew with another -checkpoint: %w",
				path, snug.ErrConfig)
		}
		return err
	}
	if err := json.Unmarshal(notes, &t.begun); err != nil || t.begun == nil {
		return fmt.Errorf("%s: the notes are not of a run of tune: %w", path, snug.ErrCorrupt)
	}
	return nil
}

// The names under which a checkpoint has the checksums of the model. Its path may change.
const configSum, weightsSum = "checksum of config.json", "checksum of the weights"

// The name under which a checkpoint has the time that its first process gave the chat template. A process that goes on
// gives it the same, so that the text of the data does not change.
const timeOfTemplate = "time of the chat template"

// about describes the run, for its checkpoints.
func (t *tuning) about() map[string]any {
	about := map[string]any{
		configSum: t.modelSums.config, weightsSum: t.modelSums.weights, "data": hex.EncodeToString(t.sum[:]), "batch": t.batch, "steps": t.stepCount(), "full": t.full,
		"lr": t.rate, "alpha": t.alpha, "rank": t.rank, "base": t.form, "compute": t.compute, "seed": t.seed,
		"rslora": t.rslora, "dora": t.kind().dora, "dropout": t.dropout,
	}
	for name, x := range map[string]float64{"label-smoothing": t.smoothing, "z-loss": t.zLoss, "dpo": t.beta, "loraplus-ratio": t.loraplus} {
		if x != 0 { // otherwise the checkpoint does not name it
			about[name] = x
		}
	}
	if text := t.chatTime(); text != "" {
		about[timeOfTemplate] = text
	}
	if t.modules != "" {
		about["modules-to-save"] = t.modules
	}
	if k := t.kind(); k.name != adapterKinds[0].name && !k.dora {
		about["adapter"] = k.name
	}
	if t.seesImages() {
		about["train"], about["features-bits"], about[processorSum] = strings.Join(t.trains, ","), t.featureBits, t.modelSums.processor
	}
	if f := t.teacher; f.dir != "" {
		about["teacher-base"], about["distill-weight"], about["distill-temperature"] = f.base, f.share, f.temperature
		about[configSum+" of the teacher"], about[weightsSum+" of the teacher"] = t.teacherSums.config, t.teacherSums.weights
	}
	if t.fold {
		about["fold"] = true
	}
	if t.masters != "" {
		about["masters"] = t.masters
	}
	if name := t.namedOptimizer(); name != "" {
		about["optimizer"] = name
	}
	if text := t.tilesText(); text != "" {
		about["tiles"] = text
	}
	return about
}
