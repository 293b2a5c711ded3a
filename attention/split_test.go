//go:build cuda || hip || metal || emu

package attention

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/gpu"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

// splitCases are few queries and many keys, also of odd numbers: one, two and seven queries, one of them with heads
// that share keys, of which a device with 16 multiprocessors computes splits. Those of 16 bits at multiples of 16 bytes
// are for matrix units, which are slow in the emulator.
func splitCases() []Options {
	return []Options{
		{Batch: 1, Heads: 3, SeqQ: 1, SeqK: 4001, Dim: 5},
		{Batch: 1, Heads: 1, SeqQ: 7, SeqK: 1700, Dim: 33, DimV: 130},
		{Batch: 2, Heads: 2, KVHeads: 1, SeqQ: 2, SeqK: 1003, Dim: 15},
		{Batch: 1, Heads: 4, KVHeads: 1, SeqQ: 1, SeqK: 501, Dim: 64},
		{Batch: 1, Heads: 1, SeqQ: 2, SeqK: 399, Dim: 128},
		{Batch: 1, Heads: 1, SeqQ: 1, SeqK: 350, Dim: 256},
		SequenceMajor(Options{Batch: 1, Heads: 6, KVHeads: 2, SeqQ: 1, SeqK: 500, Dim: 40, DimV: 24}),
		{Batch: 1, Heads: 1, SeqQ: 140, SeqK: 600, Dim: 16},
	}
}

// forwardCheck compares Forward, with lse and without, with the definition, and returns how many kernels it launched.
func (p *problem) forwardCheck(t *testing.T, backend kerneltest.Backend, dt snug.DType) int64 {
	t.Helper()
	want, bound := p.reference(t, backend, dt)
	r := resolved(t, p.c)
	o := r.operands()
	put := func(o operand, x []float32) strided { return put(t, backend, dt, o, p.start, x) }
	q, k, v, c := put(o[0], p.q), put(o[1], p.k), put(o[2], p.v), p.c
	p.put(t, backend, &c)
	var before, after int64
	for _, withLSE := range []bool{true, false} {
		out, lse := put(o[3], nil), snug.View{}
		var numbers *kerneltest.Buf[float32]
		if withLSE {
			numbers = kerneltest.Put(t, backend, filled(r.queries()))
			lse = numbers.View
		}
		if !onHost(backend) {
			before = device.Launches(backend.Dev)
		}
		require.NoError(t, Forward(out.View, lse, q.View, k.View, v.View, c))
		if !onHost(backend) {
			after = device.Launches(backend.Dev)
		}
		within(t, "out", want.out, bound.out, out.contiguous())
		if withLSE {
			within(t, "lse", want.lse, bound.lse, numbers.Get())
		}
	}
	return after - before
}

// Splits of the keys give what the definition says, in all types, with each mask.
func TestSplits(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, backend kerneltest.Backend) {
		for i, c := range splitCases() {
			if backend.Emulated && !kerneltest.Full() && i%2 == 1 {
				continue // slow
			}
			for j := range 2 {
				mask, dt := masks[(i+j)%3], dtypes[(i+2*j)%3]
				c.Causal, c.Align = mask.causal, mask.align
				t.Run(fmt.Sprint(i, " ", shapeName(c, dt)), func(t *testing.T) {
					p := newProblem(t, c, dt, uint64(70+i))
					p.start = aligning
					launches := p.forwardCheck(t, backend, dt)
					if backend.Emulated && !(c.Causal && c.Align == TopLeft) {
						require.GreaterOrEqual(t, launches, int64(2), "splits and a join")
					}
				})
			}
		}
	})
}

