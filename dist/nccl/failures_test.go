//go:build linux

package nccl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/accum"
	"github.com/stretchr/testify/require"
)

// short is a Timeout that tests wait for.
const short = 150 * time.Millisecond

// quick has a short Timeout.
func quick(_ int, o *Options, _ *faulty, _ *library) { o.Timeout = short }

// TestOptions: what is wrong is said in one line.
func TestOptions(t *testing.T) {
	j := prepare(t, 1)
	hosts, err := accum.Local(t.Context(), 1)
	require.NoError(t, err)
	exchange := hosts[0].(accum.Broadcaster)
	load := func(string, string) (*library, error) { return j.wire.library(j.faults[0]), nil }
	for _, test := range []struct {
		o    Options
		is   error
		want string
	}{
		{Options{Size: 1}, snug.ErrDevice, "no device"},
		{Options{Size: 1, Device: snug.CPU()}, snug.ErrDevice, "cpu: no queue for the work of other libraries"},
		{Options{Device: j.devs[0]}, snug.ErrConfig, "rank 0 of 0"},
		{Options{Device: j.devs[0], Rank: 2, Size: 2, Exchange: sized{exchange}}, snug.ErrConfig, "rank 2 of 2, want a rank"},
		{Options{Device: j.devs[0], Rank: -1, Size: 2, Exchange: sized{exchange}}, snug.ErrConfig, "rank -1 of 2, want a rank"},
		{Options{Device: j.devs[0], Rank: 1, Size: 2, Exchange: exchange}, snug.ErrConfig, "rank 1 of 2, but of the Exchange this is rank 0 of 1"},
		{Options{Device: j.devs[0], Size: 2}, snug.ErrConfig, "need either an Exchange or a File"},
		{Options{Device: j.devs[0], Size: 2, Exchange: sized{exchange}, File: "x", Run: "y"}, snug.ErrConfig, "need either an Exchange or a File"},
		{Options{Device: j.devs[0], Size: 2, File: "x"}, snug.ErrConfig, "the name of the Run"},
		{Options{Device: j.devs[0], Size: 1, Timeout: -1}, snug.ErrConfig, "a Timeout of -1ns"},
	} {
		_, err := open(test.o, load)
		require.ErrorIs(t, err, test.is, test.want)
		require.ErrorContains(t, err, test.want)
	}
}

// TestLibraries: a library that is missing, too old, or another, is not taken, and the other ranks learn of it.
func TestLibraries(t *testing.T) {
	for _, test := range []struct {
		change func(l *library)
		want   string
	}{
		{func(l *library) { l.release = 2604 }, "libnccl.so.2 is NCCL 2.6.4, want 2.7 or later"},
		{func(l *library) { l.release, l.missing = 21805, []string{"ncclSend"} }, "NCCL 2.18.5, lacks ncclSend"},
		{func(l *library) { l.getVersion = nil }, "libnccl.so.2 is not NCCL, it lacks ncclGetVersion"},
		{func(l *library) { l.getVersion = func(*int32) result { return 2 } }, "ncclGetVersion: result 2"},
	} {
		t.Run(test.want, func(t *testing.T) {
			for failing := range 2 {
				j := prepare(t, 2)
				errs := j.open(t, func(rank int, _ *Options, _ *faulty, l *library) {
					if rank == failing {
						test.change(l)
					}
				})
				require.ErrorIs(t, errs[failing], snug.ErrNotBuilt)
				require.ErrorContains(t, errs[failing], test.want)
				require.ErrorIs(t, errs[1-failing], snug.ErrConfig)
			}
		})
	}
	l := &library{release: 2708}
	require.Equal(t, "2.7.8", l.version())
	l.release = 23003
	require.Equal(t, "2.30.3", l.version())
	require.Equal(t, []string{"librccl.so.1", "librccl.so"}, libraryNames("hip"))
	require.Equal(t, []string{"libnccl.so.2", "libnccl.so"}, libraryNames("cuda"))
}

