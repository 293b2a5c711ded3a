package main

import (
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/accum"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/dataset"
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/internal/console"
	"github.com/snug-ml/snug/internal/files"
	"github.com/snug-ml/snug/internal/report"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/offload"
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/qlora"
	"github.com/snug-ml/snug/train"
	"github.com/snug-ml/snug/transformer"
)

// tuning is a running snug tune.
type tuning struct {
	tuneFlags
	*material
	call    *call
	stop    console.Stop
	plan    plan.Plan
	process plan.Process // before there is a model
	heap    int64        // the part of process.Base that is Go's memory
	dev     *snug.Device
	store   *offload.Store

	checkpoints *offload.Store // of activations

	folder *train.Folder // of checkpoints, nil without them
	begun  *choices      // of the newest checkpoint, nil if the run begins anew

	ranks  accum.Reducer // of a run on several ranks, nil alone
	shards *accum.Pages  // the matrices that the ranks divide, or nil

	monitor  *meter.Monitor // with -trace
	traced   bool           // its file is written
	reporter *reporter      // of -report, nil without it
	model    *transformer.Model
	trainer  *train.Trainer[dataset.Batch]

	preferences *preferences // of -dpo
	student     *student     // of -teacher
	imageRun                 // of data with images
	images      int64        // bytes that images take in the process beside the plan
	encoding    int64        // bytes that the tower of images takes before the first step
}

// clipNorm is what the norm of the gradients is clipped to.
const clipNorm = 1

// gcPercent is the growth of the heap, in percent, before the next collection. In training buffers are reused, so there is
// little to collect. Reading data leaves more, and takes a little longer for it.
const gcPercent = 25

// codeBytes is about the size of the program's pages that training is the first to touch.
const codeBytes = 2 << 20

func (t *tuning) run() (err error) {
	onScreen := *t.call
	onScreen.stderr = console.OnScreen(t.call.stderr)
	t.call = &onScreen
	stop, forget := console.OnSignals(console.Options{Name: "snug", Stderr: t.call.stderr,
		Advice: "a run with -checkpoint goes on from its last checkpoint"})
	defer forget()
	t.stop = stop
	release, err := t.ownFiles()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, release()) }()
	if err := t.startTrace(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.endTrace()) }()
	if err := t.startReport(); err != nil {
		return usagef("tune: -report: %w", err)
	}
	if t.dev, err = openDevice("tune", t.device); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.dev.Close()) }()
	if err := t.checkDevice(); err != nil {
		return err
	}
	t.process, t.heap = plan.ThisProcess(), heapBytes()
	t.reportMemory()
	if err := t.openFolder(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.folder.Close()) }()
	noteLinks(t.call.stderr, t.dir, t.teacher.dir)
	t.describeData()
	if err := t.chooseTogether(); err != nil {
		return err
	}
	if t.ranks != nil {
		fmt.Fprintf(t.call.stdout, "%d ranks, with up to %s of a step each; the plan is of one\n", t.ranks.Size(), console.Count(t.share(), "sample"))
	}
	if err := t.plan.WriteTable(t.call.stdout); err != nil {
		return err
	}
	if t.begun == nil && t.ranks == nil && !t.onDevice() {
		noteOtherType(t.call.stdout, t.plan, t.memory, t.process)
	}
	t.writeDecoded(t.call.stdout)
	t.writeTeacher(t.call.stdout)
	if err := t.reportImages(); err != nil {
		return err
	}
	if warning, err := checkCgroup(cgroupLimit(os.DirFS("/")), t.processLimit(), t.resident()); err != nil {
		return err
	} else if warning != "" {
		fmt.Fprintf(t.call.stderr, "snug: tune: %s\n", warning)
	}
	if t.dryRun {
		return errors.Join(t.reportDryRun(), t.reportPlan())
	}
	out, err := t.takeOutput()
	if err != nil {
		return usagef("tune: -o: %w", err)
	}
	defer func() { err = errors.Join(err, out.drop()) }()
	out.note(t.call.stderr)
	if err := t.openReport(); err != nil {
		return err
	}
	defer func() { err = t.endReport(err) }()
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(t.heapLimit()))
	if err := checkRoom("tune", append(t.pageRoom(), t.featureRoom()...), files.SpaceOf); err != nil {
		return err
	}
	clean, err := t.open()
	defer func() { err = t.pagesError(errors.Join(err, t.writeTrace(), t.close(), clean())) }()
	if err != nil {
		return err
	}
	if err := checkRoom("tune", t.rooms(), files.SpaceOf); err != nil {
		return err
	}
	r, err := t.train()
	if err == nil {
		err = t.saving()
	}
	if err == nil {
		err = out.finish()
	}
	if err != nil {
		return errors.Join(err, t.writeTrace(), t.reportFailure(r, err))
	}
	if err := t.writeTrace(); err != nil { // before the line of JSON
		return err
	}
	return t.report(r)
}

