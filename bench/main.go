// Bench measures what this machine can do at most, then every kernel of snug
// as a fraction of that, and, when asked, against the peers that do the same
// work: PyTorch, bitsandbytes, OpenBLAS and gonum.
//
//	go run -C bench .                                   every kernel
//	go run -C bench . -only 'matmul f32' -tier avx2     some kernels, one instruction set
//	go run -C bench . -peers -json                      against the peers; see bench/peers/README.md
//	go run -C bench . -short                            a few sizes, in seconds
//	go run -C bench . -only '^remat'                    training in less memory, against published figures
//	go run -C bench . -only tune -peers                 fine-tuning, against transformers, PEFT and bitsandbytes
//	go run -C bench -tags cuda . -device cuda:0         on a GPU
//
// It is a module of its own: users of snug do not need the packages that it draws with. Names of files are
// relative to its folder.
//
// The time that a kernel needs at least is the larger of the bytes that it
// must move over the machine's bandwidth, for a working set of that size and the nearest of
// several mixes of reads and writes, and of the operations that it must do over the machine's peak. Fractions are of
// that. Limits are the best of several loops and of all measurements until then, made while no peer runs. A kernel
// can still be faster than these loops: "above" stands for its fraction then, and its rate is the limit from there on.
//
// The part remat, on the CPU, trains a transformer and a chain shaped as a ResNet by
// rematerialization plans, under budgets that are fractions of what all of their activations
// take, among them those for which the overhead of DTR is published. It is an error
// when a measured peak is not the simulated one or a gradient differs by a bit.
//
// The part tune fine-tunes a model in the shape of a published one, with random weights that it writes
// itself, in a process for each run, so that the peak of resident memory is the run's. It takes up
// to hours and runs only where -only has the word: bench -only tune -peers.
//
// On a device other than the CPU all operands lie in its memory, and the time of
// a kernel ends when the device's queue is empty. The limits are then those of
// snug's own copies and matrix products.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"syscall"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run is the program: it returns the exit status, 2 for bad flags.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if job := os.Getenv(tuneVariable); job != "" {
		return tuneWorker(ctx, job, stdout, stderr)
	}
	o, err := parse(args)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(stdout, usage)
		return 0
	}
	if err != nil {
		fmt.Fprintln(stderr, "bench:", err)
		return 2
	}
	if o.tier != "" && o.tier != os.Getenv(tierVariable) {
		return again(ctx, args, o.tier, stdout, stderr)
	}
	runtime.GOMAXPROCS(o.threads)
	reuse()
	if err := measureAll(ctx, o, stdout, stderr); err != nil {
		fmt.Fprintln(stderr, "bench:", err)
		return 1
	}
	return 0
}

// tierVariable limits the kernels' instruction sets; they read it once, when
// the first of them runs.
const tierVariable = "SNUG_CPU"

// again runs this program once more with the kernels limited to a tier, and
// returns its exit status.
func again(ctx context.Context, args []string, tier string, stdout, stderr io.Writer) int {
	self, err := os.Executable()
	if err != nil {
		fmt.Fprintln(stderr, "bench:", err)
		return 1
	}
	c := exec.CommandContext(ctx, self, args...)
	c.Env = append(os.Environ(), tierVariable+"="+tier)
	c.Stdout, c.Stderr = stdout, stderr
	err = c.Run()
	if exit := new(exec.ExitError); errors.As(err, &exit) {
		return max(exit.ExitCode(), 1)
	}
	if err != nil {
		fmt.Fprintln(stderr, "bench:", err)
		return 1
	}
	return 0
}

