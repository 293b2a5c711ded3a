package main

import (
	"errors"
	"fmt"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/checkpoint"
	"github.com/snug-ml/snug/internal/strictjson"
	"github.com/snug-ml/snug/internal/text"
	"github.com/snug-ml/snug/train"
)

// about describes a run. A process that resumes the run must have the same description.
type about struct {
	Preset     string   `json:"preset"`
	Seed       uint64   `json:"seed"`
	Policy     string   `json:"policy"`
	Techniques []string `json:"techniques"`
	Text       string   `json:"text"`                // SHA-256 of the tokens
	MicroBatch int      `json:"micro_batch"`         // micro-batch that -memory found; 0 without -memory
	Optimizer  string   `json:"optimizer,omitempty"` // unless it is adamw
	LossRows   int      `json:"loss_rows,omitempty"` // unless they are the preset's
}

func (c config) about(data *text.Corpus) about {
	a := about{c.name, c.seed, c.policy.String(), c.on.names(), data.Sum(), c.fit.Micro, c.rule, 0}
	if p, err := presetNamed(c.name); err == nil && p.lossRows != c.lossRows {
		a.LossRows = c.lossRows
	}
	if c.rule == "adamw" { // as in checkpoints from before there were others
		a.Optimizer = ""
	}
	return a
}

// notes are what a checkpoint says of its run in addition to about.
type notes struct {
	Steps     []int   `json:"steps"`      // last steps of the run: before each extension, and at the end
	LossFirst float64 `json:"loss_first"` // loss on held-out text before training
}

// maxExtensions is the maximum number of extensions of a run.
const maxExtensions = 1000

// openCheckpoints opens the folder of checkpoints, which it makes if it is missing, and verifies the newest checkpoint,
// which may say how many steps the run has. It returns nil if the user named no folder, and on all ranks but the first.
func openCheckpoints(o *options) (f *train.Folder, err error) {
	if o.checkpoint == "" {
		return nil, nil
	}
	if o.rank() == 0 {
		if f, err = openFolder(o); err != nil {
			return nil, err
		}
	}
	if o.reducer != nil {
		err = o.shareNotes()
	}
	return f, err
}

// shareNotes gives the other ranks what rank 0 has read about the run.
func (o *options) shareNotes() error {
	const most = maxExtensions + 3
	numbers := make([]float64, most) // of rank 0; the others add 0
	if o.rank() == 0 {
		numbers[0], numbers[1], numbers[2] = o.first, float64(o.steps), float64(len(o.ends))
		for i, e := range o.ends {
			numbers[3+i] = float64(e)
		}
	}
	if err := o.reducer.Sum(numbers); err != nil {
		return err
	}
	o.first, o.steps, o.ends = numbers[0], int(numbers[1]), nil
	for _, e := range numbers[3 : 3+int(numbers[2])] {
		o.ends = append(o.ends, int(e))
	}
	return nil
}

// openFolder is openCheckpoints for the rank that owns the folder.
func openFolder(o *options) (*train.Folder, error) {
	f, err := train.OpenFolder(o.checkpoint, o.keep)
	if err != nil {
		return nil, err
	}
	step, text, path := f.Newest()
	if text == nil {
		return f, nil
	}
	n, err := parseNotes(step, text)
	if err != nil {
		err = fmt.Errorf("the checkpoint %s: %w", path, err)
	} else if err = o.extend(n, step); err == nil {
		return f, nil
	}
	return nil, errors.Join(err, f.Close())
}

// parseNotes reads and checks the notes of a checkpoint.
func parseNotes(step int, text []byte) (n notes, err error) {
	if err := (strictjson.Options{Complete: true}).Unmarshal(text, &n); err != nil {
		return n, fmt.Errorf("%w: %w", err, snug.ErrCorrupt)
	}
	last := 0
	for _, s := range n.Steps {
		if s <= last || s > checkpoint.MaxStep {
			return n, fmt.Errorf("steps %v, want ascending ones from 1 to %d: %w", n.Steps, checkpoint.MaxStep, snug.ErrCorrupt)
		}
		last = s
	}
	if len(n.Steps) == 0 || len(n.Steps) > maxExtensions || step > last {
		return n, fmt.Errorf("step %d of a run with %d ends, the last at %d: %w", step, len(n.Steps), last, snug.ErrCorrupt)
	}
	return n, nil
}

// extend sets the number of steps of a resumed run: the newest checkpoint's, unless the
// caller asks for more. A larger number adds an end to the run, see [config.learningRate].
func (o *options) extend(n notes, step int) error {
	ends := n.Steps
	last := ends[len(ends)-1]
	o.first = n.LossFirst
	switch {
	case !o.stepsGiven || o.steps == last:
		o.ends, o.steps = slices.Clip(ends[:len(ends)-1]), last
	case o.steps < last:
		return fmt.Errorf("-steps %d: the run in %s has %d steps and %d are done; want %d or more", o.steps, o.checkpoint, last, step, last)
	case len(ends) == maxExtensions:
		return fmt.Errorf("-steps %d: the run in %s was extended %d times, which is as often as can be", o.steps, o.checkpoint, maxExtensions-1)
	default:
		o.ends = ends
	}
	return nil
}
