package main

import (
	"encoding/json"
	"fmt"
	"io"
	"runtime"

	"github.com/snug-ml/snug/internal/console"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/plan"
)

// save writes the adapter, or the model with the files that its users need, on the rank that writes.
func (t *tuning) save() error {
	if err := t.trainer.Average(); err != nil {
		return err
	}
	switch {
	case t.full && t.follows() && t.plan.Run.Shard == plan.ShardWeights:
		return t.model.JoinSave(0)
	case t.follows():
		return nil
	case t.imageRun.model != nil && t.full:
		return t.imageRun.model.Save(t.output, 0)
	case !t.full:
		return t.model.SaveAdapter(t.output)
	}
	return t.model.Save(t.output, 0) // beside the companions, which takeOutput copied
}

// peaks returns the predicted and the measured peaks, as a table and a report have them.
func (t *tuning) peaks(r result) console.Peak {
	predicted := t.plan.Peak[meter.OnDevice]
	predicted[meter.Allowance] = 0
	return console.Peak{Predicted: predicted, Measured: r.Components, Total: r.Measured, Resident: t.resident(), RSS: r.PeakRSS}
}

// report prints the predicted and measured memory, the speed and the losses.
func (t *tuning) report(r result) (err error) {
	_, r.PeakRSS = meter.Resident()
	peak := t.peaks(r)
	r.Predicted, r.Resident = peak.Predicted.Total(), peak.Resident
	where := t.dev.Name()
	if !t.onDevice() {
		where = console.Count(runtime.GOMAXPROCS(0), "core")
	}
	w := t.call.stdout
	if err := peak.Write(w, meter.FormatBytes, false); err != nil {
		return err
	}
	if r.Seconds > 0 {
		fmt.Fprintf(w, "\n%s in %.0f s: %.1f tokens/s on %s\n", console.Count(r.Steps, "step"), r.Seconds, float64(r.Tokens)/r.Seconds, where)
	}
	if r.LossLast > 0 {
		before := ""
		if r.LossFirst > 0 {
			before = fmt.Sprintf("%.4f before, ", r.LossFirst)
		}
		fmt.Fprintf(w, "loss on held-out samples: %s%.4f after\n", before, r.LossLast)
	}
	r.writePreferences(w)
	r.writeDivergence(w)
	t.reportRounding(w, &r)
	fmt.Fprintln(w, t.howToUse())
	if err := t.finishReport(peak); err != nil {
		return err
	}
	if !t.json {
		return nil
	}
	r.State = "done"
	return writeLine(w, r)
}

// howToUse says where the result is, and the command that generates text with it.
func (t *tuning) howToUse() string {
	out := shellQuote(t.output)
	if t.seesImages() {
		out += " -image FILE"
		if t.pixels > 0 {
			out += fmt.Sprintf(" -max-pixels %d", t.pixels)
		}
	}
	switch text := "the adapter is in " + escaped(t.output) + ": snug generate -model " + shellQuote(t.dir) + " -adapter " + out; {
	case t.full:
		return "the model is in " + escaped(t.output) + ": snug generate -model " + out
	case t.kind().base != "":
		return text + " -base " + t.kind().base
	default:
		return text + t.forTarget()
	}
}

// forTarget is the line with the command that writes the adapter for the program of -for.
func (t *tuning) forTarget() string {
	to := t.target()
	if to == nil || to.alone == "" {
		return ""
	}
	return "\nfor " + to.title + ": snug export -model " + shellQuote(t.dir) + " -adapter " + shellQuote(t.output) + " " + to.alone
}

// reportPlan ends a dry run.
func (t *tuning) reportPlan() (err error) {
	if !t.json {
		return nil
	}
	out := planReport(t.plan)
	stats := t.data.Stats()
	out.Data = &stats
	if out.Process = t.resident(); t.memory == 0 && !t.onDevice() {
		out.Limit = 0
	}
	return writeLine(t.call.stdout, out)
}

func writeLine(w io.Writer, v any) error {
	line, err := json.Marshal(v)
	if err == nil {
		_, err = fmt.Fprintf(w, "%s\n", line)
	}
	return err
}
