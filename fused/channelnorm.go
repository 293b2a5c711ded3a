package fused

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/rowwise"
)

// ChannelNorm is [LayerNorm] over the channels of each position, which ConvNeXt and others call LayerNorm2d:
//
//	mean[b, p] = Σ over c of x[b, c, p] / Channels
//	rstd[b, p] = 1 / √(Σ over c of (x[b, c, p] − mean[b, p])² / Channels + eps)
//	out[b, c, p] = (x[b, c, p] − mean[b, p])·rstd[b, p]·gamma[c] + beta[c]
//
// Where the channels are last it is LayerNorm of Batch·Positions rows.
//
// Shapes: x and out as s says; gamma and beta [Channels]; mean and rstd [Batch, Positions], which [ChannelNormBackward] needs, 8
// bytes a position.
//
// Aliasing: out may be x. The variance is taken as in [GroupNorm]. eps must be finite and not negative. Each worker holds 140 KiB.
func ChannelNorm[V snug.Vector, L snug.Vector32](out V, mean, rstd L, x, gamma, beta V, s Image, eps float32) error {
	return channelNorm(snug.ViewOf(out), snug.ViewOf(mean), snug.ViewOf(rstd), snug.ViewOf(x), snug.ViewOf(gamma), snug.ViewOf(beta), s, eps)
}

// ChannelNormBackward computes the gradients of [ChannelNorm] from the gradient dy of its output, its input x, and the mean and
// rstd that it left, by the equations of [LayerNormBackward].
//
// Shapes: dx, dy and x as s says; mean and rstd [Batch, Positions]; gamma, dgamma and dbeta [Channels]. With frozen parameters
// dgamma and dbeta may be empty: []float32(nil). ws has at least ChannelNormWorkspaceLen(s) elements.
//
// Aliasing: dx may be dy. Each worker holds 24 KiB.
func ChannelNormBackward[V snug.Vector, G, L snug.Vector32](dx V, dgamma, dbeta G, dy, x V, mean, rstd L, gamma V, s Image, into GradsInto, ws L) error {
	return channelNormBackward(snug.ViewOf(dx), snug.ViewOf(dgamma), snug.ViewOf(dbeta), snug.ViewOf(dy), snug.ViewOf(x),
		snug.ViewOf(mean), snug.ViewOf(rstd), snug.ViewOf(gamma), s, into, snug.ViewOf(ws))
}

// ChannelNormWorkspaceLen returns the workspace of [ChannelNormBackward] in float32 elements: 4 for each channel of each of at
// most 64 parts of the positions, or LayerNorm's where the channels are last. It is 0 for a shape without elements.
func ChannelNormWorkspaceLen(s Image) int {
	switch s = s.rows(); {
	case s.Len() == 0:
		return 0
	case s.ChannelsLast:
		return LayerNormWorkspaceLen(s.Batch*s.Positions, s.Channels)
	}
	return product(4, product(cpu.Chunks(s.tiles(), s.partTiles()), s.Channels))
}

// tileWidth is how many positions of all channels a worker does at a time, so that the caches hold them.
func (s *Image) tileWidth() int { return min(max(itemLen/s.Channels, 64), joinedLen) }

// tiles returns the number of tiles of all images, partTiles how many of them are a part of the sums for the parameters.
func (s *Image) tiles() int     { return s.Batch * cpu.Chunks(s.Positions, s.tileWidth()) }
func (s *Image) partTiles() int { return max(1, cpu.Chunks(s.tiles(), maxParts)) }

// tile returns the image of a tile, and its positions from lo to hi-1.
func (s *Image) tile(tile int) (b, lo, hi int) {
	each := cpu.Chunks(s.Positions, s.tileWidth())
	lo, hi = cpu.Chunk(s.Positions, s.tileWidth(), tile%each)
	return tile / each, lo, hi
}

func channelNorm(out, mean, rstd, x, gamma, beta snug.View, s Image, eps float32) error {
	check := &checks{op: "ChannelNorm"}
	checkEps(check, eps)
	check.floats(operand{"x", x}, operand{"out", out}, operand{"gamma", gamma}, operand{"beta", beta})
	check.f32(operand{"mean", mean}, operand{"rstd", rstd})
	s.check(check, operand{"x", x}, operand{"out", out})
	check.len(product(max(s.Batch, 0), max(s.Positions, 0)), operand{"mean", mean}, operand{"rstd", rstd})
	check.len(s.Channels, operand{"gamma", gamma}, operand{"beta", beta})
	check.device(out, mean, rstd, x, gamma, beta)
	if check.err == nil && s.rows().ChannelsLast {
		return layerNorm(out, mean, rstd, x, gamma, beta, eps)
	}
	return run(check, channelNormJob{out, mean, rstd, x, gamma, beta, s, eps}, out, mean, rstd, x, gamma, beta)
}