// All features but Score, each alone and some together: splits of the keys count a sink once, draw the random numbers of
// the whole, and take windows, lengths and masks as they are.
func TestSplitsWithFeatures(t *testing.T) {
	one := Options{Batch: 2, Heads: 4, KVHeads: 2, SeqQ: 1, SeqK: 700, Dim: 16}
	few := Options{Batch: 1, Heads: 2, KVHeads: 1, SeqQ: 7, SeqK: 800, Dim: 24, DimV: 8}
	kerneltest.Each(t, func(t *testing.T, backend kerneltest.Backend) {
		for i, names := range [][]string{
			{"window"}, {"sinks"}, {"mask"}, {"dropout"}, {"alibi"}, {"bias"}, {"lengths of keys"}, {"softcap", "causal"},
			{"sinks", "window", "lengths of keys", "causal"}, {"sinks", "dropout", "mask", "bias", "alibi", "softcap", "shifted"},
		} {
			if backend.Emulated && !kerneltest.Full() && i < 8 && i%2 == 1 {
				continue // slow
			}
			for j, c := range []Options{one, few} {
				dt := dtypes[(i+j)%3]
				t.Run(fmt.Sprint(names, c.SeqQ), func(t *testing.T) {
					withFeatures(t, c, dt, uint64(80+i), false, featuresNamed(names...)).forwardCheck(t, backend, dt)
				})
			}
		}
	})
}

// A window far from the first key, sinks of heads that share keys, and sequences of other lengths, none among them.
func TestSplitsOfWindows(t *testing.T) {
	c := Options{Batch: 3, Heads: 6, KVHeads: 1, SeqQ: 1, SeqK: 1500, Dim: 16, Causal: true, Window: Window{Left: 611}, KLens: []int{1499, 0, 640}}
	kerneltest.Each(t, func(t *testing.T, backend kerneltest.Backend) {
		for i, dt := range dtypes {
			p := withFeatures(t, c, dt, uint64(90+i), false, featuresNamed("sinks"))
			launches := p.forwardCheck(t, backend, dt)
			if backend.Emulated {
				require.Equal(t, int64(2), launches)
			}
		}
	})
}

// Packed sequences, some without keys, some with fewer than a split has, and rows beyond the last one.
func TestSplitsOfPackedSequences(t *testing.T) {
	c := Options{
		Batch: 5, Heads: 1, SeqQ: 13, SeqK: 1700, Dim: 16, Causal: true,
		QStarts: []int{0, 1, 3, 10, 11, 12}, KStarts: []int{0, 900, 900, 1600, 1601, 1690},
	}
	kerneltest.Each(t, func(t *testing.T, backend kerneltest.Backend) {
		for i, dt := range dtypes {
			c.Align = []Align{BottomRight, TopLeft}[i%2]
			launches := newProblem(t, c, dt, uint64(95+i)).forwardCheck(t, backend, dt)
			if backend.Emulated {
				require.Equal(t, int64(2), launches)
			}
		}
	})
}

// A cache in pages, of 8 bits, and of sequences of other lengths.
//
//check:in race
func TestSplitsOfCaches(t *testing.T) {
	one := Options{Batch: 2, Heads: 4, KVHeads: 2, SeqQ: 1, SeqK: 1100, Dim: 33, DimV: 5, Causal: true, KLens: []int{1100, 67}}
	few := Options{Batch: 1, Heads: 2, SeqQ: 5, SeqK: 900, Dim: 16, Causal: true}
	kerneltest.Each(t, func(t *testing.T, backend kerneltest.Backend) {
		rng := rand.New(rand.NewPCG(3, 4))
		for i, size := range []int{0, 0, 1, 16, 70, 70} {
			checkCache(t, backend, one, dtypes[i%3], rng, size, i%2 == 1, true)
		}
		checkCache(t, backend, few, snug.F16, rng, 16, true, true)
		window := one
		window.Window = Window{Left: 500}
		checkCache(t, backend, window, snug.BF16, rng, 16, true, true, featuresNamed("sinks", "softcap")...)
	})
}

// processors is a launcher with n multiprocessors.
type processors struct {
	launcher
	n int
}

func (p processors) Multiprocessors() int { return p.n }

