package fused

import (
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
)

// BatchNorm normalizes channels by their statistics, and scales and shifts them (Ioffe and Szegedy, "Batch Normalization", 2015):
//
//	out[b, c, p] = (x[b, c, p] − mean[c])·rstd[c]·gamma[c] + beta[c]
//
// In training the statistics are those of the batch, in evaluation the running ones:
//
//	err := fused.BatchMoments(mean, m2, x, s, ws)                       // training
//	err = fused.BatchRstd(rstd, m2, s.Batch*s.Positions, eps)
//	err = fused.BatchNorm(out, x, mean, rstd, gamma, beta, s)           // keeps mean and rstd, 8 bytes a channel
//	err = fused.UpdateRunning(runningMean, runningVar, mean, m2, s.Batch*s.Positions, 0.1)
//
//	err = fused.BatchRstd(rstd, runningVar, 1, eps)                     // evaluation
//	err = fused.BatchNorm(out, x, runningMean, rstd, gamma, beta, s)
//
//	err = fused.BatchNormSums(sums, dgamma, dbeta, dy, x, mean, rstd, s, into, ws)   // backward
//	err = fused.BatchNormBackward(dx, dy, x, mean, rstd, sums, gamma, s, s.Batch*s.Positions, into)
//
// Recomputation calls BatchNorm with the statistics that were kept, and UpdateRunning not again: with package remat,
// remat.FirstPass tells. A chain that drops the statistics too computes them again, with the same bits.
//
// # Ranks
//
// Statistics over all ranks (PyTorch's SyncBatchNorm) need two reductions. Forward, each rank puts its count, mean and m2 at its
// place of a vector with a place for each rank and zeros elsewhere, and accum.Reducer's Sum gives all of them to all;
// [MergeMoments] merges them in the order of the ranks, so that all have the same bits. BatchRstd, UpdateRunning and
// BatchNormBackward take the merged count. Backward, AllReduce of sums between BatchNormSums and BatchNormBackward
// makes them those of all ranks; dgamma and dbeta stay the rank's own, and are reduced with the other gradients.
//
// Shapes: x and out as s says; mean, rstd, gamma and beta [Channels].
//
// Aliasing: out may be x. Each worker holds 8 KiB, and 12·Channels bytes where the channels are last.
func BatchNorm[V snug.Vector, L snug.Vector32](out, x V, mean, rstd L, gamma, beta V, s Image) error {
	return batchNorm(snug.ViewOf(out), snug.ViewOf(x), snug.ViewOf(mean), snug.ViewOf(rstd), snug.ViewOf(gamma), snug.ViewOf(beta), s)
}

// BatchMoments computes for each channel the mean and the sum of squared deviations over the images and positions of x:
//
//	mean[c] = Σ x / n      n = Batch·Positions
//	m2[c]   = Σ (x − mean[c])²
//
// Squares are of distances from the mean of a block of elements, whose moments are merged in float64: a large mean does not
// cancel them. They are 0 where there is no element.
//
// Shapes: x as s says; mean and m2 [Channels]; ws at least BatchNormWorkspaceLen(s) elements. Each worker
// holds 140 KiB.
func BatchMoments[L snug.Vector32, V snug.Vector](mean, m2 L, x V, s Image, ws L) error {
	return batchMoments(snug.ViewOf(mean), snug.ViewOf(m2), snug.ViewOf(x), s, snug.ViewOf(ws))
}

// MergeMoments merges the moments of other elements into mean and m2, which are those of count, and returns the number of all
// (Chan, Golub and LeVeque, 1979). Order matters to the last bits, and equal calls give equal bits.
//
// Shapes: all have one length. Counts are 0 or more.
func MergeMoments[L snug.Vector32](mean, m2 L, count int, otherMean, otherM2 L, otherCount int) (int, error) {
	return mergeMoments(snug.ViewOf(mean), snug.ViewOf(m2), count, snug.ViewOf(otherMean), snug.ViewOf(otherM2), otherCount)
}

