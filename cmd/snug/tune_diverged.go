package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/console"
	"github.com/snug-ml/snug/internal/report"
	"github.com/snug-ml/snug/meter"
)

// divergedAdvice says what to try after a run that has diverged.
func (t *tuning) divergedAdvice(d console.Diverged) string {
	var tries []string
	if d.Step > 0 || t.trainer.Step() > 0 {
		tries = append(tries, fmt.Sprintf("a lower -lr than %v (the default is %v)", t.rate, t.defaultRate()))
	}
	if t.dtype == snug.F16 {
		tries = append(tries, "-compute bf16, whose numbers do not overflow at 65504")
	}
	if d.Step == 0 {
		tries = append(tries, "another copy of the model, as a weight of "+t.dir+" may not be finite")
	}
	return "try " + strings.Join(tries, ", or ")
}

// overflowRemedy says what to do about activations that overflow in a type. It follows a sentence.
func overflowRemedy(dt snug.DType) string {
	if dt == snug.F16 {
		return "; float16 goes up to 65504, which models trained in bfloat16, such as Gemma, exceed: use -compute bf16"
	}
	return ""
}

// stateOf returns what the line of -json of a run says of how it ended.
func stateOf(failed error) string {
	var lost console.Diverged
	var ended console.Interruption
	switch {
	case failed == nil:
		return "done"
	case errors.As(failed, &lost):
		return "diverged"
	case errors.As(failed, &ended):
		return "stopped"
	}
	return "failed"
}

// reportFailure prints the line of -json of a run that is not done.
func (t *tuning) reportFailure(r result, failed error) error {
	if !t.json {
		return nil
	}
	r.State = stateOf(failed)
	r.Error = oneLine(failed, t.call.args...)
	_, r.PeakRSS = meter.Resident()
	peak := t.peaks(r)
	r.Predicted, r.Resident = peak.Predicted.Total(), peak.Resident
	return writeLine(t.call.stdout, r)
}

// MarshalJSON writes losses that are not finite as null, which JSON has no numbers for.
func (r result) MarshalJSON() ([]byte, error) {
	type plain result
	number := func(x float64) any {
		if math.IsNaN(x) || math.IsInf(x, 0) {
			return nil
		}
		return x
	}
	optional := func(x float64) *any {
		if x == 0 {
			return nil
		}
		value := number(x)
		return &value
	}
	r.Between = slices.DeleteFunc(slices.Clone(r.Between), func(e report.Evaluation) bool { return number(e.Loss) == nil })
	return json.Marshal(struct {
		plain
		LossFirst *any `json:"held_out_loss_first,omitempty"`
		LossLast  *any `json:"held_out_loss_last,omitempty"`
		Loss      any  `json:"loss"`
	}{plain(r), optional(r.LossFirst), optional(r.LossLast), number(r.Loss)})
}

// float32Flag is a number of the command line that the arithmetic has in float32.
type float32Flag struct {
	name  string
	value float64
	below float64 // 0, or what the rounded value must be below
}

// unfitting returns an error if a number vanishes or overflows in float32. A subnormal number has lost digits.
func (f *tuneFlags) unfitting() error {
	const smallest = 0x1p-126
	for _, x := range []float32Flag{
		{"lr", f.rate, 0}, {"alpha", f.alpha, 0}, {"dropout", f.dropout, 1}, {"loraplus-ratio", f.loraplus, 0}, {"label-smoothing", f.smoothing, 0},
		{"z-loss", f.zLoss, 0}, {"dpo", f.beta, 0}, {"distill-weight", f.teacher.share, 0}, {"distill-temperature", f.teacher.temperature, 0},
	} {
		if rounded := float64(float32(x.value)); x.value != 0 && !(rounded >= smallest && rounded <= math.MaxFloat32) || x.below > 0 && rounded >= x.below {
			return usagef("tune: -%s %v: in float32, with which snug computes, it is %v", x.name, x.value, float32(x.value))
		}
	}
	if scale := f.alpha / float64(max(1, f.rank)); f.alpha > 0 && float64(float32(scale)) < smallest {
		return usagef("tune: -alpha %v: the products are scaled by alpha/rank, which is %v in float32", f.alpha, float32(scale))
	}
	return nil
}