// Splits of the keys are for launches that leave multiprocessors without a tile of queries.
func TestSplitsOf(t *testing.T) {
	for _, x := range []struct{ tiles, steps, processors, most, want int }{
		{8, 128, 132, 64, 16},   // one query of a model with 8 key heads, 8192 keys
		{1, 16, 16, 64, 16},     // one step each
		{1, 512, 132, 64, 64},   // no more
		{1, 512, 132, 3, 3},     // no more memory
		{1, 2, 132, 64, 1},      // nothing to gain
		{64, 128, 132, 64, 2},   // half of them idle
		{100, 128, 132, 64, 1},  // not enough to gain
		{132, 1000, 132, 64, 1}, // none idle
		{0, 10, 132, 64, 1},     // no heads
		{8, 128, 0, 64, 1},      // a device that does not say
	} {
		require.Equal(t, x.want, splitsOf(x.tiles, x.steps, x.processors, x.most, 0.75), "%+v", x)
	}
	require.Equal(t, 1, splitsOf(64, 128, 132, 64, 0.5))
}

func TestSplitsChosen(t *testing.T) {
	llama := Options{Batch: 1, Heads: 32, KVHeads: 8, SeqQ: 1, SeqK: 8192, Dim: 128, Causal: true}
	for name, tc := range map[string]struct {
		change func(*Options)
		want   int
	}{
		"one query":          {func(*Options) {}, 16},
		"a batch":            {func(c *Options) { c.Batch = 4 }, 4},
		"a large batch":      {func(c *Options) { c.Batch = 17 }, 1},
		"heads of their own": {func(c *Options) { c.KVHeads = 32 }, 4},
		"some queries":       {func(c *Options) { c.SeqQ = 8 }, 4},
		"a prompt":           {func(c *Options) { c.SeqQ = 8192 }, 1},
		"few heads":          {func(c *Options) { c.Heads, c.KVHeads, c.SeqQ, c.SeqK = 1, 1, 2048, 2048 }, 1},
		"a piece of one":     {func(c *Options) { c.Heads, c.KVHeads, c.SeqQ = 4, 4, 512 }, 3}, // as maxRoom has room for
		"few keys":           {func(c *Options) { c.SeqK = 100 }, 1},
		"a window":           {func(c *Options) { c.Window.Left = 96 }, 1},
		"a wide window":      {func(c *Options) { c.Window.Left = 4096 }, 16},
		"keys in use":        {func(c *Options) { c.KLens = []int{90} }, 1},
		"top left":           {func(c *Options) { c.Align = TopLeft }, 1},
		"no keys":            {func(c *Options) { c.SeqK = 1; c.KLens = []int{0} }, 1},
		"packed":             {func(c *Options) { c.SeqQ, c.QStarts, c.KStarts = 2, []int{0, 2}, []int{0, 8192} }, 4},
		"ranks":              {func(c *Options) { c.SeqQ, c.allHeads, c.Heads, c.KVHeads = 8, 32, 4, 1 }, 4},
	} {
		t.Run(name, func(t *testing.T) {
			c := llama
			tc.change(&c)
			r := resolved(t, c)
			k := gpuUnits[1]
			if r.featured() {
				k = &gpuPlain
			}
			require.Equal(t, tc.want, r.splits(processors{n: 132}, k))
			require.Equal(t, 1, r.splits(launcher{}, k), "a device that does not know")
		})
	}
	long := resolved(t, Options{Batch: 1, Heads: 1, SeqQ: 4000, SeqK: 1 << 20, Dim: 512})
	require.Equal(t, 1, long.splits(processors{n: 10000}, &gpuPlain), "more than maxRoom for two")
	piece := resolved(t, Options{Batch: 1, Heads: 1, SeqQ: 128, SeqK: 640, Dim: 64})
	require.Equal(t, 10, piece.splits(processors{n: 132}, gpuUnits[0]))
	require.Equal(t, 1, piece.splits(processors{launcher{hopper: true}, 132}, gpuUnits[0]), "its own kernels are as fast")
}

// splitting is a job with memory for splits that it did not ask for.
type splitting struct{ forwardJob }

