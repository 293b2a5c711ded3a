package plan

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/snug-ml/snug/internal/saturate"
	"github.com/snug-ml/snug/meter"
)

// Prediction is the memory and the time of a run.
type Prediction struct {
	Peak    meter.Usage // the largest number of bytes of each component at one time, by tier
	Seconds float64     // time of a step
	Sent    int64       // bytes that a rank sends to others in a step
	Waits   float64     // seconds of a step in which a rank waits for the others' bytes
}

// Predict returns the memory and the time of a run of t, before anything is allocated.
// The sum of the components is the memory if all of them have their peak at the same
// time.
//
// The error wraps snug.ErrConfig when r is not a valid run of t, and snug.ErrShape when
// the model is not valid, or has counts that a 32-bit system cannot hold.
func (t Task) Predict(r Run) (Prediction, error) {
	t, err := t.checkWith(r)
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
	u, err := t.peak(t.costs(r, int64(r.Micro)), r.Remat, int64(r.Micro))
	if err != nil {
		return Prediction{}, fmt.Errorf("plan: %w", err)
	}
	return f.with(t, r, u, t.workspaceBytes(r), work{u.seconds/float64(r.Micro) + t.lossSeconds(r), forwardsAgain(r.Remat)}), nil
}

// fixed holds the values that do not depend on the micro-batch.
type fixed struct {
	usage   meter.Usage
	scratch int64 // workspace of the optimizer
	trained int64 // elements that train
	params  int64 // in how many parameters
	divided shardedWeights
	weights int64   // bytes of all weights, wherever they are
	paged   int64   // and of the weights that are not on the device
	micro   float64 // seconds of each micro-batch outside the chain, and of
	stream  float64 // transfers in parallel with it, and of
	pass    float64 // transfers of all paged weights, for a pass through the chain
	step    float64 // seconds of the update
	held    []int64 // if weights are paged, the bytes of the first layers: of 1, 2, ...
	filed   bool    // weights are in the file of pages also if the device holds them
	must    int     // number of these layers that the device holds because the other tiers are full
}

// work is what a plan of recomputation takes.
type work struct {
	seconds float64 // of the chain and the loss, for a sample
	again   float64 // forward steps beyond one for each layer, in passes through the chain
}

// with adds the activations and the workspace of a micro-batch.
func (f fixed) with(t Task, r Run, u chainUse, workspace int64, w work) Prediction {
	p := Prediction{Peak: f.usage}
	d := &p.Peak[meter.OnDevice]
	taught := t.Teacher.forward(t, r)
	d[meter.Weights] += t.Teacher.weightBytes(t, r) + r.elem()*t.Model.Frozen
	d[meter.Activations] += u.bytes + taught
	d[meter.Gradients] += t.sharing(r)
	a, b := t.shared()
	expanded := 4 * (a + 2*b) // the matrices of one adapter, and the gradient of the second
	d[meter.Workspace] += workspace + f.scratch + 4*t.Model.Tables + r.elem()*(t.Model.Vectors+int64(r.Micro)*t.Model.Beside) + t.tileBytes(r) + expanded
	d[meter.Allowance] = int64(t.Device.Fragmentation * float64(d[meter.Activations]+d[meter.Workspace]))
	if u.disk > 0 {
		p.Peak[meter.OnDisk][meter.Activations] += u.disk
		if host := min(CheckpointBytes, u.disk); t.Device.Unified {
			p.Peak[meter.OnDevice][meter.Activations] += host
		} else {
			p.Peak[meter.OnHost][meter.Activations] += host + CheckpointPinned
		}
	}
	p.Seconds = f.seconds(t, r, w)
	p.Sent, p.Waits = t.network(r, &f, w)
	return p
}

// sharing returns the bytes that matrices which share an input take when gradients are held one at a time: all of their
// gradients at once except the largest, or the gradient of the input beside the input itself, whichever is less.
func (t Task) sharing(r Run) (most int64) {
	if !r.Gradients.onePer() || t.Rank > 0 {
		return 0
	}
	for _, l := range t.Model.Layers {
		sums, largest := map[int]int64{}, map[int]int64{}
		for _, shape := range l.Params {
			if len(shape) == 2 {
				n := saturate.Mul(int64(shape[0]), int64(shape[1]))
				sums[shape[1]], largest[shape[1]] = sums[shape[1]]+n, max(largest[shape[1]], n)
			}
		}
		for in, sum := range sums {
			most = max(most, min(4*(sum-largest[in]), int64(r.Micro)*l.Output*r.elem()))
		}
	}
	return most
}

