package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/console"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/train"
	"github.com/snug-ml/snug/transformer"
)

// report is the result of a run.
type report struct {
	Preset       string               `json:"preset"`
	Params       int64                `json:"params"`
	Steps        int                  `json:"steps"`
	Tokens       int64                `json:"tokens"`
	LossFirst    float64              `json:"loss_first"`
	LossLast     float64              `json:"loss_last"`
	TokensPerS   float64              `json:"tokens_per_s,omitempty"`   // 0 when all steps were done before
	Calls        *stepCalls           `json:"calls_per_step,omitempty"` // of the device's queue; nil on the CPU
	PeakRSS      int64                `json:"peak_rss_bytes"`
	PredictedRSS int64                `json:"predicted_rss_bytes"`
	BaseRSS      int64                `json:"base_rss_bytes"` // before there was a model
	Predicted    int64                `json:"predicted_peak_bytes"`
	Measured     int64                `json:"measured_peak_bytes"`
	Techniques   []string             `json:"techniques"`
	ByComponent  map[string]peakBytes `json:"components"`
	predicted    meter.Bytes
	measured     meter.Bytes
	label        string // names of the techniques, in a comparison
}

// peakBytes is a component's predicted and measured peak.
type peakBytes struct {
	Predicted int64 `json:"predicted"`
	Measured  int64 `json:"measured"`
}

