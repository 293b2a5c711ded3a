package conv

// problem is a convolution as the loops see it: of three dimensions, those that a Shape lacks of size 1, and not
// transposed. A transposed convolution is the adjoint of its problem, whose y is its x.
type problem struct {
	batch, groups int
	cin, cout     int // channels a group, of x and of y
	in, out       [3]int
	kernel        [3]int
	stride        [3]int
	dilation      [3]int
	pad           [3]int // before x
	last          bool   // channels are last
}

func newProblem(s *Shape) problem {
	g := or1(s.Groups)
	p := problem{batch: s.Batch, groups: g, cin: s.In / g, cout: s.Out / g, last: s.Layout == ChannelsLast}
	size, outSize := s.Size, s.outSize()
	if s.Transposed {
		p.cin, p.cout, size, outSize = p.cout, p.cin, outSize, size
	}
	for i := range 3 {
		p.in[i], p.out[i], p.kernel[i], p.stride[i], p.dilation[i] = 1, 1, 1, 1, 1
	}
	for i := range s.Dims {
		at := 3 - s.Dims + i
		p.in[at], p.out[at], p.kernel[at], p.pad[at] = size[i], outSize[i], s.Kernel[i], s.PadBefore[i]
		p.stride[at], p.dilation[at] = or1(s.Stride[i]), or1(s.Dilation[i])
	}
	if p.pointwise() {
		p.in = [3]int{1, 1, volume(p.in)} // no position reads its neighbours
		p.out = p.in
	}
	return p
}

// pointwise says whether each position of y reads its own of x, and nothing else.
func (p *problem) pointwise() bool {
	return p.kernel == [3]int{1, 1, 1} && p.stride == [3]int{1, 1, 1} && p.pad == [3]int{} && p.in == p.out
}

func volume(n [3]int) int { return n[0] * n[1] * n[2] }

// axis is a dimension of a correlation: for tap i, element j of the result reads element j·step + off + i·offStep of
// the source, or 0 where the source has none. The tap is element tap + i·tapStep of the kernel, and the element of the
// result lies at out + j·outStep of outSize.
type axis struct {
	n, size               int // elements of the result and of the source
	step, off, offStep    int
	taps, tap, tapStep    int
	out, outStep, outSize int
}

// gatherAxis is the axis i of y as a function of x.
func (p *problem) gatherAxis(i int) axis {
	return axis{
		n: p.out[i], size: p.in[i], step: p.stride[i], off: -p.pad[i], offStep: p.dilation[i],
		taps: p.kernel[i], tapStep: 1, outStep: 1, outSize: p.out[i],
	}
}

// gatherPhase is the only phase of y as a function of x.
func (p *problem) gatherPhase() phase {
	return phase{[3]axis{p.gatherAxis(0), p.gatherAxis(1), p.gatherAxis(2)}}
}

// phases returns how many parts the elements of x in dimension i make, of which each has its own taps: those that are
// equal modulo the stride.
func (p *problem) phases(i int) int { return min(p.stride[i], p.in[i]) }

