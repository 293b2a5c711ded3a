package console

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/snug-ml/snug/meter"
)

// Progress shows how far a run is: by a block of lines on a terminal, otherwise by about ten lines.
type Progress struct {
	// Memory, unless nil, returns the most bytes that each component has held, and their limit, 0 for none. A block of
	// lines shows them.
	Memory func() (held meter.Bytes, limit int64)
	Unit   string // what speed counts; "" is tokens

	out    io.Writer
	screen *Screen // nil without a terminal
	steps  int
	first  int // done before the first step that is shown
	began  time.Time
	drawn  time.Time
	losses sparkline

	heldOut  int       // tokens of the evaluation under way
	measured time.Time // when it began, or was shown last
}

// Shown is what a Progress shows of a step.
type Shown struct {
	Done int     // number of steps that are done
	Loss float64 // of the step
	Rate float64 // tokens per second
	Held string  // memory, such as "2.87 GiB"
}

// redraw is the time between two drawings of the block.
const redraw = 100 * time.Millisecond

// NewProgress returns the Progress of a run of the given number of steps. It draws the block on stderr, if that is a
// [Screen] or a terminal for one, and otherwise writes lines to stdout.
func NewProgress(stdout, stderr io.Writer, steps int) *Progress {
	screen, is := stderr.(*Screen)
	if !is {
		screen = NewScreen(stderr)
	}
	return &Progress{out: stdout, steps: steps, screen: screen, first: -1, began: time.Now()}
}

// Step shows a step that is done.
func (p *Progress) Step(s Shown) {
	if p.screen == nil {
		if every := max(1, p.steps/10); s.Done%every == 0 || s.Done == 1 || s.Done == p.steps {
			fmt.Fprintf(p.out, "step %d/%d  loss %.4f  %s  %s\n", s.Done, p.steps, s.Loss, p.speed(s.Rate), s.Held)
		}
		return
	}
	if p.first < 0 {
		p.first = s.Done - 1
	}
	p.losses.add(s.Loss)
	if now := time.Now(); now.Sub(p.drawn) >= redraw || s.Done == p.steps {
		p.drawn = now
		p.screen.Show(p.lines(s, now.Sub(p.began), p.screen.Width()))
	}
}

// slowEvaluation is the time between two lines on an evaluation.
const slowEvaluation = 10 * time.Second

// BeginEvaluation is called before held-out samples are evaluated.
func (p *Progress) BeginEvaluation() { p.heldOut, p.measured = 0, time.Now() }

// Evaluating shows how far an evaluation that takes long is; tokens are those of the next micro-batch.
func (p *Progress) Evaluating(tokens int) {
	if now := time.Now(); now.Sub(p.measured) >= slowEvaluation {
		p.measured = now
		p.Note(fmt.Sprintf("evaluating held-out samples: %d %s so far", p.heldOut, cmp.Or(p.Unit, "tokens")))
	}
	p.heldOut += tokens
}

// speed writes a rate: of tokens, which are many, or of a Unit.
func (p *Progress) speed(rate float64) string {
	if p.Unit == "" {
		return fmt.Sprintf("%.0f tokens/s", rate)
	}
	return fmt.Sprintf("%.2f %s/s", rate, p.Unit)
}

// lines returns the block, of lines of at most width letters.
func (p *Progress) lines(s Shown, since time.Duration, width int) []string {
	left := "…"
	if done := s.Done - p.first; done > 0 {
		left = shortTime(since/time.Duration(done)*time.Duration(p.steps-s.Done)) + " left"
	}
	head := fmt.Sprintf("step %d/%d ", s.Done, p.steps)
	tail := fmt.Sprintf(" %3.0f %% %s", 100*float64(s.Done)/float64(max(1, p.steps)), left)
	lines := []string{head + bar(float64(s.Done)/float64(max(1, p.steps)), width-len(head)-len([]rune(tail))) + tail}
	loss := fmt.Sprintf("loss %.4f ", s.Loss)
	lines = append(lines, loss+p.losses.draw(min(width-len(loss), maxSpark)), fmt.Sprintf("speed %s, %s so far", p.speed(s.Rate), shortTime(since)))
	if p.Memory == nil {
		return append(lines, "memory "+s.Held)
	}
	held, limit := p.Memory()
	memory := "memory " + s.Held + " at most"
	if limit > 0 {
		memory = fmt.Sprintf("memory %s of %s ", s.Held, meter.FormatBytes(limit))
		memory += bar(float64(held.Total())/float64(limit), min(width-len(memory), 40))
	}
	lines = append(lines, memory)
	var parts []string
	for c, n := range held {
		if n > 0 {
			parts = append(parts, meter.Component(c).String()+" "+meter.FormatBytes(n))
		}
	}
	return append(lines, wrapped(parts, width)...)
}

// bar draws a share in a number of letters, "" if there is no room.
func bar(share float64, letters int) string {
	if letters < 3 {
		return ""
	}
	full := int(min(max(share, 0), 1)*float64(letters) + 0.5)
	return strings.Repeat(fullBlock, full) + strings.Repeat("░", letters-full)
}

// wrapped joins words by commas in indented lines of at most width letters.
func wrapped(words []string, width int) (lines []string) {
	line := " "
	for i, word := range words {
		if i < len(words)-1 {
			word += ","
		}
		if len(line)+1+len(word) > width && line != " " {
			lines, line = append(lines, line), " "
		}
		line += " " + word
	}
	if line != " " {
		lines = append(lines, line)
	}
	return lines
}

// shortTime writes a time as "12s", "3m05s" or "2h07m".
func shortTime(d time.Duration) string {
	switch s := int(d.Seconds() + 0.5); {
	case s < 60:
		return fmt.Sprintf("%ds", s)
	case s < 3600:
		return fmt.Sprintf("%dm%02ds", s/60, s%60)
	default:
		return fmt.Sprintf("%dh%02dm", s/3600, s/60%60)
	}
}

// Note writes a line of text.
func (p *Progress) Note(text string) {
	if p.screen == nil {
		fmt.Fprintln(p.out, text)
		return
	}
	p.screen.Beside(func() { fmt.Fprintln(p.out, text) })
}

// End removes the block.
func (p *Progress) End() {
	if p.screen != nil {
		p.screen.Clear()
	}
}
