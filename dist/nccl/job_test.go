//go:build linux

package nccl

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/accum"
	"github.com/stretchr/testify/require"
)

// scripts/nccl.sh starts the test program once for each rank, on a machine with GPUs, and these variables say what it does.
const (
	jobVariable    = "SNUG_NCCL_JOB"    // its name
	rankVariable   = "SNUG_NCCL_RANK"   // from 0
	sizeVariable   = "SNUG_NCCL_SIZE"   // the number of ranks
	deviceVariable = "SNUG_NCCL_DEVICE" // "cuda:0"
	fileVariable   = "SNUG_NCCL_FILE"   // of the unique id
	runVariable    = "SNUG_NCCL_RUN"    // its name
)

var jobs = map[string]func(w *World, dev *snug.Device) error{
	"bits": func(w *World, dev *snug.Device) error {
		return compare(w, dev, []int{0, 1, 2, 7, 1000, 4097, 20_011, 9_000_001})
	},
	"rate": func(w *World, dev *snug.Device) error { return rate(w, dev, 64<<20, 20) },
	"late": waits,
}

// TestMain does the job of a rank, or runs the tests.
func TestMain(m *testing.M) {
	name := os.Getenv(jobVariable)
	if name == "" {
		os.Exit(m.Run())
	}
	if err := ranked(name); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

// ranked is a rank in a process.
func ranked(name string) error {
	job, ok := jobs[name]
	if !ok {
		return fmt.Errorf("no job %s", name)
	}
	rank, err := strconv.Atoi(os.Getenv(rankVariable))
	if err != nil {
		return err
	}
	size, err := strconv.Atoi(os.Getenv(sizeVariable))
	if err != nil {
		return err
	}
	dev, err := snug.Open(os.Getenv(deviceVariable))
	if err != nil {
		return err
	}
	o := Options{Device: dev, Rank: rank, Size: size, File: os.Getenv(fileVariable), Run: os.Getenv(runVariable), Timeout: time.Minute}
	if name == "late" {
		o.Timeout = 10 * time.Second
	}
	w, err := Open(o)
	if err != nil {
		return err
	}
	if rank == 0 {
		fmt.Println(w.Library())
	}
	if err := job(w, dev); err != nil {
		w.Abort(err)
	}
	if err := w.Close(); err != nil && name != "late" {
		return err
	}
	return dev.Close()
}

// compare does all operations by a World and by Local, and compares the bits.
func compare(w *World, dev *snug.Device, lengths []int) error {
	rank, size := w.Rank(), w.Size()
	for _, n := range lengths {
		for _, dt := range []snug.DType{snug.F32, snug.BF16, snug.U8, snug.I32} {
			for _, o := range operations(n, dt) {
				want, err := alone(size, rank, o)
				if err != nil {
					return err
				}
				for _, place := range []string{"device", "slices"} {
					got := o.vectors(rank, size)
					call := func(v []snug.View) error { return o.do(w, v) }
					if place == "device" {
						err = onDevice(dev, got, call)
					} else {
						err = call(got)
					}
					if err != nil {
						return err
					}
					a, b := got[0], want[0]
					if o.own {
						lo, hi := accum.Shard(n, rank, size)
						a, _ = a.Slice(lo, hi)
						b, _ = b.Slice(lo, hi)
					}
					if !sameBits(a, b) {
						return fmt.Errorf("%s of %d %s, %s: differs from Local", o.name, n, dt, place)
					}
				}
			}
		}
	}
	fmt.Printf("rank %d: equal\n", rank)
	return nil
}

// alone does an operation by Local and returns the vectors of one rank.
func alone(size, rank int, o operation) ([]snug.View, error) {
	locals, err := accum.Local(context.Background(), size)
	if err != nil {
		return nil, err
	}
	all, errs := make([][]snug.View, size), make(chan error, size)
	for i, l := range locals {
		go func() {
			all[i] = o.vectors(i, size)
			errs <- o.do(l, all[i])
		}()
	}
	for range size {
		err = errors.Join(err, <-errs)
	}
	return all[rank], err
}

// rate times AllReduce of n elements of float32. The bandwidth is that of nccl-tests' column "busbw": 2(N-1)/N of the
// bytes, by the time.
func rate(w *World, dev *snug.Device, n, times int) error {
	a, err := snug.Make[float32](dev, n)
	if err != nil {
		return err
	}
	var took []float64
	for range times {
		began := time.Now()
		if err := w.AllReduce(a.View()); err != nil {
			return err
		}
		took = append(took, time.Since(began).Seconds())
	}
	if w.Rank() > 0 {
		return a.Close()
	}
	least := took[0]
	for _, t := range took {
		least = min(least, t)
	}
	size := float64(w.Size())
	fmt.Printf("AllReduce of %d MiB, %d ranks: %.3f ms, busbw %.1f GB/s\n", n*4>>20, w.Size(), 1e3*least, 4*float64(n)*2*(size-1)/size/least/1e9)
	return a.Close()
}

// waits has a rank 1 that makes no call, which the others say.
func waits(w *World, _ *snug.Device) error {
	if w.Rank() == 1 {
		time.Sleep(w.timeout + 5*time.Second)
		return nil
	}
	err := w.Sum([]float64{1})
	if !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%v, want an error that says what was waited for", err)
	}
	fmt.Println(err)
	return nil
}

// TestJobs: what scripts/nccl.sh does on hardware passes on the devices of the tests.
func TestJobs(t *testing.T) {
	j := start(t, 3, nil)
	for _, err := range j.each(func(rank int) error { return compare(j.worlds[rank], j.devs[rank], []int{0, 1, 1000}) }) {
		require.NoError(t, err)
	}
	for _, err := range j.each(func(rank int) error { return rate(j.worlds[rank], j.devs[rank], 1000, 2) }) {
		require.NoError(t, err)
	}
}
