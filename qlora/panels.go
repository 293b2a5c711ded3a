package qlora

import (
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/gemm"
)

// Products of many rows by the vendor's library: a panel of W, which is a tile's rows, is decoded to 16 bits, and the
// library multiplies by it. The kernels that decode on the way decode W once for every 128 rows of activations; a panel
// is decoded once for all.
const (
	// panelElements is how many elements a Linear decodes at a time by default where the library multiplies, 128 MiB:
	// all of most matrices, so that backward takes one product. A library needs thousands of outputs to fill a GPU.
	panelElements = 1 << 26

	// panelRows is the fewest rows of activations, and the fewest outputs of a panel. The decoding is estimated to pay
	// from about 200 rows on an A100 and 380 on an H100; it was not measured.
	panelRows = 512

	// panelStep divides the outputs of a panel, so that the library's results begin at addresses that suit it.
	panelStep = 128

	// sumShare is the part of a tile's elements for which there are float32 sums where W has several panels: 64 MiB by
	// default.
	sumShare = 4
)

// usesPanels reports whether products of many rows may go to the library.
func (l *Linear) usesPanels() bool { return l.tile.library && l.rows >= panelRows && l.fuses() }

// byPanels reports whether a product goes to the library, if that has it. Panels are rows of W, so backward adds one
// product after the other to c. c must not be rounded on the way: it is float32, or one panel is all of W.
func (l *Linear) byPanels(rows int, c snug.View, back bool) bool {
	return rows >= panelRows && l.usesPanels() && (!back || l.rows == l.out || c.DType() == snug.F32)
}

// reserved returns the elements of the tile: those of a panel, and then the sums of backward.
func (l *Linear) reserved() int { return l.length + 2*l.sumRows*l.in }

// sumParts returns the parts of rows, each of at least panelRows, for which Backward adds panels in float32 sums beside
// the tile, because dx has 16 bits and W several panels; 0 if it does not. Panels of columns, which need no sums, would
// need a kernel that decodes parts of rows.
func (l *Linear) sumParts(rows int, dx snug.View) int {
	if l.sumRows == 0 || dx.DType() == snug.F32 {
		return 0
	}
	parts := (rows + l.sumRows - 1) / l.sumRows
	if rows/parts < panelRows {
		return 0
	}
	return parts
}

// backwardSums is Backward of one part of rows after the other. dx is rounded once.
func (l *Linear) backwardSums(rows, parts int, dx, dy snug.View, beta float32) error {
	if err := l.checkProduct("backward", dx, dy, beta); err != nil {
		return err
	}
	all := device.As(part(l.tile.View, l.length, l.reserved()), snug.F32)
	for i := range parts {
		lo, hi := rows*i/parts, rows*(i+1)/parts
		sums, to := part(all, 0, (hi-lo)*l.in), part(dx, lo*l.in, hi*l.in)
		if beta != 0 {
			if err := amp.Cast(sums, to); err != nil {
				return fmt.Errorf("qlora: linear: backward: %w", err)
			}
		}
		if err := l.product("backward", hi-lo, sums, part(dy, lo*l.out, hi*l.out), beta, true); err != nil {
			return err
		}
		if err := amp.Cast(to, sums); err != nil {
			return fmt.Errorf("qlora: linear: backward: %w", err)
		}
	}
	return nil
}

// panelsJob is a productJob by panels of step rows of W, each decoded to the tile. The tile has a unit more, because
// panels are decoded from a multiple of it.
type panelsJob struct {
	productJob
	tile snug.View
	step int
}

func (j *panelsJob) Kernel() string { return "qlora.panels" }

func (j *panelsJob) Operands(yield func(*driver.Mem)) {
	j.productJob.Operands(yield)
	yield(device.Mem(&j.tile))
}

// panel is the product c = a·b + beta·c by a panel, with c of m×n.
type panel struct {
	decode  dequantizeJob
	m, n, k int
	a, b, c gemm.Matrix
	beta    float32
}

// panels yields one panel after the other.
func (j *panelsJob) panels(yield func(panel) bool) {
	w, m := j.w, memory{packed: j.packed, absmax: j.scales}
	if w.m != nil {
		m.nested, m.codes = j.scales, j.codes
	}
	out, in := w.shape[0], w.shape[1]
	beta := j.beta
	for lo := 0; lo < out; lo += j.step {
		hi := min(lo+j.step, out)
		begin := lo * in / w.unit() * w.unit()
		decoded := part(j.tile, 0, hi*in-begin)
		p := panel{
			decode: w.decodeBlocks(decoded, begin, m), m: j.rows,
			b: gemm.Matrix{Data: part(decoded, lo*in-begin, decoded.Len()), Stride: in, Trans: !j.back}, beta: beta,
		}
		if j.back {
			p.n, p.k = in, hi-lo
			p.a, p.c = gemm.Matrix{Data: part(j.a, lo, j.a.Len()), Stride: out}, gemm.Matrix{Data: j.c, Stride: in}
			beta = 1 // the following panels add
		} else {
			p.n, p.k = hi-lo, in
			p.a, p.c = gemm.Matrix{Data: j.a, Stride: in}, gemm.Matrix{Data: part(j.c, lo, j.c.Len()), Stride: out}
		}
		if !yield(p) {
			return
		}
	}
}

// Run is the definition.
func (j *panelsJob) Run() {
	for p := range j.panels {
		p.decode.Run()
		gemm.Mul(p.m, p.n, p.k, 1, p.a, p.b, p.beta, p.c)
	}
}
