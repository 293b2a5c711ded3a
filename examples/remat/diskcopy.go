package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
	"unsafe"

	"github.com/snug-ml/snug/remat"
)

// disk is a file that saved sets are copied to, each to a range of its own, in the
// background.
type disk struct {
	file *os.File
	next int64
	free map[int64][]int64 // offsets by size
}

// newDisk makes a temporary file.
func newDisk() (*disk, error) {
	f, err := os.CreateTemp("", "remat-*")
	return &disk{file: f, free: map[int64][]int64{}}, err
}

// Close removes the file.
func (d *disk) Close() error { return errors.Join(d.file.Close(), os.Remove(d.file.Name())) }

// copied is a copy of vectors, one after the other.
type copied[V any] struct {
	disk        *disk
	at, size    int64
	write, read chan error
	allocate    func() (V, [][]float32)
}

// store begins to write vectors. allocate returns room for them.
func store[V any](d *disk, vectors [][]float32, allocate func() (V, [][]float32)) *copied[V] {
	c := &copied[V]{disk: d, write: make(chan error, 1), allocate: allocate}
	for _, v := range vectors {
		c.size += bytesOf(v)
	}
	if offsets := d.free[c.size]; len(offsets) > 0 {
		c.at, d.free[c.size] = offsets[len(offsets)-1], offsets[:len(offsets)-1]
	} else {
		c.at, d.next = d.next, d.next+c.size
	}
	go func() { c.write <- each(vectors, c.at, d.file.WriteAt) }()
	return c
}

// each moves vectors to or from consecutive places of a file.
func each(vectors [][]float32, at int64, move func([]byte, int64) (int, error)) error {
	for _, v := range vectors {
		b := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), 4*len(v))
		if _, err := move(b, at); err != nil {
			return err
		}
		at += int64(len(b))
	}
	return nil
}

func (c *copied[V]) Bytes() int64 { return c.size }

func (c *copied[V]) Stored(context.Context) error { return done(&c.write) }

func (c *copied[V]) Load(ctx context.Context) (V, error) {
	v, vectors := c.allocate()
	if err := c.Stored(ctx); err != nil {
		return v, err
	}
	c.read = make(chan error, 1)
	go func() { c.read <- each(vectors, c.at, c.disk.file.ReadAt) }()
	return v, nil
}

func (c *copied[V]) Loaded(context.Context) error { return done(&c.read) }

// Release waits for what goes on and gives the place back.
func (c *copied[V]) Release() {
	_, _ = done(&c.write), done(&c.read) // a failure has been reported or does not matter any more
	c.disk.free[c.size] = append(c.disk.free[c.size], c.at)
}

// done waits for a transfer, once.
func done(transfer *chan error) error {
	if *transfer == nil {
		return nil
	}
	err := <-*transfer
	*transfer = nil
	return err
}

// use gives a chain the functions that copy to disk, and its costs the rates.
func (d *disk) use(chain *remat.Chain[[]float32, saved]) (err error) {
	chain.Output = func(s saved) []float32 { return s.y }
	chain.Store = func(_ context.Context, _ remat.Tier, y []float32) (remat.Copy[[]float32], error) {
		return store(d, [][]float32{y}, func() ([]float32, [][]float32) {
			again := make([]float32, len(y))
			return again, [][]float32{again}
		}), nil
	}
	chain.StoreSaved = func(_ context.Context, _ remat.Tier, s saved) (remat.Copy[saved], error) {
		return store(d, [][]float32{s.y, s.h}, func() (saved, [][]float32) {
			again := saved{make([]float32, len(s.y)), make([]float32, len(s.h))}
			return again, [][]float32{again.y, again.h}
		}), nil
	}
	chain.Costs.Disk, err = d.rates()
	return err
}

// rates measures how fast the file is written and read, in bytes a second.
func (d *disk) rates() (remat.Rates, error) {
	v := [][]float32{make([]float32, 64<<10)}
	var seconds [2]float64
	for i, move := range []func([]byte, int64) (int, error){d.file.WriteAt, d.file.ReadAt} {
		begin := time.Now()
		for range 8 {
			if err := each(v, 0, move); err != nil {
				return remat.Rates{}, fmt.Errorf("measure the disk: %w", err)
			}
		}
		seconds[i] = time.Since(begin).Seconds()
	}
	bytes := float64(8 * bytesOf(v[0]))
	return remat.Rates{Write: bytes / seconds[0], Read: bytes / seconds[1]}, nil
}