type channelNormJob struct {
	out, mean, rstd, x, gamma, beta snug.View

	s   Image
	eps float32
}

func (*channelNormJob) Kernel() string { return "fused.channel_norm" }

func (j *channelNormJob) Operands(yield func(*driver.Mem)) {
	device.Each(yield, &j.out, &j.mean, &j.rstd, &j.x, &j.gamma, &j.beta)
}

func (j channelNormJob) Run() { channelNormTask.Run(j.s.tiles(), j) }

var channelNormTask = cpu.NewTask(func(j *channelNormJob, item int) {
	s, k := &j.s, rowwise.Registry.Best()
	b, lo, hi := s.tile(item)
	n, rows := hi-lo, b*s.Channels
	mean, rstd := j.mean.Float32s()[b*s.Positions+lo:][:n], j.rstd.Float32s()[b*s.Positions+lo:][:n]
	t := columnTile{x: j.x, cols: s.Positions, from: lo, width: n, joined: 1}
	t.moments(rows, rows+s.Channels, func(c int, m moments) { mean[c], rstd[c] = float32(m.mean), m.rstd(j.eps) })
	buf := scratch.Get(2 * n)
	defer finish(buf)
	zeros, stream := cut(buf, 1, n), streams32(j.out, j.x)
	clear(zeros)
	for c := range s.Channels {
		at := (rows+c)*s.Positions + lo
		x, out := load(cut(buf, 0, n), j.x, at), target(cut(buf, 0, n), j.out, at)
		k.ColumnAffine(out, x, mean, rstd, zeros, false)
		k.Affine(out, out, 0, element(&j.gamma, c), element(&j.beta, c), stream)
		store(j.out, at, out)
	}
})

func channelNormBackward(dx, dgamma, dbeta, dy, x, mean, rstd, gamma snug.View, s Image, into GradsInto, ws snug.View) error {
	check := &checks{op: "ChannelNormBackward"}
	resolved := GradsInto{check.into(into.Input), check.into(into.Params)}
	check.floats(operand{"x", x}, operand{"dx", dx}, operand{"dy", dy}, operand{"gamma", gamma})
	check.f32(operand{"dgamma", dgamma}, operand{"dbeta", dbeta}, operand{"mean", mean}, operand{"rstd", rstd}, operand{"ws", ws})
	s.check(check, operand{"x", x}, operand{"dx", dx}, operand{"dy", dy})
	check.len(product(max(s.Batch, 0), max(s.Positions, 0)), operand{"mean", mean}, operand{"rstd", rstd})
	check.len(s.Channels, operand{"gamma", gamma})
	frozen := dgamma.Len() == 0 && dbeta.Len() == 0
	if !frozen {
		check.len(s.Channels, operand{"dgamma", dgamma}, operand{"dbeta", dbeta})
		check.workspace(ws, ChannelNormWorkspaceLen(s))
	}
	check.device(dx, dgamma, dbeta, dy, x, mean, rstd, gamma, ws)
	if check.err == nil && s.rows().ChannelsLast {
		return layerNormBackward(dx, dgamma, dbeta, dy, x, mean, rstd, gamma, into, ws)
	}
	return run(check, channelNormBackwardJob{dx, dgamma, dbeta, dy, x, mean, rstd, gamma, ws, s, resolved}, dx, dgamma, dbeta, dy, x, mean, rstd, gamma, ws)
}

type channelNormBackwardJob struct {
	dx, dgamma, dbeta, dy, x, mean, rstd, gamma, ws snug.View

	s    Image
	into GradsInto
}

func (*channelNormBackwardJob) Kernel() string { return "fused.channel_norm_backward" }

func (j *channelNormBackwardJob) Operands(yield func(*driver.Mem)) {
	device.Each(yield, &j.dx, &j.dgamma, &j.dbeta, &j.dy, &j.x, &j.mean, &j.rstd, &j.gamma, &j.ws)
}

