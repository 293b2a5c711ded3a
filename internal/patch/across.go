package patch

// TapsAcross computes a depthwise convolution of a row of positions whose channels lie side by side: element c of position
// i of dst is Σ over t of w[t·rowW+c]·src[i·stepSrc+offsets[t]+c], plus the row of w after those of the taps. Channels are a
// multiple of AcrossLanes.
type TapsAcross func(dst, src, w []float32, offsets []int, cols, channels, stepSrc, stepDst, rowW int)

// DotsAcross adds to rows of sums, rowSums apart, one for each of DotTaps offsets, for each channel the products of rows of
// positions of y with src from the offset on. Channels are a multiple of AcrossLanes.
type DotsAcross func(sums, y, src []float32, offsets []int, rows, cols, channels, rowY, stepY, rowSrc, stepSrc, rowSums int)

// AcrossLanes divides the channels that TapsAcross and DotsAcross take.
const AcrossLanes = 16

func tapsAcross(dst, src, w []float32, offsets []int, cols, channels, stepSrc, stepDst, rowW int) {
	for i := range cols {
		to := dst[i*stepDst:][:channels]
		copy(to, w[len(offsets)*rowW:])
		for t, offset := range offsets {
			row := w[t*rowW:]
			for c, x := range src[i*stepSrc+offset:][:channels] {
				to[c] += float32(row[c] * x)
			}
		}
	}
}

func dotsAcross(sums, y, src []float32, offsets []int, rows, cols, channels, rowY, stepY, rowSrc, stepSrc, rowSums int) {
	for t := range DotTaps {
		sum := sums[t*rowSums:][:channels]
		for r := range rows {
			for i := range cols {
				from := src[r*rowSrc+i*stepSrc+offsets[t]:][:channels]
				for c, x := range y[r*rowY+i*stepY:][:channels] {
					sum[c] += float32(x * from[c])
				}
			}
		}
	}
}
