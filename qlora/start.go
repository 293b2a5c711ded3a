package qlora

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"strconv"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/fault"
)

// This file has the first values of adapters that are made of their matrix.

// Start is how adapters of an [AdapterOptions.Init] begin. The zero Start is a random A and a B of 0.
type Start struct {
	Name string // the Init, without a number of iterations
	// Takes says that an adapter takes over a part of its matrix, which holds the rest then, see [LoRA.Start].
	Takes bool
	// Base, unless 0, is a form of weights: an adapter makes up for what its matrix loses in it, see [LoRA.StartLoftQ].
	Base Type
	// Other has the field of PEFT's config that tells of it, so that the adapters are not used with other weights.
	Other map[string]json.RawMessage

	iterates   bool // the Init may be followed by a number of iterations
	iterations int
	factors    func(l *LoRA, w []float32, iterations int) (factors, error) // made of the matrix alone, or nil
	refused    string                                                      // why adapters that PEFT began so are not read
}

const (
	niter     = "_niter_"
	changed   = "the adapters are for a base weight that PEFT changed when the training began; convert them to plain ones by PEFT's save_pretrained with path_initial_model_for_weight_conversion"
	quantized = "the training began with another base weight, which PEFT quantized; save that base weight and load it with the field set to true"
)

// starts are the values of PEFT's init_lora_weights. Those without Takes and Base are not made here; PEFT leaves the base
// weight as it is, unless they are refused: A is random and B is 0 (gaussian), A is by inputs (eva), A and B have the
// product 0 (orthogonal), or A is 0 and B by the base weight (mica).
var starts = map[string]Start{
	"pissa": {Takes: true, iterates: true, factors: (*LoRA).byPrincipal, refused: changed},
	"olora": {Takes: true, factors: (*LoRA).byQR, refused: changed},
	// PEFT warns that it ignores the field where init_lora_weights is not "loftq", and empties it.
	"loftq": {Base: NF4, Other: map[string]json.RawMessage{"loftq_config": json.RawMessage(`{"loftq_bits":4,"loftq_iter":1}`)}, refused: quantized},
	"corda": {refused: changed}, "lora_ga": {refused: changed},
	"gaussian": {}, "eva": {}, "orthogonal": {}, "mica": {},
}

// Start returns how fresh adapters begin, the zero Start for an Init that is not known.
func (c AdapterOptions) Start() Start {
	s, _ := parseInit(c.Init)
	return s
}

// Began returns how loaded adapters began, by c.Other, the zero Start if it does not tell.
func (c AdapterOptions) Began() Start {
	for name, s := range starts {
		for field := range s.Other {
			if value, found := c.Other[field]; found && !isEmpty(value) {
				s.Name = name
				return s
			}
		}
	}
	return Start{}
}

// exactSide is the longest smaller side of a matrix that is decomposed as a whole. That takes 0.2 s for 256×1024
// elements on 2 cores of Zen 4, and 2.7 s for 512×1024. Of larger matrices pissa and loftq compute the largest singular
// values by defaultIterations of subspaces, which take 0.15 s for rank 16 of 1024×3072 elements.
const exactSide, defaultIterations = 256, 16

// maxIterations is the most that pissa_niter_N may name.
const maxIterations = 1000

// parseInit returns the Start of an Init.
func parseInit(init string) (Start, error) {
	name, text, numbered := strings.Cut(init, niter)
	s := starts[name]
	s.Name = name
	if numbered {
		n, err := strconv.Atoi(text)
		if s.iterations = n; err != nil || n < 1 || n > maxIterations || !s.iterates {
			name = ""
		}
	}
	if init != "" && !s.Takes && s.Base == 0 || init != "" && name == "" {
		return Start{}, fmt.Errorf("the initial values %.40q, want pissa, pissa_niter_1 to pissa_niter_%d, olora or loftq: %w", init, maxIterations, snug.ErrConfig)
	}
	return s, nil
}

