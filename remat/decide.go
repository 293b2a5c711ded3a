package remat

// decision is where the result of a stage waits, between the forward step of the
// next stage and the backward steps that need it.
type decision uint8

const (
	keepSaved  decision = iota // the saved set in device memory
	packSaved                  // packed
	hostSaved                  // in host memory
	diskSaved                  // on disk
	keepOutput                 // the output in device memory; the saved set is computed again
	hostOutput                 // in host memory
	diskOutput                 // on disk
	dropOutput                 // nowhere; the output is computed again too
)

func (d decision) saves() bool { return d <= diskSaved }

// copies returns the operation that makes the copy, if there is one.
func (d decision) copies() (kind Kind, ok bool) {
	switch d {
	case packSaved:
		return Pack, true
	case hostSaved, hostOutput:
		return PageHost, true
	case diskSaved, diskOutput:
		return PageDisk, true
	}
	return 0, false
}

// decided writes the plan for one decision for every stage.
type decided struct {
	state
	ops       []Op
	decisions []decision
	// lag delays the drop of a value that is being copied by this many stages, and starts
	// loads this many stages early, so that transfers overlap with computation.
	lag int
}

// appendDecided appends the plan. The decision for the last stage, whose backward
// step follows its forward step, does not count.
func appendDecided(ops []Op, decisions []decision, lag int) []Op {
	n := len(decisions)
	w := decided{state: *newState(n), ops: ops, decisions: decisions, lag: lag}
	for i := range n {
		w.forward(i)
	}
	for i := n - 1; i >= 0; i-- {
		w.backward(i)
	}
	return w.ops
}

// do appends an operation, which is possible.
func (w *decided) do(kind Kind, stage int) {
	op := Op{kind, stage}
	w.apply(op)
	w.ops = append(w.ops, op)
}

// forward appends the forward step of stage i and the operations that it allows.
func (w *decided) forward(i int) {
	last := i == len(w.decisions)-1
	d := w.decisions[i]
	if last || d.saves() {
		w.do(ForwardSave, i)
	} else {
		w.do(ForwardDiscard, i)
	}
	if kind, ok := d.copies(); ok && !last {
		w.do(kind, i)
	}
	if i > 0 && (w.decisions[i-1] == dropOutput || w.decisions[i-1] == packSaved) {
		w.drop(i - 1)
	}
	if k := i - 1 - w.lag; k >= 0 && w.results[k].copied != absent {
		w.drop(k)
	}
}

// drop drops the values that device memory holds of the result of stage i.
func (w *decided) drop(i int) {
	switch w.results[i].form {
	case output:
		w.do(DropOutput, i)
	case saved:
		w.do(DropSaved, i)
	}
}

// load loads the result of stage i if it is not held and there is a copy.
func (w *decided) load(i int) {
	if i >= 0 && w.results[i].form == absent && w.results[i].copied != absent {
		w.do(Fetch, i)
	}
}

// backward appends the backward step of stage i and the operations that it needs.
func (w *decided) backward(i int) {
	w.load(i - 1)
	from := i // the first stage to be computed again
	for !w.hasInput(from) {
		from--
		w.load(from - 1)
	}
	for ; from < i; from++ {
		w.do(ForwardSave, from)
	}
	if w.results[i].copied == saved {
		w.load(i)
	}
	if w.results[i].form != saved {
		w.do(ForwardSave, i)
	}
	for k := range w.lag {
		w.load(i - 2 - k)
	}
	w.do(Backward, i)
}
