package cpu

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

type sumArgs struct {
	in  []int
	out []int
}

var squares = NewTask(func(a *sumArgs, i int) { a.out[i] = a.in[i] * a.in[i] })

func TestTaskRunsEveryItemOnce(t *testing.T) {
	for _, n := range []int{0, 1, 2, 1000} {
		a := sumArgs{make([]int, n), make([]int, n)}
		for i := range n {
			a.in[i] = i
		}
		squares.Run(n, a)
		for i := range n {
			require.Equal(t, i*i, a.out[i])
		}
	}
}

// inUse counts the bodies that run at one moment.
var inUse, peak atomic.Int32

var nested = NewTask(func(depth *int, _ int) {
	peak.Store(max(peak.Load(), inUse.Add(1)))
	time.Sleep(time.Millisecond)
	inUse.Add(-1)
	if *depth > 0 {
		nestedRun(8, *depth-1)
	}
})

var nestedRun func(n, depth int)

func init() { nestedRun = nested.Run }

func TestNestedTasksDoNotOversubscribe(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(3))
	before := runtime.NumGoroutine()
	nested.Run(8, 2)
	require.LessOrEqual(t, peak.Load(), int32(3))
	require.Greater(t, peak.Load(), int32(1))
	noHelpers(t, before)
}

// noHelpers waits until helpers have ended, which they do soon after their loop.
func noHelpers(t *testing.T, goroutines int) {
	t.Helper()
	for wait := 0; (runtime.NumGoroutine() > goroutines || helpers.Load() > 0 || lingering.Load() > 0) && wait < 1000; wait++ {
		time.Sleep(time.Millisecond)
	}
	require.Zero(t, helpers.Load())
	require.Zero(t, lingering.Load())
	require.LessOrEqual(t, runtime.NumGoroutine(), goroutines)
}

func TestConcurrentRuns(t *testing.T) {
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 50 {
				a := sumArgs{[]int{1, 2, 3, 4}, make([]int, 4)}
				squares.Run(4, a)
				if a.out[3] != 16 {
					t.Error(a.out)
				}
			}
		})
	}
	wg.Wait()
}

func TestRunAllocatesNothing(t *testing.T) {
	a := sumArgs{make([]int, 100), make([]int, 100)}
	require.Zero(t, testing.AllocsPerRun(100, func() { squares.Run(100, a) }))
}

func TestRegistryPicksTheBestAllowed(t *testing.T) {
	var r Registry[string]
	r.Add(Go, "go")
	if AVX2.Has() {
		r.Add(AVX2, "avx2")
		t.Setenv("SNUG_CPU", "go")
		require.Equal(t, "go", *r.Best())
		require.Equal(t, Go, r.Tier())
	}
	var all []string
	for _, f := range r.All() {
		all = append(all, *f)
	}
	require.Equal(t, "go", all[0], "All ignores the limit and begins with Go")
	require.Equal(t, AVX2.Has(), len(all) == 2)
}

func TestLimit(t *testing.T) {
	got, err := parseLimit("")
	require.NoError(t, err)
	require.Equal(t, numTiers-1, got)
	got, err = parseLimit("go")
	require.NoError(t, err)
	require.Equal(t, Go, got)
	_, err = parseLimit("mmx")
	require.ErrorContains(t, err, "avx2")
	missing := NEON
	if NEON.Has() {
		missing = AVX2
	}
	_, err = parseLimit(missing.String())
	require.ErrorContains(t, err, "lacks")
	require.Equal(t, "Tier(99)", Tier(99).String())
}

func TestScratchGrowsAndIsReused(t *testing.T) {
	var s Scratch
	b := s.Get(10)
	require.Len(t, *b, 10)
	s.Put(b)
	c := s.Get(20)
	require.Len(t, *c, 20)
}

func TestChunks(t *testing.T) {
	require.Equal(t, 0, Chunks(0, 4))
	require.Equal(t, 3, Chunks(9, 4))
	lo, hi := Chunk(9, 4, 2)
	require.Equal(t, [2]int{8, 9}, [2]int{lo, hi})
}