func (j *splitting) Borrows(driver.Driver) int { return 0 }

// Any number of splits gives what the definition says, also more than there are keys, with heads and queries that see
// nothing of most splits or of all.
func TestAnySplits(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, backend kerneltest.Backend) {
		if onHost(backend) {
			return
		}
		for i, c := range []Options{
			{Batch: 1, Heads: 2, KVHeads: 1, SeqQ: 3, SeqK: 130, Dim: 8, Causal: true},                    // of matrix units
			{Batch: 1, Heads: 1, SeqQ: 70, SeqK: 66, Dim: 9, Causal: true},                                // queries that see nothing
			{Batch: 2, Heads: 2, SeqQ: 2, SeqK: 200, Dim: 3, KLens: []int{1, 0}, Window: Window{Left: 3}}, // a sequence without keys
		} {
			for _, n := range []int{2, 3, maxSplits} {
				dt := []snug.DType{snug.BF16, snug.F32, snug.F16}[i]
				p := newProblem(t, c, dt, uint64(60+i))
				p.start = aligning
				want, bound := p.reference(t, backend, dt)
				j := splitting{forwardJob{c: resolved(t, c)}}
				o := j.c.operands()
				out, lse := put(t, backend, dt, o[3], aligning, nil), kerneltest.Put(t, backend, filled(j.c.queries()))
				j.out, j.lse = out.View, lse.View
				for x, v := range []*snug.View{&j.q, &j.k, &j.v} {
					*v = put(t, backend, dt, o[x], aligning, [][]float32{p.q, p.k, p.v}[x]).View
				}
				room := kerneltest.Put(t, backend, filled(n*j.c.splitBytes()/4))
				j.room = room.View
				require.NoError(t, device.Launch(backend.Dev, &j))
				within(t, "out", want.out, bound.out, out.contiguous())
				within(t, "lse", want.lse, bound.lse, lse.Get())
				room.Get() // its guard words
			}
		}
	})
}

// What a mask hides stays hidden, and what it shows shows, in splits on matrix units and in others.
func TestNonFiniteInSplits(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, backend kerneltest.Backend) {
		for _, x := range []struct {
			dt      snug.DType
			target  int // as in checkNonFinite: keys or values
			at, bad float64
		}{{snug.F32, 1, 0.9935, math.NaN()}, {snug.F16, 2, 0.9935, math.Inf(1)}, {snug.BF16, 2, 0.995, math.NaN()}, {snug.BF16, 1, 0.3, math.Inf(-1)}} {
			p := newProblem(t, Options{Batch: 1, Heads: 1, SeqQ: 7, SeqK: 600, Dim: 8, Causal: true}, x.dt, 50)
			p.start = aligning
			p.checkNonFinite(t, backend, x.dt, x.target, x.at, x.bad)
		}
	})
}

// A call borrows from the second on what the first one returned, and gives all of it back.
func TestSplitsBorrow(t *testing.T) {
	c := Options{Batch: 1, Heads: 1, SeqQ: 1, SeqK: 600, Dim: 3}
	kerneltest.Each(t, func(t *testing.T, backend kerneltest.Backend) {
		if !backend.Emulated {
			return
		}
		x := func(n int) snug.View { return kerneltest.Put(t, backend, make([]float32, n)).View }
		out, q, k, v := x(3), x(3), x(1800), x(1800)
		free, _, err := backend.Dev.Memory()
		require.NoError(t, err)
		before, launched := device.Counts(backend.Dev), device.Launches(backend.Dev)
		for range 3 {
			require.NoError(t, Forward(out, snug.View{}, q, k, v, c))
		}
		require.Equal(t, driver.Counts{Allocs: 1}, device.Counts(backend.Dev).Minus(before))
		require.Equal(t, int64(6), device.Launches(backend.Dev)-launched)
		after, _, err := backend.Dev.Memory()
		require.NoError(t, err)
		require.Equal(t, free, after)
	})
}

