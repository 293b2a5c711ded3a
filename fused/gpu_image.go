//go:build cuda || hip || metal || emu

package fused

import (
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/gpu"
)

var (
	imageMomentsNames   = gpu.ForFloats("fused_image_moments")
	imageDotsNames      = gpu.ForFloats("fused_image_dots")
	imageSlopesNames    = gpu.ForFloats("fused_image_slopes")
	imageNormalizeNames = gpu.ForFloats("fused_image_normalize")
	imageSpreadNames    = gpu.ForFloats("fused_image_spread")
)

// imageParams is ImageParams of image_norms.h.
type imageParams struct {
	n                                uint64
	batch, channels, positions, last uint32
	parts, part                      uint32
	perImage, width                  uint32
	alpha, beta                      float32
	wide, units                      uint32
	count, eps                       float32
	writeRstd, writeSums             uint32
}

const (
	writeBatchSums = 1 << iota
	writeParams
)

// Kernels of images and losses count elements in 32 bits. most leaves room for the last step of a loop past the end of a
// vector.
const most = 1<<32 - 1<<24

// fits returns an error that wraps [snug.ErrNotBuilt] for vectors of more than most elements.
func fits(n int) error { return fitsIn(n, most) }

func fitsIn(n int, most int64) error {
	if int64(n) > most {
		return fmt.Errorf("%d elements in one vector, and the kernel counts %d: split the batch: %w", n, most, driver.ErrNotBuilt)
	}
	return nil
}

// params returns the parameters of kernels for a shape. width channels share a statistic. An image has perImage statistics, or 0 if
// all images share those of the channels.
func (s *Image) params(perImage, width int) imageParams {
	p := imageParams{n: uint64(s.Len()), batch: uint32(s.Batch), channels: uint32(s.Channels), positions: uint32(s.Positions), parts: uint32(s.parts()),
		part: uint32(s.Positions), perImage: uint32(perImage), width: uint32(width)}
	if s.ChannelsLast {
		p.last, p.part = 1, uint32(s.partRows())
	}
	p.units = p.parts * p.batch
	return p
}

// packed returns 1 if kernels may load and store packs of 16 bytes: each lies in one plane, or with channels last in one position,
// and the operands are aligned.
func (s *Image) packed(operands ...*snug.View) uint32 {
	row := s.Positions
	if s.ChannelsLast {
		row = s.Channels
	}
	return wide(row, operands...)
}

// strips returns the thread blocks of kernels that sum over positions. A block takes a channel of an image, or with channels last 32
// channels of a part of its positions.
func (p *imageParams) strips() [3]int {
	across := int(p.channels)
	if p.last != 0 {
		across = gpu.CeilDiv(across, 32)
	}
	return [3]int{min(int(p.units)*across, 1<<24), 1, 1}
}

func (j *groupNormJob) Grids(q gpu.Launcher) error {
	if err := fits(j.s.Len()); err != nil || j.s.Batch == 0 {
		return err
	}
	p := j.s.params(j.stats.perImage, j.stats.width)
	p.eps, p.writeRstd = j.eps, 1
	if err := grid(q, nameOf(&imageMomentsNames, &j.x), p.strips(), threads, p, &j.ws, &j.x); err != nil {
		return err
	}
	err := grid(q, "fused_image_statistics", rowGrid(j.mean.Len()), threads, p, &j.mean, &j.rstd, &j.ws)
	if err != nil {
		return err
	}
	return j.s.normalize(q, p, &j.out, &j.x, &j.mean, &j.rstd, &j.gamma, &j.beta)
}

func (s *Image) normalize(q gpu.Launcher, p imageParams, out, x, mean, rstd, gamma, beta *snug.View) error {
	p.wide = s.packed(out, x)
	return grid(q, nameOf(&imageNormalizeNames, x), packs(x.Len(), x.DType()), threads, p, out, x, mean, rstd, gamma, beta)
}

