package driver

import "sync/atomic"

// Counts are the calls of a queue that cost the host or the device more than a kernel. Copies that run concurrently
// with the queue, see [Copier], do not count.
type Counts struct {
	Waits    int64 `json:"waits"` // for the queue to be empty: each copy to the host, and each Sync
	ToHost   int64 `json:"copies_to_host"`
	ToDevice int64 `json:"copies_to_device"`
	Allocs   int64 `json:"allocations"`
}

// Minus returns the calls since an earlier count.
func (c Counts) Minus(o Counts) Counts {
	return Counts{c.Waits - o.Waits, c.ToHost - o.ToHost, c.ToDevice - o.ToDevice, c.Allocs - o.Allocs}
}

type counts struct{ waits, toHost, toDevice, allocs atomic.Int64 }

// Counts returns the calls since the device was opened. On the CPU there are none.
func (q *Queue) Counts() Counts {
	c := &q.counts
	return Counts{Waits: c.waits.Load(), ToHost: c.toHost.Load(), ToDevice: c.toDevice.Load(), Allocs: c.allocs.Load()}
}

// Launches returns how many kernels the driver has launched, 0 if it does not count them.
func (q *Queue) Launches() int64 {
	if c, ok := q.Driver.(LaunchCounter); ok {
		return c.Launches()
	}
	return 0
}

// HasDoubles reports whether the device's kernels compute in float64.
func (q *Queue) HasDoubles() bool {
	d, ok := q.Driver.(Doubler)
	return ok && d.HasDoubles()
}

// HasProducts reports whether the driver is a [Multiplier] that has its library.
func (q *Queue) HasProducts() (bool, error) {
	if d, ok := q.Driver.(Multiplier); ok {
		return d.HasProducts()
	}
	return false, nil
}

// CopyIn is that of the driver.
func (q *Queue) CopyIn(dst Mem, src []byte) error {
	q.counts.toDevice.Add(1)
	if err := q.Flush(); err != nil {
		return err
	}
	return q.Driver.CopyIn(dst, src)
}

// CopyOut is that of the driver.
func (q *Queue) CopyOut(dst []byte, src Mem) error {
	q.counts.toHost.Add(1)
	q.counts.waits.Add(1)
	if err := q.Flush(); err != nil {
		return err
	}
	return q.Driver.CopyOut(dst, src)
}

// Sync is that of the driver.
func (q *Queue) Sync() error {
	q.counts.waits.Add(1)
	if err := q.Flush(); err != nil {
		return err
	}
	return q.Driver.Sync()
}
