//go:build darwin || linux

package offload

import (
	"os/signal"
	"syscall"
)

const filesCanBeLimited = true

// limitFiles makes writes beyond n bytes of a file fail in this process.
func limitFiles(n uint64) error {
	signal.Ignore(syscall.SIGXFSZ)
	return syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: n, Max: n})
}
