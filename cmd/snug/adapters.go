package main

import (
	"fmt"
	"math"
	"strings"

	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/transformer"
)

// adapterKind is a value of -adapter: what package qlora calls it, and what it takes and excludes.
type adapterKind struct {
	name, title string
	help        string
	rank        int    // by default
	init        string // PEFT's name of how the adapters begin, as qlora.AdapterOptions.Init
	base        string // the only -base, with which the result is used; empty for any
	dora        bool   // trains magnitudes
	frozenA     bool   // trains only the second matrices (B)
	shared      bool   // trains vectors beside matrices that all adapters share (VeRA)
}

// adapterKinds are the kinds, the default first.
var adapterKinds = []adapterKind{
	{name: "lora", title: "LoRA", rank: 16, help: "(default)"},
	{name: "dora", title: "DoRA", rank: 16, dora: true, help: "which also trains the magnitude of each row of the matrices"},
	{name: "pissa", title: "PiSSA", rank: 16, init: "pissa", help: "which begins with a part of each matrix (use the adapter with the published weights; " +
		"with -base nf4 it leaves out what 4 bits lost of the rest of them)"},
	{name: "olora", title: "OLoRA", rank: 16, init: "olora", help: "which begins with a part of each matrix, too"},
	{name: "loftq", title: "LoftQ", rank: 16, init: "loftq", base: "nf4", help: "which begins with what 4 bits lose (-base nf4)"},
	{name: "lora-fa", title: "LoRA-FA", rank: 16, frozenA: true, help: "which trains only the second matrix (B) of each adapter"},
	{name: "vera", title: "VeRA", rank: 256, shared: true, help: "which trains two vectors for each matrix, beside random matrices that all adapters share"},
}

// kindNames are the values of -adapter.
func kindNames() []string { return namesOf(adapterKinds, func(k adapterKind) string { return k.name }) }

// kindNamed returns a kind, the default one for an empty name.
func kindNamed(name string) adapterKind {
	for _, k := range adapterKinds {
		if k.name == name {
			return k
		}
	}
	return adapterKinds[0]
}

// adapterFlags are the flags that say what adapters train.
type adapterFlags struct {
	rank     int
	kindName string // empty: lora, or dora with -dora
	isDoRA   bool   // -dora
	dropout  float64
}

// kind returns the kind of the adapters.
func (f *adapterFlags) kind() adapterKind {
	if f.kindName == "" && f.isDoRA {
		return kindNamed("dora")
	}
	return kindNamed(f.kindName)
}

func (f *adapterFlags) kindFlag() *flagRow {
	var kinds []string
	for _, k := range adapterKinds {
		mark := ", "
		if strings.HasPrefix(k.help, "(") {
			mark = " "
		}
		kinds = append(kinds, k.name+mark+k.help)
	}
	return wordFlag("adapter", "KIND", &f.kindName, kindNames(), "kind of the adapters: "+strings.Join(kinds, "; "))
}

func (f *adapterFlags) doraFlag() *flagRow {
	return switchFlag("dora", &f.isDoRA, "the same as -adapter dora")
}

func (f *adapterFlags) dropoutFlag() *flagRow {
	return numberFlag("dropout", "P", &f.dropout, 0, "0 or more and less than 1", func(x float64) bool { return x >= 0 && x < 1 },
		"probability to drop an element of an adapter's input; default 0")
}

// check returns an error unless the flags fit together.
func (f *adapterFlags) check() error {
	if f.isDoRA && !f.kind().dora {
		return fmt.Errorf("-dora is -adapter dora, and -adapter is %s", f.kindName)
	}
	return nil
}

// describe sets the kind of the adapters in a task of package plan.
func (f *adapterFlags) describe(t *plan.Task) {
	k := f.kind()
	t.DoRA, t.FrozenA, t.Init, t.VeRA = k.dora, k.frozenA, k.init, k.shared
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
	if side := smallestSide(m); f.kind().init != "" && f.rank > side {
		return nil, usagef("tune: -lora %d: -adapter %s takes at most %d, the smallest side of a matrix", f.rank, f.kind().name, side)
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