// Start sets A and B by a matrix w of [Out, In] floats on any device, and subtracts s·B·A from w, so that the layer and
// its adapter together begin with the products of w. init is one of
//
//	pissa          s·B·A is the part of w with the Rank largest singular values; √(σ/s) is in both A and B.
//	               Meng et al. 2024, "PiSSA", arXiv:2404.02948
//	pissa_niter_N  the same, by N iterations of a random subspace of Rank+8 dimensions,
//	               Halko et al. 2011, "Finding Structure with Randomness", arXiv:0909.4061
//	olora          B is the first Rank columns of Q, and A the first Rank rows of R, of the decomposition w = Q·R.
//	               Büyükakyüz 2024, "OLoRA", arXiv:2406.01775
//
// The results are those of PEFT's init_lora_weights, up to signs and rounding, except with iterations, whose subspace
// and number of dimensions are others than PEFT's. With pissa a matrix whose smaller side is above 256 has 16
// iterations. The fewer singular values stand out, the farther A and B are from those of a whole decomposition: for
// random matrices, where none does, s·B·A has 99.7 % of the sum of squares that it could have, and 94 % with 4
// iterations. Results are the same for equal w, Rank and init.
//
// A and B are f32. In host memory Start needs w as float32, which calls one after the other share; for a whole
// decomposition about four times w in float64; and 40·(In+Out)·(Rank+8) bytes otherwise.
//
// Errors, with nothing written: [snug.ErrConfig] for a nil adapter, another init, and a Rank above In or Out;
// [snug.ErrShape], [snug.ErrDType], and [snug.ErrNonFinite], also for a matrix with products beyond float32.
func (l *LoRA) Start(w snug.View, init string) error {
	s, err := parseInit(init)
	if err == nil && s.factors == nil {
		err = fmt.Errorf("the initial values %.40q are not made of the matrix alone: %w", init, snug.ErrConfig)
	}
	if err == nil {
		err = l.start(w, s)
	}
	return fault.Of(err, "qlora: LoRA: start")
}

func (l *LoRA) start(w snug.View, s Start) error {
	if err := l.checkStart(w); err != nil {
		return err
	}
	room := matrices.Get(w.Len())
	defer matrices.Put(room)
	host := *room
	if err := load(host, w); err != nil {
		return err
	}
	first, err := s.factors(l, host, s.iterations)
	if err == nil {
		err = l.subtract(host, first)
	}
	if err != nil {
		return err
	}
	return errors.Join(store(w, host), l.set(first))
}

// matrices are float32 copies of matrices, which serve one adapter after the other.
var matrices cpu.Scratch

// StartLoftQ sets A and B by a matrix w of [Out, In] floats, and returns its frozen Weight in 4 bits, which o
// describes, on the device of w. From a rest R that is w at first, it computes so many times
//
//	Q = R in 4 bits;   s·B·A = the part of w - Q with the Rank largest singular values;   R = w - s·B·A
//
// Li et al. 2023, "LoftQ", arXiv:2310.08659. One iteration is PEFT's default, whose Q is w in 4 bits, as in any model
// that is loaded so. After more iterations Q is the base of these adapters alone. The results are those of PEFT's
// loftq_utils for s = 1, which does not divide by s: with another s its first products are farther from those of w.
// See [LoRA.Start] for how singular values are computed, for its errors and its memory. StartLoftQ does not change w.
func (l *LoRA) StartLoftQ(w snug.View, o Options, iterations int) (*Weight, error) {
	q, err := l.startLoftQ(w, o, iterations)
	return q, fault.Of(err, "qlora: LoRA: start LoftQ")
}

func (l *LoRA) startLoftQ(w snug.View, o Options, iterations int) (q *Weight, err error) {
	if iterations < 1 {
		return nil, fmt.Errorf("%d iterations, want 1 or more: %w", iterations, snug.ErrConfig)
	}
	if err := l.checkStart(w); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, q.Close())
			q = nil
		}
	}()
	room := matrices.Get(w.Len())
	defer matrices.Put(room)
	rest, from := *room, w // from: what is quantized
	for i := range iterations {
		if err := q.Close(); err != nil {
			return nil, err
		}
		if q, err = NewWeight(from, []int{l.Out, l.In}, o); err != nil {
			return q, err
		}
		if err := errors.Join(load(rest, w), q.takeFrom(rest)); err != nil {
			return q, err
		}
		first, err := l.byPrincipal(rest, 0)
		if err != nil {
			return q, err
		}
		if i == iterations-1 {
			q.dtype = w.DType()
			return q, cmp.Or(first.finite(), l.set(first))
		}
		if err := errors.Join(load(rest, w), l.subtract(rest, first)); err != nil {
			return q, err
		}
		if from = snug.ViewOf(rest); w.Device().IsCPU() {
			continue
		}
		there, free, err := snug.MakeView(w.Device(), snug.F32, len(rest))
		if err != nil {
			return q, err
		}
		defer func() { err = errors.Join(err, free()) }()
		if err := snug.Copy(there, rest); err != nil {
			return q, err
		}
		from = there
	}
	return q, nil
}

