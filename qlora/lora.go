package qlora

import (
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/fault"
	"github.com/snug-ml/snug/quant8"
)

// LoRA is a low-rank adapter of a linear layer:
//
//	y += s·(x·Aᵀ)·Bᵀ
//
// Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models", arXiv:2106.09685. Training starts with B = 0
// and a random A, which add nothing; PEFT draws A uniformly between -1/√In and 1/√In. An adapter with a Magnitude
// belongs to a [DoRA].
type LoRA struct {
	In, Out, Rank int
	Scale         float32   // s, see LoRAScale
	A, B          snug.View // [Rank, In] and [Out, Rank]: f32, or of the type of activations
	Dropout       float32   // probability to drop an element of x on its way to A, see type Dropout; less than 1
	Magnitude     snug.View // [Out] of f32 for a DoRA, else empty
	// FrozenA leaves A as it is: LoRA-FA, Zhang et al. 2023, arXiv:2308.03303. [LoRA.Backward] then needs neither x nor
	// memory for a gradient of A, so that of the forward pass only u is kept: rows·Rank elements in place of rows·In.
	// PEFT's optimizer of that name also multiplies the gradient of B by (A·Aᵀ)⁻¹/s², which the paper does not.
	FrozenA bool
	// Embedding says that the adapter is of an embedding, a table of In rows with Out elements each. [LoadAdapters] sets it for
	// what PEFT names lora_embedding_A and lora_embedding_B. The table with its adapter is that of [Dense.Merge] for a
	// transposed matrix.
	Embedding bool

	free []func() error // memory that LoadAdapters allocated
}

// Dropout names the random mask of x in one step of training. A layer drops the same elements
// in its forward and its backward pass, with probability LoRA.Dropout, and multiplies the
// others by 1/(1 - LoRA.Dropout). Both passes draw the mask from its numbers, as
// [fused.DropoutMask] does, and do not store it. The zero Dropout drops nothing: use it for
// evaluation.
type Dropout struct {
	// Draw names the mask: the Seed of the run; a Tensor number that no other dropout of the run
	// has, such as step·layers + layer; and First, the number of x's first element, 0 unless x is
	// a part.
	amp.Draw
	// Work is a workspace of the length and type of x, which it does not overlap, for one call.
	// Layers of one width can share it. Without Work nothing is dropped, whatever Draw says.
	Work snug.View
}

// LoRAScale returns alpha/rank, or, stabilized, alpha/√rank (rsLoRA: Kalajdzievski
// 2023, arXiv:2312.03732), for a rank above 0.
func LoRAScale(alpha float32, rank int, stabilized bool) float32 {
	if stabilized {
		return float32(float64(alpha) / math.Sqrt(float64(rank)))
	}
	return alpha / float32(rank)
}

// LoRAPlus returns Options.Params of package quant8 or train for a ratio above 0: the learning rate of B, and of the
// magnitudes of a DoRA, is that of A times ratio. Hayou et al. 2024, "LoRA+", arXiv:2402.12354, propose 16. Weight
// decay that is multiplied by the learning rate is multiplied by the ratio too, as by PEFT's create_loraplus_optimizer.
// Parameters are told by their names, those of PEFT's files. All others have the rate of A: the vectors of a VeRA, and
// norms of ModulesToSave, which PEFT's optimizer counts to B because they have one dimension.
func LoRAPlus(ratio float32) func(name string) quant8.ParamOptions {
	return func(name string) (p quant8.ParamOptions) {
		if strings.HasSuffix(name, adapterB) || strings.HasSuffix(name, adapterMagnitude) {
			p.LR = ratio
		}
		return p
	}
}

// Close frees what [LoadAdapters] made. Closing twice does nothing.
func (l *LoRA) Close() (err error) {
	if l == nil {
		return nil
	}
	for _, free := range l.free {
		err = errors.Join(err, free())
	}
	l.free = nil
	return err
}

// Params returns the number of parameters, Rank·(In+Out), and Out magnitudes if it has them. With FrozenA it counts the
// Rank·In of A too.
func (l *LoRA) Params() int {
	if l == nil {
		return 0
	}
	return l.Rank*(l.In+l.Out) + l.Magnitude.Len()
}

