//go:build cuda || hip || metal || emu

package attention

import (
	"errors"
	"fmt"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/gpu"
)

var kernels = gpu.Module{Name: "attention"}

// gpuThreads is the size of every block.
const gpuThreads = 256

// maxBlocks is the most blocks of a launch in one direction; with more items, a block
// handles several.
const maxBlocks = 1 << 30

// gpuKernels are the entry points of one way to compute attention.
type gpuKernels struct {
	forward, backwardQuery, backwardKey gpu.Floats
	queries, gradQueries, keys          int // of a tile of results: of out, of dq, of dk and dv
	columns                             int // of results that a block computes

	split gpu.Floats // forward, of one split of the keys; none for gpuPlain, whose splits are for the kernels with features
	step  int        // keys that forward takes at a time
}

// gpuPlain takes everything but features, with the sizes of tiles.h.
var gpuPlain = gpuKernels{
	gpu.ForFloats("attention_forward"), gpu.ForFloats("attention_backward_query"), gpu.ForFloats("attention_backward_key"),
	64, 64, 64, 128, gpu.Floats{}, gpuTile,
}

// gpuMend computes again what the matrix units could not. It has the types of those.
var gpuMend = gpuKernels{
	gpu.ForFloats("attention_mend_forward"), gpu.ForFloats("attention_mend_backward_query"), gpu.ForFloats("attention_mend_backward_key"),
	gpuPlain.queries, gpuPlain.gradQueries, gpuPlain.keys, gpuPlain.columns, gpu.Floats{}, gpuTile,
}

// gpuUnits are the kernels on matrix units, by the most columns of a row, with the sizes of
// units_entries.h.
var gpuUnits = [...]*gpuKernels{unitKernels(64, 128, 64), unitKernels(128, 128, 48), unitKernels(256, 64, 48)}

func unitKernels(columns, gradQueries, step int) *gpuKernels {
	suffix := fmt.Sprintf("_unit%d", columns)
	return &gpuKernels{
		gpu.ForFloats("attention_forward" + suffix), gpu.ForFloats("attention_backward_query" + suffix),
		gpu.ForFloats("attention_backward_key" + suffix), 128, gradQueries, 64, columns,
		gpu.ForFloats("attention_split" + suffix), step,
	}
}

// parts returns the blocks that share results of n columns.
func (k *gpuKernels) parts(n int) int { return gpu.CeilDiv(n, k.columns) }

var deltaNames = gpu.ForFloats("attention_delta")

// gpuKernelsFor returns the kernels for tensors of c: on matrix units if all rows are of
// 16-bit elements, start and end at multiples of 16 bytes and are not too long.
func gpuKernelsFor(c *Options, tensors ...*snug.View) *gpuKernels {
	fits := slices.IndexFunc(gpuUnits[:], func(k *gpuKernels) bool { return max(c.Dim, c.DimV) <= k.columns })
	if fits < 0 || c.Dim%8 != 0 || c.DimV%8 != 0 || tensors[0].DType() == snug.F32 {
		return &gpuPlain
	}
	for _, v := range tensors {
		if device.Mem(v).Addr%16 != 0 {
			return &gpuPlain
		}
	}
	for _, s := range [...]Strides{c.Q, c.K, c.V, c.Out} {
		if s.Batch%8 != 0 || s.Head%8 != 0 || s.Row%8 != 0 {
			return &gpuPlain
		}
	}
	return gpuUnits[fits]
}

// gpuShape is the parameters of all kernels, Shape in shape.h.
type gpuShape struct {
	items, rows           uint64
	heads, kvHeads, group uint64
	seqQ, seqK            int64
	shift                 int64
	q, k, v, out          gpuStrides
	dim, dimV             uint32
	causal, wantLSE       uint32
	mend, mendKeys        uint32
	scale, scale2         float32
}

type gpuStrides struct{ batch, head, row uint64 }

func (s Strides) gpu() gpuStrides {
	return gpuStrides{uint64(s.Batch), uint64(s.Head), uint64(s.Row)}
}

// gpu returns the parameters of launches for c, resolved, without items.
func (c *Options) gpu() gpuShape {
	s := gpuShape{
		rows: uint64(c.queries()), heads: uint64(c.Heads), kvHeads: uint64(c.KVHeads), group: uint64(c.Heads / max(c.KVHeads, 1)),
		seqQ: int64(c.SeqQ), seqK: int64(c.SeqK), shift: int64(c.shift(c.SeqQ, c.SeqK)),
		q: c.Q.gpu(), k: c.K.gpu(), v: c.V.gpu(), out: c.Out.gpu(),
		dim: uint32(c.Dim), dimV: uint32(c.DimV), scale: c.Scale, scale2: c.scale2(),
	}
	if c.Causal {
		s.causal = 1
	}
	return s
}

// mendedTiles is the items that a block takes at once where it looks for what to compute again, MENDED in hidden.h.
const mendedTiles = 8

// launch queues a launch with a block for every item and every part of columns. It
// queues nothing without items.
func (s gpuShape) launch(q gpu.Launcher, name string, items, parts int, operands ...driver.Mem) error {
	if items == 0 {
		return nil
	}
	s.items = uint64(items)
	blocks := items
	if s.mend != 0 {
		blocks = gpu.CeilDiv(items, mendedTiles)
	}
	return kernels.Launch(q, name, [3]int{min(blocks, maxBlocks), parts, 1}, gpuThreads, gpu.Params(&s), operands...)
}

