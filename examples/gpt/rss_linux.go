package main

import (
	"bytes"
	"os"
	"strconv"
)

// peakRSS returns the most memory that the process has had resident, in bytes,
// or 0 when the system does not tell. It does not ask getrusage, which counts
// what the parent held when it started the process.
func peakRSS() int64 {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	for line := range bytes.Lines(status) {
		if rest, ok := bytes.CutPrefix(line, []byte("VmHWM:")); ok {
			kib, _, _ := bytes.Cut(bytes.TrimSpace(rest), []byte(" "))
			n, err := strconv.ParseInt(string(kib), 10, 64)
			if err != nil {
				return 0
			}
			return n << 10
		}
	}
	return 0
}
