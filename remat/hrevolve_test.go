package remat

import (
	priority "container/heap"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/snug-ml/snug"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// planned returns the schedule of HRevolve and its report, after it has compared
// that with the dynamic program.
func planned(t require.TestingT, n int, l Levels) (MultilevelPlan, LevelReport) {
	p, err := HRevolve(n, l)
	require.NoError(t, err)
	r, err := p.Simulate(l)
	require.NoError(t, err, "n=%d %+v: %v", n, l, p)
	require.InEpsilon(t, extraOf(n, l)+float64(n), r.Makespan, 1e-12, "n=%d %+v", n, l)
	return p, r
}

// extraOf returns A_d(n) of the recurrences as HRevolve's documentation has them,
// with E by its own recurrence.
func extraOf(n int, l Levels) float64 {
	memory := make([]float64, n+1) // E(k, slots)
	for k := 2; k <= n; k++ {
		memory[k] = math.Inf(1)
	}
	for range min(l.Memory, n) {
		more := make([]float64, n+1)
		for k := 2; k <= n; k++ {
			more[k] = math.Inf(1)
			for i := 1; i < k; i++ {
				more[k] = min(more[k], float64(i)+more[i]+memory[k-i])
			}
		}
		memory = more
	}
	free := memory
	for range min(l.Disk, n) {
		more, stored := make([]float64, n+1), make([]float64, n+1)
		for k := 2; k <= n; k++ {
			stored[k] = memory[k]
			for i := 1; i < k; i++ {
				stored[k] = min(stored[k], float64(i)+free[k-i]+l.Read+stored[i])
			}
			more[k] = min(memory[k], l.Write+stored[k])
		}
		free = more
	}
	return free[n]
}

// TestHRevolvePublished has the values of the reference implementation for l
// forward steps.
func TestHRevolvePublished(t *testing.T) {
	for _, tc := range []struct {
		l, memory, disk int
		cost, want      float64
	}{
		{10, 2, 2, 1, 31},
		{20, 3, 3, 2, 67},
		{30, 3, 5, 5, 115},
	} {
		_, r := planned(t, tc.l+1, Levels{tc.memory, tc.disk, tc.cost, tc.cost})
		require.Equal(t, tc.want, r.Makespan)
	}
}

func TestHRevolveSchedules(t *testing.T) {
	for _, tc := range []struct {
		n    int
		l    Levels
		name string
		ops  string
	}{
		{1, Levels{Memory: 1}, "hrevolve(1,0)", "R0"},
		{2, Levels{Memory: 1}, "hrevolve(1,0)", "+M0 A0 R1 M0 -M0 R0"},
		{3, Levels{Memory: 9, Disk: 9, Write: 1}, "hrevolve(3,3)", "+M0 A0 +M1 A1 R2 M1 -M1 R1 M0 -M0 R0"},
		{3, Levels{Disk: 1, Write: 5, Read: 5}, "hrevolve(0,1)", "+D0 A0 A1 R2 D0 A0 R1 D0 -D0 R0"},
		{4, Levels{Memory: 1, Disk: 1, Write: 0.25, Read: 0.25}, "hrevolve(1,1)", "+D0 A0 A1 +M2 A2 R3 M2 -M2 R2 D0 -D0 +M0 A0 R1 M0 -M0 R0"},
	} {
		p, _ := planned(t, tc.n, tc.l)
		require.Equal(t, tc.name, p.Name)
		require.Equal(t, tc.n, p.Stages)
		require.Equal(t, tc.ops, p.String())
	}
}

// levelPoint is all of the past that matters to what comes next.
type levelPoint struct {
	next, working int
	memory, disk  uint8 // bits of the stages whose inputs are held
}

// bestMakespan returns the smallest makespan among all schedules, found by Dijkstra's
// algorithm over the states of a chain. It knows nothing but what the operations do.
func bestMakespan(n int, l Levels) float64 {
	start := levelPoint{next: n - 1}
	dist := map[levelPoint]float64{start: 0}
	queue := &levelQueue{{start, 0}}
	for queue.Len() > 0 {
		at := priority.Pop(queue).(levelDistance)
		p := at.levelPoint
		if p.next < 0 {
			return at.cost
		}
		if at.cost > dist[p] {
			continue
		}
		relax := func(to levelPoint, cost float64) {
			// What no backward step is left to need is dropped, which is free.
			useful := uint8(1)<<(to.next+1) - 1
			to.memory &= useful
			to.disk &= useful
			if old, seen := dist[to]; !seen || at.cost+cost < old {
				dist[to] = at.cost + cost
				priority.Push(queue, levelDistance{to, at.cost + cost})
			}
		}
		if w := p.working; w >= 0 {
			if w == p.next {
				relax(levelPoint{p.next - 1, -1, p.memory, p.disk}, 1)
			} else {
				relax(levelPoint{p.next, w + 1, p.memory, p.disk}, 1)
			}
			if count(p.memory) < l.Memory {
				relax(levelPoint{p.next, w, p.memory | 1<<w, p.disk}, 0)
			}
			if count(p.disk) < l.Disk {
				relax(levelPoint{p.next, w, p.memory, p.disk | 1<<w}, l.Write)
			}
		}
		for i := range n {
			bit := uint8(1) << i
			if p.memory&bit != 0 {
				relax(levelPoint{p.next, i, p.memory, p.disk}, 0)
				relax(levelPoint{p.next, p.working, p.memory &^ bit, p.disk}, 0)
			}
			if p.disk&bit != 0 {
				relax(levelPoint{p.next, i, p.memory, p.disk}, l.Read)
				relax(levelPoint{p.next, p.working, p.memory, p.disk &^ bit}, 0)
			}
		}
	}
	return math.Inf(1)
}

func count(set uint8) (n int) {
	for ; set != 0; set &= set - 1 {
		n++
	}
	return n
}

type levelDistance struct {
	levelPoint
	cost float64
}

type levelQueue []levelDistance

func (q levelQueue) Len() int           { return len(q) }
func (q levelQueue) Less(i, j int) bool { return q[i].cost < q[j].cost }
func (q levelQueue) Swap(i, j int)      { q[i], q[j] = q[j], q[i] }
func (q *levelQueue) Push(x any)        { *q = append(*q, x.(levelDistance)) }
func (q *levelQueue) Pop() any {
	last := len(*q) - 1
	x := (*q)[last]
	*q = (*q)[:last]
	return x
}

// TestHRevolveOptimal compares the schedules with the best of all.
func TestHRevolveOptimal(t *testing.T) {
	for n := 1; n <= 7; n++ {
		for memory := 0; memory <= 2; memory++ {
			for disk := 0; disk <= 2; disk++ {
				if memory+disk == 0 {
					continue
				}
				for _, cost := range [][2]float64{{0, 0}, {0.25, 0.25}, {1, 1}, {0, 2}, {2, 0.5}, {0.5, 1.5}, {5, 5}} {
					l := Levels{memory, disk, cost[0], cost[1]}
					_, r := planned(t, n, l)
					require.InEpsilon(t, bestMakespan(n, l), r.Makespan, 1e-12, "n=%d %+v", n, l)
				}
			}
		}
	}
}

func drawLevels(t *rapid.T, most int) Levels {
	cost := rapid.Float64Range(0, 20)
	l := Levels{
		Memory: rapid.IntRange(0, most).Draw(t, "memory"),
		Disk:   rapid.IntRange(0, most).Draw(t, "disk"),
		Write:  cost.Draw(t, "write"),
		Read:   cost.Draw(t, "read"),
	}
	if l.Memory == 0 {
		l.Disk = max(l.Disk, 1)
	}
	return l
}

// hrevolveMonotone plans a random chain, and again with more slots and a disk that
// is slower or faster.
func hrevolveMonotone(t *rapid.T) {
	n := rapid.IntRange(1, 60).Draw(t, "stages")
	l := drawLevels(t, 8)
	_, r := planned(t, n, l)
	require.LessOrEqual(t, r.Memory, l.Memory)
	require.LessOrEqual(t, r.Disk, l.Disk)
	limit := r.Makespan * (1 + 1e-12) // sums are rounded in different orders
	more := l
	more.Memory += rapid.IntRange(0, 3).Draw(t, "more memory")
	more.Disk += rapid.IntRange(0, 3).Draw(t, "more disk")
	more.Write *= rapid.Float64Range(0, 1).Draw(t, "faster write")
	more.Read *= rapid.Float64Range(0, 1).Draw(t, "faster read")
	_, better := planned(t, n, more)
	require.LessOrEqual(t, better.Makespan, limit)
	if l.Memory > 0 {
		require.LessOrEqual(t, r.Makespan, float64(n)+float64(revolveExtra(n, min(n, l.Memory))))
	}
	// A disk that costs nothing is memory.
	free := l
	free.Write, free.Read = 0, 0
	_, all := planned(t, n, free)
	require.EqualValues(t, revolveExtra(n, min(n, l.Memory+l.Disk)), all.Extra)
}

func TestHRevolveMonotone(t *testing.T) { rapid.Check(t, hrevolveMonotone) }

func FuzzHRevolveMonotone(f *testing.F) { f.Fuzz(rapid.MakeFuzz(hrevolveMonotone)) }

// TestHRevolveInMemory: without a disk that helps it is Revolve.
func TestHRevolveInMemory(t *testing.T) {
	for n := 1; n <= 60; n++ {
		for memory := 1; memory <= n; memory++ {
			for _, l := range []Levels{
				{Memory: memory},
				{Memory: memory, Disk: 3, Write: 1e6},
				{Memory: memory, Disk: 3, Read: maxTransfer},
			} {
				p, err := HRevolve(n, l)
				require.NoError(t, err)
				r, err := p.Simulate(l)
				require.NoError(t, err)
				require.EqualValues(t, revolveExtra(n, memory), r.Extra, "n=%d %+v", n, l)
				require.EqualValues(t, n+r.Extra, r.Makespan)
				require.Zero(t, r.Writes+r.Reads+r.Disk)
			}
		}
	}
}

func TestHRevolveLong(t *testing.T) {
	l := Levels{Memory: 10, Disk: 100, Write: 4, Read: 2}
	begin := time.Now()
	p, err := HRevolve(1000, l)
	took := time.Since(begin)
	require.NoError(t, err)
	r, err := p.Simulate(l)
	require.NoError(t, err)
	require.Equal(t, extraOf(1000, l)+1000, r.Makespan)
	require.Positive(t, r.Writes)
	require.Less(t, took, 10*time.Second) // 0.1 s, but for emulators and the race detector
}

func BenchmarkHRevolve(b *testing.B) {
	l := Levels{Memory: 10, Disk: 100, Write: 4, Read: 2}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := HRevolve(1000, l); err != nil {
			b.Fatal(err)
		}
	}
}

