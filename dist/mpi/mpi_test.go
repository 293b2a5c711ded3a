package mpi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/accum"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/internal/ranks"
	"github.com/stretchr/testify/require"
)

// jobVariable names what a rank does that a test has started.
const jobVariable = "SNUG_MPI_JOB"

// launchersVariable lists launchers to test with, in place of the mpiexec of PATH.
const launchersVariable = "SNUG_MPIEXEC"

// TestMain does the job of a rank, or runs the tests.
func TestMain(m *testing.M) {
	name := os.Getenv(jobVariable)
	if name == "" {
		os.Exit(m.Run())
	}
	job, ok := jobs[name]
	if !ok {
		fmt.Println("no job", name)
		os.Exit(3)
	}
	o := Options{}
	if name == "bits" || name == "stress" {
		staged = 4096
	}
	if name == "stopped" {
		o.Silence = 5 * time.Second
	}
	if name == "late" {
		o.Timeout = 2 * time.Second
	}
	w, err := Open(o)
	if err != nil {
		fmt.Println(err)
		os.Exit(3)
	}
	if err := job(w); err != nil {
		w.Abort(err)
	}
	if err := w.Close(); err != nil {
		w.Abort(err)
	}
}

// launchers returns the mpiexec programs to test with.
func launchers(t testing.TB) []string {
	t.Helper()
	if list := os.Getenv(launchersVariable); list != "" {
		return filepath.SplitList(list)
	}
	path, err := exec.LookPath("mpiexec")
	if err != nil {
		t.Skip("no mpiexec in PATH, and no " + launchersVariable)
	}
	return []string{path}
}

// result is what a job has printed and how it ended.
type result struct {
	out, errs string
	err       error
	took      time.Duration
}

// launch starts ranks and waits for them.
func launch(t *testing.T, launcher string, n int, job string, env ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute+stressTime())
	defer cancel()
	args := []string{"-n", fmt.Sprint(n), os.Args[0]}
	if text, _ := exec.Command(launcher, "--version").CombinedOutput(); strings.Contains(string(text), "Open MPI") || strings.Contains(string(text), "OpenRTE") {
		args = append([]string{"--oversubscribe"}, args...)
	}
	c := exec.CommandContext(ctx, launcher, args...)
	c.Env = append(os.Environ(), jobVariable+"="+job, "GOMAXPROCS=2", "OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1")
	c.Env = append(c.Env, env...)
	var out, errs strings.Builder
	c.Stdout, c.Stderr = &out, &errs
	began := time.Now()
	err := c.Run()
	return result{out.String(), errs.String(), err, time.Since(began)}
}

// eachLauncher runs a test with each launcher and each library that it has.
func eachLauncher(t *testing.T, test func(t *testing.T, launcher string, env ...string)) {
	for _, launcher := range launchers(t) {
		t.Run(launcher, func(t *testing.T) { test(t, launcher) })
		old := filepath.Join(filepath.Dir(filepath.Dir(launcher)), "lib", "libmpi.so.12")
		if _, err := os.Stat(old); err == nil {
			t.Run(old, func(t *testing.T) { test(t, launcher, LibraryVariable+"="+old) })
		}
	}
}

var jobs = map[string]func(w *World) error{
	"bits":        func(w *World) error { return compare(w, 0) },
	"stress":      stress,
	"error":       fails,
	"mismatch":    mismatch,
	"stopped":     func(w *World) error { return stops(w, false) },
	"killed":      func(w *World) error { return stops(w, true) },
	"late":        late,
	"once":        once,
	"allocations": allocations,
	"panic":       panics,
	"attention":   attend,
	"unlike":      unlike,
}

// TestBits: every operation has the bits of Local, for all types and for lengths below and above a stage.
func TestBits(t *testing.T) {
	eachLauncher(t, func(t *testing.T, launcher string, env ...string) {
		for _, n := range []int{1, 2, 3, 5} {
			r := launch(t, launcher, n, "bits", env...)
			require.NoError(t, r.err, "%d ranks: %s%s", n, r.out, r.errs)
			require.Equal(t, n, strings.Count(r.out, "equal"), "%s%s", r.out, r.errs)
		}
	})
}

// hostBytes returns the bytes of a vector that is a slice.
func hostBytes(v snug.View) []byte { return device.Mem(&v).Bytes() }

// vectorOf returns the vector of a rank: the same in every process.
func vectorOf(rank, n int, dt snug.DType, seed uint64) snug.View {
	rng := rand.New(rand.NewPCG(uint64(rank), seed))
	v, _, err := snug.MakeView(snug.CPU(), dt, n)
	if err != nil {
		panic(err)
	}
	for i := range hostBytes(v) {
		hostBytes(v)[i] = byte(rng.Uint32())
	}
	if dt == snug.F32 || dt == snug.BF16 { // numbers
		x := make([]float64, n)
		for i := range x {
			x[i] = rng.NormFloat64()
		}
		if err := snug.FromFloat64(v, x); err != nil {
			panic(err)
		}
		if dt == snug.BF16 && n > 3 {
			v.BFloat16s()[3] = 0x7f81 // a signalling NaN
		}
	}
	return v
}

