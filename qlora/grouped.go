package qlora

import (
	"fmt"
	"math"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/nibble"
)

// This file has integers in groups with a scale and a zero point, as GPTQ and AWQ make them:
//
//	x = (q - zero)·scale
//
// In memory a weight is row by row. 4 bits are two codes a byte in the order of NF4, and 8 bits a byte. Where all zero points are 8, the codes
// of 4 bits are those of the values -8 to 7, and the scales are absmax: every loop for NF4 takes them.

// middle is the zero point of the values of codes of 4 bits.
const middle = 8

// int4 are the values of codes of 4 bits.
var int4 = func() *nibble.Format {
	var v [16]float32
	for c := range v {
		v[c] = float32(c - middle)
	}
	return nibble.NewFormat(v)
}()

// shifted are the values of codes of 4 bits less a zero point.
var shifted = func() (formats [2 * middle]*nibble.Format) {
	for zero := range formats {
		var v [16]float32
		for c := range v {
			v[c] = float32(c - zero)
		}
		formats[zero] = nibble.NewFormat(v)
	}
	return formats
}()

// groups are what a Grouped weight has beside codes and scales.
type groups struct {
	wide   bool // a code is a byte
	zeros  bool // zero points are in memory.codes, one for each scale; else all are middle
	across int  // scales of a row
	// With act order, columns lie in the order of their groups: order has their places in the matrix. It is nil without.
	order []int32
	// columns are the scales of columns whose groups are no blocks, else nil.
	columns []int32
}

// plain reports whether the weight is decoded as NF4 is.
func (g *groups) plain() bool { return !g.wide && !g.zeros && g.columns == nil && g.order == nil }

// blocks reports whether the loops over codes and blocks of 4 bits take the weight, with what groupedFew adds.
func (g *groups) blocks(block int) bool { return !g.wide && g.columns == nil && block%nibble.Step == 0 }

// decodeGroups returns the job that decodes whole rows to dst, those from element begin on.
func (w *Weight) decodeGroups(dst snug.View, begin int, m memory) groupsJob {
	in := max(1, w.shape[1])
	return groupsJob{w: w, dst: dst, packed: m.packed, scales: m.absmax, zeros: m.codes, first: begin / in, in: in}
}

// groupsJob decodes rows of a Grouped weight to dst, which begins with row first. The others have all rows.
type groupsJob struct {
	w                          *Weight
	dst, packed, scales, zeros snug.View
	first, in                  int
}

func (j *groupsJob) Kernel() string { return "qlora.groups" }

func (j *groupsJob) Operands(yield func(*driver.Mem)) {
	device.Each(yield, &j.dst, &j.packed, &j.scales, &j.zeros)
}

func (j groupsJob) Run() { groupsTask.Run(cpu.Chunks(j.dst.Len()/j.in, j.step()), j) }

// step returns how many rows an item decodes.
func (j *groupsJob) step() int { return max(1, grain/j.in) }

// ones are scales that change nothing.
var ones = slices.Repeat([]float32{1}, grain/nibble.Step)

var groupsTask = cpu.NewTask(func(j *groupsJob, item int) {
	lo, hi := cpu.Chunk(j.dst.Len()/j.in, j.step(), item)
	g := j.w.groups
	tile := tiles.Get(2*j.in + g.across)
	defer tiles.Put(tile)
	for r := lo; r < hi; r++ {
		to := part(j.dst, r*j.in, (r+1)*j.in)
		switch {
		case !g.blocks(j.w.block):
			j.row((*tile)[:j.in], (*tile)[j.in:][:g.across], j.first+r)
			half.Store(to, 0, (*tile)[:j.in])
		case g.order == nil:
			j.blocks(to, j.first+r)
		default:
			x, sorted := (*tile)[:j.in], (*tile)[j.in:][:j.in]
			j.blocks(snug.SliceView(sorted), j.first+r)
			for k, at := range g.order {
				x[at] = sorted[k]
			}
			half.Store(to, 0, x)
		}
	}
})

// blocks decodes a row of blocks, as many at a time as have one zero point.
func (j *groupsJob) blocks(to snug.View, row int) {
	g, block := j.w.groups, j.w.block
	packed, scales := snug.Host[uint8](j.packed)[row*j.in/2:], j.scales.Float32s()[row*g.across:][:g.across]
	if !g.zeros {
		nibble.Decode(to, packed[:j.in/2], scales, block, int4, false)
		return
	}
	zeros := snug.Host[uint8](j.zeros)[row*g.across:][:g.across]
	for lo, hi := 0, 0; lo < len(zeros); lo = hi {
		for hi = lo + 1; hi < len(zeros) && zeros[hi] == zeros[lo]; hi++ {
		}
		nibble.Decode(part(to, lo*block, hi*block), packed[lo*block/2:hi*block/2], scales[lo:hi], block, shifted[zeros[lo]], false)
	}
}

