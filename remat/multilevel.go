package remat

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/snug-ml/snug"
)

// Levels is what there is to keep inputs of stages in: slots in memory, which
// cost nothing to use, and slots on a slower level, called the disk here. A slot
// takes the input of any one stage; the schedules are for chains of equal stages.
type Levels struct {
	Memory int // slots in memory
	Disk   int // slots on disk

	// Write and Read are the times it takes to move one input to and from the
	// disk, as multiples of the time of a forward step: for inputs of b bytes, a
	// rate of r bytes a second and forward steps of f seconds, b/(r·f).
	Write float64
	Read  float64
}

// maxTransfer limits what a transfer may take, so that no sum is infinite.
const maxTransfer = 1 << 32

// Validate reports whether l has no negative number of slots, at least one slot,
// and transfers that take between 0 and 2^32 forward steps. The error wraps
// [snug.ErrConfig].
func (l Levels) Validate() error {
	if l.Memory < 0 || l.Disk < 0 || l.Memory == 0 && l.Disk == 0 {
		return fmt.Errorf("remat: levels: %d slots in memory, %d on disk: want 0 or more, and at least one: %w", l.Memory, l.Disk, snug.ErrConfig)
	}
	for _, cost := range [...]float64{l.Write, l.Read} {
		if !(cost >= 0 && cost <= maxTransfer) {
			return fmt.Errorf("remat: levels: a transfer takes %v forward steps: want a number from 0 to 2^32: %w", cost, snug.ErrConfig)
		}
	}
	return nil
}

// LevelKind is what an operation of a [MultilevelPlan] does.
type LevelKind uint8

// The kinds of operations of a [MultilevelPlan]. The zero LevelKind is none. One
// input is held outside of the slots, the working value; there is none after
// Reverse.
const (
	Advance     LevelKind = iota + 1 // run the stage forward: a_i, the working value, becomes a_{i+1}
	Reverse                          // run the stage forward from the working value, save, and run it backward
	StoreMemory                      // copy the working value a_i to a slot in memory
	StoreDisk                        // copy it to a slot on disk
	LoadMemory                       // make a copy of a_i in memory the working value
	LoadDisk                         // make a copy of a_i on disk the working value
	DropMemory                       // release the slot of a_i in memory
	DropDisk                         // release the slot of a_i on disk
)

// levelNotation is how the operations are written, followed by the number of the
// stage.
var levelNotation = [...]string{"?", "A", "R", "+M", "+D", "M", "D", "-M", "-D"}

// String returns the notation of the kind: A and R for the two steps; M for memory
// and D for disk, alone for a load, after + for a store and after - for a drop.
func (k LevelKind) String() string {
	if int(k) >= len(levelNotation) {
		return levelNotation[0]
	}
	return levelNotation[k]
}

// LevelOp is one operation on stage i or on its input a_i.
type LevelOp struct {
	Kind  LevelKind
	Stage int
}

// String returns the notation of the operation, such as "A3" or "+D0".
func (o LevelOp) String() string { return o.Kind.String() + strconv.Itoa(o.Stage) }

// MultilevelPlan is one forward and backward pass over a chain whose inputs of
// stages are kept on two levels. It starts with a_0 as the working value and not
// in a slot.
//
// Make one with [HRevolve] or by hand. A [Chain] runs it as a [MultilevelPlan.Plan];
// otherwise it is a schedule for the caller to carry out, operation by operation.
type MultilevelPlan struct {
	Name   string // of the planner and its parameters, for people
	Stages int    // stages of the chain
	Ops    []LevelOp
}

// String returns the operations, separated by spaces: "+M0 A0 R1 M0 -M0 R0".
func (p MultilevelPlan) String() string {
	var b strings.Builder
	for i, op := range p.Ops {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(op.String())
	}
	return b.String()
}

// LevelReport is what a [MultilevelPlan] takes.
type LevelReport struct {
	Makespan float64 // forward steps, those within Reverse included, and transfers, in forward steps
	Extra    int     // forward steps beyond one a stage
	Writes   int     // values copied to disk
	Reads    int     // values copied from disk
	Memory   int     // largest number of slots in use at one time, in memory
	Disk     int     // and on disk
}