// together runs an operation on all ranks of Local, and returns the vectors of one.
func together(size, rank int, do func(r accum.Reducer, rank int) []snug.View) []snug.View {
	locals, err := accum.Local(context.Background(), size)
	if err != nil {
		panic(err)
	}
	var wait sync.WaitGroup
	all := make([][]snug.View, size)
	for i, l := range locals {
		wait.Go(func() { all[i] = do(l, i) })
	}
	wait.Wait()
	return all[rank]
}

// compare does all operations by MPI and by Local.
func compare(w *World, most int) error {
	rank, size := w.Rank(), w.Size()
	lengths := []int{0, 1, 2, 7, 1000, 4097, 20_011}
	if most > 0 {
		lengths = []int{1, 1000, most}
	}
	check := func(err error) {
		if err != nil {
			w.Abort(err)
		}
	}
	for _, n := range lengths {
		for _, dt := range []snug.DType{snug.F32, snug.BF16, snug.U8, snug.F16, snug.I32} {
			operations := map[string]func(r accum.Reducer, rank int) []snug.View{
				"Broadcast": func(r accum.Reducer, rank int) []snug.View {
					v := vectorOf(rank, n, dt, 1)
					check(r.(accum.Broadcaster).Broadcast(size-1, v))
					return []snug.View{v}
				},
				"AllGather": func(r accum.Reducer, rank int) []snug.View {
					v := vectorOf(rank, n, dt, 8)
					check(r.AllGather(v))
					return []snug.View{v}
				},
				"AllToAll": func(r accum.Reducer, rank int) []snug.View {
					src, dst := vectorOf(rank, n*size, dt, 2), vectorOf(rank, n*size, dt, 3)
					check(r.(accum.AllToAller).AllToAll(dst, src))
					return []snug.View{dst, src}
				},
				"SendReceive": func(r accum.Reducer, rank int) []snug.View {
					before := (rank + size - 1) % size
					src, dst := vectorOf(rank, n+rank, dt, 4), vectorOf(rank, n+before, dt, 5)
					check(r.(accum.SendReceiver).SendReceive(dst, before, src, (rank+1)%size))
					return []snug.View{dst, src}
				},
			}
			if dt == snug.F32 || dt == snug.BF16 {
				operations["AllReduce"] = func(r accum.Reducer, rank int) []snug.View {
					v := vectorOf(rank, n, dt, 6)
					check(r.AllReduce(v))
					return []snug.View{v}
				}
				operations["ReduceScatter"] = func(r accum.Reducer, rank int) []snug.View {
					v := vectorOf(rank, n, dt, 7)
					check(r.ReduceScatter(v))
					lo, hi := accum.Shard(n, rank, size)
					own, err := v.Slice(lo, hi)
					check(err)
					return []snug.View{own}
				}
			}
			for _, name := range []string{"AllReduce", "ReduceScatter", "AllGather", "Broadcast", "AllToAll", "SendReceive"} {
				do := operations[name]
				if do == nil {
					continue
				}
				got, want := do(w, rank), together(size, rank, do)
				for i := range want {
					if string(hostBytes(got[i])) != string(hostBytes(want[i])) {
						return fmt.Errorf("%s of %d elements of %s differs from Local", name, n, dt)
					}
				}
			}
		}
	}
	x := []float64{1 / float64(rank+3), 1e300, float64(rank)}
	check(w.Sum(x))
	sums := together(size, rank, func(r accum.Reducer, rank int) []snug.View {
		x := []float64{1 / float64(rank+3), 1e300, float64(rank)}
		check(r.Sum(x))
		return []snug.View{snug.SliceView([]uint8(fmt.Sprint(x)))}
	})
	if string(hostBytes(sums[0])) != fmt.Sprint(x) {
		return errors.New("Sum differs from Local")
	}
	check(w.Sum(nil))
	fmt.Println("equal")
	return nil
}

// TestStress: a collector that runs all the time, and signals to preempt goroutines, do not disturb MPI.
func TestStress(t *testing.T) {
	eachLauncher(t, func(t *testing.T, launcher string, env ...string) {
		r := launch(t, launcher, 2, "stress", append(env, "GOGC=1")...)
		require.NoError(t, r.err, "%s%s", r.out, r.errs)
	})
}