// task describes the run to package plan.
func (t *tuning) task() (plan.Task, error) {
	if err := t.storedForm(); err != nil {
		return plan.Task{}, err
	}
	m, err := t.config.Plan(t.context)
	if err != nil {
		return plan.Task{}, err
	}
	quantizeAll(m, t.form)
	m = t.describePairs(m)
	m.Name = folderName(t.dir, m.Name)
	task := plan.Task{
		Model: m, Batch: t.share(), Optimizer: t.optimizer, Rank: t.rank, Dropout: t.dropout > 0, Tiles: t.tiles, Compute: []snug.DType{t.dtype},
		Device: processor(t.disk),
	}
	task.Device.Unified = !t.onDevice()
	if err := t.describeTeacher(&task); err != nil {
		return task, err
	}
	if form, err := named(masterForms...)(t.masters); err == nil {
		task.Masters = []amp.MasterForm{form}
	}
	costs, err := t.imageCosts()
	if err != nil {
		return task, err
	}
	if t.full {
		if costs != nil {
			costs.whole(&task.Model)
		}
		return t.divide(task), nil
	}
	t.describe(&task)
	task.Beside, task.Base = slices.Clone(t.beside), t.lowForm()
	if costs != nil {
		task.Beside = append(task.Beside, costs.beside()...)
	}
	if t.form == "bf16" {
		task.Frozen = []int{16}
	} else if t.form != "" || t.config.Stored != 0 {
		task.Frozen = []int{plan.BitsOf(task.Base)}
	}
	return t.divide(task), nil
}

// choose finds the fastest plan whose process stays within the memory.
func (t *tuning) choose() error {
	task, err := t.task()
	if err != nil {
		return usageError{err}
	}
	tasks := gentlest(task, t.wholeSums())
	switch {
	case t.begun != nil:
		tasks = []plan.Task{t.begun.bind(task)}
	case t.fold:
		task.Gradients, task.Masters = []plan.Gradient{plan.Folded}, []amp.MasterForm{amp.NoMaster}
		tasks = []plan.Task{task}
	}
	if t.onDevice() {
		return t.fitDevice(tasks)
	}
	t.plan, err = fitProcess("tune", tasks, t.memory, t.process)
	return err
}

