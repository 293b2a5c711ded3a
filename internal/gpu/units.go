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

// ParallelLauncher is a Launcher that knows how many multiprocessors its device has: the number that the vendor's driver
// reports, or where it reports none, as Apple's, a number that is the same for all devices.
type ParallelLauncher interface {
	Launcher
	Multiprocessors() int
}

// Multiprocessors returns how many multiprocessors the device of q has, 0 if q does not know.
func Multiprocessors(q Launcher) int {
	if p, ok := q.(ParallelLauncher); ok {
		return p.Multiprocessors()
	}
	return 0
}
