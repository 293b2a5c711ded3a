package cpu

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// failing is a loop that fails in one item, after another goroutine began one.
type failing struct {
	at      int // item
	how     func()
	begun   *sync.WaitGroup // of so many items, before any of them ends
	out     []int32
	running *atomic.Int32
}

var failingTask = NewTask(func(a *failing, i int) {
	a.running.Add(1)
	defer a.running.Add(-1)
	if i < runtime.GOMAXPROCS(0) {
		a.begun.Done()
		a.begun.Wait()
	}
	if i == a.at {
		a.how()
	}
	if a.at >= 0 && i > a.at {
		time.Sleep(20 * time.Millisecond) // time for the failure to be noticed, also under emulation
	}
	time.Sleep(time.Millisecond)
	a.out[i]++
})

// attempt runs a failing loop in a goroutine of its own, since Goexit ends that, and
// returns what recover gave, whether Run returned, and how many items were done.
func attempt(t *testing.T, n, at int, how func()) (value any, returned bool, items int) {
	t.Helper()
	a := failing{at: at, how: how, begun: new(sync.WaitGroup), out: make([]int32, n), running: new(atomic.Int32)}
	a.begun.Add(min(n, runtime.GOMAXPROCS(0)))
	var wg sync.WaitGroup
	wg.Go(func() {
		defer func() {
			value = recover()
			if a.running.Load() != 0 {
				t.Error("a body runs after the loop")
			}
		}()
		failingTask.Run(n, a)
		returned = true
	})
	wg.Wait()
	for _, x := range a.out {
		require.LessOrEqual(t, x, int32(1))
		items += int(x)
	}
	return value, returned, items
}

var errBody = errors.New("the body's")

// A panic and Goexit of any goroutine's item reach the goroutine that called Run after
// all bodies have ended; the loop, its pool and the helpers are then as before.
func TestFailuresReachTheCaller(t *testing.T) {
	before := runtime.NumGoroutine()
	for _, procs := range []int{1, 2, 4} {
		for _, at := range []int{0, 1, procs - 1, 50, 99} {
			t.Run(fmt.Sprintf("procs %d item %d", procs, at), func(t *testing.T) {
				defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(procs))
				value, returned, items := attempt(t, 100, at, func() { panic(errBody) })
				require.Same(t, errBody, value)
				require.False(t, returned)
				require.Less(t, items, 100)
				require.LessOrEqual(t, items, at+procs, "no item begins after a failure")

				value, returned, _ = attempt(t, 100, at, runtime.Goexit)
				require.Nil(t, value)
				require.False(t, returned, "Goexit ends the caller's goroutine")

				value, returned, items = attempt(t, 100, -1, nil)
				require.Nil(t, value)
				require.True(t, returned)
				require.Equal(t, 100, items)
			})
		}
	}
	noHelpers(t, before)
}

// Of several panics at a time Run has one.
func TestManyPanics(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(4))
	for range 20 {
		value, _, items := attempt(t, 4, -1, nil)
		require.Nil(t, value)
		require.Equal(t, 4, items)
		require.PanicsWithValue(t, "all", func() { allPanic.Run(50, struct{}{}) })
		noHelpers(t, math.MaxInt)
	}
}

var allPanic = NewTask(func(*struct{}, int) { panic("all") })

func TestNestedPanic(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(4))
	require.PanicsWithValue(t, errBody, func() { innerPanics.Run(8, struct{}{}) })
	noHelpers(t, math.MaxInt)
}

var innerPanics = NewTask(func(*struct{}, int) { errPanics.Run(8, struct{}{}) })

var errPanics = NewTask(func(*struct{}, int) { panic(errBody) })

// culprit is named in the report of a program that ends by a panic of a helper.
func culprit() { panic(errBody) }

// crash panics in the helper: the caller's goroutine is the one that runs as the test does.
var crash = NewTask(func(a **sync.WaitGroup, _ int) {
	(*a).Done()
	(*a).Wait()
	stack := make([]byte, 1<<16)
	if !bytes.Contains(stack[:runtime.Stack(stack, false)], []byte("TestReportNamesTheBody(")) {
		culprit()
	}
})

//check:not arm64
func TestReportNamesTheBody(t *testing.T) {
	if os.Getenv("SNUG_TEST_PANIC") != "" {
		runtime.GOMAXPROCS(2)
		both := new(sync.WaitGroup)
		both.Add(2)
		crash.Run(2, both)
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestReportNamesTheBody$")
	cmd.Env = append(os.Environ(), "SNUG_TEST_PANIC=1")
	out, err := cmd.CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), errBody.Error())
	require.Contains(t, string(out), "culprit")
}

func TestChunksOfLargeNumbers(t *testing.T) {
	for _, n := range []int{math.MaxInt, math.MaxInt - 1, math.MaxInt / 2, 1, 0, -1, math.MinInt} {
		for _, size := range []int{1, 2, 63, 64, math.MaxInt - 1, math.MaxInt} {
			chunks := Chunks(n, size)
			if n <= 0 {
				require.Zero(t, chunks)
				continue
			}
			require.Positive(t, chunks)
			lo, hi := Chunk(n, size, chunks-1)
			require.Equal(t, n, hi, "the last chunk ends with n")
			require.Less(t, lo, hi)
			require.LessOrEqual(t, hi-lo, size)
		}
	}
}
