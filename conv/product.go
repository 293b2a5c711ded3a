package conv

import (
	"unsafe"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/gemm"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/patch"
	"github.com/snug-ml/snug/internal/rowwise"
)

// A convolution is a matrix product whose one operand, the patches, is copied to where the micro-kernel reads it, a
// block at a time (Chetlur et al. 2014, "cuDNN: Efficient Primitives for Deep Learning"; the blocks are those of BLIS).
// With channels first, the positions are columns:
//
//	for parts of NC positions and of MC channels of y       correlation.item
//	  for parts of KC of the depth, channels of x × taps    columns: pack B[KC][NC] from x
//	    for strips of MC                                    columns: pack A[strip][KC] from w
//	      C[strip][NC] += A·B                               gemm.Kernel.MulRows
//
// With channels last they are rows, so that channels, which lie side by side, are copied together. C is y itself where
// y holds float32 and a part of it lies in rows; else it is a block of scratch.
//
// The adjoint is as many products as there are phases, each of a convolution with stride 1 and the taps that the phase
// has: no product has zeros in it that a stride would bring.

const (
	kc        = 256    // most depth of a block
	kcTaps    = 288    // and of one whose weights are transposed where they are multiplied
	ncTaps    = 224    // most columns of such a block
	nc        = 256    // most columns of a block
	depthLen  = kc + 1 // with the row of ones that the bias multiplies
	mcStaged  = 512    // most rows of a block in scratch
	mcRows    = 448    // most rows of an item whose rows are positions
	tmpRows   = 384    // rows of weights that are reordered together
	rowGap    = 16     // floats between rows that the micro-kernel reads at the same time, so that they use different cache sets
	wantItems = 8
	vectorLen = 8       // parts of the channels are multiples of it, so that whole vectors are copied
	minWork   = 1 << 21 // multiply-adds below which an item is not cut further
)

// The parts of a worker's scratch, in floats. PackLines and CopyRows may write some rows beyond the end.
const (
	sizeB      = depthLen*nc + 1024
	sizeA      = 80*(kc+2*rowGap) + 2048
	sizeC      = mcStaged * nc
	sizeTmp    = tmpRows*32 + 1024
	sizeLines  = 32*(tmpRows+rowGap) + 1024
	mostPiece  = 1024                // pieces that are listed
	mostListed = mostPiece - tmpRows // of them, where the taps are listed too
	pieceLen   = 6                   // floats of a piece
)

// Scratch is the most memory that each running worker holds, in bytes.
const Scratch = 4 * (sizeB + sizeA + sizeC + sizeTmp + sizeLines + mostPiece*pieceLen)

var tileScratch cpu.Scratch

// buffers are a worker's scratch.
type buffers struct {
	b, a, c    []float32
	tmp, lines []float32 // of weights
	pieces     []patch.Piece
}

func newBuffers(buf []float32) (b buffers) {
	b.pieces = unsafe.Slice((*patch.Piece)(unsafe.Pointer(unsafe.SliceData(buf))), mostPiece)
	buf = buf[mostPiece*pieceLen:]
	for _, part := range []struct {
		to *[]float32
		n  int
	}{{&b.b, sizeB}, {&b.a, sizeA}, {&b.c, sizeC}, {&b.tmp, sizeTmp}, {&b.lines, sizeLines}} {
		*part.to, buf = buf[:part.n], buf[part.n:]
	}
	return b
}

// ints returns the memory of pieces as integers, for loops that have no pieces.
func (b *buffers) ints() []int {
	return unsafe.Slice((*int)(unsafe.Pointer(unsafe.SliceData(b.pieces))), 3*mostPiece*8/unsafe.Sizeof(0))
}

// correlation is one computation of y from x, or as the adjoint of x from y: each element of the result is a sum over channels of the
// source and taps.
type correlation struct {
	problem
	adjoint            bool
	dst, src, w, bias  snug.View
	into               snug.Into
	results, channels  int // channels of a group, of dst and of src
	dstSize, srcSize   int // elements of an image's channel
	phasesY, phasesX   int
	byTaps             bool // weights are transposed to rows of taps, of channels side by side
	cuts                    // how it is cut into items
	kern               *gemm.Kernel
	patch              *patch.Kernels
	weightRow, weightC int // elements of w from a channel of the result to the next, and of the source
}

