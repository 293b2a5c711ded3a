package offload

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
)

func init() { driver.Register("clock", clockBackend{}) }

// clockBackend opens devices with a clock of their own: a kernel takes kernelTime, a copy copyTime a page, and the host's
// own work nothing. Each of the three queues runs its work in order, as soon as what it waits for has ended. The bytes
// move at once, so that only the times say what waits for what.
type clockBackend struct{}

const (
	kernelTime = 10
	copyTime   = 9
	clockPage  = 64 // bytes
)

func (clockBackend) Count() (int, error) { return 1, nil }

func (clockBackend) Open(int) (driver.Driver, error) {
	return &clock{blocks: map[uintptr][]byte{}}, nil
}

// lanes are the queues of a clock.
const (
	kernelLane = iota
	inLane
	outLane
	lanes
)

type clock struct {
	mu     sync.Mutex
	blocks map[uintptr][]byte
	live   int // bytes of the device
	fences int // that nobody has released
	now    int // the host's time
	ends   [lanes]int
	busy   [lanes]int // time that each has worked
	syncs  int        // waits for the queue to be empty
	waits  int        // waits for a copy that took time
	failAt int        // the copy that does not start, counted down
}

func (c *clock) Alloc(size int) (driver.Mem, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := make([]byte, size)
	p := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	c.blocks[p] = b
	c.live += size
	return driver.Mem{Addr: p, Size: size}, nil
}

func (c *clock) Free(m driver.Mem) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.live -= len(c.blocks[m.Addr])
	delete(c.blocks, m.Addr)
	return nil
}

func (c *clock) AllocPinned(size int) (driver.Mem, error) {
	b := make([]byte, size)
	return driver.Mem{Host: unsafe.Pointer(unsafe.SliceData(b)), Addr: 1, Size: size}, nil
}

func (c *clock) FreePinned(driver.Mem) error { return nil }

// work puts work into a lane, after a time.
func (c *clock) work(lane, after, takes int) int {
	c.ends[lane] = max(c.ends[lane], c.now, after) + takes
	c.busy[lane] += takes
	return c.ends[lane]
}

// host makes the memory of a device readable.
func (c *clock) host(m *driver.Mem) []byte {
	for p, b := range c.blocks {
		if off := m.Addr - p; m.Addr >= p && int(off) < len(b) {
			m.Host = unsafe.Pointer(unsafe.SliceData(b[off:]))
		}
	}
	return m.Bytes()
}

func (c *clock) Launch(j driver.Job) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	j.Operands(func(m *driver.Mem) { c.host(m) })
	j.Run()
	c.work(kernelLane, 0, kernelTime)
	return nil
}

func (c *clock) CopyIn(dst driver.Mem, src []byte) error {
	copy(c.host(&dst), src)
	return nil
}

func (c *clock) CopyOut(dst []byte, src driver.Mem) error {
	copy(dst, c.host(&src))
	return c.Sync()
}

func (c *clock) Copy(driver.Mem, driver.Mem) error { return driver.ErrNotBuilt }

func (c *clock) Sync() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.syncs++
	c.now = max(c.now, c.ends[kernelLane])
	return nil
}

func (c *clock) Memory() (free, total int64, err error) { return 0, 0, nil }
func (c *clock) Close() error                           { return nil }

// clockFence is a time.
type clockFence struct {
	c    *clock
	lane int
	end  int
}

func (c *clock) fence(lane, end int) driver.Fence {
	c.fences++
	return &clockFence{c, lane, end}
}

func (f *clockFence) Wait() error {
	f.c.mu.Lock()
	defer f.c.mu.Unlock()
	if f.end > f.c.now {
		f.c.waits++
		f.c.now = f.end
	}
	f.c.fences--
	return nil
}

func (f *clockFence) Await() error {
	f.c.mu.Lock()
	defer f.c.mu.Unlock()
	f.c.work(kernelLane, f.end, 0)
	return nil
}

func (f *clockFence) Release() {
	f.c.mu.Lock()
	defer f.c.mu.Unlock()
	f.c.fences--
}

