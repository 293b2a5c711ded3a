//go:build darwin || freebsd || linux

package files

import (
	"fmt"
	"math"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

var errsFull = []error{syscall.ENOSPC, syscall.EDQUOT}

func spaceOf(dir string) (Space, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return Space{}, fmt.Errorf("statfs %s: %w", dir, err)
	}
	info, err := os.Stat(dir)
	if err != nil {
		return Space{}, err
	}
	free := min(float64(s.Bavail)*float64(s.Bsize), math.MaxInt64/2)
	return Space{int64(max(0, free)), fmt.Sprint(info.Sys().(*syscall.Stat_t).Dev)}, nil
}
