package transformer

import "github.com/snug-ml/snug/meter"

// holders tell a Monitor which parts of a model hold how many bytes. They are nil without a Monitor.
type holders struct {
	stages    []stageHolders // of the chain, and of the head
	flowing   *meter.Holder  // gradients of activations on their way through the stages
	weights   []heldWeights
	workspace *meter.Holder
	counted   int64 // weights that were counted
}

// stageHolders hold the activations that a stage makes.
type stageHolders struct {
	name    string
	byPhase [meter.Phases]*meter.Holder
}

// heldWeights are the weights of a layer.
type heldWeights struct {
	layer string
	*meter.Holder
	bytes int64
}

// checkpointStage is the name of what moves outputs to [Checkpoints] and back.
const checkpointStage = "checkpoints"

// makeHolders makes the holders of activations and of the workspace.
func (m *Model) makeHolders() {
	monitor := m.options.Monitor
	if monitor == nil {
		return
	}
	var names []string
	for i := range m.stages {
		names = append(names, m.config.stageName(i))
	}
	for _, name := range append(names, "head", checkpointStage) {
		s := stageHolders{name: name}
		for phase, suffix := range map[meter.Phase]string{meter.Forward: "", meter.Recompute: ", recomputed", meter.Backward: ", backward"} {
			s.byPhase[phase] = monitor.Holder(meter.OnDevice, meter.Activations, name+suffix)
		}
		s.byPhase[meter.Idle] = s.byPhase[meter.Forward]
		m.holders.stages = append(m.holders.stages, s)
	}
	m.holders.flowing = monitor.Holder(meter.OnDevice, meter.Activations, "gradient of activations")
	m.holders.workspace = monitor.Holder(meter.OnDevice, meter.Workspace, "of all layers")
	m.enter(m.headStage(), meter.Idle)
}

// headStage is the number of the stage after those of the chain: the last norm, the head and the loss.
func (m *Model) headStage() int { return len(m.stages) }

// enter says which stage computes now. The holders of this stage count what it allocates.
func (m *Model) enter(stage int, phase meter.Phase) {
	if m.holders.stages == nil {
		return
	}
	s := &m.holders.stages[stage]
	m.pass.Hold(s.byPhase[phase])
	m.options.Monitor.Enter(phase, s.name)
}

// forwardPhase is the phase of a forward step.
func (m *Model) forwardPhase() meter.Phase {
	if m.turned {
		return meter.Recompute
	}
	return meter.Forward
}

// holdWeights tells the monitor the weights of each layer, if they have changed.
func (h *holders) holdWeights(m *Model) {
	if h.counted == m.weightBytes {
		return
	}
	h.counted = m.weightBytes
	for i := range h.weights {
		h.weights[i].bytes = 0
	}
	others := m.weightBytes
	for i := range m.params {
		p := &m.params[i]
		n := int64(p.Value.Bytes())
		if p.Quantized != nil && m.options.Pages == nil {
			n += p.Quantized.Bytes()
		}
		others -= n
		h.layer(m, meter.LayerOf(p.Name)).bytes += n
	}
	h.layer(m, "shared by layers").bytes += others
	for _, l := range h.weights {
		l.Set(l.bytes)
	}
}

// layer returns the weights of a layer.
func (h *holders) layer(m *Model, name string) *heldWeights {
	for i := range h.weights {
		if h.weights[i].layer == name {
			return &h.weights[i]
		}
	}
	h.weights = append(h.weights, heldWeights{name, m.options.Monitor.Holder(meter.OnDevice, meter.Weights, name), 0})
	return &h.weights[len(h.weights)-1]
}

// close sets all counts to 0.
func (h *holders) close() {
	for _, l := range h.weights {
		l.Set(0)
	}
	h.workspace.Set(0)
	h.counted = 0
}
