package fused

import (
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/rowwise"
)

// RotaryOptions is the layout of the vectors that [Rotary] turns: rows of Heads
// heads of Dim elements. In each head the first Turned elements are turned, in
// Turned/2 pairs, each by an angle of its own.
type RotaryOptions struct {
	Heads  int // heads in a row, at least 1
	Dim    int // elements of a head, at least 2
	Turned int // elements of a head that are turned, even, up to Dim; 0: Dim
	Stride int // elements from a row to the next, at least Heads·Dim; 0: Heads·Dim

	// Interleaved pairs elements 2i and 2i+1, as the paper, GPT-J and the
	// published LLaMA weights do. Otherwise i is paired with i + Turned/2, as in
	// GPT-NeoX and in the LLaMA weights of Hugging Face.
	Interleaved bool
}

// RotaryAngles fills angles, which [Rotary] takes, for positions 0, 1, ...: a
// row of turned elements each, the first half of them cosines, the other sines
// of
//
//	angle(p, i) = p·base^(−2i/turned)
//
// angles has whole rows, turned is even and at least 2. base, 10000 in the paper,
// is positive and finite. For other frequencies fill angles yourself.
func RotaryAngles(angles []float32, turned int, base float64) error {
	check := &checks{op: "RotaryAngles"}
	if turned < 2 || turned%2 != 0 {
		check.failf(snug.ErrConfig, "rows of %d elements, want an even number", turned)
	}
	if !(base > 0) || math.IsInf(base, 1) {
		check.failf(snug.ErrConfig, "base is %v, want a positive finite number", base)
	}
	rows := check.rows(operand{"angles", snug.SliceView(angles)}, turned)
	if check.err != nil || rows == 0 {
		return check.err // without rows, half may be any number
	}
	half := turned / 2
	for i := range half {
		frequency := math.Pow(base, -float64(i)/float64(half))
		for p := range rows {
			sin, cos := math.Sincos(float64(p) * frequency)
			angles[p*turned+i], angles[p*turned+half+i] = float32(cos), float32(sin)
		}
	}
	return nil
}

// Rotary applies the rotary position embedding of Su et al., "RoFormer:
// Enhanced Transformer with Rotary Position Embedding" (2021), in place. It
// turns every pair (a, b) of a head of row r by its angle in row positions[r] of
// angles:
//
//	a, b = a·cos − b·sin, b·cos + a·sin
//
// Shapes: x [len(positions), Heads, Dim], with c's stride between rows; what follows the last row may be missing.
// angles [context, Turned], float32, as [RotaryAngles] makes it for the same Turned; a table for another width is not
// detected. Queries and keys that lie side by side, as in the output of one projection, are turned in one call. With
// rows of H query, K key and K value heads that is RotaryOptions{Heads: H + K, Dim: d, Stride: (H + 2*K) * d}. A
// position outside angles gives an error that wraps [snug.ErrShape] and names it.
//
// It keeps nothing for the backward pass. Each worker holds Heads·Dim float32.
func Rotary[V snug.Vector, L snug.Vector32](x V, angles L, positions []int32, c RotaryOptions) error {
	return c.turn("Rotary", operand{"x", snug.ViewOf(x)}, snug.ViewOf(angles), positions, 1)
}

// RotaryBackward computes the gradient of [Rotary] in place: it turns dx, the
// gradient of its output, back by the same angles. Shapes and errors are those
// of Rotary.
func RotaryBackward[V snug.Vector, L snug.Vector32](dx V, angles L, positions []int32, c RotaryOptions) error {
	return c.turn("RotaryBackward", operand{"dx", snug.ViewOf(dx)}, snug.ViewOf(angles), positions, -1)
}

