package main

import (
	"fmt"
	"strings"

	"github.com/snug-ml/snug/internal/fault"
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/quant8"
)

// defaultOptimizer is the name of -optimizer without it.
var defaultOptimizer = quant8.TraitsOf(quant8.Default()).Name

// tuneOptimizers returns the names of -optimizer: the rules that have a setting for fine-tuning.
func tuneOptimizers() []string {
	names := []string{defaultOptimizer}
	for _, name := range quant8.Names() {
		if t := optimizerTraits(name); name != defaultOptimizer && (t.Full.Rule != nil || t.Adapters.Rule != nil) {
			names = append(names, name)
		}
	}
	return names
}

// optimizerTraits returns the traits of the optimizer with a name, zero ones for an unknown name.
func optimizerTraits(name string) quant8.Traits {
	rule, err := quant8.RuleNamed(name)
	if err != nil {
		return quant8.Traits{}
	}
	return quant8.TraitsOf(rule)
}

// optimizerUse is a flag that asks something of an optimizer.
type optimizerUse struct {
	flag  string
	use   quant8.Use
	given bool
}

// optimizerUses returns these flags. checkDevice and join look at the last two.
func (f *tuneFlags) optimizerUses() []optimizerUse {
	return []optimizerUse{
		{"-fold", quant8.Folded, f.fold}, {"-disk", quant8.Paged, f.disk > 0}, {"-shard", quant8.Sharded, f.sharding != plan.Replicate},
		{"-device", quant8.OnDevice, false}, {"ranks", quant8.Reduced, false},
	}
}

// optimizerFlag is the flag -optimizer.
func (f *tuneFlags) optimizerFlag() *flagRow {
	help := "with the default of -lr, " + defaultOptimizer + " by default:"
	for _, name := range tuneOptimizers() {
		t := optimizerTraits(name)
		help += fmt.Sprintf("\n- %s: %s. ", name, t.About)
		if t.Adapters.Rule == nil {
			help += fmt.Sprintf("Only with -full, -lr %v", t.Full.Rate)
		} else {
			help += fmt.Sprintf("-lr %v, with -full %v", t.Adapters.Rate, t.Full.Rate)
		}
		var not []string
		for _, u := range f.optimizerUses() {
			if t.Refuses(u.use) != "" {
				not = append(not, u.flag)
			}
		}
		if not != nil {
			help += ". Not with " + strings.Join(not, ", ")
		}
	}
	return wordFlag("optimizer", "NAME", &f.optimizer, tuneOptimizers(), help)
}

// namedOptimizer returns the optimizer if it is another than the default, which checkpoints do not name.
func (f *tuneFlags) namedOptimizer() string {
	if f.traits().Name == defaultOptimizer {
		return ""
	}
	return f.optimizer
}

// traits returns the traits of the optimizer.
func (f *tuneFlags) traits() quant8.Traits { return optimizerTraits(f.optimizer) }

// setting returns the optimizer with its hyperparameters.
func (f *tuneFlags) setting() quant8.Setting {
	if f.full {
		return f.traits().Full
	}
	return f.traits().Adapters
}

// defaultRate returns the peak of the learning rate without -lr.
func (f *tuneFlags) defaultRate() float64 {
	if f.subject != nil {
		return f.subject.rate(f)
	}
	if f.beta > 0 {
		return f.setting().Preference
	}
	return f.setting().Rate
}

// optimizerRules are what does not go with -optimizer.
func (f *tuneFlags) optimizerRules() []fault.Rule {
	t := f.traits()
	list := []fault.Rule{
		{!f.full && t.Adapters.Rule == nil && t.Rank > 0, "-optimizer " + f.optimizer + " is for -full: adapters are low rank already"},
		{f.setting().Rule == nil, "-optimizer " + f.optimizer + " is for -full"},
		{f.sharding != plan.Replicate && f.rounding, "-shard " + f.shard + " divides parameters, and -report-rounding counts whole ones"},
	}
	for _, u := range f.optimizerUses() {
		why := t.Conflict(u.flag, u.use)
		list = append(list, fault.Rule{u.given && why != "", why})
	}
	return list
}
