package remat

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/stretchr/testify/require"
)

// levelNotation is how the operations are written, followed by the number of the
// stage.
var levelNotation = [...]string{"?", "A", "R", "+M", "+D", "M", "D", "-M", "-D"}

// String returns the notation of the kind: A and R for the two steps; M for memory
// and D for disk, alone for a load, after + for a store and after - for a drop.
func (k levelKind) String() string {
	if int(k) >= len(levelNotation) {
		return levelNotation[0]
	}
	return levelNotation[k]
}

// String returns the notation of the operation, such as "A3" or "+D0".
func (o levelOp) String() string { return o.kind.String() + strconv.Itoa(o.stage) }

// String returns the operations, separated by spaces: "+M0 A0 R1 M0 -M0 R0".
func (p schedule) String() string {
	var b strings.Builder
	for i, op := range p.ops {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(op.String())
	}
	return b.String()
}

// levelReport is what a [schedule] takes.
type levelReport struct {
	makespan float64 // forward steps, those within reverse included, and transfers, in forward steps
	extra    int     // forward steps beyond one a stage
	writes   int     // values copied to disk
	reads    int     // values copied from disk
	memory   int     // largest number of slots in use at one time, in memory
	disk     int     // and on disk
}

// simulate carries out p without values. Backward steps take no time, as they are
// the same for every plan: add n times the ratio of a backward to a forward step to
// the makespan for the time of the whole pass.
//
// The error names the operation and wraps [snug.ErrConfig]: l is not valid, an
// operation does not find what it needs or no free slot, a value is stored on a
// level that holds it, or the end leaves a backward step undone or a slot in use.
// It takes two bytes of memory per stage.
func (p schedule) simulate(l levels) (levelReport, error) {
	if err := l.validate(); err != nil {
		return levelReport{}, err
	}
	// Every stage has a reverse, so that a damaged number of stages cannot make the
	// state large.
	if p.stages < 1 || len(p.ops) < p.stages {
		return levelReport{}, fmt.Errorf("remat: plan of %d operations for %d stages: want at least one stage and one operation for each: %w", len(p.ops), p.stages, snug.ErrConfig)
	}
	s := levelState{
		next:   p.stages - 1,
		memory: levelSlots{held: make([]bool, p.stages), limit: l.memory},
		disk:   levelSlots{held: make([]bool, p.stages), limit: l.disk},
	}
	for i, op := range p.ops {
		if problem := s.apply(op); problem != "" {
			return levelReport{}, fmt.Errorf("remat: plan: operation %d (%v) of a chain of %d stages: %s: %w", i, op, p.stages, problem, snug.ErrConfig)
		}
	}
	if s.next >= 0 {
		return levelReport{}, fmt.Errorf("remat: plan: the backward steps of stages 0 to %d are missing: %w", s.next, snug.ErrConfig)
	}
	if s.memory.used > 0 || s.disk.used > 0 {
		return levelReport{}, fmt.Errorf("remat: plan: %d slots in memory and %d on disk are in use at the end: %w", s.memory.used, s.disk.used, snug.ErrConfig)
	}
	return levelReport{
		makespan: float64(s.forwards) + float64(l.write*float64(s.disk.stores)) + float64(l.read*float64(s.disk.loads)),
		extra:    s.forwards - p.stages,
		writes:   s.disk.stores,
		reads:    s.disk.loads,
		memory:   s.memory.peak,
		disk:     s.disk.peak,
	}, nil
}

// levelState is what a schedule has done so far.
type levelState struct {
	working  int // the stage whose input is the working value, -1 for none
	next     int // the stage whose backward step comes next, -1 when all are done
	forwards int
	memory   levelSlots
	disk     levelSlots
}

