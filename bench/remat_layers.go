package main

import (
	"cmp"
	"math"
	"math/rand/v2"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/attention"
	"github.com/snug-ml/snug/fused"
)

// saved is what a sublayer keeps for its backward pass, its output first.
type saved [8][]float32

// temporaries are tensors within a stage's step. All stages of a chain share them.
type temporaries [5][]float32

// The temporaries of a backward pass.
const (
	inner      = iota // gradient of what is as wide as the widest
	outer             // gradient of what is as wide as x
	normalized        // what a norm gives, where that is not saved
	activated         // what gelu gives, where that is not saved
	workspace         // of one kernel
)

// at returns a temporary of n elements.
func (t *temporaries) at(i, n int) []float32 {
	if len(t[i]) < n {
		t[i] = make([]float32, n)
	}
	return t[i][:n]
}

// sublayer is the work of one stage of a chain, in float32. Its backward pass
// overwrites the gradients of its parameters.
type sublayer interface {
	// sizes returns the elements of what it keeps.
	sizes() []int
	// forward fills s, without the output if that is not wanted.
	forward(x []float32, s *saved, output bool) error
	// backward computes dx from dy, which are the same tensor if x is as large as the
	// output.
	backward(dx, dy, x []float32, s *saved) error
	// gradients returns those of the parameters.
	gradients() [][]float32
	String() string
}

// linear is a weight of out rows and in columns.
type linear struct {
	rows, in, out int // rows and in are those of an activation
	w, dw         []float32
}

func newLinear(r *rand.Rand, rows, in, out int) linear {
	l := linear{rows, in, out, make([]float32, in*out), make([]float32, in*out)}
	for i := range l.w {
		l.w[i] = float32(r.NormFloat64() / math.Sqrt(float64(in)))
	}
	return l
}

// forward computes y = x·wᵀ + beta·y.
func (l *linear) forward(y, x []float32, beta float32) error {
	return amp.MatMul(y, x, l.w, amp.MatMulOptions{M: l.rows, N: l.out, K: l.in, TransB: true, Into: snug.Into{Beta: beta}})
}

// backward computes dw = dyᵀ·x and dx = dy·w.
func (l *linear) backward(dx, dy, x []float32) error {
	return cmp.Or(
		amp.MatMul(l.dw, dy, x, amp.MatMulOptions{M: l.out, N: l.in, K: l.rows, TransA: true}),
		amp.MatMul(dx, dy, l.w, amp.MatMulOptions{M: l.rows, N: l.in, K: l.out}))
}

// norm is a layer norm.
type norm struct {
	gamma, beta   []float32
	dgamma, dbeta []float32
	rows          int
	temps         *temporaries
}

func newNorm(rows, cols int, temps *temporaries) norm {
	n := norm{
		make([]float32, cols), make([]float32, cols), make([]float32, cols), make([]float32, cols), rows, temps,
	}
	for i := range n.gamma {
		n.gamma[i] = 1
	}
	return n
}

func (n *norm) forward(y, mean, rstd, x []float32) error {
	return fused.LayerNorm(y, mean, rstd, x, n.gamma, n.beta, 1e-5)
}

// backward computes dx = beta·dx + the gradient in x.
func (n *norm) backward(dx, dy, x, mean, rstd []float32, beta float32) error {
	ws := n.temps.at(workspace, fused.LayerNormWorkspaceLen(n.rows, len(n.gamma)))
	return fused.LayerNormBackward(dx, n.dgamma, n.dbeta, dy, x, mean, rstd, n.gamma,
		fused.GradsInto{Input: snug.Into{Beta: beta}}, ws)
}

// attentionHalf is y = x + proj(attention(qkv(norm(x)))), half of a pre-norm
// transformer block. It saves what automatic differentiation would, less the
// probabilities: y, norm(x), qkv, the output of attention and statistics. A lean one
// computes norm(x) again in its backward pass.
type attentionHalf struct {
	rows, cols int
	lean       bool
	cfg        attention.Options
	norm       norm
	qkv, proj  linear
	temps      *temporaries
}

func newAttentionHalf(r *rand.Rand, c *chainSize, lean bool, temps *temporaries) *attentionHalf {
	return &attentionHalf{
		rows: c.rows, cols: c.cols, lean: lean,
		cfg: attention.PackedQKV(attention.Options{
			Batch: c.rows / c.tokens, Heads: c.heads, SeqQ: c.tokens, Dim: c.cols / c.heads, Causal: true}),
		norm: newNorm(c.rows, c.cols, temps), qkv: newLinear(r, c.rows, c.cols, 3*c.cols), proj: newLinear(r, c.rows, c.cols, c.cols),
		temps: temps,
	}
}

func (a *attentionHalf) String() string { return "attention" }

func (a *attentionHalf) sizes() []int {
	n := a.rows * a.cols
	return []int{n, unless(a.lean, n), 3 * n, n, a.cfg.WorkspaceLen(), a.rows, a.rows}
}

