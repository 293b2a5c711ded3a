package main

import (
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/quant8"
)

// tuneOptimizers are the names of -optimizer.
var tuneOptimizers = []string{"adamw", "schedule-free", "prodigy", "apollo", "apollo-mini", "galore", "adam-mini", "soap"}

// projects reports whether the optimizer projects the gradients of matrices.
func (f *tuneFlags) projects() bool {
	switch f.rule().(type) {
	case quant8.Apollo, quant8.GaLore, quant8.SOAP:
		return true
	}
	return false
}

// lowRank reports whether the optimizer projects gradients onto few directions. It then has its own default rate.
func (f *tuneFlags) lowRank() bool { return f.projects() && f.optimizer != "soap" }

// averages reports whether the model is evaluated with averages of the parameters that train.
func (f *tuneFlags) averages() bool { return f.optimizer == "schedule-free" }

// rule returns the optimizer.
func (f *tuneFlags) rule() quant8.Rule {
	if f.mezo && f.full {
		return quant8.MeZO{}
	}
	if f.mezo {
		return quant8.MeZO{Epsilon: 1e-2} // the paper's value for adapters
	}
	switch f.optimizer {
	case "apollo", "apollo-mini":
		return quant8.Apollo{Tensor: f.optimizer == "apollo-mini", WeightDecay: 0.01}
	case "galore":
		return quant8.GaLore{WeightDecay: 0.01}
	case "adam-mini":
		return quant8.AdamMini{WeightDecay: 0.01}
	case "soap":
		return quant8.SOAP{WeightDecay: 0.01}
	case "prodigy":
		return quant8.Prodigy{WeightDecay: 0.01, SliceP: plan.ProdigySlice, BiasCorrection: true, SafeguardWarmup: true}
	case "schedule-free":
		return quant8.ScheduleFree{WeightDecay: 0.01}
	}
	return quant8.AdamW{WeightDecay: 0.01}
}

// defaultRate returns the peak of the learning rate without -lr.
func (f *tuneFlags) defaultRate() float64 {
	rate := map[bool]float64{true: 1e-5, false: 2e-4}[f.full]
	if f.beta > 0 {
		rate = preferenceRates[f.full]
	}
	switch {
	case f.mezo:
		return map[bool]float64{true: 1e-6, false: 1e-4}[f.full]
	case f.optimizer == "prodigy":
		return 1 // a factor of the rate that it finds
	case f.averages():
		return 2.5 * rate
	case f.lowRank() && f.beta == 0:
		return 1e-4
	}
	return rate
}
