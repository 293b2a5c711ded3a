package gpu

// UnitsLauncher is a Launcher that knows whether modules have the kernels on matrix units for its
// device. AMD's images have none.
type UnitsLauncher interface {
	Launcher
	HasUnits() bool
}

// HasUnits reports whether q runs kernels on matrix units, as every Launcher does that does not
// say otherwise.
func HasUnits(q Launcher) bool {
	u, ok := q.(UnitsLauncher)
	return !ok || u.HasUnits()
}

// Multiprocessors returns how many multiprocessors the device of q has, 0 if q does not know.
func Multiprocessors(q Launcher) int {
	if p, ok := q.(interface{ Multiprocessors() int }); ok {
		return p.Multiprocessors()
	}
	return 0
}
