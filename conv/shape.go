package conv

import (
	"fmt"
	"math"

	"github.com/snug-ml/snug"
)

// Layout is the order of the elements of x and y.
type Layout uint8

const (
	// ChannelsFirst is [batch, channel, position], PyTorch's NCW, NCHW or NCDHW.
	ChannelsFirst Layout = iota
	// ChannelsLast is [batch, position, channel], NWC, NHWC or NDHWC.
	ChannelsLast
)

// String returns "channels first" or "channels last".
func (l Layout) String() string {
	switch l {
	case ChannelsFirst:
		return "channels first"
	case ChannelsLast:
		return "channels last"
	}
	return fmt.Sprintf("Layout(%d)", uint8(l))
}

// Shape says what a convolution is. Of the arrays the first Dims elements count, the outermost dimension first:
// depth, height, width for Dims 3; the others are 0. Batch may be 0; In, Out, Size and Kernel are at least 1. Other
// fields of 0 mean PyTorch's defaults. No number is above 2^28.
type Shape struct {
	Batch   int
	In, Out int // channels of x and of y
	Groups  int // of channels, which are convolved apart; divides In and Out; 0 means 1

	Dims     int    // 1, 2 or 3
	Size     [3]int // of x
	Kernel   [3]int // taps
	Stride   [3]int // 0 means 1
	Dilation [3]int // elements from tap to tap; 0 means 1

	// Zeros that x is taken to have around it. Where Transposed is set, they are cut from y instead.
	PadBefore, PadAfter [3]int

	// Transposed makes the convolution the adjoint of one from y to x with the same stride, dilation and padding:
	// PyTorch's ConvTranspose. Stride then is how far apart the elements of x lie in y.
	Transposed bool
	// OutputPadding is what a transposed convolution adds to the size of y after its end, less than the stride or
	// the dilation. It chooses among the sizes of y that all have the given x.
	OutputPadding [3]int

	Layout Layout // of x and y
}

// maxField is the most that a field may be, so that sizes do not overflow 64 bits.
const maxField = 1 << 28

// or1 returns a field with its default.
func or1(n int) int { return max(n, 1) }

// Same returns s with the padding, and of a transposed convolution the output padding, with which y's size is x's
// size divided by the stride, rounded up, or multiplied by it. An odd zero goes after x, as in PyTorch and
// TensorFlow.
func (s Shape) Same() Shape {
	s.PadBefore, s.PadAfter, s.OutputPadding = [3]int{}, [3]int{}, [3]int{}
	for i := range min(max(s.Dims, 0), 3) {
		stride, extent := or1(s.Stride[i]), s.extent(i)
		if s.Transposed {
			s.OutputPadding[i] = int(max(int64(stride)-extent, 0))
			extent = max(extent, int64(stride))
		}
		pad := extent - int64(stride)
		if !s.Transposed {
			if over := s.Size[i] % stride; over != 0 {
				pad = extent - int64(over)
			}
		}
		pad = min(max(pad, 0), 2*maxField)
		s.PadBefore[i] = int(pad / 2)
		s.PadAfter[i] = int(pad - pad/2)
	}
	return s
}

// extent returns the elements from a kernel's first tap to its last.
func (s *Shape) extent(i int) int64 {
	return int64(or1(s.Dilation[i]))*int64(s.Kernel[i]-1) + 1
}

// Check reports what is wrong with s. Errors wrap [snug.ErrConfig] for Dims, Layout, and an OutputPadding that its
// stride and dilation do not allow, else [snug.ErrShape]. The functions of this package check so themselves.
func (s Shape) Check() error {
	if err := s.check(); err != nil {
		return fmt.Errorf("conv: %w", err)
	}
	return nil
}

func (s *Shape) check() error {
	if err := checkFrame(s.Dims, s.Layout, s.Batch, "In", s.In); err != nil {
		return err
	}
	if err := inRange("Out", s.Out, 1); err != nil {
		return err
	}
	if err := inRange("Groups", s.Groups, 0); err != nil {
		return err
	}
	if g := or1(s.Groups); s.In%g != 0 || s.Out%g != 0 {
		return fmt.Errorf("%d groups of %d channels in and %d out, want a divisor of both: %w", g, s.In, s.Out, snug.ErrShape)
	}
	for i := range 3 {
		if err := s.checkDim(i); err != nil {
			return err
		}
	}
	for _, n := range [...]int{s.xLen(), s.wLen(), s.yLen()} {
		if n == math.MaxInt {
			return fmt.Errorf("more elements than memory can hold: %w", snug.ErrShape)
		}
	}
	return nil
}

