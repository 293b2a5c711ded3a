package offload

import (
	"context"
	"errors"
	"fmt"
	"slices"

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
func (d *DeviceTier) reserve(f *framed) (tierFrame, error) {
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
			return tierFrame{}, err
		}
	}
}

// takeIdle returns the idle memory that was released first, whose work ends first.
func (d *DeviceTier) takeIdle(kind frameKind) (tierFrame, bool) {
	list := d.idle[kind]
	if len(list) == 0 {
		return tierFrame{}, false
	}
	k := list[0]
	d.idle[kind] = slices.Delete(list, 0, 1)
	return k, true
}

// allocate makes a new frame, after idle ones of other kinds were freed.
func (d *DeviceTier) allocate(f *framed) (tierFrame, error) {
	if err := d.freeIdle(); err != nil {
		return tierFrame{}, err
	}
	kind := kindOf(f)
	k, err := allocate(d.m.dev, kind.dtype, kind.n)
	if err != nil {
		return tierFrame{}, in(err, "%v on %s", f.host, d.m.dev)
	}
	d.stats.Bytes += int64(k.view.Bytes())
	d.stats.Peak = max(d.stats.Peak, d.stats.Bytes)
	return tierFrame{kept: k}, nil
}

// freeIdle gives idle memory back to the device, which does so after the copies from and to it.
func (d *DeviceTier) freeIdle() error {
	var errs []error
	for _, list := range d.idle {
		for _, k := range list {
			d.stats.Bytes -= int64(k.view.Bytes())
			k.forget()
			errs = append(errs, k.load.Await(), k.save.Await(), k.free())
		}
	}
	clear(d.idle)
	return errors.Join(errs...)
}

// evict drops the page that is to be evicted next. If the page is dirty, evict starts to
// write it to the store.
func (d *DeviceTier) evict(f *framed) error {
	v := d.victims.top()
	if v == nil {
		return fmt.Errorf("offload: %v takes %d bytes of %s, where %d of the limit of %d are pinned: %w",
			f.host, f.host.size, d.m.dev, d.stats.Bytes, d.limit, snug.ErrNoMemory)
	}
	victim := d.shadows[v]
	if victim.dirty {
		if err := d.startSave(victim); err != nil {
			return in(err, "evict a page for %v on %s", f.host, d.m.dev)
		}
	}
	d.stats.Evicted++
	d.discard(victim)
	return nil
}

// savesUnderWay is the number of pages that a DeviceTier copies out at the same time.
const savesUnderWay = 2

// saved is a page that was on the device, and its copy to the store's page.
type saved struct {
	f    *framed
	move Move
}

// startSave starts to copy a dirty frame to the store's page, which stays pinned until finishSave.
func (d *DeviceTier) startSave(f *framed) error {
	if len(d.saves) == savesUnderWay {
		if err := d.finishSave(); err != nil {
			return err
		}
	}
	if err := d.pinHost(context.Background(), f, true); err != nil {
		return err
	}
	move, err := d.m.saveAfter(viewOf(f.host.buf, f.host.obj.dtype), f.view, after{point: f.used})
	if err != nil {
		return errors.Join(err, d.unpinHost(f, true))
	}
	f.save, f.dirty, f.saving = move, false, true
	d.saves = append(d.saves, saved{f, move})
	return nil
}

// finishSave waits for the oldest copy out. Its error stays, since the page is lost.
func (d *DeviceTier) finishSave() error {
	s := d.saves[0]
	d.saves = slices.Delete(d.saves, 0, 1)
	s.f.saving = false
	err := errors.Join(s.move.Wait(), d.unpinHost(s.f, true))
	if err != nil {
		d.lost = errors.Join(d.lost, in(err, "save %v from %s", s.f.host, d.m.dev))
		return d.lost
	}
	d.stats.SaveBytes += int64(s.f.host.size)
	return nil
}

// finishSaves waits for all copies out.
func (d *DeviceTier) finishSaves() error {
	for len(d.saves) > 0 {
		if err := d.finishSave(); err != nil {
			return err
		}
	}
	return nil
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
	if d.lost != nil {
		return d.lost
	}
	for _, f := range d.frames {
		if !f.dirty {
			continue
		}
		_, err := d.fresh(f.host)
		if err == nil {
			err = d.startSave(f)
		}
		if err != nil {
			return errors.Join(err, d.finishSaves())
		}
	}
	return d.finishSaves()
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
	for len(d.saves) > 0 {
		errs = append(errs, d.finishSave())
	}
	for _, f := range d.frames {
		if f.free != nil {
			errs = append(errs, f.load.Wait())
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
