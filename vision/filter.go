package vision

import "math"

// Filter is a way to weigh pixels when an image is resized, with the numbers of Pillow's Resampling, which the field resample has.
type Filter int

// The filters. A filter has the support of its kernel, stretched by the scale when the image shrinks.
const (
	Nearest  Filter = iota // the pixel at the centre
	Lanczos                // sinc(x) sinc(x/3), |x| < 3
	Bilinear               // a triangle, |x| < 1
	Bicubic                // Keys' cubic with a = -0.5, |x| < 2
	Box                    // the mean, |x| < 0.5
	Hamming                // sinc(x) (0.54 + 0.46 cos(πx)), |x| < 1
)

// kernel is a filter's name, weight and the distance beyond which it is 0.
type kernel struct {
	name    string
	weight  func(x float64) float64 // nil for Nearest
	support float64
}

// kernels are the filters, as Pillow's Resample.c defines them.
var kernels = []kernel{
	Nearest: {"nearest", nil, 0},
	Lanczos: {"lanczos", func(x float64) float64 {
		if -3 <= x && x < 3 {
			return sinc(x) * sinc(x/3)
		}
		return 0
	}, 3},
	Bilinear: {"bilinear", func(x float64) float64 { return max(1-math.Abs(x), 0) }, 1},
	Bicubic: {"bicubic", func(x float64) float64 {
		const a = -0.5
		switch x = math.Abs(x); {
		case x < 1:
			return float64(float64(float64(float64((a+2)*x)-(a+3))*x)*x) + 1
		case x < 2:
			return float64(float64(float64(float64(float64(x-5)*x)+8)*x)-4) * a
		}
		return 0
	}, 2},
	Box: {"box", func(x float64) float64 {
		if -0.5 < x && x <= 0.5 {
			return 1
		}
		return 0
	}, 0.5},
	Hamming: {"hamming", func(x float64) float64 {
		switch x = math.Abs(x); {
		case x == 0:
			return 1
		case x >= 1:
			return 0
		}
		x *= math.Pi
		return math.Sin(x) / x * (0.54 + float64(0.46*math.Cos(x)))
	}, 1},
}

func sinc(x float64) float64 {
	if x == 0 {
		return 1
	}
	x *= math.Pi
	return math.Sin(x) / x
}

func (f Filter) known() bool { return f >= 0 && int(f) < len(kernels) }

// String returns the name of the filter.
func (f Filter) String() string {
	if !f.known() {
		return "unknown"
	}
	return kernels[f].name
}
