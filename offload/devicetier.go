package offload

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/driver"
)

// DeviceTier holds pages of the tensors of a [Store] in the memory of a device, under its
// own limit. Like the store it records the order of the accesses. When the order has
// repeated, it evicts the page whose next use is farthest. While kernels run it copies
// the coming pages that the store has in host memory, up to two; the store reads the other
// coming pages ahead.
//
// Copies wait for the kernels that use their memory, and kernels for the copies of their
// page, on the device: a copy in takes the memory of an evicted page as soon as the kernels
// that used that page, and its copy out, are done. So with a limit of three pages, a Mover
// whose ring has four, and copies that take no longer than the kernels, the device does not
// wait. The caller waits where more copies are under way than the ring has pages, where two
// copies out are, for the older one, and for pages that the store has to read.
//
// A page that changes on the device is written to the store after it is evicted, or by
// [DeviceTier.Flush]. Call Flush before [Store.Commit] and before the page is used in host
// memory. A page that changes in host memory is copied to the device again.
//
// If the device has less memory than the limit, the limit falls to the memory that the
// device has: pages then stay in host memory, and [DeviceStats] counts such allocations.
// Methods may be called from many goroutines, which wait for one another.
type DeviceTier struct {
	s *Store
	m *Mover

	mu      sync.Mutex
	limit   int64 // 0 for none
	frames  map[*page]*framed
	shadows map[*page]*framed
	victims victims // shadows of the pages that are on the device and not pinned
	order   order   // of shadows
	idle    map[frameKind][]tierFrame
	saves   []saved // copies out that may be under way, the oldest first
	onIt    int     // pages on the device
	stats   DeviceStats
	lost    error // a page could not be saved
	closed  bool
}

// tierFrame is memory on the device, and the work that uses it.
type tierFrame struct {
	kept
	load, save Move         // the last ones
	used       driver.Fence // the end of the kernels that used it last; nil if that is not known
}

// framed is the state of a page of the store in a DeviceTier.
type framed struct {
	shadow    page // its entry in the order, and among the victims
	host      *page
	tierFrame // empty when the page is not on the device
	pins      int
	dirty     bool   // newer than the store's page
	saving    bool   // it is among the saves, whose end makes the store's page as new
	version   uint64 // version of the store's page that the frame holds
}

// frameKind says which frames are interchangeable.
type frameKind struct {
	dtype snug.DType
	n     int
}

// DeviceStats counts what a [DeviceTier] did.
type DeviceStats struct {
	Bytes     int64 // bytes of device memory now
	Peak      int64 // the maximum of Bytes so far
	Limit     int64 // limit now, which a demotion lowers; 0 means no limit
	Hits      int64 // pins that found the page on the device, or being copied there
	Misses    int64 // pins that copied the page
	Ahead     int64 // pages copied before they were pinned
	Evicted   int64 // pages dropped to make space for others
	LoadBytes int64 // copied to the device
	SaveBytes int64 // copied from the device
	Demoted   int64 // allocations that the device refused, so that pages stayed in host memory
}

// aheadOnDevice is the number of pages that a DeviceTier copies before they are pinned.
const aheadOnDevice = 2

// NewDeviceTier returns an empty tier of limit bytes on m's device. A limit of 0 means no
// limit. The error wraps [snug.ErrConfig].
func NewDeviceTier(s *Store, m *Mover, limit int64) (*DeviceTier, error) {
	switch {
	case !s.made():
		return nil, errNoStore
	case !m.made():
		return nil, in(errNoMover, "device tier")
	case limit < 0:
		return nil, fmt.Errorf("offload: device tier with limit %d, want 0 or more: %w", limit, snug.ErrConfig)
	}
	return &DeviceTier{
		s: s, m: m, limit: limit, order: newOrder(true),
		frames: map[*page]*framed{}, shadows: map[*page]*framed{}, idle: map[frameKind][]tierFrame{},
	}, nil
}

var errNoTier = fmt.Errorf("offload: the device tier is nil, or was not made by NewDeviceTier: %w", snug.ErrConfig)

