package train

import "github.com/snug-ml/snug/meter"

// holders tell a Monitor which layers hold gradients, master weights and state. The zero value, without a Monitor,
// counts nothing.
type holders struct {
	monitor *meter.Monitor
	list    []holder
}

// holder is the bytes of one component that belong to one layer.
type holder struct {
	component meter.Component
	layer     string
	*meter.Holder
	bytes int64
}

// others names the bytes of a component that belong to no parameter.
const others = "shared by parameters"

// of returns the holder of a component and a layer.
func (h *holders) of(c meter.Component, layer string) *holder {
	for i := range h.list {
		if h.list[i].component == c && h.list[i].layer == layer {
			return &h.list[i]
		}
	}
	h.list = append(h.list, holder{c, layer, h.monitor.Holder(meter.OnDevice, c, layer), 0})
	return &h.list[len(h.list)-1]
}

// add notes the bytes that a parameter takes. The Monitor counts them when set is called.
func (h *holders) add(c meter.Component, param string, n int64) {
	if h.monitor != nil {
		h.of(c, meter.LayerOf(param)).bytes += n
	}
}

// set tells the Monitor the bytes of a component. all is their sum; what add did not note for a parameter is shared.
func (h *holders) set(c meter.Component, all int64) {
	if h.monitor == nil {
		return
	}
	rest := all
	for _, l := range h.list {
		if l.component == c && l.layer != others {
			l.Set(l.bytes)
			rest -= l.bytes
		}
	}
	h.of(c, others).Set(rest)
}

// held calls all if there is a Monitor, and otherwise returns 0.
func (t *Trainer[B]) held(all func() int64) int64 {
	if t.holders.monitor == nil {
		return 0
	}
	return all()
}

// close sets all counts to 0.
func (h *holders) close() {
	for _, l := range h.list {
		l.Set(0)
	}
}
