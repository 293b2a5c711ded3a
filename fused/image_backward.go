package fused

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/rowwise"
)

// dotsArgs is a loop that leaves, for each channel of each image, Σ dy and Σ dy·(x − mean) over its positions at ws, each in two
// parts.
type dotsArgs struct {
	s     Image
	dy, x snug.View
	ws    []float32
	statistics
}

func (j dotsArgs) run() {
	if j.s.ChannelsLast {
		columnDotsTask.Run(j.s.Batch*j.s.parts(), j)
	} else {
		planeDotsTask.Run(j.s.planeItems(false), j)
	}
}

func (j *dotsArgs) put(b, part, c int, sum, dot float64) {
	for i, x := range [2]float64{sum, dot} {
		hi := float32(x)
		j.s.columns(j.ws, b, part, 2*i, 4)[c] = hi
		j.s.columns(j.ws, b, part, 2*i+1, 4)[c] = rest(x, hi)
	}
}

// rest returns what a rounded number lacks, 0 where that is not a number.
func rest(x float64, rounded float32) float32 {
	if r := float32(x - float64(rounded)); r-r == 0 {
		return r
	}
	return 0
}

// channel returns the sums of channel c of image b.
func (j *dotsArgs) channel(b, c int) (sum, dot float64) {
	for part := range j.s.parts() {
		at := func(i int) float64 { return float64(j.s.columns(j.ws, b, part, i, 4)[c]) }
		sum += at(0) + at(1)
		dot += at(2) + at(3)
	}
	return sum, dot
}

var planeDotsTask = cpu.NewTask(func(j *dotsArgs, item int) {
	buf := scratch.Get(2 * min(blockCols, j.s.Positions))
	defer scratch.Put(buf)
	k, block := rowwise.Registry.Best(), len(*buf)/2
	for i := 0; ; i++ {
		p, ok := j.s.piece(item, i, false)
		if !ok {
			return
		}
		sum, dot, center := 0.0, 0.0, j.mean[j.at(p.b, p.c)]
		for end := p.at + p.n; p.at < end; p.at += block {
			n := min(block, end-p.at)
			a, b := k.CenteredDots(load(cut(buf, 0, n), j.dy, p.at), load(cut(buf, 1, n), j.x, p.at), center)
			sum, dot = sum+float64(a), dot+float64(b)
		}
		j.put(p.b, 0, p.c, sum, dot)
	}
})

var columnDotsTask = cpu.NewTask(func(j *dotsArgs, item int) {
	s, cols := &j.s, j.s.Channels
	b, part := item/s.parts(), item%s.parts()
	lo, hi := s.part(part)
	base := b * s.Positions
	k, joined, width := rowwise.Registry.Best(), s.joined(), min(joinedLen, cols)
	n := width * joined
	buf := scratch.Get(5 * n)
	defer scratch.Put(buf)
	for from := 0; from < cols; from += width {
		width := min(width, cols-from)
		n := width * joined
		x := columnTile{x: j.x, cols: cols, from: from, width: width, joined: joined}
		dy := x
		dy.x = j.dy
		center, sum, dot := cut(buf, 0, n), cut(buf, 1, n), cut(buf, 2, n)
		for c := range width {
			center[c] = j.mean[j.at(b, from+c)]
		}
		repeat(center, width)
		var sums, dots [joinedLen]float64
		for at, step := base+lo, tileRows*joined; at < base+hi; at += step {
			end := min(at+step, base+hi)
			clear(sum)
			clear(dot)
			for r := at; r < end; r += joined {
				g, row := dy.row(cut(buf, 3, n), r, end), x.row(cut(buf, 4, n), r, end)
				m := len(row)
				k.ColumnDots(sum[:m], dot[:m], g, row, center[:m])
			}
			for c, v := range x.fold(sum) {
				sums[c] += float64(v)
			}
			for c, v := range x.fold(dot) {
				dots[c] += float64(v)
			}
		}
		for c := range width {
			j.put(b, part, from+c, sums[c], dots[c])
		}
	}
})