// BatchRstd computes rstd[c] = 1 / √(m2[c]/count + eps), of variances with a count of 1. count is at least 1, eps finite and
// not negative. rstd may be m2.
func BatchRstd[L snug.Vector32](rstd, m2 L, count int, eps float32) error {
	return batchRstd(snug.ViewOf(rstd), snug.ViewOf(m2), count, eps)
}

// UpdateRunning updates running statistics by those of a batch, with the rule of PyTorch:
//
//	runningMean[c] = (1 − momentum)·runningMean[c] + momentum·mean[c]
//	runningVar[c]  = (1 − momentum)·runningVar[c] + momentum·m2[c]/(count − 1)
//
// The variance is the unbiased one, so count is at least 2. momentum is from 0 to 1, PyTorch's default 0.1; for its
// momentum=None, the mean of all batches, pass 1/k with batch number k, from 1. Call it once for a batch, not again when a stage
// is recomputed. All have one length.
func UpdateRunning[L snug.Vector32](runningMean, runningVar, mean, m2 L, count int, momentum float32) error {
	return updateRunning(snug.ViewOf(runningMean), snug.ViewOf(runningVar), snug.ViewOf(mean), snug.ViewOf(m2), count, momentum)
}

// BatchNormSums computes the sums over images and positions that [BatchNormBackward] takes, which are the gradients of the
// parameters too. With x̂ = (x − mean[c])·rstd[c]:
//
//	sums[c]            = Σ dy       dbeta ← that
//	sums[Channels + c] = Σ dy·x̂     dgamma ← that
//
// where ← applies into, see [snug.Into]. Sums over blocks of elements are float32, and are added in float64.
//
// Shapes: dy and x as s says; mean and rstd [Channels]; sums [2·Channels]; dgamma and dbeta [Channels], or empty for
// frozen parameters: []float32(nil). ws has at least BatchNormWorkspaceLen(s) elements. Each worker
// holds 16 KiB.
func BatchNormSums[L, G snug.Vector32, V snug.Vector](sums L, dgamma, dbeta G, dy, x V, mean, rstd L, s Image, into snug.Into, ws L) error {
	return batchNormSums(snug.ViewOf(sums), snug.ViewOf(dgamma), snug.ViewOf(dbeta), snug.ViewOf(dy), snug.ViewOf(x),
		snug.ViewOf(mean), snug.ViewOf(rstd), s, into, snug.ViewOf(ws))
}

// BatchNormBackward computes the gradient of x of [BatchNorm] from the gradient dy of its output. With x̂ = (x − mean[c])·rstd[c], and
// the sums of [BatchNormSums] over count elements a channel, of all ranks:
//
//	dx ← rstd[c]·gamma[c]·(dy − sums[c]/count − x̂·sums[Channels + c]/count)    statistics of the batch
//	dx ← rstd[c]·gamma[c]·dy                                                   running statistics, where sums are empty
//
// where ← applies into, see [snug.Into].
//
// Shapes: dx, dy and x as s says; mean, rstd and gamma [Channels]; sums [2·Channels], or empty: []float32(nil). count is at least 1.
//
// Aliasing: dx may be dy. Each worker holds 24 KiB, and 16·Channels bytes where the channels are last.
func BatchNormBackward[V snug.Vector, L snug.Vector32](dx, dy, x V, mean, rstd, sums L, gamma V, s Image, count int, into snug.Into) error {
	return batchNormBackward(snug.ViewOf(dx), snug.ViewOf(dy), snug.ViewOf(x), snug.ViewOf(mean), snug.ViewOf(rstd), snug.ViewOf(sums),
		snug.ViewOf(gamma), s, count, into)
}

// BatchNormWorkspaceLen returns the workspace of [BatchMoments] and [BatchNormSums] in float32 elements: 4 for each channel of each
// image or, where the channels are last, of each of at most 64 parts of the positions of all images. It is 0 for a shape without
// elements.
func BatchNormWorkspaceLen(s Image) int {
	if s.Len() == 0 {
		return 0
	}
	return s.whole().columnsLen(4)
}

