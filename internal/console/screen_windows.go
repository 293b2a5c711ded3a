package console

import (
	"os"

	"golang.org/x/sys/windows"
)

// movesCursor makes a terminal take the sequences that move its cursor, and reports whether it does.
func movesCursor(f *os.File) bool {
	var mode uint32
	h := windows.Handle(f.Fd())
	return windows.GetConsoleMode(h, &mode) == nil && windows.SetConsoleMode(h, mode|windows.ENABLE_VIRTUAL_TERMINAL_PROCESSING) == nil
}
