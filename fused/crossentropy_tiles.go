package fused

import (
	"math"
	"unsafe"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/gemm"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/rowwise"
)

// rowStats is what the tiles of a row of logits leave, RowStats of crossentropy.h. The sum of
// the exponentials, less the peak, is hi + lo: the float64 to 48 bits.
type rowStats struct{ peak, hi, lo, target float32 }

// statsLen is the float32 elements of a row's statistics.
const statsLen = int(unsafe.Sizeof(rowStats{}) / 4)

func (s *rowStats) total() float64 { return float64(s.hi) + float64(s.lo) }

func (s *rowStats) setTotal(x float64) {
	s.hi = float32(x)
	s.lo = float32(x - float64(s.hi))
}

// tiledSpace is the workspace of a chunk of rows whose vocabulary is cut into tiles.
type tiledSpace struct {
	logits snug.View // of a tile
	dx     snug.View // the sum over tiles, which dx cannot hold: it may be x, or of 16 bits
	stats  snug.View
	losses snug.View
}

func (j *crossEntropyJob) tiledSpace(rows int) (s tiledSpace) {
	at := 0
	take := func(n int) snug.View {
		v := span(j.ws, at, rows*n)
		at += rows * n
		return v
	}
	return tiledSpace{logits: take(j.config.tile()), dx: take(j.config.Cols), stats: take(statsLen), losses: take(1)}
}

// tileArgs are the columns from on of the logits of a chunk's rows.
type tileArgs struct {
	softmaxArgs
	stats []rowStats
	from  int
}

// tiled does rows lo to hi-1 in two passes over the vocabulary, tile by tile. The first
// leaves the statistics of the rows, by the online softmax of Milakov and Gimelshein,
// "Online normalizer calculation for softmax" (2018). The second computes the logits
// again, and their gradients from the statistics.
func (j *crossEntropyJob) tiled(lo, hi int, beta float32) (losses []float32) {
	rows, vocab, cols := hi-lo, j.config.Vocab, j.config.Cols
	ws := j.tiledSpace(rows)
	stats := ws.stats.Float32s()
	a := tileArgs{softmaxArgs: j.softmaxArgs(ws.logits, ws.losses, lo, hi),
		stats: unsafe.Slice((*rowStats)(unsafe.Pointer(unsafe.SliceData(stats))), rows)}
	for a.from = 0; a.from < vocab; a.from += j.config.tile() {
		j.logits(&a, ws, lo)
		foldTask.Run(cpu.Chunks(rows, itemRows(a.vocab)), a)
	}
	for r := range a.losses {
		a.losses[r] = a.loss(r)
	}
	if !j.gradients {
		return a.losses
	}
	x, old := j.rowsOf(j.x, lo, rows), float32(0)
	dx := gemm.Matrix{Data: ws.dx, Stride: cols}
	for a.from = 0; a.from < vocab; a.from += j.config.tile() {
		j.logits(&a, ws, lo)
		tileTask.Run(cpu.Chunks(rows, itemRows(a.vocab)), a)
		z := gemm.Matrix{Data: ws.logits, Stride: a.vocab}
		if a.narrow {
			z = gemm.Matrix{Data: bfloat16s(ws.logits.Float32s()), Stride: 2 * a.vocab}
		}
		if j.dw.Len() > 0 {
			gemm.Mul(a.vocab, cols, rows, j.into.Alpha, transposed(z), x, beta, j.rowsOf(j.dw, a.from, a.vocab))
		}
		gemm.Mul(rows, cols, a.vocab, 1, z, j.rowsOf(j.w, a.from, a.vocab), old, dx)
		old = 1 // later tiles add
	}
	storeTask.Run(cpu.Chunks(rows, itemRows(cols)), storeArgs{span(j.dx, lo*cols, rows*cols), ws.dx.Float32s(), cols})
	return a.losses
}

// logits computes the tile from a.from on of the logits of the rows from lo on.
func (j *crossEntropyJob) logits(a *tileArgs, ws tiledSpace, lo int) {
	rows, cols := len(a.targets), j.config.Cols
	a.vocab = min(j.config.tile(), j.config.Vocab-a.from)
	z := gemm.Matrix{Data: ws.logits, Stride: a.vocab}
	gemm.Mul(rows, a.vocab, cols, 1, j.rowsOf(j.x, lo, rows), transposed(j.rowsOf(j.w, a.from, a.vocab)), 0, z)
}

// foldTask adds the logits of a tile, which it overwrites, to the statistics.
var foldTask = cpu.NewTask(func(a *tileArgs, item int) {
	lo, hi := cpu.Chunk(len(a.targets), itemRows(a.vocab), item)
	for r := lo; r < hi; r++ {
		a.fold(r)
	}
})

func (a *tileArgs) fold(r int) {
	s, z, target := &a.stats[r], a.logitsOf(r), int(a.targets[r])
	if a.from == 0 {
		*s = rowStats{peak: float32(math.Inf(-1))}
	}
	if target < 0 {
		return
	}
	a.softcap(z)
	if at := target - a.from; 0 <= at && at < len(z) {
		s.target = z[at]
	}
	peak, total := rowwise.Registry.Best().Max(z, 1, s.peak), s.total()
	if peak != s.peak {
		total *= math.Exp(float64(s.peak) - float64(peak))
	}
	base := peak
	if math.IsInf(float64(peak), -1) {
		base = 0 // as yet there are logits of −Inf and NaN only
	}
	s.setTotal(total + expSum(z, z, base, nil))
	s.peak = peak
}

// loss returns the loss of a row from its statistics.
func (a *tileArgs) loss(r int) float32 {
	if a.targets[r] < 0 {
		return 0
	}
	s := &a.stats[r]
	return float32(float64(a.weight(r)) * (float64(s.peak) - float64(s.target) + math.Log(s.total())))
}

// tileTask replaces the logits of a tile by their gradients.
var tileTask = cpu.NewTask(func(a *tileArgs, item int) {
	buf := scratch.Get(expBlock)
	defer scratch.Put(buf)
	lo, hi := cpu.Chunk(len(a.targets), itemRows(a.vocab), item)
	for r := lo; r < hi; r++ {
		z, s := a.logitsOf(r), &a.stats[r]
		if target := int(a.targets[r]); target < 0 {
			clear(z)
		} else {
			a.softcap(z)
			a.gradient(z, target-a.from, s.peak, s.total(), a.gradScale*a.weight(r), *buf)
		}
		a.round(r)
	}
})

// storeArgs are rows of float32 and where they go.
type storeArgs struct {
	to   snug.View
	from []float32
	cols int
}

var storeTask = cpu.NewTask(func(a *storeArgs, item int) {
	lo, hi := cpu.Chunk(len(a.from)/a.cols, itemRows(a.cols), item)
	half.Store(a.to, lo*a.cols, a.from[lo*a.cols:hi*a.cols])
})
