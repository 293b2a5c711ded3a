package conv

import (
	"fmt"
	"math/bits"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/device"
)

// PoolShape says what a pooling is. Of the arrays the first Dims elements count, the outermost dimension first; the others are
// 0. Batch may be 0; Channels and Size are at least 1, and so is Kernel, unless Adaptive is set. Other fields of 0 mean PyTorch's
// defaults. No number is above 2^28.
type PoolShape struct {
	Batch, Channels int

	Dims     int    // 1, 2 or 3
	Size     [3]int // of x
	Kernel   [3]int // elements of a window
	Stride   [3]int // 0 means Kernel: windows beside each other
	Dilation [3]int // elements from tap to tap, of [MaxPool] only; 0 means 1

	// Padding, at most half of a window. A maximum leaves it out; a mean takes it for zeros, unless SkipPadding is set.
	PadBefore, PadAfter [3]int
	SkipPadding         bool // the mean leaves the padding out (count_include_pad=False)
	Ceil                bool // a last window may reach beyond the end, if it begins before it (ceil_mode=True)

	// Adaptive, if it is not zero, is the size of y. Its window i reaches from ⌊i·Size/Adaptive⌋ to ⌈(i+1)·Size/Adaptive⌉, as in
	// PyTorch's adaptive pooling: {1, 1} is the mean, or the maximum, of a channel. Kernel and the fields after it are then 0.
	Adaptive [3]int

	Layout Layout // of x and y
}

// Check reports what is wrong with p, for [MaxPool]; [AvgPool] wants no Dilation, too. Errors wrap [snug.ErrConfig] for Dims,
// Layout and fields that exclude one another, else [snug.ErrShape]. The functions of this package check so themselves.
func (p PoolShape) Check() error {
	if err := p.check(); err != nil {
		return fmt.Errorf("conv: %w", err)
	}
	return nil
}

func (p *PoolShape) check() error {
	if err := checkFrame(p.Dims, p.Layout, p.Batch, "Channels", p.Channels); err != nil {
		return err
	}
	adaptive := p.Adaptive != [3]int{}
	if adaptive {
		rest := PoolShape{Batch: p.Batch, Channels: p.Channels, Dims: p.Dims, Size: p.Size, Adaptive: p.Adaptive, Layout: p.Layout}
		if *p != rest {
			return fmt.Errorf("the shape is Adaptive and has a Kernel, Stride, Dilation, padding or Ceil, want them 0: Adaptive makes the windows: %w", snug.ErrConfig)
		}
	}
	for i := range 3 {
		least, kernel := 0, 0
		if i < p.Dims {
			least, kernel = 1, 1
		}
		if adaptive {
			kernel = 0
		}
		for _, f := range [...]field{
			{"Size", p.Size[i], least}, {"Adaptive", p.Adaptive[i], least - kernel}, {"Kernel", p.Kernel[i], kernel}, {"Stride", p.Stride[i], 0},
			{"Dilation", p.Dilation[i], 0}, {"PadBefore", p.PadBefore[i], 0}, {"PadAfter", p.PadAfter[i], 0},
		} {
			if err := f.check(i, p.Dims); err != nil {
				return err
			}
		}
		if i >= p.Dims || adaptive {
			continue
		}
		w := p.windows(i)
		if w.extent() > maxField {
			return fmt.Errorf("the windows have %d elements in dimension %d, want at most 2^28: %w", w.extent(), i, snug.ErrShape)
		}
		for _, f := range [...]field{{name: "PadBefore", value: p.PadBefore[i]}, {name: "PadAfter", value: p.PadAfter[i]}} {
			if int64(f.value) > w.extent()/2 {
				return fmt.Errorf("%s[%d] is %d, want at most half of the %d elements of a window: %w", f.name, i, f.value, w.extent(), snug.ErrShape)
			}
		}
		if n := w.count(p.Ceil); n < 1 || n > maxField {
			return fmt.Errorf("y's size [%d] would be %d, want 1 to 2^28: %w", i, n, snug.ErrShape)
		}
	}
	if p.xLen() > maxLen || p.yLen() > maxLen || p.taps() > maxField {
		return fmt.Errorf("more elements than memory can hold, or more than 2^28 in a window: %w", snug.ErrShape)
	}
	return nil
}

// OutSize returns y's size, in its first Dims elements; zeros if [PoolShape.Check] reports an error.
func (p PoolShape) OutSize() [3]int {
	if p.check() != nil {
		return [3]int{}
	}
	return p.outSize()
}

// XLen returns the elements of x, [Batch, Channels, Size…] or [Batch, Size…, Channels]; 0 if [PoolShape.Check] reports an
// error.
func (p PoolShape) XLen() int { return p.checked((*PoolShape).xLen) }

// YLen returns the elements of y, as XLen those of x.
func (p PoolShape) YLen() int { return p.checked((*PoolShape).yLen) }

// IndexLen returns the bytes of the index of [MaxPool]: 2 bits an element for windows of up to 4 elements, 4 bits up to 16, a byte
// up to 256, with each row of y, or of channels, from the start of a byte. It is 0 if [PoolShape.Check] reports an error.
func (p PoolShape) IndexLen() int { return p.checked((*PoolShape).indexLen) }

