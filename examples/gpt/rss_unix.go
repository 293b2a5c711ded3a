//go:build unix && !linux

package main

import (
	"runtime"
	"syscall"
)

// peakRSS returns the most memory that the process has had resident, in bytes.
func peakRSS() int64 {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	if runtime.GOOS == "darwin" || runtime.GOOS == "ios" {
		return int64(u.Maxrss)
	}
	return int64(u.Maxrss) << 10 // kilobytes elsewhere
}