func TestHRevolveErrors(t *testing.T) {
	for _, tc := range []struct {
		n    int
		l    Levels
		text string
	}{
		{0, Levels{Memory: 1}, "chain of 0 stages"},
		{math.MinInt, Levels{Memory: 1}, "stages: want 1 to"},
		{math.MaxInt, Levels{Memory: 1}, "stages: want 1 to"},
		{3, Levels{}, "0 slots in memory, 0 on disk"},
		{3, Levels{Memory: -1, Disk: 4}, "-1 slots in memory"},
		{3, Levels{Memory: 4, Disk: -1}, "-1 on disk"},
		{3, Levels{Memory: 1, Write: -1}, "a transfer takes -1"},
		{3, Levels{Memory: 1, Read: math.NaN()}, "a transfer takes NaN"},
		{3, Levels{Memory: 1, Read: math.Inf(1)}, "a transfer takes +Inf"},
		{3, Levels{Memory: 1, Disk: 1, Write: 2 * maxTransfer}, "a transfer takes"},
		{1 << 18, Levels{Memory: 1, Disk: 1}, "hrevolve(1,1) for 262144 stages takes more than"},
		{1 << 12, Levels{Memory: 1}, "hrevolve(1,0) for 4096 stages has more than"},
		{maxOps / 3, Levels{Memory: math.MaxInt}, "has more than 4194304 operations"},
		{maxOps/3 + 1, Levels{Memory: 1}, "stages: want 1 to"},
	} {
		p, err := HRevolve(tc.n, tc.l)
		require.ErrorIs(t, err, snug.ErrConfig, "%+v", tc)
		require.ErrorContains(t, err, tc.text)
		require.ErrorContains(t, err, "remat: ")
		require.Zero(t, p)
	}
}