// Simulate carries out p without values. Backward steps take no time, as they are
// the same for every plan: add n times the ratio of a backward to a forward step to
// the makespan for the time of the whole pass.
//
// The error names the operation and wraps [snug.ErrConfig]: l is not valid, an
// operation does not find what it needs or no free slot, a value is stored on a
// level that holds it, or the end leaves a backward step undone or a slot in use.
// It takes two bytes of memory per stage.
func (p MultilevelPlan) Simulate(l Levels) (LevelReport, error) {
	if err := l.Validate(); err != nil {
		return LevelReport{}, err
	}
	// Every stage has a Reverse, so that a damaged number of stages cannot make the
	// state large.
	if p.Stages < 1 || len(p.Ops) < p.Stages {
		return LevelReport{}, fmt.Errorf("remat: plan of %d operations for %d stages: want at least one stage and one operation for each: %w", len(p.Ops), p.Stages, snug.ErrConfig)
	}
	s := levelState{
		next:   p.Stages - 1,
		memory: levelSlots{held: make([]bool, p.Stages), limit: l.Memory},
		disk:   levelSlots{held: make([]bool, p.Stages), limit: l.Disk},
	}
	for i, op := range p.Ops {
		if problem := s.apply(op); problem != "" {
			return LevelReport{}, fmt.Errorf("remat: plan: operation %d (%v) of a chain of %d stages: %s: %w", i, op, p.Stages, problem, snug.ErrConfig)
		}
	}
	if s.next >= 0 {
		return LevelReport{}, fmt.Errorf("remat: plan: the backward steps of stages 0 to %d are missing: %w", s.next, snug.ErrConfig)
	}
	if s.memory.used > 0 || s.disk.used > 0 {
		return LevelReport{}, fmt.Errorf("remat: plan: %d slots in memory and %d on disk are in use at the end: %w", s.memory.used, s.disk.used, snug.ErrConfig)
	}
	return LevelReport{
		Makespan: float64(s.forwards) + float64(l.Write*float64(s.disk.stores)) + float64(l.Read*float64(s.disk.loads)),
		Extra:    s.forwards - p.Stages,
		Writes:   s.disk.stores,
		Reads:    s.disk.loads,
		Memory:   s.memory.peak,
		Disk:     s.disk.peak,
	}, nil
}

// levelState is what a MultilevelPlan has done so far.
type levelState struct {
	working  int // the stage whose input is the working value, -1 for none
	next     int // the stage whose backward step comes next, -1 when all are done
	forwards int
	memory   levelSlots
	disk     levelSlots
}

// apply carries out op, or returns why that is not possible.
func (s *levelState) apply(op LevelOp) (problem string) {
	i := op.Stage
	if i < 0 || i >= len(s.memory.held) {
		return "there is no such stage"
	}
	switch op.Kind {
	case Advance, Reverse, StoreMemory, StoreDisk:
		if s.working != i {
			return "the stage's input is not the working value"
		}
	}
	switch op.Kind {
	case Advance:
		if i >= s.next {
			return fmt.Sprintf("the next backward step is that of stage %d", s.next)
		}
		s.forwards++
		s.working++
	case Reverse:
		if i != s.next {
			return fmt.Sprintf("the next backward step is that of stage %d", s.next)
		}
		s.forwards++
		s.working = -1
		s.next--
	case StoreMemory:
		return s.memory.store(i)
	case StoreDisk:
		return s.disk.store(i)
	case LoadMemory:
		s.working = i
		return s.memory.load(i)
	case LoadDisk:
		s.working = i
		return s.disk.load(i)
	case DropMemory:
		return s.memory.drop(i)
	case DropDisk:
		return s.disk.drop(i)
	default:
		return "there is no such operation"
	}
	return ""
}

// levelSlots are the slots of one level.
type levelSlots struct {
	held          []bool // by stage: whether its input has a slot
	limit         int
	used, peak    int
	stores, loads int
}

func (s *levelSlots) store(i int) (problem string) {
	switch {
	case s.held[i]:
		return "the value is held there already"
	case s.used == s.limit:
		return fmt.Sprintf("all %d slots are in use", s.limit)
	}
	s.held[i] = true
	s.stores++
	s.used++
	s.peak = max(s.peak, s.used)
	return ""
}

func (s *levelSlots) load(i int) (problem string) {
	if !s.held[i] {
		return "the value is not held there"
	}
	s.loads++
	return ""
}

func (s *levelSlots) drop(i int) (problem string) {
	if !s.held[i] {
		return "the value is not held there"
	}
	s.held[i] = false
	s.used--
	return ""
}