func (c RotaryOptions) turn(op string, x operand, angles snug.View, positions []int32, turn float32) error {
	check := &checks{op: op}
	c = c.resolve(check)
	check.floats(x)
	check.f32(operand{"angles", angles})
	c.checkExtent(check, x, len(positions))
	context := check.rows(operand{"angles", angles}, c.Turned)
	check.indices("positions", positions, "angles", context, false)
	dev := check.device(x.view, angles)
	if check.err != nil {
		return check.err
	}
	job := rotaryJob{x.view, angles, snug.SliceView(positions), c, turn}
	if dev.IsCPU() {
		job.Run()
		return nil
	}
	queued := job
	return launchWith(dev, &queued, []upload{indices(positions, &queued.positions)})
}

// resolve returns c with the defaults filled in.
func (c RotaryOptions) resolve(check *checks) RotaryOptions {
	if c.Turned == 0 {
		c.Turned = c.Dim
	}
	if c.Heads < 1 || c.Turned < 2 || c.Turned > c.Dim || c.Turned%2 != 0 {
		check.failf(snug.ErrConfig, "Heads %d, Dim %d, Turned %d, want at least 1 head and an even number up to Dim", c.Heads, c.Dim, c.Turned)
	}
	row := product(c.Heads, c.Dim)
	if c.Stride == 0 {
		c.Stride = row
	}
	if c.Stride < row || row == math.MaxInt {
		check.failf(snug.ErrConfig, "Stride %d, want at least the %d heads of %d elements", c.Stride, c.Heads, c.Dim)
	}
	return c
}

// checkExtent reports an x that does not hold the given number of rows, the last
// with or without what follows it.
func (c *RotaryOptions) checkExtent(check *checks, x operand, rows int) {
	n, longest := x.view.Len(), product(rows, c.Stride)
	shortest := max(longest-(c.Stride-c.Heads*c.Dim), 0)
	if longest == math.MaxInt || n < shortest || n > longest {
		check.failf(snug.ErrShape, "%s has %d elements, want %d rows of %d heads of %d, %d apart", x.name, n, rows, c.Heads, c.Dim, c.Stride)
	}
}

type rotaryJob struct {
	x, angles, positions snug.View

	c    RotaryOptions // resolved
	turn float32       // 1, or −1 to turn back
}

func (*rotaryJob) Kernel() string { return "fused.rotary" }

func (j *rotaryJob) Operands(yield func(*driver.Mem)) {
	device.Each(yield, &j.x, &j.angles, &j.positions)
}

func (j *rotaryJob) Run() {
	rotaryTask.Run(cpu.Chunks(j.positions.Len(), itemRows(j.c.Heads*j.c.Dim)), *j)
}

var rotaryTask = cpu.NewTask(func(j *rotaryJob, item int) {
	n := j.c.Heads * j.c.Dim
	buf := scratch.Get(n)
	defer scratch.Put(buf)
	angles := j.angles.Float32s()
	lo, hi := cpu.Chunk(j.positions.Len(), itemRows(n), item)
	k := direct(j.x)
	for r, p := range snug.Host[int32](j.positions)[lo:hi] {
		at, angles := (lo+r)*j.c.Stride, angles[int(p)*j.c.Turned:][:j.c.Turned]
		if k != nil {
			turnRow(k, bits(j.x, at, at+n), angles, &j.c, j.turn)
			continue
		}
		x := load(*buf, j.x, at)
		turnRow(rowwise.F32.Best(), x, angles, &j.c, j.turn)
		store(j.x, at, x)
	}
})

// turnRow turns a row by a row of angles.
func turnRow[T float32 | uint16](k *rowwise.Layers[T], x []T, angles []float32, c *RotaryOptions, turn float32) {
	half := c.Turned / 2
	cos, sin := angles[:half], angles[half:]
	if !c.Interleaved {
		k.Rotate(x, x[half:], cos, sin, turn, c.Heads, c.Dim)
		return
	}
	for ; len(x) > 0; x = x[c.Dim:] {
		k.RotatePairs(cos, sin, x[:c.Turned], turn)
	}
}
