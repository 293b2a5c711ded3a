package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/snug-ml/snug/gguf"
	"github.com/snug-ml/snug/transformer"
)

// target is a program that is to run what tune writes: what it does not take, and what takes that. Facts are from the programs'
// public sources and documentation of 2026.
type target struct {
	name, title string
	excludes    []exclusion
	// model, unless nil, returns an error for a model that the program does not compute.
	model func(c *transformer.Config) error
	after string // how it runs a merged model, and is added to snug merge
	alone string // flags of snug export that write the adapter for it, empty: it takes the folder
}

// exclusion is what a program does not take of adapters.
type exclusion struct {
	is   func(f *tuneFlags, c *transformer.Config) bool
	what string
}

// What adapters may have.
var (
	hasDoRA    = func(f *tuneFlags, _ *transformer.Config) bool { return f.kind().dora }
	hasVeRA    = func(f *tuneFlags, _ *transformer.Config) bool { return f.kind().shared }
	hasBase    = func(f *tuneFlags, _ *transformer.Config) bool { return f.kind().base != "" }
	hasModules = func(f *tuneFlags, c *transformer.Config) bool {
		return f.modules != "" || c.Whole != "" && f.trainsProjector()
	}
	hasDoRAOfExperts = func(f *tuneFlags, c *transformer.Config) bool { return f.kind().dora && c.Experts.Count > 0 }
	adaptersEnd      = func(_ *tuneFlags, c *transformer.Config) bool { return c.CheckAdapterGGUF() != nil } // of models that it runs
	isGGUF           = func(f *tuneFlags, _ *transformer.Config) bool { return gguf.IsFile(f.dir) }
)

const ofGGUF = "adapters of a GGUF file, since it wants the model as a folder"

const trainedWhole = "modules that train whole (-modules-to-save, and the projector of images without -train text)"

// maxVLLMRank is the largest value of vLLM's --max-lora-rank.
const maxVLLMRank = 512

// targets are the values of -for.
var targets = []target{
	{
		name: "transformers", title: "transformers with PEFT", after: "AutoModelForCausalLM.from_pretrained(MERGED)",
		excludes: []exclusion{{isGGUF, ofGGUF}},
	}, {
		name: "vllm", title: "vLLM", after: "vllm serve MERGED",
		excludes: []exclusion{
			{hasDoRA, "the magnitudes of DoRA (use_dora)"},
			{hasVeRA, "adapters of VeRA"},
			{isGGUF, ofGGUF},
			{hasModules, trainedWhole},
			{func(f *tuneFlags, _ *transformer.Config) bool { return f.rank > maxVLLMRank }, fmt.Sprintf("a rank above %d (--max-lora-rank)", maxVLLMRank)},
		},
	}, {
		name: "llama.cpp", title: "llama.cpp", alone: "-gguf ADAPTER.gguf -lora", after: "snug export -model MERGED -gguf FILE.gguf",
		excludes: []exclusion{
			{hasDoRA, "the magnitudes of DoRA"},
			{hasVeRA, "adapters of VeRA"},
			{hasModules, trainedWhole},
			{hasBase, "adapters for weights in nf4, which it does not have"},
			{adaptersEnd, "adapters of this model"},
		},
		model: func(c *transformer.Config) error {
			_, err := c.GGUF("")
			return err
		},
	}, {
		name: "mlx", title: "mlx-lm", alone: "-mlx DIR", after: "mlx_lm.convert --hf-path MERGED",
		excludes: []exclusion{
			{hasDoRAOfExperts, "the magnitudes of DoRA of experts"},
			{hasVeRA, "adapters of VeRA"},
			{hasModules, trainedWhole},
			{hasBase, "adapters for weights in nf4, which it does not have"},
			{isGGUF, ofGGUF},
		},
		model: (*transformer.Config).CheckMLX,
	},
}

func targetNames() []string { return namesOf(targets, func(t target) string { return t.name }) }

// target returns the target of -for.
func (f *tuneFlags) target() *target {
	i := slices.IndexFunc(targets, func(t target) bool { return t.name == f.purpose })
	if i < 0 {
		return nil
	}
	return &targets[i]
}

func (f *tuneFlags) targetFlag() *flagRow {
	return wordFlag("for", "PROGRAM", &f.purpose, targetNames(), "program that is to run the result: "+either(targetNames())+". What it does not take, "+
		"such as DoRA in vllm, is an error before anything is written, which says what works instead; default: nothing is checked")
}

// checkTarget returns an error that says what the target does not take, and what works instead.
func (f *tuneFlags) checkTarget(c *transformer.Config) error {
	t := f.target()
	if t == nil {
		return nil
	}
	if t.model != nil {
		if err := t.model(c); err != nil {
			return usagef("tune: -for %s: %w", t.name, err)
		}
	}
	var what []string
	for _, x := range t.excludes {
		if !f.full && x.is(f, c) {
			what = append(what, x.what)
		}
	}
	if len(what) == 0 {
		return nil
	}
	return usagef("tune: -for %s: %s does not take %s; without -for it trains, and runs there merged: snug merge -model %s -adapter %s -o MERGED, then %s",
		t.name, t.title, strings.Join(what, ", nor "), f.dir, cmp.Or(f.output, "ADAPTER"), t.after)
}
