package files

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// The room of a folder is that of the folder above while it is missing.
func TestSpaceOf(t *testing.T) {
	dir := t.TempDir()
	here, err := SpaceOf(dir)
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skip(err)
	}
	require.NoError(t, err)
	require.Positive(t, here.Free)
	require.NotEmpty(t, here.Volume)
	above, err := SpaceOf(filepath.Join(dir, "a", "b"))
	require.NoError(t, err)
	require.Equal(t, here.Volume, above.Volume)
}

func TestIsFull(t *testing.T) {
	for _, c := range []struct {
		err  error
		full bool
	}{
		{&fs.PathError{Op: "write", Path: "x", Err: syscall.ENOSPC}, true},
		{fmt.Errorf("train: %w", errors.Join(os.ErrClosed, syscall.ENOSPC)), true},
		{syscall.EIO, false},
		{nil, false},
	} {
		require.Equal(t, c.full, IsFull(c.err), "%v", c.err)
	}
}
