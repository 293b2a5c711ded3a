package console

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/snug-ml/snug/meter"
)

// terminal is a pseudo-terminal, with what programs have written to it.
type terminal struct {
	t         *testing.T
	main, end *os.File
	text      chan []byte
}

func newTerminal(t *testing.T, width, height uint16) *terminal {
	t.Helper()
	main, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("no pseudo-terminals: %v", err)
	}
	require.NoError(t, unix.IoctlSetPointerInt(int(main.Fd()), unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(int(main.Fd()), unix.TIOCGPTN)
	require.NoError(t, err)
	end, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	p := &terminal{t, main, end, make(chan []byte, 1)}
	p.resize(width, height)
	go func() {
		text, _ := io.ReadAll(main) // ends with an error when the other end is closed
		p.text <- text
	}()
	return p
}

func (p *terminal) resize(width, height uint16) {
	require.NoError(p.t, unix.IoctlSetWinsize(int(p.main.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: height, Col: width}))
}

// written closes the terminal and returns what was written.
func (p *terminal) written() string {
	require.NoError(p.t, p.end.Close())
	text := <-p.text
	require.NoError(p.t, p.main.Close())
	return strings.ReplaceAll(string(text), "\r\n", "\n")
}

// shown interprets what was written to a terminal, and returns the lines that can be seen at the end and the widest line
// that could be seen at any time.
func shown(t *testing.T, text string) (lines []string, widest int) {
	lines = []string{""}
	row, column := 0, 0
	for len(text) > 0 {
		r, n := utf8.DecodeRuneInString(text)
		switch {
		case r == '\n':
			row, column = row+1, 0
			if row == len(lines) {
				lines = append(lines, "")
			}
		case r == '\r':
			column = 0
		case r == 0x1b:
			end := strings.IndexAny(text, "AJKm")
			require.Positive(t, end, "%q", text[:min(20, len(text))])
			count := 1
			_, _ = fmt.Sscanf(text[2:end], "%d", &count)
			switch text[end] {
			case 'A':
				row = max(0, row-count)
			case 'K':
				lines[row] = string([]rune(lines[row])[:column])
			case 'J':
				require.Positive(t, row+column, "tmux would keep the erased lines in its history")
				lines = append(lines[:row], string([]rune(lines[row])[:column]))
			}
			n = end + 1
		default:
			letters := []rune(lines[row])
			for len(letters) <= column {
				letters = append(letters, ' ')
			}
			letters[column] = r
			column++
			lines[row] = string(letters)
			widest = max(widest, len(letters))
		}
		text = text[n:]
	}
	return lines, widest
}

// TestProgressOnTerminal: the block has the figures and fits, in narrow and low terminals; texts stay above it, and at the
// end nothing of it is left.
func TestProgressOnTerminal(t *testing.T) {
	t.Setenv("TERM", "xterm")
	for _, size := range [][2]uint16{{120, 40}, {80, 24}, {40, 24}, {20, 10}, {7, 3}, {40, 2}} {
		for _, colors := range []bool{true, false} {
			t.Setenv("NO_COLOR", map[bool]string{true: "", false: "1"}[colors])
			p := newTerminal(t, size[0], size[1])
			stderr := OnScreen(p.end)
			require.IsType(t, &Screen{}, stderr)
			progress := NewProgress(p.end, stderr, 20)
			held := meter.Bytes{meter.Weights: 1 << 30, meter.State: 1 << 29, meter.Activations: 1 << 28, meter.Workspace: 5}
			progress.Memory = func() (meter.Bytes, int64) { return held, 4 << 30 }
			for step := 1; step <= 20; step++ {
				loss := 4 - float64(step)/10
				if step == 3 {
					loss = math.NaN()
				}
				progress.drawn = time.Time{}
				progress.Step(Shown{step, loss, 1234, "1.75 GiB"})
				if step == 7 {
					progress.Note("step 7 is skipped")
					fmt.Fprintln(stderr, "^C")
				}
			}
			block := progress.lines(Shown{20, 2, 1234, "1.75 GiB"}, 90*time.Second, max(1, int(size[0])-1))
			progress.End()
			fmt.Fprintln(stderr, "done")
			text := p.written()
			lines, widest := shown(t, text)
			require.Equal(t, []string{"step 7 is skipped", "^C", "done", ""}, lines)
			require.Equal(t, colors && size[0] > 20, strings.Contains(text, "\x1b[32m"), size)
			require.NotContains(t, text, "\x1b[?", "nothing about the terminal changes")
			limit := int(size[0]) - 1
			if widest > limit { // texts that are not of the block are as wide as they are
				require.Equal(t, len("step 7 is skipped"), widest)
			}
			if size[0] >= 40 {
				all := strings.Join(block, "\n")
				for _, want := range []string{"step 20/20", "100 %", "0s left", "loss 2.0000", "1234 tokens/s, 1m30s so far", "memory 1.75 GiB of 4.00 GiB", "weights 1.00 GiB", "optimizer state 512.00 MiB", "workspace 5 B"} {
					require.Contains(t, all, want)
				}
				for _, line := range block {
					require.LessOrEqual(t, utf8.RuneCountInString(line), int(size[0])-1)
				}
			}
		}
	}
}

// TestScreenResized: when the terminal becomes narrower, it has broken the lines of the block, and all of them are erased.
func TestScreenResized(t *testing.T) {
	t.Setenv("TERM", "xterm")
	t.Setenv("NO_COLOR", "1")
	p := newTerminal(t, 80, 24)
	s := NewScreen(p.end)
	s.Show([]string{strings.Repeat("x", 79), "short"})
	p.resize(40, 24)
	s.Show([]string{strings.Repeat("y", 79), "short"})
	s.Clear()
	text := p.written()
	require.Contains(t, text, "\x1b[3A", "two rows and one")
	require.Contains(t, text, strings.Repeat("y", 38)+"…\nshort\n\r\x1b[2A\x1b[K\n\x1b[J\x1b[A")
}

// TestScreenLeft: after a stop, and in the background, the lines above the cursor are the shell's, and stay.
func TestScreenLeft(t *testing.T) {
	t.Setenv("TERM", "xterm")
	p := newTerminal(t, 80, 24)
	s := NewScreen(p.end)
	require.True(t, s.ours(), "the terminal controls no session")
	require.NoError(t, unix.Kill(unix.Getpid(), unix.SIGCONT))
	require.Eventually(t, func() bool { return !s.ours() }, time.Minute, time.Millisecond)
	require.True(t, s.ours())

	ours := true
	s.ours = func() bool { return ours }
	s.Show([]string{"block"})
	ours = false // in the background
	fmt.Fprintln(p.end, "shell")
	s.Show([]string{"unseen"})
	fmt.Fprintln(s, "text")
	ours = true
	s.Show([]string{"one more"})
	s.Clear()
	fmt.Fprintln(s, "done")
	lines, _ := shown(t, p.written())
	require.Equal(t, []string{"block", "shell", "text", "done", ""}, lines)
}

// TestNoScreen: a terminal that does not move its cursor has plain lines, and so has what is no terminal.
func TestNoScreen(t *testing.T) {
	t.Setenv("TERM", "dumb")
	p := newTerminal(t, 80, 24)
	require.Nil(t, NewScreen(p.end))
	progress := NewProgress(p.end, OnScreen(p.end), 2)
	progress.Step(Shown{1, 2, 3, "4 B"})
	progress.Note("note")
	progress.End()
	require.Equal(t, "step 1/2  loss 2.0000  3 tokens/s  4 B\nnote\n", p.written())
	t.Setenv("TERM", "xterm")
	var b bytes.Buffer
	require.Same(t, &b, OnScreen(&b))
	f, err := os.Open(os.DevNull)
	require.NoError(t, err)
	require.Nil(t, NewScreen(f))
	require.NoError(t, f.Close())
}

// TestSparkline: however many numbers there are, the line has the latest means of all, and gaps where nothing is finite.
func TestSparkline(t *testing.T) {
	var s sparkline
	require.Empty(t, s.draw(10))
	for i := range 7 {
		s.add(float64(i))
	}
	require.Equal(t, "▁▂▃▄▅▆▇", s.draw(10))
	require.Equal(t, "▁▄▇", s.draw(3))
	s.add(math.NaN())
	s.add(math.Inf(1))
	require.Equal(t, "▁▂▃▄▅▆▇  ", s.draw(20))
	s = sparkline{}
	s.add(2)
	require.Equal(t, "▄", s.draw(20))
	for i := range 10_000 {
		s.add(float64(i))
		require.LessOrEqual(t, len(s.means), 2*maxSpark)
	}
	require.Equal(t, 128, s.each)
	require.Equal(t, maxSpark, utf8.RuneCountInString(s.draw(maxSpark)))
	require.True(t, strings.HasPrefix(s.draw(maxSpark), "▁") && strings.HasSuffix(s.draw(maxSpark), "▇"))
	require.Equal(t, "2h07m", shortTime(127*time.Minute))
	require.Equal(t, "3m05s", shortTime(185*time.Second))
}
