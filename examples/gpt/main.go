// Gpt trains a small GPT on text with every technique of snug: mixed
// precision, gradient accumulation, rematerialization, 8-bit AdamW, tiled
// attention and paged optimizer state. It predicts what the run will take,
// trains, and says what it took.
//
//	go run ./examples/gpt                       a small model on Go's own source
//	go run ./examples/gpt -off quant8,offload   without two of the techniques
//	go run ./examples/gpt -compare -o out.svg   each technique alone, none and all
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/checkpoint"
	"github.com/snug-ml/snug/internal/console"
	"github.com/snug-ml/snug/internal/text"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/train"
)

// options are the command line.
type options struct {
	config
	device     string
	text       string
	checkpoint string
	keep       int
	stepsGiven bool // whether the user gave -steps
	compare    bool
	output     string
	timeline   string
	json       bool
	memory     int64
}

// inputError is an error in the user's input.
type inputError struct{ error }

func (e inputError) Unwrap() error { return e.error }

func main() {
	stderr := console.OnScreen(os.Stderr)
	stop, release := console.OnSignals(console.Options{Name: "gpt", Stderr: stderr, Advice: "a run with -checkpoint goes on from its last checkpoint"})
	defer release()
	os.Exit(run(stop, os.Args[1:], os.Stdout, stderr))
}

// run is the program. It returns the exit status: 2 for bad input, and 128 plus the number of the signal after a
// signal.
func run(stop console.Stop, args []string, stdout, stderr io.Writer) int {
	o, err := parse(args)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(stdout, usage)
		return 0
	}
	if err == nil {
		if o.compare {
			err = compare(stop.After, o, stdout, stderr)
		} else {
			err = ranked(stop, o, stdout, stderr)
		}
	}
	status := 1
	if errors.As(err, new(silent)) {
		return stop.Status()
	}
	switch {
	case err == nil:
		return 0
	case errors.As(err, new(console.Interruption)):
		status = stop.Status()
	case stop.Asked() && (o.compare || errors.Is(err, context.Canceled)):
		err = errors.New("interrupted; a run with -checkpoint goes on from its last checkpoint")
		status = stop.Status()
	case errors.As(err, new(inputError)):
		status = 2
	}
	fmt.Fprintln(stderr, "gpt:", console.Sentence(err))
	return status
}

const usage = `usage: gpt [flags]

  -preset NAME      small (default), 34m or tiny
  -steps N          optimizer steps; default: the preset's, or those of the run in -checkpoint. A number larger
                    than that run's extends it: the learning rate warms up and falls again over the new steps
  -text PATH        a file or a folder to train on; a preset reads the first few MiB of it; default: the Go
                    source of the toolchain
  -seed N           seed of the initial weights and of the batches; default 1
  -device NAME      cpu (default), or cuda:0, hip:0, metal:0, emu:0 in a program built with that tag
  -memory SIZE      limit of the counted components, such as 8MiB: find the largest micro-batch that fits, for the
                    same batch, and plan what is computed again; the process itself takes about 30 MiB more
  -host-memory SIZE limit of the master weights and the optimizer's state in memory; the rest is on disk
  -inject-nan STEP  put a NaN into a gradient at a step, to see where it is found
  -dtype TYPE       type of weights and activations in mixed precision: bf16 (default) or f16
  -optimizer NAME   adamw (default); schedule-free, with a learning rate of 2.5 times adamw's that stays constant after its
                    warmup; or apollo, apollo-mini or galore, which take whole matrices: with -off offload; their
                    learning rate is 5 times adamw's
  -off LIST         techniques to switch off: amp,accum,remat,quant8,attention,offload or all
  -ranks N          train on N ranks of data-parallel training within this process, with the same batch; ranks in processes
                    are started by a launcher of MPI: mpiexec -n N gpt
  -shard WHAT       what the ranks divide: replicate (default, nothing), state (of the optimizer) or gradients (too)
  -compare          run with no technique, with each one alone and with all, and compare
  -o FILE           with -compare: also write the table and a chart as SVG
  -timeline FILE    write what is held after each step, by component, as .csv or .svg, also when the run is interrupted;
                    in the CSV, host and disk are the pages of offload, and those on the host count with the device too
  -checkpoint DIR   save the run in DIR, and resume from its newest checkpoint; SIGINT and SIGTERM end the current step, save
                    it, and end the run, and a second one ends it at once
  -save-every N     steps between checkpoints; default 25
  -keep N           checkpoints to keep in DIR, the newest; default 2
  -json             end with one line of JSON
`

// presetSteps is the value of -steps when it is not given.
const presetSteps = math.MinInt

