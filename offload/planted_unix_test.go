//go:build unix

package offload

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
)

// TestFilesOfAnotherUser: a store does not use files that another user has put into its
// folder.
func TestFilesOfAnotherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root gives files away")
	}
	for _, name := range []string{dataName, indexName, lockName} {
		dir := t.TempDir()
		require.NoError(t, useStore(Options{}, func() {})(dir))
		require.NoError(t, os.Chown(filepath.Join(dir, name), 12345, -1))
		for call, do := range folderCalls() {
			if call == "MeasurePages" || call == "Contents" && name != indexName {
				continue
			}
			err := do(dir)
			require.ErrorIs(t, err, snug.ErrConfig, call)
			require.ErrorContains(t, err, filepath.Join(dir, name)+" belongs to another user", call)
		}
	}
}
