package main

import (
	"errors"
	"fmt"
	"iter"
	"runtime/debug"
	"time"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/internal/console"
	"github.com/snug-ml/snug/internal/files"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/transformer"
	"github.com/snug-ml/snug/vision"
)

func mergeCommand() *command {
	return &command{
		name: "merge", summary: "merge an adapter into its model",
		help: `Merges an adapter into the weights of its model, and writes a model that transformers loads without
PEFT. The sums are computed in float32 and rounded once for each adapter. It says how many updates rounding
loses; a sum that the type cannot hold is an error, and nothing is written then. It reads, merges and writes
a matrix at a time: its memory is about that of the adapters and of the largest matrix.
`,
		flags:   new(mergeFlags).table,
		closing: "  snug merge -model Qwen3-0.6B -adapter tuned -o merged\n  snug merge -model Qwen3-0.6B -adapter style -adapter facts -dry-run\n",
		run:     runMerge,
	}
}

// mergeFlags are the command line of merge.
type mergeFlags struct {
	model, form, compute, output string
	adapters                     []string
	copyLinks, dryRun            bool
	memory                       int64
}

// table returns the flags, which write into f.
func (f *mergeFlags) table() flagTable {
	return flagTable{
		modelFlag(&f.model, "the model: a folder as Hugging Face publishes it, or a GGUF file"),
		foldersFlag("adapter", &f.adapters, "folder of the adapter, as snug tune and PEFT write it, or a GGUF file as snug export -lora writes it; several are merged in this order, as PEFT's merge_and_unload does one after the other"),
		baseFlag("base", &f.form, lowForms, "merge into quantized weights, "+either(lowForms)+", on which the (first) adapter was trained; an adapter of loftq wants nf4. "+
			"Default: into the published weights"),
		computeFlag(&f.compute, "type of the weights: "+either(floatTypes)+"; default: the model's type"),
		sizeFlag("memory", &f.memory, "limit of the resident memory of the process, such as 600MiB; default: none"),
		switchFlag("dry-run", &f.dryRun, "write nothing: say what the output takes, the memory, the time, what rounding loses, and the room on the disk"),
		outputFlag("DIR", &f.output, "new or empty folder to write the model to, and copies of the tokenizer's files: the model's, or the adapter's if its vocabulary "+
			"is another or it has more tokens; a line says which, if both have one and they differ"),
		copyLinksFlag(&f.copyLinks, "copy also files that are links out of their folder"),
		configFlag(),
	}
}

// merging is a model with adapters: a text's, or the whole of one that sees images, whose tower stays as it is in the folder.
type merging struct {
	saved
	text *transformer.Model
	size transformer.SaveSize
}

// saved is a model that can be written.
type saved interface {
	Save(dir string, maxShardBytes int64) error
	SaveSize() transformer.SaveSize
	Close() error
}

// openToMerge opens a model with its adapters.
func openToMerge(dir string, config *transformer.Config, o transformer.Options) (m merging, err error) {
	if config.Whole != "" && vision.Known(dir) {
		whole, err := vision.OpenModel(dir, vision.ModelOptions{Text: o, NoEncoder: true})
		if err != nil {
			return m, err
		}
		return merging{whole, whole.Text, whole.SaveSize()}, nil
	}
	if m.text, err = transformer.Open(dir, o); err != nil {
		return m, err
	}
	return merging{m.text, m.text, m.text.SaveSize()}, nil
}

// mostLost is the share of the norm of an adapter's updates that rounding may take without a remedy being named.
const mostLost = 0.05

func runMerge(c *call) (err error) {
	var f mergeFlags
	flags := f.table()
	if _, err := c.parse(flags, 0, 0); err != nil {
		return err
	}
	o, err := f.check(flags)
	if err != nil {
		return err
	}
	noteLinks(c.stderr, append([]string{f.model}, f.adapters...)...)
	config, err := transformer.ReadConfig(f.model)
	if err != nil {
		return usageError{err}
	}
	fmt.Fprint(c.stderr, unreadFields(config))
	beside, err := f.companions(c, config)
	if err != nil {
		return err
	}
	return untilSignal(c, func(stop console.Stop) error {
		o.Context = stop.After
		return f.merge(c, config, beside, o)
	})
}

// merge opens the model with its adapters, and writes it.
func (f *mergeFlags) merge(c *call, config *transformer.Config, beside mergeCompanions, o transformer.Options) (err error) {
	process := newProcessRoom("merge", f.memory)
	defer debug.SetGCPercent(debug.SetGCPercent(gcPercent))
	m, err := openToMerge(f.model, config, o)
	if err != nil {
		return usageError{err}
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	if err := process.take(m.size.Memory); err != nil {
		return err
	}
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(process.heapLimit()))
	if f.dryRun {
		return f.rehearse(c, &m, process)
	}
	out, err := takeOutput(f.output)
	if err != nil {
		return usagef("merge: -o: %w", err)
	}
	defer func() { err = errors.Join(err, out.drop()) }()
	out.note(c.stderr)
	if err := checkRoom("merge", f.rooms(m), files.SpaceOf); err != nil { // now that what a killed run left is gone
		return err
	}
	if err := beside.copy(f.output, f.model, f.copyLinks); err != nil {
		return err
	}
	began := time.Now()
	if err := m.Save(f.output, 0); err != nil {
		return err
	}
	took := time.Since(began)
	if err := out.finish(); err != nil {
		return err
	}
	fmt.Fprintf(c.stdout, "%s: %s, with %s\n", f.output, meter.FormatBytes(m.size.Bytes), f.merged())
	if config.Stored != 0 {
		fmt.Fprintf(c.stdout, "the matrices that %s has in %s are in floats, and config.json has no quantization_config\n", f.model, config.Stored)
	}
	_, peak := meter.Resident()
	fmt.Fprintf(c.stdout, "%s in %.1f s, peak RSS %s, %s predicted\n", rate(m.size.Bytes, took), took.Seconds(), meter.FormatBytes(peak), meter.FormatBytes(process.predicted))
	f.reportLost(c, m.text.LostByMerging())
	return nil
}

