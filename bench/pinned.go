package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/driver"
)

// pinnedBytes is the size of a copy between the host and a device.
const pinnedBytes = 1 << 26

// pinned are the bytes a second of copies from and to pinned host memory, 0 where
// the device has none.
type pinned struct{ in, out float64 }

// newPinned measures the copies that offload moves pages with. It opens the
// device once more, by its driver.
func newPinned(ctx context.Context, dev *snug.Device) (p pinned, err error) {
	kind, number, _ := strings.Cut(dev.Name(), ":")
	index, err := strconv.Atoi(number)
	if err != nil {
		return p, err
	}
	b, err := driver.Lookup(kind)
	if err != nil {
		return p, err
	}
	d, err := b.Open(index)
	if err != nil {
		return p, err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	copier, ok := d.(driver.Copier)
	if !ok {
		return p, nil
	}
	for _, way := range []struct {
		out  bool
		rate *float64
	}{{false, &p.in}, {true, &p.out}} {
		w := work{prepare: func(*memory) (run, done func() error, err error) { return pinnedCopy(copier, way.out) }}
		seconds, err := w.fastest(ctx, dev)
		if err != nil {
			return p, fmt.Errorf("copy of pinned memory, %v: %w", dev, err)
		}
		*way.rate = pinnedBytes / seconds
	}
	return p, nil
}

// pinnedCopy allocates both ends of a copy to the device, or out of it, which
// run starts and waits for.
func pinnedCopy(c driver.Copier, out bool) (run, done func() error, err error) {
	there, err := c.Alloc(pinnedBytes)
	if err != nil {
		return nil, nil, err
	}
	here, err := c.AllocPinned(pinnedBytes)
	if err != nil {
		return nil, nil, errors.Join(err, c.Free(there))
	}
	done = func() error { return errors.Join(c.FreePinned(here), c.Free(there)) }
	start := func() (driver.Fence, error) { return c.StartCopyIn(there, here, nil) }
	if out {
		start = func() (driver.Fence, error) { return c.StartCopyOut(here, there, nil) }
	}
	return func() error {
		fence, err := start()
		if err != nil {
			return err
		}
		return fence.Wait()
	}, done, nil
}