// Forward computes u = x·Aᵀ, which [LoRA.Backward] needs, and y += s·u·Bᵀ, for x of [rows,
// In], y of [rows, Out] and u of [rows, Rank] elements on one device. d drops elements of x
// before A. Types are as in [amp.MatMul], and u has the type of x. Errors: [snug.ErrShape]
// and [snug.ErrConfig], also for an adapter with a Magnitude, with nothing written, and the
// errors of amp.MatMul.
func (l *LoRA) Forward(y, u, x snug.View, d Dropout) error {
	rows, err := l.checkPass("forward", x, u, y, d)
	if err != nil || rows == 0 {
		return err
	}
	if x, err = l.drop(x, d); err == nil {
		err = l.add(y, u, x, rows)
	}
	return fault.Of(err, "qlora: LoRA: forward")
}

// Down computes u = x·Aᵀ alone, with the bits of [LoRA.Forward], for a backward pass whose forward
// pass has not kept u. Errors are the errors of Forward.
func (l *LoRA) Down(u, x snug.View, d Dropout) error {
	rows, err := l.checkDown(u, x, d)
	if err != nil || rows == 0 {
		return err
	}
	if x, err = l.drop(x, d); err == nil {
		err = l.down(u, x, rows)
	}
	return fault.Of(err, "qlora: LoRA: down")
}

func (l *LoRA) checkDown(u, x snug.View, d Dropout) (rows int, err error) {
	switch {
	case l == nil || l.In < 1 || l.Rank < 1 || l.A.Len() != times(l.Rank, l.In):
		return 0, fmt.Errorf("qlora: LoRA: down: the adapter is nil, or A does not have Rank×In elements: %w", snug.ErrConfig)
	case !(l.Dropout >= 0 && l.Dropout < 1):
		return 0, fmt.Errorf("qlora: LoRA: down: dropout %g, want at least 0 and less than 1: %w", l.Dropout, snug.ErrConfig)
	}
	rows = x.Len() / l.In
	if rows*l.In != x.Len() || u.Len() != times(rows, l.Rank) {
		return 0, fmt.Errorf("qlora: LoRA: down: %d and %d elements, want rows of %d and %d: %w", x.Len(), u.Len(), l.In, l.Rank, snug.ErrShape)
	}
	return rows, l.checkDraw("down", x, d)
}

func (l *LoRA) down(u, x snug.View, rows int) error {
	return amp.MatMul(u, x, l.A, amp.MatMulOptions{M: rows, N: l.Rank, K: l.In, TransB: true})
}

// add is Forward with the x that is left.
func (l *LoRA) add(y, u, x snug.View, rows int) error {
	if err := l.down(u, x, rows); err != nil {
		return err
	}
	return amp.MatMul(y, u, l.B, amp.MatMulOptions{M: rows, N: l.Out, K: l.Rank, TransB: true, Into: snug.Into{Alpha: l.Scale, Beta: 1}})
}

// drops reports whether d drops elements.
func (l *LoRA) drops(d Dropout) bool { return l.Dropout > 0 && d.Work.Len() > 0 }

// drop returns x without the elements that d drops.
func (l *LoRA) drop(x snug.View, d Dropout) (snug.View, error) {
	if !l.drops(d) {
		return x, nil
	}
	return d.Work, fused.Dropout(d.Work, x, l.mask(d))
}

func (l *LoRA) mask(d Dropout) fused.DropoutMask {
	return fused.DropoutMask{P: l.Dropout, Seed: d.Seed, Tensor: d.Tensor, First: d.First}
}

// Grads are the float32 accumulators of a LoRA's gradients, and the factors with which a
// micro-batch enters them. accum's Window.Into returns both: call it for A and for B in each
// micro-batch; their factors are equal.
type Grads struct {
	A, B      snug.View // of the lengths of LoRA.A and B; A is empty with FrozenA
	Magnitude snug.View // of the length of LoRA.Magnitude, for a DoRA
	Into      snug.Into
}

// Backward computes, from dy and the x, u and d of [LoRA.Forward],
//
//	du  = s·dy·B
//	dB  = Beta·dB + Alpha·s·dyᵀ·u
//	dA  = Beta·dA + Alpha·duᵀ·x
//	dx += du·A
//
// where elements that d drops count as 0 in dA and in dx. du has the size and the type of
// u; its contents mean nothing afterwards. An empty dx is not computed; otherwise, with
// dropout, dx has the type of x. With FrozenA there is no dA: x and Grads.A are empty, and dx may be the
// memory of the x of Forward. Errors are the errors of Forward.
func (l *LoRA) Backward(dx, du, dy, u, x snug.View, g Grads, d Dropout) error {
	input := x // what has the length and the type of x
	if l != nil && l.FrozenA {
		if x.Len() > 0 {
			return fmt.Errorf("qlora: LoRA: backward: an x of %d elements, want none with FrozenA: %w", x.Len(), snug.ErrShape)
		}
		if input = dx; dx.Len() == 0 {
			input, d = snug.View{}, Dropout{}
		}
	}
	rows, err := l.checkBackward(input, u, dy, d)
	if err == nil {
		g, err = l.checkGrads("backward", dx, du, u, input, g)
	}
	if err != nil {
		return err
	}
	if !l.FrozenA {
		x, err = l.drop(x, d)
	}
	if err == nil {
		err = l.gradients(du, dy, u, x, rows, g)
	}
	switch {
	case err != nil || dx.Len() == 0:
	case l.drops(d):
		if err = amp.MatMul(d.Work, du, l.A, l.input(rows, 0)); err == nil {
			err = l.addDropped(dx, d)
		}
	default:
		err = amp.MatMul(dx, du, l.A, l.input(rows, 1))
	}
	return fault.Of(err, "qlora: LoRA: backward")
}