// seconds returns the time of a step. Paged weights come for every forward and backward step.
func (f fixed) seconds(t Task, r Run, w work) float64 {
	window, steps := float64(r.Window), 1.0
	if r.Gradients == Folded {
		steps = window // the state is read and written for each micro-batch
	}
	_, waits := t.network(r, &f, w)
	return waits + steps*f.step + max(float64(t.Batch)*w.seconds+window*f.micro, window*(f.stream+(2+w.again)*f.pass))
}

// fixed returns the bytes of weights, masters, gradients and state, by tier, and their
// times.
func (t Task) fixed(r Run, o stateSize) (f fixed) {
	f.scratch = o.workspace + t.wholeBytes(r)
	all, trained, largest := o.all, o.trained, o.largest
	f.trained, f.params = trained, o.params
	masters := t.part(r.Shard != Replicate, t.masterBytes(r)*t.mastered(trained))
	o.state = t.part(r.Shard != Replicate, o.state)
	host := meter.OnHost
	if t.Device.Unified {
		host = meter.OnDevice
	}

	f.weights = t.weightBytes(r, all, trained)
	w := paging{}
	if r.WeightsOn != meter.OnDevice {
		w = t.pagedWeights(r)
	}
	here := int64(0)
	if f.held = w.held; r.LayersHeld > 0 {
		here = f.held[r.LayersHeld-1]
	}
	f.paged = w.bytes - here
	f.usage[meter.OnDevice][meter.Weights] += f.weights - f.paged
	if f.divided = t.shardedWeights(r); f.divided.bytes > 0 {
		f.usage[meter.OnDevice][meter.Weights] += t.weightsHeld(f.divided) - f.divided.bytes
	}
	switch r.WeightsOn {
	case meter.OnHost:
		f.usage[host][meter.Weights] += f.paged
		if !t.Device.Unified {
			f.usage[meter.OnDevice][meter.Weights] += w.two
		}
	case meter.OnDisk:
		f.usage[meter.OnDisk][meter.Weights] += max(f.paged, w.file)
		f.filed = w.file > 0
		f.usage[meter.OnDevice][meter.Weights] += w.two
	}

	sums := t.part(t.dividesGradients(r), t.gradientBytes(r, trained, largest)) + t.bucketBytes(r, trained, largest) + t.openGradients(r)
	if r.GradientsOn == meter.OnHost {
		f.usage[host][meter.Gradients] += sums
		if !t.Device.Unified {
			f.usage[meter.OnDevice][meter.Gradients] += min(sums, 4*t.largestTrained())
		}
	} else {
		f.usage[meter.OnDevice][meter.Gradients] += sums
	}

	switch r.StateOn {
	case meter.OnDevice:
		f.usage[meter.OnDevice][meter.Masters] += masters
		f.usage[meter.OnDevice][meter.State] += o.state
	case meter.OnHost:
		f.usage[host][meter.Masters] += masters
		f.usage[host][meter.State] += o.state
	case meter.OnDisk:
		f.usage[meter.OnDisk][meter.Masters] += masters
		if masters > 0 {
			o.pages *= 2
		}
		f.usage[meter.OnDisk][meter.State] += o.state + o.pages*fileAlign // at most
		f.usage[host][meter.State] += min(r.Cache, masters+o.state)
	}
	f.times(t, r, masters+o.state, trained, t.part(r.Shard != Replicate, trained))
	f.step += o.operations / t.Device.F32
	return f
}

// counts returns the elements of all parameters, of the trained parameters, and of the
// largest trained parameter.
func (t Task) counts() (all, trained, largest int64) {
	for p := range t.trained() {
		trained = saturate.Add(trained, p.all())
		largest = max(largest, p.len())
	}
	all = t.Model.Parameters()
	if t.Rank > 0 {
		all = saturate.Add(all, trained-t.besideLen(true))
	}
	return all, trained, largest
}