func (j channelNormBackwardJob) Run() {
	s, frozen := j.s, j.dgamma.Len() == 0
	g := channelGradArgs{s: s, dx: j.dx, dy: j.dy, x: j.x, gamma: j.gamma, mean: j.mean.Float32s(), rstd: j.rstd.Float32s(), into: j.into.Input}
	parts := cpu.Chunks(s.tiles(), s.partTiles())
	if !frozen {
		g.ws = j.ws.Float32s()[:parts*4*s.Channels]
	}
	channelGradTask.Run(parts, g)
	if frozen {
		return
	}
	for c := range s.Channels {
		sum, dot := 0.0, 0.0
		for part := range parts {
			at := g.part(part)[4*c:][:4]
			sum, dot = sum+float64(at[0])+float64(at[1]), dot+float64(at[2])+float64(at[3])
		}
		addParam(j.dgamma.Float32s(), c, dot, j.into.Params)
		addParam(j.dbeta.Float32s(), c, sum, j.into.Params)
	}
}

type channelGradArgs struct {
	s                Image
	dx, dy, x, gamma snug.View
	mean, rstd, ws   []float32 // ws: for each part and channel Σ dy and Σ dy·x̂, each in two parts; nil for frozen parameters
	into             snug.Into
}

func (j *channelGradArgs) part(part int) []float32 {
	return j.ws[part*4*j.s.Channels:][:4*j.s.Channels]
}

var channelGradTask = cpu.NewTask(func(j *channelGradArgs, part int) {
	var params []float32
	if j.ws != nil {
		params = j.part(part)
		clear(params)
	}
	lo, hi := cpu.Chunk(j.s.tiles(), j.s.partTiles(), part)
	buf := scratch.Get(8 * min(j.s.tileWidth(), j.s.Positions))
	defer finish(buf)
	for tile := lo; tile < hi; tile++ {
		j.tile(tile, params, buf)
	}
})

// addTo adds x to a sum in two parts.
func addTo(sum []float32, x float32) {
	v := float64(sum[0]) + float64(sum[1]) + float64(x)
	sum[0] = float32(v)
	sum[1] = rest(v, sum[0])
}

// tile does the positions of one tile, whose sums it adds to params.
func (j *channelGradArgs) tile(tile int, params []float32, buf *[]float32) {
	s, k := &j.s, rowwise.Registry.Best()
	b, lo, hi := s.tile(tile)
	n := hi - lo
	mean, rstd := j.mean[b*s.Positions+lo:][:n], j.rstd[b*s.Positions+lo:][:n]
	at := func(c int) int { return (b*s.Channels+c)*s.Positions + lo }
	g, row, sum, dot := cut(buf, 0, n), cut(buf, 1, n), cut(buf, 2, n), cut(buf, 3, n)
	zeros, other := cut(buf, 4, n), cut(buf, 5, n)
	clear(zeros)
	var sums, dots [joinedLen]float64
	for from := 0; from < s.Channels; from += tileRows {
		clear(sum)
		clear(dot)
		for c := from; c < min(from+tileRows, s.Channels); c++ {
			dy, x := load(other, j.dy, at(c)), load(row, j.x, at(c))
			k.Scale(g, dy, element(&j.gamma, c))
			k.ColumnDots(sum, dot, g, x, mean)
			if params != nil {
				k.ColumnAffine(g, x, mean, rstd, zeros, false)
				a, d := k.CenteredDots(dy, g, 0)
				addTo(params[4*c:], a)
				addTo(params[4*c+2:], d)
			}
		}
		for p := range n {
			sums[p] += float64(sum[p])
			dots[p] += float64(dot[p])
		}
	}
	onDy, onX, shift := cut(buf, 6, n), cut(buf, 7, n), sum
	for p, r := range rstd {
		each := -float64(j.into.Alpha) * float64(r) / float64(s.Channels)
		onDy[p] = j.into.Alpha * r
		onX[p] = float32(each * float64(r) * float64(r) * dots[p])
		shift[p] = float32(each * sums[p])
	}
	stream := j.into.Beta == 0 && streams32(j.dx, j.dy, j.x)
	for c := range s.Channels {
		k.Scale(g, load(other, j.dy, at(c)), element(&j.gamma, c))
		x, dx := load(row, j.x, at(c)), targetInto(j.into, dot, j.dx, at(c))
		k.ColumnAffineGrad(dx, g, x, mean, onDy, onX, shift, j.into.Beta, stream)
		store(j.dx, at(c), dx)
	}
}
