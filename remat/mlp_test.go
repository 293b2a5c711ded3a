package remat

import (
	"context"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/snug-ml/snug/remat/internal/memtest"
	"github.com/stretchr/testify/require"
)

const batch = 3

// dense is y = f(z), z = x·W + b for a batch of rows. f is tanh or, with gate,
// z·tanh(z), whose derivative needs z.
type dense struct {
	p       *memtest.Pool
	in, out int
	gate    bool
	w, b    []float32 // in×out, out
	dw, db  []float32 // summed into
}

// denseSaved is what dense saves.
type denseSaved struct{ y, z []float32 } // z is nil without a gate

func newDense(p *memtest.Pool, r *rand.Rand, in, out int, gate bool) *dense {
	d := &dense{p: p, in: in, out: out, gate: gate,
		w: make([]float32, in*out), b: make([]float32, out), dw: make([]float32, in*out), db: make([]float32, out)}
	for i := range d.w {
		d.w[i] = float32(r.NormFloat64() / math.Sqrt(float64(in)))
	}
	for i := range d.b {
		d.b[i] = float32(r.NormFloat64() / 10)
	}
	return d
}

func (d *dense) cost() Cost {
	out := int64(4 * batch * d.out)
	c := Cost{Output: out, Saved: out, BackwardExtra: out} // dx is not written over dy
	c.ForwardTime = float64(d.in * d.out)
	c.BackwardTime = 2 * c.ForwardTime
	if d.gate {
		c.Saved += out
	}
	return c
}

func (d *dense) linear(x []float32) []float32 {
	z := d.p.Get(batch * d.out)
	for r := range batch {
		row := z[r*d.out : (r+1)*d.out]
		copy(row, d.b)
		for i, v := range x[r*d.in : (r+1)*d.in] {
			for j, w := range d.w[i*d.out : (i+1)*d.out] {
				row[j] += float32(v * w)
			}
		}
	}
	return z
}

// activate writes f(z) to y, which may be z.
func (d *dense) activate(y, z []float32) {
	for i, v := range z {
		y[i] = float32(math.Tanh(float64(v)))
		if d.gate {
			y[i] *= v
		}
	}
}

func (d *dense) Forward(_ context.Context, x []float32) ([]float32, error) {
	y := d.linear(x)
	d.activate(y, y)
	return y, nil
}

func (d *dense) ForwardSave(_ context.Context, x []float32) ([]float32, denseSaved, error) {
	s := denseSaved{y: d.linear(x)}
	z := s.y
	if d.gate {
		s.z = d.p.Get(len(s.y))
		copy(s.z, s.y)
		z = s.z
	}
	d.activate(s.y, z)
	return s.y, s, nil
}

func (d *dense) Backward(_ context.Context, x []float32, s denseSaved, dy []float32) ([]float32, error) {
	for i := range dy { // dz, in place
		if d.gate {
			t := float32(math.Tanh(float64(s.z[i])))
			dy[i] *= t + float32(s.z[i]*(1-float32(t*t)))
		} else {
			dy[i] *= 1 - float32(s.y[i]*s.y[i])
		}
	}
	dx := d.p.Get(len(x))
	for r := range batch {
		for j, g := range dy[r*d.out : (r+1)*d.out] {
			d.db[j] += g
			for i := range d.in {
				d.dw[i*d.out+j] += float32(x[r*d.in+i] * g)
				dx[r*d.in+i] += float32(d.w[i*d.out+j] * g)
			}
		}
	}
	d.p.Put(dy)
	return dx, nil
}

// mlp is a chain of dense stages and its loss ½|y|².
type mlp struct {
	p      *memtest.Pool
	layers []*dense
	costs  Costs
	chain  Chain[[]float32, denseSaved]
}

func newMLP(p *memtest.Pool, seed uint64, widths ...int) *mlp {
	r := rand.New(rand.NewPCG(seed, 1))
	m := &mlp{p: p, costs: Costs{Input: int64(4 * batch * widths[0])}}
	m.chain = Chain[[]float32, denseSaved]{
		Bytes:      func(a []float32) int64 { return int64(4 * len(a)) },
		SavedBytes: func(s denseSaved) int64 { return int64(4 * (len(s.y) + len(s.z))) },
		Release:    p.Put,
		ReleaseSaved: func(s denseSaved) {
			p.Put(s.y)
			if s.z != nil {
				p.Put(s.z)
			}
		},
		Costs: &m.costs,
	}
	for i := range len(widths) - 1 {
		d := newDense(p, r, widths[i], widths[i+1], i%3 == 1)
		m.layers = append(m.layers, d)
		m.chain.Stages = append(m.chain.Stages, d)
		m.costs.Stages = append(m.costs.Stages, d.cost())
	}
	return m
}

// input returns the same values each time.
func (m *mlp) input() []float32 {
	x := m.p.Get(batch * m.layers[0].in)
	for i := range x {
		x[i] = float32(math.Sin(float64(i)))
	}
	return x
}

// loss returns a loss whose gradient takes the place of memory that is held
// from now on.
func (m *mlp) loss() func(y []float32) ([]float32, error) {
	dy := m.p.Get(int(m.costs.value(len(m.layers))) / 4)
	return func(y []float32) ([]float32, error) {
		copy(dy, y)
		return dy, nil
	}
}