func batchNorm(out, x, mean, rstd, gamma, beta snug.View, s Image) error {
	check := &checks{op: "BatchNorm"}
	check.floats(operand{"x", x}, operand{"out", out}, operand{"gamma", gamma}, operand{"beta", beta})
	check.f32(operand{"mean", mean}, operand{"rstd", rstd})
	s.check(check, operand{"x", x}, operand{"out", out})
	check.len(s.Channels, operand{"mean", mean}, operand{"rstd", rstd}, operand{"gamma", gamma}, operand{"beta", beta})
	return run(check, batchNormJob{out, x, mean, rstd, gamma, beta, s.whole()}, out, x, mean, rstd, gamma, beta)
}

type batchNormJob struct {
	out, x, mean, rstd, gamma, beta snug.View

	s Image
}

func (*batchNormJob) Kernel() string { return "fused.batch_norm" }

func (j *batchNormJob) Operands(yield func(*driver.Mem)) {
	device.Each(yield, &j.out, &j.x, &j.mean, &j.rstd, &j.gamma, &j.beta)
}

func (j batchNormJob) Run() {
	if j.x.Len() > 0 {
		normalizeArgs{j.s, j.out, j.x, j.gamma, j.beta, perChannel(j.mean, j.rstd)}.run()
	}
}

// perChannel are statistics that all images share.
func perChannel(mean, rstd snug.View) statistics {
	return statistics{mean: mean.Float32s(), rstd: rstd.Float32s(), width: 1}
}

func batchMoments(mean, m2, x snug.View, s Image, ws snug.View) error {
	check := &checks{op: "BatchMoments"}
	check.floats(operand{"x", x})
	check.f32(operand{"mean", mean}, operand{"m2", m2}, operand{"ws", ws})
	s.check(check, operand{"x", x})
	check.len(s.Channels, operand{"mean", mean}, operand{"m2", m2})
	check.workspace(ws, BatchNormWorkspaceLen(s))
	return run(check, batchMomentsJob{mean, m2, x, ws, s}, mean, m2, x, ws)
}

type batchMomentsJob struct {
	mean, m2, x, ws snug.View

	s Image
}

func (*batchMomentsJob) Kernel() string { return "fused.batch_moments" }

func (j *batchMomentsJob) Operands(yield func(*driver.Mem)) {
	device.Each(yield, &j.mean, &j.m2, &j.x, &j.ws)
}

func (j batchMomentsJob) Run() {
	if j.s.Batch == 0 {
		clear(j.mean.Float32s())
		clear(j.m2.Float32s())
		return
	}
	all := momentsArgs{j.s.whole(), j.x, j.ws.Float32s()}
	all.run()
	for c := range j.s.Channels {
		var m moments
		for b := range all.s.Batch {
			m.merge(all.channel(b, c))
		}
		j.mean.Float32s()[c], j.m2.Float32s()[c] = float32(m.mean), float32(m.m2)
	}
}

func (c *checks) counts(least int, counts ...int) {
	for _, n := range counts {
		if n < least {
			c.failf(snug.ErrShape, "a count of %d elements, want at least %d", n, least)
		}
	}
}

func mergeMoments(mean, m2 snug.View, count int, otherMean, otherM2 snug.View, otherCount int) (int, error) {
	check := &checks{op: "MergeMoments"}
	check.f32(operand{"mean", mean}, operand{"m2", m2}, operand{"otherMean", otherMean}, operand{"otherM2", otherM2})
	check.len(mean.Len(), operand{"m2", m2}, operand{"otherMean", otherMean}, operand{"otherM2", otherM2})
	check.counts(0, count, otherCount)
	if count > math.MaxInt-max(otherCount, 0) {
		check.failf(snug.ErrShape, "counts of %d and %d elements, want fewer", count, otherCount)
	}
	if err := run(check, mergeMomentsJob{mean, m2, otherMean, otherM2, count, otherCount}, mean, m2, otherMean, otherM2); err != nil {
		return 0, err
	}
	return count + otherCount, nil
}