// takeFrom subtracts the elements of w from host, some at a time.
func (w *Weight) takeFrom(host []float32) error {
	unit := w.unit()
	step := max(1, 1<<16/unit) * unit
	tile, free, err := snug.MakeView(w.Device(), snug.F32, min(step, w.n))
	if err != nil {
		return err
	}
	decoded := make([]float32, tile.Len())
	for lo := 0; lo < w.n && err == nil; lo += step {
		n := min(step, w.n-lo)
		if err = w.dequantizeRange(part(tile, 0, n), lo); err == nil {
			err = snug.Copy(decoded[:n], part(tile, 0, n))
		}
		for i, x := range decoded[:n] {
			host[lo+i] -= x
		}
	}
	return errors.Join(err, free())
}

// checkStart checks an adapter and its matrix.
func (l *LoRA) checkStart(w snug.View) error {
	if _, err := l.rows(snug.View{}, snug.View{}, snug.View{}); err != nil {
		return err
	}
	switch {
	case l.A.DType() != snug.F32 || l.B.DType() != snug.F32:
		return fmt.Errorf("matrix A holds %s and B %s, want f32: %w", l.A.DType(), l.B.DType(), snug.ErrDType)
	case !w.DType().IsFloat():
		return fmt.Errorf("the matrix holds %s, want f32, f16 or bf16: %w", w.DType(), snug.ErrDType)
	case w.Len() != times(l.Out, l.In):
		return fmt.Errorf("the matrix has %d elements, want %d×%d: %w", w.Len(), l.Out, l.In, snug.ErrShape)
	case l.Rank > min(l.In, l.Out):
		return fmt.Errorf("rank %d, want %d at most, the smaller side of the matrix of %d×%d: %w", l.Rank, min(l.In, l.Out), l.Out, l.In, snug.ErrConfig)
	}
	return finite("the matrix", w)
}

// load writes the elements of a vector on any device to a slice.
func load(host []float32, v snug.View) error {
	if v.Device().IsCPU() {
		return amp.Cast(host, v)
	}
	low, free, err := snug.MakeView(snug.CPU(), v.DType(), v.Len())
	if err != nil {
		return err
	}
	if err = snug.Copy(low, v); err == nil {
		err = amp.Cast(host, low)
	}
	return errors.Join(err, free())
}

// onHost returns the elements of an f32 vector on any device; do not change them.
func onHost(v snug.View) ([]float32, error) {
	if v.Device().IsCPU() {
		return v.Float32s(), nil
	}
	host := make([]float32, v.Len())
	return host, snug.Copy(host, v)
}

// store rounds elements to the type of a vector on any device.
func store(v snug.View, host []float32) error {
	if v.Device().IsCPU() {
		return amp.Cast(v, host)
	}
	low, free, err := snug.MakeView(snug.CPU(), v.DType(), v.Len())
	if err != nil {
		return err
	}
	if err = amp.Cast(low, host); err == nil {
		err = snug.Copy(v, low)
	}
	return errors.Join(err, free())
}

// factors are first values of A and B.
type factors struct{ a, b []float32 }

// byPrincipal returns the part of w with the largest singular values. Without a number of iterations the size of w says
// how.
func (l *LoRA) byPrincipal(w []float32, iterations int) (f factors, err error) {
	var p *principal
	switch {
	case iterations == 0 && min(l.In, l.Out) <= exactSide:
		p, err = decompose(w, l.Out, l.In)
	case iterations == 0:
		p, err = approximate(w, l.Out, l.In, l.Rank, defaultIterations)
	default:
		p, err = approximate(w, l.Out, l.In, l.Rank, iterations)
	}
	if err != nil {
		return f, err
	}
	a, b := make([]float32, l.Rank*l.In), make([]float32, l.Out*l.Rank)
	for k := range l.Rank {
		root := math.Sqrt(p.values[k] / math.Abs(float64(l.Scale)))
		for j := range l.In {
			a[k*l.In+j] = float32(root * p.right.At(j, k))
		}
		sign := math.Copysign(root, float64(l.Scale))
		for i := range l.Out {
			b[i*l.Rank+k] = float32(sign * p.left.At(i, k))
		}
	}
	return factors{a, b}, nil
}

// byQR returns as B the first columns of Q, and as A the first rows of R.
func (l *LoRA) byQR(w []float32, _ int) (factors, error) {
	b := make([]float32, l.Out*l.Rank)
	for i := range l.Out {
		copy(b[i*l.Rank:(i+1)*l.Rank], w[i*l.In:])
	}
	orthogonalize(b, l.Out, l.Rank, make([]float64, len(b)))
	a := make([]float32, l.Rank*l.In)
	err := amp.MatMul(snug.ViewOf(a), snug.ViewOf(b), snug.ViewOf(w), amp.MatMulOptions{M: l.Rank, N: l.In, K: l.Out, TransA: true})
	return factors{a, b}, err
}

