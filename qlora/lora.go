package qlora

import (
	"errors"
	"fmt"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
)

// LoRA is a low-rank adapter of a linear layer:
//
//	y += s·(x·Aᵀ)·Bᵀ
//
// Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models",
// arXiv:2106.09685. It starts as nothing with B of zeros and random A.
type LoRA struct {
	In, Out, Rank int
	Scale         float32   // s, see LoRAScale
	A, B          snug.View // [Rank, In] and [Out, Rank]: f32, or of the type of activations

	free []func() error // what LoadAdapters has made
}

// LoRAScale returns alpha/rank, or, stabilized, alpha/√rank (rsLoRA: Kalajdzievski
// 2023, arXiv:2312.03732), for a rank above 0.
func LoRAScale(alpha float32, rank int, stabilized bool) float32 {
	if stabilized {
		return float32(float64(alpha) / math.Sqrt(float64(rank)))
	}
	return alpha / float32(rank)
}

// Close frees what [LoadAdapters] made. Closing twice does nothing.
func (l *LoRA) Close() (err error) {
	for _, free := range l.free {
		err = errors.Join(err, free())
	}
	l.free = nil
	return err
}

// Params returns the number of parameters, Rank·(In+Out).
func (l *LoRA) Params() int { return l.Rank * (l.In + l.Out) }

// Forward computes u = x·Aᵀ, which [LoRA.Backward] needs, and y += s·u·Bᵀ, for x of
// [rows, In], y of [rows, Out] and u of [rows, Rank] elements on one device. Types are
// those that [amp.MatMul] takes, and u has that of x. Errors: [snug.ErrShape], with
// nothing written, and those of amp.MatMul.
func (l *LoRA) Forward(y, u, x snug.View) error {
	rows, err := l.check("forward", x, u, y)
	if err != nil || rows == 0 {
		return err
	}
	err = amp.MatMul(u, x, l.A, amp.MatMulConfig{M: rows, N: l.Rank, K: l.In, TransB: true})
	if err == nil {
		err = amp.MatMul(y, u, l.B, amp.MatMulConfig{M: rows, N: l.Out, K: l.Rank, TransB: true, Alpha: l.Scale, Beta: 1})
	}
	if err != nil {
		return fmt.Errorf("qlora: LoRA: forward: %w", err)
	}
	return nil
}

// Grads are the gradients of a LoRA's parameters, in float32, and how a
// micro-batch enters them: acc = beta·acc + alpha·gradient, the factors of
// accum's Window.Into.
type Grads struct {
	A, B        snug.View // of the sizes of LoRA.A and B
	Alpha, Beta float32
}

// Backward computes, from dy and the x and u of [LoRA.Forward],
//
//	du  = s·dy·B
//	dB  = beta·dB + alpha·s·dyᵀ·u
//	dA  = beta·dA + alpha·duᵀ·x
//	dx += du·A
//
// du has the size and the type of u and holds nothing of use afterwards. dx of length 0
// is left out. Errors are as those of Forward.
func (l *LoRA) Backward(dx, du, dy, u, x snug.View, g Grads) error {
	rows, err := l.check("backward", x, u, dy)
	if err != nil {
		return err
	}
	switch {
	case du.Len() != u.Len() || dx.Len() != 0 && dx.Len() != x.Len():
		return fmt.Errorf("qlora: LoRA: backward: dx has %d elements and du %d, x %d and u %d: %w", dx.Len(), du.Len(), x.Len(), u.Len(), snug.ErrShape)
	case g.A.Len() != l.A.Len() || g.B.Len() != l.B.Len():
		return fmt.Errorf("qlora: LoRA: backward: gradients of %d and %d elements, parameters of %d and %d: %w", g.A.Len(), g.B.Len(), l.A.Len(), l.B.Len(), snug.ErrShape)
	case g.Alpha == 0:
		return fmt.Errorf("qlora: LoRA: backward: gradients count 0 times: %w", snug.ErrConfig)
	}
	for _, step := range [...]struct {
		c, a, b snug.View
		cfg     amp.MatMulConfig
	}{
		{du, dy, l.B, amp.MatMulConfig{M: rows, N: l.Rank, K: l.Out, Alpha: l.Scale}},
		{g.B, dy, u, amp.MatMulConfig{M: l.Out, N: l.Rank, K: rows, TransA: true, Alpha: g.Alpha * l.Scale, Beta: g.Beta}},
		{g.A, du, x, amp.MatMulConfig{M: l.Rank, N: l.In, K: rows, TransA: true, Alpha: g.Alpha, Beta: g.Beta}},
		{dx, du, l.A, amp.MatMulConfig{M: rows, N: l.In, K: l.Rank, Beta: 1}},
	} {
		if step.c.Len() == 0 {
			continue
		}
		if err := amp.MatMul(step.c, step.a, step.b, step.cfg); err != nil {
			return fmt.Errorf("qlora: LoRA: backward: %w", err)
		}
	}
	return nil
}

// check returns the rows of the operands.
func (l *LoRA) check(op string, x, u, y snug.View) (rows int, err error) {
	switch {
	case l.In < 1 || l.Out < 1 || l.Rank < 1:
		return 0, fmt.Errorf("qlora: LoRA: %s: a layer of %d to %d with rank %d, want 1 or more: %w", op, l.In, l.Out, l.Rank, snug.ErrConfig)
	case l.Scale == 0 || l.Scale-l.Scale != 0:
		return 0, fmt.Errorf("qlora: LoRA: %s: scale %g, want a finite number other than 0: %w", op, l.Scale, snug.ErrConfig)
	case l.A.Len() != l.Rank*l.In || l.B.Len() != l.Out*l.Rank:
		return 0, fmt.Errorf("qlora: LoRA: %s: A has %d elements and B %d, want %d×%d and %d×%d: %w", op, l.A.Len(), l.B.Len(), l.Rank, l.In, l.Out, l.Rank, snug.ErrShape)
	}
	rows = x.Len() / l.In
	if rows*l.In != x.Len() || u.Len() != rows*l.Rank || y.Len() != rows*l.Out {
		return 0, fmt.Errorf("qlora: LoRA: %s: %d, %d and %d elements, want rows of %d, %d and %d: %w", op, x.Len(), u.Len(), y.Len(), l.In, l.Rank, l.Out, snug.ErrShape)
	}
	return rows, nil
}