func parsedLevels(t *testing.T, text string) (ops []LevelOp) {
	for word := range strings.FieldsSeq(text) {
		i := strings.IndexAny(word, "0123456789")
		op := LevelOp{Stage: int(word[i] - '0')}
		for k := range levelNotation {
			if levelNotation[k] == word[:i] {
				op.Kind = LevelKind(k)
			}
		}
		require.Equal(t, word, op.String())
		ops = append(ops, op)
	}
	return ops
}

func TestLevelSimulate(t *testing.T) {
	l := Levels{Memory: 1, Disk: 2, Write: 0.5, Read: 0.25}
	p := MultilevelPlan{Stages: 3, Ops: parsedLevels(t, "+D0 +M0 A0 +D1 A1 R2 D1 -D1 R1 D0 M0 -M0 -D0 R0")}
	r, err := p.Simulate(l)
	require.NoError(t, err)
	require.Equal(t, LevelReport{Makespan: 5 + 2*0.5 + 2*0.25, Extra: 2, Writes: 2, Reads: 2, Memory: 1, Disk: 2}, r)

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
		p.Ops = parsedLevels(t, tc.ops)
		r, err := p.Simulate(l)
		require.ErrorIs(t, err, snug.ErrConfig)
		require.ErrorContains(t, err, "remat: plan")
		require.ErrorContains(t, err, tc.text)
		require.Zero(t, r)
	}
	_, err = p.Simulate(Levels{})
	require.ErrorIs(t, err, snug.ErrConfig)
	_, err = MultilevelPlan{Ops: p.Ops}.Simulate(l)
	require.ErrorIs(t, err, snug.ErrConfig)
	_, err = MultilevelPlan{Stages: 1, Ops: []LevelOp{{Advance, -1}}}.Simulate(l)
	require.ErrorIs(t, err, snug.ErrConfig)
	require.Equal(t, "?", LevelKind(200).String())
}
