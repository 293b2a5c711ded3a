package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/plan"
)

// report is what a run found.
type report struct {
	Preset       string               `json:"preset"`
	Params       int64                `json:"params"`
	Steps        int                  `json:"steps"`
	Tokens       int64                `json:"tokens"`
	LossFirst    float64              `json:"loss_first"`
	LossLast     float64              `json:"loss_last"`
	TokensPerS   float64              `json:"tokens_per_s,omitempty"` // 0 when all steps were done before
	PeakRSS      int64                `json:"peak_rss_bytes"`
	PredictedRSS int64                `json:"predicted_rss_bytes"`
	BaseRSS      int64                `json:"base_rss_bytes"` // before there was a model
	Predicted    int64                `json:"predicted_peak_bytes"`
	Measured     int64                `json:"measured_peak_bytes"`
	Techniques   []string             `json:"techniques"`
	ByComponent  map[string]peakBytes `json:"components"`
	predicted    plan.Bytes
	measured     plan.Bytes
	trainingLoss []float64 // of the steps of this process
}

// peakBytes is a component's predicted and measured peak.
type peakBytes struct {
	Predicted int64 `json:"predicted"`
	Measured  int64 `json:"measured"`
}

// deviceText names the device, and the cores where it is the CPU.
func (t *trainer) deviceText() string {
	if t.dev.IsCPU() {
		return count(runtime.GOMAXPROCS(0), "core")
	}
	return t.dev.Name()
}

// run trains to the last step and measures. When it is told to stop, it ends after the
// current step, which it saves.
func (t *trainer) run(stop stopper, o options, saved *checkpoints, p *progress) (*report, error) {
	ctx := stop.now
	r := &report{Preset: o.name, Params: o.parameters(), Steps: o.steps, Techniques: o.on.names()}
	var err error
	if t.step == 0 {
		if t.first, err = t.heldOutLoss(ctx); err != nil {
			return nil, err
		}
	}
	r.LossFirst = t.first
	perStep := t.batch().Global * t.context
	began, start := time.Now(), t.step
	for t.step < o.steps {
		if stop.asked() {
			p.end()
			if err := saved.save(ctx, t); err != nil {
				return nil, err
			}
			return nil, interrupted(t.step, o.steps, saved)
		}
		loss, err := t.train(ctx)
		if err != nil {
			return nil, fmt.Errorf("step %d: %w", t.step+1, err)
		}
		r.trainingLoss = append(r.trainingLoss, loss)
		if t.skipped != "" {
			p.note(t.skipped)
		}
		done := t.step - start
		p.step(t.step, loss, float64(done*perStep)/time.Since(began).Seconds(), t.held())
		if err := t.meter.Sample(); err != nil {
			return nil, err
		}
		if t.step%o.saveEvery == 0 || t.step == o.steps {
			if err := saved.save(ctx, t); err != nil {
				return nil, err
			}
		}
	}
	if done := t.step - start; done > 0 {
		r.TokensPerS = float64(done*perStep) / time.Since(began).Seconds()
	}
	p.end()
	r.Tokens = int64(o.steps) * int64(perStep)
	_, peak := t.meter.Held()
	r.measured, r.Measured = peak[plan.OnDevice], t.meter.Peak(plan.OnDevice)
	if r.predicted, err = o.predict(); err != nil {
		return nil, err
	}
	r.Predicted = r.predicted.Total()
	r.ByComponent = map[string]peakBytes{}
	for c := range components {
		r.ByComponent[c.String()] = peakBytes{r.predicted[c], r.measured[c]}
	}
	_, r.PeakRSS = plan.RSS()
	r.LossLast, err = t.heldOutLoss(ctx)
	return r, err
}

// baseRSS returns what the process takes before there is a model: runtime, code and text.
func baseRSS() residence {
	debug.FreeOSMemory()
	now, peak := plan.RSS()
	if now == 0 {
		now = peak
	}
	var heap runtime.MemStats
	runtime.ReadMemStats(&heap)
	return residence{now, peak, int64(heap.HeapAlloc)}
}

// residence is the resident memory of the process at some time, its peak so far, and the part
// of Go's heap.
type residence struct{ now, peak, heap int64 }

// What a run touches besides what is counted, about: the code of the kernels, and what Go's
// allocator keeps for each thread that computes.
const (
	codeBytes   = 1 << 20
	threadBytes = 256 << 10
	mappedBytes = 64 << 10 // of a page that package offload has outside of Go's heap
)

// gcPercent is how much the heap may grow before the next collection.
const gcPercent = 25

// expectRSS predicts the peak of the process from what it took before there was a model.
// Threads that compute have scratch of their own, of which tiles of attention have the most.
// Small pages of two sizes, of master weights and of state, take turns in Go's heap, and wait
// for a collection, which comes when the whole heap has grown by gcPercent.
func (r *report) expectRSS(base residence, m *model) {
	if r.PeakRSS == 0 {
		return
	}
	r.BaseRSS = base.now
	scratch, shared := int64(threadBytes), int64(codeBytes)
	if m.dev.IsCPU() {
		shared += amp.MatMulShared
		if m.on[useAttention] {
			scratch += m.attentionConfig().ScratchBytes()
		} else {
			scratch += amp.MatMulScratch
		}
	}
	grown := r.Predicted + shared + int64(runtime.GOMAXPROCS(0))*scratch
	if m.on[useOffload] && m.on[useAMP] && 4*m.chunk < mappedBytes {
		grown += (base.heap + grown) * gcPercent / 100
	}
	r.PredictedRSS = max(base.peak, base.now+grown)
}

// print writes the measurements, a sample and, if asked, the line of JSON.
func (r *report) print(ctx context.Context, w io.Writer, t *trainer, asJSON bool) error {
	printMeasured(w, r)
	fmt.Fprintf(w, "\nloss on held-out text: %.4f before, %.4f after %s", r.LossFirst, r.LossLast, count(r.Steps, "step"))
	if r.TokensPerS > 0 { // this process has trained
		fmt.Fprintf(w, "; %.0f tokens/s on %s", r.TokensPerS, t.deviceText())
	}
	fmt.Fprintln(w)
	text, err := t.sample(ctx, sampleStart)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "\nthe model writes: %q\n", text)
	if !asJSON {
		return nil
	}
	line, err := json.Marshal(r)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s\n", line)
	return err
}
