package main

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/internal/checkpoint"
	"github.com/snug-ml/snug/internal/strictjson"
)

// checkpoints is the folder in which a run is saved, which this process owns until it is
// closed. The parts of a checkpoint are
//
//	weights     master weights, or the float32 weights themselves
//	optimizer
//	scaler      with mixed precision
type checkpoints struct {
	folder *checkpoint.Folder // nil: off
	about  *about             // of the newest checkpoint, nil if there is none
	step   int                // of the newest checkpoint
}

// about is what a checkpoint says of its run. All but Steps and LossFirst must be equal in
// a process that goes on with it.
type about struct {
	Preset     string   `json:"preset"`
	Steps      []int    `json:"steps"` // at the end of the run, after the ends before it was extended
	Seed       uint64   `json:"seed"`
	Policy     string   `json:"policy"`
	Techniques []string `json:"techniques"`
	Text       string   `json:"text"`        // SHA-256 of the tokens
	MicroBatch int      `json:"micro_batch"` // that was found with -memory; 0 without
	LossFirst  float64  `json:"loss_first"`  // on held-out text before training
}

// Limits of what a checkpoint may say.
const (
	maxExtensions = 1000
	maxMicroBatch = 1 << 20
	maxScaler     = 1 << 16 // bytes
)

// openCheckpoints makes this process the owner of the folder of checkpoints, which is made
// if it is not there, and checks the newest checkpoint. Without a folder they are off.
func openCheckpoints(o options) (*checkpoints, error) {
	c := new(checkpoints)
	if o.checkpoint == "" {
		return c, nil
	}
	var err error
	if c.folder, err = checkpoint.OpenPath(o.checkpoint, checkpoint.Options{Keep: o.keep}); err != nil {
		return nil, err
	}
	if found := c.folder.Newest(); found != nil {
		c.step = found.Step
		if c.about, err = parseAbout(found); err != nil {
			return nil, errors.Join(fmt.Errorf("the checkpoint %s: %w", found.Path(), err), c.folder.Close())
		}
	}
	return c, nil
}

func (c *checkpoints) on() bool { return c.folder != nil }

// Close gives the folder up.
func (c *checkpoints) Close() error {
	if !c.on() {
		return nil
	}
	return c.folder.Close()
}

// parseAbout reads and checks what a checkpoint says of its run.
func parseAbout(c *checkpoint.Checkpoint) (*about, error) {
	a := new(about)
	if err := (strictjson.Options{Complete: true}).Unmarshal(c.About, a); err != nil {
		return nil, fmt.Errorf("%w: %w", err, snug.ErrCorrupt)
	}
	last := 0
	for _, n := range a.Steps {
		if n <= last || n > checkpoint.MaxStep {
			return nil, fmt.Errorf("steps %v, want ascending ones from 1 to %d: %w", a.Steps, checkpoint.MaxStep, snug.ErrCorrupt)
		}
		last = n
	}
	_, unknownPreset := presetNamed(a.Preset)
	_, unknownType := amp.ParsePolicy(a.Policy)
	_, unknownTechnique := allTechniques().without(strings.Join(a.Techniques, ","))
	text, err := hex.DecodeString(a.Text)
	switch {
	case len(a.Steps) == 0 || len(a.Steps) > maxExtensions:
		err = fmt.Errorf("%d ends of the run, want 1 to %d", len(a.Steps), maxExtensions)
	case c.Step > last:
		err = fmt.Errorf("step %d of a run of %d", c.Step, last)
	case err != nil || len(text) != sha256.Size:
		err = fmt.Errorf("text %.100q, want a SHA-256", a.Text)
	case a.MicroBatch < 0 || a.MicroBatch > maxMicroBatch:
		err = fmt.Errorf("micro-batches of %d", a.MicroBatch)
	default:
		err = errors.Join(unknownPreset, unknownType, unknownTechnique)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", err, snug.ErrCorrupt)
	}
	return a, nil
}

// aboutOf returns the description of a run of c on data, before its first step.
func aboutOf(c config, data *corpus) about {
	sum := sha256.New()
	for _, tokens := range [][]uint16{data.train, data.held} {
		b := binary.LittleEndian.AppendUint64(nil, uint64(len(tokens)))
		for _, t := range tokens {
			b = binary.LittleEndian.AppendUint16(b, t)
			if len(b) >= 1<<12 {
				sum.Write(b)
				b = b[:0]
			}
		}
		sum.Write(b)
	}
	return about{
		Preset: c.name, Steps: append(slices.Clone(c.ends), c.steps), Seed: c.seed, Policy: c.policy.String(),
		Techniques: c.on.names(), Text: hex.EncodeToString(sum.Sum(nil)), MicroBatch: c.fit.Micro,
	}
}

