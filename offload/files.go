package offload

import (
	"fmt"
	"os"

	"github.com/snug-ml/snug"
)

// The files of a store.
const (
	dataName  = "snug.pages"
	indexName = "snug.index"
	tempName  = "snug.index.tmp"
	lockName  = "snug.lock"
	openName  = "snug.open" // exists while a store is open, and after a store that was not closed
)

// Flags for opening them.
const (
	readOnly = os.O_RDONLY
	create   = os.O_RDWR | os.O_CREATE
)

// checkFolder refuses an empty name, which would mean the working directory of the
// process.
func checkFolder(dir string) error {
	if dir == "" {
		return fmt.Errorf("offload: the name of the folder is empty: %w", snug.ErrConfig)
	}
	return nil
}
