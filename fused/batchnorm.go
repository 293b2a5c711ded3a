package fused

import (
	"math"

	"github.com/snug-ml/snug"
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
// Aliasing: out may be x. Operands lie on the CPU. Each worker holds 8 KiB, and 12·Channels bytes where the channels are last.
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
// Shapes: x as s says; mean and m2 [Channels]; ws at least BatchNormWorkspaceLen(s) elements. Operands lie on the CPU. Each worker
// holds 140 KiB.
func BatchMoments[L snug.Vector32, V snug.Vector](mean, m2 L, x V, s Image, ws L) error {
	return batchMoments(snug.ViewOf(mean), snug.ViewOf(m2), snug.ViewOf(x), s, snug.ViewOf(ws))
}

// MergeMoments merges the moments of other elements into mean and m2, which are those of count, and returns the number of all
// (Chan, Golub and LeVeque, 1979). Order matters to the last bits, and equal calls give equal bits.
//
// Shapes: all have one length. Counts are 0 or more. Operands lie on the CPU.
func MergeMoments[L snug.Vector32](mean, m2 L, count int, otherMean, otherM2 L, otherCount int) (int, error) {
	return mergeMoments(snug.ViewOf(mean), snug.ViewOf(m2), count, snug.ViewOf(otherMean), snug.ViewOf(otherM2), otherCount)
}

// BatchRstd computes rstd[c] = 1 / √(m2[c]/count + eps), of variances with a count of 1. count is at least 1, eps finite and
// not negative. rstd may be m2. Operands lie on the CPU.
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
// is recomputed. All have one length. Operands lie on the CPU.
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
// frozen parameters: []float32(nil). ws has at least BatchNormWorkspaceLen(s) elements. Operands lie on the CPU. Each worker
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
// Aliasing: dx may be dy. Operands lie on the CPU. Each worker holds 24 KiB, and 16·Channels bytes where the channels are last.
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
	if err := check.onCPU(out, x, mean, rstd, gamma, beta); err != nil || s.Batch == 0 {
		return err
	}
	normalizeArgs{s.whole(), out, x, gamma, beta, perChannel(mean, rstd)}.run()
	return nil
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
	if err := check.onCPU(mean, m2, x, ws); err != nil {
		return err
	}
	if s.Batch == 0 {
		clear(mean.Float32s())
		clear(m2.Float32s())
		return nil
	}
	j := momentsArgs{s.whole(), x, ws.Float32s()}
	j.run()
	for c := range s.Channels {
		var m moments
		for b := range j.s.Batch {
			m.merge(j.channel(b, c))
		}
		mean.Float32s()[c], m2.Float32s()[c] = float32(m.mean), float32(m.m2)
	}
	return nil
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
	if err := check.onCPU(mean, m2, otherMean, otherM2); err != nil {
		return 0, err
	}
	a, q := mean.Float32s(), m2.Float32s()
	for c := range a {
		m := moments{float64(count), float64(a[c]), float64(q[c])}
		m.merge(moments{float64(otherCount), float64(otherMean.Float32s()[c]), float64(otherM2.Float32s()[c])})
		a[c], q[c] = float32(m.mean), float32(m.m2)
	}
	return count + otherCount, nil
}

func batchRstd(rstd, m2 snug.View, count int, eps float32) error {
	check := &checks{op: "BatchRstd"}
	checkEps(check, eps)
	check.f32(operand{"rstd", rstd}, operand{"m2", m2})
	check.len(m2.Len(), operand{"rstd", rstd})
	check.counts(1, count)
	if err := check.onCPU(rstd, m2); err != nil {
		return err
	}
	for c, x := range m2.Float32s() {
		rstd.Float32s()[c] = moments{n: float64(count), m2: float64(x)}.rstd(eps)
	}
	return nil
}

func updateRunning(runningMean, runningVar, mean, m2 snug.View, count int, momentum float32) error {
	check := &checks{op: "UpdateRunning"}
	if !(momentum >= 0 && momentum <= 1) {
		check.failf(snug.ErrConfig, "momentum is %v, want 0 to 1", momentum)
	}
	check.f32(operand{"runningMean", runningMean}, operand{"runningVar", runningVar}, operand{"mean", mean}, operand{"m2", m2})
	check.len(mean.Len(), operand{"runningMean", runningMean}, operand{"runningVar", runningVar}, operand{"m2", m2})
	check.counts(2, count)
	if err := check.onCPU(runningMean, runningVar, mean, m2); err != nil {
		return err
	}
	k := float64(momentum)
	blend := func(running *float32, x float64) { *running = float32((1-k)*float64(*running) + k*x) }
	for c, x := range mean.Float32s() {
		blend(&runningMean.Float32s()[c], float64(x))
		blend(&runningVar.Float32s()[c], float64(m2.Float32s()[c])/float64(count-1))
	}
	return nil
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
	if err := check.onCPU(sums, dgamma, dbeta, dy, x, mean, rstd, ws); err != nil {
		return err
	}
	j := dotsArgs{s.whole(), dy, x, ws.Float32s(), perChannel(mean, rstd)}
	if s.Batch == 0 {
		j.s.Batch = 0
	}
	j.run()
	for c := range s.Channels {
		sum, dot := 0.0, 0.0
		for b := range j.s.Batch {
			a, d := j.channel(b, c)
			sum, dot = sum+a, dot+d
		}
		dot *= float64(j.rstd[c])
		sums.Float32s()[c], sums.Float32s()[s.Channels+c] = float32(sum), float32(dot)
		if !frozen {
			addParam(dgamma.Float32s(), c, dot, into)
			addParam(dbeta.Float32s(), c, sum, into)
		}
	}
	return nil
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
	if err := check.onCPU(dx, dy, x, mean, rstd, sums, gamma); err != nil || s.Batch == 0 {
		return err
	}
	j := spreadArgs{s: s.whole(), dx: dx, dy: dy, x: x, gamma: gamma, into: into, statistics: perChannel(mean, rstd)}
	if sums.Len() > 0 {
		j.sums, j.count = sums.Float32s(), float64(count)
	}
	j.run()
	return nil
}
