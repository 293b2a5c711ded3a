package conv

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/gemm"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/patch"
	"github.com/snug-ml/snug/internal/rowwise"
)

// The gradient of the weights is a product over positions: its rows are channels of x and taps, its columns channels of
// y, so that only dy is transposed, which is smaller than the patches.
//
//	for parts of the channels of x, and of y            weightProduct.item
//	  for parts of KC of the positions of all images    weightProduct.item
//	    pack B[KC][NC] from dy                          weightProduct.packY
//	    for strips of channels of x × taps              weightProduct.item
//	      pack A[strip][KC] from x                      weightProduct.packX
//	      C[strip][NC] += A·B                           gemm.Kernel.MulRows

const (
	mostStrip     = 64   // the most rows of a strip
	stripsOfItem  = 7    // the most strips of an item: their rows by nc columns are scratch
	weightItems   = 8    // below it, positions are cut too
	leastPosition = 2048 // positions of such a part
)

// weightProduct is a gradient of weights that is under way.
type weightProduct struct {
	problem
	dw, x, dy, ws snug.View
	into          snug.Into
	kern          *gemm.Kernel
	patch         *patch.Kernels
	phase         phase
	weightCuts
}

// weightCuts say how the product is cut. They depend on the shape and on the micro-kernel.
type weightCuts struct {
	stripChannels, stripTaps int // of a strip
	tapParts                 int // strips of a channel, if it has several
	strips                   int
	stripsOfItem             int
	partsM, partsN           int // parts of the strips, and of the channels of y
	itemN                    int // channels of y of an item
	parts                    int // of the positions
}

func (p *problem) cutWeights(kern *gemm.Kernel) (c weightCuts) {
	taps, most := volume(p.kernel), min(kern.StripRows(), mostStrip)
	c.tapParts, c.stripTaps = 1, taps
	if p.last {
		c.stripChannels = evenly(p.cin, mostStrip)
		c.tapParts = cpu.Chunks(taps, mostStrip/c.stripChannels)
		c.stripTaps = cpu.Chunks(taps, c.tapParts)
		c.tapParts = cpu.Chunks(taps, c.stripTaps)
	} else if c.stripChannels = min(most/taps, p.cin); c.stripChannels == 0 {
		c.stripChannels, c.tapParts = 1, cpu.Chunks(taps, most)
		c.stripTaps = cpu.Chunks(taps, c.tapParts)
		c.tapParts = cpu.Chunks(taps, c.stripTaps)
	}
	c.strips = cpu.Chunks(p.cin, c.stripChannels) * c.tapParts
	c.partsM, c.partsN = cpu.Chunks(c.strips, stripsOfItem), cpu.Chunks(p.cout, nc)
	n := p.batch * volume(p.out)
	for p.groups*c.partsM*c.partsN < weightItems && c.partsM < c.strips && n < 2*leastPosition {
		c.partsM++
	}
	c.stripsOfItem = cpu.Chunks(c.strips, c.partsM)
	c.partsM = cpu.Chunks(c.strips, c.stripsOfItem)
	c.itemN = min(cpu.Chunks(cpu.Chunks(p.cout, c.partsN), kern.NR)*kern.NR, nc)
	c.partsN = cpu.Chunks(p.cout, c.itemN)
	c.parts = max(1, min(weightItems/(p.groups*c.partsM*c.partsN), n/leastPosition))
	return c
}

// workspaceLen depends on the micro-kernel of the machine, not on the number of its cores.
func (s *Shape) workspaceLen() int {
	p := newProblem(s)
	_, parts, ok := p.cutAcrossWeights()
	if !ok {
		parts = p.cutWeights(gemm.Registry.Best()).parts
	}
	if parts > 1 {
		return parts * s.wLen()
	}
	return 0
}

// WorkspaceLen returns the workspace of [BackwardWeight] in float32 elements: none, or where w is small and x large,
// up to 8 times the length of w, for sums of parts of the positions; 0 if [Shape.Check] reports an error.
func (s Shape) WorkspaceLen() int { return s.checked((*Shape).workspaceLen) }

var weightProducts = cpu.NewTask(func(p *weightProduct, item int) { p.item(item) })