type mergeMomentsJob struct {
	mean, m2, otherMean, otherM2 snug.View

	count, otherCount int
}

func (*mergeMomentsJob) Kernel() string { return "fused.merge_moments" }

func (j *mergeMomentsJob) Operands(yield func(*driver.Mem)) {
	device.Each(yield, &j.mean, &j.m2, &j.otherMean, &j.otherM2)
}

func (j mergeMomentsJob) Run() {
	a, q := j.mean.Float32s(), j.m2.Float32s()
	for c := range a {
		m := moments{float64(j.count), float64(a[c]), float64(q[c])}
		m.merge(moments{float64(j.otherCount), float64(j.otherMean.Float32s()[c]), float64(j.otherM2.Float32s()[c])})
		a[c], q[c] = float32(m.mean), float32(m.m2)
	}
}

func batchRstd(rstd, m2 snug.View, count int, eps float32) error {
	check := &checks{op: "BatchRstd"}
	checkEps(check, eps)
	check.f32(operand{"rstd", rstd}, operand{"m2", m2})
	check.len(m2.Len(), operand{"rstd", rstd})
	check.counts(1, count)
	return run(check, batchRstdJob{rstd, m2, count, eps}, rstd, m2)
}

type batchRstdJob struct {
	rstd, m2 snug.View

	count int
	eps   float32
}

func (*batchRstdJob) Kernel() string { return "fused.batch_rstd" }

func (j *batchRstdJob) Operands(yield func(*driver.Mem)) { device.Each(yield, &j.rstd, &j.m2) }

func (j batchRstdJob) Run() {
	for c, x := range j.m2.Float32s() {
		j.rstd.Float32s()[c] = moments{n: float64(j.count), m2: float64(x)}.rstd(j.eps)
	}
}

func updateRunning(runningMean, runningVar, mean, m2 snug.View, count int, momentum float32) error {
	check := &checks{op: "UpdateRunning"}
	if !(momentum >= 0 && momentum <= 1) {
		check.failf(snug.ErrConfig, "momentum is %v, want 0 to 1", momentum)
	}
	check.f32(operand{"runningMean", runningMean}, operand{"runningVar", runningVar}, operand{"mean", mean}, operand{"m2", m2})
	check.len(mean.Len(), operand{"runningMean", runningMean}, operand{"runningVar", runningVar}, operand{"m2", m2})
	check.counts(2, count)
	return run(check, runningJob{runningMean, runningVar, mean, m2, count, float64(momentum)}, runningMean, runningVar, mean, m2)
}

type runningJob struct {
	runningMean, runningVar, mean, m2 snug.View

	count    int
	momentum float64
}

func (*runningJob) Kernel() string { return "fused.update_running" }

func (j *runningJob) Operands(yield func(*driver.Mem)) {
	device.Each(yield, &j.runningMean, &j.runningVar, &j.mean, &j.m2)
}

func (j runningJob) Run() {
	blend := func(running *float32, x float64) {
		*running = float32((1-j.momentum)*float64(*running) + j.momentum*x)
	}
	for c, x := range j.mean.Float32s() {
		blend(&j.runningMean.Float32s()[c], float64(x))
		blend(&j.runningVar.Float32s()[c], float64(j.m2.Float32s()[c])/float64(j.count-1))
	}
}

