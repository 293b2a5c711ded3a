package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"regexp"
	"runtime"
	"strings"

	"github.com/snug-ml/snug/internal/cpu"
)

// options are the command line.
type options struct {
	only        *regexp.Regexp // nil for all
	tier        string         // empty for what SNUG_CPU says
	threads     int
	device      string
	output      string
	json        bool
	peers       bool
	pairs       int // the fewest
	short, long bool
	model       string // of tune; empty: the largest, or with -short the smallest
}

const usage = `usage: bench [flags]

  -only RE      kernels whose "kernel dtype shape" matches the regular expression, such as ^remat;
                tune runs only where RE has that word
  -tier NAME    instruction set: go, avx2, avx512, avx512vbmi, avx512bf16, amx or neon; default: the best
  -threads N    workers; default: all CPUs
  -device NAME  cpu (default), or cuda:0, hip:0, metal:0, emu:0 in a program built with that tag
  -json         end with one line of JSON, an array of the results
  -o FILE       also draw the results under the machine's roofline, as SVG
  -peers        run the same work in the peers, in alternating runs
  -pairs N      of these, the fewest of a kernel; default: 3, and more where they take less than a second
  -model NAME   what tune fine-tunes: tiny, 125m or 1.1b; default: 1.1b, with -short tiny
  -short        a few sizes and runs, in seconds
  -long         the longest sizes too
`

// mostPairs is more than anybody waits for.
const mostPairs = 1000

func parse(args []string) (o options, err error) {
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	only := fs.String("only", "", "")
	fs.StringVar(&o.tier, "tier", "", "")
	fs.IntVar(&o.threads, "threads", runtime.NumCPU(), "")
	fs.StringVar(&o.device, "device", "cpu", "")
	fs.BoolVar(&o.json, "json", false, "")
	fs.StringVar(&o.output, "o", "", "")
	fs.BoolVar(&o.peers, "peers", false, "")
	fs.IntVar(&o.pairs, "pairs", 3, "")
	fs.StringVar(&o.model, "model", "", "")
	fs.BoolVar(&o.short, "short", false, "")
	fs.BoolVar(&o.long, "long", false, "")
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	return o, o.complete(*only, fs.Args())
}

func (o *options) kind() string {
	kind, _, _ := strings.Cut(o.device, ":")
	return kind
}

func (o *options) onCPU() bool { return o.kind() == "cpu" }

// emulated reports whether the times of the device say nothing.
func (o *options) emulated() bool { return o.kind() == "emu" }

// complete checks the flags.
func (o *options) complete(only string, rest []string) (err error) {
	if len(rest) > 0 {
		return fmt.Errorf("unexpected argument %q", rest[0])
	}
	if o.threads < 1 || o.threads > runtime.NumCPU() {
		return fmt.Errorf("-threads %d: want 1 to %d, the CPUs of this machine", o.threads, runtime.NumCPU())
	}
	if o.pairs < 1 || o.pairs > mostPairs {
		return fmt.Errorf("-pairs %d: want 1 to %d", o.pairs, mostPairs)
	}
	if o.short && o.long {
		return errors.New("-short does not go with -long")
	}
	if o.model != "" {
		if _, err := tuneModelNamed(o.model); err != nil {
			return err
		}
	}
	if err := o.completeDevice(); err != nil {
		return err
	}
	if only != "" {
		if o.only, err = regexp.Compile(only); err != nil {
			return fmt.Errorf("-only: %w", err)
		}
	}
	if o.tier == "" {
		_, err = cpu.Limit()
		return err
	}
	for t := cpu.Go; t.Known(); t++ {
		if t.String() == o.tier {
			if !t.Has() {
				return fmt.Errorf("-tier %s: this machine lacks the instructions", o.tier)
			}
			return nil
		}
	}
	return fmt.Errorf("-tier %q: want go, avx2, avx512, avx512vbmi, avx512bf16, amx or neon", o.tier)
}

// completeDevice checks what does not go with every device.
func (o *options) completeDevice() error {
	switch {
	case o.onCPU():
		return nil
	case o.tier != "":
		return fmt.Errorf("-tier is of the cpu and does not go with -device %s", o.device)
	case o.peers && o.kind() != "cuda":
		return fmt.Errorf("-peers: the peers run on the cpu and on CUDA devices, not on %s", o.device)
	case o.output != "" && o.emulated():
		return fmt.Errorf("-o: %s is emulated and has no limits to draw", o.device)
	}
	return nil
}
