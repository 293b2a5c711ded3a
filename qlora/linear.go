package qlora

import (
	"errors"
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/internal/device"
)

// defaultTile is the number of elements that a [Linear] decodes at a time by default.
const defaultTile = 1 << 20

// Linear multiplies by a frozen [Weight] of [out, in] elements:
//
//	y  = x·Wᵀ
//	dx = dy·W
//
// It decodes one tile of rows of W at a time and multiplies by it, so W never exists as a
// whole, unless it fits in a tile. Both products are [amp.MatMul] with float32 sums. For few rows of x, as in text
// generation, it decodes codes in registers, see [Linear.Forward] and [Linear.Backward]. A
// Linear is not safe for concurrent use.
//
// On devices other than the CPU, a product by a weight of 4 bits is one kernel without a tile, if in is a multiple of the
// block. Blocks of threads decode their part of W into their own memory, rounded to the type of the activations. The
// result has the error bound of amp.MatMul, and the same bits as a product by the whole decoded W with snug's own kernels.
//
// The exception is 512 or more rows of 16-bit activations where cuBLASLt or hipBLASLt is installed and has the products:
// the library multiplies by one tile after the other, each of 512 rows of W or more except the last. Elements of W are
// rounded as above, and the result has the error bound of amp.MatMul, but its bits depend on the library and the device.
// They are the same in every run with one version of the library on one device. With a tile of fewer rows, as with 1
// element in [NewLinear], the library is not used. This was tested against stand-ins for the libraries; it has not run
// on hardware.
type Linear struct {
	w       *Weight
	out, in int
	rows    int   // of a tile
	unit    int   // elements; parts of w begin at multiples of it
	block   int   // elements that the loops over codes take at a time; 0 if w is decoded to a tile always
	length  int   // elements of a tile
	sumRows int   // of activations that have float32 sums behind the tile
	tile    *tile // nil when l is closed
	shares  bool  // the tile of another Linear
}

// tile is the memory of a tile, empty until it is needed.
type tile struct {
	snug.View
	elements int // as NewLinear was given it
	free     func() error
	library  bool // of the device's vendor, which multiplies by tiles
	panels   bool // a product by the library may need the tile
	most     int  // elements that a Linear may need
}

// NewLinear returns a Linear that multiplies by w, a weight of two dimensions, with activations of type dt. Its tile has
// as many whole rows as fit in elements, at least one; 0 means 1 Mi elements. It takes the memory of a tile of dt and
// of up to 256 blocks more, on the weight's device. On devices other than the CPU, for 4 bits, if in is a multiple of the
// block, only [Linear.Norms] and [DoRA.Update] need the tile, and their first call allocates it. All products by a weight
// of 8 bits need it there. The Linear does not own w.
//
// For 16-bit activations on a device with cuBLASLt or hipBLASLt, 0 means 64 Mi elements, 128 MiB. NewLinear opens the
// library, with a workspace of up to 32 MiB that all products of the device share. It allocates the tile, of at most
// the size of W, if products by the library may need it: if in is a multiple of the block, and the tile has 512 rows
// or more. If W has more rows than the tile, the tile has a multiple of 128 rows. It then takes half as much again for
// float32 sums of [Linear.Backward], if a quarter of its elements holds 512 rows of activations or more.
//
// Errors: [snug.ErrShape] unless w has two dimensions; [snug.ErrDType] unless dt is f32, f16 or bf16; [snug.ErrConfig]
// if elements is negative or w is nil or zero; [snug.ErrDevice] if w is closed or the library fails to start;
// [snug.ErrNoMemory].
func NewLinear(w *Weight, dt snug.DType, elements int) (*Linear, error) {
	if err := w.usable(); err != nil {
		return nil, fmt.Errorf("qlora: linear: %w", err)
	}
	switch {
	case len(w.shape) != 2:
		return nil, fmt.Errorf("qlora: linear: a weight of shape %v, want two dimensions: %w", w.shape, snug.ErrShape)
	case !dt.IsFloat():
		return nil, fmt.Errorf("qlora: linear: activations of %s, want f32, f16 or bf16: %w", dt, snug.ErrDType)
	case elements < 0:
		return nil, fmt.Errorf("qlora: linear: tile of %d elements, want 0 or more: %w", elements, snug.ErrConfig)
	}
	t := &tile{elements: elements}
	if dt != snug.F32 && !w.Device().IsCPU() {
		var err error
		if t.library, err = device.HasProducts(w.Device()); err != nil {
			return nil, fmt.Errorf("qlora: linear: %w", err)
		}
	}
	switch {
	case elements > 0:
	case t.library:
		t.elements = panelElements
	default:
		t.elements = defaultTile
	}
	l := newLinear(w, t)
	first := l.reserved()
	if l.fuses() && !l.usesPanels() {
		first = 0
	}
	if err := l.reserve(dt, first); err != nil {
		return nil, err
	}
	return l, nil
}

