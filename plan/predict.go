package plan

import (
	"fmt"
)

// Prediction is the memory and the time of a run.
type Prediction struct {
	Peak    Usage   // the largest number of bytes of each component at one time, by tier
	Seconds float64 // time of a step
}

// Predict returns the memory and the time of a run of t, before anything is allocated.
// The sum of the components is the memory if all of them have their peak at the same
// time.
//
// The error wraps snug.ErrConfig when r is not a valid run of t, and snug.ErrShape when
// the model is not valid, or has counts that a 32-bit system cannot hold.
func (t Task) Predict(r Run) (Prediction, error) {
	t, err := t.check()
	if err == nil {
		err = t.checkRun(r)
	}
	if err != nil {
		return Prediction{}, err
	}
	return t.predict(r)
}

func (t Task) predict(r Run) (Prediction, error) {
	state, err := t.stateBytes(r.StateBits)
	if err != nil {
		return Prediction{}, err
	}
	f := t.fixed(r, state)
	bytes, seconds, err := t.peak(t.costs(r, int64(r.Micro)), r.Remat, int64(r.Micro))
	if err != nil {
		return Prediction{}, fmt.Errorf("plan: %w", err)
	}
	return f.with(t, r, bytes, t.workspaceBytes(r), seconds/float64(r.Micro)+t.lossSeconds(r)), nil
}

// fixed holds the values that do not depend on the micro-batch.
type fixed struct {
	usage   Usage
	scratch int64   // workspace of the optimizer
	weights int64   // bytes of all weights, wherever they are
	micro   float64 // seconds of each micro-batch outside the chain, and of
	stream  float64 // transfers in parallel with it
	step    float64 // seconds of the update
	held    []int64 // if weights are paged, the bytes of the first layers: of 1, 2, ...
	must    int     // number of these layers that the device holds because the other tiers are full
}

// with adds the activations and the workspace of a micro-batch, given the seconds of its
// chain and loss for a sample.
func (f fixed) with(t Task, r Run, activations, workspace int64, seconds float64) Prediction {
	p := Prediction{Peak: f.usage}
	d := &p.Peak[OnDevice]
	d[Activations] += activations
	d[Workspace] += max(workspace, f.scratch)
	d[Allowance] = int64(t.Device.Fragmentation * float64(d[Activations]+d[Workspace]))
	p.Seconds = f.seconds(t, r, seconds)
	return p
}

// seconds returns the time of a step, given the seconds of its chain and loss for a
// sample.
func (f fixed) seconds(t Task, r Run, seconds float64) float64 {
	window := float64(r.Window)
	return f.step + max(float64(t.Batch)*seconds+window*f.micro, window*f.stream)
}

// fixed returns the bytes of weights, masters, gradients and state, by tier, and their
// times.
func (t Task) fixed(r Run, o stateSize) (f fixed) {
	f.scratch = o.workspace
	all, trained, largest := t.counts()
	masters := r.masterBytes() * trained
	host := OnHost
	if t.Device.Unified {
		host = OnDevice
	}

	f.weights = t.weightBytes(r, all, trained)
	two := min(f.weights, 2*t.Model.largestPart()*r.elem()) // layers, while the next one comes
	here := int64(0)
	if r.WeightsOn != OnDevice {
		if f.held = t.layerBytes(r); r.LayersHeld > 0 {
			here = f.held[r.LayersHeld-1]
			f.usage[OnDevice][Weights] += here
		}
	}
	switch r.WeightsOn {
	case OnDevice:
		f.usage[OnDevice][Weights] += f.weights
	case OnHost:
		f.usage[host][Weights] += f.weights - here
		if !t.Device.Unified {
			f.usage[OnDevice][Weights] += two
		}
	case OnDisk:
		f.usage[OnDisk][Weights] += f.weights - here
		f.usage[OnDevice][Weights] += two
	}

	sums := t.gradientBytes(r, trained, largest)
	if r.GradientsOn == OnHost {
		f.usage[host][Gradients] += sums
		if !t.Device.Unified {
			f.usage[OnDevice][Gradients] += min(sums, 4*t.largestTrained())
		}
	} else {
		f.usage[OnDevice][Gradients] += sums
	}

	switch r.StateOn {
	case OnDevice:
		f.usage[OnDevice][Masters] += masters
		f.usage[OnDevice][State] += o.state
	case OnHost:
		f.usage[host][Masters] += masters
		f.usage[host][State] += o.state
	case OnDisk:
		f.usage[OnDisk][Masters] += masters
		f.usage[OnDisk][State] += o.state
		f.usage[host][State] += min(r.Cache, masters+o.state)
	}
	f.times(t, r, masters+o.state, trained, here)
	return f
}

// counts returns the elements of all parameters, of the trained parameters, and of the
// largest trained parameter.
func (t Task) counts() (all, trained, largest int64) {
	for p := range t.trained() {
		trained = plus(trained, p.all())
		largest = max(largest, p.len())
	}
	all = t.Model.Parameters()
	if t.Rank > 0 {
		all = plus(all, trained)
	}
	return all, trained, largest
}

