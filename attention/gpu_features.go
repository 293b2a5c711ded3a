//go:build cuda || hip || metal || emu

package attention

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/gpu"
)

// gpuSequences is the most sequences of different lengths in one launch.
const gpuSequences = 64

// gpuFeatures is the parameters of the kernels of featured.h, Features there.
type gpuFeatures struct {
	shape                           gpuShape
	first, sequences                uint64
	left, right                     int64
	slopes                          uint64
	bias, dims                      [4]uint64
	mask                            gpuMask
	seed, query, key                uint64
	page, pages, table              uint64
	of                              [gpuSequences]gpuExtent
	dtype, dtypeK, dtypeV, biasType uint32
	unlike, packed, ends            uint32
	scores                          uint32
	masked, dropout, sunk           uint32
	below, more, splits             uint32
	keep, softcap                   float32
}

// sunkRow says that each row of a tile has a sink, SUNK_ROW in featured.h; 1 that each head has one.
const sunkRow = 2

// gpuMask is the distance in tiles of a mask between batch elements, heads and rows of
// tiles.
type gpuMask struct{ batch, head, row uint64 }

// gpuExtent is the rows of one sequence.
type gpuExtent struct{ q0, nq, k0, nk int64 }

func flag(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}

func counts4(x [4]int) (y [4]uint64) {
	for i, n := range x {
		y[i] = uint64(n)
	}
	return y
}

// featured reports whether c has a feature that only the kernels of featured.h support.
func (c *Options) featured() bool {
	return c.cached() || c.scores() || c.Window != (Window{}) || c.Mask != nil || c.Sinks.X.Len() > 0 || c.Dropout.P > 0 || c.packed() || c.KLens != nil
}

// features returns the parameters that all launches for tensors of a type share.
func (c *Options) features(dt snug.DType) gpuFeatures {
	f := gpuFeatures{
		shape: c.gpu(), left: int64(c.Window.before()), right: int64(c.Window.after()), slopes: uint64(c.Slopes.Len()),
		seed: c.Dropout.Seed, query: uint64(c.Dropout.Query), key: uint64(c.Dropout.Key),
		dtype: uint32(dt), unlike: flag(c.packed() || c.KLens != nil), packed: flag(c.packed()), ends: flag(c.Align == BottomRight),
		scores: flag(c.scores()), sunk: flag(c.Sinks.X.Len() > 0), dropout: flag(c.Dropout.P > 0),
		softcap: c.Softcap, splits: 1,
	}
	f.keep, f.below = c.Dropout.numbers()
	if c.Causal {
		f.right = 0
	}
	if c.oneQuery { // extents are what it sees
		e, _ := c.extent(0)
		f.left, f.right, f.ends, f.sunk = unlimited, unlimited, 0, sunkRow*f.sunk
		f.unlike = flag(c.KLens != nil || e != gpuExtent{0, int64(c.SeqQ), 0, int64(c.SeqK)})
	}
	if c.Mask != nil {
		f.masked, f.mask = 1, c.Mask.gpu()
	}
	if c.Bias.X.Len() > 0 {
		f.biasType, f.bias, f.dims = uint32(c.Bias.X.DType()), counts4(c.Bias.strides()), counts4(c.Bias.Dims)
	}
	return f
}

func (m *Mask) gpu() (s gpuMask) {
	head := gpu.CeilDiv(m.seqQ, MaskTile) * m.tilesK
	if m.batch > 1 {
		s.batch = uint64(m.heads * head)
	}
	if m.heads > 1 {
		s.head = uint64(head)
	}
	s.row = uint64(m.tilesK)
	return s
}

