package patch

// TapsAcross computes lines of a depthwise convolution whose channels lie side by side: element c of position i of line l of dst is
// bias[c] plus Σ over rows r of the kernel and their taps t of w[r.W+t·StepW+c]·src[r.Src+l·LineSrc+(i·Step+t)·StepSrc+c].
type TapsAcross func(dst, src, w, bias []float32, rows []AcrossRow, a Across)

// AcrossRow is a row of taps of a kernel: where the first of them reads src for the first position of the first line, and where its weights begin.
type AcrossRow struct{ Src, W int }

// Across says what TapsAcross computes. Distances are in elements.
type Across struct {
	Taps          int // of a row, 1 to 3
	Step          int // positions of src from one of dst to the next: 1, or with 3 taps up to 2
	Lines, Cols   int
	Channels      int // a multiple of AcrossLanes
	LineSrc       int // from line to line
	LineDst       int
	StepSrc       int // from position to position
	StepDst       int
	StepW         int  // from tap to tap
	Before, After bool // the first tap of the first position of a line, and the last of the last, read 0, if there are several
}

// DotsAcross adds to the gradient of the weights, for rows of 1 or 3 taps: to sums[r.W+t·StepW+c] for each row r, its taps t and
// channels c the products of positions of y, which lie as TapsAcross writes them, with what the tap reads of src. If Before and After
// are set, there are at least two positions.
type DotsAcross func(sums, y, src []float32, rows []AcrossRow, a Across)

// AcrossLanes divides the channels that TapsAcross and DotsAcross take.
const AcrossLanes = 16

func tapsAcross(dst, src, w, bias []float32, rows []AcrossRow, a Across) {
	for l := range a.Lines {
		for i := range a.Cols {
			to := dst[l*a.LineDst+i*a.StepDst:][:a.Channels]
			copy(to, bias)
			for _, r := range rows {
				for t := range a.Taps {
					if a.outside(i, t) {
						continue
					}
					row := w[r.W+t*a.StepW:]
					for c, x := range src[r.Src+l*a.LineSrc+(i*a.Step+t)*a.StepSrc:][:a.Channels] {
						to[c] += float32(row[c] * x)
					}
				}
			}
		}
	}
}

func dotsAcross(sums, y, src []float32, rows []AcrossRow, a Across) {
	for l := range a.Lines {
		for i := range a.Cols {
			from := y[l*a.LineDst+i*a.StepDst:][:a.Channels]
			for _, r := range rows {
				for t := range a.Taps {
					if a.outside(i, t) {
						continue
					}
					sum := sums[r.W+t*a.StepW:][:a.Channels]
					for c, x := range src[r.Src+l*a.LineSrc+(i*a.Step+t)*a.StepSrc:][:a.Channels] {
						sum[c] += float32(from[c] * x)
					}
				}
			}
		}
	}
}

// outside says whether a tap reads 0 for position i of a line.
func (a *Across) outside(i, tap int) bool {
	return a.Taps > 1 && (a.Before && i+tap == 0 || a.After && i == a.Cols-1 && tap == a.Taps-1)
}

// edges has a bit for Before and one for After.
func (a *Across) edges() (bits int) {
	if a.Before {
		bits = 1
	}
	if a.After {
		bits |= 2
	}
	return bits
}