// takeGradients appends the bits of dx and of all parameters' gradients and
// clears these.
func (m *mlp) takeGradients(bits []uint32, dx []float32) []uint32 {
	all := [][]float32{dx}
	for _, d := range m.layers {
		all = append(all, d.dw, d.db)
	}
	for i, g := range all {
		for _, v := range g {
			bits = append(bits, math.Float32bits(v))
		}
		if i > 0 {
			clear(g)
		}
	}
	return bits
}

func TestGradientsBitIdentical(t *testing.T) {
	p := memtest.NewPool()
	m := newMLP(p, 1, 5, 9, 3, 8, 8, 2, 7, 4, 11, 6, 5, 3)
	var want []uint32
	keep, err := must(KeepAll(m.costs)).Simulate(m.costs)
	require.NoError(t, err)
	plans := candidates(m.costs, keep.Peak/2, keep.Peak*2/3, keep.Peak*3/4) // keep-all first
	plans = append(plans, must(Exact(m.costs, keep.Peak*2/3)))
	for _, plan := range plans {
		sim, err := plan.Simulate(m.costs)
		require.NoError(t, err)
		p.Peak = 0
		x, loss := m.input(), m.loss()
		dx, rep, err := m.chain.Run(t.Context(), plan, x, loss)
		require.NoError(t, err)
		require.Len(t, p.Live, 2, "x and dx")
		require.Equal(t, p.Peak, rep.Peak, plan.Name)
		require.Equal(t, sim.Timeline, rep.Timeline, plan.Name)
		require.Empty(t, rep.Mismatches)

		bits := m.takeGradients(nil, dx)
		if want == nil {
			require.Equal(t, "keep-all", plan.Name)
			want = bits
		}
		require.Equal(t, want, bits, plan.Name)
		p.Put(x)
		p.Put(dx)
	}
}

// TestGradientIsRight compares a gradient with finite differences.
func TestGradientIsRight(t *testing.T) {
	m := newMLP(memtest.NewPool(), 2, 4, 6, 5, 3)
	value := func(x []float32) (sum float64) {
		y, err := m.chain.Eval(t.Context(), x)
		require.NoError(t, err)
		for _, v := range y {
			sum += float64(v) * float64(v) / 2
		}
		return sum
	}
	x := m.input()
	dx, _, err := m.chain.Run(t.Context(), must(Revolve(m.costs, 2)), x, m.loss())
	require.NoError(t, err)
	for i, v := range x {
		const h = 1.0 / 64
		x[i] = v + h
		up := value(x)
		x[i] = v - h
		down := value(x)
		x[i] = v
		require.InDelta(t, (up-down)/(2*h), dx[i], 2e-3, "element %d", i)
	}
}

// nested is a stage that is a chain, rematerialized within its own backward
// step. It saves its output only.
type nested struct {
	*mlp
	plan Plan
}

func (s nested) Forward(ctx context.Context, x []float32) ([]float32, error) {
	return s.chain.Eval(ctx, x)
}

func (s nested) ForwardSave(ctx context.Context, x []float32) ([]float32, denseSaved, error) {
	y, err := s.chain.Eval(ctx, x)
	return y, denseSaved{y: y}, err
}

func (s nested) Backward(ctx context.Context, x []float32, _ denseSaved, dy []float32) ([]float32, error) {
	given := false
	dx, _, err := s.chain.Run(ctx, s.plan, x, func([]float32) ([]float32, error) {
		given = true
		return dy, nil
	})
	if !given {
		s.p.Put(dy)
	}
	return dx, err
}

// cost follows from the memory model: the inner peak counts x, and d_n, which
// is the outer dy.
func (s nested) cost(t *testing.T) Cost {
	r, err := s.plan.Simulate(s.costs)
	require.NoError(t, err)
	out := s.costs.value(len(s.layers))
	c := Cost{Output: out, Saved: out, BackwardExtra: r.Peak - 2*s.costs.Input}
	for i := 1; i < len(s.layers); i++ {
		c.ForwardExtra = max(c.ForwardExtra, s.costs.value(i)+s.costs.value(i+1)-out)
	}
	return c
}

func TestNested(t *testing.T) {
	p := memtest.NewPool()
	inner := []*mlp{newMLP(p, 3, 5, 9, 4, 6), newMLP(p, 4, 6, 7, 7), newMLP(p, 5, 7, 3, 8, 8, 2)}
	var want []uint32
	for _, planner := range []func(Costs) (Plan, error){KeepAll, RecomputeAll, Chen} {
		costs := Costs{Input: inner[0].costs.Input}
		outer := inner[0].chain // for its functions
		outer.Stages = nil
		outer.Costs = &costs
		for _, m := range inner {
			s := nested{m, must(planner(m.costs))}
			outer.Stages = append(outer.Stages, s)
			costs.Stages = append(costs.Stages, s.cost(t))
		}
		for _, plan := range candidates(costs) {
			sim, err := plan.Simulate(costs)
			require.NoError(t, err)
			p.Peak = 0
			x, loss := inner[0].input(), inner[len(inner)-1].loss()
			dx, rep, err := outer.Run(t.Context(), plan, x, loss)
			require.NoError(t, err)
			require.Len(t, p.Live, 2, "x and dx")
			require.Equal(t, sim.Timeline, rep.Timeline, plan.Name)
			require.Equal(t, p.Peak, rep.Peak, plan.Name)
			var bits []uint32
			for _, m := range inner {
				bits = m.takeGradients(bits, dx)
			}
			if want == nil {
				want = bits
			}
			require.Equal(t, want, bits, plan.Name)
			p.Put(x)
			p.Put(dx)
		}
	}
}