// check checks the command line, and returns how the model is opened.
func (f *mergeFlags) check(flags flagTable) (o transformer.Options, err error) {
	for _, name := range []string{"model", "adapter", "o"} {
		if !flags.given(name) && !(f.dryRun && name == "o") {
			return o, usagef("merge: want -%s", name)
		}
	}
	n := len(f.adapters) - 1
	o = transformer.Options{AdapterDir: f.adapters[n], Before: f.adapters[:n], SaveOnly: true}
	if err := setForms(&o, f.form, f.compute); err != nil {
		return o, err
	}
	for _, adapter := range f.adapters {
		if err := wantFolders("merge", f.model, adapter); err != nil {
			return o, err
		}
	}
	if flags.given("o") {
		if err := emptyFolder(f.output); err != nil {
			return o, usagef("merge: -o: %w", err)
		}
	}
	return o, nil
}

// merged names the adapters.
func (f *mergeFlags) merged() string {
	if len(f.adapters) == 1 {
		return "the adapter of " + f.adapters[0]
	}
	return "the adapters of " + joinWords(f.adapters, " and ")
}

// rehearse merges without writing, and says what a merge takes and loses.
func (f *mergeFlags) rehearse(c *call, m *merging, process *processRoom) error {
	began := time.Now()
	err := m.text.Weights(func(tensors iter.Seq2[amp.Tensor, snug.View]) error {
		for t := range tensors {
			if _, err := t.Make(); err != nil {
				return fmt.Errorf("tensor %q: %w", t.Name, err)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	took := time.Since(began)
	_, peak := meter.Resident()
	fmt.Fprintf(c.stdout, "output    %s, with %s\nlargest   %s, a tensor\nmemory    %s at most, predicted; %s were taken now\ntime      %.1f s to read and merge (%s), and the time of writing as much\n",
		meter.FormatBytes(m.size.Bytes), f.merged(), meter.FormatBytes(m.size.Largest), meter.FormatBytes(process.predicted), meter.FormatBytes(peak),
		took.Seconds(), rate(m.size.Bytes, took))
	f.reportLost(c, m.text.LostByMerging())
	if f.output == "" {
		return nil
	}
	return showRoom(c, "merge", f.rooms(*m))
}

// rooms returns what the run will write.
func (f *mergeFlags) rooms(m merging) []room {
	return []room{{"the model", f.output, m.size.Bytes}}
}

// rate says how many bytes a second were handled.
func rate(bytes int64, took time.Duration) string {
	return fmt.Sprintf("%.0f MB/s", float64(bytes)/1e6/max(took.Seconds(), 1e-3))
}

// reportLost says what rounding has lost.
func (f *mergeFlags) reportLost(c *call, lost amp.LostUpdates) {
	if lost.Lost == 0 {
		return
	}
	fmt.Fprintf(c.stdout, "%d of %d updates lost to rounding, %.2f %% of their norm: they are too small to change a weight in the model's type\n",
		lost.Lost, lost.Updates, 100*lost.NormShare())
	if lost.NormShare() > mostLost {
		fmt.Fprintln(c.stdout, "  -compute f32 keeps them")
	}
}

// mergeCompanions are the files beside the weights that the output gets: the model's, and those of the tokenizer from an adapter
// unless from is the model.
type mergeCompanions struct{ from string }

// companions checks the files that the output gets beside its weights.
func (f *mergeFlags) companions(c *call, config *transformer.Config) (b mergeCompanions, err error) {
	b.from = f.model
	notes := ""
	for _, adapter := range f.adapters {
		from, _, note, err := tokenizerOf(f.model, adapter, config, "the output gets")
		if err != nil {
			return b, usageError{err}
		}
		if notes += note; from != f.model {
			b.from = from
		}
	}
	for from, takes := range b.folders(f.model) {
		if err := checkCompanions(from, f.copyLinks, takes); err != nil {
			return b, usagef("merge: %w", err)
		}
	}
	fmt.Fprint(c.stderr, notes)
	return b, nil
}

// folders yields the folders, and which files are taken from them.
func (b mergeCompanions) folders(model string) iter.Seq2[string, func(name string) bool] {
	return func(yield func(string, func(name string) bool) bool) {
		if b.from == model {
			yield(model, nil)
			return
		}
		_ = yield(b.from, ofTokenizer) && yield(model, func(name string) bool { return !ofTokenizer(name) })
	}
}

func (b mergeCompanions) copy(to, model string, links bool) error {
	for from, takes := range b.folders(model) {
		if err := copyCompanions(to, from, links, takes); err != nil {
			return err
		}
	}
	return nil
}