// gradients computes du and the gradients of A and B.
func (l *LoRA) gradients(du, dy, u, x snug.View, rows int, g Grads) error {
	for _, step := range [...]struct {
		c, a, b snug.View
		cfg     amp.MatMulOptions
	}{
		{du, dy, l.B, amp.MatMulOptions{M: rows, N: l.Rank, K: l.Out, Into: snug.Into{Alpha: l.Scale}}},
		{g.B, dy, u, amp.MatMulOptions{M: l.Out, N: l.Rank, K: rows, TransA: true, Into: snug.Into{Alpha: g.Into.Alpha * l.Scale, Beta: g.Into.Beta}}},
		{g.A, du, x, amp.MatMulOptions{M: l.Rank, N: l.In, K: rows, TransA: true, Into: g.Into}},
	} {
		if step.c.Len() == 0 && l.FrozenA {
			continue
		}
		if err := amp.MatMul(step.c, step.a, step.b, step.cfg); err != nil {
			return err
		}
	}
	return nil
}

// input returns the options of the product dx = du·A + beta·dx.
func (l *LoRA) input(rows int, beta float32) amp.MatMulOptions {
	return amp.MatMulOptions{M: rows, N: l.In, K: l.Rank, Into: snug.Into{Beta: beta}}
}

// addDropped adds Work to dx, without the elements that d drops.
func (l *LoRA) addDropped(dx snug.View, d Dropout) error {
	if err := fused.DropoutBackward(d.Work, d.Work, l.mask(d)); err != nil {
		return err
	}
	return fused.Add(dx, dx, d.Work)
}

// checkBackward is checkPass for an x that may be empty with FrozenA.
func (l *LoRA) checkBackward(x, u, dy snug.View, d Dropout) (rows int, err error) {
	if l == nil || !l.FrozenA || x.Len() > 0 || l.Rank < 1 || l.Out < 1 {
		return l.checkPass("backward", x, u, dy, d)
	}
	if rows = u.Len() / l.Rank; u.Len() != rows*l.Rank || dy.Len() != times(rows, l.Out) {
		return 0, fmt.Errorf("qlora: LoRA: backward: %d and %d elements, want rows of %d and %d: %w", u.Len(), dy.Len(), l.Rank, l.Out, snug.ErrShape)
	}
	_, err = l.checkPass("backward", x, snug.View{}, snug.View{}, d)
	return rows, err
}

// checkPass is check for a LoRA without magnitudes. It also checks d.
func (l *LoRA) checkPass(op string, x, u, y snug.View, d Dropout) (rows int, err error) {
	rows, err = l.check(op, x, u, y)
	switch {
	case err != nil:
		return 0, err
	case l.Magnitude.Len() != 0:
		return 0, fmt.Errorf("qlora: LoRA: %s: an adapter with magnitudes, which a DoRA computes: %w", op, snug.ErrConfig)
	}
	return rows, l.checkDraw(op, x, d)
}

func (l *LoRA) checkDraw(op string, x snug.View, d Dropout) error {
	switch {
	case !l.drops(d):
		return nil
	case d.Work.Len() != x.Len():
		return fmt.Errorf("qlora: LoRA: %s: Work has %d elements, want %d: %w", op, d.Work.Len(), x.Len(), snug.ErrShape)
	case d.Work.DType() != x.DType():
		return fmt.Errorf("qlora: LoRA: %s: Work holds %s, want %s: %w", op, d.Work.DType(), x.DType(), snug.ErrDType)
	case device.Mem(&d.Work).Overlaps(*device.Mem(&x)):
		return fmt.Errorf("qlora: LoRA: %s: Work overlaps x, which the backward pass needs: %w", op, snug.ErrConfig)
	}
	return nil
}

