//go:build (darwin || linux) && !race

package offload

import "syscall"

const mapsMemory = true // outside Go's heap

// mapMemory returns n bytes of zeros outside Go's heap, nil if the system has none.
func mapMemory(n int) []byte {
	mem, err := syscall.Mmap(-1, 0, n, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		return nil
	}
	return mem
}

// unmapMemory gives memory of mapMemory back.
func unmapMemory(mem []byte) {
	if err := syscall.Munmap(mem); err != nil {
		panic(err) // it is not memory of mapMemory
	}
}