// open opens the model and makes its trainer. clean removes pages.
func (t *tuning) open() (clean func() error, err error) {
	clean = nothing
	r := t.plan.Run
	o := transformer.Options{Device: t.dev, Seed: t.seed, Losses: &fused.Losses{}, Smoothing: float32(t.smoothing), ZLoss: float32(t.zLoss), Monitor: t.monitor, Decode: t.forms().Decode}
	options := train.Options{
		Optimizer: t.setting().Rule, CountLost: t.rounding, Clip: clipNorm, Seed: t.seed, Schedule: t.schedule(t.stepCount()),
		SkipNonFinite: r.Gradients != plan.Folded, Losses: o.Losses, Monitor: t.monitor, Checkpoints: train.Checkpoints{About: t.about()},
	}
	if t.plan.Peak[meter.OnDisk].Total() > 0 {
		if clean, err = t.openPages(); err != nil {
			return clean, err
		}
		if t.checkpoints != nil {
			o.Checkpoints = t.counted(t.checkpoints, meter.Activations)
		}
		if t.store != nil {
			pages := t.counted(t.store, meter.Weights)
			o.Pages, options.Storage = pages, pages
		}
	}
	if r.Shard == plan.ShardWeights {
		if o.Pages, err = t.openShards(); err != nil {
			return clean, err
		}
	}
	if options.Reducer = t.ranks; !t.full {
		o.Adapter = &qlora.AdapterOptions{Alpha: float32(t.alpha), Dropout: float32(t.dropout), RSLoRA: t.rslora, BaseModel: t.dir, ModulesToSave: t.modulesToSave()}
		if t.kind().shared { // which trains its scales
			o.Adapter.Alpha = 0
		}
	}
	if err := t.plan.Apply(&o, &options); err != nil {
		return clean, err
	}
	if t.seesImages() {
		noFeatures, err := t.openFeatures()
		pages := clean
		clean = func() error { return errors.Join(pages(), noFeatures()) }
		if err != nil {
			return clean, err
		}
		if err := t.openImageModel(o); err != nil {
			return clean, err
		}
	} else if t.model, err = transformer.Open(t.dir, o); err != nil {
		return clean, err
	}
	if t.kind().init != "" { // the memory used for first values is in a pool, which two collections empty
		runtime.GC()
		debug.FreeOSMemory()
	}
	if err := t.model.Reserve(r.Micro*t.sequences(), t.context); err != nil { // else each longer batch leaves behind the buffers of shorter ones
		return clean, err
	}
	if t.traits().ForwardOnly {
		options.Clip = 0
	}
	if t.loraplus > 0 {
		options.Params = qlora.LoRAPlus(float32(t.loraplus))
	}
	if t.checkpoint != "" {
		options.Folder, options.SaveEvery = t.folder, t.saveEvery
	}
	learner, err := t.learner()
	if err != nil {
		return clean, err
	}
	if t.trainer, err = train.New(learner, options); err != nil {
		return clean, err
	}
	t.trainer.SetNotes(choicesOf(t.plan))
	if t.ranks == nil {
		err = t.trainer.SplitBy(splitBatch)
	}
	return clean, err
}

// schedule returns the schedule of the learning rate. There is no decay if the optimizer averages, and none without gradients.
func (t *tuning) schedule(steps int) func(step int) float32 {
	warmup := min(100, max(1, steps/10))
	if t.traits().ForwardOnly {
		return train.Constant(float32(t.rate))
	}
	if t.traits().Averages {
		return train.Linear(float32(t.rate), 1, warmup, steps)
	}
	return train.Cosine(float32(t.rate), warmup, steps)
}

func (t *tuning) close() (err error) {
	if t.trainer != nil {
		err = t.trainer.Close()
	}
	err = errors.Join(err, t.closeImages())
	if t.model != nil {
		err = errors.Join(err, t.model.Close())
	}
	err = errors.Join(err, t.student.close())
	if t.shards != nil {
		err = errors.Join(err, t.shards.Close())
	}
	for _, s := range []*offload.Store{t.store, t.checkpoints} {
		err = errors.Join(err, s.Close())
	}
	return err
}

// stepCount returns how many steps the run has.
func (t *tuning) stepCount() int {
	if t.steps > 0 {
		return t.steps
	}
	samples := int64(max(1, t.epochs)) * int64(t.data.Stats().Samples)
	return int(min((samples+int64(t.batch)-1)/int64(t.batch), math.MaxInt32))
}