func (l *LoRA) set(f factors) error { return errors.Join(snug.Copy(l.A, f.a), snug.Copy(l.B, f.b)) }

// subtract computes w -= s·B·A, and returns an error if that, A or B is not finite.
func (l *LoRA) subtract(w []float32, f factors) error {
	a, b := snug.ViewOf(f.a), snug.ViewOf(f.b)
	err := amp.MatMul(snug.ViewOf(w), b, a, amp.MatMulOptions{M: l.Out, N: l.In, K: l.Rank, Into: snug.Into{Alpha: -l.Scale, Beta: 1}})
	if err != nil {
		return err
	}
	return errors.Join(f.finite(), finite("the matrix without s·B·A", snug.ViewOf(w)))
}

func (f factors) finite() error {
	return errors.Join(finite("A", snug.ViewOf(f.a)), finite("B", snug.ViewOf(f.b)))
}

// finite returns an error if a vector has a NaN or an infinity.
func finite(name string, v snug.View) error {
	stats, err := amp.Measure(func(yield func(string, snug.View) bool) { yield(name, v) })
	return cmp.Or(err, stats.Err())
}

// Less returns a plain adapter of twice the rank, whose product is that of l less that of first: with the first values
// of an l that [LoRA.Start] set, it is for the matrix as it was before Start. Its config is
// [AdapterOptions.Doubled]. It is new, f32, and on the CPU. Errors: [snug.ErrConfig] for a nil adapter and for one
// with magnitudes, [snug.ErrShape] for adapters of two shapes or scales, [snug.ErrDType] unless all are f32.
func (l *LoRA) Less(first *LoRA) (*LoRA, error) {
	for _, a := range []*LoRA{l, first} {
		if _, err := a.check("less", snug.View{}, snug.View{}, snug.View{}); err != nil {
			return nil, err
		}
		switch {
		case a.Magnitude.Len() > 0:
			return nil, fmt.Errorf("qlora: LoRA: less: an adapter with magnitudes: %w", snug.ErrConfig)
		case a.A.DType() != snug.F32 || a.B.DType() != snug.F32:
			return nil, fmt.Errorf("qlora: LoRA: less: matrix A holds %s and B %s, want f32: %w", a.A.DType(), a.B.DType(), snug.ErrDType)
		case a.In != l.In || a.Out != l.Out || a.Rank != l.Rank || a.Scale != l.Scale:
			return nil, fmt.Errorf("qlora: LoRA: less: %d to %d of rank %d with the scale %g, and %d to %d of rank %d with %g, want equal ones: %w",
				l.In, l.Out, l.Rank, l.Scale, a.In, a.Out, a.Rank, a.Scale, snug.ErrShape)
		}
	}
	r := l.Rank
	a, b := make([]float32, 2*r*l.In), make([]float32, 2*r*l.Out)
	now, err := onHost(l.B)
	then, err2 := onHost(first.B)
	if err := errors.Join(err, err2, snug.Copy(a[:r*l.In], l.A), snug.Copy(a[r*l.In:], first.A)); err != nil {
		return nil, fmt.Errorf("qlora: LoRA: less: %w", err)
	}
	for i := range l.Out {
		row := b[2*r*i : 2*r*(i+1)]
		copy(row, now[r*i:r*(i+1)])
		for k, x := range then[r*i : r*(i+1)] {
			row[r+k] = -x
		}
	}
	return &LoRA{In: l.In, Out: l.Out, Rank: 2 * r, Scale: l.Scale, Dropout: l.Dropout, A: snug.ViewOf(a), B: snug.ViewOf(b)}, nil
}

// Doubled returns the config of adapters that [LoRA.Less] made of those of c: with twice the ranks, the same scales,
// and no Init.
func (c AdapterOptions) Doubled() AdapterOptions {
	factor := float32(2)
	if c.RSLoRA {
		factor = math.Sqrt2
	}
	c.Rank, c.Alpha, c.Init = 2*c.Rank, factor*c.Alpha, ""
	c.Ranks, c.Alphas = maps.Clone(c.Ranks), maps.Clone(c.Alphas)
	for key := range c.Ranks {
		c.Ranks[key] *= 2
	}
	for key := range c.Alphas {
		c.Alphas[key] *= factor
	}
	return c
}