// gradientBytes returns the bytes of gradients, wherever they are. With steps in the
// backward pass one gradient of a matrix is held at a time, with that of its bias, or those of
// the two vectors of a norm. The gradient of a matrix that the loss and the embedding share is
// held until both have added to it.
func (t Task) gradientBytes(r Run, trained, largest int64) int64 {
	if t.forwardOnly() {
		return 0
	}
	switch r.Gradients {
	case SumBF16:
		return 2 * trained
	case SumF32:
		return 4 * trained
	}
	vector := int64(0) // a bias comes with its matrix
	for p := range t.trained() {
		if len(p.shape) == 1 {
			vector = max(vector, p.len())
		}
	}
	if len(t.Beside) > 0 && t.Model.Head.Tied { // of them may be the embedding, which lies beside the next largest
		second := int64(0)
		for p := range t.trained() {
			if n := p.len(); n < largest {
				second = max(second, n)
			}
		}
		return 4 * (largest + second + 2*vector)
	}
	if !t.Model.Head.Tied || t.Rank > 0 {
		return 4 * (largest + 2*vector)
	}
	shared, next, first := int64(0), int64(0), true
	for p := range t.Model.tensors() {
		if first {
			shared, first = p.len(), false
			continue
		}
		next = max(next, p.len())
	}
	return 4 * (shared + next + 2*vector)
}

// openGradients returns the bytes of the gradients that steps in the backward pass hold at one time in addition,
// because layers in tiles complete none before the last tile.
func (t Task) openGradients(r Run) (bytes int64) {
	if !r.Gradients.onePer() || r.Tiles <= 1 {
		return 0
	}
	for _, l := range t.Model.Layers {
		if l.Tiles.Whole == 0 {
			continue
		}
		sum := int64(0)
		for i, shape := range l.Params {
			switch p := (tensor{shape: shape, adapts: l.adapts(i)}); {
			case t.Rank == 0:
				sum += 4 * p.len()
			case p.adapts:
				sum += 4 * t.trainedLen(shape)
			case slices.ContainsFunc(t.Beside, func(s []int) bool { return slices.Equal(s, shape) }):
				sum += 4 * p.len()
			}
		}
		bytes = max(bytes, sum)
	}
	return bytes
}

// largestTrained returns the maximum number of trained elements of a part of the model.
func (t Task) largestTrained() int64 {
	if t.Rank == 0 {
		first, head, layers := t.parts(tensor.len)
		return max(first, head, slices.Max(layers))
	}
	_, _, layers := t.parts(func(p tensor) int64 {
		if !p.adapts {
			return 0
		}
		return t.trainedLen(p.shape)
	})
	return max(slices.Max(layers), t.besideLen(true))
}

// stateOps is the arithmetic of an update of one element, in float32 operations. The
// numbers give the times of bench/RESULTS.md at 313 GFLOP/s. States in 8 and 4 bits are
// decoded and encoded; states in 16 bits are rounded at random.
var stateOps = map[int]float64{32: 30, 16: 220, 8: 240, 4: 240}

// StateOps returns the operations by which the time of an update of one element is predicted, with a state of 32, 16, 8 or 4 bits: a program that
// measures updates a second finds the rate Elementwise of a [Device] with it. Other bits give 0.
func StateOps(bits int) float64 { return stateOps[bits] }

// times sets the seconds of the update, and of each micro-batch outside the chain.
// A rank updates its part of the trained elements.
func (f *fixed) times(t Task, r Run, state, trained, updated int64) {
	d, n := t.Device, float64(trained)
	// Weights are read in forward and backward steps; gradients are read and written.
	f.micro = 3 * float64(f.weights) / d.Bandwidth
	sum := 8.0
	if r.Gradients == SumBF16 {
		sum = 4
	}
	f.micro += sum * n / d.Bandwidth
	if r.WeightsOn != meter.OnDevice {
		f.pass = float64(f.paged) / d.tierRate(r.WeightsOn)
	}
	if r.GradientsOn == meter.OnHost {
		f.stream += 4 * n / d.Link
	}

	n = float64(updated)
	bits := cmp.Or(r.StateBits, 32)
	moved := 2*float64(state) + n*float64(2*t.trainedElem(r)+4)
	if r.StateOn == meter.OnDevice {
		f.step = max(moved/d.Bandwidth, stateOps[bits]*n/cmp.Or(d.Elementwise, d.F32))
		return
	}
	// The host updates: gradients come, weights go back.
	f.step = max(moved/d.HostBandwidth, stateOps[bits]*n/d.HostF32)
	if !d.Unified {
		if r.GradientsOn == meter.OnDevice {
			f.step += 4 * n / d.Link
		}
		f.step += float64(t.trainedElem(r)) * n / d.Link
	}
	if r.StateOn == meter.OnDisk {
		f.step = max(f.step, 2*float64(max(0, state-r.Cache))/d.DiskRate)
	}
}

// tierRate returns the rate of transfers from a tier to the device.
func (d Device) tierRate(t meter.Tier) float64 {
	if t == meter.OnDisk {
		return min(d.DiskRate, d.Link)
	}
	return d.Link
}