// weights computes the gradient of w.
func (p *problem) weights(dw, x, dy snug.View, into snug.Into, ws snug.View) {
	g := weightProduct{problem: *p, dw: dw, x: x, dy: dy, ws: ws, into: into, kern: gemm.Registry.Best(), patch: patch.Registry.Best()}
	g.phase = p.gatherPhase()
	if g.runAcross() || g.runDepthwise() {
		return
	}
	g.weightCuts = p.cutWeights(g.kern)
	weightProducts.Run(g.parts*p.groups*g.partsM*g.partsN, g)
	g.addParts()
}

// addParts adds up the sums of parts of the positions, if there are several.
func (g *weightProduct) addParts() {
	if g.parts > 1 {
		sumParts.Run(cpu.Chunks(g.dw.Len(), sumLen), *g)
	}
}

// partOf returns where the sums of a part of the positions go, and how.
func (g *weightProduct) partOf(part int) ([]float32, snug.Into) {
	dw := g.dw.Float32s()
	if g.parts > 1 {
		return g.ws.Float32s()[part*len(dw):][:len(dw)], snug.Into{Alpha: 1}
	}
	return dw, g.into
}

// sumLen is how many weights an item of sumParts sums.
const sumLen = 1 << 14

// sumParts adds the sums of parts of the positions.
var sumParts = cpu.NewTask(func(g *weightProduct, item int) {
	n := g.dw.Len()
	lo, hi := cpu.Chunk(n, sumLen, item)
	ws, dw := g.ws.Float32s(), g.dw.Float32s()[lo:hi]
	sum := ws[lo:hi]
	k := rowwise.Registry.Best()
	for part := 1; part < g.parts; part++ {
		k.Axpby(sum, ws[part*n+lo:part*n+hi], 1, 1)
	}
	addInto(g.into, dw, sum)
})

// addInto computes acc = Beta·acc + Alpha·x.
func addInto(o snug.Into, acc, x []float32) {
	k := rowwise.Registry.Best()
	if o.Beta == 0 {
		k.Scale(acc, x, o.Alpha)
	} else {
		k.Axpby(acc, x, o.Alpha, o.Beta)
	}
}

// strip returns strip i as a block of channels and taps.
func (g *weightProduct) strip(i int) block {
	c0, t0 := i/g.tapParts*g.stripChannels, i%g.tapParts*g.stripTaps
	return block{c0: c0, c1: min(c0+g.stripChannels, g.cin), t0: t0, t1: min(t0+g.stripTaps, volume(g.kernel))}
}

func (g *weightProduct) item(item int) {
	buf := tileScratch.Get(Scratch / 4)
	defer tileScratch.Put(buf)
	t := weightTile{weightProduct: g, buffers: newBuffers(*buf)}
	item, t.o0 = item/g.partsN, item%g.partsN*g.itemN
	t.o1 = min(t.o0+g.itemN, g.cout)
	first := item % g.partsM * g.stripsOfItem
	strips := min(g.stripsOfItem, g.strips-first)
	item /= g.partsM
	part, group := item/g.groups, item%g.groups
	t.group = group
	all := g.batch * volume(g.out)
	partLen := cpu.Chunks(all, g.parts)
	lo, hi := min(part*partLen, all), min((part+1)*partLen, all)
	t.strideC = t.o1 - t.o0
	switch {
	case lo == hi:
		clear(t.c)
	case g.takesPairs():
		t.strideC = cpu.Chunks(t.strideC, gemm.PairLines) * gemm.PairLines
		t.addPairs(first, strips, lo, hi)
	default:
		t.addStrips(first, strips, lo, hi)
	}
	t.store(first, strips, part)
}

// addStrips computes the sums of strips, from first on, over positions lo to hi-1.
func (t *weightTile) addStrips(first, strips, lo, hi int) {
	depth, size, inPlace := evenly(hi-lo, kc), volume(t.out), t.inPlace()
	if inPlace {
		depth = evenly(size, kc)
	}
	beta := float32(0)
	for n := lo; n < hi; n = t.n1 {
		t.n0, t.n1, t.listed = n, min(n+depth, hi), listKey{}
		if inPlace {
			t.n1 = min(t.n1, (n/size+1)*size)
		}
		t.packY()
		c := t.c
		for i := range strips {
			b := t.strip(first + i)
			t.kern.MulRows(b.products(), t.o1-t.o0, t.n1-t.n0, 1, t.packX(&b), t.b, beta, c, t.strideC)
			c = c[t.room(&b)*t.strideC:]
		}
		beta = 1
	}
}

