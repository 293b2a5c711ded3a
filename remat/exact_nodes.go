package remat

// holding is a set of values held between two operations: the forms of the outputs of
// all stages, two bits each, and above them the number of the stage whose backward step
// comes next, plus one.
type holding uint64

const nextShift = 2 * exactStages

func (h holding) next() int                  { return int(h>>nextShift) - 1 }
func (h holding) form(i int) form            { return form(h >> (2 * i) & 3) }
func (h holding) with(i int, f form) holding { return h&^(3<<(2*i)) | holding(f)<<(2*i) }
func (h holding) hasInput(i int) bool        { return i == 0 || h.form(i-1) != absent }

// bytes returns the size of the held values, with a_0 and the gradient.
func (h holding) bytes(c Costs) int64 {
	t := h.next()
	bytes := c.Input + c.value(t+1)
	for i := range t + 1 {
		switch h.form(i) {
		case output:
			bytes += c.Stages[i].Output
		case saved:
			bytes += c.Stages[i].Saved
		}
	}
	return bytes
}

// after returns the values held after a possible operation.
func (h holding) after(op Op) holding {
	switch op.Kind {
	case ForwardDiscard:
		return h.with(op.Stage, output)
	case ForwardSave:
		return h.with(op.Stage, saved)
	case Backward:
		return h.with(op.Stage, absent) - 1<<nextShift
	}
	return h.with(op.Stage, absent)
}

// openNode is a node to be expanded, and a lower bound of the work of plans through it.
type openNode struct {
	lowerBound int64
	node       int32
}

// openNodes is a heap, smallest bound first, of equal ones the newest node.
type openNodes []openNode

func (a openNode) before(b openNode) bool {
	return a.lowerBound < b.lowerBound || a.lowerBound == b.lowerBound && a.node > b.node
}

func (o *openNodes) push(v openNode) {
	list := append(*o, v)
	*o = list
	k := len(list) - 1
	for k > 0 && v.before(list[(k-1)/2]) {
		list[k] = list[(k-1)/2]
		k = (k - 1) / 2
	}
	list[k] = v
}

func (o *openNodes) pop() openNode {
	list := *o
	top, v := list[0], list[len(list)-1]
	list = list[:len(list)-1]
	*o = list
	for k := 0; k < len(list); {
		child := 2*k + 1
		if child+1 < len(list) && list[child+1].before(list[child]) {
			child++
		}
		if child >= len(list) || v.before(list[child]) {
			list[k] = v
			break
		}
		list[k] = list[child]
		k = child
	}
	return top
}

// nodeIndex is a hash table of nodes by their holding, with linear probing.
type nodeIndex struct {
	slots []nodeSlot
	count int // of the used ones
}

// nodeSlot is unused if node is 0.
type nodeSlot struct {
	holding
	cost int64 // of the way to the node
	node int32 // plus one
}

// at returns the slot of h, with node 0 if it is new.
func (x *nodeIndex) at(h holding) *nodeSlot {
	if 2*x.count >= len(x.slots) {
		old := x.slots
		x.slots = make([]nodeSlot, max(1024, 2*len(old)))
		for _, v := range old {
			if v.node != 0 {
				*x.probe(v.holding) = v
			}
		}
	}
	return x.probe(h)
}

func (x *nodeIndex) probe(h holding) *nodeSlot {
	mask := len(x.slots) - 1
	k := int(uint64(h)*0x9e3779b97f4a7c15>>32) & mask
	for x.slots[k].node != 0 && x.slots[k].holding != h {
		k = (k + 1) & mask
	}
	return &x.slots[k]
}

// set gives h, whose slot it is, to a node.
func (x *nodeIndex) set(slot *nodeSlot, h holding, cost int64, node int32) {
	if slot.node == 0 {
		x.count++
	}
	*slot = nodeSlot{h, cost, node + 1}
}
