package plan

import (
	"cmp"
	"runtime"
	"runtime/debug"

	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/attention"
	"github.com/snug-ml/snug/internal/saturate"
	"github.com/snug-ml/snug/meter"
)

// Process is a process that trains on the CPU, see [ThisProcess].
type Process struct {
	Base  int64 // resident bytes before there is a model; 0: 16 MiB
	Cores int   // cores that compute; 0: GOMAXPROCS of this process
}

// ThisProcess measures this process, before it makes a model. It collects garbage first, and does not
// count free memory of Go's heap, which the model will use. Where the system reports only the
// maximum of resident memory, Base is that.
func ThisProcess() Process {
	debug.FreeOSMemory()
	now, peak := meter.Resident()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	base := peak
	if now > 0 {
		base = max(0, now-int64(m.HeapIdle-m.HeapReleased))
	}
	return Process{Base: base, Cores: runtime.GOMAXPROCS(0)}
}

// What a process touches besides what is counted, about: code and data of a program of Go
// before there is a model, the code of the kernels, and what Go's allocator keeps for each
// thread that computes.
const (
	baseBytes   = 16 << 20
	codeBytes   = 1 << 20
	threadBytes = 256 << 10
)

// Resident predicts the maximum resident memory of Task.Process, nil for one with defaults, that does r on the CPU: base,
// the bytes of [Task.Predict] without the allowance, on device and host, the scratch of
// kernels on each core, and the gaps between activations.
//
// It assumes that activations lie in memory of that size, as those of packages layers and transformer do, and that steps
// allocate nothing else. Before there are gradients, reading the
// weights takes at most a float32 copy of the largest matrix of a layer, from which the matrix is quantized, or the
// memory for the first values of adapters. Tables are read in pieces into their final memory. Errors are those of
// Predict.
func (t Task) Resident(r Run) (int64, error) {
	t.Process = cmp.Or(t.Process, &Process{})
	t, err := t.checkWith(r)
	if err != nil {
		return 0, err
	}
	predicted, err := t.predict(r)
	if err != nil {
		return 0, err
	}
	held := saturate.Add(predicted.Peak[meter.OnDevice].Total()-predicted.Peak[meter.OnDevice][meter.Allowance], predicted.Peak[meter.OnHost].Total())
	there := t
	there.Device.Unified = true // which decodes less at a time
	held += there.tileBytes(r) + t.Teacher.tileBytes(there, r) - t.tileBytes(r) - t.Teacher.tileBytes(t, r)
	held = saturate.Add(held, 4*t.Model.Tables) // tables are made on the host, and then copied
	scratch := int64(amp.MatMulScratch)
	for _, l := range t.Model.Layers {
		if a := l.Attention; a.Heads > 0 && a.tiled(r) {
			c := attention.Options{Batch: r.Micro, Heads: a.Heads, SeqQ: a.Queries, SeqK: a.Keys, Dim: a.Dim}
			scratch = max(scratch, c.ScratchBytes())
		}
	}
	if t.keepsFirst() { // the plain adapters of twice the rank, when they are saved
		for p := range t.trained() {
			held = saturate.Add(held, 2*4*p.all())
		}
	}
	activations := predicted.Peak[meter.OnDevice][meter.Activations]
	held = saturate.Add(held, activations/32+1<<16+t.Teacher.forward(t, r)/4) // the gaps between them, see Reserve of layers.Pass
	held = saturate.Add(held, saturate.Add(amp.MatMulShared+codeBytes, saturate.Mul(int64(t.Process.Cores), scratch+threadBytes)))
	largest := t.Model.largest()
	if t.Teacher != nil {
		largest = max(largest, t.Teacher.Model.largest())
	}
	reading := saturate.Add(predicted.Peak[meter.OnDevice][meter.Weights]+predicted.Peak[meter.OnHost][meter.Weights], max(4*largest, t.startBytes(r)))
	return saturate.Add(t.Process.Base, max(held, reading)), nil
}

// RuntimeBytes is the most that a plain program takes beyond [Task.Resident], for models of up to some hundred millions of
// parameters: tables of Go's runtime that grow with the heap, garbage until it is collected, and code that is touched later.
// Measured were 4 to 9 MiB for 30 million parameters, and 3 to 5 with debug.SetGCPercent(25).
const RuntimeBytes = 12 << 20

// startBytes returns what the first values of the adapters of a matrix take, with the matrix as it was read: see Start
// of package qlora.
func (t Task) startBytes(r Run) (bytes int64) {
	if t.Init == "" {
		return 0
	}
	for p := range t.Model.tensors() {
		if !p.adapts {
			continue
		}
		n, more := p.len(), 40*(int64(p.shape[0])+int64(p.shape[1]))*int64(t.Rank+8)
		if t.Init != "olora" && min(p.shape[0], p.shape[1]) <= 256 {
			more = 40 * n
		}
		bytes = max(bytes, n*(4+r.elem())+more)
	}
	return bytes
}

// check returns p with its defaults, or an error for negative fields.
func (p *Process) check() (*Process, error) {
	switch {
	case p == nil:
		return nil, nil
	case p.Base < 0 || p.Cores < 0:
		return p, invalid("a process of %d bytes on %d cores, want 0 or more", p.Base, p.Cores)
	}
	return &Process{cmp.Or(p.Base, baseBytes), cmp.Or(p.Cores, runtime.GOMAXPROCS(0))}, nil
}

// largest returns the elements of the largest matrix of a layer.
func (m Model) largest() (n int64) {
	for p := range m.tensors() {
		if p.linear {
			n = max(n, p.len())
		}
	}
	return n
}