// made reports whether d was made by NewDeviceTier.
func (d *DeviceTier) made() bool { return d != nil && d.s != nil }

// DevicePage is a page of a tensor that is pinned in a device's memory.
type DevicePage struct {
	// View has the page's elements. Kernels queued after PinOn see them.
	View snug.View
	d    *DeviceTier
	f    *framed
}

// PinOn brings page number page into d's memory and holds it there until
// [DevicePage.Unpin]. It returns errors of [Tensor.Pin] and of the device,
// [snug.ErrNoMemory] when pinned pages leave too little memory, and [snug.ErrConfig] when
// the page was changed in host memory and on the device.
func (t *Tensor[T]) PinOn(ctx context.Context, d *DeviceTier, page int) (DevicePage, error) {
	if err := t.checkPage(ctx, page); err != nil {
		return DevicePage{}, err
	}
	if !d.made() {
		return DevicePage{}, errNoTier
	}
	if t.s != d.s {
		return DevicePage{}, fmt.Errorf("offload: tensor %q belongs to another store than the device tier: %w", t.obj.name, snug.ErrConfig)
	}
	return d.pin(ctx, &t.obj.pages[page])
}

// Unpin ends the use of View by kernels queued from now on. dirty says that elements may
// have changed. Errors: [snug.ErrConfig] when the page is not pinned, or when dirty is
// set for a page of an attached tensor.
func (p DevicePage) Unpin(dirty bool) error {
	if p.d == nil {
		return fmt.Errorf("offload: unpin of an empty DevicePage: %w", snug.ErrConfig)
	}
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	switch {
	case p.f.pins == 0:
		return fmt.Errorf("offload: unpin of %v, which is not pinned on %s: %w", p.f.host, p.d.m.dev, snug.ErrConfig)
	case dirty && p.f.host.obj.source != nil:
		return fmt.Errorf("offload: %v is read-only, and was unpinned as dirty: %w", p.f.host, snug.ErrConfig)
	}
	p.f.dirty = p.f.dirty || dirty
	if p.f.pins == 1 {
		p.d.mark(p.f)
	}
	p.d.unpin(p.f)
	return nil
}

// mark notes that the kernels queued so far may use a frame.
func (d *DeviceTier) mark(f *framed) {
	f.forget()
	if point, err := d.m.point(); err == nil { // else copies wait for all work, and find the error
		f.used = point
	}
}

// forget gives the mark back.
func (f *tierFrame) forget() {
	if f.used != nil {
		f.used.Release()
	}
	f.used = nil
}

// unpin undoes one pin.
func (d *DeviceTier) unpin(f *framed) {
	if f.pins--; f.pins == 0 {
		heap.Push(&d.victims, &f.shadow)
	}
}

func (d *DeviceTier) pin(ctx context.Context, host *page) (DevicePage, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return DevicePage{}, fmt.Errorf("offload: the device tier is closed: %w", snug.ErrConfig)
	}
	if d.lost != nil {
		return DevicePage{}, d.lost
	}
	f, err := d.fresh(host)
	if err != nil {
		return DevicePage{}, err
	}
	if f.free == nil {
		d.stats.Misses++
		err = d.load(ctx, f)
	} else {
		d.stats.Hits++
	}
	if err == nil {
		err = f.load.Await()
	}
	if err != nil {
		return DevicePage{}, err
	}
	if f.pins == 0 {
		heap.Remove(&d.victims, f.shadow.index)
	}
	f.pins++
	pinned := false
	defer func() {
		if !pinned { // the Source of a coming page did not return
			d.unpin(f)
		}
	}()
	if d.order.record(&f.shadow, d.onIt) {
		d.rekey()
	}
	d.ahead()
	pinned = true
	return DevicePage{View: f.view, d: d, f: f}, nil
}

