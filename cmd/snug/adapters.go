package main

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/qlora"
	"github.com/snug-ml/snug/transformer"
)

// adapterKinds are the values of -adapter.
var adapterKinds = []string{"lora", "dora", "pissa", "olora", "loftq", "lora-fa", "vera"}

// vera is the kind whose adapters share their matrices. defaultVeRARank is its default rank, which is PEFT's.
const (
	vera            = "vera"
	defaultVeRARank = 256
)

// adapterFlags are the flags that say what kind of adapters train.
type adapterFlags struct {
	kind string // empty: lora, or dora with -dora
	dora bool
}

// check returns an error unless the flags fit together, and sets the kind.
func (f *adapterFlags) check() error {
	switch {
	case f.kind == "" && f.dora:
		f.kind = "dora"
	case f.kind == "":
		f.kind = "lora"
	case !slices.Contains(adapterKinds, f.kind):
		return fmt.Errorf("-adapter %.40q: want one of %s", f.kind, strings.Join(adapterKinds, ", "))
	case f.dora && f.kind != "dora":
		return fmt.Errorf("-dora is -adapter dora, and -adapter is %s", f.kind)
	}
	return nil
}

// init returns PEFT's name for the initialization of the adapters, or an empty string for the default.
func (f *adapterFlags) init() string {
	switch f.kind {
	case "pissa", "olora", "loftq":
		return f.kind
	}
	return ""
}

func (f *adapterFlags) isDoRA() bool { return f.kind == "dora" }

func (f *adapterFlags) freezesA() bool { return f.kind == "lora-fa" }

// describe sets the kind of the adapters in a task of package plan.
func (f *adapterFlags) describe(t *plan.Task) {
	t.DoRA, t.FrozenA, t.Init, t.VeRA = f.isDoRA(), f.freezesA(), f.init(), f.kind == vera
}

// options sets the kind of the adapters in their options.
func (f *adapterFlags) options(o *qlora.AdapterOptions) {
	o.DoRA, o.FrozenA, o.Init = f.isDoRA(), f.freezesA(), f.init()
	if f.kind == vera {
		o.Alpha, o.VeRA = 0, &qlora.VeRAOptions{}
	}
}

// modulesToSave returns the names of -modules-to-save.
func (f *tuneFlags) modulesToSave() []string {
	if f.modules == "" {
		return nil
	}
	names := strings.Split(f.modules, ",")
	for i, name := range names {
		names[i] = strings.TrimSpace(name)
	}
	return names
}

// checkAdapters returns the shapes of what trains beside the adapters, or an error if the model cannot have them.
func (f *tuneFlags) checkAdapters(c *transformer.Config) (beside [][]int, err error) {
	m, err := c.Plan(1)
	if err != nil {
		return nil, err
	}
	if side := smallestSide(m); f.init() != "" && f.rank > side {
		return nil, usagef("tune: -lora %d: -adapter %s takes at most %d, the smallest side of a matrix", f.rank, f.kind, side)
	}
	saved, err := c.ModulesToSave(f.modulesToSave())
	if err != nil {
		return nil, usagef("tune: -modules-to-save: %w", err)
	}
	for _, p := range saved {
		beside = append(beside, p.Shape)
	}
	return beside, nil
}

// smallestSide returns the smallest side of the matrices of the layers.
func smallestSide(m plan.Model) int {
	side := math.MaxInt
	for _, l := range m.Layers {
		for _, shape := range l.Params {
			if len(shape) == 2 {
				side = min(side, shape[0], shape[1])
			}
		}
	}
	return side
}
