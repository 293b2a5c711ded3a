package layers

import (
	"context"

	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/remat"
)

// counted tells a Monitor what a part of a model allocates in each phase. The zero value tells nobody.
type counted struct {
	monitor *meter.Monitor
	name    string
	phases  [meter.Phases]*meter.Holder
}

func newCounted(m *meter.Monitor, name string) counted {
	c := counted{monitor: m, name: name}
	for phase, suffix := range map[meter.Phase]string{meter.Forward: "", meter.Recompute: ", recomputed", meter.Backward: ", backward"} {
		c.phases[phase] = m.Holder(meter.OnDevice, meter.Activations, name+suffix)
	}
	return c
}

// enter makes the part count what the pass allocates from now on. The forward phase within a backward pass is a recomputation.
func (c *counted) enter(ctx context.Context, p *Pass, phase meter.Phase) {
	if c.monitor == nil {
		return
	}
	if phase == meter.Forward && !remat.FirstPass(ctx) {
		phase = meter.Recompute
	}
	p.Hold(c.phases[phase])
	c.monitor.Enter(phase, c.name)
}

// held are the weights and the workspace of a model, as its Monitor knows them.
type held struct {
	weights   map[string]*heldWeights // by layer
	workspace *meter.Holder
	buffers   int64 // bytes of all buffers, which count as workspace
}

type heldWeights struct {
	*meter.Holder
	bytes int64
}

// add counts the bytes of a parameter that the model has allocated.
func (h *held) add(m *meter.Monitor, parameter string, bytes int64) {
	layer := meter.LayerOf(parameter)
	w := h.weights[layer]
	if w == nil {
		w = &heldWeights{Holder: m.Holder(meter.OnDevice, meter.Weights, layer)}
		h.weights[layer] = w
	}
	w.bytes += bytes
	w.Set(w.bytes)
}

// close sets all counts to 0.
func (h *held) close() {
	for _, w := range h.weights {
		w.Set(0)
	}
	h.workspace.Set(0)
}
