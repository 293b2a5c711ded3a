package main

import (
	"errors"
	"flag"
	"fmt"
	"os"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/transformer"
)

func mergeCommand() *command {
	return &command{
		name: "merge", summary: "merge an adapter into its model",
		flags: []string{"-model:file", "-adapter:file", "-base:nf4 fp4 mxfp4 fp8 int8", "-compute:bf16 f16 f32", "-o:file", "-copy-links"},
		help:  mergeHelp,
		run:   runMerge,
	}
}

const mergeHelp = `Merges an adapter into the weights of its model, and writes a model that transformers loads without
PEFT. The sums are computed in float32 and rounded once. It says how many updates rounding loses; a sum that
the type cannot hold is an error, and nothing is written then.

  -model DIR      folder of the model, as Hugging Face publishes it
  -adapter DIR    folder of the adapter, as snug tune and PEFT write it
  -base FORM      merge into quantized weights, nf4, fp4, mxfp4, fp8 or int8, on which the adapter was
                  trained; an adapter of loftq wants nf4. Default: into the published weights
  -compute TYPE   type of the weights: bf16, f16 or f32; default: the model's type
  -o DIR          new or empty folder to write the model to, and copies of the tokenizer's files: the
                  model's, or the adapter's if its vocabulary is another or it has more tokens; a line
                  says which, if both have one and they differ
  -copy-links     copy also files that are links out of their folder

  snug merge -model Qwen3-0.6B -adapter tuned -o merged
`

// mostLost is the share of the norm of an adapter's updates that rounding may take without a remedy being named.
const mostLost = 0.05

func runMerge(c *call) (err error) {
	var model, adapter, form, compute, output string
	copyLinks := false
	_, err = c.parse(func(fs *flag.FlagSet) {
		fs.StringVar(&model, "model", "", "")
		fs.StringVar(&adapter, "adapter", "", "")
		fs.StringVar(&form, "base", "", "")
		fs.StringVar(&compute, "compute", "", "")
		fs.StringVar(&output, "o", "", "")
		fs.BoolVar(&copyLinks, "copy-links", false, "")
	}, 0, 0)
	if err != nil {
		return err
	}
	o := transformer.Options{AdapterDir: adapter}
	for _, f := range []struct{ flag, value string }{{"model", model}, {"adapter", adapter}, {"o", output}} {
		if f.value == "" {
			return usagef("merge: want -%s", f.flag)
		}
	}
	if form != "" {
		if o.Base, err = parseBase(form); err != nil {
			return usagef("merge: -base %w", err)
		}
	}
	if compute != "" {
		if o.DType, err = snug.ParseDType(compute); err != nil || !o.DType.IsFloat() {
			return usagef("merge: -compute %.40q: want bf16, f16 or f32", compute)
		}
	}
	if err := wantFolders("merge", model, adapter); err != nil {
		return err
	}
	if err := emptyFolder(output); err != nil {
		return usagef("merge: -o: %w", err)
	}
	noteLinks(c.stderr, model, adapter)
	config, err := transformer.ReadConfig(model)
	if err != nil {
		return usageError{err}
	}
	fmt.Fprint(c.stderr, unreadFields(config))
	from, _, note, err := tokenizerOf(model, adapter, config, "the output gets")
	if err != nil {
		return usageError{err}
	}
	takes := func(string) bool { return true }
	if from != model {
		takes = func(name string) bool { return !ofTokenizer(name) }
		if err := checkSome(from, copyLinks, ofTokenizer); err != nil {
			return usagef("merge: %w", err)
		}
	}
	if err := checkSome(model, copyLinks, takes); err != nil {
		return usagef("merge: %w", err)
	}
	fmt.Fprint(c.stderr, note)
	if err := fitsHost("merge", model, config, o, hostMemory(os.DirFS("/"))); err != nil {
		return err
	}
	m, err := transformer.Open(model, o)
	if err != nil {
		return usageError{err}
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	out, err := takeOutput(output)
	if err != nil {
		return usagef("merge: -o: %w", err)
	}
	defer func() { err = errors.Join(err, out.drop()) }()
	out.note(c.stderr)
	if err := copySome(output, model, copyLinks, takes); err != nil {
		return err
	}
	if from != model {
		if err := copySome(output, from, copyLinks, ofTokenizer); err != nil {
			return err
		}
	}
	if err := m.Save(output, 0); err != nil {
		return err
	}
	if err := out.finish(); err != nil {
		return err
	}
	fmt.Fprintf(c.stdout, "%s: %s, with the adapter of %s\n", output, plan.FormatBytes(m.Memory().Weights), adapter)
	if lost := m.LostByMerging(); lost.Lost > 0 {
		fmt.Fprintf(c.stdout, "%d of %d updates lost to rounding, %.2f %% of their norm: they are too small to change a weight in the model's type\n",
			lost.Lost, lost.Updates, 100*lost.NormShare())
		if lost.NormShare() > mostLost {
			fmt.Fprintln(c.stdout, "  -compute f32 keeps them")
		}
	}
	return nil
}