// stressTime returns how long the stress lasts: 3 seconds, or what SNUG_MPI_STRESS says.
func stressTime() time.Duration {
	d, err := time.ParseDuration(cmp.Or(os.Getenv("SNUG_MPI_STRESS"), "3s"))
	if err != nil {
		panic(err)
	}
	return d
}

func stress(w *World) error {
	seconds := stressTime()
	stop := make(chan struct{})
	defer close(stop)
	for range 3 {
		go func() { // which the runtime interrupts by signals
			for x := uint64(1); ; x = x*3 + 1 {
				if x%(1<<20) == 0 {
					select {
					case <-stop:
						return
					default:
						_ = make([]byte, 1<<16)
					}
				}
			}
		}()
	}
	for end := time.Now().Add(seconds); ; {
		if err := compare(w, 7_001); err != nil {
			return err
		}
		on := []float64{0}
		if time.Now().Before(end) {
			on[0] = 1
		}
		if err := w.Sum(on); err != nil {
			return err
		}
		if on[0] == 0 {
			return nil
		}
	}
}

// TestAborted: a rank that ends by an error names itself and its error in one line, and ends the job.
func TestAborted(t *testing.T) {
	eachLauncher(t, func(t *testing.T, launcher string, env ...string) {
		r := launch(t, launcher, 3, "error", env...)
		require.Error(t, r.err)
		require.Less(t, r.took, 30*time.Second)
		require.Contains(t, r.errs, "rank 1 of 3: no more luck\n")
		require.Equal(t, 1, strings.Count(r.errs, "rank 1 of 3"))
	})
}

func fails(w *World) error {
	if w.Rank() == 1 {
		return errors.New("no more luck")
	}
	return w.Sum([]float64{1})
}

// TestMismatch: ranks that do not agree get the same error, and nothing moves.
func TestMismatch(t *testing.T) {
	eachLauncher(t, func(t *testing.T, launcher string, env ...string) {
		r := launch(t, launcher, 2, "mismatch", env...)
		require.Error(t, r.err)
		require.Contains(t, r.errs, "AllReduce: rank 0 has 5 elements, rank 1 has 6")
	})
}

func mismatch(w *World) error {
	x := make([]float32, 5+w.Rank())
	err := w.AllReduce(snug.ViewOf(x))
	if !errors.Is(err, snug.ErrShape) {
		return fmt.Errorf("%v is no ErrShape", err)
	}
	if again := w.Sum([]float64{1}); again != err {
		return fmt.Errorf("after an error: %v", again)
	}
	return err
}

// TestStopped: a rank whose process is stopped is named by another, which ends the job, and a killed one ends it too.
func TestStopped(t *testing.T) {
	eachLauncher(t, func(t *testing.T, launcher string, env ...string) {
		r := launch(t, launcher, 3, "stopped", env...)
		require.Error(t, r.err)
		require.Less(t, r.took, 30*time.Second)
		require.Contains(t, r.errs, "rank 2 of 3: rank 1 has given no sign of life for", r.errs)
		r = launch(t, launcher, 3, "killed", env...)
		require.Error(t, r.err)
		require.Less(t, r.took, 30*time.Second)
	})
}

// stops stops or kills rank 1 while others wait for it.
func stops(w *World, kill bool) error {
	if err := w.Sum([]float64{1}); err != nil {
		return err
	}
	if w.Rank() == 1 {
		signal := "-STOP"
		if kill {
			signal = "-KILL"
		}
		if err := exec.Command("kill", signal, fmt.Sprint(os.Getpid())).Run(); err != nil {
			return err
		}
		time.Sleep(time.Minute)
	}
	return w.AllReduce(snug.ViewOf(make([]float32, 1<<20)))
}

// TestLate: a rank that lives and makes no call ends the job after the timeout.
func TestLate(t *testing.T) {
	eachLauncher(t, func(t *testing.T, launcher string, env ...string) {
		r := launch(t, launcher, 2, "late", env...)
		require.Error(t, r.err)
		require.Less(t, r.took, 30*time.Second)
		require.Contains(t, r.errs, "rank 0 of 2: other ranks made no call for 2s")
	})
}

func late(w *World) error {
	if w.Rank() == 1 {
		time.Sleep(time.Minute)
	}
	return w.Sum([]float64{1})
}

// TestAllocations: after the first, calls allocate nothing.
func TestAllocations(t *testing.T) {
	if kerneltest.Race {
		t.Skip("the race detector lets pools forget")
	}
	eachLauncher(t, func(t *testing.T, launcher string, env ...string) {
		r := launch(t, launcher, 2, "allocations", env...)
		require.NoError(t, r.err, "%s%s", r.out, r.errs)
	})
}

