package fused

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
)

// GroupNorm normalizes groups of channels of each image to mean 0 and variance 1, and scales and shifts the channels (Wu and He,
// "Group Normalization", 2018). A group g of image b has n = Channels/groups·Positions elements:
//
//	mean[b, g] = Σ x / n
//	rstd[b, g] = 1 / √(Σ (x − mean[b, g])² / n + eps)
//	out[b, c, p] = (x[b, c, p] − mean[b, g])·rstd[b, g]·gamma[c] + beta[c]
//
// One group is LayerNorm over whole images, as many groups as channels are InstanceNorm.
//
// Shapes: x and out as s says; gamma and beta [Channels]; mean and rstd [Batch, groups], which [GroupNormBackward] needs, 8 bytes
// a group. groups divides Channels. ws has at least GroupNormWorkspaceLen(s) elements.
//
// Aliasing: out may be x. Squares are of distances from the mean of a block of elements, whose moments are merged in float64: a
// large mean does not cancel the variance. eps must be finite and not negative.  Each worker holds
// 140 KiB, and 16·Channels bytes where the channels are last.
func GroupNorm[V snug.Vector, L snug.Vector32](out V, mean, rstd L, x, gamma, beta V, s Image, groups int, eps float32, ws L) error {
	return groupNorm(snug.ViewOf(out), snug.ViewOf(mean), snug.ViewOf(rstd), snug.ViewOf(x), snug.ViewOf(gamma), snug.ViewOf(beta), s, groups, eps, snug.ViewOf(ws))
}

// GroupNormBackward computes the gradients of [GroupNorm] from the gradient dy of its output, its input x, and the mean and rstd
// that it left. With x̂ = (x − mean)·rstd, g = dy·gamma and avg the mean over a group of an image:
//
//	dx        ← rstd·(g − avg(g) − x̂·avg(g·x̂))
//	dgamma[c] ← Σ over images and positions of dy·x̂
//	dbeta[c]  ← Σ over images and positions of dy
//
// where ← applies into, see [snug.Into]. Sums over blocks of elements are float32, and are added in float64.
//
// Shapes: dx, dy and x as s says; mean and rstd [Batch, groups]; gamma, dgamma and dbeta [Channels]. With frozen parameters dgamma
// and dbeta may be empty: []float32(nil). ws has at least GroupNormWorkspaceLen(s) elements.
//
// Aliasing: dx may be dy.  Each worker holds 24 KiB, and 20·Channels bytes where the channels are last.
func GroupNormBackward[V snug.Vector, G, L snug.Vector32](dx V, dgamma, dbeta G, dy, x V, mean, rstd L, gamma V, s Image, groups int, into GradsInto, ws L) error {
	return groupNormBackward(snug.ViewOf(dx), snug.ViewOf(dgamma), snug.ViewOf(dbeta), snug.ViewOf(dy), snug.ViewOf(x),
		snug.ViewOf(mean), snug.ViewOf(rstd), snug.ViewOf(gamma), s, groups, into, snug.ViewOf(ws))
}

// GroupNormWorkspaceLen returns the workspace of [GroupNorm] and [GroupNormBackward] in float32 elements: 6 for each channel of
// each image, and where the channels are last of each of at most 64 parts of its positions. It is 0 for a shape without elements.
func GroupNormWorkspaceLen(s Image) int { return s.rows().columnsLen(6) }

// checkGroups returns the statistics of groups, whose number it checks.
func (s Image) checkGroups(c *checks, groups int, mean, rstd snug.View) statistics {
	if groups < 1 || c.err == nil && s.Channels%groups != 0 {
		c.failf(snug.ErrShape, "%d groups of %d channels, want a divisor", groups, s.Channels)
	}
	if c.err == nil {
		c.len(s.Batch*groups, operand{"mean", mean}, operand{"rstd", rstd})
	}
	if c.err != nil {
		return statistics{}
	}
	return statistics{perImage: groups, width: s.Channels / groups}
}

func groupNorm(out, mean, rstd, x, gamma, beta snug.View, s Image, groups int, eps float32, ws snug.View) error {
	check := &checks{op: "GroupNorm"}
	checkEps(check, eps)
	check.floats(operand{"x", x}, operand{"out", out}, operand{"gamma", gamma}, operand{"beta", beta})
	check.f32(operand{"mean", mean}, operand{"rstd", rstd}, operand{"ws", ws})
	s.check(check, operand{"x", x}, operand{"out", out})
	check.len(s.Channels, operand{"gamma", gamma}, operand{"beta", beta})
	stats := s.checkGroups(check, groups, mean, rstd)
	check.workspace(ws, GroupNormWorkspaceLen(s))
	return run(check, groupNormJob{out, mean, rstd, x, gamma, beta, ws, s.rows(), stats, eps}, out, mean, rstd, x, gamma, beta, ws)
}

type groupNormJob struct {
	out, mean, rstd, x, gamma, beta, ws snug.View

	s     Image
	stats statistics
	eps   float32
}

func (*groupNormJob) Kernel() string { return "fused.group_norm" }

func (j *groupNormJob) Operands(yield func(*driver.Mem)) {
	device.Each(yield, &j.out, &j.mean, &j.rstd, &j.x, &j.gamma, &j.beta, &j.ws)
}