func (c *clock) Point() (driver.Fence, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.fence(kernelLane, c.ends[kernelLane]), nil
}

func (c *clock) StartCopyIn(dst, src driver.Mem, after driver.Fence) (driver.Fence, error) {
	return c.start(inLane, after, dst, src)
}

func (c *clock) StartCopyOut(dst, src driver.Mem, after driver.Fence) (driver.Fence, error) {
	return c.start(outLane, after, dst, src)
}

func (c *clock) start(lane int, after driver.Fence, dst, src driver.Mem) (driver.Fence, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failAt--; c.failAt == 0 {
		return nil, errPlanted
	}
	begin := c.ends[kernelLane]
	if f, is := after.(*clockFence); is {
		begin = f.end
	}
	to, from := dst.Bytes(), src.Bytes()
	if lane == inLane {
		to = c.host(&dst)
	} else {
		from = c.host(&src)
	}
	copy(to, from)
	return c.fence(lane, c.work(lane, begin, copyTime)), nil
}

// total is the time at which all work is done.
func (c *clock) total() int { return max(c.now, slices.Max(c.ends[:])) }

// openClock returns a device with a clock. When the test ends, all its memory and fences must have been given back.
func openClock(t *testing.T) (*snug.Device, *clock) {
	dev, err := snug.Open("clock:0")
	require.NoError(t, err)
	d, err := device.Copier(dev)
	require.NoError(t, err)
	c := d.(*clock)
	t.Cleanup(func() {
		require.Zero(t, c.fences, "fences that were not released")
		require.Zero(t, c.live, "memory that was not freed")
	})
	return dev, c
}

// TestDeviceTierKeepsBusy changes every page of a tensor in order, again and again, in a tier of three pages. Once the
// order is known the kernels run one after the other: each page arrives, and the page before it leaves, meanwhile. The
// host never waits for the queue to be empty.
func TestDeviceTierKeepsBusy(t *testing.T) {
	const pages, pageLen, warm, passes = 8, clockPage / 4, 4, 6
	for _, changes := range []bool{false, true} {
		t.Run(fmt.Sprint("changes ", changes), func(t *testing.T) {
			dev, c := openClock(t)
			s := memStore(t, Options{})
			x, err := Create[float32](s, "x", pages*pageLen, pageLen)
			require.NoError(t, err)
			d := newTier(t, s, newMover(t, dev, clockPage, 4), 3*clockPage)
			var began, copies int
			for pass := range warm + passes {
				if pass == warm {
					began, copies = c.ends[kernelLane], c.busy[inLane]+c.busy[outLane]
				}
				for i := range pages {
					p := pinOn(t, d, x, i)
					launch(t, p.View, func(x []float32) {
						if changes {
							x[0]++
						}
					})
					require.NoError(t, p.Unpin(changes))
				}
			}
			require.Equal(t, passes*pages*kernelTime, c.ends[kernelLane]-began, "the kernels did not run one after the other")
			require.Greater(t, c.busy[inLane]+c.busy[outLane]-copies, passes*pages/2*copyTime)
			require.Zero(t, c.syncs)
			require.EqualValues(t, 3*clockPage, d.Stats().Peak)
			require.NoError(t, d.Flush())
			got := make([]float32, pages*pageLen)
			require.NoError(t, x.ReadAt(got, 0))
			for i := range pages {
				want := float32(0)
				if changes {
					want = warm + passes
				}
				require.Equal(t, want, got[i*pageLen])
			}
		})
	}
}

