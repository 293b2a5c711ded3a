//go:build !windows

package console

import "os"

// movesCursor reports whether a terminal takes the sequences that move its cursor.
func movesCursor(*os.File) bool { return true }
