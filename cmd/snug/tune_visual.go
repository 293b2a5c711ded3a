package main

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime/debug"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/internal/console"
	"github.com/snug-ml/snug/internal/files"
	"github.com/snug-ml/snug/layers"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/train"
	"github.com/snug-ml/snug/transformer"
)

// lesson is what a run on images teaches a model: its data, its loss and what measures it. read is called first.
type lesson interface {
	read(ctx context.Context, shown func(what string, n, of int)) error
	lines() []string                          // what the data has
	samples() *order                          // the numbers of samples, to train on and held out
	about() map[string]any                    // what a checkpoint is bound to besides the flags of every run
	sum() [sha256.Size]byte                   // of the data
	task(t *plan.Task) error                  // sets Model, and Compute
	beside(micro int) int64                   // bytes that a micro-batch of this many samples takes in addition to those of the plan
	ahead() int64                             // bytes that are taken before there is a model
	prepare() (clean func() error, err error) // what is computed before there is a model
	open(p plan.Plan, m *meter.Monitor) (learns train.Model[picked], err error)
	score() (mean float64, name string) // of the samples that were evaluated since the last call; NaN for none
	save(dir string) error
	use(dir string) string // how to use the result
	close() error
}

// visual is a run on images. Of tuning it has the flags, the plan and the process.
type visual struct {
	tuning
	lesson  lesson
	monitor *meter.Monitor
	trainer *train.Trainer[picked]
	result  visualResult
}

// visualResult is what a run on images found, as -json prints it.
type visualResult struct {
	Model      string   `json:"model"`
	State      string   `json:"state"` // as of other runs
	Error      string   `json:"error,omitempty"`
	Samples    int      `json:"samples"`
	HeldOut    int      `json:"held_out"`
	Steps      int      `json:"steps"`
	Done       int      `json:"steps_done"`
	Seconds    float64  `json:"seconds"`
	Skipped    int      `json:"steps_skipped"`
	LossFirst  float64  `json:"held_out_loss_first,omitempty"`
	LossLast   float64  `json:"held_out_loss_last,omitempty"`
	Score      string   `json:"score,omitempty"` // what the next two are: accuracy, or IoU
	ScoreFirst *float64 `json:"held_out_score_first,omitempty"`
	ScoreLast  *float64 `json:"held_out_score_last,omitempty"`
	Loss       *float64 `json:"loss"` // of the last step, null if it is not finite
	Predicted  int64    `json:"predicted_peak_bytes"`
	Measured   int64    `json:"measured_peak_bytes"`
	Resident   int64    `json:"predicted_rss_bytes"`
	PeakRSS    int64    `json:"peak_rss_bytes"`
}

// imagesGCPercent is gcPercent where each micro-batch leaves images behind. What is held has few pointers, so that a collection takes little time.
const imagesGCPercent = 5

// newVisual returns the run of a command line.
func newVisual(c *call, f *tuneFlags) *visual {
	v := &visual{tuning: tuning{tuneFlags: *f, call: c, material: &material{}}}
	v.lesson = f.subject.new(v)
	return v
}

func (v *visual) run() (err error) {
	onScreen := *v.call
	onScreen.stderr = console.OnScreen(v.call.stderr)
	v.call = &onScreen
	stop, forget := console.OnSignals(console.Options{Name: "snug", Stderr: v.call.stderr, Advice: "a run with -checkpoint goes on from its last checkpoint"})
	defer forget()
	v.stop = stop
	defer func() { err = errors.Join(err, v.lesson.close()) }()
	if err := v.gather(); err != nil {
		return err
	}
	v.process, v.heap = plan.ThisProcess(), heapBytes()
	if err := v.openCheckpoints(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, v.folder.Close()) }()
	noteLinks(v.call.stderr, v.dir)
	v.describe()
	if err := v.choosePlan(); err != nil {
		return err
	}
	if err := v.plan.WriteTable(v.call.stdout); err != nil {
		return err
	}
	fmt.Fprintf(v.call.stdout, "\nimages: beside the plan above, for what is decoded and processed of a micro-batch, at most %s\n", meter.FormatBytesUp(v.images))
	if limit := v.memory; limit > 0 && v.process.Base+v.encoding > limit {
		return usagef("tune: -memory %s: what comes before the first step takes about %s, beside %s of the process", meter.FormatBytes(limit), meter.FormatBytesUp(v.encoding), meter.FormatBytes(v.process.Base))
	}
	warning, err := checkCgroup(cgroupLimit(os.DirFS("/")), v.memory, v.resident())
	if err != nil {
		return err
	}
	if warning != "" {
		fmt.Fprintf(v.call.stderr, "snug: tune: %s\n", warning)
	}
	if v.dryRun {
		return v.reportDry()
	}
	return v.learn()
}