// checkGrads returns g with the default of its Into.
func (l *LoRA) checkGrads(op string, dx, du, u, x snug.View, g Grads) (Grads, error) {
	alpha, beta, err := g.Into.Factors()
	lengthA := l.A.Len() // of its gradient
	if l.FrozenA {
		lengthA = 0
	}
	switch {
	case err != nil:
		return g, fmt.Errorf("qlora: LoRA: %s: %w", op, err)
	case du.Len() != u.Len() || dx.Len() != 0 && dx.Len() != x.Len():
		return g, fmt.Errorf("qlora: LoRA: %s: dx has %d elements and du %d, x %d and u %d: %w", op, dx.Len(), du.Len(), x.Len(), u.Len(), snug.ErrShape)
	case g.A.Len() != lengthA || g.B.Len() != l.B.Len() || g.Magnitude.Len() != l.Magnitude.Len():
		return g, fmt.Errorf("qlora: LoRA: %s: gradients of %d, %d and %d elements, parameters of %d, %d and %d: %w",
			op, g.A.Len(), g.B.Len(), g.Magnitude.Len(), lengthA, l.B.Len(), l.Magnitude.Len(), snug.ErrShape)
	case alpha*l.Scale == 0 || math.IsInf(float64(alpha*l.Scale), 0): // 0 would mean 1 to a product
		return g, fmt.Errorf("qlora: LoRA: %s: Alpha %g times the scale %g is %g in float32: %w", op, alpha, l.Scale, alpha*l.Scale, snug.ErrConfig)
	}
	for i, v := range [...]snug.View{g.A, g.B, g.Magnitude} {
		if v.Len() > 0 && v.DType() != snug.F32 {
			return g, fmt.Errorf("qlora: LoRA: %s: the gradient of %s holds %s, want f32: %w",
				op, [...]string{"A", "B", "the magnitudes"}[i], v.DType(), snug.ErrDType)
		}
	}
	g.Into = snug.Into{Alpha: alpha, Beta: beta}
	return g, nil
}

// times returns a·b for numbers of 0 or more, and -1, which is no length, for a product
// beyond an int.
func times(a, b int) int {
	if b > 0 && a > math.MaxInt/b {
		return -1
	}
	return a * b
}

// check returns the rows of the operands.
func (l *LoRA) check(op string, x, u, y snug.View) (rows int, err error) {
	if rows, err = l.rows(x, u, y); err != nil {
		return 0, fmt.Errorf("qlora: LoRA: %s: %w", op, err)
	}
	return rows, nil
}

// rows is check without a name for errors.
func (l *LoRA) rows(x, u, y snug.View) (rows int, err error) {
	switch {
	case l == nil:
		return 0, fmt.Errorf("the adapter is nil: %w", snug.ErrConfig)
	case l.In < 1 || l.Out < 1 || l.Rank < 1:
		return 0, fmt.Errorf("a layer of %d to %d with rank %d, want 1 or more: %w", l.In, l.Out, l.Rank, snug.ErrConfig)
	case l.Scale == 0 || l.Scale-l.Scale != 0:
		return 0, fmt.Errorf("scale %g, want a finite number other than 0: %w", l.Scale, snug.ErrConfig)
	case !(l.Dropout >= 0 && l.Dropout < 1):
		return 0, fmt.Errorf("dropout %g, want at least 0 and less than 1: %w", l.Dropout, snug.ErrConfig)
	case l.A.Len() != times(l.Rank, l.In) || l.B.Len() != times(l.Out, l.Rank):
		return 0, fmt.Errorf("matrix A has %d elements and B %d, want %d×%d and %d×%d: %w", l.A.Len(), l.B.Len(), l.Rank, l.In, l.Out, l.Rank, snug.ErrShape)
	case l.Magnitude.Len() != 0 && l.Magnitude.Len() != l.Out:
		return 0, fmt.Errorf("%d magnitudes, want %d: %w", l.Magnitude.Len(), l.Out, snug.ErrShape)
	case l.Magnitude.Len() != 0 && l.Magnitude.DType() != snug.F32:
		return 0, fmt.Errorf("magnitudes of %s, want f32: %w", l.Magnitude.DType(), snug.ErrDType)
	}
	rows = x.Len() / l.In
	if rows*l.In != x.Len() || u.Len() != times(rows, l.Rank) || y.Len() != times(rows, l.Out) {
		return 0, fmt.Errorf("%d, %d and %d elements, want rows of %d, %d and %d: %w", x.Len(), u.Len(), y.Len(), l.In, l.Rank, l.Out, snug.ErrShape)
	}
	return rows, nil
}
