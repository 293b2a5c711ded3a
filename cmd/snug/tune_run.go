package main

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"

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
	"github.com/snug-ml/snug/quant8"
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
	wanted  int64        // the least -memory that a plan tried so far needs, if none fits
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
}

// clipNorm is what the norm of the gradients is clipped to.
const clipNorm = 1

// gcPercent is the growth of the heap, in percent, before the next collection. In training buffers are reused, so there is
// little to collect. Reading data leaves more, and takes a little longer for it.
const gcPercent = 25

// Training may take more than is predicted: up to 1/spare of the memory beyond plan.Process.Base, and spareBytes.
const spare, spareBytes = 32, 1 << 20

// baseNoise is the most by which the same command's plan.Process.Base differs from one process to the next, about: 0.6 MiB
// were measured. A limit that is named holds in the next process too.
const baseNoise = 1 << 20

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
	t.writeTeacher(t.call.stdout)
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
	if err := checkRoom(t.pageRoom(), files.SpaceOf); err != nil {
		return err
	}
	clean, err := t.open()
	defer func() { err = t.pagesError(errors.Join(err, t.writeTrace(), t.close(), clean())) }()
	if err != nil {
		return err
	}
	if err := checkRoom(t.rooms(), files.SpaceOf); err != nil {
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
	const rate, fast = 1e11, 1e10 // assumed, so that equal commands have equal plans
	task := plan.Task{
		Model: m, Batch: t.share(), Optimizer: t.optimizer, Rank: t.rank, Dropout: t.dropout > 0, PagesFrozen: true, PagesCheckpoints: true, Tiles: t.tiles, Compute: []snug.DType{t.dtype},
		Device: plan.Device{Name: "an assumed processor, to compare plans", Unified: !t.onDevice(), Memory: 1 << 60, Disk: t.disk,
			F32: rate, F16: rate, Bandwidth: fast, HostF32: rate, HostBandwidth: fast, Link: fast, DiskRate: fast / 10,
			Network: fast / 10, Latency: 5e-5},
	}
	if err := t.describeTeacher(&task); err != nil {
		return task, err
	}
	t.useMasters(&task)
	if t.traits().ForwardOnly {
		task.Masters = []amp.MasterForm{amp.FullMaster}
		task.Gradients, task.StateBits, task.PagesCheckpoints = []plan.Gradient{plan.SumF32}, []int{32}, false
	}
	if t.full {
		if t.dtype != snug.F32 || t.traits().ForwardOnly || t.wholeSums() { // updates in the backward pass have no master weights, see choose
			task.Gradients = []plan.Gradient{plan.SumF32}
		}
		return t.divide(task), nil
	}
	t.describe(&task)
	if task.Beside = t.beside; task.Beside != nil || t.traits().ForwardOnly || t.wholeSums() { // updates in the backward pass have no master weights
		task.Gradients = []plan.Gradient{plan.SumF32}
	}
	task.StateBits = []int{32} // of adapters, which are small
	task.Base = t.lowForm()
	if t.form == "bf16" {
		task.Frozen = []int{16}
	} else if t.form != "" || t.config.Stored != 0 {
		task.Frozen = []int{lowBits(task.Base)}
	}
	return t.divide(task), nil
}

// choose finds the fastest plan whose process stays within the memory. Choices that change the results come last. For
// adapters, that is frozen weights in fewer than 16 bits. For -full in bfloat16, these are in order: master weights of
// 24 bits; updates in the backward pass, which have no master weights and are rounded stochastically; and, with adamw,
// gradients that are folded into the optimizer's state.
func (t *tuning) choose() error {
	task, err := t.task()
	if err != nil {
		return usageError{err}
	}
	exact, further := task, task
	switch {
	case t.begun != nil:
		return t.fit(t.begun.bind(task))
	case t.fold:
		task.Gradients, task.Masters = []plan.Gradient{plan.Folded}, []amp.MasterForm{amp.NoMaster}
		return t.fit(task)
	case !t.full && task.Frozen == nil:
		exact.Frozen = []int{16}
	case t.full && t.dtype == snug.BF16 && t.masters == "" && t.traits().Refuses(quant8.InBackward) == "" && !t.wholeSums():
		further.Gradients, further.Masters = []plan.Gradient{plan.InBackward}, []amp.MasterForm{amp.NoMaster}
	default:
		return t.fit(task)
	}
	if err := t.fit(exact); err == nil || !errors.Is(err, snug.ErrNoMemory) {
		return err
	}
	if t.full {
		exact.Masters = []amp.MasterForm{amp.Split24Master}
		if err := t.fit(exact); err == nil || !errors.Is(err, snug.ErrNoMemory) {
			return err
		}
	}
	if err := t.fit(further); !t.full || t.traits().Refuses(quant8.Folded) != "" || err == nil || !errors.Is(err, snug.ErrNoMemory) {
		return err
	}
	further.Gradients = []plan.Gradient{plan.Folded}
	return t.fit(further)
}

