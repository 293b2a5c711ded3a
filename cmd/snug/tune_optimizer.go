package main

import (
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/quant8"
)

// tuneOptimizers are the names of -optimizer.
var tuneOptimizers = []string{"adamw", "schedule-free", "prodigy", "apollo", "apollo-mini", "galore", "adam-mini", "soap"}

// optimizerFlag is the flag -optimizer.
func (f *tuneFlags) optimizerFlag() *flagRow {
	return wordFlag("optimizer", "NAME", &f.optimizer, tuneOptimizers, "adamw (default). schedule-free: its rate stays constant after its warmup, and an average of the weights is saved; not with -fold. "+
		"prodigy: it finds the rate, and -lr is a factor of it; not with -fold or -disk. With -full also apollo, apollo-mini, galore or adam-mini, whose state is smaller, and soap, whose state is "+
		"larger and whose steps take longer, the first one as long as several; not with -disk or -fold, and not with adapters, which are low rank already")
}

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

// checkOptimizer returns what is wrong about -optimizer and the flags beside it.
func (f *tuneFlags) checkOptimizer() string {
	for _, c := range []struct {
		bad  bool
		what string
	}{
		{f.lowRank() && !f.full, "-optimizer " + f.optimizer + " is for -full: adapters are low rank already"},
		{f.projects() && !f.full, "-optimizer " + f.optimizer + " is for -full"},
		{f.optimizer == "adam-mini" && (!f.full || f.fold || f.disk > 0), "-optimizer adam-mini is for -full, without -fold and -disk: its blocks are those of whole weight matrices and take whole gradients"},
		{f.optimizer == "prodigy" && f.fold, "-fold does not go with -optimizer prodigy, which takes whole gradients"},
		{f.optimizer == "prodigy" && f.disk > 0, "-optimizer prodigy has numbers of whole parameters in memory, and -disk makes pages of them"},
		{f.averages() && f.fold, "-fold does not go with -optimizer " + f.optimizer + ", which needs the memory of all gradients between steps"},
		{f.projects() && f.fold, "-fold does not go with -optimizer " + f.optimizer + ", which projects whole gradients"},
		{f.projects() && f.disk > 0, "-optimizer " + f.optimizer + " takes whole matrices, and -disk makes pages of them"},
	} {
		if c.bad {
			return c.what
		}
	}
	return ""
}