// scatterAxis is the axis i of the phase of x as a function of y. Element q of x is read by tap t of element
// (q + pad − t·dilation)/stride of y, if the division is exact.
func (p *problem) scatterAxis(i, phase int) axis {
	stride, dilation := p.stride[i], p.dilation[i]
	a := axis{
		n: (p.in[i]-phase-1)/stride + 1, size: p.out[i], step: 1,
		out: phase, outStep: stride, outSize: p.in[i], tapStep: stride / gcd(stride, dilation),
	}
	for a.tap < min(a.tapStep, p.kernel[i]) && (phase+p.pad[i]-a.tap*dilation)%stride != 0 {
		a.tap++
	}
	if a.tap < min(a.tapStep, p.kernel[i]) {
		a.taps = (p.kernel[i]-a.tap-1)/a.tapStep + 1
	}
	a.off = (phase + p.pad[i] - a.tap*dilation) / stride
	a.offStep = -dilation / gcd(stride, dilation) // tapStep·dilation is a multiple of the stride
	return a
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// inside returns which of n elements of a result, the first of which reads the source at element first, read an
// element that there is.
func (a *axis) inside(first, n int) (lo, hi int) {
	if first < 0 {
		lo = min((-first+a.step-1)/a.step, n)
	}
	if first < a.size {
		hi = min((a.size-first-1)/a.step+1, n)
	}
	return lo, max(lo, hi)
}

// phase is a part of a correlation whose elements have the same taps.
type phase struct{ axes [3]axis }

func (p *phase) positions() int { return p.axes[0].n * p.axes[1].n * p.axes[2].n }
func (p *phase) taps() int      { return p.axes[0].taps * p.axes[1].taps * p.axes[2].taps }

// dense says whether the elements of the result lie side by side.
func (p *phase) dense() bool {
	return p.axes[0].outStep == 1 && p.axes[1].outStep == 1 && p.axes[2].outStep == 1
}

// even says whether the source is as large as the result, which reads it side by side.
func (p *phase) even() bool {
	for _, a := range p.axes {
		if a.n != a.size || a.step != 1 {
			return false
		}
	}
	return true
}

// tap returns the components of tap t.
func (p *phase) tap(t int) (z, y, x int) {
	x, t = t%p.axes[2].taps, t/p.axes[2].taps
	return t / p.axes[1].taps, t % p.axes[1].taps, x
}

// kernelTap returns the element of the kernel that tap t is.
func (p *phase) kernelTap(t int, kernel [3]int) int {
	z, y, x := p.tap(t)
	return (p.axes[0].element(z)*kernel[1]+p.axes[1].element(y))*kernel[2] + p.axes[2].element(x)
}

func (a *axis) element(tap int) int { return a.tap + tap*a.tapStep }

// read returns where an element of the result reads the source for a tap.
func (a *axis) read(j, tap int) int { return j*a.step + a.off + tap*a.offStep }

// runs are the elements of a result from one to another, image after image, in runs along the last dimension.
type runs struct {
	phase  *phase
	at     [3]int // of the run in an image
	image  int
	len    int
	col    int // of the run among the elements
	left   int
	nextAt int // the element that follows, among those of all images
}

func newRuns(p *phase, lo, hi int) runs { return runs{phase: p, left: hi - lo, nextAt: lo} }

// next moves to the next run, if there is one.
func (r *runs) next() bool {
	if r.left == 0 {
		return false
	}
	r.col += r.len
	a := &r.phase.axes
	rest := r.nextAt
	rest, r.at[2] = rest/a[2].n, rest%a[2].n
	rest, r.at[1] = rest/a[1].n, rest%a[1].n
	r.image, r.at[0] = rest/a[0].n, rest%a[0].n
	r.len = min(a[2].n-r.at[2], r.left)
	r.left -= r.len
	r.nextAt += r.len
	return true
}

// skip leaves out n elements after the run.
func (r *runs) skip(n int) {
	r.nextAt += n
	r.left -= n
	r.len += n
}

// place returns the run's first element in an image of the whole result.
func (r *runs) place() int {
	a := &r.phase.axes
	at := 0
	for i := range a {
		at = at*a[i].outSize + a[i].out + r.at[i]*a[i].outStep
	}
	return at
}

// span is a part of a run as a tap reads it: elements lo to hi-1 of the run read the source, the first of them at
// element at of its image; the others read 0.
type span struct{ lo, hi, at int }

// span returns what tap t of the run reads.
func (r *runs) span(t int) span {
	a := &r.phase.axes
	tz, ty, tx := r.phase.tap(t)
	z, y, x := a[0].read(r.at[0], tz), a[1].read(r.at[1], ty), a[2].read(r.at[2], tx)
	at := (z*a[1].size+y)*a[2].size + x
	if uint(z) >= uint(a[0].size) || uint(y) >= uint(a[1].size) {
		return span{0, 0, at}
	}
	lo, hi := a[2].inside(x, r.len)
	return span{lo, hi, at + lo*a[2].step}
}

// cutAt shortens the run to its elements before a multiple of n among all elements, and leaves the others for next.
func (r *runs) cutAt(n int) {
	if most := n - r.col%n; r.len > most {
		r.left += r.len - most
		r.nextAt -= r.len - most
		r.len = most
	}
}
