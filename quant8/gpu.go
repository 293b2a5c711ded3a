//go:build cuda || hip || metal || emu

package quant8

import (
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/gpu"
)

var kernels = gpu.Module{Name: "quant8"}

const (
	threads = 256
	// slots is the maximum number of elements of a quantization block that a thread has.
	// slots4 is the maximum with codes of 4 bits, where twice as many threads share a
	// block.
	slots    = 16
	slots4   = slots / 2
	threads4 = 2 * threads
	// flight is the number of 16-byte accesses that a thread of a scan or of Dequantize
	// has in flight.
	flight = 4
	// maxGrid bounds the blocks of kernels that fill tables first.
	maxGrid = 1 << 11
)

var (
	quantizeNames   = gpu.ForFloats("quant8_quantize")
	dequantizeNames = gpu.ForFloats("quant8_dequantize")
	scanNames       = gpu.ForFloats("quant8_scan")
)

// team returns how many threads share a quantization block: the smallest power of two
// that covers it.
func team(block int) int { return teamOf(block, slots) }

// teamOf is team for threads with the given number of elements.
func teamOf(block, slots int) int {
	lanes := 1
	for lanes*slots < block {
		lanes *= 2
	}
	return lanes
}

// teamGrid returns the number of thread blocks that cover a number of quantization
// blocks. Each thread block has the given number of teams.
func teamGrid(blocks, teams int) [3]int {
	return [3]int{min(gpu.CeilDiv(blocks, teams), maxGrid), 1, 1}
}

func (j *quantizeJob) Grids(q gpu.Launcher) error {
	codes, absmax, src := *device.Mem(&j.codes), *device.Mem(&j.absmax), *device.Mem(&j.src)
	e := encoderOf(j.m)
	defer release(e)
	params := struct {
		n            uint64
		block, lanes uint32
		wide, _      uint32
		tree         tree
	}{n: uint64(j.src.Len()), block: uint32(j.block), lanes: uint32(team(j.block)), tree: *treeOf(e)}
	if j.block%4 == 0 {
		params.wide = gpu.Aligned(codes.Addr, src.Addr)
	}
	return kernels.Launch(q, quantizeNames.Of(uint8(j.src.DType())),
		teamGrid(j.absmax.Len(), threads/team(j.block)), threads, gpu.Params(&params), codes, absmax, src)
}

func (j *dequantizeJob) Grids(q gpu.Launcher) error {
	dst, codes, n := *device.Mem(&j.dst), *device.Mem(&j.codes), j.dst.Len()
	params := struct {
		n           uint64
		block, wide uint32
		m           Map
	}{uint64(n), uint32(j.block), gpu.Aligned(dst.Addr, codes.Addr), *j.m}
	tile := threads * flight * 16 / j.dst.DType().Size()
	return kernels.Launch(q, dequantizeNames.Of(uint8(j.dst.DType())),
		[3]int{min(gpu.CeilDiv(n, tile), maxGrid), 1, 1}, threads, gpu.Params(&params), dst, codes, *device.Mem(&j.absmax))
}

func (j *scanJob) Grids(q gpu.Launcher) error {
	v := *device.Mem(&j.v)
	params := struct {
		n, piece uint64
		scale    float32
		limit    uint32
		wide, _  uint32
	}{n: uint64(j.v.Len()), piece: uint64(j.piece()), scale: j.scale, limit: j.limit, wide: gpu.Aligned(v.Addr)}
	return kernels.Launch(q, scanNames.Of(uint8(j.v.DType())), [3]int{j.found.Len(), 1, 1}, threads, gpu.Params(&params),
		*device.Mem(&j.found), v)
}

func (j *stepJob) Grids(q gpu.Launcher) error {
	switch plain := j.plain(); {
	case len(j.joined.Rest()) > 0:
		return j.gridOfMany(q)
	case j.states == 0:
		return j.gridStateless(q, "quant8_subtract", j.tileGrid(), j.g, *device.Mem(&j.roots), *device.Mem(&j.g))
	case plain && j.bits == 8:
		return j.grid8(q)
	case plain && j.bits == 32:
		return j.grid32(q)
	}
	return j.gridRule(q)
}

// mems returns the operands of a step, and whether p and g allow wide accesses.
func (j *stepJob) mems() (mems []driver.Mem, wide uint32) {
	mems = []driver.Mem{*device.Mem(&j.p), *device.Mem(&j.g), *device.Mem(&j.state)}
	return mems, gpu.Aligned(mems[0].Addr, mems[1].Addr)
}

func (j *stepJob) grid8(q gpu.Launcher) error {
	mems, wide := j.mems()
	if j.block%4 != 0 {
		wide = 0
	}
	params := struct {
		n            uint64
		chunk, block uint32
		lanes, wide  uint32
		coef         [9]float32
		pType, gType uint32
		positive     [129]float32
		map2         Map
		tree1, tree2 tree
	}{
		n: uint64(j.p.Len()), chunk: uint32(j.chunk), block: uint32(j.block), lanes: uint32(team(j.block)), wide: wide,
		coef: j.rule.AdamFactors(), pType: uint32(j.p.DType()), gType: uint32(j.g.DType()), map2: *j.v.Values(), tree1: *treeOf(j.m), tree2: *treeOf(j.v),
	}
	copy(params.positive[:], j.m.Values()[127:])
	return kernels.Launch(q, "quant8_step8", j.plainGrid(), threads, gpu.Params(&params), mems...)
}

func (j *stepJob) grid32(q gpu.Launcher) error {
	mems, wide := j.mems()
	if j.chunk%4 != 0 || mems[2].Addr%16 != 0 {
		wide = 0
	}
	params := struct {
		n               uint64
		chunk, wide     uint32
		coef            [9]float32
		pType, gType, _ uint32
	}{
		n: uint64(j.p.Len()), chunk: uint32(j.chunk), wide: wide, coef: j.rule.AdamFactors(),
		pType: uint32(j.p.DType()), gType: uint32(j.g.DType()),
	}
	return kernels.Launch(q, "quant8_step32", j.tileGrid(), threads, gpu.Params(&params), mems...)
}

// tileGrid returns the number of thread blocks for states of 32 and 16 bits, with tiles
// of 4 elements a thread.
func (j *stepJob) tileGrid() [3]int {
	return gpu.Grid(Blocks(j.p.Len(), j.chunk)*gpu.CeilDiv(j.chunk, 4*threads), 1)
}
