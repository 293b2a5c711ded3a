package patch

// Taps sets rows of dst, of cols floats each, to bias, or with add to themselves, plus Σ over t of w[t]·src[offsets[t]+i]
// for element i of the row: a channel of a depthwise convolution. Rows are rowDst and rowSrc apart. It may read up to 15
// floats beyond those of src.
type Taps func(dst, src, w []float32, offsets []int, rows, cols, rowSrc, rowDst int, bias float32, add bool)

// Dots adds to DotLanes sums for each of DotTaps offsets the products of rows of y with the elements of src from the
// offset on, the product of column i to sum i modulo the lanes of the tier.
type Dots func(sums, y, src []float32, offsets []int, rows, cols, rowY, rowSrc int)

// DotTaps is how many offsets Dots takes, and DotLanes how many sums it may have for each: those of tap t begin at
// t·lanes, where lanes is [Kernels.Lanes].
const (
	DotTaps  = 3
	DotLanes = 16
)

func taps(dst, src, w []float32, offsets []int, rows, cols, rowSrc, rowDst int, bias float32, add bool) {
	for r := range rows {
		row, from := dst[r*rowDst:][:cols], src[r*rowSrc:]
		if !add {
			for i := range row {
				row[i] = bias
			}
		}
		for t, x := range w {
			for i, v := range from[offsets[t]:][:cols] {
				row[i] += float32(x * v)
			}
		}
	}
}

func dots(sums, y, src []float32, offsets []int, rows, cols, rowY, rowSrc int) {
	for t := range DotTaps {
		sum := sums[t]
		for r := range rows {
			from := src[r*rowSrc+offsets[t]:][:cols]
			for i, v := range y[r*rowY:][:cols] {
				sum += float32(v * from[i])
			}
		}
		sums[t] = sum
	}
}

// Spread sets element i·step of rows of dst, rowDst apart, to element i of rows of cols floats of src, rowSrc apart, and
// writes nothing else.
type Spread func(dst, src []float32, rows, cols, rowSrc, rowDst, step int)

func spread(dst, src []float32, rows, cols, rowSrc, rowDst, step int) {
	for r := range rows {
		to := dst[r*rowDst:]
		for i, x := range src[r*rowSrc:][:cols] {
			to[i*step] = x
		}
	}
}
