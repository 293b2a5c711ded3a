//go:build emu && !unix

package emu

import "io/fs"

// Elsewhere folders of caches and of temporary files are the user's, and modes do not say
// who writes.
func ownedBy(fs.FileInfo, int) bool { return true }

func onlyOwnerWrites(fs.FileInfo) bool { return true }