// TestDeviceTierSurprise leaves the order of the passes before: the pages have the right bits, and the order is found again.
func TestDeviceTierSurprise(t *testing.T) {
	const pages, pageLen = 8, clockPage / 4
	dev, _ := openClock(t)
	s := memStore(t, Options{})
	x, err := Create[float32](s, "x", pages*pageLen, pageLen)
	require.NoError(t, err)
	d := newTier(t, s, newMover(t, dev, clockPage, 4), 3*clockPage)
	want := make([]float32, pages)
	use := func(i int) {
		p := pinOn(t, d, x, i)
		launch(t, p.View, func(x []float32) {
			require.Equal(t, want[i], x[0])
			x[0]++
		})
		require.NoError(t, p.Unpin(true))
		want[i]++
	}
	for pass := range 12 {
		for i := range pages {
			use(i)
			if pass%5 == 4 && i == 3 {
				use(0) // which was saved, and others were loaded for
				use(7)
			}
		}
	}
	require.Positive(t, d.Stats().Ahead)
	require.NoError(t, d.Flush())
	got := make([]float32, pages*pageLen)
	require.NoError(t, x.ReadAt(got, 0))
	for i := range pages {
		require.Equal(t, want[i], got[i*pageLen])
	}
}

// TestDeviceTierFaults: whichever copy does not start, the call that needs it says so or repeats it, and nothing stays
// pinned or allocated.
func TestDeviceTierFaults(t *testing.T) {
	const pages, pageLen = 6, clockPage / 4
	for n := 1; ; n++ {
		dev, c := openClock(t)
		s := memStore(t, Options{HostLimit: 16 * clockPage})
		x, err := Create[float32](s, "x", pages*pageLen, pageLen)
		require.NoError(t, err)
		m := newMover(t, dev, clockPage, 4)
		d, err := NewDeviceTier(s, m, 3*clockPage)
		require.NoError(t, err)
		c.failAt = n
		want := make([]float32, pages)
		for step := 0; step < 4*pages; {
			i := step % pages
			p, err := x.PinOn(context.Background(), d, i)
			if err != nil {
				require.ErrorIs(t, err, errPlanted)
				continue // once more
			}
			launch(t, p.View, func(x []float32) { x[0]++ })
			require.NoError(t, p.Unpin(true))
			want[i]++
			step++
		}
		if err := d.Flush(); err != nil {
			require.ErrorIs(t, err, errPlanted)
			require.NoError(t, d.Flush())
		}
		got := make([]float32, pages*pageLen)
		require.NoError(t, x.ReadAt(got, 0))
		for i := range pages {
			require.Equal(t, want[i], got[i*pageLen], "copy %d", n)
		}
		require.NoError(t, d.Close())
		require.Zero(t, s.pinned)
		if c.failAt > 0 { // no copy has so high a number
			require.Greater(t, n, 2*pages)
			return
		}
	}
}

// TestRunnerKeepsBusy: while the kernels of a layer run, the next layer is copied, however long its pages take to be read.
// The host waits for copies alone, and for those of a layer that lies behind.
func TestRunnerKeepsBusy(t *testing.T) {
	const layers, passes = 6, 4
	dev, c := openClock(t)
	s := memStore(t, Options{})
	model := make([]Layer, layers)
	for l := range model {
		name := fmt.Sprint("w", l)
		model[l] = Layer{Name: name, Weights: []Weight{{name, clockPage}}}
		x, err := Create[float32](s, name, clockPage/4, clockPage/4)
		require.NoError(t, err)
		require.NoError(t, x.WriteAt([]float32{float32(l)}, 0))
	}
	m, err := Greedy(model, []Tier{{dev.Name(), 2 * clockPage, 0}, {"cpu", 0, 1}})
	require.NoError(t, err)
	r, err := NewRunner(s, []*Mover{newMover(t, dev, clockPage, 2)}, model, m, RunnerOptions{})
	require.NoError(t, err)
	require.EqualValues(t, 2*clockPage, c.live, "two frames")
	for range passes {
		require.NoError(t, r.Forward(context.Background(), func(layer int, weights []snug.View) error {
			launch(t, weights[0], func(x []float32) { require.Equal(t, float32(layer), x[0]) })
			return nil
		}))
	}
	// A pass begins with a copy that nothing hides.
	require.Equal(t, passes*(layers*kernelTime+copyTime), c.total())
	require.Equal(t, passes*layers*copyTime, c.busy[inLane])
	require.Zero(t, c.syncs)
	require.NoError(t, r.Close())
}