// room returns how many rows of sums a strip has: whole panels of pairs.
func (t *weightTile) room(b *block) int {
	if t.takesPairs() {
		return cpu.Chunks(b.products(), gemm.PairLines) * gemm.PairLines
	}
	return b.products()
}

// leastInPlace is the least positions of an image that are worth products of their own.
const leastInPlace = 128

// inPlace says whether x is operand A where it lies, an image at a time.
func (g *weightProduct) inPlace() bool {
	size := volume(g.in)
	return g.pointwise() && !g.last && g.x.DType() == snug.F32 && size >= leastInPlace && size%pageLen != 0
}

// weightTile is the part of the product that one worker does.
type weightTile struct {
	*weightProduct
	buffers
	group  int
	o0, o1 int // channels of y
	n0, n1 int // positions, of those of all images
	listed listKey

	strideC int // of sums
}

// packY packs B: rows of positions, in panels of NR channels of y.
func (t *weightTile) packY() {
	nr, depth, size := t.kern.NR, t.n1-t.n0, volume(t.out)
	stride := t.groups * t.cout
	if t.last {
		t.kern.CopyRows(t.b, t.dy, t.n0*stride+t.group*t.cout+t.o0, depth, t.o1-t.o0, stride, nr, nr*depth)
		return
	}
	for q := t.o0; q < t.o1; q += nr {
		lines := min(nr, t.o1-q)
		for n := t.n0; n < t.n1; {
			image, at := n/size, n%size
			count := min(size-at, t.n1-n)
			from := (image*stride+t.group*t.cout+q)*size + at
			dst := t.b[(q-t.o0)*depth+(n-t.n0)*nr:]
			if t.dy.DType() == snug.F32 {
				t.kern.PackLines(dst, t.dy.Float32s()[from:], lines, count, size, nr)
			} else {
				pitch := count + rowGap
				t.patch.Copy(t.lines, t.dy, from, lines, count, size, pitch, 1)
				t.kern.PackLines(dst, t.lines, lines, count, pitch, nr)
			}
			n += count
		}
	}
}

// packX copies A for a strip: with channels first rows of positions, channel after channel; with channels last columns
// of positions, tap after tap.
func (t *weightTile) packX(b *block) gemm.Rows {
	taps, channels := b.t1-b.t0, b.c1-b.c0
	all, step := t.groups*t.cin, t.phase.axes[2].step
	size := volume(t.in)
	if t.last {
		p := positionCopy{
			block: *b, phase: t.phase, patch: t.patch, pieces: t.pieces, src: t.x, first: t.group*t.cin + b.c0, stride: all,
			dst: t.a, pitch: b.products() + rowGap, tapLen: channels, pieceLen: patch.PieceLen,
		}
		p.copy(newRuns(&t.phase, t.n0, t.n1))
		return gemm.Rows{X: t.a, Row: 1, Col: p.pitch}
	}
	if t.inPlace() {
		return gemm.Rows{X: t.x.Float32s()[(t.n0/size*all+t.group*t.cin+b.c0)*size+t.n0%size:], Row: size, Col: 1}
	}
	pitch := t.n1 - t.n0 + rowGap
	l := pieceList{from: newRuns(&t.phase, t.n0, t.n1), t0: b.t0, t1: b.t1, panel: patch.PieceLen, panelLen: patch.PieceLen, tapLen: pitch}
	l.next, l.images = taps*pitch, all*size
	first := (t.group*t.cin + b.c0) * size
	if l.same(t.listed) {
		t.patch.Gather(t.a, t.x, first, t.pieces[:t.listed.n], channels, size, l.next, step)
	} else {
		for l.list(t.pieces) {
			t.patch.Gather(t.a, t.x, first, t.pieces[:l.n], channels, size, l.next, step)
		}
		t.listed = l.key()
	}
	return gemm.Rows{X: t.a, Row: pitch, Col: 1}
}