// cuts say how the products of all groups and phases are cut. They depend on the shape alone.
type cuts struct {
	staged         bool
	itemN          int // positions of an item
	partsP         int // parts of the positions
	itemM          int // channels of the result, of an item
	partsM         int
	perImage       bool // no item has positions of two images
	itemsOfPhase   int
	numberOfPhases int
}

var products = cpu.NewTask(func(p *correlation, item int) { p.item(item) })

// gather computes the correlation y from x.
func (p *problem) gather(y, x, w, bias snug.View, into snug.Into) {
	g := correlation{problem: *p, dst: y, src: x, w: w, bias: bias, into: into, results: p.cout, channels: p.cin}
	g.dstSize, g.srcSize = volume(p.out), volume(p.in)
	g.weightRow, g.weightC = p.cin*volume(p.kernel), volume(p.kernel)
	g.run(1, 1, 1)
}

// scatter computes its adjoint, x from y.
func (p *problem) scatter(x, y, w, bias snug.View, into snug.Into) {
	g := correlation{problem: *p, adjoint: true, dst: x, src: y, w: w, bias: bias, into: into, results: p.cin, channels: p.cout}
	g.dstSize, g.srcSize = volume(p.in), volume(p.out)
	g.weightRow, g.weightC = volume(p.kernel), p.cin*volume(p.kernel)
	g.run(p.phases(0), p.phases(1), p.phases(2))
}

func (g *correlation) run(phasesZ, phasesY, phasesX int) {
	if g.batch == 0 {
		return
	}
	g.kern, g.patch = gemm.Registry.Best(), patch.Registry.Best()
	g.phasesY, g.phasesX = phasesY, phasesX
	if phases := phasesZ * phasesY * phasesX; g.runAcross(phases) || g.runDepthwise(phases) || g.runFew() {
		return
	}
	all := volume(g.kernel)
	g.byTaps = g.adjoint && !g.last && !g.takesPairs() && all > 1 && volume(g.stride) == 1 && kcTaps/all >= g.kern.Lanes
	g.cuts = g.cut(phasesZ * phasesY * phasesX)
	products.Run(g.numberOfPhases*g.itemsOfPhase, *g)
}

// phase returns phase i.
func (g *correlation) phase(i int) (p phase) {
	if !g.adjoint {
		return g.gatherPhase()
	}
	p.axes[0] = g.scatterAxis(0, i/g.phasesX/g.phasesY)
	p.axes[1] = g.scatterAxis(1, i/g.phasesX%g.phasesY)
	p.axes[2] = g.scatterAxis(2, i%g.phasesX)
	return p
}

// small says whether items have positions of several images, because those of one would leave too much of the micro-kernel's vectors
// unused: a twentieth.
func (g *correlation) small(positions int) bool {
	lanes := g.kern.Lanes
	return g.batch > 1 && 20*cpu.Chunks(positions, lanes)*lanes >= 21*positions
}