// batches calls f for one launch after the other, at least once. It passes the launch's
// parameters, its number of sequences, and the most queries and rows of keys of a sequence.
func (f *gpuFeatures) batches(c *Options, launch func(n, queries, keys int) error) error {
	per := max(1, c.Batch)
	if f.unlike != 0 {
		per = gpuSequences
	}
	for first := 0; first == 0 || first < c.Batch; first += per {
		n := min(per, c.Batch-first)
		f.first, f.sequences = uint64(first), uint64(n)
		queries, keys := c.SeqQ, c.SeqK
		if f.unlike != 0 {
			queries, keys = f.extents(c, first, n)
		}
		if err := launch(n, queries, keys); err != nil {
			return err
		}
		f.more = 1
	}
	return nil
}

// extents fills in the rows of n sequences and returns the most.
func (f *gpuFeatures) extents(c *Options, first, n int) (queries, keys int) {
	for i := range n {
		e, rows := c.extent(first + i)
		f.of[i] = e
		queries, keys = max(queries, int(e.nq)), max(keys, rows)
	}
	return queries, keys
}

// extent returns the rows of a sequence, and how many of keys there are.
func (c *Options) extent(b int) (e gpuExtent, rows int) {
	s := c.sequence(b)
	e = gpuExtent{int64(s.q0), int64(s.nq), int64(s.k0), int64(s.nk)}
	if c.oneQuery {
		lo, hi := s.keys(0)
		e.k0, e.nk = int64(lo), int64(hi-lo)
	}
	return e, s.rows
}

// launch is [gpuShape.launch] with f.
func (f *gpuFeatures) launch(q gpu.Launcher, name string, items, parts int, operands ...driver.Mem) error {
	if items == 0 {
		return nil
	}
	f.shape.items = uint64(items)
	return kernels.Launch(q, name, [3]int{min(items, maxBlocks), parts, 1}, gpuThreads, gpu.Params(f), operands...)
}

// gpuTile is the queries and the keys of a tile of the plain kernels, TILE in tiles.h.
const gpuTile = 64

// features queues the launches of j with features.
func (j *forwardJob) features(q gpu.Launcher) error {
	c, x := &j.c, j.c.extraMems()
	f := c.features(j.q.DType())
	f.shape.wantLSE = flag(j.lse.Len() > 0)
	splits, sums, states := j.lent()
	name, of, out, lse := "attention_forward_", "features", *device.Mem(&j.out), *device.Mem(&j.lse)
	if splits > 1 {
		name, f.splits, out, lse = "attention_split_", uint32(splits), sums, states
	}
	operands := []driver.Mem{out, lse, *device.Mem(&j.q), *device.Mem(&j.k), *device.Mem(&j.v), x.slopes, x.sinks, x.bias, x.tiles, x.words}
	if r := &c.cache; c.cached() {
		of = "cached"
		operands = append(operands, *device.Mem(&r.kScale), *device.Mem(&r.vScale), *device.Mem(&r.table))
		f.dtypeK, f.dtypeV = uint32(j.k.DType()), uint32(j.v.DType())
		if r.paged() {
			f.page, f.pages, f.table = uint64(r.PageSize), uint64(r.batch), uint64(r.table.Len()/c.Batch)
		}
	}
	err := f.batches(c, func(n, queries, _ int) error {
		return f.launch(q, name+of, splits*n*c.Heads*gpu.CeilDiv(queries, gpuTile), gpuPlain.parts(c.DimV), operands...)
	})
	if err != nil || splits == 1 {
		return err
	}
	return j.join(q)
}

// gpuExtras is the operands of features.
type gpuExtras struct{ slopes, sinks, bias, tiles, words driver.Mem }

func (c *Options) extraMems() gpuExtras {
	x := gpuExtras{slopes: *device.Mem(&c.Slopes), sinks: *device.Mem(&c.Sinks.X), bias: *device.Mem(&c.Bias.X)}
	if c.Mask != nil {
		words := 8 * len(c.Mask.words)
		x.words, x.tiles = device.Mem(&c.table).Slice(0, words), device.Mem(&c.table).Slice(words, 4*len(c.Mask.tiles))
	}
	return x
}