// TestDeviceOfOne: when one rank has no device that can be used, the others do not wait for it.
func TestDeviceOfOne(t *testing.T) {
	for failing := range 2 {
		j := prepare(t, 2)
		errs := j.open(t, func(rank int, o *Options, _ *faulty, _ *library) {
			if rank == failing {
				o.Device = snug.CPU()
			}
		})
		require.ErrorIs(t, errs[failing], snug.ErrDevice)
		require.ErrorContains(t, errs[failing], "cpu: no queue for the work of other libraries")
		require.ErrorIs(t, errs[1-failing], snug.ErrConfig)
	}
}

// TestJoinErrors: what fails while ranks join is said with the library's texts.
func TestJoinErrors(t *testing.T) {
	for _, call := range []string{"ncclGetUniqueId", "ncclCommInitRank", "ncclCommInitRankScalable"} {
		j := prepare(t, 2)
		errs := j.open(t, func(rank int, o *Options, f *faulty, l *library) {
			o.Timeout = short
			if rank == 0 {
				f.fail[call] = 5
			}
			if call == "ncclCommInitRank" {
				l.initScalable = nil
			}
		})
		require.ErrorIs(t, errs[0], snug.ErrDevice)
		require.EqualError(t, errs[0], "nccl: rank 0: "+call+": what 5 means (5): more of it")
		require.Error(t, errs[1])
		if call != "ncclGetUniqueId" {
			require.ErrorIs(t, errs[1], context.DeadlineExceeded)
			require.ErrorContains(t, errs[1], "nccl: rank 1: waited 150ms for the other ranks to join")
		}
	}
}

// TestCallErrors: an error of any function of the library is returned with its texts, ends the communicator, and reaches
// the other ranks too.
func TestCallErrors(t *testing.T) {
	for _, call := range []string{"ncclAllGather", "ncclGroupStart", "ncclSend", "ncclRecv", "ncclGroupEnd", "ncclBroadcast"} {
		t.Run(call, func(t *testing.T) {
			j := start(t, 2, nil)
			j.wire.mu.Lock()
			j.faults[1].fail[call] = 2
			j.wire.mu.Unlock()
			errs := j.each(func(rank int) error {
				v := snug.ViewOf(make([]float32, 10))
				if call == "ncclBroadcast" {
					return j.worlds[rank].Broadcast(0, v)
				}
				return j.worlds[rank].AllReduce(v)
			})
			require.ErrorIs(t, errs[1], snug.ErrDevice)
			require.ErrorContains(t, errs[1], "nccl: rank 1: ")
			require.ErrorContains(t, errs[1], call+": what 2 means (2): more of it")
			require.Error(t, errs[0])
			for rank, w := range j.worlds {
				require.Equal(t, errs[rank], w.Sum([]float64{1}), "the first error stays")
				require.Equal(t, errs[rank], w.Close())
				require.NoError(t, w.Close())
			}
		})
	}
	j := start(t, 1, nil)
	j.faults[0].fail["ncclCommDestroy"] = 3
	require.EqualError(t, j.worlds[0].Close(), "nccl: rank 0: Close: ncclCommDestroy: what 3 means (3): more of it")
}

// TestNothingMoves: when a call has failed, nothing that it has queued reads or writes its vector any more.
func TestNothingMoves(t *testing.T) {
	var j *job
	sends := 0
	j = start(t, 2, func(rank int, _ *Options, _ *faulty, l *library) {
		if rank == 1 {
			return
		}
		send, abort := l.send, l.abort
		l.send = func(addr uintptr, count uint64, dtype, peer int32, comm, stream uintptr) result {
			j.wire.mu.Lock()
			j.faults[1].stalls = true // so that the first round does not end
			j.wire.mu.Unlock()
			if sends++; sends > 1 {
				return 2
			}
			return send(addr, count, dtype, peer, comm, stream)
		}
		l.abort = func(comm uintptr) result {
			time.Sleep(20 * time.Millisecond)
			return abort(comm)
		}
	})
	errs := j.each(func(rank int) error {
		v, err := snug.Make[float32](j.devs[rank], 5000)
		if err != nil {
			return err
		}
		err = j.worlds[rank].AllReduce(v.View())
		if idle, lost := j.worlds[rank].engine.stream.Idle(); lost != nil || !idle {
			return fmt.Errorf("after %w, idle: %v, %w", err, idle, lost)
		}
		return errors.Join(err, v.Close())
	})
	for rank, want := range []string{"nccl: rank 0: AllReduce: ncclSend: what 2 means", "nccl: rank 1: AllReduce: asynchronous error"} {
		require.ErrorContains(t, errs[rank], want)
		require.NotContains(t, errs[rank].Error(), "idle")
	}
}

