package remat

import (
	"fmt"

	"github.com/snug-ml/snug"
)

// plan returns the operations that carry out p on a chain, with the disk of p in a tier,
// [Host] or [Disk]. Memory holds a value once, as the working value, in a slot, or both. The
// caller holds a_0, so it needs neither slot nor copy.
func (p schedule) plan(tier Tier) Plan {
	w := levelWriter{page: PageDisk, values: make([]levelValue, p.stages+1)}
	if tier == Host {
		w.page = PageHost
	}
	for _, op := range p.ops {
		w.add(op)
	}
	return Plan{Name: p.name, Stages: p.stages, Ops: w.ops}
}

// transfers returns the times of writing and reading an output in a tier, as multiples of
// the time of a forward step, for stages equal to the mean of the stages of c.
func (c Costs) transfers(t Tier) (write, read float64) {
	bytes, time := 0.0, 0.0
	for _, s := range c.Stages {
		bytes += float64(s.Output)
		time += s.ForwardTime
	}
	r := c.rates(t)
	if time == 0 || r == (Rates{}) {
		return 0, 0
	}
	return min(bytes/r.Write/time, maxTransfer), min(bytes/r.Read/time, maxTransfer)
}

// levelWriter translates the operations of a schedule.
type levelWriter struct {
	ops     []Op
	page    Kind
	values  []levelValue // a_i
	working int          // i of the working value, -1 for none
}

// levelValue is where a_i is.
type levelValue struct{ slot, copied bool }

func (w *levelWriter) do(kind Kind, stage int) { w.ops = append(w.ops, Op{kind, stage}) }

// value appends an operation on a_i, the result of stage i-1.
func (w *levelWriter) value(kind Kind, i int) {
	if i > 0 {
		w.do(kind, i-1)
	}
}

// work makes a_i the working value instead of the previous one.
func (w *levelWriter) work(i int) {
	if before := w.working; before >= 0 && before != i && !w.values[before].slot {
		w.value(DropOutput, before)
	}
	w.working = i
}

func (w *levelWriter) add(op levelOp) {
	i := op.stage
	switch v := &w.values[i]; op.kind {
	case advance:
		if !w.values[i+1].slot {
			w.do(ForwardDiscard, i)
		}
		w.work(i + 1)
	case reverse:
		w.do(ForwardSave, i)
		w.do(Backward, i)
		w.values[i+1] = levelValue{} // which went with the saved set
		w.work(-1)
	case storeMemory:
		v.slot = true
	case dropMemory:
		if v.slot && w.working != i {
			w.value(DropOutput, i)
		}
		v.slot = false
	case storeDisk:
		w.value(w.page, i)
		v.copied = true
	case loadMemory:
		w.work(i)
	case loadDisk:
		if !v.slot && w.working != i {
			w.value(Fetch, i)
		}
		w.work(i)
	case dropDisk:
		if v.copied {
			w.value(DropCopy, i)
		}
		v.copied = false
	}
}

// levelFamily are the plans of [HRevolve] for some numbers of slots, for equal stages with
// the mean time of a chain's stages.
type levelFamily struct {
	n     int
	tier  Tier // that is the disk
	slots []levels
	each  int64    // transitions for each number of slots in memory
	h     hrevolve // of the latest one
}

// hrevolveFamily returns the family whose disk is the tier with the most bytes in t. The
// family takes at most maxTransitions: long chains get fewer slots on disk.
func hrevolveFamily(c Costs, t Tiers) (family, error) {
	f := levelFamily{n: len(c.Stages), tier: Disk}
	if f.n > maxLevelStages {
		return family{}, fmt.Errorf("remat: plan hrevolve for %d stages: want %d at most: %w", f.n, maxLevelStages, snug.ErrConfig)
	}
	if t.Host > t.Disk {
		f.tier = Host
	}
	var l levels
	l.write, l.read = c.transfers(f.tier)
	memories := int64(0)
	for l.memory = 1; ; l.memory = min(f.n, l.memory+max(1, l.memory/4)) {
		memories++
		for l.disk = 1; ; l.disk = min(f.n, 2*l.disk) {
			f.slots = append(f.slots, l)
			if l.disk == f.n {
				break
			}
		}
		if l.memory == f.n {
			break
		}
	}
	f.each = maxTransitions / memories
	return family{0, len(f.slots) - 1, f.append, func(i int) string {
		return (&hrevolve{levels: f.slots[i]}).name(f.slots[i].disk)
	}}, nil
}

// append appends the plan for the i-th numbers of slots, in the order of slots. It
// returns nil for a plan that is too long or equals the plan of fewer slots.
func (f *levelFamily) append(ops []Op, i int) []Op {
	l := f.slots[i]
	if f.h.memory != l.memory {
		f.h = hrevolve{levels: l}
		f.h.disk = f.n
		f.h.solve(f.n, f.each)
	}
	if rows := len(f.h.free) - 1; l.disk > 1 && f.slots[i-1].disk >= rows {
		return nil
	}
	p, ok := f.h.plan(f.n, l.disk)
	if !ok {
		return nil
	}
	return append(ops, p.plan(f.tier).Ops...)
}
