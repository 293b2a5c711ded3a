//go:build unix && !solaris

package console

import (
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
)

// foreground returns a function that reports whether the program is in the foreground of a terminal, and was all the time
// since the last call. What a shell's user does with a stopped program, or with one in the background, changes the terminal.
func foreground(f *os.File) func() bool {
	resumed := make(chan os.Signal, 1)
	signal.Notify(resumed, unix.SIGCONT)
	return func() bool {
		select {
		case <-resumed:
			return false
		default:
		}
		group, err := unix.IoctlGetInt(int(f.Fd()), unix.TIOCGPGRP)
		known := err == nil && int32(group) > 0 // not if the terminal does not control the program's session
		return !known || int(int32(group)) == unix.Getpgrp()
	}
}
