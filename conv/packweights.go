package conv

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/gemm"
	"github.com/snug-ml/snug/internal/half"
)

// packWeights packs the weights of lines channels of the result, from m on, side by side: a row for each channel of
// the block and each of its taps, pitch apart, channel after channel or, with tapsFirst, tap after tap. The bias
// follows where the block has ones.
func (t *tile) packWeights(b *block, dst []float32, m, lines, pitch int, tapsFirst bool) {
	taps, all := b.t1-b.t0, volume(t.kernel)
	channels := b.c1 - b.c0
	switch {
	case channels == 0:
	case channels*all > tmpRows:
		t.packEach(b, dst, m, lines, pitch)
	case t.adjoint && all > 1 && tapsFirst && all <= tmpRows/t.kern.Lanes:
		t.packTaps(b, dst, m, lines, pitch)
	case taps == all && (!tapsFirst || channels == 1 || taps == 1):
		t.packAll(b, dst, m, lines, pitch)
	default:
		t.packAll(b, t.tmp, m, lines, pitch)
		for tap := range taps {
			k := t.phase.kernelTap(b.t0+tap, t.kernel)
			at, next := tap, taps
			if tapsFirst {
				at, next = tap*channels, 1
			}
			t.patch.Copy(dst[at*pitch:], snug.SliceView(t.tmp), k*pitch, channels, pitch, all*pitch, next*pitch, 1)
		}
	}
	if b.ones {
		half.Load(dst[b.products()*pitch:][:lines], t.bias, t.group*t.results+m)
	}
}

// weight returns the element of w for channel m of the result, channel c of the source and the first tap.
func (t *tile) weight(m, c int) int {
	return t.group*t.cout*t.cin*volume(t.kernel) + m*t.weightRow + c*t.weightC
}

// packAll packs the weights of all taps of the kernel, channel after channel.
func (t *tile) packAll(b *block, dst []float32, m, lines, pitch int) {
	all := volume(t.kernel)
	if t.adjoint && all == 1 {
		t.patch.Copy(dst, t.w, t.weight(m, b.c0), b.c1-b.c0, lines, t.weightC, pitch, 1)
		return
	}
	depth, each := (b.c1-b.c0)*all, b.c1-b.c0
	if !t.adjoint {
		each = 1 // the weights of all channels lie side by side
	} else {
		depth = all
	}
	for c := range each {
		at := t.weight(m, b.c0+c)
		if t.w.DType() == snug.F32 {
			t.kern.PackLines(dst[c*all*pitch:], t.w.Float32s()[at:], lines, depth, t.weightRow, pitch)
			continue
		}
		stride := depth + rowGap
		if t.adjoint {
			stride = depth
			half.Load(t.lines[:lines*depth], t.w, at)
		} else {
			for i := range lines {
				half.Load(t.lines[i*stride:][:depth], t.w, at+i*t.weightRow)
			}
		}
		t.kern.PackLines(dst[c*all*pitch:], t.lines, lines, depth, stride, pitch)
	}
}

// packAcross packs weights of the adjoint of a kernel of one tap, rows channels of the result from m on, as columns: they lie side by
// side.
func (t *tile) packAcross(b *block, m, rows int) gemm.Rows {
	t.patch.Copy(t.a, t.w, t.weight(m, b.c0), b.c1-b.c0, rows, t.weightC, rows, 1)
	if b.ones {
		half.Load(t.a[b.products()*rows:][:rows], t.bias, t.group*t.results+m)
	}
	return gemm.Rows{X: t.a, Row: 1, Col: rows}
}

// packByTaps packs weights of the adjoint of stride 1, rows channels of the result from m on, as rows along the depth. The weights of
// these channels and all taps lie side by side: transposed, they are such rows.
func (t *tile) packByTaps(b *block, m, rows int) gemm.Rows {
	all, channels := volume(t.kernel), b.c1-b.c0
	most := tmpRows / all
	for i := 0; i < rows; i += most {
		n := min(most, rows-i)
		for c := 0; c < channels; c += t.kern.NR {
			lines := min(t.kern.NR, channels-c)
			t.transposeWeights(t.a[i*all*channels+c:], t.weight(m+i, b.c0+c), lines, n*all, t.weightC, channels)
		}
	}
	return gemm.Rows{X: t.a, Row: all * channels, Col: 1}
}

