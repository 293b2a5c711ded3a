package remat

import (
	priority "container/heap"
	"math"
	"testing"
	"time"

	"github.com/snug-ml/snug"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// planned returns the schedule of HRevolve and its report, after it has compared
// that with the dynamic program.
func planned(t require.TestingT, n int, l levels) (schedule, levelReport) {
	p, err := planLevels(n, l)
	require.NoError(t, err)
	r, err := p.simulate(l)
	require.NoError(t, err, "n=%d %+v: %v", n, l, p)
	require.InEpsilon(t, extraOf(n, l)+float64(n), r.makespan, 1e-12, "n=%d %+v", n, l)
	return p, r
}

// extraOf returns A_d(n) of the recurrences as HRevolve's documentation has them,
// with E by its own recurrence.
func extraOf(n int, l levels) float64 {
	memory := make([]float64, n+1) // E(k, slots)
	for k := 2; k <= n; k++ {
		memory[k] = math.Inf(1)
	}
	for range min(l.memory, n) {
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
	for range min(l.disk, n) {
		more, stored := make([]float64, n+1), make([]float64, n+1)
		for k := 2; k <= n; k++ {
			stored[k] = memory[k]
			for i := 1; i < k; i++ {
				stored[k] = min(stored[k], float64(i)+free[k-i]+l.read+stored[i])
			}
			more[k] = min(memory[k], l.write+stored[k])
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
		_, r := planned(t, tc.l+1, levels{tc.memory, tc.disk, tc.cost, tc.cost})
		require.Equal(t, tc.want, r.makespan)
	}
}

func TestHRevolveSchedules(t *testing.T) {
	for _, tc := range []struct {
		n    int
		l    levels
		name string
		ops  string
	}{
		{1, levels{memory: 1}, "hrevolve(1,0)", "R0"},
		{2, levels{memory: 1}, "hrevolve(1,0)", "+M0 A0 R1 M0 -M0 R0"},
		{3, levels{memory: 9, disk: 9, write: 1}, "hrevolve(3,3)", "+M0 A0 +M1 A1 R2 M1 -M1 R1 M0 -M0 R0"},
		{3, levels{disk: 1, write: 5, read: 5}, "hrevolve(0,1)", "+D0 A0 A1 R2 D0 A0 R1 D0 -D0 R0"},
		{4, levels{memory: 1, disk: 1, write: 0.25, read: 0.25}, "hrevolve(1,1)", "+D0 A0 A1 +M2 A2 R3 M2 -M2 R2 D0 -D0 +M0 A0 R1 M0 -M0 R0"},
	} {
		t.Run(tc.ops, func(t *testing.T) {
			p, _ := planned(t, tc.n, tc.l)
			require.Equal(t, tc.name, p.name)
			require.Equal(t, tc.n, p.stages)
			require.Equal(t, tc.ops, p.String())
		})
	}
}

// levelPoint is all of the past that matters to what comes next.
type levelPoint struct {
	next, working int
	memory, disk  uint8 // bits of the stages whose inputs are held
}

// bestMakespan returns the smallest makespan among all schedules, found by Dijkstra's
// algorithm over the states of a chain. It knows nothing but what the operations do.
func bestMakespan(n int, l levels) float64 {
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
			if count(p.memory) < l.memory {
				relax(levelPoint{p.next, w, p.memory | 1<<w, p.disk}, 0)
			}
			if count(p.disk) < l.disk {
				relax(levelPoint{p.next, w, p.memory, p.disk | 1<<w}, l.write)
			}
		}
		for i := range n {
			bit := uint8(1) << i
			if p.memory&bit != 0 {
				relax(levelPoint{p.next, i, p.memory, p.disk}, 0)
				relax(levelPoint{p.next, p.working, p.memory &^ bit, p.disk}, 0)
			}
			if p.disk&bit != 0 {
				relax(levelPoint{p.next, i, p.memory, p.disk}, l.read)
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
					l := levels{memory, disk, cost[0], cost[1]}
					_, r := planned(t, n, l)
					require.InEpsilon(t, bestMakespan(n, l), r.makespan, 1e-12, "n=%d %+v", n, l)
				}
			}
		}
	}
}

func drawLevels(t *rapid.T, most int) levels {
	cost := rapid.Float64Range(0, 20)
	l := levels{
		memory: rapid.IntRange(0, most).Draw(t, "memory"),
		disk:   rapid.IntRange(0, most).Draw(t, "disk"),
		write:  cost.Draw(t, "write"),
		read:   cost.Draw(t, "read"),
	}
	if l.memory == 0 {
		l.disk = max(l.disk, 1)
	}
	return l
}

