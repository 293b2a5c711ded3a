package main

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/checkpoint"
	"github.com/snug-ml/snug/internal/fault"
	"github.com/snug-ml/snug/plan"
)

// tuneFlags are the command line of tune.
type tuneFlags struct {
	dir, files, output string
	dataFlags
	device       string
	memory, disk int64
	deviceMemory int64
	alpha        float64
	rslora       bool
	purpose      string // of -for
	adapterFlags
	loraplus         float64
	modules          string
	full, fold       bool
	masters          string
	rounding         bool
	optimizer        string
	form, compute    string
	most, batch      int
	tiles            []int // numbers of tiles that the plan may choose
	steps, epochs    int
	rate, held       float64
	smoothing, zLoss float64
	beta             float64 // of -dpo, 0 without it
	teacher          teacherFlags
	imageFlags
	subject      *subject // of a model that is not one of text, else nil
	seed         uint64
	shard        string
	sharding     plan.Sharding
	checkpoint   string
	saveEvery    int
	evalEvery    int
	trace, page  string
	copyLinks    bool
	dryRun, json bool
	dtype        snug.DType
	reading      func(path string, read, of int64) // shows how far a file is read, may be nil
	flags        flagTable                         // as they were parsed
}

// given reports whether the command line has a flag, even with its default value.
func (f *tuneFlags) given(name string) bool { return f.flags.given(name) }

// check checks what a row of the table alone cannot, and sets the defaults that depend on other flags.
func (f *tuneFlags) check() (err error) {
	if f.dtype, err = snug.ParseDType(f.compute); err != nil {
		return usagef("tune: -compute: %w", err)
	}
	if f.shard != "" {
		if f.sharding, err = named(shardings...)(f.shard); err != nil {
			return usagef("tune: -shard: %w", err)
		}
	}
	f.optimizer = cmp.Or(f.optimizer, defaultOptimizer)
	if len(f.tiles) == 0 {
		f.tiles = []int{1}
	}
	if err := f.adapterFlags.check(); err != nil {
		return usagef("tune: %w", err)
	}
	kind := f.kind()
	what := fault.Broken(slices.Concat([]fault.Rule{
		{f.dir == "", "want -model: a folder as Hugging Face publishes it"},
		{f.files == "", "want -data: files of JSON, CSV, Parquet or text, or folders of them"},
		{f.files != "" && slices.Contains(strings.Split(f.files, ","), ""), fmt.Sprintf("-data %s: one of the names is empty", f.files)},
		{f.featureDir != "" && f.output != "" && (within(f.featureDir, f.output) || within(f.output, f.featureDir)), "-features and -o name one folder, or one is in the other"},
		{f.output == "" && !f.dryRun && f.show == 0, "want -o: the folder to write, or -dry-run"},
		{kind.base != "" && f.form != "" && f.form != kind.base, fmt.Sprintf("-adapter %s begins with what %s loses: want -base %s, not %s", kind.name, kind.base, kind.base, f.form)},
		{kind.shared && (f.given("alpha") || f.rslora), "-alpha and -rslora scale products, and -adapter " + kind.name + " trains its scales"},
		{(kind.shared || kind.frozenA) && f.given("loraplus-ratio"), "-loraplus-ratio is the rate of an adapter's second matrix over that of its first, and -adapter " + kind.name + " does not train both"},
		{f.fold && f.compute == "f16", "-fold does not go with f16, whose loss scale needs all gradients of a step"},
		{f.masters != "" && (f.compute != "bf16" || !f.full && f.modules == ""), "-masters is for weights of bf16 that train, with -full or -modules-to-save"},
		{f.masters != "" && f.fold, "-masters does not go with -fold, which has no master weights"},
		{f.sharding == plan.ShardWeights && !f.dividesWeights(), "-shard weights wants as many passes on all ranks, and does not go with -dpo and -teacher"},
		{f.steps > 0 && f.epochs > 0, "-steps and -epochs both say how long to train, want one"},
	}, f.optimizerRules(), f.preferenceRules(), f.teacherRules())...)
	if what = cmp.Or(what, f.dataFlags.check(f.beta > 0), f.checkImages()); what != "" {
		return usagef("tune: %s", what)
	}
	f.rank = cmp.Or(f.rank, kind.rank)
	if err := f.unfitting(); err != nil {
		return err
	}
	f.rate = cmp.Or(f.rate, f.defaultRate())
	if f.alpha == 0 {
		f.alpha = 2 * float64(f.rank)
	}
	if kind.base != "" {
		f.form = kind.base
	}
	if f.full {
		f.rank = 0
	}
	if err := wantFolder("tune", f.dir); err != nil {
		return err
	}
	if f.full {
		if err := checkCompanions(f.dir, f.copyLinks, nil); err != nil {
			return usagef("tune: %w", err)
		}
	}
	if err := f.checkOutput(); err != nil {
		return err
	}
	if err := f.checkFile("trace", f.trace, ".json", ".svg"); err != nil {
		return err
	}
	return f.checkReport()
}