func (j groupNormJob) Run() {
	if j.s.Batch == 0 {
		return
	}
	s, stats := j.s, j.stats
	groups := stats.perImage
	stats.mean, stats.rstd = j.mean.Float32s(), j.rstd.Float32s()
	m := momentsArgs{s, j.x, j.ws.Float32s()}
	if !s.ChannelsLast { // whose groups are planes
		m.s.Channels, m.s.Positions = groups, stats.width*s.Positions
	}
	m.run()
	groupMomentsTask.Run(cpu.Chunks(s.Batch*groups, itemRows(m.s.Channels/groups)), groupMomentsArgs{m, stats, s.Batch, j.eps})
	normalizeArgs{s, j.out, j.x, j.gamma, j.beta, stats}.run()
}

// groupMomentsArgs is a loop over groups, which takes their statistics from those of their channels.
type groupMomentsArgs struct {
	momentsArgs
	stats statistics
	batch int
	eps   float32
}

var groupMomentsTask = cpu.NewTask(func(j *groupMomentsArgs, item int) {
	groups := j.stats.perImage
	width := j.s.Channels / groups
	lo, hi := cpu.Chunk(j.batch*groups, itemRows(width), item)
	for at := lo; at < hi; at++ {
		var m moments
		for c := range width {
			m.merge(j.channel(at/groups, at%groups*width+c))
		}
		j.stats.mean[at], j.stats.rstd[at] = float32(m.mean), m.rstd(j.eps)
	}
})

func groupNormBackward(dx, dgamma, dbeta, dy, x, mean, rstd, gamma snug.View, s Image, groups int, into GradsInto, ws snug.View) error {
	check := &checks{op: "GroupNormBackward"}
	into.Input, into.Params = check.into(into.Input), check.into(into.Params)
	check.floats(operand{"x", x}, operand{"dx", dx}, operand{"dy", dy}, operand{"gamma", gamma})
	check.f32(operand{"dgamma", dgamma}, operand{"dbeta", dbeta}, operand{"mean", mean}, operand{"rstd", rstd}, operand{"ws", ws})
	s.check(check, operand{"x", x}, operand{"dx", dx}, operand{"dy", dy})
	check.len(s.Channels, operand{"gamma", gamma})
	frozen := dgamma.Len() == 0 && dbeta.Len() == 0
	if !frozen {
		check.len(s.Channels, operand{"dgamma", dgamma}, operand{"dbeta", dbeta})
	}
	stats := s.checkGroups(check, groups, mean, rstd)
	check.workspace(ws, GroupNormWorkspaceLen(s))
	return run(check, groupNormBackwardJob{dx, dgamma, dbeta, dy, x, mean, rstd, gamma, ws, s.rows(), stats, into}, dx, dgamma, dbeta, dy, x, mean, rstd, gamma, ws)
}

type groupNormBackwardJob struct {
	dx, dgamma, dbeta, dy, x, mean, rstd, gamma, ws snug.View

	s     Image
	stats statistics
	into  GradsInto
}

func (*groupNormBackwardJob) Kernel() string { return "fused.group_norm_backward" }

func (j *groupNormBackwardJob) Operands(yield func(*driver.Mem)) {
	device.Each(yield, &j.dx, &j.dgamma, &j.dbeta, &j.dy, &j.x, &j.mean, &j.rstd, &j.gamma, &j.ws)
}

func (j groupNormBackwardJob) Run() {
	s, stats, all := j.s, j.stats, j.ws.Float32s()
	n, sums := s.Batch*stats.perImage, s.columnsLen(4)
	stats.mean, stats.rstd = j.mean.Float32s(), j.rstd.Float32s()
	g := groupGradArgs{dotsArgs{s, j.dy, j.x, all[:sums], stats}, j.gamma, all[sums:][:n], all[sums+n:][:n]}
	g.run()
	groupGradTask.Run(cpu.Chunks(n, itemRows(stats.width)), g)
	if j.dgamma.Len() > 0 {
		for c := range s.Channels {
			dg, db := 0.0, 0.0
			for b := range s.Batch {
				sum, dot := g.channel(b, c)
				dg, db = dg+dot*float64(stats.rstd[stats.at(b, c)]), db+sum
			}
			addParam(j.dgamma.Float32s(), c, dg, j.into.Params)
			addParam(j.dbeta.Float32s(), c, db, j.into.Params)
		}
	}
	spreadArgs{s: s, dx: j.dx, dy: j.dy, x: j.x, gamma: j.gamma, slope: g.slope, offset: g.offset, into: j.into.Input, statistics: stats}.run()
}

// groupGradArgs is a loop over groups, which takes from the sums of their channels what subtracts the means from the gradient.
type groupGradArgs struct {
	dotsArgs
	gamma         snug.View
	slope, offset []float32
}

var groupGradTask = cpu.NewTask(func(j *groupGradArgs, item int) {
	lo, hi := cpu.Chunk(len(j.slope), itemRows(j.width), item)
	for at := lo; at < hi; at++ {
		g, gx := 0.0, 0.0
		for i := range j.width {
			c := at%j.perImage*j.width + i
			sum, dot := j.channel(at/j.perImage, c)
			gamma := float64(element(&j.gamma, c))
			g, gx = g+gamma*sum, gx+gamma*dot
		}
		n, rstd := float64(j.width)*float64(j.s.Positions), float64(j.rstd[at])
		j.slope[at], j.offset[at] = float32(-rstd*rstd*rstd*gx/n), float32(-rstd*g/n)
	}
})
