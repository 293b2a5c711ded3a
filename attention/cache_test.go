package attention

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// cacheOf lays out the keys and values of a problem, of contiguous tensors, in a cache in a
// backend, with a table of pages or Pages. It changes p's k and v to what the cache stands for.
func cacheOf(t testing.TB, backend kerneltest.Backend, p *problem, dt snug.DType, rng *rand.Rand, size int, integers, table bool) *Cache {
	c := resolved(t, p.c)
	kv := &Cache{PageSize: size}
	batch, rows := c.Batch, c.SeqK
	var pages [][]int
	if size > 0 {
		perSequence := (c.SeqK + size - 1) / size
		order := rng.Perm(c.Batch*perSequence + 3) // some stay empty
		for b := range c.Batch {
			pages = append(pages, order[b*perSequence:][:perSequence])
		}
		batch, rows = len(order), size
		kv.setPages(t, backend, pages, batch, table)
	}
	put := func(x []float32, dim int) (data, scales snug.View) {
		y := make([]float32, batch*c.KVHeads*rows*dim)
		fill(y, gap)
		move := func(f func(from, to []float32)) {
			for b := range c.Batch {
				for h := range c.KVHeads {
					for i := range c.SeqK {
						at := (b*c.KVHeads+h)*rows + i
						if size > 0 {
							at = (pages[b][i/size]*c.KVHeads+h)*rows + i%size
						}
						f(x[((b*c.KVHeads+h)*c.SeqK+i)*dim:][:dim], y[at*dim:][:dim])
					}
				}
			}
		}
		move(func(from, to []float32) { copy(to, from) })
		if !integers {
			return kerneltest.PutFloats(t, backend, dt, y).View, snug.View{}
		}
		codes, by := make([]uint8, len(y)), make([]float32, len(y)/dim)
		require.NoError(t, QuantizeRows(codes, by, y, dim))
		for i, code := range codes {
			y[i] = float32(int8(code)) * by[i/dim]
		}
		move(func(from, to []float32) { copy(from, to) })
		return kerneltest.Put(t, backend, codes).View, kerneltest.Put(t, backend, by).View
	}
	kv.K, kv.KScale = put(p.k, c.Dim)
	kv.V, kv.VScale = put(p.v, c.DimV)
	return kv
}

// setPages gives a cache pages, of count, as a table that is wider than needed or not.
func (kv *Cache) setPages(t testing.TB, backend kerneltest.Backend, pages [][]int, count int, table bool) {
	if !table || len(pages[0]) == 0 {
		kv.Pages = pages
		return
	}
	var numbers []int32
	for _, row := range pages {
		for _, page := range row {
			numbers = append(numbers, int32(page))
		}
		numbers = append(numbers, -5) // not used
	}
	kv.Table, kv.Count = kerneltest.Put(t, backend, numbers).View, count
}

// checkCache compares ForwardCached with the definition.
func checkCache(t testing.TB, backend kerneltest.Backend, c Options, dt snug.DType, rng *rand.Rand, size int, integers, table bool, some ...feature) {
	p := withFeatures(t, c, dt, rng.Uint64(), false, some)
	p.c.K, p.c.V = Strides{}, Strides{} // contiguous, as a cache
	kv := cacheOf(t, backend, p, dt, rng, size, integers, table)
	want, bound := p.reference(t, backend, dt)
	out := kerneltest.PutFloats(t, backend, dt, make([]float32, len(want.out)))
	lse := kerneltest.Put(t, backend, make([]float32, len(want.lse)))
	q := kerneltest.PutFloats(t, backend, dt, p.q)
	with := p.c
	p.put(t, backend, &with)
	require.NoError(t, ForwardCached(out.View, lse.View, q.View, kv, with))
	within(t, "out", want.out, bound.out, out.Get())
	within(t, "lse", want.lse, bound.lse, lse.Get())
}

func cacheProperty(t *rapid.T) {
	rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
	c := Options{
		Batch: 1 + rng.IntN(3), Heads: 4, KVHeads: 2, SeqQ: 1 + rng.IntN(5), SeqK: 1 + rng.IntN(600),
		Dim: 1 + rng.IntN(20), DimV: 1 + rng.IntN(20), Causal: rng.IntN(2) == 0,
	}
	for range c.Batch {
		c.KLens = append(c.KLens, rng.IntN(c.SeqK+1))
	}
	checkCache(tb{r: t}, kerneltest.Backend{}, c, dtypes[rng.IntN(3)], rng, []int{0, 1, 16, 100}[rng.IntN(4)], rng.IntN(2) == 0, rng.IntN(2) == 0)
}

