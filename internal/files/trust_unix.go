//go:build unix

package files

import (
	"io/fs"
	"os"
	"syscall"
)

// Flags of open: a link is an error, and a pipe does not wait for its other end.
const (
	noFollow = syscall.O_NOFOLLOW
	nonBlock = syscall.O_NONBLOCK
)

// foreign says why a file in a folder may be somebody else's, or is empty. See [osDir].
func foreign(file, folder fs.FileInfo, write bool) string {
	f, ok := file.Sys().(*syscall.Stat_t)
	d, ok2 := folder.Sys().(*syscall.Stat_t)
	switch {
	case !ok || !ok2:
		return ""
	case int(f.Uid) != os.Geteuid() && f.Uid != 0 && f.Uid != d.Uid:
		return "belongs to another user"
	case file.Mode()&0o002 != 0:
		return "can be written by every user"
	case write && f.Nlink > 1:
		return "has a second name (a hard link), under which it would change too"
	}
	return ""
}
