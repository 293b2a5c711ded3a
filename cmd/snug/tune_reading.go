package main

import (
	"fmt"
	"io"
	"path/filepath"
	"time"

	"github.com/snug-ml/snug/internal/console"
	"github.com/snug-ml/snug/meter"
)

// Files that take longer than slowReading to read show how far they are: in a line of a terminal, or else in a line of text
// every readingLines.
const (
	slowReading  = 2 * time.Second
	readingLines = 10 * time.Second
	readingDraws = 100 * time.Millisecond
)

// showReading returns a function for dataset.Options.Progress that writes to stderr, and one that removes what is drawn.
func showReading(stderr io.Writer) (shown func(path string, read, of int64), done func()) {
	screen, is := stderr.(*console.Screen)
	if !is {
		screen = console.NewScreen(stderr)
	}
	began := time.Now()
	last := began
	return func(path string, read, of int64) {
			now := time.Now()
			pause := readingDraws
			if screen == nil {
				pause = readingLines
			}
			if now.Sub(began) < slowReading || now.Sub(last) < pause {
				return
			}
			last = now
			line := readingLine(path, read, of)
			if screen == nil {
				fmt.Fprintln(stderr, line)
				return
			}
			screen.Show([]string{line})
		}, func() {
			if screen != nil {
				screen.Clear()
			}
		}
}

// readingLine says how far a file is read. of is -1 for a pipe.
func readingLine(path string, read, of int64) string {
	line := "reading " + escaped(filepath.Base(path)) + ": " + meter.FormatBytes(read)
	if of > 0 {
		line += fmt.Sprintf(" of %s, %.0f %%", meter.FormatBytes(of), 100*float64(min(read, of))/float64(of))
	}
	return line
}