//check:in race
func TestCache(t *testing.T) { rapid.Check(t, cacheProperty) }

// Rows one after the other and pages, with integers and without, and with features.
//
//check:in tiers arm64 race
func TestCacheOnBackends(t *testing.T) {
	c := Options{Batch: 2, Heads: 4, KVHeads: 2, SeqQ: 3, SeqK: 130, Dim: 33, DimV: 5, Causal: true, KLens: []int{130, 67}}
	kerneltest.Each(t, func(t *testing.T, backend kerneltest.Backend) {
		rng := rand.New(rand.NewPCG(3, 4))
		for i, size := range []int{0, 0, 1, 16, 70, 70} {
			checkCache(t, backend, c, dtypes[i%3], rng, size, i%2 == 1, true)
		}
		checkCache(t, backend, c, snug.F16, rng, 16, true, true, featuresNamed("window", "softcap", "alibi", "bias", "mask", "sinks", "dropout")...)
	})
}

// Pages are for the CPU, and so is the check of a table; elsewhere wrong entries do no harm.
//
//check:in checked
//check:not emulated
func TestTable(t *testing.T) {
	c := Options{Batch: 2, Heads: 1, SeqQ: 1, SeqK: 5, Dim: 2}
	x := []float32{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20}
	kerneltest.Each(t, func(t *testing.T, backend kerneltest.Backend) {
		data := kerneltest.Put(t, backend, x).View
		table := func(pages ...int32) snug.View { return kerneltest.Put(t, backend, pages).View }
		run := func(kv *Cache) ([]float32, error) {
			out := kerneltest.Put(t, backend, filled(4))
			kv.K, kv.V = data, data
			q := kerneltest.Put(t, backend, make([]float32, 4))
			err := ForwardCached(out.View, snug.View{}, q.View, kv, c)
			return out.Get(), err
		}
		got, err := run(&Cache{Table: table(1, 0), PageSize: 5, Count: 2})
		require.NoError(t, err)
		require.InDeltaSlice(t, []float32{15, 16, 5, 6}, got, 1e-5)
		for _, kv := range []*Cache{
			{Table: table(1, 0), PageSize: 4, Count: 2}, {Table: table(1, 0, 1), PageSize: 5, Count: 2}, {Table: table(1, 0), PageSize: 5},
			{Table: table(1, 0), PageSize: 5, Count: 3}, {Table: table(1, 0), PageSize: 5, Count: math.MaxInt},
		} {
			got, err := run(kv)
			require.ErrorIs(t, err, snug.ErrShape)
			require.Equal(t, filled(4), got)
		}
		_, err = run(&Cache{Table: table(1, 0), Pages: [][]int{{1}, {0}}, PageSize: 5, Count: 2})
		require.ErrorIs(t, err, snug.ErrConfig)
		_, err = run(&Cache{Table: kerneltest.Put(t, backend, make([]float32, 2)).View, PageSize: 5, Count: 2})
		require.ErrorIs(t, err, snug.ErrDType)
		if backend.Dev == nil || backend.Dev.IsCPU() {
			_, err = run(&Cache{Table: table(2, 0), PageSize: 5, Count: 2})
			require.ErrorIs(t, err, snug.ErrShape)
			return
		}
		_, err = run(&Cache{Pages: [][]int{{1}, {0}}, PageSize: 5})
		require.ErrorIs(t, err, snug.ErrDevice)
		if onHost(backend) {
			return
		}
		got, err = run(&Cache{Table: table(math.MaxInt32, -1), PageSize: 5, Count: 2})
		require.NoError(t, err)
		require.InDeltaSlice(t, []float32{15, 16, 5, 6}, got, 1e-5)
	})
}

//check:in race
func FuzzAnyCache(f *testing.F) { f.Fuzz(rapid.MakeFuzz(cacheProperty)) }