// deltaFeatures queues the launches for delta, see exactDelta.
func (j *backwardJob) deltaFeatures(q gpu.Launcher) error {
	c, x := &j.c, j.c.extraMems()
	f := c.features(j.q.DType())
	return f.batches(c, func(n, queries, _ int) error {
		return f.launch(q, "attention_delta_features", n*c.Heads*gpu.CeilDiv(queries, gpuTile), 1,
			*device.Mem(&j.delta), *device.Mem(&j.dout), *device.Mem(&j.q), *device.Mem(&j.k), *device.Mem(&j.v), *device.Mem(&j.lse),
			x.slopes, x.sinks, x.bias, x.tiles, x.words)
	})
}

// features queues the launches of j with features, after that for delta.
func (j *backwardJob) features(q gpu.Launcher) error {
	c := &j.c
	f := c.features(j.q.DType())
	x := c.extraMems()
	in := []driver.Mem{*device.Mem(&j.dout), *device.Mem(&j.q), *device.Mem(&j.k), *device.Mem(&j.v), *device.Mem(&j.lse), *device.Mem(&j.delta), x.slopes, x.bias, x.tiles, x.words}
	with := func(results ...driver.Mem) []driver.Mem { return append(results, in...) }
	return f.batches(c, func(n, queries, keys int) error {
		err := f.launch(q, "attention_backward_query_features", n*c.Heads*gpu.CeilDiv(queries, gpuTile), gpuPlain.parts(c.Dim),
			with(*device.Mem(&j.dq))...)
		if err != nil {
			return err
		}
		err = f.launch(q, "attention_backward_key_features", n*c.KVHeads*gpu.CeilDiv(keys, gpuTile), gpuPlain.parts(max(c.Dim, c.DimV)),
			with(*device.Mem(&j.dk), *device.Mem(&j.dv))...)
		if err != nil || c.Bias.Grad.Len() == 0 {
			return err
		}
		return f.launch(q, "attention_bias_features", c.biasItems(n), 1, with(*device.Mem(&c.Bias.Grad))...)
	})
}

// biasItems returns the tiles of the gradient in a bias that n sequences reach.
func (c *Options) biasItems(n int) int {
	d := c.Bias.Dims
	if d[0] == 1 {
		n = 1
	}
	return n * d[1] * gpu.CeilDiv(d[2], gpuTile) * gpu.CeilDiv(d[3], gpuTile)
}

// gpuSinks is the parameters of the kernel of the gradients in sinks, Sinks in
// featured_grads.h.
type gpuSinks struct{ heads, batch, rows, stride uint64 }

// sinks queues the gradients in sinks.
func (j *backwardJob) sinks(q gpu.Launcher) error {
	c := &j.c
	if c.Sinks.Grad.Len() == 0 {
		return nil
	}
	p := gpuSinks{uint64(c.Heads), uint64(c.batches()), uint64(c.rows()), uint64(c.SeqQ)}
	return kernels.Launch(q, "attention_sinks", [3]int{min(c.Heads, maxBlocks), 1, 1}, gpuThreads, gpu.Params(&p),
		*device.Mem(&c.Sinks.Grad), *device.Mem(&c.Sinks.X), *device.Mem(&j.lse), *device.Mem(&j.delta))
}

// gpuMinus is the parameters of the kernel that subtracts GradLSE, Minus in
// featured_backward.h.
type gpuMinus struct{ n uint64 }

// gradLSE takes the gradient in lse off delta.
func (j *backwardJob) gradLSE(q gpu.Launcher) error {
	n := j.c.GradLSE.Len()
	if n == 0 {
		return nil
	}
	p := gpuMinus{uint64(n)}
	return kernels.Launch(q, "attention_minus", gpu.Grid(n, gpuThreads), gpuThreads, gpu.Params(&p),
		*device.Mem(&j.delta), *device.Mem(&j.c.GradLSE))
}