func (j *groupNormBackwardJob) Grids(q gpu.Launcher) error {
	if err := fits(j.s.Len()); err != nil {
		return err
	}
	p := j.s.params(j.stats.perImage, j.stats.width)
	groups := j.s.Batch * j.stats.perImage
	if j.s.Batch > 0 {
		if err := grid(q, nameOf(&imageDotsNames, &j.x), p.strips(), threads, p, &j.ws, &j.dy, &j.x, &j.mean); err != nil {
			return err
		}
	}
	if j.dgamma.Len() > 0 {
		w := p
		w.alpha, w.beta, w.writeSums = j.into.Params.Alpha, j.into.Params.Beta, writeParams
		if err := grid(q, "fused_image_params", rowGrid(j.s.Channels), threads, w, &j.dgamma, &j.dbeta, &none, &j.ws, &j.rstd); err != nil {
			return err
		}
	}
	if j.s.Batch == 0 {
		return nil
	}
	sums := j.s.columnsLen(2)
	slope, offset := span(j.ws, sums, groups), span(j.ws, sums+groups, groups)
	p.count = float32(j.stats.width) * float32(j.s.Positions)
	err := grid(q, nameOf(&imageSlopesNames, &j.x), rowGrid(groups), threads, p, &slope, &offset, &j.ws, &j.rstd, &j.gamma)
	if err != nil {
		return err
	}
	return j.s.spread(q, p, j.into.Input, &j.dx, &j.dy, &j.x, &j.mean, &j.rstd, &slope, &offset, &j.gamma)
}

func (s *Image) spread(q gpu.Launcher, p imageParams, into snug.Into, dx, dy, x, mean, rstd, slope, offset, gamma *snug.View) error {
	p.alpha, p.beta, p.wide = into.Alpha, into.Beta, s.packed(dx, dy, x)
	return grid(q, nameOf(&imageSpreadNames, x), packs(x.Len(), x.DType()), threads, p, dx, dy, x, mean, rstd, slope, offset, gamma)
}

func (j *batchNormJob) Grids(q gpu.Launcher) error {
	if err := fits(j.s.Len()); err != nil || j.x.Len() == 0 {
		return err
	}
	return j.s.normalize(q, j.s.params(0, 1), &j.out, &j.x, &j.mean, &j.rstd, &j.gamma, &j.beta)
}

func (j *batchMomentsJob) Grids(q gpu.Launcher) error {
	s := j.s.whole()
	if err := fits(s.Len()); err != nil {
		return err
	}
	p := s.params(0, 1)
	if j.x.Len() == 0 {
		p.units = 0
	} else if err := grid(q, nameOf(&imageMomentsNames, &j.x), p.strips(), threads, p, &j.ws, &j.x); err != nil {
		return err
	}
	return grid(q, "fused_image_statistics", rowGrid(s.Channels), threads, p, &j.mean, &j.m2, &j.ws)
}

func (j *batchNormSumsJob) Grids(q gpu.Launcher) error {
	s := j.image()
	if err := fits(s.Len()); err != nil {
		return err
	}
	p := s.params(0, 1)
	p.alpha, p.beta, p.writeSums = j.into.Alpha, j.into.Beta, writeBatchSums
	if j.dgamma.Len() > 0 {
		p.writeSums |= writeParams
	}
	if j.x.Len() > 0 {
		if err := grid(q, nameOf(&imageDotsNames, &j.x), p.strips(), threads, p, &j.ws, &j.dy, &j.x, &j.mean); err != nil {
			return err
		}
	}
	return grid(q, "fused_image_params", rowGrid(s.Channels), threads, p, &j.dgamma, &j.dbeta, &j.sums, &j.ws, &j.rstd)
}

func (j *batchNormBackwardJob) Grids(q gpu.Launcher) error {
	if err := fits(j.s.Len()); err != nil || j.x.Len() == 0 {
		return err
	}
	p := j.s.params(0, 1)
	p.count = float32(j.count)
	if j.sums.Len() > 0 {
		p.writeSums = writeBatchSums
	}
	return j.s.spread(q, p, j.into, &j.dx, &j.dy, &j.x, &j.mean, &j.rstd, &j.sums, &none, &j.gamma)
}

