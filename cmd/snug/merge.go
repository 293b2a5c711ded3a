package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/transformer"
	"github.com/snug-ml/snug/vision"
)

func mergeCommand() *command {
	return &command{
		name: "merge", summary: "merge an adapter into its model",
		help: `Merges an adapter into the weights of its model, and writes a model that transformers loads without
PEFT. The sums are computed in float32 and rounded once. It says how many updates rounding loses; a sum that
the type cannot hold is an error, and nothing is written then.
`,
		flags:   new(mergeFlags).table,
		closing: "  snug merge -model Qwen3-0.6B -adapter tuned -o merged\n",
		run:     runMerge,
	}
}

// mergeFlags are the command line of merge.
type mergeFlags struct {
	model, adapter, form, compute, output string
	copyLinks                             bool
}

// table returns the flags, which write into f.
func (f *mergeFlags) table() flagTable {
	return flagTable{
		modelFlag(&f.model, "folder of the model, as Hugging Face publishes it"),
		adapterDirFlag(&f.adapter, "folder of the adapter, as snug tune and PEFT write it"),
		baseFlag("base", &f.form, lowForms, "merge into quantized weights, "+either(lowForms)+", on which the adapter was trained; an adapter of loftq wants nf4. "+
			"Default: into the published weights"),
		computeFlag(&f.compute, "type of the weights: "+either(floatTypes)+"; default: the model's type"),
		outputFlag("DIR", &f.output, "new or empty folder to write the model to, and copies of the tokenizer's files: the model's, or the adapter's if its vocabulary "+
			"is another or it has more tokens; a line says which, if both have one and they differ"),
		copyLinksFlag(&f.copyLinks, "copy also files that are links out of their folder"),
		configFlag(),
	}
}

// merging is a model with an adapter: a text's, or the whole of one that sees images, whose tower stays as it is in the folder.
type merging struct {
	saved
	text *transformer.Model
}

// saved is a model that can be written.
type saved interface {
	Save(dir string, maxShardBytes int64) error
	Close() error
}

// openToMerge opens a model with an adapter.
func openToMerge(dir string, config *transformer.Config, o transformer.Options) (m merging, err error) {
	if config.Whole != "" && vision.Known(dir) {
		whole, err := vision.OpenModel(dir, vision.ModelOptions{Text: o, NoEncoder: true})
		if err != nil {
			return m, err
		}
		return merging{whole, whole.Text}, nil
	}
	m.text, err = transformer.Open(dir, o)
	return merging{m.text, m.text}, err
}

// mostLost is the share of the norm of an adapter's updates that rounding may take without a remedy being named.
const mostLost = 0.05

func runMerge(c *call) (err error) {
	var f mergeFlags
	flags := f.table()
	if _, err := c.parse(flags, 0, 0); err != nil {
		return err
	}
	o := transformer.Options{AdapterDir: f.adapter}
	for _, name := range []string{"model", "adapter", "o"} {
		if !flags.given(name) {
			return usagef("merge: want -%s", name)
		}
	}
	if err := setForms(&o, f.form, f.compute); err != nil {
		return err
	}
	if err := wantFolders("merge", f.model, f.adapter); err != nil {
		return err
	}
	if err := emptyFolder(f.output); err != nil {
		return usagef("merge: -o: %w", err)
	}
	noteLinks(c.stderr, f.model, f.adapter)
	config, err := transformer.ReadConfig(f.model)
	if err != nil {
		return usageError{err}
	}
	fmt.Fprint(c.stderr, unreadFields(config))
	from, _, note, err := tokenizerOf(f.model, f.adapter, config, "the output gets")
	if err != nil {
		return usageError{err}
	}
	takes := func(string) bool { return true }
	if from != f.model {
		takes = func(name string) bool { return !ofTokenizer(name) }
		if err := checkCompanions(from, f.copyLinks, ofTokenizer); err != nil {
			return usagef("merge: %w", err)
		}
	}
	if err := checkCompanions(f.model, f.copyLinks, takes); err != nil {
		return usagef("merge: %w", err)
	}
	fmt.Fprint(c.stderr, note)
	if err := fitsHost("merge", f.model, config, o, hostMemory(os.DirFS("/"))); err != nil {
		return err
	}
	m, err := openToMerge(f.model, config, o)
	if err != nil {
		return usageError{err}
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	out, err := takeOutput(f.output)
	if err != nil {
		return usagef("merge: -o: %w", err)
	}
	defer func() { err = errors.Join(err, out.drop()) }()
	out.note(c.stderr)
	if err := copyCompanions(f.output, f.model, f.copyLinks, takes); err != nil {
		return err
	}
	if from != f.model {
		if err := copyCompanions(f.output, from, f.copyLinks, ofTokenizer); err != nil {
			return err
		}
	}
	if err := m.Save(f.output, 0); err != nil {
		return err
	}
	if err := out.finish(); err != nil {
		return err
	}
	fmt.Fprintf(c.stdout, "%s: %s, with the adapter of %s\n", f.output, meter.FormatBytes(m.text.Memory().Weights), f.adapter)
	if lost := m.text.LostByMerging(); lost.Lost > 0 {
		fmt.Fprintf(c.stdout, "%d of %d updates lost to rounding, %.2f %% of their norm: they are too small to change a weight in the model's type\n",
			lost.Lost, lost.Updates, 100*lost.NormShare())
		if lost.NormShare() > mostLost {
			fmt.Fprintln(c.stdout, "  -compute f32 keeps them")
		}
	}
	return nil
}
