package cpu

import (
	"math"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Helpers that linger, end or wake late do every item of every loop once, whatever the pauses between loops.
func TestLoopsAfterPauses(t *testing.T) {
	for _, procs := range []int{1, 2, 3, 8} {
		func() {
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(procs))
			before := runtime.NumGoroutine()
			var wg sync.WaitGroup
			for seed := range uint64(3) {
				wg.Go(func() {
					rng := rand.New(rand.NewPCG(seed, 1))
					for range 300 {
						n := 1 + rng.IntN(40)
						a := sumArgs{make([]int, n), make([]int, n)}
						for i := range n {
							a.in[i] = i
						}
						squares.Run(n, a)
						for i, got := range a.out {
							if got != i*i {
								t.Errorf("item %d of %d: %d", i, n, got)
							}
						}
						for pause, start := time.Duration(rng.Int64N(int64(3*linger))), time.Now(); time.Since(start) < pause; {
						}
					}
				})
			}
			wg.Wait()
			noHelpers(t, before)
		}()
	}
}

// A mailbox has one job for one helper; a helper that gets none goes away.
func TestMailbox(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	require.Nil(t, await())
	started := make(chan bool, 1)
	job := func() bool { return false }
	summon(job, func() { started <- true })
	require.True(t, <-started, "nobody waits")

	for range 1000 { // until a helper is there in time
		got := make(chan func() bool, 1)
		go func() { got <- await() }()
		for lingering.Load() == 0 && len(got) == 0 {
			runtime.Gosched()
		}
		summon(job, func() { started <- true })
		if f := <-got; f != nil {
			require.False(t, f())
			require.Empty(t, started)
			noHelpers(t, math.MaxInt)
			return
		}
		<-started
	}
	t.Fatal("no helper waits long enough")
}

// A loop that begins while the helpers are in use, such as by a loop before that they came too late for, gets them
// when they are free.
func TestHelpersThatAreFreeLater(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	noHelpers(t, math.MaxInt)
	require.True(t, borrow())
	var inside, met atomic.Int32
	NewTask(func(_ *struct{}, i int) {
		if i == 0 {
			helpers.Add(-1)
			return
		}
		inside.Add(1)
		for start := time.Now(); time.Since(start) < 5*time.Second; runtime.Gosched() {
			if inside.Load() == 2 {
				met.Add(1)
				return
			}
		}
		inside.Add(-1)
	}).Run(3, struct{}{})
	require.EqualValues(t, 2, met.Load())
	noHelpers(t, math.MaxInt)
}