// spreadArgs is dx ← gamma·rstd·dy + slope·(x − mean) + offset, with a slope and an offset for each of the statistics.
type spreadArgs struct {
	s                Image
	dx, dy, x, gamma snug.View
	slope, offset    []float32 // of groups
	sums             []float32 // of channels instead, see BatchNormSums; nil for running statistics
	count            float64   // of elements that they are over
	into             snug.Into
	statistics
}

func (j spreadArgs) run() {
	if j.s.ChannelsLast {
		spreadRowsTask.Run(j.s.rowItems(), j)
	} else {
		spreadPlanesTask.Run(j.s.planeItems(true), j)
	}
}

// factors returns what the loops multiply by.
func (j *spreadArgs) factors(b, c int, gamma float32) (center, dy, x, shift float32) {
	at := j.at(b, c)
	center, dy = j.mean[at], j.into.Alpha*(gamma*j.rstd[at])
	switch {
	case j.slope != nil:
		x, shift = j.into.Alpha*j.slope[at], j.into.Alpha*j.offset[at]
	case j.sums != nil:
		on := -float64(dy) / j.count
		x = float32(on * float64(j.sums[j.s.Channels+c]) * float64(j.rstd[at]))
		shift = float32(on * float64(j.sums[c]))
	}
	return center, dy, x, shift
}

var spreadPlanesTask = cpu.NewTask(func(j *spreadArgs, item int) {
	block := min(blockCols, j.s.Positions)
	buf := scratch.Get(3 * block)
	defer finish(buf)
	k, stream := rowwise.Registry.Best(), j.into.Beta == 0 && streams32(j.dx, j.dy, j.x)
	for i := 0; ; i++ {
		p, ok := j.s.piece(item, i, true)
		if !ok {
			return
		}
		center, onDy, onX, shift := j.factors(p.b, p.c, element(&j.gamma, p.c))
		for end := p.at + p.n; p.at < end; p.at += block {
			n := min(block, end-p.at)
			dy, x := load(cut(buf, 0, n), j.dy, p.at), load(cut(buf, 1, n), j.x, p.at)
			dx := targetInto(j.into, cut(buf, 2, n), j.dx, p.at)
			k.AffineGrad(dx, dy, x, center, onDy, onX, shift, j.into.Beta, stream)
			store(j.dx, p.at, dx)
		}
	}
})

var spreadRowsTask = cpu.NewTask(func(j *spreadArgs, item int) {
	s, cols, n := &j.s, j.s.Channels, j.s.Channels*j.s.joined()
	block := min(blockCols, n)
	buf := scratch.Get(4*n + 3*block)
	defer finish(buf)
	b, lo, hi := s.rowItem(item)
	center, onDy, onX, shift := cut(buf, 0, n), cut(buf, 1, n), cut(buf, 2, n), cut(buf, 3, n)
	half.Load(onDy[:cols], j.gamma, 0)
	for c := range cols {
		center[c], onDy[c], onX[c], shift[c] = j.factors(b, c, onDy[c])
	}
	for _, v := range [...][]float32{center, onDy, onX, shift} {
		repeat(v, cols)
	}
	k, stream := rowwise.Registry.Best(), j.into.Beta == 0 && streams32(j.dx, j.dy, j.x)
	for base := b * s.Positions; lo < hi; lo += s.joined() {
		row := min(s.joined(), hi-lo) * cols
		for c := 0; c < row; c += block {
			at, m, rows := (base+lo)*cols+c, min(block, row-c), (*buf)[4*n:]
			dy, x := load(rows[:m], j.dy, at), load(rows[block:][:m], j.x, at)
			dx := targetInto(j.into, rows[2*block:][:m], j.dx, at)
			k.ColumnAffineGrad(dx, dy, x, center[c:][:m], onDy[c:][:m], onX[c:][:m], shift[c:][:m], j.into.Beta, stream)
			store(j.dx, at, dx)
		}
	}
})

// addParam adds a gradient of a parameter into its accumulator.
func addParam(acc []float32, c int, g float64, into snug.Into) {
	v := float32(float64(into.Alpha) * g)
	if into.Beta != 0 {
		v += float32(into.Beta * acc[c])
	}
	acc[c] = v
}
