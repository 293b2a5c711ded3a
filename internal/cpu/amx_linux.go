//go:build linux && amd64

package cpu

import (
	"sync"
	"syscall"
)

// tilesAllowed asks the kernel for the use of AMX's tile registers in this
// process and reports the answer. Each thread that touches them holds 8 KiB
// more state from then on. See Linux, Documentation/arch/x86/xstate.rst.
var tilesAllowed = sync.OnceValue(func() bool {
	const (
		sysArchPrctl      = 158
		archReqXcompPerm  = 0x1023
		xfeatureXTileData = 18
	)
	_, _, errno := syscall.RawSyscall(sysArchPrctl, archReqXcompPerm, xfeatureXTileData, 0)
	return errno == 0
})
