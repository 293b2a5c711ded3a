// Bench measures what this machine can do at most, then every kernel of snug
// as a fraction of that, and, when asked, against the peers that do the same
// work: PyTorch, bitsandbytes, OpenBLAS and gonum.
//
//	go run ./bench                                   every kernel
//	go run ./bench -only 'matmul f32' -tier avx2     some kernels, one instruction set
//	go run ./bench -peers -json out.json             against the peers; see bench/peers/README.md
//	go run ./bench -short                            a few sizes, in seconds
//
// The time that a kernel needs at least is the larger of the bytes that it
// must move over the machine's bandwidth, for a working set of that size, and
// of the operations that it must do over the machine's peak. Fractions are of
// that.
package main

import (
	"context"
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

	"github.com/snug-ml/snug/internal/cpu"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run is the program: it returns the exit status, 2 for bad flags.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
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
	out, err := openReports(o)
	if err != nil {
		return err
	}
	limit, err := cpu.Limit()
	if err != nil {
		return err
	}
	m := newMachine(limit, o.threads, o.largest())
	m.print(stdout)
	var against *opponents
	if o.peers {
		if against, err = newOpponents(ctx, o.threads); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, against.close()) }()
		against.print(stdout)
	}
	bar := newProgress(stderr, len(todo))
	defer bar.end()
	t := newTable(stdout)
	var all []result
	for _, w := range todo {
		bar.at(w.name())
		if err := ctx.Err(); err != nil {
			return err
		}
		rows, err := w.measure(ctx, o, m, against)
		if err != nil {
			return fmt.Errorf("%s: %w", w.name(), err)
		}
		bar.clear()
		t.add(rows)
		all = append(all, rows...)
	}
	return out.write(all, m)
}