// TestDeviceErrors: an error of the device is returned.
func TestDeviceErrors(t *testing.T) {
	j := start(t, 2, quick)
	lost := errors.New("the card is lost")
	innerQueue(j.worlds[0].engine.stream).lose(lost)
	errs := j.each(func(rank int) error { return j.worlds[rank].AllReduce(snug.ViewOf(make([]float32, 10))) })
	require.ErrorIs(t, errs[0], lost)
	require.Error(t, errs[1])
	require.ErrorIs(t, j.worlds[0].Close(), lost)
}

// TestAsynchronousError: what the communicator meets by itself ends a call that waits.
func TestAsynchronousError(t *testing.T) {
	j := start(t, 2, nil)
	time.AfterFunc(20*time.Millisecond, func() {
		j.wire.mu.Lock()
		defer j.wire.mu.Unlock()
		for _, c := range j.wire.comms {
			c.async = 6
		}
	})
	err := j.worlds[0].AllReduce(snug.ViewOf(make([]float32, 10)))
	require.ErrorIs(t, err, snug.ErrDevice)
	require.EqualError(t, err, "nccl: rank 0: AllReduce: asynchronous error: what 6 means (6): more of it")

	j = start(t, 2, nil)
	j.faults[0].fail["ncclCommGetAsyncError"] = 4
	err = j.worlds[0].AllReduce(snug.ViewOf(make([]float32, 10)))
	require.EqualError(t, err, "nccl: rank 0: AllReduce: ncclCommGetAsyncError: what 4 means (4): more of it")
}

// TestMismatch: ranks that do not agree get the same error, and nothing moves.
func TestMismatch(t *testing.T) {
	for _, test := range []struct {
		do   func(w *World) error
		is   error
		want string
	}{
		{func(w *World) error { return w.AllReduce(snug.ViewOf(make([]float32, 5+w.Rank()))) }, snug.ErrShape, "AllReduce: rank 0 has 5 elements, rank 1 has 6"},
		{func(w *World) error {
			if w.Rank() == 0 {
				return w.AllReduce(snug.ViewOf(make([]float32, 4)))
			}
			return w.AllReduce(snug.ViewOf(make([]snug.BFloat16, 4)))
		}, snug.ErrDType, "AllReduce: rank 0 has f32, rank 1 has bf16"},
		{func(w *World) error {
			if w.Rank() == 0 {
				return w.Sum([]float64{1})
			}
			return w.Close()
		}, snug.ErrConfig, "rank 0 calls Sum, rank 1 calls Close"},
		{func(w *World) error { return w.Broadcast(w.Rank(), snug.ViewOf(make([]float32, 4))) }, snug.ErrConfig, "rank 0 says root 0, rank 1 says 1"},
		{func(w *World) error {
			v, err := snug.Make[float32](w.engine.home, 8)
			if err != nil {
				return err
			}
			a, _ := v.Slice(0, 4)
			b, _ := v.Slice(2, 6)
			return w.AllToAll(a.View(), b.View())
		}, snug.ErrConfig, "on rank 0 what is received overlaps with what is sent"},
	} {
		t.Run(test.want, func(t *testing.T) {
			j := start(t, 2, nil)
			for rank, err := range j.each(func(rank int) error { return test.do(j.worlds[rank]) }) {
				require.ErrorIs(t, err, test.is)
				require.ErrorContains(t, err, test.want)
				if w := j.worlds[rank]; !w.calls.Closed {
					require.Equal(t, err, w.AllGather(snug.View{}), "the error stays")
				}
			}
		})
	}
}

