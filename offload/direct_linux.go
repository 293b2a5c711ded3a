package offload

import (
	"os"
	"syscall"
)

// openDirect opens a file past the operating system's cache.
func openDirect(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDWR|syscall.O_DIRECT|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600)
}