// result is what a run found.
type result struct {
	Model           string              `json:"model"`
	State           string              `json:"state"`           // done, stopped (by a signal), diverged or failed
	Error           string              `json:"error,omitempty"` // of a run that is not done
	Steps           int                 `json:"steps"`           // of the whole run
	Done            int                 `json:"steps_done"`      // with those before a resume
	Tokens          int                 `json:"tokens"`          // of this process's steps
	Seconds         float64             `json:"seconds"`
	Skipped         int                 `json:"steps_skipped"`
	LossFirst       float64             `json:"held_out_loss_first,omitempty"` // of a run that began anew
	LossLast        float64             `json:"held_out_loss_last,omitempty"`
	Between         []report.Evaluation `json:"held_out_losses,omitempty"`           // with -eval-every, of this process
	First           *preference         `json:"held_out_preference_first,omitempty"` // with -dpo, like the losses
	Last            *preference         `json:"held_out_preference_last,omitempty"`
	DivergenceFirst *float64            `json:"held_out_divergence_first,omitempty"` // with -teacher, like the losses
	DivergenceLast  *float64            `json:"held_out_divergence_last,omitempty"`
	Loss            float64             `json:"loss"` // of the last step
	LostShare       float64             `json:"updates_lost_share,omitempty"`
	Predicted       int64               `json:"predicted_peak_bytes"`
	Measured        int64               `json:"measured_peak_bytes"`
	Resident        int64               `json:"predicted_rss_bytes"`
	PeakRSS         int64               `json:"peak_rss_bytes"`
	Data            dataset.Stats       `json:"data"`
	Components      meter.Bytes         `json:"-"` // measured
}

func (t *tuning) train() (r result, err error) {
	steps := t.stepCount()
	r.Model, r.Steps, r.Data = t.dir, steps, t.data.Stats()
	if begun := t.trainer.Step(); begun > 0 {
		fmt.Fprintf(t.call.stdout, "\ngoing on from step %d of %d\n", begun, steps)
	}
	fmt.Fprintln(t.call.stdout)
	t.beginReport()
	progress := console.NewProgress(t.call.stdout, t.call.stderr, steps)
	progress.Memory = func() (meter.Bytes, int64) { return r.Components, counted(t.plan.Limit) }
	did, err := console.Training[dataset.Batch]{
		Trainer: t.trainer, Steps: steps, Saves: t.checkpoint != "", Stop: t.stop, Ranks: t.ranks,
		Progress:  progress,
		Batches:   t.batches,
		Tokens:    func(b dataset.Batch) int { return len(b.Tokens) },
		HeldOut:   t.data.HeldOut(max(1, t.plan.Run.Micro)),
		EvalEvery: t.evalEvery, Evaluated: func(step int, loss float64) { t.evaluated(&r, step, loss) },
		After: func(train.Report) (string, error) {
			t.measure(&r)
			return meter.FormatBytes(r.Components.Total()), nil
		},
		Stepped: t.reportStep,
	}.Run()
	r.Tokens, r.Seconds, r.Skipped, r.Loss, r.LossFirst, r.LossLast = did.Tokens, did.Seconds, did.Skipped, did.Loss, did.First, did.Last
	r.Done = t.trainer.Step()
	var lost console.Diverged
	if errors.As(err, &lost) {
		return r, fmt.Errorf("tune: %w: nothing is written to %s; %s", err, t.output, t.divergedAdvice(lost))
	}
	if did.Skipped > 0 && did.Skipped == steps && err == nil {
		err = fmt.Errorf("tune: no step changed anything, and nothing is written: gradients are not finite in any of them, because a weight of %s is not, or the loss overflows%s: %w",
			t.dir, overflowRemedy(t.dtype), snug.ErrNonFinite)
	}
	return r, err
}

// evaluated takes up a loss on held-out samples, 0 if there are none, and what else their evaluation has measured.
func (t *tuning) evaluated(r *result, step int, loss float64) {
	one, divergence := t.preferences.taken(), t.student.taken()
	if step == 0 {
		r.First, r.DivergenceFirst = one, divergence
	} else {
		r.Last, r.DivergenceLast = one, divergence
	}
	if loss != 0 && step > 0 && step < r.Steps {
		r.Between = append(r.Between, report.Evaluation{Step: step, Loss: loss})
	}
	if t.reporter != nil && loss != 0 {
		t.reporter.history.Evaluate(step, loss)
	}
}