func allocations(w *World) error {
	v, sent, x := snug.ViewOf(make([]float32, 10_000)), snug.ViewOf(make([]float32, 10_000)), make([]float64, 2)
	var err error
	least := uint64(math.MaxUint64) // of several rounds, which all ranks make: goroutines of the runtime allocate too
	var before, after runtime.MemStats
	for range 20 {
		runtime.ReadMemStats(&before)
		for range 10 {
			err = errors.Join(err, w.Sum(x), w.AllReduce(v), w.ReduceScatter(v), w.AllGather(v), w.Broadcast(1, v), w.SendReceive(v, 1-w.Rank(), sent, 1-w.Rank()))
		}
		runtime.ReadMemStats(&after)
		least = min(least, after.Mallocs-before.Mallocs)
	}
	if least >= 10 { // of 60 calls
		err = errors.Join(err, fmt.Errorf("60 calls allocate %d times", least))
	}
	return err
}

// TestOnce: a second Open is an error, and so is a call after Close.
func TestOnce(t *testing.T) {
	eachLauncher(t, func(t *testing.T, launcher string, env ...string) {
		r := launch(t, launcher, 2, "once", env...)
		require.NoError(t, r.err, "%s%s", r.out, r.errs)
	})
}

func once(w *World) error {
	if _, err := Open(Options{}); !errors.Is(err, snug.ErrConfig) {
		return fmt.Errorf("a second Open: %v", err)
	}
	if err := w.Close(); err != nil {
		return err
	}
	if err := w.Sum([]float64{1}); !errors.Is(err, snug.ErrConfig) {
		fmt.Println("after Close:", err)
		os.Exit(1)
	}
	return nil
}

// TestPanic: a panic of one rank ends the job.
func TestPanic(t *testing.T) {
	eachLauncher(t, func(t *testing.T, launcher string, env ...string) {
		r := launch(t, launcher, 2, "panic", env...)
		require.Error(t, r.err)
		require.Less(t, r.took, 30*time.Second)
		require.Contains(t, r.errs, "nil pointer")
	})
}

func panics(w *World) error {
	if w.Rank() == 1 {
		var none *World
		_ = none.size // a signal in Go's runtime
	}
	return w.Sum([]float64{1})
}

// TestCloseConcurrently: goroutines that close a World at the same time make one call of Close.
func TestCloseConcurrently(t *testing.T) {
	w := newWorld()
	errs, jobs := make(chan error), make(chan ranks.Job, 4)
	go func() {
		for j := range w.jobs {
			jobs <- j
			w.results <- nil
		}
	}()
	defer close(w.jobs)
	w.calls.Lock()
	for range 4 {
		go func() { errs <- w.Close() }()
	}
	time.Sleep(10 * time.Millisecond)
	w.calls.Unlock()
	w.calls.Lock() // the first that wakes up finds it locked again, and from then on it is handed on
	time.Sleep(10 * time.Millisecond)
	w.calls.Unlock()
	for range 4 {
		require.NoError(t, <-errs)
	}
	require.Equal(t, ranks.Close, (<-jobs).Op)
	require.Empty(t, jobs)
	require.ErrorContains(t, w.Sum(nil), "mpi: Sum: the World is closed")
}

// TestZeroWorld: a World that is not from Open gives errors.
func TestZeroWorld(t *testing.T) {
	for _, w := range []*World{nil, {}} {
		require.ErrorIs(t, w.Sum([]float64{1}), snug.ErrConfig)
		require.ErrorIs(t, w.AllReduce(snug.View{}), snug.ErrConfig)
		require.Zero(t, w.Rank())
		require.Zero(t, w.Size())
		require.Empty(t, w.Library())
	}
	require.ErrorIs(t, (&World{}).Close(), snug.ErrConfig)
}

// TestOpenErrors: what is missing is said in one line.
func TestOpenErrors(t *testing.T) {
	for _, name := range launcherVariables {
		t.Setenv(name, "")
	}
	t.Setenv(LibraryVariable, "")
	require.False(t, Launched())
	_, err := Open(Options{})
	require.ErrorIs(t, err, snug.ErrConfig)
	require.ErrorContains(t, err, "mpiexec -n 4")
	_, err = Open(Options{Silence: time.Second})
	require.ErrorIs(t, err, snug.ErrConfig)
	if runtime.GOOS != "linux" {
		return
	}
	t.Setenv("PMI_RANK", "0")
	require.True(t, Launched())
	t.Setenv(LibraryVariable, filepath.Join(t.TempDir(), "none.so"))
	_, err = openLibrary()
	require.ErrorIs(t, err, snug.ErrNotBuilt)
	require.ErrorContains(t, err, "none.so")
	t.Setenv(LibraryVariable, "libc.so.6")
	_, err = openLibrary()
	require.ErrorIs(t, err, snug.ErrNotBuilt)
	require.ErrorContains(t, err, "libc.so.6: it is no library of MPI")
}
