package main

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/snug-ml/snug/internal/console"
	"github.com/snug-ml/snug/internal/report"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/train"
)

// reportEvery is the least time between two writings of a report while a run goes on. It is also reportShare times as
// long as a writing takes.
const (
	reportEvery = 5 * time.Second
	reportShare = 100
)

// reportBytes is about the most memory that a report takes: its history, and the pictures while they are written.
const reportBytes = 4 << 20

// reporter writes the report of a run. A nil reporter does nothing.
type reporter struct {
	path    string
	plan    report.Document // what is known before the run
	old     *report.History // of the file that was there, or nil
	history *report.History
	opened  bool // the run owns what it writes, the report included
	ended   bool

	measured meter.Bytes     // the peaks of the components so far
	did      console.Trained // so far
	wrote    time.Time       // end of the last writing
	took     time.Duration   // time of it
	failed   bool            // a writing has failed and was reported
}

// startReport reads the file of -report, if it is there, and counts the memory of the report as a part of the process.
func (t *tuning) startReport() (err error) {
	if t.page == "" {
		return nil
	}
	t.reporter = &reporter{path: t.page}
	t.reporter.old, err = report.Read(t.page)
	return err
}

// reportMemory counts the memory that the report will take.
func (t *tuning) reportMemory() {
	if t.reporter != nil {
		t.process.Base += reportBytes
		t.heap += reportBytes
	}
}

// openReport draws the plan, of a run that owns its output from now on.
func (t *tuning) openReport() (err error) {
	r := t.reporter
	if r == nil {
		return nil
	}
	if r.plan, err = t.reportDocument(); err != nil {
		return err
	}
	id, err := t.identity()
	if err != nil {
		return err
	}
	r.history, r.opened = report.NewHistory(id), true
	return nil
}

// beginReport takes up the steps before a resume, and writes the report for the first time.
func (t *tuning) beginReport() {
	r := t.reporter
	if r == nil {
		return
	}
	if step := t.trainer.Step(); step > 0 {
		if r.old != nil && r.old.Run == r.history.Run {
			r.history = r.old
		}
		r.history.Resume(step)
	}
	r.old = nil
	t.updateReport(report.Running, fmt.Sprintf("%d of %s", t.trainer.Step(), console.Count(t.stepCount(), "step")))
}

// identity tells the run from others, as its checkpoints do.
func (t *tuning) identity() (string, error) {
	text, err := json.Marshal(t.about())
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:16]), err
}

// reportStep takes up a step, and writes the report if the last writing was long ago.
func (t *tuning) reportStep(s train.Report, did console.Trained) {
	r := t.reporter
	if r == nil {
		return
	}
	now, _ := meter.Resident()
	r.history.Add(report.Step{Number: s.Step, Loss: s.Loss, Tokens: did.Tokens - r.did.Tokens, Seconds: did.Seconds - r.did.Seconds, Resident: now, Skipped: s.Skipped != ""})
	r.did = did
	if time.Since(r.wrote) >= max(reportEvery, reportShare*r.took) {
		t.updateReport(report.Running, fmt.Sprintf("%d of %s", s.Step, console.Count(t.stepCount(), "step")))
	}
}

// updateReport writes the report while the run goes on. An error does not end the run, and is printed once.
func (t *tuning) updateReport(status report.Status, state string) {
	r := t.reporter
	began := time.Now()
	err := t.putReport(status, state, t.peaksSoFar())
	r.wrote = time.Now()
	if r.took = r.wrote.Sub(began); err != nil && !r.failed {
		r.failed = true
		fmt.Fprintf(t.call.stderr, "snug: tune: the run goes on without its report: %s\n", oneLine(err, t.call.args...))
	}
}

// endReport writes the report of a run that has failed, or that a signal has ended, and joins an error of it. It does
// nothing if the last report is written.
func (t *tuning) endReport(err error) error {
	r := t.reporter
	if r == nil || !r.opened || r.ended {
		return err
	}
	r.ended = true
	status, state := report.Failed, ""
	var stopped console.Interruption
	switch {
	case errors.As(err, &stopped):
		status, state = report.Stopped, stopped.Text
	case err != nil:
		state = oneLine(err, t.call.args...)
	}
	return errors.Join(err, t.putReport(status, state, t.peaksSoFar()))
}

// peaksSoFar returns the peaks of a run that goes on.
func (t *tuning) peaksSoFar() console.Peak {
	_, rss := meter.Resident()
	return t.peaks(result{Components: t.reporter.measured, Measured: t.reporter.measured.Total(), PeakRSS: rss})
}

// finishReport writes the last report of a run that is complete.
func (t *tuning) finishReport(peak console.Peak) error {
	r := t.reporter
	if r == nil || r.ended {
		return nil
	}
	r.ended = true
	if err := t.putReport(report.Done, console.Count(t.stepCount(), "step"), peak); err != nil {
		return err
	}
	_, err := fmt.Fprintf(t.call.stdout, "the report is in %s\n", r.path)
	return err
}

