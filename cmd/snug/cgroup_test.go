package main

import (
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
)

// The limit is the least of the group and those above it, of both versions of control groups.
func TestCgroupLimit(t *testing.T) {
	for _, c := range []struct {
		name  string
		files map[string]string
		want  int64
	}{
		{"none", nil, 0},
		{"version 2", map[string]string{"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "2147483648\n", "sys/fs/cgroup/a/memory.max": "max\n"}, 2 << 30},
		{"above", map[string]string{"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "max\n", "sys/fs/cgroup/a/memory.max": "1024\n"}, 1024},
		{"in a container", map[string]string{"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "4096\n"}, 4096},
		{"no limit", map[string]string{"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"}, 0},
		{"version 1", map[string]string{"proc/self/cgroup": "7:cpu,cpuacct:/x\n5:memory:/docker/1\n", "sys/fs/cgroup/memory/docker/1/memory.limit_in_bytes": "8192\n"}, 8192},
		{"version 1 in a container", map[string]string{"proc/self/cgroup": "5:memory:/docker/1\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "8192\n"}, 8192},
		{"version 1 without a limit", map[string]string{"proc/self/cgroup": "5:memory:/\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}, 0},
		{"damaged", map[string]string{"proc/self/cgroup": "x\n0::/../..\n", "sys/fs/cgroup/memory.max": "-1"}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			root := fstest.MapFS{}
			for name, text := range c.files {
				root[name] = &fstest.MapFile{Data: []byte(text)}
			}
			require.Equal(t, c.want, cgroupLimit(root))
		})
	}
}

// A plan beyond the limit is refused, and a -memory beyond it is named.
func TestCheckCgroup(t *testing.T) {
	for _, c := range []struct {
		name                    string
		limit, memory, resident int64
		warning, err            string
	}{
		{"none", 0, 1 << 40, 1 << 39, "", ""},
		{"enough", 8 << 30, 4 << 30, 3 << 30, "", ""},
		{"memory beyond", 2 << 30, 4 << 30, 1 << 30, "the memory limit of this container (cgroup) is 2.00 GiB, below -memory 4.00 GiB", ""},
		{"plan beyond", 2 << 30, 4 << 30, 3 << 30, "", "the process takes up to 3.00 GiB, and the memory limit of its container (cgroup) is 2.00 GiB: give -memory 2.00GiB"},
		{"plan beyond without -memory", 2 << 30, 0, 3 << 30, "", "give -memory 2.00GiB"},
	} {
		t.Run(c.name, func(t *testing.T) {
			warning, err := checkCgroup(c.limit, c.memory, c.resident)
			require.Equal(t, c.warning, warning)
			if c.err == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, c.err)
				require.ErrorIs(t, err, snug.ErrNoMemory)
			}
		})
	}
}
