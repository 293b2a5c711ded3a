package quant8

import (
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
)

// maxSteps32 and maxSteps8 are how many parameters a launch updates at most, as in kernels/steps.h: what has room
// in its parameters, beside the maps of 8-bit states.
const (
	maxSteps32 = 100
	maxSteps8  = 11
)

// plain reports whether a step is one that the kernels of two moments make.
func (j *stepJob) plain() bool { return j.rule.Adam() && !j.skip && !j.random }

// Join implements [driver.Joiner]: steps with the kernels of two moments join if they have the same factors and
// their states the same form.
func (j *stepJob) Join(next driver.Job) bool {
	n, ok := next.(*stepJob)
	if !ok || !j.joins() || !n.joins() || n.layout != j.layout || n.chunk != j.chunk || n.m != j.m || n.v != j.v ||
		n.rule.AdamFactors() != j.rule.AdamFactors() {
		return false
	}
	most := maxSteps32
	if j.bits == 8 {
		most = maxSteps8
	}
	return driver.Join(&j.joined, j, n, most, (*stepJob).memory)
}

// joins reports whether there are kernels for a step together with others.
func (j *stepJob) joins() bool {
	return j.states > 0 && j.plain() && (j.bits == 8 || j.bits == 32) && j.sums == nil && j.lost == nil && j.roots.Len() == 0
}

func (j *stepJob) memory() [3]driver.Mem {
	return [3]driver.Mem{*device.Mem(&j.p), *device.Mem(&j.g), *device.Mem(&j.state)}
}