// row decodes a row of another kind. minus has space for the zero points.
func (j *groupsJob) row(x, minus []float32, row int) {
	g := j.w.groups
	s, zeros := j.scales.Float32s()[row*g.across:][:g.across], snug.Host[uint8](j.zeros)
	for i := range minus {
		minus[i] = 0
		if g.zeros {
			minus[i] = float32(zeros[row*g.across+i])
			if !g.wide {
				minus[i] -= middle
			}
		}
	}
	g.codes(x, snug.Host[uint8](j.packed), row*j.in)
	if g.columns != nil {
		for i, at := range g.columns {
			x[i] = (x[i] - minus[at]) * s[at]
		}
		return
	}
	for i, scale := range s {
		part, zero := x[i*j.w.block:][:j.w.block], minus[i]
		for k, v := range part {
			part[k] = (v - zero) * scale
		}
	}
}

// codes writes the values of codes from element lo on, a multiple of 32.
func (g *groups) codes(x []float32, packed []uint8, lo int) {
	if g.wide {
		for i, c := range packed[lo:][:len(x)] {
			x[i] = float32(c)
		}
		return
	}
	k := nibble.Registry.Best()
	for at := 0; at < len(x); at += grain {
		n := min(grain, len(x)-at)
		k.DecodeF32(x[at:at+n], packed[(lo+at)/2:(lo+at+n)/2], ones[:n/nibble.Step], nibble.Step, int4)
	}
}

// Groups say how the tensors of [Grouped] weights are to be read. A model's config.json says it; the files do not.
type Groups struct {
	Bits   int    // of a code: 2, 4 or 8; 4 in AWQ, 4 or 8 in Packed, and 8 in Integers
	Size   int    // inputs that share a scale, -1 for all of them
	Layout Layout // the order of the codes
	// Ordered says that the file has which group each input is of (desc_act of GPTQ): without it that is an error.
	Ordered bool
	// Zeroed says that a file of Packed or Integers has zero points: without them that is an error.
	Zeroed bool
}

// Layout is the order of codes of [Grouped] weights in files. Elements of packed tensors are int32, the first code in their lowest bits.
type Layout uint8

// The layouts. A weight called module.weight is the tensors module.qweight, module.qzeros, module.scales and, of GPTQ, module.g_idx.
const (
	GPTQ   Layout = iota + 1 // codes follow one another along inputs; zero points are stored less 1 (AutoGPTQ, checkpoint_format gptq)
	GPTQv2                   // the same with zero points as they are (GPTQModel, checkpoint_format gptq_v2)
	AWQ                      // codes lie along outputs, in the order 0, 2, 4, 6, 1, 3, 5, 7 (AutoAWQ, version gemm)

	// Those of compressed-tensors. A weight is the tensors module.weight_packed or module.weight, module.weight_scale and, where the file
	// has them, module.weight_zero_point, module.weight_g_idx and module.weight_shape. Scales and zero points are of the groups of each
	// output, or one for all.
	Packed   // unsigned codes of 4 or 8 bits follow one another along inputs, in int32 (pack-quantized)
	Integers // codes and zero points are int8 (int-quantized)
)

// layoutBits are the bits of codes that layouts have.
var layoutBits = map[Layout][]int{GPTQ: {2, 4, 8}, GPTQv2: {2, 4, 8}, AWQ: {4}, Packed: {4, 8}, Integers: {8}}

// SetGroups lets [Weights.Load] read Grouped weights. Call it before the first Load. The error wraps [snug.ErrConfig].
func (w *Weights) SetGroups(g Groups) error {
	switch {
	case w == nil || w.set == nil:
		return fmt.Errorf("qlora: SetGroups: the Weights is nil, or was not made by OpenWeights or NewWeights: %w", snug.ErrConfig)
	case g.Layout < GPTQ || g.Layout > Integers:
		return fmt.Errorf("qlora: SetGroups: layout %d, want GPTQ, GPTQv2, AWQ, Packed or Integers: %w", g.Layout, snug.ErrConfig)
	case !slices.Contains(layoutBits[g.Layout], g.Bits):
		return fmt.Errorf("qlora: SetGroups: codes of %d bits, want one of %v: %w", g.Bits, layoutBits[g.Layout], snug.ErrConfig)
	case g.Size != -1 && (g.Size < 1 || g.Size > math.MaxInt32):
		return fmt.Errorf("qlora: SetGroups: groups of %d inputs, want 1 or more, or -1 for all: %w", g.Size, snug.ErrConfig)
	}
	w.groups = g
	return nil
}
