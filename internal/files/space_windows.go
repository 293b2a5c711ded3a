package files

import (
	"fmt"
	"math"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/windows"
)

// errsFull are ENOSPC, ERROR_HANDLE_DISK_FULL and ERROR_DISK_FULL.
var errsFull = []error{syscall.ENOSPC, windows.ERROR_HANDLE_DISK_FULL, windows.ERROR_DISK_FULL}

func spaceOf(dir string) (Space, error) {
	name, err := windows.UTF16PtrFromString(dir)
	if err != nil {
		return Space{}, err
	}
	var free uint64
	if err := windows.GetDiskFreeSpaceEx(name, &free, nil, nil); err != nil {
		return Space{}, fmt.Errorf("the free space of %s: %w", dir, err)
	}
	return Space{int64(min(free, math.MaxInt64/2)), filepath.VolumeName(dir)}, nil
}
