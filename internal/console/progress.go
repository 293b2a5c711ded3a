package console

import (
	"fmt"
	"io"
	"os"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// Progress shows how far a run is: by a bar on a terminal, otherwise by about ten lines.
type Progress struct {
	out   io.Writer
	bar   *progressbar.ProgressBar // nil without a terminal
	steps int
}

// NewProgress returns the Progress of a run of the given number of steps. It draws the bar on stderr and writes lines to stdout.
func NewProgress(stdout, stderr io.Writer, steps int) *Progress {
	p := &Progress{out: stdout, steps: steps}
	if f, ok := stderr.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		p.bar = progressbar.NewOptions(steps, progressbar.OptionSetWriter(f),
			progressbar.OptionSetPredictTime(true), progressbar.OptionFullWidth(), progressbar.OptionClearOnFinish())
	}
	return p
}

// Step shows the number of steps that are done, and a text about the last one.
func (p *Progress) Step(done int, text string) {
	if p.bar != nil {
		p.bar.Describe(text)
		_ = p.bar.Set(done) // a bar that cannot be drawn does not stop training
		return
	}
	if every := max(1, p.steps/10); done%every == 0 || done == 1 || done == p.steps {
		fmt.Fprintf(p.out, "step %d/%d  %s\n", done, p.steps, text)
	}
}

// Note writes a line of text.
func (p *Progress) Note(text string) {
	if p.bar != nil {
		_ = p.bar.Clear()
	}
	fmt.Fprintln(p.out, text)
}

// End removes the bar.
func (p *Progress) End() {
	if p.bar != nil {
		_ = p.bar.Finish()
	}
}
