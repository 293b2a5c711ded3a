//go:build !unix

package files

import "io/fs"

// Such flags of open do not exist here; [osDir.open] has looked at the name before.
const (
	noFollow = 0
	nonBlock = 0
)

// foreign trusts the access control of the system.
func foreign(_, _ fs.FileInfo, _ bool) string { return "" }