// reportDryRun writes the report of a dry run.
func (t *tuning) reportDryRun() error {
	if t.reporter == nil {
		return nil
	}
	d, err := t.reportDocument()
	if err != nil {
		return err
	}
	d.Status, d.State, d.Memory = report.Planned, "predicted, nothing has run", planMemory(t.plan)
	if resident := t.resident(); resident > 0 {
		d.Bars = append(d.Bars, report.Bar{Name: "process, predicted", Whole: resident, Limit: t.memory})
	}
	if err := writeReport(t.page, d); err != nil {
		return err
	}
	_, err = fmt.Fprintf(t.call.stdout, "the report is in %s\n", t.page)
	return err
}

// putReport writes the report.
func (t *tuning) putReport(status report.Status, state string, peak console.Peak) error {
	r := t.reporter
	d := r.plan
	d.Status, d.State, d.History, d.Steps = status, state, r.history, t.stepCount()
	d.Bars = append([]report.Bar(nil), d.Bars...)
	d.Bars = append(d.Bars, report.Bar{Name: "device, measured", Bytes: peak.Measured, Limit: d.Bars[0].Limit})
	if peak.Resident > 0 {
		d.Bars = append(d.Bars, report.Bar{Name: "process, predicted", Whole: peak.Resident, Limit: t.processLimit()})
	}
	if peak.RSS > 0 {
		d.Bars = append(d.Bars, report.Bar{Name: "process, measured peak", Whole: peak.RSS, Limit: t.processLimit()})
	}
	rows := peak.Rows(meter.FormatBytes, false)
	rows[0][0] = "component"
	d.Memory = report.Table{Caption: "Peak memory, predicted and measured", Head: rows[0], Rows: rows[1:]}
	d.Resident = report.Resident{Predicted: peak.Resident, Limit: t.processLimit()}
	if rate := r.did.Rate(); rate > 0 {
		d.Facts = append([]report.Fact{{Name: "speed of this process", Value: fmt.Sprintf("%.1f tokens/s", rate)}}, d.Facts...)
	}
	if n := len(r.history.HeldOut); n > 0 {
		e := r.history.HeldOut[n-1]
		d.Facts = append([]report.Fact{{Name: fmt.Sprintf("loss on held-out samples, after step %d", e.Step), Value: fmt.Sprintf("%.4f", e.Loss)}}, d.Facts...)
	}
	return writeReport(r.path, d)
}

// processLimit returns the limit of the resident memory, 0 for none.
func (t *tuning) processLimit() int64 {
	if t.onDevice() {
		return 0
	}
	return t.memory
}

// resident returns the predicted peak of the resident memory, 0 where nothing predicts it.
func (t *tuning) resident() int64 {
	if t.onDevice() { // nothing predicts what a device's library takes of the process
		return 0
	}
	task := t.plan.Task
	task.Process = &t.process
	n, err := task.Resident(t.plan.Run)
	if err != nil { // the plan has been made with it
		return 0
	}
	return max(n+t.images, t.process.Base+t.encoding)
}

// reportDocument returns what a report has before the run.
func (t *tuning) reportDocument() (d report.Document, err error) {
	if d, err = planDocument(t.plan); err != nil {
		return d, err
	}
	d.Title = folderName(t.dir, t.plan.Task.Model.Name)
	where := "the CPU, " + console.Count(runtime.GOMAXPROCS(0), "core")
	if t.onDevice() {
		where = t.dev.Name()
	}
	s := t.data.Stats()
	d.Facts = append([]report.Fact{
		{Name: "technique", Value: t.technique()}, {Name: "on", Value: where},
		{Name: "data", Value: fmt.Sprintf("%s to train on, %d held out", console.Count(s.Samples, "sample"), s.HeldOut)},
	}, d.Facts...)
	form := "as in the folder"
	if b := t.plan.Run.Frozen; b > 0 {
		form = cmp.Or(t.plan.Task.FrozenBits(t.plan.Run), fmt.Sprintf("%d bits", b))
	}
	d.Settings = append([]report.Fact{
		{Name: "model", Value: t.dir}, {Name: "data", Value: t.files}, {Name: "steps", Value: fmt.Sprint(t.stepCount())}, {Name: "batch", Value: fmt.Sprint(t.batch)},
		{Name: "learning rate", Value: fmt.Sprint(t.rate)}, {Name: "type of weights and activations", Value: t.plan.Run.Compute.String()},
		{Name: "frozen weights", Value: form}, {Name: "seed", Value: fmt.Sprint(t.seed)},
	}, flagFacts(t.flags, "model", "data", "steps", "batch", "lr", "seed")...)
	t.reportData(&d)
	if t.full {
		d.Settings = append(d.Settings[:6:6], d.Settings[7:]...)
	}
	return d, nil
}

// technique says what trains, and how.
func (t *tuning) technique() string {
	text := "all weights"
	if !t.full {
		text = adapterName(t.kind(), t.plan)
	}
	text += ", " + t.optimizer
	if t.beta > 0 {
		text += fmt.Sprintf(", DPO with beta %v", t.beta)
	}
	if t.teacher.dir != "" {
		text += ", distillation from " + folderName(t.teacher.dir, t.teacherConfig.Family)
	}
	return text
}

// flagFacts returns the flags that were given, except some.
func flagFacts(flags flagTable, except ...string) (list []report.Fact) {
	for _, r := range flags {
		if r.given && !slices.Contains(except, r.name) {
			list = append(list, report.Fact{Name: "-" + r.name, Value: r.text})
		}
	}
	return list
}