// checkReport returns an error unless the file of -report can be written.
func (f *tuneFlags) checkReport() error {
	if err := f.checkFile("report", f.page, ".html"); err != nil || f.page == "" {
		return err
	}
	if err := checkReport(f.page, f.dryRun || f.show > 0); err != nil {
		return usagef("tune: -report: %w", err)
	}
	return nil
}

// checkOutput returns an error if the run would overwrite files.
func (f *tuneFlags) checkOutput() error {
	if f.dryRun || f.show > 0 {
		return nil
	}
	if err := emptyFolder(f.output); err != nil {
		return usagef("tune: -o: %w", err)
	}
	if f.checkpoint != "" && within(f.checkpoint, f.output) {
		return usagef("tune: -checkpoint %s is in -o, which would not be empty when the run goes on", f.checkpoint)
	}
	return nil
}

// within reports whether a path is a folder or lies in it.
func within(path, folder string) bool {
	path, folder = resolved(path), resolved(folder)
	inner, err := filepath.Rel(folder, path)
	return err == nil && filepath.IsLocal(inner)
}

// resolved returns an absolute path, with links resolved in the part that exists.
func resolved(path string) string {
	path, err := filepath.Abs(path)
	if err != nil {
		return path
	}
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	if parent := filepath.Dir(path); parent != path {
		return filepath.Join(resolved(parent), filepath.Base(path))
	}
	return path
}

func runTune(c *call) error {
	defer debug.SetGCPercent(debug.SetGCPercent(gcPercent))
	f, err := parseTune(c)
	if err != nil {
		return leaveRanks(err)
	}
	if f.subject != nil {
		return leaveRanks(newVisual(c, f).run())
	}
	t, err := newTuning(c, f)
	if err != nil {
		return leaveRanks(err)
	}
	if t.show > 0 {
		err = t.showOnRanks()
	} else {
		err = t.runOnRanks()
	}
	return errors.Join(err, t.data.Close())
}

// parseTune reads the flags.
func parseTune(c *call) (*tuneFlags, error) {
	f := &tuneFlags{}
	f.flags = f.table()
	if _, err := c.parse(f.flags, 0, 0); err != nil {
		return nil, err
	}
	if f.subject = subjectOf(f.dir); f.subject != nil {
		if err := f.subject.begin(f); err != nil {
			return nil, err
		}
	}
	return f, f.check()
}

// newTuning reads what the files hold.
func newTuning(c *call, f *tuneFlags) (*tuning, error) {
	shown, done := showReading(c.stderr)
	f.reading = shown
	m, err := f.gather()
	done()
	if err != nil {
		return nil, usageError{err}
	}
	fmt.Fprint(c.stderr, unreadFields(m.config))
	if m.imageErr != nil {
		fmt.Fprintf(c.stderr, "snug: tune: only text is read for %s: %s\n", escaped(f.dir), oneLine(m.imageErr, c.args...))
	}
	t := &tuning{tuneFlags: *f, material: m, call: c}
	if n := t.stepCount(); n > checkpoint.MaxStep {
		return nil, errors.Join(usagef("tune: -epochs %d are %d steps, want at most %d", f.epochs, n, checkpoint.MaxStep), t.data.Close())
	}
	return t, nil
}
