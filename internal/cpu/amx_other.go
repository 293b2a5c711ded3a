//go:build !(linux && amd64)

package cpu

// tilesAllowed is false where nobody has tried AMX.
func tilesAllowed() bool { return false }
