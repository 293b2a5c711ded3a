package neon

// Elem is an element type of slices, float32 in registers.
type Elem struct {
	Name string // as it stands in names of functions
	Go   string // the type in signatures
	Size int
}

// The element types. bfloat16 is the upper half of a float32.
var (
	Float32  = Elem{"F32", "float32", 4}
	Float16  = Elem{"F16", "snug.Float16", 2}
	BFloat16 = Elem{"BF16", "snug.BFloat16", 2}
	Pair     = Elem{"", "", 8}          // two float32, which a loop does not load itself
	Uint16   = Elem{"U16", "uint16", 2} // integers in registers
)

// Lanes is how many elements a vector has.
const Lanes = 4

// Loop is a loop over slices of one length, a vector of each at a time, and the
// last elements one by one, in lane 0 of vectors.
type Loop struct {
	*Func
	elems map[string]Elem
	ptr   map[string]R
	order []string
	left  R // elements
	one   bool
	round map[Elem]func(d, x V)
	lane0 V // the mask of lane 0, if Keep is used
}

// Loop prepares a loop over slices of the elements given by f32 names.
func (f *Func) Loop(slices ...string) *Loop {
	l := &Loop{Func: f, elems: map[string]Elem{}, ptr: map[string]R{}, round: map[Elem]func(d, x V){}}
	for _, s := range slices {
		l.Slice(s, Float32)
	}
	return l
}

// Slice adds a slice of other elements.
func (l *Loop) Slice(name string, e Elem) *Loop {
	l.elems[name], l.ptr[name] = e, l.Param(name+"_base")
	if len(l.order) == 0 {
		l.left = l.Param(name + "_len")
	}
	l.order = append(l.order, name)
	return l
}

// Rounding sets up the constants for storing elements of type e.
func (l *Loop) Rounding(e Elem) *Loop {
	if e == BFloat16 {
		l.round[e] = l.RoundBFloat16()
	}
	return l
}

// Each emits the loop. body gets the number of a vector within a group and
// frees the registers that it takes.
func (l *Loop) Each(group int, body func(u int)) {
	if group > 1 {
		l.pass("group", group*Lanes, "vectors", func() {
			for u := range group {
				l.Scope(func() { body(u) })
			}
		})
	}
	l.pass("vectors", Lanes, "single", func() { l.Scope(func() { body(0) }) })
	l.one = true
	l.pass("single", 1, "done", func() { l.Scope(func() { body(0) }) })
	l.one = false
	l.Label("done")
}

// pass emits a loop over n elements at a time.
func (l *Loop) pass(label string, n int, next string, body func()) {
	l.Label(label)
	l.Go("CMP $%d, %s", n, l.left)
	l.Go("BLT %s", next)
	body()
	for _, s := range l.order {
		l.Go("ADD $%d, %s", n*l.elems[s].Size, l.ptr[s])
	}
	l.Go("SUB $%d, %s", n, l.left)
	l.Go("B %s", label)
}

// Load returns vector u of a slice.
func (l *Loop) Load(slice string, u int) V {
	e := l.elems[slice]
	if l.one {
		return l.LoadOne(e, l.ptr[slice])
	}
	return l.Func.Load(e, l.ptr[slice], u*Lanes)
}

// Store writes vector u of a slice. It rounds v in place.
func (l *Loop) Store(v V, slice string, u int) {
	e := l.elems[slice]
	switch e {
	case Float16:
		l.Do(FCVTN(v, v))
	case BFloat16:
		l.round[e](v, v)
	}
	to, offset := l.ptr[slice], u*Lanes*e.Size
	switch {
	case l.one && e.Size == 2:
		l.Do(STRH(v, to))
	case l.one:
		l.Go("FMOVS %s, (%s)", v, to)
	case e.Size == 2:
		l.Go("FMOVD %s, %d(%s)", v, offset, to)
	default:
		l.Go("FMOVQ %s, %d(%s)", v, offset, to)
	}
}

// Keeping sets up the constant for Keep.
func (l *Loop) Keeping() *Loop {
	l.lane0 = l.V()
	l.Go("MOVD $0xffffffff, R16")
	l.Go("FMOVD R16, %s", l.lane0)
	return l
}

// Keep zeroes the lanes of v that hold no element.
func (l *Loop) Keep(v V) {
	if l.one {
		l.Do(AND(v, v, l.lane0))
	}
}

// Or returns v, with the lanes of other where v holds no element. It needs
// Keeping.
func (l *Loop) Or(v, other V) V {
	if !l.one {
		return v
	}
	mask := l.V()
	l.Do(MOV(mask, l.lane0), BSL(mask, v, other))
	return mask
}

// One reports whether the loop at hand has single elements, in lane 0.
func (l *Loop) One() bool { return l.one }

// Ptr returns the pointer to the elements of a slice at hand.
func (l *Loop) Ptr(slice string) R { return l.ptr[slice] }

// Load returns four elements, from element i after base on.
func (f *Func) Load(e Elem, base R, i int) V {
	v := f.V()
	if e.Size == 2 {
		f.Go("FMOVD %d(%s), %s", i*e.Size, base, v)
	} else {
		f.Go("FMOVQ %d(%s), %s", i*e.Size, base, v)
	}
	f.widen(e, v)
	return v
}

// LoadOne returns one element in lane 0.
func (f *Func) LoadOne(e Elem, base R) V {
	v := f.V()
	if e.Size == 2 {
		f.Do(LDRH(v, base))
	} else {
		f.Go("FMOVS (%s), %s", base, v)
	}
	f.widen(e, v)
	return v
}

// widen converts four elements in the lower half of v to 32 bits.
func (f *Func) widen(e Elem, v V) {
	switch e {
	case Float16:
		f.Do(FCVTL(v, v))
	case BFloat16:
		f.Do(SHLL(v, v))
	case Uint16:
		f.Do(UXTL(v, v))
	}
}

// RoundBFloat16 sets up constants and returns what rounds x to four bfloat16 in
// the lower half of d: adding 0x7fff and the lowest bit that stays rounds to
// nearest even.
func (f *Func) RoundBFloat16() func(d, x V) {
	one, bias, quiet := f.Word(1), f.Word(0x7fff), f.QuietNaN()
	return func(d, x V) {
		sum := f.V()
		f.Do(USHR(sum, x, 16), AND(sum, sum, one), ADD(sum, sum, bias), ADD(sum, sum, x))
		quiet(d, x, sum)
	}
}

// QuietNaN sets up a constant and returns what takes the upper halves of sum to
// the lower half of d, or those of x, made quiet, where x is NaN.
func (f *Func) QuietNaN() func(d, x, sum V) {
	bit := f.Word(0x00400000)
	return func(d, x, sum V) {
		number, nan := f.V(), f.V()
		f.Do(FCMEQ(number, x, x), ORR(nan, x, bit), BSL(number, sum, nan), SHRN(d, number))
	}
}

// Combine reduces vectors to one element in lane 0 of the first, pairwise: with
// op of whole vectors, and pairs of neighbours.
func (f *Func) Combine(acc []V, op, pairs func(d, n, m V) Instruction) V {
	for ; len(acc) > 1; acc = acc[:len(acc)/2] {
		for i := range len(acc) / 2 {
			f.Do(op(acc[i], acc[i], acc[i+len(acc)/2]))
		}
	}
	v := acc[0]
	f.Do(pairs(v, v, v), pairs(v, v, v))
	return v
}

// Sum reduces accumulators to their sum.
func (f *Func) Sum(acc []V) V { return f.Combine(acc, FADD, FADDP) }