// cut cuts the products. Phase 0 is the largest.
func (g *correlation) cut(phases int) cuts {
	first := g.phase(0)
	n := first.positions()
	c := cuts{numberOfPhases: phases, staged: g.dst.DType() != snug.F32 || !first.dense()}
	most, nr := nc, g.kern.NR
	if g.byTaps {
		most = ncTaps
	}
	if g.last {
		if most, nr = mcRows, g.kern.MR; g.takesPairs() {
			nr = gemm.PairLines
		}
		n *= g.batch
	} else {
		c.staged = c.staged || g.small(n)
		if c.perImage = !c.staged; c.staged {
			n *= g.batch
		} else if g.adjoint {
			most = most * 7 / 4 // weights are packed for each block, and B has the memory for sums
		}
	}
	mostM := g.results
	if g.last {
		mostM = nc
	} else if c.staged {
		mostM = mcStaged
	}
	c.partsP, c.partsM = cpu.Chunks(n, most), cpu.Chunks(g.results, mostM)
	images := 1
	if c.perImage {
		images = g.batch
	}
	work := float64(g.results) * float64(n) * float64(g.channels) * float64(first.taps())
	for phases*images*g.groups*c.partsP*c.partsM < wantItems && work >= 2*minWork*float64(c.partsP*c.partsM) {
		positions, results := n/c.partsP, g.results/c.partsM
		if max(positions, results) < 128 {
			break
		}
		cutsPositions := n >= g.results // another part of the positions packs all weights again, one of the results all patches
		if g.last {
			cutsPositions = positions >= 2*results // patches are copied by long pieces, weights are brought in order
		}
		if cutsPositions {
			c.partsP++
		} else {
			c.partsM++
		}
	}
	c.itemN = cpu.Chunks(cpu.Chunks(n, c.partsP), nr) * nr
	c.itemN = min(c.itemN, most)
	c.partsP = cpu.Chunks(n, c.itemN)
	c.itemM = cpu.Chunks(g.results, c.partsM)
	if g.last {
		c.itemM = min(cpu.Chunks(c.itemM, g.kern.NR)*g.kern.NR, nc)
	}
	c.partsM = cpu.Chunks(g.results, c.itemM)
	c.itemsOfPhase = images * g.groups * c.partsP * c.partsM
	return c
}

// evenly returns the size of parts of n, as few and as equal as parts of at most most can be.
func evenly(n, most int) int { return cpu.Chunks(n, cpu.Chunks(n, most)) }

// tile is the part of a product that one worker does.
type tile struct {
	*correlation
	buffers
	phase  phase
	group  int
	n0, n1 int // positions, of those of all images
	m0, m1 int // channels of the result
	listed listKey
	pairParts
}

// block is a part of the depth: channels c0 to c1-1 of the source, and taps t0 to t1-1. A block without all taps has one channel.
type block struct {
	c0, c1, t0, t1 int
	first          bool
	ones           bool // the depth has one step more, of ones, which the bias multiplies
}

func (b *block) products() int { return (b.c1 - b.c0) * (b.t1 - b.t0) }
func (b *block) depth() int {
	if b.ones {
		return b.products() + 1
	}
	return b.products()
}

// blocks returns the number of blocks of the depth, and the channels and taps of one.
func (t *tile) blocks() (parts, channels, taps int) {
	taps = t.phase.taps()
	if taps == 0 {
		return 1, 0, 0
	}
	most, multiple := kc, 1
	if t.last {
		multiple = vectorLen // to copy whole vectors
	}
	if t.byTaps {
		most, multiple = kcTaps, t.kern.Lanes
	}
	channels = min(most/taps, max(tmpRows/volume(t.kernel), 1))
	if channels == 0 {
		n := cpu.Chunks(taps, kc)
		taps = cpu.Chunks(taps, n)
		return n * t.channels, 1, taps
	}
	if channels >= multiple {
		channels = channels / multiple * multiple
	}
	parts = cpu.Chunks(t.channels, channels)
	channels = cpu.Chunks(t.channels, parts)
	if channels >= multiple {
		channels = cpu.Chunks(channels, multiple) * multiple
	}
	return cpu.Chunks(t.channels, channels), channels, taps
}

// block returns part i.
func (t *tile) block(i, parts, channels, taps int) block {
	b := block{first: i == 0, ones: t.bias.Len() > 0 && i == parts-1}
	all := t.phase.taps()
	if taps == all {
		b.c0, b.t1 = i*channels, taps
		b.c1 = min(b.c0+channels, t.channels)
		if taps == 0 {
			b.c1 = 0
		}
		return b
	}
	n := cpu.Chunks(all, taps)
	b.c0, b.t0 = i/n, i%n*taps
	b.c1, b.t1 = b.c0+1, min(b.t0+taps, all)
	return b
}