func batchNormSums(sums, dgamma, dbeta, dy, x, mean, rstd snug.View, s Image, into snug.Into, ws snug.View) error {
	check := &checks{op: "BatchNormSums"}
	into = check.into(into)
	check.floats(operand{"x", x}, operand{"dy", dy})
	check.f32(operand{"sums", sums}, operand{"dgamma", dgamma}, operand{"dbeta", dbeta}, operand{"mean", mean}, operand{"rstd", rstd}, operand{"ws", ws})
	s.check(check, operand{"x", x}, operand{"dy", dy})
	check.len(s.Channels, operand{"mean", mean}, operand{"rstd", rstd})
	check.len(product(2, max(s.Channels, 0)), operand{"sums", sums})
	frozen := dgamma.Len() == 0 && dbeta.Len() == 0
	if !frozen {
		check.len(s.Channels, operand{"dgamma", dgamma}, operand{"dbeta", dbeta})
	}
	check.workspace(ws, BatchNormWorkspaceLen(s))
	return run(check, batchNormSumsJob{sums, dgamma, dbeta, dy, x, mean, rstd, ws, s, into}, sums, dgamma, dbeta, dy, x, mean, rstd, ws)
}

type batchNormSumsJob struct {
	sums, dgamma, dbeta, dy, x, mean, rstd, ws snug.View

	s    Image
	into snug.Into
}

func (*batchNormSumsJob) Kernel() string { return "fused.batch_norm_sums" }

func (j *batchNormSumsJob) Operands(yield func(*driver.Mem)) {
	device.Each(yield, &j.sums, &j.dgamma, &j.dbeta, &j.dy, &j.x, &j.mean, &j.rstd, &j.ws)
}

// image returns the shape that sums are over.
func (j *batchNormSumsJob) image() Image {
	s := j.s.whole()
	if j.s.Batch == 0 {
		s.Batch = 0
	}
	return s
}

func (j batchNormSumsJob) Run() {
	d := dotsArgs{j.image(), j.dy, j.x, j.ws.Float32s(), perChannel(j.mean, j.rstd)}
	d.run()
	n, sums := d.s.Channels, j.sums.Float32s()
	for c := range n {
		sum, dot := 0.0, 0.0
		for b := range d.s.Batch {
			a, x := d.channel(b, c)
			sum, dot = sum+a, dot+x
		}
		dot *= float64(d.rstd[c])
		sums[c], sums[n+c] = float32(sum), float32(dot)
		if j.dgamma.Len() > 0 {
			addParam(j.dgamma.Float32s(), c, dot, j.into)
			addParam(j.dbeta.Float32s(), c, sum, j.into)
		}
	}
}

func batchNormBackward(dx, dy, x, mean, rstd, sums, gamma snug.View, s Image, count int, into snug.Into) error {
	check := &checks{op: "BatchNormBackward"}
	into = check.into(into)
	check.floats(operand{"x", x}, operand{"dx", dx}, operand{"dy", dy}, operand{"gamma", gamma})
	check.f32(operand{"mean", mean}, operand{"rstd", rstd}, operand{"sums", sums})
	s.check(check, operand{"x", x}, operand{"dx", dx}, operand{"dy", dy})
	check.len(s.Channels, operand{"mean", mean}, operand{"rstd", rstd}, operand{"gamma", gamma})
	check.lenIfAny(product(2, max(s.Channels, 0)), operand{"sums", sums})
	check.counts(1, count)
	return run(check, batchNormBackwardJob{dx, dy, x, mean, rstd, sums, gamma, s.whole(), count, into}, dx, dy, x, mean, rstd, sums, gamma)
}

type batchNormBackwardJob struct {
	dx, dy, x, mean, rstd, sums, gamma snug.View

	s     Image
	count int
	into  snug.Into
}

func (*batchNormBackwardJob) Kernel() string { return "fused.batch_norm_backward" }

func (j *batchNormBackwardJob) Operands(yield func(*driver.Mem)) {
	device.Each(yield, &j.dx, &j.dy, &j.x, &j.mean, &j.rstd, &j.sums, &j.gamma)
}

func (j batchNormBackwardJob) Run() {
	if j.x.Len() == 0 {
		return
	}
	s := spreadArgs{s: j.s, dx: j.dx, dy: j.dy, x: j.x, gamma: j.gamma, into: j.into, statistics: perChannel(j.mean, j.rstd)}
	if j.sums.Len() > 0 {
		s.sums, s.count = j.sums.Float32s(), float64(j.count)
	}
	s.run()
}