// extend sets the number of steps of a resumed run: the newest checkpoint's, unless the
// caller asks for more. A larger number adds an end to the run, see [config.learningRate].
func (c *checkpoints) extend(o *options) error {
	if c.about == nil {
		return nil
	}
	ends := c.about.Steps
	last := ends[len(ends)-1]
	switch {
	case !o.stepsGiven || o.steps == last:
		o.ends, o.steps = ends[:len(ends)-1], last
	case o.steps < last:
		return fmt.Errorf("-steps %d: the run in %s has %d steps and %d are done; want %d or more", o.steps, o.checkpoint, last, c.step, last)
	case len(ends) == maxExtensions:
		return fmt.Errorf("-steps %d: the run in %s was extended %d times, which is as often as can be", o.steps, o.checkpoint, maxExtensions-1)
	default:
		o.ends = ends
	}
	return nil
}

// matches returns an error when the newest checkpoint is of another run.
func (c *checkpoints) matches(conf config, data *corpus) error {
	if c.about == nil {
		return nil
	}
	want, got := aboutOf(conf, data), *c.about
	var differ []string
	note := func(what string, got, want any) {
		if fmt.Sprint(got) != fmt.Sprint(want) {
			differ = append(differ, fmt.Sprintf("%s %v, not %v", what, got, want))
		}
	}
	note("preset", got.Preset, want.Preset)
	note("seed", got.Seed, want.Seed)
	note("policy", got.Policy, want.Policy)
	note("techniques", got.Techniques, want.Techniques)
	note("text with SHA-256", got.Text, want.Text)
	note("micro-batch", got.MicroBatch, want.MicroBatch)
	if differ == nil {
		return nil
	}
	return fmt.Errorf("the checkpoint %s is of another run: %s", c.folder.Newest().Path(), strings.Join(differ, "; "))
}

// restore brings a trainer without parameters to the state of the newest checkpoint.
func (c *checkpoints) restore(t *trainer) error {
	found := c.folder.Newest()
	var names []string
	for _, p := range found.Parts {
		names = append(names, p.Name)
	}
	if want := t.partNames(); !slices.Equal(names, want) {
		return inputError{fmt.Errorf("the checkpoint %s has the parts %v, want %v: %w", found.Path(), names, want, snug.ErrCorrupt)}
	}
	for _, name := range names {
		if err := found.Read(name, func(r io.Reader) error { return t.readPart(name, r) }); err != nil {
			return inputError{fmt.Errorf("the checkpoint cannot be restored: %w", err)}
		}
	}
	t.step, t.first = found.Step, c.about.LossFirst
	return nil
}

// save writes a checkpoint, unless the newest one is of this step. It ends when ctx does,
// and leaves the ones that are there.
func (c *checkpoints) save(ctx context.Context, t *trainer) error {
	if !c.on() || t.step == c.step {
		return nil
	}
	a := aboutOf(t.config, t.data)
	a.LossFirst = t.first
	var parts []checkpoint.Part
	for _, name := range t.partNames() {
		parts = append(parts, checkpoint.Part{Name: name, Write: func(w io.Writer) error {
			return t.writePart(name, untilDone{ctx, w})
		}})
	}
	if err := c.folder.Save(t.step, a, parts); err != nil {
		return fmt.Errorf("save a checkpoint at step %d: %w", t.step, err)
	}
	c.step = t.step
	return nil
}

// untilDone writes until its context ends.
type untilDone struct {
	ctx context.Context
	w   io.Writer
}

func (u untilDone) Write(b []byte) (int, error) {
	if err := u.ctx.Err(); err != nil {
		return 0, err
	}
	return u.w.Write(b)
}

func (t *trainer) partNames() []string {
	if t.master == nil {
		return []string{"weights", "optimizer"}
	}
	return []string{"weights", "optimizer", "scaler"}
}

func (t *trainer) writePart(name string, w io.Writer) error {
	var err error
	switch {
	case name == "optimizer":
		_, err = t.opt.WriteTo(w)
	case name == "scaler":
		var b []byte
		if b, err = t.scaler.AppendBinary(nil); err == nil {
			_, err = w.Write(b)
		}
	case t.master != nil:
		_, err = t.master.WriteTo(w)
	default:
		for _, p := range t.params {
			x := make([]float32, p.len())
			if err = snug.Copy(x, p.value); err != nil {
				break
			}
			if err = writeFloats(w, x); err != nil {
				break
			}
		}
	}
	return err
}

func (t *trainer) readPart(name string, r io.Reader) error {
	switch {
	case name == "optimizer":
		_, err := t.opt.ReadFrom(r)
		return err
	case name == "scaler" && t.scaler != nil:
		b, err := io.ReadAll(io.LimitReader(r, maxScaler))
		if err != nil {
			return err
		}
		return t.scaler.UnmarshalBinary(b)
	case name == "weights" && t.master != nil:
		if _, err := t.master.ReadFrom(r); err != nil {
			return err
		}
		for _, p := range t.params {
			if err := t.master.Copy(p.name, p.value); err != nil {
				return err
			}
		}
		return nil
	case name == "weights":
		for _, p := range t.params {
			x := make([]float32, p.len())
			if err := readFloats(r, x); err != nil {
				return err
			}
			if err := snug.Copy(p.value, x); err != nil {
				return err
			}
		}
		return nil
	}
	return fmt.Errorf("an unknown part: %w", snug.ErrCorrupt)
}
