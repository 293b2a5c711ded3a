//go:build emu && unix

package emu

import (
	"io/fs"
	"syscall"
)

func ownedBy(info fs.FileInfo, user int) bool {
	s, known := info.Sys().(*syscall.Stat_t)
	return known && int64(s.Uid) == int64(user)
}

func onlyOwnerWrites(info fs.FileInfo) bool { return info.Mode().Perm()&0o022 == 0 }