// TestLate: a call that waits too long aborts the communicator and says what it has waited for.
func TestLate(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(f *faulty)
		calls  bool // rank 1 makes the call
		want   string
	}{
		{"no call", func(*faulty) {}, false, "nccl: rank 0: AllReduce: waited 150ms for the calls of the other ranks: context deadline exceeded"},
		{"no data", func(f *faulty) { f.hang["ncclSend"] = true }, true, "nccl: rank 0: AllReduce: waited 150ms for the data of the other ranks: context deadline exceeded"},
	} {
		t.Run(test.name, func(t *testing.T) {
			j := start(t, 2, quick)
			j.wire.mu.Lock()
			j.wire.silent = true
			test.change(j.faults[1])
			j.wire.mu.Unlock()
			errs := j.each(func(rank int) error {
				if rank == 1 && !test.calls {
					return nil
				}
				return j.worlds[rank].AllReduce(snug.ViewOf(make([]float32, 10)))
			})
			require.ErrorIs(t, errs[0], context.DeadlineExceeded)
			require.EqualError(t, errs[0], test.want)
			j.wire.mu.Lock()
			ended := j.wire.comms[j.worlds[0].engine.comm].ended
			j.wire.mu.Unlock()
			require.True(t, ended, "the communicator is aborted")
			require.Equal(t, errs[0], j.worlds[0].Close())
		})
	}
}

// TestHangs: a function of the library that waits for ranks that are gone returns when the communicator is aborted.
func TestHangs(t *testing.T) {
	for _, call := range []string{"ncclAllGather", "ncclGroupEnd"} {
		j := start(t, 2, quick)
		j.wire.mu.Lock()
		j.faults[0].hang[call] = true
		j.wire.mu.Unlock()
		began := time.Now()
		errs := j.each(func(rank int) error { return j.worlds[rank].AllReduce(snug.ViewOf(make([]float32, 10))) })
		require.Less(t, time.Since(began), grace)
		for _, err := range errs {
			require.Error(t, err, call)
		}
	}
}

// TestLateOpen: a rank that does not come ends Open.
func TestLateOpen(t *testing.T) {
	j := prepare(t, 2)
	o := Options{Device: j.devs[0], Size: 2, File: filepath.Join(t.TempDir(), "id"), Run: "1", Timeout: short}
	_, err := open(o, func(string, string) (*library, error) { return j.wire.library(j.faults[0]), nil })
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.EqualError(t, err, "nccl: rank 0: waited 150ms for the other ranks to join: context deadline exceeded")
}

// TestFile: the unique id goes through a file, which is of this run, and is gone when all have joined.
func TestFile(t *testing.T) {
	stale := func(change func(n *note)) string {
		n := note{noteKind, "job 7", 3, time.Now(), strings.Repeat("00", 128)}
		change(&n)
		text, err := json.Marshal(n)
		require.NoError(t, err)
		return string(text)
	}
	for name, text := range map[string]string{
		"none":        "",
		"another run": stale(func(n *note) { n.Run = "job 6" }),
		"old":         stale(func(n *note) { n.Written = time.Now().Add(-time.Hour) }),
		"damaged":     stale(func(n *note) { n.ID = "12" }),
		"text":        "hello",
		"kind":        stale(func(n *note) { n.Kind = "another" }),
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "id")
			if text != "" {
				require.NoError(t, os.WriteFile(file, []byte(text), 0o666))
			}
			j := prepare(t, 3)
			for _, err := range j.open(t, func(rank int, o *Options, _ *faulty, _ *library) {
				*o = Options{Device: o.Device, Rank: rank, Size: 3, File: file, Run: "job 7", Timeout: time.Minute}
				if rank == 0 {
					time.Sleep(40 * time.Millisecond) // in which the others see what is there
				}
			}) {
				require.NoError(t, err)
			}
			require.NoFileExists(t, file)
			for _, err := range j.each(func(rank int) error { return j.worlds[rank].Sum([]float64{1}) }) {
				require.NoError(t, err)
			}
		})
	}
}