// gather reads the data.
func (v *visual) gather() error {
	shown, done := showReading(v.call.stderr)
	defer done()
	if v.memory > 0 {
		p, heap := plan.ThisProcess(), heapBytes()
		defer debug.SetMemoryLimit(debug.SetMemoryLimit(v.memory - (p.Base - heap) - codeBytes))
	}
	err := v.lesson.read(v.stop.Now, func(what string, n, of int) { shown(what, int64(n), int64(of)) })
	if v.stop.Asked() {
		return errors.Join(console.Interruption{Text: "interrupted before the first step: nothing is saved", Status: v.stop.Status()})
	}
	if err != nil {
		return usageError{err}
	}
	o := v.lesson.samples()
	if o.len() == 0 {
		return usagef("tune: -held-out %v leaves no sample to train on", v.held)
	}
	if v.modelSums.weights, err = transformer.ChecksumWeights(v.dir); err != nil {
		return usageError{err}
	}
	text, err := files.ReadInput(filepath.Join(v.dir, "config.json"), files.Description)
	if err != nil {
		return usageError{err}
	}
	if v.modelSums.processor, err = processorChecksum(v.dir); err != nil {
		return usageError{err}
	}
	v.modelSums.config, v.material.sum = fmt.Sprintf("%x", sha256.Sum256(text)), v.lesson.sum()
	return nil
}

// describe prints what the data has.
func (v *visual) describe() {
	o := v.lesson.samples()
	fmt.Fprintf(v.call.stdout, "data: %s to train on and %d held out\n", console.Count(o.len(), "sample"), len(o.held))
	for _, line := range v.lesson.lines() {
		fmt.Fprintf(v.call.stdout, "      %s\n", escaped(line))
	}
	fmt.Fprintln(v.call.stdout)
}

// stepsOf returns how many steps the run has.
func (v *visual) stepsOf() int {
	if v.steps > 0 {
		return v.steps
	}
	samples := int64(max(1, v.epochs)) * int64(v.lesson.samples().len())
	return int(min((samples+int64(v.batch)-1)/int64(v.batch), math.MaxInt32))
}

// bound describes the run, for its checkpoints.
func (v *visual) bound() map[string]any {
	about := v.lesson.about()
	for name, x := range map[string]any{
		configSum: v.modelSums.config, weightsSum: v.modelSums.weights, processorSum: v.modelSums.processor, "data": fmt.Sprintf("%x", v.material.sum), "batch": v.batch, "steps": v.stepsOf(), "lr": v.rate,
		"compute": v.compute, "seed": v.seed, "held-out": v.held, "optimizer": v.optimizer, "masters": v.masters,
	} {
		about[name] = x
	}
	return about
}

// openCheckpoints opens the folder of checkpoints, and reads the choices in the newest one.
func (v *visual) openCheckpoints() (err error) {
	if v.checkpoint == "" || v.dryRun {
		return nil
	}
	if v.folder, err = train.OpenFolder(v.checkpoint, 0); err != nil {
		return err
	}
	step, notes, path := v.folder.Newest()
	if step == 0 {
		return nil
	}
	if err := v.folder.Matches(v.bound()); err != nil {
		return err
	}
	if err := json.Unmarshal(notes, &v.begun); err != nil || v.begun == nil {
		return fmt.Errorf("%s: the notes are not of a run of tune: %w", path, snug.ErrCorrupt)
	}
	return nil
}