// weightBytes returns the bytes of all weights. Weights under adapters may be frozen in 4
// bits: the matrices of the chain as package qlora holds them, in blocks of 64 with the
// absmax of each block in a byte, and a float32 absmax for every 256 of these bytes.
// Other weights stay in the compute type.
func (t Task) weightBytes(r Run, all, trained int64) int64 {
	bytes := all * r.elem()
	if t.Rank > 0 && r.Frozen == 4 {
		for p := range t.Model.tensors() {
			if p.linear {
				bytes += int64(p.times) * (frozenBytes(p.len()) - p.len()*r.elem())
			}
		}
	}
	return bytes
}

// frozenBytes returns the bytes of a matrix of n elements in 4 bits.
func frozenBytes(n int64) int64 {
	up := func(n, size int64) int64 { return (n + size - 1) / size }
	blocks := up(n, 64)
	return up(n, 2) + blocks + 4*up(blocks, 256)
}

// layerBytes returns the bytes of the weights of the chain's first layers: of 1, of 2, and
// so on.
func (t Task) layerBytes(r Run) (sums []int64) {
	sum := int64(0)
	for _, l := range t.Model.Layers {
		bytes := int64(0)
		for _, shape := range l.Params {
			n := tensor{shape: shape}.len()
			if len(shape) != 2 {
				bytes += n * r.elem()
				continue
			}
			if t.Rank > 0 && r.Frozen == 4 {
				bytes += frozenBytes(n)
			} else {
				bytes += n * r.elem()
			}
			bytes += int64(t.Rank) * int64(shape[0]+shape[1]) * r.elem()
		}
		for range l.repeat() {
			sum += bytes
			sums = append(sums, sum)
		}
	}
	return sums
}

// gradientBytes returns the bytes of gradients, wherever they are. With steps in the
// backward pass one gradient is held at a time. The gradient of a matrix that the loss
// and the embedding share is held until both have added to it.
func (t Task) gradientBytes(r Run, trained, largest int64) int64 {
	switch r.Gradients {
	case SumBF16:
		return 2 * trained
	case SumF32:
		return 4 * trained
	}
	if !t.Model.Head.Tied || t.Rank > 0 {
		return 4 * largest
	}
	shared, next, first := int64(0), int64(0), true
	for p := range t.Model.tensors() {
		if first {
			shared, first = p.len(), false
			continue
		}
		next = max(next, p.len())
	}
	return 4 * (shared + next)
}

// largestTrained returns the maximum number of trained elements of a part of the model.
func (t Task) largestTrained() int64 {
	if t.Rank == 0 {
		return t.Model.largestPart()
	}
	largest := int64(0)
	for _, l := range t.Model.Layers {
		n := int64(0)
		for _, s := range l.Params {
			if len(s) == 2 {
				n += int64(t.Rank) * int64(s[0]+s[1])
			}
		}
		largest = max(largest, n)
	}
	return largest
}

// stateOps is the arithmetic of an update of one element, in float32 operations. The
// numbers give the times of bench/RESULTS.md at 313 GFLOP/s. States in 8 and 4 bits are
// decoded and encoded; states in 16 bits are rounded at random.
var stateOps = map[int]float64{32: 30, 16: 220, 8: 240, 4: 240}

// times sets the seconds of the update, and of each micro-batch outside the chain.
func (f *fixed) times(t Task, r Run, state, trained, here int64) {
	d, n := t.Device, float64(trained)
	// Weights are read in forward and backward steps; gradients are read and written.
	f.micro = 3 * float64(f.weights) / d.Bandwidth
	sum := 8.0
	if r.Gradients == SumBF16 {
		sum = 4
	}
	f.micro += sum * n / d.Bandwidth
	if r.WeightsOn != OnDevice {
		f.stream += 2 * float64(f.weights-here) / d.tierRate(r.WeightsOn)
	}
	if r.GradientsOn == OnHost {
		f.stream += 4 * n / d.Link
	}

	bits := width(r.StateBits)
	moved := 2*float64(state) + n*float64(2*r.elem()+4)
	if r.StateOn == OnDevice {
		f.step = max(moved/d.Bandwidth, stateOps[bits]*n/d.F32)
		return
	}
	// The host updates: gradients come, weights go back.
	f.step = max(moved/d.HostBandwidth, stateOps[bits]*n/d.HostF32)
	if !d.Unified {
		if r.GradientsOn == OnDevice {
			f.step += 4 * n / d.Link
		}
		f.step += float64(r.elem()) * n / d.Link
	}
	if r.StateOn == OnDisk {
		f.step = max(f.step, 2*float64(max(0, state-r.Cache))/d.DiskRate)
	}
}

// tierRate returns the rate of transfers from a tier to the device.
func (d Device) tierRate(t Tier) float64 {
	if t == OnDisk {
		return min(d.DiskRate, d.Link)
	}
	return d.Link
}