// apply carries out op, or returns why that is not possible.
func (s *levelState) apply(op levelOp) (problem string) {
	i := op.stage
	if i < 0 || i >= len(s.memory.held) {
		return "there is no such stage"
	}
	switch op.kind {
	case advance, reverse, storeMemory, storeDisk:
		if s.working != i {
			return "the stage's input is not the working value"
		}
	}
	switch op.kind {
	case advance:
		if i >= s.next {
			return fmt.Sprintf("the next backward step is that of stage %d", s.next)
		}
		s.forwards++
		s.working++
	case reverse:
		if i != s.next {
			return fmt.Sprintf("the next backward step is that of stage %d", s.next)
		}
		s.forwards++
		s.working = -1
		s.next--
	case storeMemory:
		return s.memory.store(i)
	case storeDisk:
		return s.disk.store(i)
	case loadMemory:
		s.working = i
		return s.memory.load(i)
	case loadDisk:
		s.working = i
		return s.disk.load(i)
	case dropMemory:
		return s.memory.drop(i)
	case dropDisk:
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

func parsedLevels(t *testing.T, text string) (ops []levelOp) {
	for word := range strings.FieldsSeq(text) {
		i := strings.IndexAny(word, "0123456789")
		op := levelOp{stage: int(word[i] - '0')}
		for k := range levelNotation {
			if levelNotation[k] == word[:i] {
				op.kind = levelKind(k)
			}
		}
		require.Equal(t, word, op.String())
		ops = append(ops, op)
	}
	return ops
}

func TestLevelSimulate(t *testing.T) {
	l := levels{memory: 1, disk: 2, write: 0.5, read: 0.25}
	p := schedule{stages: 3, ops: parsedLevels(t, "+D0 +M0 A0 +D1 A1 R2 D1 -D1 R1 D0 M0 -M0 -D0 R0")}
	r, err := p.simulate(l)
	require.NoError(t, err)
	require.Equal(t, levelReport{makespan: 5 + 2*0.5 + 2*0.25, extra: 2, writes: 2, reads: 2, memory: 1, disk: 2}, r)

	for _, tc := range []struct{ ops, text string }{
		{"R2 R1 R0", "operation 0 (R2) of a chain of 3 stages: the stage's input is not the working value"},
		{"A0 A1 A2", "operation 2 (A2) of a chain of 3 stages: the next backward step is that of stage 2"},
		{"A0 R1 A0", "operation 1 (R1) of a chain of 3 stages: the next backward step is that of stage 2"},
		{"+M0 A0 +M1", "operation 2 (+M1) of a chain of 3 stages: all 1 slots are in use"},
		{"+D0 A0 +D1 A1 +D2", "operation 4 (+D2) of a chain of 3 stages: all 2 slots are in use"},
		{"+D0 +D0 A0", "operation 1 (+D0) of a chain of 3 stages: the value is held there already"},
		{"+D0 M0 A0", "operation 1 (M0) of a chain of 3 stages: the value is not held there"},
		{"+M0 D0 A0", "operation 1 (D0) of a chain of 3 stages: the value is not held there"},
		{"+M0 -D0 A0", "operation 1 (-D0) of a chain of 3 stages: the value is not held there"},
		{"A0 -M0 A1", "operation 1 (-M0) of a chain of 3 stages: the value is not held there"},
		{"+D0 A0 A1 R2 A2", "operation 4 (A2) of a chain of 3 stages: the stage's input is not the working value"},
		{"A0 A1 R2 +M1", "operation 3 (+M1) of a chain of 3 stages: the stage's input is not the working value"},
		{"A0 A1 +D2", "the backward steps of stages 0 to 2 are missing"},
		{"+D0 A0 A1 R2 D0 A0 R1 D0 R0", "0 slots in memory and 1 on disk are in use at the end"},
		{"A0 ?1 R2", "operation 1 (?1) of a chain of 3 stages: there is no such operation"},
		{"A0 A4 R2", "operation 1 (A4) of a chain of 3 stages: there is no such stage"},
		{"A0 A1", "plan of 2 operations for 3 stages"},
	} {
		t.Run(tc.ops, func(t *testing.T) {
			p.ops = parsedLevels(t, tc.ops)
			r, err := p.simulate(l)
			require.ErrorIs(t, err, snug.ErrConfig)
			require.ErrorContains(t, err, "remat: plan")
			require.ErrorContains(t, err, tc.text)
			require.Zero(t, r)
		})
	}
	_, err = p.simulate(levels{})
	require.ErrorIs(t, err, snug.ErrConfig)
	_, err = schedule{ops: p.ops}.simulate(l)
	require.ErrorIs(t, err, snug.ErrConfig)
	_, err = schedule{stages: 1, ops: []levelOp{{advance, -1}}}.simulate(l)
	require.ErrorIs(t, err, snug.ErrConfig)
	require.Equal(t, "?", levelKind(200).String())
}