//check:in race
func TestCacheErrors(t *testing.T) {
	c := Options{Batch: 2, Heads: 1, SeqQ: 1, SeqK: 5, Dim: 2}
	x := snug.SliceView(make([]float32, 20))
	for name, tc := range map[string]struct {
		change func(kv *Cache, c *Options)
		want   error
	}{
		"right":        {func(*Cache, *Options) {}, nil},
		"pages":        {func(kv *Cache, c *Options) { kv.Pages, kv.PageSize = [][]int{{1}, {0}}, 5 }, nil},
		"page size":    {func(kv *Cache, c *Options) { kv.Pages = [][]int{{1}, {0}} }, snug.ErrShape},
		"few pages":    {func(kv *Cache, c *Options) { kv.Pages, kv.PageSize = [][]int{{1}, {0}}, 4 }, snug.ErrShape},
		"few tables":   {func(kv *Cache, c *Options) { kv.Pages, kv.PageSize = [][]int{{1}}, 5 }, snug.ErrShape},
		"no such page": {func(kv *Cache, c *Options) { kv.Pages, kv.PageSize = [][]int{{1}, {2}}, 5 }, snug.ErrShape},
		"page -1":      {func(kv *Cache, c *Options) { kv.Pages, kv.PageSize = [][]int{{1}, {-1}}, 5 }, snug.ErrShape},
		"page MaxInt":  {func(kv *Cache, c *Options) { kv.Pages, kv.PageSize = [][]int{{1}, {math.MaxInt}}, 5 }, snug.ErrShape},
		"many pages":   {func(kv *Cache, c *Options) { kv.Pages, kv.PageSize = [][]int{{1}, {math.MaxInt - 1}}, 5 }, snug.ErrShape},
		"short":        {func(kv *Cache, c *Options) { kv.K, _ = x.Slice(0, 19) }, snug.ErrShape},
		"type":         {func(kv *Cache, c *Options) { kv.V = snug.SliceView(make([]snug.Float16, 20)) }, snug.ErrDType},
		"no scales":    {func(kv *Cache, c *Options) { kv.V = snug.SliceView(make([]uint8, 20)) }, snug.ErrDType},
		"few scales": {func(kv *Cache, c *Options) {
			kv.V, kv.VScale = snug.SliceView(make([]uint8, 20)), snug.SliceView(make([]float32, 9))
		}, snug.ErrShape},
		"packed": {func(kv *Cache, c *Options) { c.QStarts, c.KStarts = []int{0, 0, 1}, []int{0, 1, 2} }, snug.ErrShape},
	} {
		t.Run(name, func(t *testing.T) {
			kv, c := &Cache{K: x, V: x}, c
			tc.change(kv, &c)
			out := []float32{gap, gap, gap, gap}
			err := ForwardCached(out, []float32(nil), make([]float32, 4), kv, c)
			require.ErrorIs(t, err, tc.want)
			if tc.want != nil {
				require.ErrorContains(t, err, "attention: ")
				require.Equal(t, []float32{gap, gap, gap, gap}, out)
			}
		})
	}
	require.ErrorIs(t, ForwardCached(make([]float32, 4), []float32(nil), make([]float32, 4), nil, c), snug.ErrConfig)
}

func TestQuantizeRows(t *testing.T) {
	codes, scales := make([]uint8, 6), make([]float32, 3)
	require.NoError(t, QuantizeRows(codes, scales, []float32{127, -1.5, 0, 0, -254, 3}, 2))
	require.Equal(t, []uint8{127, 0xfe, 0, 0, 0x81, 2}, codes) // -1.5 and 1.5 to even
	require.Equal(t, []float32{1, 0, 2}, scales)
	nan := []float32{0, 0, 0, 0, 0, float32(math.NaN())}
	before := append([]uint8{}, codes...)
	require.ErrorIs(t, QuantizeRows(codes, scales, nan, 2), snug.ErrNonFinite)
	require.ErrorContains(t, QuantizeRows(codes, scales, nan, 2), "element 5")
	require.Equal(t, before, codes)
	require.ErrorIs(t, QuantizeRows(codes, scales, nan, 4), snug.ErrShape)
	require.ErrorIs(t, QuantizeRows(codes, scales, nan, 0), snug.ErrShape)
	require.ErrorIs(t, QuantizeRows(codes[:5], scales, nan, 2), snug.ErrShape)
	// Of denormal rows the scale has few bits: codes stay in range.
	tiny := []float32{0x1p-149, -0x1p-148, 0x1p-143, 0x1.8p-148, 0, 0}
	require.NoError(t, QuantizeRows(codes, scales, tiny, 2))
	for i, x := range tiny {
		require.InDelta(t, float64(x), float64(int8(codes[i]))*float64(scales[i/2]), 0x1p-149+float64(max(tiny[i/2*2], -tiny[i/2*2+1])))
	}
}