// packAlong packs weights of the adjoint as rows along the depth: of rows channels of the result, from m on. In memory the weights of
// a channel of the source, for all channels of the result and all taps, lie side by side. So packAlong transposes them, and copies the
// block's taps of the result.
func (t *tile) packAlong(b *block, m, rows int) gemm.Rows {
	all, channels, pitch := volume(t.kernel), b.c1-b.c0, b.depth()+rowGap
	most, lanes := t.transposable(b)
	for i := 0; i < rows; i += most {
		n := min(most, rows-i)
		t.transposeChannels(b, m+i, n, lanes)
		for tap := range b.t1 - b.t0 {
			k := t.phase.kernelTap(b.t0+tap, t.kernel)
			t.patch.Copy(t.a[i*pitch+tap*channels:], snug.SliceView(t.tmp), k*lanes, n, channels, all*lanes, pitch, 1)
		}
	}
	if b.ones {
		for i := range rows {
			t.a[i*pitch+b.products()] = at(t.bias, t.group*t.results+m+i)
		}
	}
	return gemm.Rows{X: t.a, Row: pitch, Col: 1}
}

// packTaps packs weights of the adjoint as packWeights does, tap after tap. It transposes them twice, in long lines.
func (t *tile) packTaps(b *block, dst []float32, m, lines, pitch int) {
	all, channels := volume(t.kernel), b.c1-b.c0
	most, lanes := t.transposable(b)
	most = max(most/t.kern.Lanes, 1) * t.kern.Lanes
	for i := 0; i < lines; i += most {
		n := min(most, lines-i)
		t.transposeChannels(b, m+i, n, lanes)
		for tap := range b.t1 - b.t0 {
			k := t.phase.kernelTap(b.t0+tap, t.kernel)
			t.kern.PackLines(dst[tap*channels*pitch+i:], t.tmp[k*lanes:], n, channels, all*lanes, pitch)
		}
	}
}

// transposable returns how many channels of the result have room in tmp with all taps, each a row of the block's channels of
// the source, and the length of a row.
func (t *tile) transposable(b *block) (most, row int) {
	row = cpu.Chunks(b.c1-b.c0, t.kern.Lanes) * t.kern.Lanes
	return max(1, min(tmpRows, sizeTmp/row-t.kern.Lanes)/volume(t.kernel)), row
}

// transposeChannels sets tmp to such rows, of n channels of the result from m on.
func (t *tile) transposeChannels(b *block, m, n, row int) {
	channels := b.c1 - b.c0
	for c := 0; c < channels; c += t.kern.NR {
		t.transposeWeights(t.tmp[c:], t.weight(m, b.c0+c), min(t.kern.NR, channels-c), n*volume(t.kernel), t.weightC, row)
	}
}

// transposeWeights transposes lines of weights, which begin at element at and stride apart, to rows.
func (t *tile) transposeWeights(dst []float32, at, lines, depth, stride, pitch int) {
	if t.w.DType() == snug.F32 {
		t.kern.PackLines(dst, t.w.Float32s()[at:], lines, depth, stride, pitch)
		return
	}
	gap := depth + rowGap
	for i := range lines {
		half.Load(t.lines[i*gap:][:depth], t.w, at+i*stride)
	}
	t.kern.PackLines(dst, t.lines, lines, depth, gap, pitch)
}

// packEach packs weights one by one, of a block of few channels, of a kernel of many taps.
func (t *tile) packEach(b *block, dst []float32, m, lines, pitch int) {
	for tap := b.t0; tap < b.t1; tap++ {
		k := t.phase.kernelTap(tap, t.kernel)
		row := dst[(tap-b.t0)*pitch:]
		for i := range lines {
			half.Load(row[i:i+1], t.w, t.weight(m+i, b.c0)+k)
		}
	}
}