// checkDim checks dimension i.
func (s *Shape) checkDim(i int) error {
	least := 0
	if i < s.Dims {
		least = 1
	}
	for _, f := range [...]struct {
		name  string
		value int
		least int
	}{
		{"Size", s.Size[i], least}, {"Kernel", s.Kernel[i], least}, {"Stride", s.Stride[i], 0}, {"Dilation", s.Dilation[i], 0},
		{"PadBefore", s.PadBefore[i], 0}, {"PadAfter", s.PadAfter[i], 0}, {"OutputPadding", s.OutputPadding[i], 0},
	} {
		if i >= s.Dims && f.value != 0 {
			return fmt.Errorf("%s[%d] is %d, want 0 for Dims %d: %w", f.name, i, f.value, s.Dims, snug.ErrShape)
		}
		if f.value < f.least || f.value > maxField {
			return fmt.Errorf("%s[%d] is %d, want %d to 2^28: %w", f.name, i, f.value, f.least, snug.ErrShape)
		}
	}
	if i >= s.Dims {
		return nil
	}
	if o := s.OutputPadding[i]; o > 0 && (!s.Transposed || o >= max(or1(s.Stride[i]), or1(s.Dilation[i]))) {
		return fmt.Errorf("OutputPadding[%d] is %d, want 0, or of a transposed convolution less than the stride or the dilation: %w", i, o, snug.ErrConfig)
	}
	if n := s.outDim(i); n < 1 || n > maxField {
		return fmt.Errorf("y's size [%d] would be %d, want 1 to 2^28: %w", i, n, snug.ErrShape)
	}
	return nil
}

// inRange checks a field that is one number.
func inRange(name string, value, least int) error {
	if value < least || value > maxField {
		return fmt.Errorf("%s is %d, want %d to 2^28: %w", name, value, least, snug.ErrShape)
	}
	return nil
}

// outDim returns y's size in dimension i.
func (s *Shape) outDim(i int) int64 {
	size, stride, pads := int64(s.Size[i]), int64(or1(s.Stride[i])), int64(s.PadBefore[i])+int64(s.PadAfter[i])
	if s.Transposed {
		return (size-1)*stride - pads + s.extent(i) + int64(s.OutputPadding[i])
	}
	room := size + pads - s.extent(i)
	if room < 0 {
		return 0
	}
	return room/stride + 1
}

// OutSize returns y's size, in its first Dims elements; zeros if [Shape.Check] reports an error.
func (s Shape) OutSize() [3]int {
	if s.check() != nil {
		return [3]int{}
	}
	return s.outSize()
}

func (s *Shape) outSize() (size [3]int) {
	for i := range s.Dims {
		size[i] = int(s.outDim(i))
	}
	return size
}

func (s *Shape) positions(size [3]int) int {
	n := 1
	for _, x := range size[:s.Dims] {
		n = product(n, x)
	}
	return n
}

func (s *Shape) xLen() int { return product(product(s.Batch, s.In), s.positions(s.Size)) }
func (s *Shape) yLen() int { return product(product(s.Batch, s.Out), s.positions(s.outSize())) }
func (s *Shape) wLen() int {
	in, out := s.In, s.Out/or1(s.Groups)
	if !s.Transposed {
		in, out = s.In/or1(s.Groups), s.Out
	}
	return product(product(in, out), s.positions(s.Kernel))
}

// checked returns n of a shape that Check does not refuse, else 0.
func (s *Shape) checked(n func(*Shape) int) int {
	if s.check() != nil {
		return 0
	}
	return n(s)
}

// XLen returns the elements of x, [Batch, In, Size…] or [Batch, Size…, In]; 0 if [Shape.Check] reports an error.
func (s Shape) XLen() int { return s.checked((*Shape).xLen) }

// YLen returns the elements of y, [Batch, Out, OutSize…] or [Batch, OutSize…, Out]; 0 if [Shape.Check] reports an
// error.
func (s Shape) YLen() int { return s.checked((*Shape).yLen) }

// WLen returns the elements of w, [Out, In/Groups, Kernel…], or of a transposed convolution [In, Out/Groups,
// Kernel…], in either Layout; 0 if [Shape.Check] reports an error.
func (s Shape) WLen() int { return s.checked((*Shape).wLen) }

// BiasLen returns the elements of a bias, Out; 0 if [Shape.Check] reports an error.
func (s Shape) BiasLen() int { return s.checked(func(s *Shape) int { return s.Out }) }

// product returns a·b for a, b ≥ 0, or MaxInt, which no vector has, when it overflows.
func product(a, b int) int {
	if a != 0 && b > math.MaxInt/a {
		return math.MaxInt
	}
	return a * b
}
