//go:build cuda || hip || metal || emu

package attention

import (
	"fmt"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/gpu"
)

// hopperKernels are the kernels for compute capability 9.0, which have their own image.
var hopperKernels = gpu.Module{Name: "attention_sm90a", Entries: hopperEntries()}

// hopperPass is a kernel of hopper.h. Its blocks have groups of 128 threads; one group
// copies. A block owns a tile of rows, and tiles of step rows pass through its memory. The
// numbers are the same as in attention_sm90a.cu.
type hopperPass struct {
	names              gpu.Floats
	groups, rows, step int
}

// hopper are the kernels for rows of at most so many columns.
type hopper struct {
	columns                             int
	forward, backwardQuery, backwardKey hopperPass
}

var hoppers = [...]hopper{
	hopperOf(64, [3]hopperPass{{groups: 3, rows: 192, step: 128}, {groups: 2, rows: 128, step: 128}, {groups: 2, rows: 128, step: 96}}),
	hopperOf(128, [3]hopperPass{{groups: 2, rows: 128, step: 128}, {groups: 2, rows: 128, step: 96}, {groups: 2, rows: 128, step: 64}}),
	hopperOf(256, [3]hopperPass{{groups: 2, rows: 128, step: 80}, {groups: 2, rows: 128, step: 48}, {groups: 2, rows: 64, step: 64}}),
}

func hopperOf(columns int, passes [3]hopperPass) hopper {
	for i, name := range [...]string{"forward", "backward_query", "backward_key"} {
		passes[i].names = gpu.ForFloats(fmt.Sprintf("attention_%s_hopper%d", name, columns))
	}
	return hopper{columns, passes[0], passes[1], passes[2]}
}

// own are the tiles that a block of each pass keeps of its own, in the order of hopperOf.
const ownForward, ownQuery, ownKey = 1, 2, 2

// hopperEntries returns the kernels, which are of the two 16-bit types.
func hopperEntries() []gpu.Entry {
	var entries []gpu.Entry
	for i := range hoppers {
		h := &hoppers[i]
		for _, of := range [...]struct {
			pass *hopperPass
			own  int
		}{{&h.forward, ownForward}, {&h.backwardQuery, ownQuery}, {&h.backwardKey, ownKey}} {
			for _, name := range of.pass.names[1:] {
				entries = append(entries, gpu.Entry{Name: name, Shared: of.pass.shared(h, of.own)})
			}
		}
	}
	return entries
}

// hopperFor returns the kernels for tensors of c that fit matrix units, or nil: their
// copies count in 32 bits, and their softmax takes a positive scale.
func hopperFor(q gpu.Launcher, c *Options, k *gpuKernels) *hopper {
	if k == &gpuPlain || !gpu.Hopper(q, &hopperKernels) || !(c.scale2() > 0) || min(c.Batch, c.KVHeads, c.SeqQ, c.SeqK, c.Dim, c.DimV) < 1 {
		return nil
	}
	tiles := c.Batch * max(c.Heads*gpu.CeilDiv(c.SeqQ, 64), c.KVHeads*gpu.CeilDiv(c.SeqK, 64))
	if max(c.SeqQ, c.SeqK) > math.MaxInt32-1<<10 || tiles > maxBlocks {
		return nil
	}
	for _, s := range [...]Strides{c.Q, c.K, c.V, c.Out} {
		if int64(max(s.Batch, s.Head, s.Row)) >= 1<<39 {
			return nil
		}
	}
	for i := range hoppers {
		if h := &hoppers[i]; h.columns == k.columns {
			return h
		}
	}
	return nil
}

// tensorMap returns the map of an operand for copies of tiles of so many rows.
func tensorMap(v *snug.View, s Strides, dim, seq, heads, batch, rows int) gpu.TensorMap {
	m := gpu.TensorMap{
		Mem: *device.Mem(v), Rows: rows,
		Dims: [4]int{dim, seq, heads, batch}, Strides: [3]int{2 * s.Row, 2 * s.Head, 2 * s.Batch},
	}
	for i, n := range m.Dims[1:] {
		if n == 1 { // the stride says nothing, and may be what the driver refuses
			m.Strides[i] = 2 * dim
		}
	}
	return m
}

func (c *Options) queryMap(v *snug.View, rows int) gpu.TensorMap {
	return tensorMap(v, c.Q, c.Dim, c.SeqQ, c.Heads, c.Batch, rows)
}

func (c *Options) keyMap(v *snug.View, rows int) gpu.TensorMap {
	return tensorMap(v, c.K, c.Dim, c.SeqK, c.KVHeads, c.Batch, rows)
}

func (c *Options) valueMap(v *snug.View, rows int) gpu.TensorMap {
	return tensorMap(v, c.V, c.DimV, c.SeqK, c.KVHeads, c.Batch, rows)
}

func (c *Options) outMap(v *snug.View, rows int) gpu.TensorMap {
	return tensorMap(v, c.Out, c.DimV, c.SeqQ, c.Heads, c.Batch, rows)
}

// shared returns the bytes of block memory: `own` tiles that the block owns, two stages of two
// passing tiles, and numbers and barriers.
func (p *hopperPass) shared(h *hopper, own int) int {
	return 2*h.columns*(own*p.rows+4*p.step) + 16*p.step + 128
}

// launch queues a launch with a block for each of the tiles of a tensor's heads.
func (p *hopperPass) launch(q gpu.Launcher, h *hopper, s gpuShape, dtype uint8, heads, seq, own int, maps []gpu.TensorMap, operands ...driver.Mem) error {
	s.items = uint64(heads * gpu.CeilDiv(seq, p.rows))
	return q.LaunchGrid(&gpu.Launch{
		Module: &hopperKernels, Func: p.names.Of(dtype), Blocks: [3]int{int(s.items), 1, 1}, Threads: 128 * (p.groups + 1),
		Maps: maps, Operands: operands, Params: gpu.Params(&s), Shared: p.shared(h, own),
	})
}

// hopper implements gpuPass.
func (j *forwardJob) hopper(q gpu.Launcher, h *hopper, s gpuShape) (queries, keys int, err error) {
	c, p := &j.c, &h.forward
	maps := []gpu.TensorMap{c.queryMap(&j.q, p.rows), c.keyMap(&j.k, p.step), c.valueMap(&j.v, p.step)}
	return p.rows, 1, p.launch(q, h, s, uint8(j.q.DType()), c.Batch*c.Heads, c.SeqQ, ownForward, maps, *device.Mem(&j.out), *device.Mem(&j.lse))
}

// hopper implements gpuPass.
func (j *backwardJob) hopper(q gpu.Launcher, h *hopper, s gpuShape) (queries, keys int, err error) {
	c, dtype, lse, delta := &j.c, uint8(j.q.DType()), *device.Mem(&j.lse), *device.Mem(&j.delta)
	maps := func(queries, keys int) []gpu.TensorMap {
		return []gpu.TensorMap{c.outMap(&j.dout, queries), c.queryMap(&j.q, queries), c.keyMap(&j.k, keys), c.valueMap(&j.v, keys)}
	}
	p := &h.backwardQuery
	err = p.launch(q, h, s, dtype, c.Batch*c.Heads, c.SeqQ, ownQuery, maps(p.rows, p.step), *device.Mem(&j.dq), lse, delta)
	if err != nil {
		return 0, 0, err
	}
	p = &h.backwardKey
	err = p.launch(q, h, s, dtype, c.Batch*c.KVHeads, c.SeqK, ownKey, maps(p.step, p.rows), *device.Mem(&j.dk), *device.Mem(&j.dv), lse, delta)
	return h.backwardQuery.rows, p.rows, err
}
