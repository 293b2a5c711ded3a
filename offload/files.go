package offload

import "os"

// The files of a store.
const (
	dataName  = "snug.pages"
	indexName = "snug.index"
	tempName  = "snug.index.tmp"
	lockName  = "snug.lock"
	openName  = "snug.open" // there while a store is open, and after one that was not closed
)

// Flags of opening them.
const (
	readOnly = os.O_RDONLY
	create   = os.O_RDWR | os.O_CREATE
	truncate = os.O_RDWR | os.O_CREATE | os.O_TRUNC
)