// choosePlan finds the fastest plan whose process stays within the memory.
func (v *visual) choosePlan() error {
	task := plan.Task{Batch: v.batch, Optimizer: v.optimizer, Device: processor(0)}
	if err := v.lesson.task(&task); err != nil {
		return usageError{err}
	}
	if form, err := named(masterForms...)(v.masters); err == nil {
		task.Masters = []amp.MasterForm{form}
	}
	task.Model.Name = folderName(v.dir, task.Model.Name)
	tasks := gentlest(task, false)
	if v.begun != nil {
		tasks = []plan.Task{v.begun.bind(task)}
	}
	base := v.process.Base
	defer func() { v.process.Base = base }()
	p, extra, err := fitImages(v.lesson.beside, v.batch, func(extra int64) (plan.Plan, error) {
		v.process.Base = base + extra
		return fitProcess("tune", tasks, v.memory, v.process)
	})
	v.plan, v.images, v.encoding = p, extra, v.lesson.ahead()
	return err
}

// reportDry ends a dry run.
func (v *visual) reportDry() error {
	if !v.json {
		return nil
	}
	out := planReport(v.plan)
	if out.Process = v.resident(); v.memory == 0 {
		out.Limit = 0
	}
	return writeLine(v.call.stdout, out)
}

// learn trains and saves.
func (v *visual) learn() (err error) {
	out, err := takeOutput(v.output)
	if err != nil {
		return usagef("tune: -o: %w", err)
	}
	defer func() { err = errors.Join(err, out.drop()) }()
	out.note(v.call.stderr)
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(v.heapLimit()))
	defer debug.SetGCPercent(debug.SetGCPercent(imagesGCPercent))
	clean, err := v.lesson.prepare()
	defer func() { err = errors.Join(err, clean()) }()
	if err != nil {
		return err
	}
	err = v.openTrainer()
	defer func() {
		if v.trainer != nil {
			err = errors.Join(err, v.trainer.Close())
		}
	}()
	if err != nil {
		return err
	}
	if err := checkRoom("tune", v.visualRooms(), files.SpaceOf); err != nil {
		return err
	}
	err = v.teach()
	if err == nil {
		err = v.waitForRoom(func() error {
			if err := v.trainer.Average(); err != nil {
				return err
			}
			return v.lesson.save(v.output)
		}, roomEvery)
	}
	if err == nil {
		err = out.finish()
	}
	return errors.Join(err, v.reportEnd(err))
}

// visualRooms returns what the run will write. There is a trainer.
func (v *visual) visualRooms() []room {
	m := v.plan.Task.Model
	trained := m.Parameters() * 4
	list := []room{{"the model", v.output, (m.Parameters() + m.Frozen) * int64(max(2, v.plan.Run.Compute.Size()))}}
	if v.checkpoint != "" {
		held := v.trainer.Bytes()
		there, _ := filepath.Glob(filepath.Join(v.checkpoint, "step-*"))
		list = append(list, room{"checkpoints", v.checkpoint, int64(max(1, keptCheckpoints-len(there))) * (trained + held[meter.Masters] + held[meter.State])})
	}
	return list
}

// openTrainer opens the model and makes its trainer.
func (v *visual) openTrainer() (err error) {
	if v.monitor, err = meter.New(meter.Options{}); err != nil {
		return err
	}
	model, err := v.lesson.open(v.plan, v.monitor)
	if err != nil {
		return err
	}
	o := train.Options{
		Optimizer: v.setting().Rule, Clip: clipNorm, Seed: v.seed, Schedule: v.schedule(v.stepsOf()), SkipNonFinite: v.plan.Run.Gradients != plan.Folded,
		Monitor: v.monitor, Checkpoints: train.Checkpoints{About: v.bound()},
	}
	if v.traits().ForwardOnly {
		o.Clip = 0
	}
	if v.checkpoint != "" {
		o.Folder, o.SaveEvery = v.folder, v.saveEvery
	}
	if err := v.plan.Apply(&o); err != nil {
		return err
	}
	if v.trainer, err = train.New(model, o); err != nil {
		return err
	}
	v.trainer.SetNotes(choicesOf(v.plan))
	return v.trainer.SplitBy(func(b picked) (first, second picked, ok bool) {
		n := len(b.samples)
		return picked{b.samples[:n/2], b.step, b.held}, picked{b.samples[n/2:], b.step, b.held}, n > 1
	})
}