func (p *PoolShape) checked(n func(*PoolShape) int) int {
	if p.check() != nil {
		return 0
	}
	return n(p)
}

func (p *PoolShape) outSize() (size [3]int) {
	size = p.Adaptive
	if size == [3]int{} {
		for i := range p.Dims {
			w := p.windows(i)
			size[i] = int(w.count(p.Ceil))
		}
	}
	return size
}

func (p *PoolShape) xLen() int { return elements(p.Batch, p.Channels, p.Size, p.Dims) }
func (p *PoolShape) yLen() int { return elements(p.Batch, p.Channels, p.outSize(), p.Dims) }

// taps returns the elements of the largest window.
func (p *PoolShape) taps() int {
	n := 1
	for i := range p.Dims {
		w := p.windows(i)
		n = product(n, w.kernel)
	}
	return n
}

// indexBits returns the bits that tell the elements of a window apart: a power of two.
func (p *PoolShape) indexBits() int {
	for n := 1; ; n *= 2 {
		if bits.Len(uint(p.taps()-1)) <= n {
			return n
		}
	}
}

// rows returns how many rows y has, and the elements of one: a row of the index begins with a byte. A row is the last dimension, or the channels.
func (p *PoolShape) rows() (rows, lanes int) {
	lanes = p.outSize()[p.Dims-1]
	if p.Layout == ChannelsLast {
		lanes = p.Channels
	}
	return p.yLen() / lanes, lanes
}

func (p *PoolShape) indexLen() int {
	rows, lanes := p.rows()
	return product(rows, indexBytes(lanes, p.indexBits()))
}

func indexBytes(lanes, bits int) int { return (lanes*bits + 7) / 8 }

// windows are the windows of one dimension.
type windows struct {
	in, out          int
	kernel           int // the most elements of a window
	stride, dilation int
	before, after    int // padding
	adaptive         bool
}

// windows returns those of dimension i; count is to be asked for the size of y, unless it is Adaptive.
func (p *PoolShape) windows(i int) windows {
	if out := p.Adaptive[i]; out > 0 {
		w := windows{in: p.Size[i], out: out, kernel: p.Size[i] / out, dilation: 1, adaptive: true}
		if p.Size[i]%out != 0 {
			w.kernel = min(w.kernel+2, p.Size[i])
		}
		return w
	}
	w := windows{in: p.Size[i], kernel: p.Kernel[i], stride: p.Stride[i], dilation: or1(p.Dilation[i]), before: p.PadBefore[i], after: p.PadAfter[i]}
	if w.stride == 0 {
		w.stride = w.kernel
	}
	return w
}

// all returns the windows as those of three dimensions, those that a shape lacks of size 1.
func (p *PoolShape) all() (all [3]windows) {
	out := p.outSize()
	for i := range all {
		all[i] = windows{in: 1, out: 1, kernel: 1, stride: 1, dilation: 1}
	}
	for i := range p.Dims {
		w := &all[3-p.Dims+i]
		*w = p.windows(i)
		w.out = out[i]
	}
	return all
}

// extent returns the elements from a window's first to its last.
func (w *windows) extent() int64 { return int64(w.dilation)*int64(w.kernel-1) + 1 }

// count returns how many windows there are.
func (w *windows) count(ceil bool) int64 {
	rest := int64(w.in) + int64(w.before) + int64(w.after) - w.extent()
	if rest < 0 {
		return 0
	}
	n := rest/int64(w.stride) + 1
	if ceil && rest%int64(w.stride) != 0 && n*int64(w.stride) < int64(w.in)+int64(w.before) {
		n++
	}
	return n
}

// start returns where window o begins; before 0 in the padding.
func (w *windows) start(o int) int {
	if w.adaptive {
		return int(int64(o) * int64(w.in) / int64(w.out))
	}
	return o*w.stride - w.before
}

// taps returns which taps of window o lie in x: those from lo up to hi.
func (w *windows) taps(o int) (lo, hi int) {
	if w.adaptive {
		return 0, int((int64(o+1)*int64(w.in)+int64(w.out)-1)/int64(w.out)) - w.start(o)
	}
	start := w.start(o)
	if start < 0 {
		lo = (-start + w.dilation - 1) / w.dilation
	}
	return lo, max(lo, min(w.kernel, (w.in-start+w.dilation-1)/w.dilation))
}

// divisor returns the elements by which a mean divides in this dimension.
func (w *windows) divisor(o int, skip bool) int {
	if lo, hi := w.taps(o); skip || w.adaptive {
		return hi - lo
	}
	start := w.start(o)
	return min(start+w.kernel, w.in+w.after) - start
}

// of returns the windows that may hold element i: those from lo up to hi.
func (w *windows) of(i int) (lo, hi int) {
	if w.adaptive {
		in, out := int64(w.in), int64(w.out)
		return int(int64(i) * out / in), int((int64(i+1)*out + in - 1) / in)
	}
	at := i + w.before
	if over := int64(at) - w.extent() + 1; over > 0 {
		lo = int((over + int64(w.stride) - 1) / int64(w.stride))
	}
	return lo, min(at/w.stride+1, w.out)
}