// One query is computed for all heads that share a key head at once, without a kernel that mends.
func TestRowsOfHeads(t *testing.T) {
	c := resolved(t, SequenceMajor(Options{Batch: 2, Heads: 6, KVHeads: 2, SeqQ: 1, SeqK: 10, Dim: 8, Causal: true}))
	r := c.rowsOfHeads()
	require.Equal(t, [4]int{2, 3, 10, 6}, [4]int{r.Heads, r.SeqQ, r.SeqK, r.queries() / c.Batch})
	require.Equal(t, Strides{Batch: 48, Head: 24, Row: 8}, r.Q)
	require.False(t, r.Causal)
	j := forwardJob{c: c}
	for _, v := range []*snug.View{&j.out, &j.q, &j.k, &j.v} {
		*v = snug.SliceView(make([]snug.BFloat16, 480))
	}
	q := &refuser{}
	require.NoError(t, j.Grids(q))
	require.Equal(t, []string{"attention_forward_unit64_bf16"}, q.names)
	c.Dropout.P = 0.5
	r = c.rowsOfHeads()
	require.Equal(t, 6, r.Heads, "dropout tells heads apart")
}

// failing is a device whose call number failAt fails.
type failing struct {
	driver.Driver
	made, failAt, live int
	names              []string
}

func (d *failing) call() error {
	if d.made++; d.made == d.failAt {
		return kerneltest.ErrFault
	}
	return nil
}

func (d *failing) Alloc(size int) (driver.Mem, error) {
	if err := d.call(); err != nil {
		return driver.Mem{}, err
	}
	d.live++
	return driver.Mem{Addr: 1 << 20, Size: size}, nil
}

func (d *failing) Launch(j driver.Job) error { return gpu.Run(j, d) }
func (d *failing) Multiprocessors() int      { return 16 }

func (d *failing) LaunchGrid(l *gpu.Launch) error {
	if err := d.call(); err != nil {
		return err
	}
	d.names = append(d.names, l.Func)
	return nil
}

// Whichever call of the driver fails, the caller gets the error, nothing is launched after it, and what was borrowed is
// there for the next call.
func TestFailingSplits(t *testing.T) {
	c := resolved(t, Options{Batch: 1, Heads: 1, SeqQ: 2, SeqK: 700, Dim: 64, Causal: true})
	want := []string{"attention_split_unit64_bf16", "attention_join", "attention_mend_forward_bf16"}
	for failAt := 1; failAt <= len(want)+2; failAt++ {
		j := &forwardJob{c: c}
		for i, v := range []*snug.View{&j.out, &j.q, &j.k, &j.v} {
			*v = snug.SliceView(make([]snug.BFloat16, 700*64))
			device.Mem(v).Addr = uintptr(i+2) << 20
		}
		d := &failing{failAt: failAt}
		q := &driver.Queue{Name: "test:0", Driver: d}
		err := q.Launch(j)
		if failAt > len(want)+1 {
			require.NoError(t, err)
			require.Equal(t, want, d.names)
		} else {
			require.ErrorIs(t, err, kerneltest.ErrFault)
			require.Equal(t, want[:max(0, failAt-2)], append([]string{}, d.names...))
		}
		if failAt > 1 {
			_, err = q.Lend(device.Mem(&j.room).Size)
			require.NoError(t, err)
			require.Equal(t, 1, d.live, "the same memory again")
		}
	}
}

// A captured call, which cannot borrow, has no splits.
func TestCapturedSplits(t *testing.T) {
	j := &forwardJob{c: resolved(t, Options{Batch: 1, Heads: 1, SeqQ: 2, SeqK: 700, Dim: 5})}
	for _, v := range []*snug.View{&j.out, &j.q, &j.k, &j.v} {
		*v = snug.SliceView(make([]float32, 700*5))
	}
	d := &failing{}
	q := &driver.Queue{Name: "test:0", Driver: d}
	q.Capturing.Store(true)
	require.NoError(t, q.Launch(j))
	require.Equal(t, []string{"attention_forward_f32"}, d.names)
	require.Zero(t, d.live)
}