// storeCols is how many channels of y are stored together, and storePitch the floats from one to the next while they are.
const (
	storeCols  = 32
	storePitch = mcStaged + rowGap
)

// store brings the sums of strips, from first on, to dw, or to the workspace if they are those of a part of the positions. All rows
// are transposed for some channels of y at a time, because for each channel they lie near one another in dw.
func (t *weightTile) store(first, strips, part int) {
	all, nr := volume(t.kernel), t.kern.NR
	to, into := t.partOf(part)
	rows := 0
	for i := range strips {
		b := t.strip(first + i)
		rows += t.room(&b)
	}
	for o := 0; o < t.o1-t.o0; o += storeCols {
		n := min(storeCols, t.o1-t.o0-o)
		for r := 0; r < rows; r += nr {
			t.kern.PackLines(t.a[r:], t.c[r*t.strideC+o:], min(nr, rows-r), n, t.strideC, storePitch)
		}
		for j := range n {
			sums := t.a[j*storePitch:]
			for i := range strips {
				b := t.strip(first + i)
				at := ((t.group*t.cout+t.o0+o+j)*t.cin+b.c0)*all + b.t0
				count, channels := b.products(), b.c1-b.c0
				if !t.last || all == 1 {
					addInto(into, to[at:][:count], sums[:count])
				} else {
					for tap := range b.t1 - b.t0 {
						addApart(into, to[at+tap:], all, sums[tap*channels:][:channels])
					}
				}
				sums = sums[t.room(&b):]
			}
		}
	}
}

// addApart is addInto to elements that lie step apart.
func addApart(o snug.Into, acc []float32, step int, x []float32) {
	if o.Beta == 0 {
		for i, v := range x {
			acc[i*step] = o.Alpha * v
		}
		return
	}
	for i, v := range x {
		w := &acc[i*step]
		*w = float32(o.Beta**w) + float32(o.Alpha*v)
	}
}

// sumChannels computes the gradient of a bias.
func sumChannels(db, dy snug.View, s *Shape, into snug.Into) {
	g := biasSum{db, dy, into, s.Batch, s.Out, s.positions(s.outSize()), s.Layout == ChannelsLast}
	if g.last {
		biasSums.Run(cpu.Chunks(s.Out, sumChannelsLen), g)
	} else {
		biasSums.Run(s.Out, g)
	}
}

// sumChannelsLen is how many channels an item sums where they lie side by side, and sumBlock how many elements of a
// channel are converted together.
const (
	sumChannelsLen = 64
	sumBlock       = 4096
)

// biasSum is a gradient of a bias that is under way.
type biasSum struct {
	db, dy                 snug.View
	into                   snug.Into
	batch, channels, count int
	last                   bool
}

var biasSums = cpu.NewTask(func(g *biasSum, item int) { g.item(item) })

func (g *biasSum) item(item int) {
	buf := tileScratch.Get(Scratch / 4)
	defer tileScratch.Put(buf)
	k := rowwise.Registry.Best()
	if g.last {
		lo, hi := cpu.Chunk(g.channels, sumChannelsLen, item)
		sum, row := (*buf)[:hi-lo], (*buf)[sumChannelsLen:][:hi-lo]
		clear(sum)
		for i := range g.batch * g.count {
			k.Axpby(sum, half.Floats(g.dy, i*g.channels+lo, row), 1, 1)
		}
		addInto(g.into, g.db.Float32s()[lo:hi], sum)
		return
	}
	ones, row, sum := (*buf)[:sumBlock], (*buf)[sumBlock:][:sumBlock], (*buf)[2*sumBlock:][:1]
	for i := range ones {
		ones[i] = 1
	}
	sum[0] = 0
	for b := range g.batch {
		from := (b*g.channels + item) * g.count
		for i := 0; i < g.count; i += sumBlock {
			n := min(sumBlock, g.count-i)
			sum[0] += k.Dot(half.Floats(g.dy, from+i, row[:n]), ones[:n])
		}
	}
	addInto(g.into, g.db.Float32s()[item:item+1], sum)
}