// hrevolveMonotone plans a random chain, and again with more slots and a disk that
// is slower or faster.
func hrevolveMonotone(t *rapid.T) {
	n := rapid.IntRange(1, 60).Draw(t, "stages")
	l := drawLevels(t, 8)
	_, r := planned(t, n, l)
	require.LessOrEqual(t, r.memory, l.memory)
	require.LessOrEqual(t, r.disk, l.disk)
	limit := r.makespan * (1 + 1e-12) // sums are rounded in different orders
	more := l
	more.memory += rapid.IntRange(0, 3).Draw(t, "more memory")
	more.disk += rapid.IntRange(0, 3).Draw(t, "more disk")
	more.write *= rapid.Float64Range(0, 1).Draw(t, "faster write")
	more.read *= rapid.Float64Range(0, 1).Draw(t, "faster read")
	_, better := planned(t, n, more)
	require.LessOrEqual(t, better.makespan, limit)
	if l.memory > 0 {
		require.LessOrEqual(t, r.makespan, float64(n)+float64(revolveExtra(n, min(n, l.memory))))
	}
	// A disk that costs nothing is memory.
	free := l
	free.write, free.read = 0, 0
	_, all := planned(t, n, free)
	require.EqualValues(t, revolveExtra(n, min(n, l.memory+l.disk)), all.extra)
}

func TestHRevolveMonotone(t *testing.T) { rapid.Check(t, hrevolveMonotone) }

func FuzzHRevolveMonotone(f *testing.F) { f.Fuzz(rapid.MakeFuzz(hrevolveMonotone)) }

// TestHRevolveInMemory: without a disk that helps it is Revolve.
func TestHRevolveInMemory(t *testing.T) {
	for n := 1; n <= 60; n++ {
		for memory := 1; memory <= n; memory++ {
			for _, l := range []levels{
				{memory: memory},
				{memory: memory, disk: 3, write: 1e6},
				{memory: memory, disk: 3, read: maxTransfer},
			} {
				p, err := planLevels(n, l)
				require.NoError(t, err)
				r, err := p.simulate(l)
				require.NoError(t, err)
				require.EqualValues(t, revolveExtra(n, memory), r.extra, "n=%d %+v", n, l)
				require.EqualValues(t, n+r.extra, r.makespan)
				require.Zero(t, r.writes+r.reads+r.disk)
			}
		}
	}
}

func TestHRevolveLong(t *testing.T) {
	l := levels{memory: 10, disk: 100, write: 4, read: 2}
	begin := time.Now()
	p, err := planLevels(1000, l)
	took := time.Since(begin)
	require.NoError(t, err)
	r, err := p.simulate(l)
	require.NoError(t, err)
	require.Equal(t, extraOf(1000, l)+1000, r.makespan)
	require.Positive(t, r.writes)
	require.Less(t, took, 10*time.Second) // 0.1 s, except for emulators and the race detector
}

func BenchmarkHRevolve(b *testing.B) {
	l := levels{memory: 10, disk: 100, write: 4, read: 2}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := planLevels(1000, l); err != nil {
			b.Fatal(err)
		}
	}
}

func TestHRevolveErrors(t *testing.T) {
	for _, tc := range []struct {
		n    int
		l    levels
		text string
	}{
		{0, levels{memory: 1}, "chain of 0 stages"},
		{math.MinInt, levels{memory: 1}, "stages: want 1 to"},
		{math.MaxInt, levels{memory: 1}, "stages: want 1 to"},
		{3, levels{}, "0 slots in memory, 0 on disk"},
		{3, levels{memory: -1, disk: 4}, "-1 slots in memory"},
		{3, levels{memory: 4, disk: -1}, "-1 on disk"},
		{3, levels{memory: 1, write: -1}, "a transfer takes -1"},
		{3, levels{memory: 1, read: math.NaN()}, "a transfer takes NaN"},
		{3, levels{memory: 1, read: math.Inf(1)}, "a transfer takes +Inf"},
		{3, levels{memory: 1, disk: 1, write: 2 * maxTransfer}, "a transfer takes"},
		{1 << 18, levels{memory: 1, disk: 1}, "hrevolve(1,1) for 262144 stages takes more than"},
		{1 << 12, levels{memory: 1}, "hrevolve(1,0) for 4096 stages has more than"},
		{maxOps / 3, levels{memory: math.MaxInt}, "has more than 4194304 operations"},
		{maxOps/3 + 1, levels{memory: 1}, "stages: want 1 to"},
	} {
		p, err := planLevels(tc.n, tc.l)
		require.ErrorIs(t, err, snug.ErrConfig, "%+v", tc)
		require.ErrorContains(t, err, tc.text)
		require.ErrorContains(t, err, "remat: ")
		require.Zero(t, p)
	}
}
