package remat

import (
	"fmt"

	"github.com/snug-ml/snug"
)

// Plan returns the operations that carry out p on a chain, with copies in a tier,
// [Host] or [Disk], for what is stored on disk. A value is held once in memory, be it the
// working value, in a slot, or both; a_0 needs neither slot nor copy, as the caller
// holds it. The error wraps [snug.ErrConfig]: p is not valid, or tier is another.
func (p MultilevelPlan) Plan(tier Tier) (Plan, error) {
	page := PageHost
	switch tier {
	case Host:
	case Disk:
		page = PageDisk
	default:
		return Plan{}, fmt.Errorf("remat: plan %s with copies in tier %v: want host or disk: %w", p.Name, tier, snug.ErrConfig)
	}
	if _, err := p.Simulate(Levels{Memory: p.Stages, Disk: p.Stages}); err != nil {
		return Plan{}, err
	}
	w := levelWriter{page: page, values: make([]levelValue, p.Stages+1)}
	for _, op := range p.Ops {
		w.add(op)
	}
	return Plan{Name: p.Name, Stages: p.Stages, Ops: w.ops}, nil
}

// levelWriter translates the operations of a MultilevelPlan.
type levelWriter struct {
	ops     []Op
	page    Kind
	values  []levelValue // a_i
	working int          // i of the working value, -1 for none
}

// levelValue is where a_i is.
type levelValue struct{ slot, copied bool }

func (w *levelWriter) do(kind Kind, stage int) { w.ops = append(w.ops, Op{kind, stage}) }

// value appends an operation on a_i, which is the result of the stage before.
func (w *levelWriter) value(kind Kind, i int) {
	if i > 0 {
		w.do(kind, i-1)
	}
}

// work makes a_i the working value in the place of the one before.
func (w *levelWriter) work(i int) {
	if before := w.working; before >= 0 && before != i && !w.values[before].slot {
		w.value(DropOutput, before)
	}
	w.working = i
}

func (w *levelWriter) add(op LevelOp) {
	i := op.Stage
	switch v := &w.values[i]; op.Kind {
	case Advance:
		if !w.values[i+1].slot {
			w.do(ForwardDiscard, i)
		}
		w.work(i + 1)
	case Reverse:
		w.do(ForwardSave, i)
		w.do(Backward, i)
		w.values[i+1] = levelValue{} // which went with the saved set
		w.work(-1)
	case StoreMemory:
		v.slot = true
	case DropMemory:
		if v.slot && w.working != i {
			w.value(DropOutput, i)
		}
		v.slot = false
	case StoreDisk:
		w.value(w.page, i)
		v.copied = true
	case LoadMemory:
		w.work(i)
	case LoadDisk:
		if !v.slot && w.working != i {
			w.value(Fetch, i)
		}
		w.work(i)
	case DropDisk:
		if v.copied {
			w.value(DropCopy, i)
		}
		v.copied = false
	}
}

// levelFamily is the plans of HRevolve for some numbers of slots, for equal stages that
// take as long as those of a chain on average.
type levelFamily struct {
	n     int
	tier  Tier // that is the disk
	slots []Levels
	each  int64    // transitions for each number of slots in memory
	h     hrevolve // of the latest one
}

// hrevolveFamily returns those with the tier that t has the most bytes of as the disk.
// They take at most maxTransitions together: long chains get fewer slots on disk.
func hrevolveFamily(c Costs, t Tiers) (family, error) {
	f := levelFamily{n: len(c.Stages), tier: Disk}
	if f.n > maxLevelStages {
		return family{}, fmt.Errorf("remat: plan hrevolve for %d stages: want %d at most: %w", f.n, maxLevelStages, snug.ErrConfig)
	}
	if t.Host > t.Disk {
		f.tier = Host
	}
	bytes, time := 0.0, 0.0
	for _, s := range c.Stages {
		bytes += float64(s.Output)
		time += s.ForwardTime
	}
	var l Levels
	if r := c.rates(f.tier); time > 0 {
		l.Write, l.Read = min(bytes/r.Write/time, maxTransfer), min(bytes/r.Read/time, maxTransfer)
	}
	memories := int64(0)
	for l.Memory = 1; ; l.Memory = min(f.n, l.Memory+max(1, l.Memory/4)) {
		memories++
		for l.Disk = 1; ; l.Disk = min(f.n, 2*l.Disk) {
			f.slots = append(f.slots, l)
			if l.Disk == f.n {
				break
			}
		}
		if l.Memory == f.n {
			break
		}
	}
	f.each = maxTransitions / memories
	return family{0, len(f.slots) - 1, f.append, func(i int) string {
		return (&hrevolve{Levels: f.slots[i]}).name(f.slots[i].Disk)
	}}, nil
}

// append appends the plan for the i-th numbers of slots, in the order of slots. It
// returns nil for one that is too long, and for one that is that of fewer slots.
func (f *levelFamily) append(ops []Op, i int) []Op {
	l := f.slots[i]
	if f.h.Memory != l.Memory {
		f.h = hrevolve{Levels: l}
		f.h.Disk = f.n
		f.h.solve(f.n, f.each)
	}
	if rows := len(f.h.free) - 1; l.Disk > 1 && f.slots[i-1].Disk >= rows {
		return nil
	}
	p, ok := f.h.plan(f.n, l.Disk)
	if !ok {
		return nil
	}
	plan, err := p.Plan(f.tier)
	if err != nil {
		return nil
	}
	return append(ops, plan.Ops...)
}