// checkKernels returns an error for options of c that the kernels do not support.
func (c *Options) checkKernels() error {
	if c.Score != nil {
		return fmt.Errorf("attention: Score is for the cpu: %w", snug.ErrDevice)
	}
	return nil
}

// gpuPass is a job that runs on one of several sets of kernels.
type gpuPass interface {
	launch(q gpu.Launcher, k *gpuKernels, s gpuShape) error
	// hopper returns the queries and the keys of the tiles that the kernels multiply.
	hopper(q gpu.Launcher, h *hopper, s gpuShape) (queries, keys int, err error)
}

// run queues the launches of j with k, or with the device's replacement for k. Matrix units
// give wrong results for NaNs and infinities that a mask hides. The kernels of gpuMend then
// recompute the affected results and leave the others.
func (s gpuShape) run(q gpu.Launcher, c *Options, k *gpuKernels, j gpuPass) error {
	if !gpu.HasUnits(q) {
		k = &gpuPlain
	}
	queries, keys, err := 0, 0, gpu.ErrTensorMap
	if h := hopperFor(q, c, k); h != nil {
		queries, keys, err = j.hopper(q, h, s)
	}
	if errors.Is(err, gpu.ErrTensorMap) {
		queries, keys = max(k.queries, k.gradQueries), k.keys
		err = j.launch(q, k, s)
	}
	if err != nil || k == &gpuPlain {
		return err
	}
	return s.mended(q, j, queries, keys)
}

// mended queues the launch that corrects the results of causal tiles of the given size, computed on matrix units.
func (s gpuShape) mended(q gpu.Launcher, j gpuPass, queries, keys int) error {
	if s.causal == 0 {
		return nil
	}
	s.mend, s.mendKeys = uint32(queries), uint32(keys)
	return j.launch(q, &gpuMend, s)
}

// Grids implements [gpu.Job].
func (j *forwardJob) Grids(q gpu.Launcher) error {
	if err := j.c.checkKernels(); err != nil {
		return err
	}
	c, k := j.kernelsFor(q)
	of := *j
	of.c = c
	return of.grids(q, k)
}

// grids queues the launches of j, whose Options are those that kernelsFor returned with k.
func (j *forwardJob) grids(q gpu.Launcher, k *gpuKernels) error {
	c := &j.c
	splits, _, _ := j.lent()
	if c.featured() || splits > 1 && k == &gpuPlain {
		return j.features(q)
	}
	s := c.gpu()
	s.wantLSE = flag(j.lse.Len() > 0)
	if splits == 1 {
		return s.run(q, c, k, j)
	}
	if err := j.launchSplits(q, k, s); err != nil {
		return err
	}
	if err := j.join(q); err != nil {
		return err
	}
	return s.mended(q, j, k.queries, k.keys)
}

// launch implements gpuPass.
func (j *forwardJob) launch(q gpu.Launcher, k *gpuKernels, s gpuShape) error {
	c := &j.c
	return s.launch(q, k.forward.Of(uint8(j.q.DType())), c.Batch*c.Heads*gpu.CeilDiv(c.SeqQ, k.queries), k.parts(c.DimV),
		*device.Mem(&j.out), *device.Mem(&j.lse), *device.Mem(&j.q), *device.Mem(&j.k), *device.Mem(&j.v))
}

// Grids implements [gpu.Job].
func (j *backwardJob) Grids(q gpu.Launcher) error {
	c := &j.c
	if err := c.checkKernels(); err != nil {
		return err
	}
	s := c.gpu()
	var err error
	if c.exactDelta() {
		err = j.deltaFeatures(q)
	} else {
		err = s.launch(q, deltaNames.Of(uint8(j.q.DType())), gpu.CeilDiv(c.queries(), gpuThreads/32), 1,
			*device.Mem(&j.delta), *device.Mem(&j.out), *device.Mem(&j.dout))
	}
	if err == nil {
		err = j.gradLSE(q)
	}
	if err != nil {
		return err
	}
	if c.featured() {
		if err := j.features(q); err != nil {
			return err
		}
		return j.sinks(q)
	}
	return s.run(q, c, gpuKernelsFor(c, &j.dq, &j.dk, &j.dv, &j.dout, &j.q, &j.k, &j.v, &j.out), j)
}

// launch implements gpuPass.
func (j *backwardJob) launch(q gpu.Launcher, k *gpuKernels, s gpuShape) error {
	c, dtype := &j.c, uint8(j.q.DType())
	dout, lse, delta := *device.Mem(&j.dout), *device.Mem(&j.lse), *device.Mem(&j.delta)
	err := s.launch(q, k.backwardQuery.Of(dtype), c.Batch*c.Heads*gpu.CeilDiv(c.SeqQ, k.gradQueries), k.parts(c.Dim),
		*device.Mem(&j.dq), dout, *device.Mem(&j.q), *device.Mem(&j.k), *device.Mem(&j.v), lse, delta)
	if err != nil {
		return err
	}
	return s.launch(q, k.backwardKey.Of(dtype), c.Batch*c.KVHeads*gpu.CeilDiv(c.SeqK, k.keys), k.parts(max(c.Dim, c.DimV)),
		*device.Mem(&j.dk), *device.Mem(&j.dv), dout, *device.Mem(&j.q), *device.Mem(&j.k), *device.Mem(&j.v), lse, delta)
}