func (a *attentionHalf) forward(x []float32, s *saved, output bool) error {
	y, qkv, att, lse, mean, rstd := s[0], s[2], s[3], s[4], s[5], s[6]
	h := s[1]
	if a.lean {
		h = a.temps.at(normalized, len(x))
	}
	if err := cmp.Or(
		a.norm.forward(h, mean, rstd, x),
		a.qkv.forward(qkv, h, 0),
		attention.Forward(att, lse, qkv, qkv[a.cols:], qkv[2*a.cols:], a.cfg),
	); err != nil || !output {
		return err
	}
	copy(y, x)
	return a.proj.forward(y, att, 1)
}

func (a *attentionHalf) backward(dx, dy, x []float32, s *saved) error {
	h, qkv, att, lse, mean, rstd := s[1], s[2], s[3], s[4], s[5], s[6]
	if a.lean {
		h = a.temps.at(normalized, len(x))
		if err := a.norm.forward(h, nil, nil, x); err != nil {
			return err
		}
	}
	d, dqkv, ws := a.temps.at(outer, len(x)), a.temps.at(inner, 3*len(x)), a.temps.at(workspace, len(lse))
	return cmp.Or(
		a.proj.backward(d, dy, att),
		attention.Backward(dqkv, dqkv[a.cols:], dqkv[2*a.cols:], d, qkv, qkv[a.cols:], qkv[2*a.cols:], att, lse, a.cfg, ws),
		a.qkv.backward(d, dqkv, h),
		a.norm.backward(dx, d, x, mean, rstd, 1))
}

func (a *attentionHalf) gradients() [][]float32 {
	return [][]float32{a.qkv.dw, a.proj.dw, a.norm.dgamma, a.norm.dbeta}
}

// mlpHalf is y = x + down(gelu(up(norm(x)) + bias)), the other half. It saves y,
// norm(x), the input and the output of gelu and statistics. A lean one computes norm(x)
// and gelu again in its backward pass.
type mlpHalf struct {
	rows, cols int
	lean       bool
	norm       norm
	up, down   linear
	bias       []float32
	dbias      []float32
	temps      *temporaries
}

func newMLPHalf(r *rand.Rand, c *chainSize, lean bool, temps *temporaries) *mlpHalf {
	return &mlpHalf{
		rows: c.rows, cols: c.cols, lean: lean,
		norm: newNorm(c.rows, c.cols, temps), up: newLinear(r, c.rows, c.cols, 4*c.cols), down: newLinear(r, c.rows, 4*c.cols, c.cols),
		bias: make([]float32, 4*c.cols), dbias: make([]float32, 4*c.cols), temps: temps,
	}
}

func (m *mlpHalf) String() string { return "mlp" }

func (m *mlpHalf) sizes() []int {
	n := m.rows * m.cols
	return []int{n, unless(m.lean, n), 4 * n, unless(m.lean, 4*n), m.rows, m.rows}
}

func (m *mlpHalf) forward(x []float32, s *saved, output bool) error {
	y, up, mean, rstd := s[0], s[2], s[4], s[5]
	h, g := s[1], s[3]
	if m.lean {
		h, g = m.temps.at(normalized, len(x)), m.temps.at(activated, len(up))
	}
	if err := cmp.Or(m.norm.forward(h, mean, rstd, x), m.up.forward(up, h, 0)); err != nil || m.lean && !output {
		return err
	}
	if err := fused.BiasGELU(g, up, m.bias); err != nil || !output {
		return err
	}
	copy(y, x)
	return m.down.forward(y, g, 1)
}

func (m *mlpHalf) backward(dx, dy, x []float32, s *saved) error {
	h, up, g, mean, rstd := s[1], s[2], s[3], s[4], s[5]
	if m.lean {
		h, g = m.temps.at(normalized, len(x)), m.temps.at(activated, len(up))
		if err := cmp.Or(m.norm.forward(h, nil, nil, x), fused.BiasGELU(g, up, m.bias)); err != nil {
			return err
		}
	}
	d, dup := m.temps.at(outer, len(x)), m.temps.at(inner, len(up))
	ws := m.temps.at(workspace, fused.BiasGELUWorkspaceLen(m.rows, len(m.bias)))
	return cmp.Or(
		m.down.backward(dup, dy, g),
		fused.BiasGELUBackward(dup, m.dbias, dup, up, m.bias, snug.Into{}, ws),
		m.up.backward(d, dup, h),
		m.norm.backward(dx, d, x, mean, rstd, 1))
}

func (m *mlpHalf) gradients() [][]float32 {
	return [][]float32{m.up.dw, m.down.dw, m.dbias, m.norm.dgamma, m.norm.dbeta}
}

// unless returns n, or 0 if lean.
func unless(lean bool, n int) int {
	if lean {
		return 0
	}
	return n
}