func (t *tuning) fit(task plan.Task) (err error) {
	if t.onDevice() {
		return t.fitDevice(task)
	}
	if t.memory == 0 {
		t.plan, err = task.Fit(0)
		return err
	}
	limit := t.memory - max(0, t.memory-t.process.Base)/spare - spareBytes
	if limit > t.process.Base {
		if t.plan, err = task.FitResident(limit, t.process); !errors.Is(err, snug.ErrNoMemory) {
			return err
		}
	}
	return t.fitLeast(task, limit)
}

// fitLeast compares the plan that counts the fewest bytes with some that count more, and takes the one whose process is
// the smallest. If that does not fit, the error says what it would take.
func (t *tuning) fitLeast(task plan.Task, limit int64) error {
	_, err := task.Fit(1)
	var miss *plan.MissError
	if !errors.As(err, &miss) {
		return err
	}
	least := int64(math.MaxInt64)
	for _, quarters := range []int64{4, 5, 6, 8} { // of the fewest bytes that a plan can count
		p, err := task.Fit(miss.Minimum/4*quarters + miss.Minimum%4)
		if err != nil {
			return err
		}
		resident, err := task.Resident(p.Run, t.process)
		if err != nil {
			return err
		}
		if resident < least {
			t.plan, least = p, resident
		}
	}
	if least <= limit {
		return nil
	}
	wanted := least + spareBytes
	wanted += (wanted-t.process.Base+spare-2)/(spare-1) + baseNoise
	t.wanted = min(wanted, cmp.Or(t.wanted, wanted))
	var flags []string
	if t.disk == 0 {
		flags = append(flags, "-disk")
	}
	whole := func(l plan.Layer) bool { return l.Tiles.Whole > 0 && l.Rows > l.Tiles.Whole }
	if slices.Equal(t.tiles, []int{1}) && t.begun == nil && slices.ContainsFunc(task.Model.Layers, whole) {
		flags = append(flags, "-tiles auto")
	}
	less := ""
	if len(flags) > 0 {
		less = ", or less with " + strings.Join(flags, " and ")
	}
	return fmt.Errorf("tune: -memory %s: nothing fits: the process takes %s before there is a model, and the smallest plan wants -memory %dMiB%s: %w",
		meter.FormatBytes(t.memory), meter.FormatBytesUp(t.process.Base), (t.wanted+1<<20-1)>>20, less, snug.ErrNoMemory)
}

// open opens the model and makes its trainer. clean removes pages.
func (t *tuning) open() (clean func() error, err error) {
	clean = nothing
	r := t.plan.Run
	o := transformer.Options{DType: t.dtype, Device: t.dev, Seed: t.seed, Base: t.baseForm(r), LossRows: t.plan.Task.LossRows, Losses: &fused.Losses{},
		Smoothing: float32(t.smoothing), ZLoss: float32(t.zLoss), Tiles: r.Tiles, Monitor: t.monitor}
	var state train.Storage
	if t.plan.Peak[meter.OnDisk].Total() > 0 {
		if clean, err = t.openPages(); err != nil {
			return clean, err
		}
		if t.checkpoints != nil {
			o.Checkpoints = t.counted(t.checkpoints, meter.Activations)
		}
		if t.store != nil {
			pages := t.counted(t.store, meter.Weights)
			if r.WeightsOn == meter.OnDisk {
				o.Pages = pages
			}
			if r.StateOn == meter.OnDisk {
				state = pages
			}
		}
	}
	if r.Shard == plan.ShardWeights {
		if o.Pages, err = t.openShards(); err != nil {
			return clean, err
		}
		o.PageFloats = true
	}
	if !t.full {
		o.Adapter = &qlora.AdapterOptions{Rank: t.rank, Alpha: float32(t.alpha), Dropout: float32(t.dropout), RSLoRA: t.rslora, BaseModel: t.dir,
			ModulesToSave: t.modulesToSave()}
		t.adapterFlags.options(o.Adapter)
	}
	if t.model, err = transformer.Open(t.dir, o); err != nil {
		return clean, err
	}
	if t.kind().init != "" { // the memory used for first values is in a pool, which two collections empty
		runtime.GC()
		debug.FreeOSMemory()
	}
	if err := t.model.SetPlan(r.Remat); err != nil {
		return clean, err
	}
	if err := t.model.Reserve(r.Micro*t.sequences(), t.context); err != nil { // else each longer batch leaves behind the buffers of shorter ones
		return clean, err
	}
	steps := t.stepCount()
	options := train.Options{
		Optimizer: t.setting().Rule, StateBits: r.StateBits, Masters: r.Masters, Stochastic: r.Masters == amp.Split24Master, CountLost: t.rounding, Clip: clipNorm, Seed: t.seed,
		Schedule: t.schedule(steps), Storage: state,
		Gradients: r.Gradients, SkipNonFinite: r.Gradients != plan.Folded, Losses: o.Losses, Monitor: t.monitor,
		Checkpoints: train.Checkpoints{About: t.about()},
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
	if t.ranks != nil {
		options.Reducer, options.Shard = t.ranks, r.Shard
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
	progress.Memory = func() (meter.Bytes, int64) { return r.Components, t.countedLimit() }
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
