package qlora

import (
	"fmt"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
)

// VeRA is a pair of frozen random matrices A and B that all adapters of a model share. Each adapter trains two vectors,
// d of Rank elements and b of as many as its layer has outputs:
//
//	y += b ⊙ ((d ⊙ (x·Aᵀ))·Bᵀ)
//
// with the first columns of A and the first rows of B, as many as the layer has inputs and outputs. Kopiczko et al.
// 2023, "VeRA: Vector-based Random Matrix Adaptation", arXiv:2310.11454. PEFT begins with d = 0.1 and b = 0.
//
// [VeRA.Expand] makes of d and b the matrices of a [LoRA] of scale 1, which computes then: A as it is, with FrozenA,
// and diag(b)·B·diag(d). [VeRA.Reduce] makes of the gradient of the second those of d and b. The adapters share the
// memory of these matrices, so they compute in turn. A VeRA works on the CPU, and is not safe for concurrent use.
type VeRA struct {
	Rank, In, Out int       // In and Out: of the layers with the most
	A, B          snug.View // f32, [Rank, In] and [Out, Rank]; do not change them

	a, b, db []float32 // of the adapter that computes: its matrices, and the gradient of b
}

// NewVeRA draws the matrices of a key as PEFT does on the CPU: uniformly with the standard deviations √(2/In) and
// √(2/Rank), by the Mersenne Twister of PyTorch. The lower 32 bits of the key count. It takes 4·Rank·(2·In+3·Out)
// bytes. The error wraps [snug.ErrConfig] for a rank, in or out below 1, [snug.ErrShape] for numbers of elements that
// overflow, and [snug.ErrNoMemory] for matrices beyond the address space.
func NewVeRA(rank, in, out int, key uint64) (*VeRA, error) {
	v, err := newVeRA(rank, in, out)
	if err != nil {
		return nil, fmt.Errorf("qlora: VeRA: %w", err)
	}
	g := newTwister(uint32(key))
	g.uniform(v.A.Float32s(), in)
	g.uniform(v.B.Float32s(), rank)
	return v, nil
}

func newVeRA(rank, in, out int) (*VeRA, error) {
	switch {
	case rank < 1 || in < 1 || out < 1:
		return nil, fmt.Errorf("matrices of rank %d for %d inputs and %d outputs, want 1 or more: %w", rank, in, out, snug.ErrConfig)
	case times(rank, in) < 0 || times(rank, out) < 0 || max(times(rank, in), times(rank, out)) > math.MaxInt/64:
		return nil, fmt.Errorf("matrices of rank %d for %d inputs and %d outputs: %w", rank, in, out, snug.ErrShape)
	}
	var err error
	room := func(n int) (v snug.View) {
		if err == nil {
			v, _, err = snug.MakeView(snug.CPU(), snug.F32, n)
		}
		return v
	}
	v := &VeRA{Rank: rank, In: in, Out: out, A: room(rank * in), B: room(out * rank)}
	a, b, db := room(rank*in), room(out*rank), room(out*rank)
	if err != nil {
		return nil, err
	}
	v.a, v.b, v.db = a.Float32s(), b.Float32s(), db.Float32s()
	return v, nil
}

// Bytes returns the memory of A and B, and that of the matrices and the gradient of the adapter that computes.
func (v *VeRA) Bytes() (shared, work int64) {
	if v == nil {
		return 0, 0
	}
	shared = int64(v.A.Bytes() + v.B.Bytes())
	return shared, 4 * int64(len(v.a)+len(v.b)+len(v.db))
}

// check returns an error unless v was made and fits an adapter and vectors of the lengths of d and b.
func (v *VeRA) check(op string, l *LoRA, d, b snug.View) error {
	switch {
	case v == nil || v.a == nil:
		return fmt.Errorf("qlora: VeRA: %s: the VeRA is nil, or NewVeRA or LoadVeRA did not make it: %w", op, snug.ErrConfig)
	case l == nil || l.Rank != v.Rank || l.In < 1 || l.Out < 1 || l.In > v.In || l.Out > v.Out || l.Scale != 1 || l.Magnitude.Len() > 0:
		return fmt.Errorf("qlora: VeRA: %s: an adapter that is nil, has magnitudes or a scale other than 1, or does not fit the matrices of rank %d for %d to %d: %w",
			op, v.Rank, v.In, v.Out, snug.ErrConfig)
	case d.Len() != l.Rank || b.Len() != l.Out:
		return fmt.Errorf("qlora: VeRA: %s: vectors of %d and %d elements, want %d and %d: %w", op, d.Len(), b.Len(), l.Rank, l.Out, snug.ErrShape)
	case d.DType() != snug.F32 || b.DType() != snug.F32:
		return fmt.Errorf("qlora: VeRA: %s: vectors of %s and %s, want f32: %w", op, d.DType(), b.DType(), snug.ErrDType)
	case !d.Device().IsCPU() || !b.Device().IsCPU():
		return fmt.Errorf("qlora: VeRA: %s: vectors on %s and %s, want the CPU: %w", op, d.Device().Name(), b.Device().Name(), snug.ErrDevice)
	}
	return nil
}

// Expand sets l.FrozenA, l.A to the first columns of A, and l.B to diag(b)·B·diag(d), in memory of v until another
// adapter expands. l has its In, Out, the Rank of v, and a Scale of 1. Errors: [snug.ErrConfig], [snug.ErrShape],
// [snug.ErrDType], [snug.ErrDevice].
func (v *VeRA) Expand(l *LoRA, d, b snug.View) error {
	if err := v.check("expand", l, d, b); err != nil {
		return err
	}
	l.FrozenA, l.A, l.B = true, v.A, snug.ViewOf(v.b[:l.Out*l.Rank])
	if l.In < v.In {
		l.A = snug.ViewOf(v.a[:l.Rank*l.In])
		for k, all := 0, v.A.Float32s(); k < l.Rank; k++ {
			copy(v.a[k*l.In:(k+1)*l.In], all[k*v.In:])
		}
	}
	expandTask.Run(cpu.Chunks(l.Out, rowsOf(l.Rank)), veraJob{matrix: v.B.Float32s(), to: v.b, d: d.Float32s(), b: b.Float32s()})
	return nil
}

