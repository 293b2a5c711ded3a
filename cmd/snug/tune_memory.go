package main

import (
	"math"
	"runtime"

	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/transformer"
)

// heapLimit returns the limit of Go's memory: what -memory leaves for it. Above the limit, Go collects garbage whatever
// gcPercent says.
func (t *tuning) heapLimit() int64 {
	if t.memory == 0 || t.onDevice() {
		return math.MaxInt64
	}
	return t.memory - (t.process.Base - t.heap) - codeBytes
}

// heapBytes returns the bytes that Go's memory has in use, as debug.SetMemoryLimit counts them.
func heapBytes() int64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.Sys - m.HeapIdle)
}

// measure raises the measured peak of each component to what is held now.
func (t *tuning) measure(r *result) {
	m, b := t.model.Memory(), t.trainer.Bytes()
	if t.store != nil {
		pages, run := t.store.Stats().HostPeak, t.plan.Run
		if run.StateOn == meter.OnDisk {
			b[meter.Masters], b[meter.State] = 0, pages
			if run.WeightsOn == meter.OnDisk {
				b[meter.State] = min(pages, run.Cache)
			}
			pages -= b[meter.State]
		}
		m.Weights += pages
	}
	if s := t.student.memory(); s != (transformer.Memory{}) {
		m.Weights, m.Peak, m.Workspace = m.Weights+s.Weights, m.Peak+s.Peak, m.Workspace+s.Workspace
	}
	if t.shards != nil {
		m.Weights += t.shards.Peak()
	}
	b[meter.Weights], b[meter.Activations] = m.Weights, m.Peak+t.checkpoints.Stats().HostPeak
	b[meter.Workspace] += m.Workspace
	for i, n := range b {
		r.Components[i] = max(r.Components[i], n)
	}
	r.Measured = r.Components.Total()
	if t.reporter != nil {
		t.reporter.measured = r.Components
	}
}

// counted returns a limit of a plan, 0 if it is more than any machine has.
func counted(limit int64) int64 {
	if limit >= 1<<60 {
		return 0
	}
	return limit
}