// measureAll measures the limits, then every kernel, and writes what was
// asked for.
func measureAll(ctx context.Context, o options, stdout, stderr io.Writer) (err error) {
	todo := slices.DeleteFunc(allWork(o), func(w work) bool { return o.only != nil && !o.only.MatchString(w.name()) })
	if len(todo) == 0 {
		return fmt.Errorf("-only %v matches no kernel", o.only)
	}
	defer func() { err = errors.Join(err, removeFolders(todo)) }()
	dev, err := snug.Open(o.device)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	var chart io.WriteCloser
	if o.output != "" { // a bad name is known before the work
		if chart, err = os.Create(o.output); err != nil {
			return err
		}
	}
	m, err := limitsOf(ctx, dev, o)
	if err != nil {
		return err
	}
	if err := m.print(stdout); err != nil {
		return err
	}
	var against *opponents
	if o.peers {
		if against, err = newOpponents(ctx, o.threads, dev.Name()); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, against.close()) }()
		against.print(stdout)
	}
	s := &session{o: o, m: m, against: against, table: newTable(stdout), bar: newProgress(stderr, len(todo)), stderr: stderr}
	defer s.bar.end()
	if err := s.measure(ctx, todo); err != nil {
		return err
	}
	m.printAgain(stdout)
	return errors.Join(s.outcome(stdout, len(todo)), s.report(chart, stdout))
}

// removeFolders removes the models that were written for todo.
func removeFolders(todo []work) (err error) {
	for _, w := range todo {
		if w.tune != nil {
			err = errors.Join(err, w.tune.folder.remove())
		}
	}
	return err
}

// limitsOf returns what a device can do at most.
func limitsOf(ctx context.Context, dev *snug.Device, o options) (*machine, error) {
	if !dev.IsCPU() {
		return newDevice(ctx, dev, o)
	}
	limit, err := cpu.Limit()
	if err != nil {
		return nil, err
	}
	return newMachine(limit, o.threads, o.sizes().largest), nil
}

// session measures one kernel after the other.
type session struct {
	o       options
	m       *machine
	against *opponents
	table   *table
	bar     *progress
	stderr  io.Writer // for what slow parts say meanwhile

	all            []result
	absent, failed int // kernels without results
}

// report draws the chart, if there is one, and writes the line of JSON that was asked for.
func (s *session) report(chart io.WriteCloser, stdout io.Writer) error {
	var errs []error
	if chart != nil {
		errs = append(errs, drawRoofline(chart, s.all, s.m), chart.Close())
	}
	if s.o.json {
		errs = append(errs, json.NewEncoder(stdout).Encode(s.all))
	}
	return errors.Join(errs...)
}

// measure stops at the first error on the CPU. On another device it goes on
// after a kernel that the device lacks, or that fails there.
func (s *session) measure(ctx context.Context, todo []work) error {
	for _, w := range todo {
		s.bar.at(w.name())
		if err := ctx.Err(); err != nil {
			return err
		}
		w.note = s.note
		rows, err := w.measure(ctx, s.o, s.m, s.against)
		s.bar.clear()
		switch {
		case err == nil:
			s.table.add(rows)
			s.all = append(s.all, rows...)
		case ctx.Err() != nil || s.m.dev.IsCPU():
			return fmt.Errorf("%s: %w", w.name(), err)
		case errors.Is(err, snug.ErrNotBuilt):
			s.absent++
			s.table.note(w, "not on this device")
		default:
			s.failed++
			s.table.note(w, "failed: "+err.Error())
		}
	}
	return nil
}

// note says what a slow part has found.
func (s *session) note(text string) {
	s.bar.clear()
	fmt.Fprintln(s.stderr, text)
}

// outcome says how many kernels have no result. It is an error when one failed
// or none ran.
func (s *session) outcome(stdout io.Writer, n int) error {
	if s.absent > 0 {
		fmt.Fprintf(stdout, "\n%d of %d kernels are not on %v\n", s.absent, n, s.m.dev)
	}
	switch {
	case s.failed > 0:
		return fmt.Errorf("%d of %d kernels failed on %v", s.failed, n, s.m.dev)
	case len(s.all) == 0:
		return fmt.Errorf("no kernel ran on %v", s.m.dev)
	}
	return nil
}
