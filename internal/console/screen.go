package console

import (
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	"golang.org/x/term"
)

// Screen is a terminal with a block of lines below all that is written to it. The block is drawn again in its place.
// Nothing else about the terminal changes, so that a program that ends at any time leaves it as it was. A program that a
// shell has stopped draws a new block when it goes on, and one in the background draws none. A Screen is safe
// for concurrent use; other files that write to the same terminal while there is a block do so in [Screen.Beside].
type Screen struct {
	mu     sync.Mutex
	w      io.Writer
	size   func() (width, height int)
	ours   func() bool // whether the lines that were drawn are still the last ones, and others may follow
	colors bool
	block  []string // as given to Show
	drawn  []int    // letters of each line that is drawn
}

// NewScreen returns the Screen of a file that is a terminal which moves its cursor, and nil for others: for a pipe, and
// with TERM=dumb. With NO_COLOR, see no-color.org, it has no colors.
func NewScreen(w io.Writer) *Screen {
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) || os.Getenv("TERM") == "dumb" || !movesCursor(f) {
		return nil
	}
	return &Screen{w: f, colors: os.Getenv("NO_COLOR") == "", ours: foreground(f), size: func() (width, height int) {
		width, height, err := term.GetSize(int(f.Fd()))
		if err != nil || width < 1 || height < 1 {
			return 80, 24
		}
		return width, height
	}}
}

// OnScreen returns the Screen of w, or w itself if it has none.
func OnScreen(w io.Writer) io.Writer {
	if s := NewScreen(w); s != nil {
		return s
	}
	return w
}

// Width returns the number of letters that a line of the block has room for.
func (s *Screen) Width() int {
	width, _ := s.size()
	return max(1, width-1) // a letter in the last column would begin another line on some terminals
}

// Show draws lines in the place of the block. It cuts lines that are too long, and leaves out the last ones if the
// terminal is not as high.
func (s *Screen) Show(lines []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var b strings.Builder
	s.erase(&b)
	s.block = lines
	s.draw(&b)
	s.put(b.String())
}

// Clear removes the block.
func (s *Screen) Clear() { s.Show(nil) }

// Write writes text above the block.
func (s *Screen) Write(text []byte) (n int, err error) {
	s.Beside(func() { n, err = s.w.Write(text) })
	return n, err
}

// Beside calls write while there is no block.
func (s *Screen) Beside(write func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var b strings.Builder
	s.erase(&b)
	s.put(b.String())
	write()
	b.Reset()
	s.draw(&b)
	s.put(b.String())
}

func (s *Screen) put(text string) {
	if text != "" {
		_, _ = io.WriteString(s.w, text) // what cannot be drawn does not stop the program
	}
}

// erase removes the drawn lines. If the terminal has become narrower, it has broken those that were longer. It begins in
// the second line, because some terminals keep what is erased from their first line on in their history.
func (s *Screen) erase(b *strings.Builder) {
	if !s.ours() {
		s.drawn = s.drawn[:0]
	}
	if len(s.drawn) == 0 {
		return
	}
	width, height := s.size()
	rows := 0
	for _, letters := range s.drawn {
		rows += max(1, (letters+width-1)/width)
	}
	b.WriteString("\r\x1b[" + strconv.Itoa(min(rows, max(1, height-1))) + "A\x1b[K\n\x1b[J\x1b[A")
	s.drawn = s.drawn[:0]
}

// draw writes the block. The cursor is then at the begin of the line below it.
func (s *Screen) draw(b *strings.Builder) {
	if !s.ours() {
		return
	}
	width, height := s.size()
	for _, line := range s.block[:min(len(s.block), max(1, height-1))] {
		line = cut(line, max(1, width-1))
		s.drawn = append(s.drawn, utf8.RuneCountInString(line))
		if full := strings.Count(line, fullBlock); s.colors && full > 0 {
			bar := strings.Repeat(fullBlock, full)
			line = strings.Replace(line, bar, "\x1b[32m"+bar+"\x1b[0m", 1)
		}
		b.WriteString(line + "\n")
	}
}

// fullBlock is what the filled part of a bar consists of.
const fullBlock = "█"

// cut shortens a line to a number of letters.
func cut(line string, most int) string {
	letters := []rune(line)
	if len(letters) <= most {
		return line
	}
	return string(letters[:max(0, most-1)]) + "…"
}