// TestFileErrors: a file that does not become right is an error, which says what is there.
func TestFileErrors(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "id")
	j := prepare(t, 2)
	load := func(string, string) (*library, error) { return j.wire.library(j.faults[1]), nil }
	o := Options{Device: j.devs[1], Rank: 1, Size: 2, File: file, Run: "job 7", Timeout: short}
	_, err := open(o, load)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, `nccl: rank 1: waited 150ms for the unique id of run "job 7": rank 0 has not written `+file)
	first := Options{Rank: 0, Size: 3, File: file, Run: "job 6"}
	require.NoError(t, first.write(&uniqueID{}))
	_, err = open(o, load)
	require.ErrorContains(t, err, file+` is of run "job 6"`)
	first.Run = "job 7"
	require.NoError(t, first.write(&uniqueID{}))
	_, err = open(o, load)
	require.ErrorIs(t, err, snug.ErrConfig)
	require.ErrorContains(t, err, "is for 3 ranks, this rank has 2")
	o.File = dir
	_, err = open(o, load)
	require.ErrorIs(t, err, snug.ErrConfig)
	require.ErrorContains(t, err, "is a folder, want a file")
	o.File = file + ".pipe"
	require.NoError(t, syscall.Mkfifo(o.File, 0o600))
	_, err = open(o, load)
	require.ErrorIs(t, err, snug.ErrConfig, "a pipe would block")
	o.File = dir
	o.Rank, o.Device = 0, j.devs[0]
	_, err = open(o, load)
	require.ErrorIs(t, err, snug.ErrConfig, "a folder is not replaced")
}

// TestFileOfAnother: a run does not remove the file that another run has put in its place.
func TestFileOfAnother(t *testing.T) {
	file := filepath.Join(t.TempDir(), "id")
	j := prepare(t, 2)
	another := Options{Size: 2, File: file, Run: "job 8"}
	for _, err := range j.open(t, func(rank int, o *Options, _ *faulty, l *library) {
		*o = Options{Device: o.Device, Rank: rank, Size: 2, File: file, Run: "job 7", Timeout: time.Minute}
		join := l.initScalable
		l.initScalable = func(comm *uintptr, ranks, rank, ids int32, id *uniqueID, config uintptr) result {
			if rank == 1 && another.write(&uniqueID{}) != nil { // when both ranks have read the file
				return 5
			}
			return join(comm, ranks, rank, ids, id, config)
		}
	}) {
		require.NoError(t, err)
	}
	var id uniqueID
	another.Rank, another.Timeout = 1, short
	require.NoError(t, another.read(&id))
}

// broken is an Exchange that fails.
type broken struct{ err error }

func (b broken) Broadcast(int, snug.View) error { return b.err }

// sized is an Exchange that does not say the number of ranks.
type sized struct{ accum.Broadcaster }

// TestExchange: errors of the Exchange are returned, and ranks that have different sizes do not join.
func TestExchange(t *testing.T) {
	j := prepare(t, 2)
	failed := errors.New("no network")
	for _, err := range j.open(t, func(rank int, o *Options, _ *faulty, _ *library) {
		o.Rank, o.Size, o.Exchange = rank, 2, broken{failed}
	}) {
		require.ErrorIs(t, err, failed)
	}
	errs := j.open(t, func(rank int, o *Options, _ *faulty, _ *library) {
		o.Timeout, o.Rank, o.Size, o.Exchange = short, rank, 2+rank, sized{o.Exchange}
	})
	require.ErrorIs(t, errs[0], context.DeadlineExceeded)
	require.ErrorIs(t, errs[1], snug.ErrConfig)
	require.ErrorContains(t, errs[1], "rank 0 has 2 ranks, this rank has 3")
}

// TestAbort: Abort writes one line, aborts the communicator and ends the process, also during a call.
func TestAbort(t *testing.T) {
	j := start(t, 2, nil)
	read, write, err := os.Pipe()
	require.NoError(t, err)
	standard := os.Stderr
	os.Stderr = write
	defer func() { os.Stderr = standard }()
	codes := make(chan int, 1)
	j.worlds[1].exit = func(code int) {
		codes <- code
		runtime.Goexit()
	}
	waits := make(chan error)
	go func() { waits <- j.worlds[0].AllReduce(snug.ViewOf(make([]float32, 10))) }()
	time.Sleep(10 * time.Millisecond)
	go j.worlds[1].Abort(errors.New("no more\nluck"))
	require.Equal(t, 1, <-codes)
	require.NoError(t, write.Close())
	line, err := io.ReadAll(read)
	require.NoError(t, err)
	require.Equal(t, "rank 1 of 2: no more; luck\n", string(line))
	require.ErrorContains(t, <-waits, "AllReduce: asynchronous error")
	require.ErrorContains(t, j.worlds[1].Sum([]float64{1}), "the communicator was aborted")
}