func parse(args []string) (o options, err error) {
	fs := flag.NewFlagSet("gpt", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	name := fs.String("preset", "small", "")
	steps := fs.Int("steps", presetSteps, "")
	fs.StringVar(&o.text, "text", "", "")
	fs.Uint64Var(&o.seed, "seed", 1, "")
	fs.StringVar(&o.device, "device", "cpu", "")
	dtype := fs.String("dtype", "bf16", "")
	fs.StringVar(&o.rule, "optimizer", "adamw", "")
	off := fs.String("off", "", "")
	fs.IntVar(&o.ranks, "ranks", 1, "")
	shard := fs.String("shard", plan.Replicate.String(), "")
	fs.IntVar(&o.poison, "inject-nan", 0, "")
	memory := fs.String("memory", "", "")
	host := fs.String("host-memory", "", "")
	fs.BoolVar(&o.compare, "compare", false, "")
	fs.StringVar(&o.output, "o", "", "")
	fs.StringVar(&o.timeline, "timeline", "", "")
	fs.StringVar(&o.checkpoint, "checkpoint", "", "")
	fs.IntVar(&o.saveEvery, "save-every", 25, "")
	fs.IntVar(&o.keep, "keep", checkpoint.DefaultKeep, "")
	fs.BoolVar(&o.json, "json", false, "")
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return o, err
		}
		return o, inputError{err}
	}
	for _, f := range []struct {
		name, text string
		to         *int64
	}{{"memory", *memory, &o.memory}, {"host-memory", *host, &o.host}} {
		if f.text == "" {
			continue
		}
		var err error
		if *f.to, err = meter.ParseBytes(f.text); err != nil {
			return o, inputError{fmt.Errorf("-%s: %w", f.name, err)}
		}
	}
	if err := o.complete(*name, *steps, *dtype, *off, *shard, fs.Args()); err != nil {
		return o, inputError{err}
	}
	return o, nil
}

// complete checks the flags and fills in the configuration.
func (o *options) complete(name string, steps int, dtype, off, shard string, rest []string) (err error) {
	if len(rest) > 0 {
		return fmt.Errorf("unexpected argument %q", rest[0])
	}
	if o.preset, err = presetNamed(name); err != nil {
		return err
	}
	if steps != presetSteps {
		if steps < 1 || steps > checkpoint.MaxStep {
			return fmt.Errorf("-steps %d: want 1 to %d", steps, checkpoint.MaxStep)
		}
		o.steps, o.stepsGiven = steps, true
	}
	if o.saveEvery < 1 {
		return fmt.Errorf("-save-every %d: want at least 1", o.saveEvery)
	}
	o.saves = o.checkpoint != ""
	if o.ranks < 1 || o.ranks > 1024 {
		return fmt.Errorf("-ranks %d: want 1 to 1024", o.ranks)
	}
	if o.ranks > 1 && (o.compare || o.memory > 0) {
		return errors.New("-ranks does not go with -compare and -memory")
	}
	if err := o.divide(shard); err != nil {
		return err
	}
	if o.keep < 1 {
		return fmt.Errorf("-keep %d: want at least 1", o.keep)
	}
	low, err := snug.ParseDType(dtype)
	if err != nil || low != snug.BF16 && low != snug.F16 {
		return fmt.Errorf("-dtype %q: want bf16 or f16", dtype)
	}
	if off == "all" {
		o.on = techniques{}
	} else if o.on, err = allTechniques().without(off); err != nil {
		return err
	}
	o.policy = policyOf(o.on, low)
	if _, known := optimizers[o.rule]; !known {
		return fmt.Errorf("-optimizer %q: want adamw, schedule-free, apollo, apollo-mini or galore", o.rule)
	}
	switch {
	case o.rule == "schedule-free" && o.compare:
		return errors.New("-compare compares techniques with -optimizer adamw, not schedule-free")
	case o.rule != "adamw" && o.rule != "schedule-free" && (o.device != "cpu" || o.compare || o.on[useOffload]):
		return fmt.Errorf("-optimizer %s takes whole matrices: it is for the cpu and goes with -off offload, not with -compare", o.rule)
	case o.device != "cpu" && (o.compare || !o.on[useAttention]):
		return errors.New("-compare and attention off are for the cpu: attention as on paper runs there only")
	case o.poison < 0 || o.poison > o.steps:
		return fmt.Errorf("-inject-nan %d: want a step from 1 to %d", o.poison, o.steps)
	case o.memory > 0 && !o.on[useAccum]:
		return errors.New("-memory wants accum, which keeps the batch when micro-batches shrink")
	case o.host > 0 && !o.on[useOffload]:
		return errors.New("-host-memory wants offload, which keeps the rest on disk")
	case o.host > 0 && o.host < o.minHost():
		return fmt.Errorf("-host-memory %s: want at least %s, a few pages", meter.FormatBytes(o.host), meter.FormatBytesUp(o.minHost()))
	case o.compare && (o.memory > 0 || o.poison > 0):
		return errors.New("-compare does not go with -memory and -inject-nan")
	case o.output != "" && !o.compare:
		return errors.New("-o goes with -compare")
	case o.compare && off != "":
		return errors.New("-compare chooses the techniques itself: it does not go with -off")
	case o.compare && o.timeline != "":
		return errors.New("-timeline is of one run: it does not go with -compare")
	case o.compare && o.checkpoint != "":
		return errors.New("-compare does not go with -checkpoint")
	}
	return nil
}

// pageFolder returns a folder for paged state and a function that removes it. Pages are temporary: checkpoints hold
// what is kept. In a folder of checkpoints its next owner removes the pages that a killed process left.
func pageFolder(o options, saved *train.Folder) (dir string, clean func(), err error) {
	switch {
	case !o.on[useOffload]:
		return "", func() {}, nil
	case saved != nil:
		dir, err = saved.Scratch()
		return dir, func() {}, err
	}
	dir, err = os.MkdirTemp("", "snug-pages-")
	return dir, func() { os.RemoveAll(dir) }, err
}

// load reads the text that the preset trains on.
func (o *options) load(ctx context.Context) (*text.Corpus, error) {
	return text.Load(ctx, o.text, o.preset.text, o.vocab, o.context+1)
}
