package offload

import (
	"errors"
	"fmt"
	"syscall"
	"testing"

	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

// TestFullTmpfs trains on file systems of memory that fill up, at many sizes, and goes
// on after they have grown. It needs the right to mount; without it TestFullDisk is the
// same with files that cannot grow.
//
//check:not race
func TestFullTmpfs(t *testing.T) {
	dir := t.TempDir()
	mount := func(flags uintptr, kib int) error {
		return syscall.Mount("tmpfs", dir, "tmpfs", flags, fmt.Sprintf("size=%dk", kib))
	}
	if err := mount(0, 64); errors.Is(err, syscall.EPERM) {
		t.Skip("no right to mount a file system")
	} else {
		require.NoError(t, err)
	}
	require.NoError(t, syscall.Unmount(dir, 0))
	t.Cleanup(func() { _ = syscall.Unmount(dir, 0) }) // after a failure
	whole := start(t, t.TempDir(), 4)
	require.NoError(t, whole.cmd.Wait(), whole.stderr.String())
	_, want, _ := whole.facts(t)

	late := 0 // after a commit
	step := 16
	if !kerneltest.Full() {
		step = 80
	}
	for kib := 4; kib <= 244; kib += step {
		require.NoError(t, mount(0, kib))
		p := start(t, dir, 4)
		err := p.cmd.Wait()
		_, losses, committed := p.facts(t)
		for step, loss := range losses {
			require.Equal(t, want[step], loss)
		}
		if err != nil {
			require.Contains(t, p.stderr.String(), "no space left on device", "%d KiB", kib)
		}
		if err != nil && committed > 0 {
			late++
		}
		if committed > 0 {
			_, err = Verify(dir)
			require.NoError(t, err)
		}
		require.NoError(t, mount(syscall.MS_REMOUNT, 1024))
		again := start(t, dir, 4)
		require.NoError(t, again.cmd.Wait(), again.stderr.String())
		resumed, losses, _ := again.facts(t)
		require.Equal(t, committed, resumed)
		for step, loss := range losses {
			require.Equal(t, want[step], loss)
		}
		require.NoError(t, syscall.Unmount(dir, 0))
	}
	require.Positive(t, late, "some fill up after the first commit")
}