// Grads returns memory of v for the gradient of an adapter that was expanded, for [LoRA.Backward]: whole, not added to
// what is there. It is empty for an adapter that does not fit.
func (v *VeRA) Grads(l *LoRA) Grads {
	if v == nil || l == nil || l.Rank != v.Rank || l.Out < 0 || l.Out > v.Out || v.db == nil {
		return Grads{}
	}
	return Grads{B: snug.ViewOf(v.db[:l.Out*l.Rank])}
}

// Reduce computes the gradients of d and b from the Grads G that [LoRA.Backward] filled for l:
//
//	dd = Beta·dd + Alpha·the sums of the columns of diag(b)·(G ⊙ B)
//	db = Beta·db + Alpha·the sums of the rows of (G ⊙ B)·diag(d)
//
// dd and db are f32 accumulators of the lengths of d and b, which they do not overlap. Sums are float64 and rounded
// once. Errors are those of Expand, and [snug.ErrConfig] for an into that is not valid.
func (v *VeRA) Reduce(dd, db, d, b snug.View, into snug.Into, l *LoRA) error {
	if err := v.check("reduce", l, d, b); err != nil {
		return err
	}
	if err := v.check("reduce", l, dd, db); err != nil {
		return err
	}
	alpha, beta, err := into.Factors()
	if err != nil {
		return fmt.Errorf("qlora: VeRA: reduce: %w", err)
	}
	j := veraJob{matrix: v.B.Float32s(), grad: v.db, d: d.Float32s(), b: b.Float32s(), alpha: float64(alpha), beta: float64(beta)}
	j.to = db.Float32s()
	rowSumsTask.Run(cpu.Chunks(l.Out, rowsOf(l.Rank)), j)
	j.to = dd.Float32s()
	columnSumsTask.Run(cpu.Chunks(l.Rank, columnGrain), j)
	return nil
}

// veraJob computes with rows of the shared B: one for each element of b, of as many elements as d.
type veraJob struct {
	to, matrix, grad, d, b []float32
	alpha, beta            float64
}

var expandTask = cpu.NewTask(func(j *veraJob, item int) {
	n := len(j.d)
	first, last := cpu.Chunk(len(j.b), rowsOf(n), item)
	for r := first; r < last; r++ {
		to, row, x := j.to[r*n:(r+1)*n], j.matrix[r*n:(r+1)*n], j.b[r]
		for k, m := range row {
			to[k] = x * m * j.d[k]
		}
	}
})

var rowSumsTask = cpu.NewTask(func(j *veraJob, item int) {
	n := len(j.d)
	first, last := cpu.Chunk(len(j.b), rowsOf(n), item)
	for r := first; r < last; r++ {
		grad, row, sum := j.grad[r*n:(r+1)*n], j.matrix[r*n:(r+1)*n], 0.0
		for k, m := range row {
			sum += float64(grad[k]) * float64(m) * float64(j.d[k])
		}
		j.set(r, sum)
	}
})

// columnGrain is the number of columns that one item of a parallel loop sums.
const columnGrain = 64

var columnSumsTask = cpu.NewTask(func(j *veraJob, item int) {
	n := len(j.d)
	first, last := cpu.Chunk(n, columnGrain, item)
	var sums [columnGrain]float64
	for r, x := range j.b {
		grad, row := j.grad[r*n+first:r*n+last], j.matrix[r*n+first:r*n+last]
		for k, m := range row {
			sums[k] += float64(grad[k]) * float64(m) * float64(x)
		}
	}
	for k := first; k < last; k++ {
		j.set(k, sums[k-first])
	}
})

func (j *veraJob) set(i int, sum float64) {
	sum *= j.alpha
	if j.beta != 0 {
		sum += j.beta * float64(j.to[i])
	}
	j.to[i] = float32(sum)
}

// twister is the Mersenne Twister MT19937 (Matsumoto and Nishimura 1998), which PyTorch draws with on the CPU.
type twister struct {
	state [624]uint32
	next  int
}

func newTwister(seed uint32) *twister {
	t := &twister{next: 624}
	t.state[0] = seed
	for i := 1; i < len(t.state); i++ {
		before := t.state[i-1]
		t.state[i] = 1812433253*(before^before>>30) + uint32(i)
	}
	return t
}

func (t *twister) word() uint32 {
	n := len(t.state)
	if t.next == n {
		for i := range n {
			y := t.state[i]&0x80000000 | t.state[(i+1)%n]&0x7fffffff
			t.state[i] = t.state[(i+397)%n] ^ y>>1 ^ (y&1)*0x9908b0df
		}
		t.next = 0
	}
	y := t.state[t.next]
	t.next++
	y ^= y >> 11
	y ^= y << 7 & 0x9d2c5680
	y ^= y << 15 & 0xefc60000
	return y ^ y>>18
}

// uniform draws numbers of the standard deviation √(2/fan), as PyTorch's uniform_ does for float32.
func (t *twister) uniform(x []float32, fan int) {
	bound := float32(math.Sqrt(3) * (math.Sqrt(2) / math.Sqrt(float64(fan))))
	for i := range x {
		share := float64(t.word()&(1<<24-1)) / (1 << 24)
		x[i] = float32(float64(share*float64(bound-(-bound))) + float64(-bound))
	}
}
