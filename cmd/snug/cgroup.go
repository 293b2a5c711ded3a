package main

import (
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/meter"
)

// cgroupLimit returns the memory limit of the control group of this process, as of a container, or 0 for none. root is the
// file system of the machine. A group has the limits of those above it, too.
func cgroupLimit(root fs.FS) (least int64) {
	list, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(list)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3) // number, controllers, path
		if len(parts) < 3 {
			continue
		}
		folder, name := "sys/fs/cgroup", "memory.max" // version 2
		if parts[1] != "" {
			folder, name = "sys/fs/cgroup/memory", "memory.limit_in_bytes"
			if !strings.Contains(","+parts[1]+",", ",memory,") {
				continue
			}
		}
		for group := path.Join("/", parts[2]); ; group = path.Dir(group) {
			text, err := fs.ReadFile(root, path.Join(folder, group, name))
			n, parseErr := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64) // "max" is no number
			if err == nil && parseErr == nil && n > 0 && n < 1<<60 && (least == 0 || n < least) {
				least = n
			}
			if group == "/" {
				break
			}
		}
	}
	return least
}

// checkCgroup compares the plan, whose process takes resident bytes, and -memory with the limit of the control group. Beyond
// it the system kills the process. It returns a warning, or an error if the plan does not fit.
func checkCgroup(limit, memory, resident int64) (warning string, err error) {
	switch {
	case limit == 0:
	case resident > limit:
		return "", fmt.Errorf("tune: the process takes up to %s, and the memory limit of its container (cgroup) is %s: give -memory %s: %w",
			meter.FormatBytesUp(resident), meter.FormatBytes(limit), strings.ReplaceAll(meter.FormatBytes(limit), " ", ""), snug.ErrNoMemory)
	case memory > limit:
		return fmt.Sprintf("the memory limit of this container (cgroup) is %s, below -memory %s", meter.FormatBytes(limit), meter.FormatBytes(memory)), nil
	}
	return "", nil
}