// fresh returns the state of a page, without a frame that is older than the page.
func (d *DeviceTier) fresh(host *page) (*framed, error) {
	f := d.frames[host]
	if f == nil {
		f = &framed{host: host, shadow: page{obj: host.obj, last: -1, index: -1}}
		d.frames[host], d.shadows[&f.shadow] = f, f
		d.order.grow(len(d.frames))
	}
	d.s.mu.Lock()
	gone, version := host.gone, host.version
	d.s.mu.Unlock()
	if f.free == nil || !gone && f.version == version {
		return f, nil
	}
	if f.dirty || f.pins > 0 {
		return nil, fmt.Errorf("offload: %v was changed or deleted in host memory while it was in use or changed on %s: %w", host, d.m.dev, snug.ErrConfig)
	}
	d.discard(f)
	return f, nil
}

// load copies the store's page to a new frame, which then is a victim.
func (d *DeviceTier) load(ctx context.Context, f *framed) error {
	for f.saving {
		if err := d.finishSave(); err != nil {
			return err
		}
	}
	frame, err := d.reserve(f)
	if err != nil {
		return err
	}
	f.tierFrame = frame
	d.onIt++
	loaded := false
	defer func() {
		if !loaded { // or a Source did not return
			d.release(f)
		}
	}()
	if err := d.pinHost(ctx, f, false); err != nil {
		return err
	}
	f.load, err = d.m.loadAfter(f.view, viewOf(f.host.buf, f.host.obj.dtype), after{f.save, f.used})
	if err = errors.Join(err, d.unpinHost(f, false)); err != nil {
		return err
	}
	loaded = true
	heap.Push(&d.victims, &f.shadow)
	d.stats.LoadBytes += int64(f.view.Bytes())
	return nil
}

// pinHost pins the store's page. With overwrite the caller writes all of it. Pages that are being saved are pinned too: if
// they leave too little memory, pinHost waits for them.
func (d *DeviceTier) pinHost(ctx context.Context, f *framed, overwrite bool) error {
	err := d.s.lockAndPin(ctx, f.host, overwrite)
	if len(d.saves) == 0 || !errors.Is(err, snug.ErrNoMemory) {
		return err
	}
	if err := d.finishSaves(); err != nil {
		return err
	}
	return d.s.lockAndPin(ctx, f.host, overwrite)
}

// unpinHost undoes pinHost. The frame then holds what the store's page holds.
func (d *DeviceTier) unpinHost(f *framed, changed bool) error {
	d.s.mu.Lock()
	defer d.s.mu.Unlock()
	err := d.s.unpin(f.host, changed)
	f.version = f.host.version
	return err
}

// discard drops a frame that is not pinned.
func (d *DeviceTier) discard(f *framed) {
	heap.Remove(&d.victims, f.shadow.index)
	d.release(f)
}

// release makes f's memory idle.
func (d *DeviceTier) release(f *framed) {
	kind := frameKind{f.view.DType(), f.view.Len()}
	d.idle[kind] = append(d.idle[kind], f.tierFrame)
	d.onIt--
	f.tierFrame, f.dirty = tierFrame{}, false
}

// rekey gives every page the key that follows from the order of accesses.
func (d *DeviceTier) rekey() {
	for _, f := range d.frames {
		f.shadow.key = d.order.defaultKey(&f.shadow)
	}
	d.order.assignKeys()
	heap.Init(&d.victims)
}

// ahead copies coming pages that the store has in host memory.
func (d *DeviceTier) ahead() {
	for i := range aheadOnDevice {
		shadow := d.order.ahead(i)
		if shadow == nil {
			return
		}
		f := d.shadows[shadow]
		if f.free != nil {
			continue
		}
		d.s.mu.Lock()
		ready := f.host.buf != nil && !f.host.busy && f.host.pending == nil
		d.s.hint(f.host)
		d.s.mu.Unlock()
		if !ready || !d.fitsAfterOne(f) || d.load(context.Background(), f) != nil {
			return // the caller that pins it gets the error
		}
		d.stats.Ahead++
	}
}

// fitsAfterOne reports whether f fits after at most one page that is used later.
func (d *DeviceTier) fitsAfterOne(f *framed) bool {
	if d.fits(f) {
		return true
	}
	v := d.victims.top()
	return v != nil && v.key > f.shadow.key
}
