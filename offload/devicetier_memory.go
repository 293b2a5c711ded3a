package offload

import (
	"errors"
	"fmt"

	"github.com/snug-ml/snug"
)

// kindOf returns the kind of frame that f's page takes.
func kindOf(f *framed) frameKind {
	dt := f.host.obj.dtype
	return frameKind{dt, f.host.size / dt.Size()}
}

// fits reports whether there is memory for f's page without an eviction.
func (d *DeviceTier) fits(f *framed) bool {
	return len(d.idle[kindOf(f)]) > 0 || d.limit == 0 || d.stats.Bytes-d.idleBytes()+int64(f.host.size) <= d.limit
}

func (d *DeviceTier) idleBytes() (sum int64) {
	for _, list := range d.idle {
		for _, k := range list {
			sum += int64(k.view.Bytes())
		}
	}
	return sum
}

// reserve returns memory for f's page. It evicts pages until there is memory. If the
// device has less memory than the limit, the limit falls to that.
func (d *DeviceTier) reserve(f *framed) (kept, error) {
	for {
		if k, ok := d.takeIdle(kindOf(f)); ok {
			return k, nil
		}
		if d.fits(f) {
			k, err := d.allocate(f)
			if !errors.Is(err, snug.ErrNoMemory) {
				return k, err
			}
			d.stats.Demoted++
			d.limit = max(1, d.stats.Bytes)
		}
		if err := d.evict(f); err != nil {
			return kept{}, err
		}
	}
}

func (d *DeviceTier) takeIdle(kind frameKind) (kept, bool) {
	list := d.idle[kind]
	if len(list) == 0 {
		return kept{}, false
	}
	k := list[len(list)-1]
	d.idle[kind] = list[:len(list)-1]
	return k, true
}

// allocate makes a new frame, after idle ones of other kinds were freed.
func (d *DeviceTier) allocate(f *framed) (kept, error) {
	if err := d.freeIdle(); err != nil {
		return kept{}, err
	}
	kind := kindOf(f)
	k, err := allocate(d.m.dev, kind.dtype, kind.n)
	if err != nil {
		return kept{}, in(err, "%v on %s", f.host, d.m.dev)
	}
	d.stats.Bytes += int64(k.view.Bytes())
	d.stats.Peak = max(d.stats.Peak, d.stats.Bytes)
	return k, nil
}

func (d *DeviceTier) freeIdle() error {
	var errs []error
	for _, list := range d.idle {
		for _, k := range list {
			d.stats.Bytes -= int64(k.view.Bytes())
			errs = append(errs, k.free())
		}
	}
	clear(d.idle)
	return errors.Join(errs...)
}

// evict drops the page that is to be evicted next. If the page is dirty, evict writes it
// to the store first.
func (d *DeviceTier) evict(f *framed) error {
	v := d.victims.top()
	if v == nil {
		return fmt.Errorf("offload: %v takes %d bytes of %s, where %d of the limit of %d are pinned: %w",
			f.host, f.host.size, d.m.dev, d.stats.Bytes, d.limit, snug.ErrNoMemory)
	}
	victim := d.shadows[v]
	if victim.dirty {
		if err := d.save(victim); err != nil {
			return in(err, "evict a page for %v on %s", f.host, d.m.dev)
		}
	}
	d.stats.Evicted++
	return d.discard(victim)
}

// Flush writes the pages that were changed on the device to the store. If such a page is
// pinned, the error wraps [snug.ErrConfig]. After an error of the store the pages that
// were not written are still on the device. After an error of the device, go back to the
// last commit.
func (d *DeviceTier) Flush() error {
	if !d.made() {
		return errNoTier
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, f := range d.frames {
		if f.dirty && f.pins > 0 {
			return fmt.Errorf("offload: flush: %v is pinned on %s: %w", f.host, d.m.dev, snug.ErrConfig)
		}
	}
	for _, f := range d.frames {
		if !f.dirty {
			continue
		}
		if _, err := d.fresh(f.host); err != nil {
			return err
		}
		if err := d.save(f); err != nil {
			return err
		}
	}
	return nil
}

// Stats returns the counters.
func (d *DeviceTier) Stats() DeviceStats {
	if !d.made() {
		return DeviceStats{}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	st := d.stats
	st.Limit = d.limit
	return st
}

// Close waits for the copies and frees the memory of the device, which must not be in
// use. Pages that were not flushed are dropped. Closing twice does nothing.
func (d *DeviceTier) Close() error {
	if !d.made() {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil
	}
	d.closed = true
	var errs []error
	for _, f := range d.frames {
		if f.free != nil {
			errs = append(errs, f.move.Wait())
			d.release(f)
		}
	}
	errs = append(errs, d.freeIdle())
	d.frames, d.shadows, d.victims = nil, nil, nil
	if err := errors.Join(errs...); err != nil {
		return in(err, "close device tier")
	}
	return nil
}