func (g *correlation) item(item int) {
	buf := tileScratch.Get(Scratch / 4)
	defer tileScratch.Put(buf)
	t := tile{correlation: g, buffers: newBuffers(*buf), phase: g.phase(item / g.itemsOfPhase)}
	item %= g.itemsOfPhase
	item, t.m0 = item/g.partsM, item%g.partsM*g.itemM
	t.m1 = min(t.m0+g.itemM, g.results)
	item, t.n0 = item/g.partsP, item%g.partsP*g.itemN
	item, t.group = item/g.groups, item%g.groups
	n := t.phase.positions()
	if !g.perImage {
		n *= g.batch
	}
	t.n1 = min(t.n0+g.itemN, n)
	if t.n0 >= t.n1 {
		return
	}
	if g.perImage {
		t.n0, t.n1 = t.n0+item*n, t.n1+item*n
	}
	switch {
	case g.takesPairs() && g.last:
		t.rowsOfPairs()
	case g.takesPairs():
		t.columnsOfPairs()
	case g.last:
		t.rows()
	default:
		t.columns()
	}
}

// image returns the first element of a channel of an image, of a vector with the channels of all groups first.
func (t *tile) image(b, channel, channels, size int) int {
	return (b*t.groups*channels + t.group*channels + channel) * size
}

// putRows sets rows of the result, from element at on, rowDst apart, to beta times themselves plus rows of cols sums,
// stride apart. Elements of a row of the result lie step apart.
func (t *tile) putRows(at, step, rowDst int, x []float32, rows, cols, stride int) {
	if t.dst.DType() == snug.F32 && t.into.Beta == 0 {
		to := t.dst.Float32s()[at:]
		if step == 1 {
			t.patch.Copy(to, snug.SliceView(x), 0, rows, cols, stride, rowDst, 1)
		} else {
			t.patch.Spread(to, x, rows, cols, stride, rowDst, step)
		}
		return
	}
	if t.into.Beta == 0 && step == 1 {
		t.patch.Store(t.dst, at, x, rows, cols, stride, rowDst)
		return
	}
	if t.dst.DType() == snug.BF16 && t.into.Beta == 0 {
		to := t.dst.BFloat16s()[at:]
		for i := range rows {
			row := to[i*rowDst:]
			for j, v := range x[i*stride:][:cols] {
				row[j*step] = snug.ToBFloat16(v)
			}
		}
		return
	}
	for i := range rows {
		t.put(at+i*rowDst, step, x[i*stride:][:cols])
	}
}

// put sets elements of the result from element at on, step apart, to beta times themselves plus x.
func (t *tile) put(at, step int, x []float32) {
	if step != 1 {
		t.putApart(at, step, x)
		return
	}
	beta := t.into.Beta
	if t.dst.DType() == snug.F32 {
		to := t.dst.Float32s()[at:][:len(x)]
		rowwise.Registry.Best().Axpby(to, x, 1, beta)
		return
	}
	for i := 0; i < len(x); i += len(t.lines) {
		part := x[i:min(i+len(t.lines), len(x))]
		if beta != 0 {
			old := t.lines[:len(part)]
			half.Load(old, t.dst, at+i)
			rowwise.Registry.Best().Axpby(part, old, beta, 1)
		}
		half.Store(t.dst, at+i, part)
	}
}

func (t *tile) putApart(at, step int, x []float32) {
	beta := t.into.Beta
	switch t.dst.DType() {
	case snug.F32:
		putApart(t.dst.Float32s()[at:], step, x, beta, func(x float32) float32 { return x }, func(x float32) float32 { return x })
	case snug.F16:
		putApart(t.dst.Float16s()[at:], step, x, beta, half.F16ToFloat32, half.Float32ToF16)
	case snug.BF16:
		putApart(t.dst.BFloat16s()[at:], step, x, beta, snug.BFloat16.Float32, snug.ToBFloat16)
	}
}

func putApart[T any](to []T, step int, x []float32, beta float32, load func(T) float32, store func(float32) T) {
	if beta == 0 {
		for i, v := range x {
			to[i*step] = store(v)
		}
		return
	}
	for i, v := range x {
		to[i*step] = store(float32(beta*load(to[i*step])) + v)
	}
}