// tap returns the tap of window o that element i is, if it is one.
func (w *windows) tap(i, o int) (k int, ok bool) {
	k = i - w.start(o)
	if k < 0 || k%w.dilation != 0 {
		return 0, false
	}
	k /= w.dilation
	lo, hi := w.taps(o)
	return k, k >= lo && k < hi
}

// MaxPool computes y, the largest elements of the windows of x, and which element of its window each of them is:
//
//	y[b, c, p] = max over t of x[b, c, p·Stride + t·Dilation − PadBefore]
//
// over the taps t that lie in x; −Inf where none does, which a Dilation can cause. Of equal elements the first counts, and a NaN
// counts as the largest, as in PyTorch.
//
// x has [PoolShape.XLen] elements, y [PoolShape.YLen]. index has [PoolShape.IndexLen] bytes, or none where there is no backward pass:
// pass []byte(nil). The index is all that [MaxPoolBackward] needs, 4 bits an element of y for windows of 3×3 and 2 for 2×2. y and
// index may not overlap another operand.
func MaxPool[V snug.Vector, I snug.Vector8](y V, index I, x V, p PoolShape) error {
	const op = "MaxPool"
	job := poolJob{y: snug.ViewOf(y), x: snug.ViewOf(x), index: snug.ViewOf8(index), shape: p, max: true}
	return job.start(op, "y", job.y, operand{"x", job.x}, true)
}

// MaxPoolBackward computes the gradient of [MaxPool]'s x from the gradient dy of its y and its index:
//
//	dx[b, c, q] ← Σ over the windows p whose largest element is q of dy[b, c, p]
//
// where ← applies into, see [snug.Into]. Lengths are those of MaxPool. dx may not overlap the others.
func MaxPoolBackward[V snug.Vector, I snug.Vector8](dx, dy V, index I, p PoolShape, into snug.Into) error {
	const op = "MaxPoolBackward"
	job := poolJob{y: snug.ViewOf(dy), x: snug.ViewOf(dx), index: snug.ViewOf8(index), shape: p, into: into, max: true, backward: true}
	return job.start(op, "dx", job.x, operand{"dy", job.y}, false)
}

// AvgPool computes y, the means of the windows of x:
//
//	y[b, c, p] = 1/n · Σ over t of x[b, c, p·Stride + t − PadBefore]
//
// over the taps t that lie in x. n is the elements of the window in x and its padding, or in x alone with SkipPadding or Adaptive, as
// in PyTorch. Lengths are those of [MaxPool]. y may not overlap x. Sums are float32, one element after the other.
func AvgPool[V snug.Vector](y, x V, p PoolShape) error {
	job := poolJob{y: snug.ViewOf(y), x: snug.ViewOf(x), shape: p}
	return job.start("AvgPool", "y", job.y, operand{"x", job.x}, true)
}

// AvgPoolBackward computes the gradient of [AvgPool]'s x from the gradient dy of its y:
//
//	dx[b, c, q] ← Σ over the windows p that hold q of dy[b, c, p]/n
//
// where ← applies into, see [snug.Into]. dx may not overlap dy.
func AvgPoolBackward[V snug.Vector](dx, dy V, p PoolShape, into snug.Into) error {
	job := poolJob{y: snug.ViewOf(dy), x: snug.ViewOf(dx), shape: p, into: into, backward: true}
	return job.start("AvgPoolBackward", "dx", job.x, operand{"dy", job.y}, false)
}

// start checks a job and runs it. optional: the index may be empty.
func (j *poolJob) start(op, result string, to snug.View, from operand, optional bool) (err error) {
	p := &j.shape
	if err = p.check(); err == nil && !j.max && p.Dilation != [3]int{} {
		err = fmt.Errorf("a mean with the Dilation %v, want 0: %w", p.Dilation, snug.ErrConfig)
	}
	if err != nil {
		return fmt.Errorf("conv: %s: %w", op, err)
	}
	if j.into.Alpha, j.into.Beta, err = j.into.Factors(); err != nil {
		return fmt.Errorf("conv: %s: %w", op, err)
	}
	if err := checkFloats(op, from, operand{result, to}); err != nil {
		return err
	}
	x, y := length{"x", j.x, p.xLen()}, length{"y", j.y, p.yLen()}
	if j.backward {
		x.name, y.name = "dx", "dy"
	}
	if err := checkLens(op, x, y); err != nil {
		return err
	}
	index := length{"index", j.index, p.indexLen()}
	switch {
	case !j.max:
	case optional:
		err = checkOptional(op, index)
	default:
		err = checkLens(op, index)
	}
	if err != nil {
		return err
	}
	dev, err := commonDevice(op, to, from.view, j.index)
	if err != nil {
		return err
	}
	if err := checkApart(op, operand{result, to}, from, operand{"index", j.index}); err != nil {
		return err
	}
	if err := checkApart(op, operand{"index", j.index}, from); err != nil {
		return err
	}
	return device.Run(dev, *j)
}