// teach makes the steps.
func (v *visual) teach() error {
	r, steps, o := &v.result, v.stepsOf(), v.lesson.samples()
	if begun := v.trainer.Step(); begun > 0 {
		fmt.Fprintf(v.call.stdout, "\ngoing on from step %d of %d\n", begun, steps)
	}
	fmt.Fprintln(v.call.stdout)
	progress := console.NewProgress(v.call.stdout, v.call.stderr, steps)
	progress.Unit = "samples"
	progress.Memory = func() (meter.Bytes, int64) { return v.peaked(), counted(v.plan.Limit) }
	did, err := console.Training[picked]{
		Trainer: v.trainer, Steps: steps, Saves: v.checkpoint != "", Stop: v.stop, Progress: progress,
		Batches:   func(step int) ([]picked, error) { return o.batches(step, v.batch, v.plan.Run.Micro), nil },
		Tokens:    func(b picked) int { return len(b.samples) },
		HeldOut:   o.heldOut(max(1, v.plan.Run.Micro)),
		EvalEvery: v.evalEvery,
		Evaluated: func(step int, loss float64) { v.evaluated(step) },
		After:     func(train.Report) (string, error) { return meter.FormatBytes(v.peaked().Total()), nil },
	}.Run()
	r.Seconds, r.Skipped, r.LossFirst, r.LossLast, r.Done = did.Seconds, did.Skipped, did.First, did.Last, v.trainer.Step()
	if did.Loss-did.Loss == 0 {
		r.Loss = &did.Loss
	}
	var lost console.Diverged
	if errors.As(err, &lost) {
		return fmt.Errorf("tune: %w: nothing is written to %s; try a lower -lr than %v", err, v.output, v.rate)
	}
	return err
}

// evaluated takes up what an evaluation has measured.
func (v *visual) evaluated(step int) {
	mean, name := v.lesson.score()
	if math.IsNaN(mean) {
		return
	}
	v.result.Score = name
	if step == 0 {
		v.result.ScoreFirst = &mean
	}
	v.result.ScoreLast = &mean
	fmt.Fprintf(v.call.stdout, "%s on held-out samples after step %d: %.4f\n", name, step, mean)
}

// peaked returns the peaks of all components.
func (v *visual) peaked() meter.Bytes {
	_, peak := v.monitor.Held()
	return peak[meter.OnDevice]
}

// reportEnd prints the memory, the speed and what was measured, and the line of -json, of a run that has ended with an error or nil.
func (v *visual) reportEnd(failed error) error {
	r, o := &v.result, v.lesson.samples()
	_, r.PeakRSS = meter.Resident()
	predicted := v.plan.Peak[meter.OnDevice]
	predicted[meter.Allowance] = 0
	peak := console.Peak{Predicted: predicted, Measured: v.peaked(), Total: v.peaked().Total(), Resident: v.resident(), RSS: r.PeakRSS}
	r.Model, r.Samples, r.HeldOut, r.Steps = v.dir, o.len(), len(o.held), v.stepsOf()
	r.Predicted, r.Measured, r.Resident = predicted.Total(), peak.Total, peak.Resident
	w := v.call.stdout
	if failed == nil {
		if err := peak.Write(w, meter.FormatBytes, false); err != nil {
			return err
		}
		if r.Seconds > 0 {
			fmt.Fprintf(w, "\n%s in %.0f s\n", console.Count(r.Steps, "step"), r.Seconds)
		}
		if r.LossLast > 0 {
			fmt.Fprintf(w, "loss on held-out samples: %.4f before, %.4f after\n", r.LossFirst, r.LossLast)
		}
		fmt.Fprintln(w, v.lesson.use(shellQuote(v.output)))
	}
	if !v.json {
		return nil
	}
	r.State = stateOf(failed)
	if failed != nil {
		r.Error = oneLine(failed, v.call.args...)
	}
	return writeLine(w, r)
}

// layerOptions returns the options of layers of a plan.
func (v *visual) layerOptions(p plan.Plan, m *meter.Monitor) layers.Options {
	return layers.Options{DType: p.Run.Compute, Seed: v.seed, Monitor: m}
}