// newLinear returns the products by w with a tile, which it does not make.
func newLinear(w *Weight, t *tile) *Linear {
	l := &Linear{w: w, out: w.shape[0], in: w.shape[1], unit: w.unit(), block: w.codeBlock(), tile: t}
	l.rows = min(max(1, t.elements/max(1, l.in)), max(1, l.out))
	if l.usesPanels() && l.rows < l.out {
		l.rows -= l.rows % panelStep
	}
	l.length = w.n
	if whole := l.rows * l.in; whole < w.n-l.unit { // which does not overflow
		l.length = whole + l.unit
	}
	if l.usesPanels() && l.rows < l.out {
		if n := t.elements / sumShare / l.in; n >= panelRows {
			l.sumRows = n
		}
	}
	t.most, t.panels = max(t.most, l.reserved()), t.panels || l.usesPanels()
	return l
}

// Share returns a Linear that multiplies by w with the tile of l, so that all layers of a model need one tile, which
// grows to the largest. Only one of the Linears may be in use at a time. The tile is freed when l is closed, and the
// others cannot be used afterwards. On devices other than the CPU, if products may need the tile, it grows in this call,
// so that products allocate nothing. Capture a [snug.Graph] with such a product after all weights share the tile.
//
// Errors are the errors of [NewLinear], and [snug.ErrDevice] for a weight on another device.
func (l *Linear) Share(w *Weight) (*Linear, error) {
	if err := l.usable(); err != nil {
		return nil, fmt.Errorf("qlora: linear: %w", err)
	}
	if err := w.usable(); err != nil {
		return nil, fmt.Errorf("qlora: linear: %w", err)
	}
	switch {
	case len(w.shape) != 2:
		return nil, fmt.Errorf("qlora: linear: a weight of shape %v, want two dimensions: %w", w.shape, snug.ErrShape)
	case w.Device() != l.w.Device():
		return nil, fmt.Errorf("qlora: linear: a weight on %s and a tile on %s: %w", w.Device().Name(), l.w.Device().Name(), snug.ErrDevice)
	}
	s := newLinear(w, l.tile)
	s.shares = true
	if t := l.tile; (t.panels || !w.Device().IsCPU() && !s.fuses()) && t.Len() < t.most {
		// Not when it is needed: a captured graph has its address.
		if err := s.reserve(t.DType(), t.most); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// reserve makes the tile, of n elements of type dt, in the place of a smaller one.
func (l *Linear) reserve(dt snug.DType, n int) error {
	made, free, err := snug.MakeView(l.w.Device(), dt, n)
	if err != nil {
		return fmt.Errorf("qlora: linear: a tile: %w", err)
	}
	if l.tile.free != nil {
		err = l.tile.free()
	}
	l.tile.View, l.tile.free = made, free
	return err
}

// Bytes returns the memory of the tile, shared or not; 0 as long as it is not allocated.
func (l *Linear) Bytes() int64 {
	if l == nil || l.tile == nil {
		return 0
	}
	return int64(l.tile.Bytes())
}

// Close frees the tile, not the weight. l cannot be used afterwards. Closing twice does
// nothing.
func (l *Linear) Close() error {
	if l == nil || l.tile == nil {
		return nil
	}
	t := l.tile
	l.tile = nil
	if l.shares || t.free == nil {
		return nil
	}
	free := t.free
	t.View, t.free = snug.View{}, nil
	return free()
}

// usable returns an error unless l was made and neither l nor its weight is closed.
func (l *Linear) usable() error {
	if l == nil || l.tile == nil || l.tile.free == nil {
		return fmt.Errorf("the Linear is nil or closed, or was not made by NewLinear: %w", snug.ErrConfig)
	}
	return l.w.usable()
}

// Forward computes y = x·Wᵀ + beta·y, for x of [rows, in] and y of [rows, out]
// elements on the weight's device. x has the type of [NewLinear], and y any type that
// [amp.MatMul] makes from it. With beta 0, y is not read.
//
// Up to 8 rows on the CPU, 2 in pure Go, and up to 32 on other devices use no tile if rows
// of W have whole blocks. They multiply by the codes, which are read once every 8 rows,
// with float32 elements of W for any type of x. Sums are float32 in at least 8 lanes of
// columns, which are added at the end, pair by pair: before y is rounded its error is at
// most (in/8+10)·2^-24·(Σ|x||w| + |beta·y|). Devices other than the CPU have 32 lanes or
// more, which sum eight products of x and values before they multiply by absmax; the bound
// is the same unless float32 overflows or underflows. The result does not depend on
// GOMAXPROCS, and has the same bits in every run on one device. On the CPU x takes 4 bytes
// an element, unless it is float32, and a worker up to 80 KiB or, if that is more, 4 bytes
// a block of a row; other devices need no memory.
//
// Types of 8 bits are multiplied so, on the CPU, where in is a multiple of 32, there are no Outliers, and the scales are by row, by
// weight, or by blocks of a multiple of 64 rows and 32 columns. The scales of blocks multiply x, and those of rows the
// sums: the error is at most (in/8+12)·2^-24·(Σ|x||w| + |beta·y|), and a worker takes up to 36 KiB more or, if that is
// more, 4 bytes for each row of x and column of a block.
//
// GGUF is multiplied so too, up to 8 rows also in pure Go: the types q4_0, q4_1, q5_0, q5_1, q8_0, q4_k, q5_k and q6_k by
// assembly. Others, and all without it, are decoded up to 64 KiB or an output at a time, which a worker takes more. Where
// elements are a multiple and a minimum, the bound has the sum of their magnitudes in place of |w|.
//
// Errors, with nothing written: [snug.ErrShape], [snug.ErrDType], [snug.ErrDevice], and
// [snug.ErrConfig] for a beta that is not finite, operands that overlap, and a nil, zero or
// closed l.
func (l *Linear) Forward(y, x snug.View, beta float32) error {
	if err := l.usable(); err != nil {
		return fmt.Errorf("qlora: linear: forward: %w", err)
	}
	rows, err := l.check("forward", x, "x", l.in, y, "y", l.out)
	if err != nil || rows == 0 {
		return err
	}
	if l.few(rows, y, x, beta) {
		return l.forwardFew(rows, y, x, beta)
	}
	if l.fuses() {
		return l.product("forward", rows, y, x, beta, false)
	}
	return l.forwardTiles(rows, y, x, beta)
}

// ForwardUsed is [Linear.Forward] where only the first used rows of y, at least 1, are read. They have the same bits; the others may
// be left as they are. On the CPU that spares their products where there are loops for few rows over blocks of llama.cpp's files.
//
// Errors are those of Forward; a used out of range wraps [snug.ErrShape].
func (l *Linear) ForwardUsed(used int, y, x snug.View, beta float32) error {
	if err := l.usable(); err != nil {
		return fmt.Errorf("qlora: linear: forward: %w", err)
	}
	rows, err := l.check("forward", x, "x", l.in, y, "y", l.out)
	if err != nil {
		return err
	}
	if used < 1 || used > rows {
		return fmt.Errorf("qlora: linear: forward: %d rows are used, want 1 to %d: %w", used, rows, snug.ErrShape)
	}
	if used < rows && l.few(rows, y, x, beta) && l.w.rowsAlike() {
		return l.forwardFew(used, part(y, 0, used*l.out), part(x, 0, used*l.in), beta)
	}
	return l.Forward(y, x, beta)
}

func (l *Linear) forwardTiles(rows int, y, x snug.View, beta float32) error {
	return l.each(func(lo, hi int, part snug.View) error {
		to, err := y.Slice(lo, y.Len())
		if err != nil {
			return err
		}
		return amp.MatMul(to, x, part, amp.MatMulOptions{M: rows, N: hi - lo, K: l.in, TransB: true, LDC: l.out, Into: snug.Into{Beta: beta}})
	})
}

// Backward computes dx = dy·W + beta·dx, for dy of [rows, out] and dx of [rows, in] elements. dy has the type of
// [NewLinear]. A dx of 16 bits is rounded once for each tile, or only once if no tile is used or a vendor's library
// multiplies. If W has several tiles, the library's products are added in float32 sums, of as many rows of dx at a time
// as there is memory for, see [NewLinear]. If that is fewer than 512 rows, the kernel without a tile multiplies.
//
// Up to 8 rows on the CPU, 4 in pure Go, use no tile if in is a multiple of the block. They are multiplied by float32
// elements of W, decoded in registers; each code is read once. Sums are float32, over the rows of W in order, and
// beta·dx is added at the end: before dx is rounded, once, its error is at most
// (out+2)·2^-24·(Σ|dy||w| + |beta·dx|), unless float32 overflows or underflows. The work is cut into columns of W, so the result does not depend on
// GOMAXPROCS. A worker takes up to 36 KiB or, if that is more, 48 bytes an element of a
// block. In types of 8 bits, under the conditions of Forward, scales multiply dy first: the bound is
// (out+4)·2^-24·(Σ|dy||w| + |beta·dx|), as in GGUF, with |w| as in Forward.
//
// Errors are the errors of [Linear.Forward].
func (l *Linear) Backward(dx, dy snug.View, beta float32) error {
	if err := l.usable(); err != nil {
		return fmt.Errorf("qlora: linear: backward: %w", err)
	}
	rows, err := l.check("backward", dy, "dy", l.out, dx, "dx", l.in)
	if err != nil || rows == 0 {
		return err
	}
	if l.fewBackward(rows, dx, dy, beta) {
		return l.backwardFew(rows, dx, dy, beta)
	}
	if parts := l.sumParts(rows, dx); parts > 0 {
		return l.backwardSums(rows, parts, dx, dy, beta)
	}
	if l.fuses() {
		return l.product("backward", rows, dx, dy, beta, true)
	}
	return l.backwardTiles(rows, dx, dy, beta)
}

func (l *Linear) backwardTiles(rows int, dx, dy snug.View, beta float32) error {
	return l.each(func(lo, hi int, part snug.View) error {
		from, err := dy.Slice(lo, dy.Len())
		if err != nil {
			return err
		}
		c := amp.MatMulOptions{M: rows, N: l.in, K: hi - lo, LDA: l.out, Into: snug.Into{Beta: beta}}
		beta = 1 // the following tiles add
		return amp.MatMul(dx, from, part, c)
	})
}

// check returns the rows of the operands.
func (l *Linear) check(op string, x snug.View, xName string, xCols int, y snug.View, yName string, yCols int) (rows int, err error) {
	if l.in == 0 || l.out == 0 {
		return 0, fmt.Errorf("qlora: linear: %s: a weight of shape %v: %w", op, l.w.shape, snug.ErrShape)
	}
	rows = x.Len() / xCols
	switch {
	case x.DType() != l.tile.DType():
		return 0, fmt.Errorf("qlora: linear: %s: %s holds %s, want %s: %w", op, xName, x.DType(), l.tile.DType(), snug.ErrDType)
	case rows*xCols != x.Len() || y.Len() != times(rows, yCols):
		return 0, fmt.Errorf("qlora: linear: %s: %s has %d elements and %s %d, want rows of %d and %d: %w",
			op, xName, x.Len(), yName, y.Len(), xCols, yCols, snug.ErrShape)
	}
	if _, err := snug.CommonDevice(x, y, l.w.Packed()); err != nil {
		return 0, fmt.Errorf("qlora: linear: %s: %w", op, err)
	}
	return rows, nil
}

// each decodes one tile after the other and passes do its rows, lo to hi-1 of the weight.
func (l *Linear) each(do func(lo, hi int, part snug.View) error) (err error) {
	if _, err = l.w.hold(); err != nil { // once for all tiles
		return fmt.Errorf("qlora: linear: %w", err)
	}
	defer func() { err = errors.Join(err, l.w.drop()) }()
	if l.tile.Len() < l.length {
		if err := l.reserve(l.tile.DType(), l.length); err != nil {
			return err
		}
	}
	for lo := 0; lo < l.out; lo += l.rows {
		hi := min(lo+l.rows, l.out)
		begin := lo * l.in / l.unit * l.unit
		decoded := part(l.tile.View, 0, hi*l.in-begin)
		if err := l.w.dequantizeRange(decoded, begin); err != nil {
			return err
		}
		if err := do(lo, hi, part(decoded, lo*l.in-begin, decoded.Len())); err != nil {
			return fmt.Errorf("qlora: linear: rows %d to %d of the weight: %w", lo, hi, err)
		}
	}
	return nil
}
