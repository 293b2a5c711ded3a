package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"github.com/snug-ml/snug"
)

// mib formats bytes.
func mib(n int64) string { return fmt.Sprintf("%.2f MiB", float64(n)/(1<<20)) }

// count writes a number of things: "1 step", "4 micro-batches".
func count(n int, one string) string {
	switch {
	case n == 1:
		return "1 " + one
	case strings.HasSuffix(one, "ch"):
		return fmt.Sprintf("%d %ses", n, one)
	}
	return fmt.Sprintf("%d %ss", n, one)
}

// percent formats a as a share of b.
func percent(a, b int64) string {
	if b == 0 {
		return "–"
	}
	return fmt.Sprintf("%.1f %%", 100*float64(a)/float64(b))
}

// sentence is the text of an error without the kinds of errors behind what is said, which a
// program tests for and a reader knows by then.
func sentence(err error) string {
	text := err.Error()
	for _, kind := range []error{snug.ErrConfig, snug.ErrShape, snug.ErrDType, snug.ErrDevice, snug.ErrNotBuilt, snug.ErrNoMemory, snug.ErrNonFinite, snug.ErrCorrupt} {
		text = strings.ReplaceAll(strings.TrimSuffix(text, ": "+kind.Error()), ": "+kind.Error()+"; ", "; ")
	}
	return text
}

func table(w io.Writer) *tabwriter.Writer {
	return tabwriter.NewWriter(w, 0, 0, 3, ' ', tabwriter.AlignRight)
}

// printPrediction prints what the run will take, with its techniques and
// without any.
func printPrediction(w io.Writer, c config) error {
	with, err := c.predict()
	if err != nil {
		return err
	}
	plain := c
	plain.on = techniques{}
	plain.policy = policyOf(plain.on, snug.F32)
	without, err := plain.predict()
	if err != nil {
		return err
	}
	b := c.batch()
	fmt.Fprintf(w, "%s: %d parameters, %d layers of width %d, %s of %d tokens a step, in %s of at most %d\n",
		c.name, c.parameters(), c.layers, c.dim, count(b.Global, "sequence"), c.context, count(b.Window, "micro-batch"), b.Micro)
	fmt.Fprintf(w, "techniques: %v\n\npredicted peak memory\n", c.on)
	t := table(w)
	fmt.Fprintf(t, "\twithout\twith\tshare\t\n")
	for c := range components {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t\n", c, mib(without[c]), mib(with[c]), percent(with[c], without[c]))
	}
	fmt.Fprintf(t, "total\t%s\t%s\t%s\t\n", mib(without.Total()), mib(with.Total()), percent(with.Total(), without.Total()))
	if c.on[useOffload] {
		defer fmt.Fprintf(w, "master weights and optimizer state are %s, paged to disk: %s stay in host memory\n\n",
			mib(c.paged()), mib(min(c.hostLimit(), c.paged())))
	}
	return t.Flush()
}

// printMeasured prints what the run took against what was predicted.
func printMeasured(w io.Writer, r *report) {
	fmt.Fprintf(w, "\npeak memory\n")
	t := table(w)
	fmt.Fprintf(t, "\tpredicted\tmeasured\tmeasured/predicted\t\n")
	row := func(name string, predicted, measured int64) {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t\n", name, mib(predicted), mib(measured), percent(measured, predicted))
	}
	for c := range components {
		row(c.String(), r.predicted[c], r.measured[c])
	}
	row("total", r.Predicted, r.Measured)
	if r.PeakRSS > 0 {
		row("process (peak RSS)", r.PredictedRSS, r.PeakRSS)
	}
	t.Flush()
	if r.PeakRSS > 0 {
		fmt.Fprintln(w, "the process's prediction adds what it took before the model was made, and scratch of the kernels")
	}
}

// progress shows how far training is: a bar on a terminal, else plain lines.
type progress struct {
	out   io.Writer
	bar   *progressbar.ProgressBar // nil without a terminal
	steps int
}

func newProgress(stdout, stderr io.Writer, steps int) *progress {
	p := &progress{out: stdout, steps: steps}
	if f, ok := stderr.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		p.bar = progressbar.NewOptions(steps, progressbar.OptionSetWriter(f),
			progressbar.OptionSetPredictTime(true), progressbar.OptionFullWidth(), progressbar.OptionClearOnFinish())
	}
	return p
}

// step shows that step number done has ended.
func (p *progress) step(done int, loss, tokensPerS float64, bytes int64) {
	if p.bar != nil {
		p.bar.Describe(fmt.Sprintf("loss %.4f  %.0f tokens/s  %s", loss, tokensPerS, mib(bytes)))
		_ = p.bar.Set(done) // a bar that cannot be drawn does not stop training
		return
	}
	if every := max(1, p.steps/10); done%every == 0 || done == 1 || done == p.steps {
		fmt.Fprintf(p.out, "step %d/%d  loss %.4f  %.0f tokens/s  %s\n", done, p.steps, loss, tokensPerS, mib(bytes))
	}
}

// note shows a line.
func (p *progress) note(text string) {
	if p.bar != nil {
		_ = p.bar.Clear()
	}
	fmt.Fprintln(p.out, text)
}

func (p *progress) end() {
	if p.bar != nil {
		_ = p.bar.Finish()
	}
}