// trainAndReport is one run: prediction, training, measurement, sample.
func trainAndReport(stop console.Stop, o options, stdout, stderr io.Writer) (err error) {
	// Buffers are used again and again, so there is little to collect. A low
	// growth limit keeps what little there is out of the peak.
	debug.SetGCPercent(gcPercent)
	data, err := o.load(stop.After)
	if err != nil {
		return inputError{err}
	}
	dev, err := snug.Open(o.device)
	if err != nil {
		return inputError{err}
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	saved, err := openCheckpoints(&o)
	if err != nil {
		return inputError{err}
	}
	defer func() { err = errors.Join(err, saved.Close()) }()
	if o.memory > 0 {
		if err := o.fitMemory(); err != nil {
			return inputError{err}
		}
	}
	if !dev.IsCPU() {
		if err := o.fitLossRows(); err != nil {
			return inputError{err}
		}
	}
	if o.timeline != "" {
		if err := console.Writable(o.timeline, ".csv", ".svg"); err != nil {
			return inputError{err}
		}
	}
	if err := saved.Matches(o.about(data)); err != nil {
		return inputError{err}
	}
	pages, clean, err := pageFolder(o, saved)
	if err != nil {
		return inputError{err}
	}
	defer clean()
	if err := printPrediction(stdout, o.config); err != nil {
		return err
	}
	base := baseRSS()
	t, err := newTrainer(dev, o.config, data, pages, saved)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	if t.Step() > 0 {
		fmt.Fprintf(stdout, "resuming from step %d of %d\n", t.Step(), o.steps)
	}
	rep, err := t.run(stop, o.saves, console.NewProgress(stdout, stderr, o.steps))
	if o.timeline != "" && (err == nil || len(t.meter.Timeline()) > 1) { // also of a run that ended early
		err = errors.Join(err, writeTimeline(o.timeline, t.meter, o.name))
	}
	if err != nil {
		return err
	}
	if o.ranks > 1 && !underLauncher() { // whose memory is that of all
		rep.PeakRSS = 0
	}
	if rep.PeakRSS > 0 && dev.IsCPU() { // the library of a device takes memory of the process that nothing predicts
		rep.BaseRSS = base.process.Base
		if rep.PredictedRSS, err = o.resident(base); err != nil {
			return err
		}
	}
	return rep.print(stop.Now, stdout, t, o.json)
}

// run trains to the last step and measures. When it is told to stop, it ends after the
// current step, which it saves.
func (t *trainer) run(stop console.Stop, saves bool, p *console.Progress) (*report, error) {
	calls := calls{dev: t.model.Params()[0].Value.Device()}
	did, err := console.Training[transformer.Batch]{
		Trainer: t.Trainer, Ranks: t.reducer, Steps: t.steps, Saves: saves, Stop: stop, Progress: p,
		Batches: func(step int) ([]transformer.Batch, error) { return t.batches(step), nil }, Tokens: func(b transformer.Batch) int { return len(b.Tokens) },
		HeldOut: func(yield func(transformer.Batch, error) bool) {
			t.heldOut(func(b transformer.Batch) bool { return yield(b, nil) })
		},
		Evaluated: func(step int, loss float64) {
			if step == 0 {
				t.first = loss
				t.SetNotes(notes{append(slices.Clip(t.ends), t.steps), t.first})
			}
		},
		After: func(train.Report) (string, error) {
			calls.stepped()
			err := errors.Join(t.count(), t.meter.Sample())
			now, _ := t.meter.Held()
			return console.MiB(now[meter.OnDevice].Total()), err
		},
	}.Run()
	if err != nil {
		return nil, err
	}
	r := &report{
		Preset: t.name, Params: t.task().Model.Parameters(), Steps: t.steps, Tokens: int64(t.steps) * int64(t.batch().Global*t.context),
		Techniques: t.on.names(), LossFirst: t.first, LossLast: did.Last, TokensPerS: did.Rate(), Calls: calls.steady(), ByComponent: map[string]peakBytes{},
	}
	_, peak := t.meter.Held()
	r.measured, r.Measured = peak[meter.OnDevice], t.meter.Peak(meter.OnDevice)
	if _, r.predicted, err = t.predict(); err != nil {
		return nil, err
	}
	r.Predicted = r.predicted.Total()
	for c := range components {
		r.ByComponent[c.String()] = peakBytes{r.predicted[c], r.measured[c]}
	}
	_, r.PeakRSS = meter.Resident()
	return r, nil
}

// baseRSS returns what the process takes before there is a model: runtime, code and text.
func baseRSS() residence {
	p := plan.ThisProcess()
	_, peak := meter.Resident()
	var heap runtime.MemStats
	runtime.ReadMemStats(&heap)
	return residence{p, peak, int64(heap.HeapAlloc)}
}

// print writes the measurements, a sample and, if asked, the line of JSON.
func (r *report) print(ctx context.Context, w io.Writer, t *trainer, asJSON bool) error {
	peak := console.Peak{Predicted: r.predicted, Measured: r.measured, Total: r.Measured, Resident: r.PredictedRSS, RSS: r.PeakRSS}
	if err := peak.Write(w, console.MiB, true); err != nil {
		return err
	}
	if r.PredictedRSS > 0 {
		fmt.Fprintln(w, "the process's prediction adds what it took before the model was made, and scratch of the kernels")
	}
	fmt.Fprintf(w, "\nloss on held-out text: %.4f before, %.4f after %s", r.LossFirst, r.LossLast, console.Count(r.Steps, "step"))
	if r.TokensPerS > 0 { // this process has trained
		where := console.Count(runtime.GOMAXPROCS(0), "core")
		if dev := t.model.Params()[0].Value.Device(); !dev.IsCPU() {
			where = dev.Name()
		}
		fmt.Fprintf(w, "; %.0f tokens/s on %s", r.TokensPerS, where)
	}
	fmt.Fprintln(w)
	printCalls(w, t.model.Params()[0].Value.Device(), r.Calls)
	text, err := t.sample(ctx, "\nfunc ")
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "\nthe model writes: %q\n", text)
	if !asJSON {
		return nil
	}
	return json.NewEncoder(w).Encode(r)
}

// writeTimeline writes what a meter has counted, as CSV or SVG by the file's name.
func writeTimeline(name string, m *meter.Monitor, title string) error {
	return console.WriteFile(name, func(w io.Writer) error {
		if filepath.Ext(name) == ".csv" {
			return m.WriteCSV(w)
		}
		if pages := m.Peak(meter.OnDisk); pages > 0 {
			title += fmt.Sprintf("; pages of %s on disk, up to %s in memory", meter.FormatBytes(pages), meter.FormatBytes(m.Peak(meter.OnHost)))
		}
		return m.WriteSVG(w, meter.OnDevice, title)
	})
}