// channelParams is ChannelParams of image_norms.h.
type channelParams struct {
	n, _    uint32
	a, b, c float32
	_       uint32
}

// channelGrid queues a kernel with a thread for each of n channels.
func channelGrid(q gpu.Launcher, name string, n int, p channelParams, operands ...*snug.View) error {
	if n == 0 {
		return nil
	}
	p.n = uint32(n)
	return grid(q, name, gpu.Grid(n, threads), threads, p, operands...)
}

func (j *mergeMomentsJob) Grids(q gpu.Launcher) error {
	if j.otherCount == 0 {
		return nil
	}
	part := float64(j.otherCount) / (float64(j.count) + float64(j.otherCount))
	p := channelParams{a: float32(part), b: float32(float64(j.count) * part)}
	return channelGrid(q, "fused_merge_moments", j.mean.Len(), p, &j.mean, &j.m2, &j.otherMean, &j.otherM2)
}

func (j *batchRstdJob) Grids(q gpu.Launcher) error {
	return channelGrid(q, "fused_batch_rstd", j.m2.Len(), channelParams{a: float32(j.count), b: j.eps}, &j.rstd, &j.m2)
}

func (j *runningJob) Grids(q gpu.Launcher) error {
	p := channelParams{a: float32(1 - j.momentum), b: float32(j.momentum), c: float32(j.count - 1)}
	return channelGrid(q, "fused_update_running", j.mean.Len(), p, &j.runningMean, &j.runningVar, &j.mean, &j.m2)
}

var (
	channelNormNames         = gpu.ForFloats("fused_channel_norm")
	channelNormBackwardNames = gpu.ForFloats("fused_channel_norm_backward")
	channelNormParamsNames   = gpu.ForFloats("fused_channel_norm_params")
)

// channelNormParams is ChannelNormParams of channel_norm.h.
type channelNormParams struct {
	batch, channels, positions, _ uint32
	eps, alpha, beta              float32
	_                             uint32
}

func (s *Image) channelNorm(eps float32, into snug.Into) channelNormParams {
	return channelNormParams{batch: uint32(s.Batch), channels: uint32(s.Channels), positions: uint32(s.Positions), eps: eps, alpha: into.Alpha, beta: into.Beta}
}

// positionBlocks returns the thread blocks of kernels in which a block takes 32 positions, with all their channels.
func (s *Image) positionBlocks() [3]int {
	return [3]int{min(gpu.CeilDiv(s.Batch*s.Positions, 32), 1<<19), 1, 1} // a step of the loop is what most leaves
}

func (j *channelNormJob) Grids(q gpu.Launcher) error {
	if err := fits(j.s.Len()); err != nil {
		return err
	}
	return grid(q, nameOf(&channelNormNames, &j.x), j.s.positionBlocks(), threads, j.s.channelNorm(j.eps, snug.Into{}),
		&j.out, &j.mean, &j.rstd, &j.x, &j.gamma, &j.beta)
}

// Grids computes the gradients of the parameters first, because dx may be dy.
func (j *channelNormBackwardJob) Grids(q gpu.Launcher) error {
	if err := fits(j.s.Len()); err != nil {
		return err
	}
	if j.dgamma.Len() > 0 {
		err := grid(q, nameOf(&channelNormParamsNames, &j.gamma), [3]int{min(j.s.Channels, 1<<24), 1, 1}, threads, j.s.channelNorm(0, j.into.Params),
			&j.dgamma, &j.dbeta, &j.dy, &j.x, &j.mean, &j.rstd)
		if err != nil {
			return err
		}
	}
	return grid(q, nameOf(&channelNormBackwardNames, &j.gamma), j.s.positionBlocks(), threads, j.s.channelNorm(0, j.into.Input),
		&j.dx, &j.dy, &j.x, &j.mean, &j.rstd, &j.gamma)
}
