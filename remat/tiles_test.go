package remat

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/remat/internal/memtest"
	"github.com/stretchr/testify/require"
)

// rowMLP is y = tanh(x·W)·V for rows of width elements, and hidden ones between.
type rowMLP struct {
	memtest.Faults
	p      *memtest.Pool
	w, v   []float32 // [hidden, width] both
	dw, dv []float32 // summed into
}

const width, hidden = 3, 40

// rowSaved is the output and the hidden elements.
type rowSaved struct{ y, h []float32 }

func newRowMLP(p *memtest.Pool) *rowMLP {
	rng := rand.New(rand.NewPCG(1, 2))
	m := &rowMLP{p: p, dw: make([]float32, hidden*width), dv: make([]float32, hidden*width)}
	for range hidden * width {
		m.w, m.v = append(m.w, float32(rng.NormFloat64())), append(m.v, float32(rng.NormFloat64()))
	}
	return m
}

func (m *rowMLP) hidden(x []float32) []float32 {
	h := m.p.Get(len(x) / width * hidden)
	for i := range h {
		z := float32(0)
		for j, v := range x[i/hidden*width:][:width] {
			z += float32(v * m.w[i%hidden*width+j])
		}
		h[i] = float32(math.Tanh(float64(z)))
	}
	return h
}

func (m *rowMLP) out(h []float32) []float32 {
	y := m.p.Get(len(h) / hidden * width)
	for i, a := range h {
		for j := range width {
			y[i/hidden*width+j] += float32(a * m.v[i%hidden*width+j])
		}
	}
	return y
}

func (m *rowMLP) Forward(_ context.Context, x []float32) ([]float32, error) {
	if err := m.Call(); err != nil {
		return nil, err
	}
	h := m.hidden(x)
	defer m.p.Put(h)
	return m.out(h), nil
}

func (m *rowMLP) ForwardSave(_ context.Context, x []float32) ([]float32, rowSaved, error) {
	if err := m.Call(); err != nil {
		return nil, rowSaved{}, err
	}
	h := m.hidden(x)
	y := m.out(h)
	return y, rowSaved{y, h}, nil
}

// Backward writes dx over dy.
func (m *rowMLP) Backward(_ context.Context, x []float32, s rowSaved, dy []float32) ([]float32, error) {
	done := false
	defer func() {
		if !done {
			m.p.Put(dy)
		}
	}()
	if err := m.Call(); err != nil {
		return nil, err
	}
	dx := make([]float32, len(x))
	for i, a := range s.h {
		r, c, dh := i/hidden*width, i%hidden*width, float32(0)
		for j := range width {
			m.dv[c+j] += float32(a * dy[r+j])
			dh += float32(m.v[c+j] * dy[r+j])
		}
		dz := float32(dh * (1 - float32(a*a)))
		for j := range width {
			m.dw[c+j] += float32(x[r+j] * dz)
			dx[r+j] += float32(m.w[c+j] * dz)
		}
	}
	copy(dy, dx)
	done = true
	return dy, nil
}

// resaver leaves out the output.
type resaver struct{ *rowMLP }

func (r resaver) Resave(_ context.Context, x []float32) (rowSaved, error) {
	if err := r.Call(); err != nil {
		return rowSaved{}, err
	}
	return rowSaved{r.p.Get(len(x)), r.hidden(x)}, nil
}

// tiled cuts a stage into tiles of so many rows.
func (m *rowMLP) tiled(stage Stage[[]float32, rowSaved], rows int) *Tiles[[]float32, rowSaved] {
	part := func(x []float32, i int) []float32 { return x[i*rows*width : min((i+1)*rows*width, len(x))] }
	return &Tiles[[]float32, rowSaved]{
		Stage: stage, Part: part,
		Count: func(x []float32) int { return (len(x) + rows*width - 1) / (rows * width) },
		Clone: func(x []float32) ([]float32, error) {
			if err := m.Call(); err != nil {
				return nil, err
			}
			c := m.p.Get(len(x))
			copy(c, x)
			return c, nil
		},
		Output: func(x []float32) ([]float32, error) { return m.p.Get(len(x)), nil },
		Put: func(y []float32, i int, x []float32) error {
			copy(part(y, i), x)
			return m.Call()
		},
		Keep:         func(y []float32) rowSaved { return rowSaved{y: y} },
		Release:      m.p.Put,
		ReleaseSaved: m.release,
	}
}

func (m *rowMLP) release(s rowSaved) {
	m.p.Put(s.y)
	if s.h != nil {
		m.p.Put(s.h)
	}
}

func (m *rowMLP) chain(stage Stage[[]float32, rowSaved], costs *Costs) *Chain[[]float32, rowSaved] {
	return &Chain[[]float32, rowSaved]{
		Stages: []Stage[[]float32, rowSaved]{stage}, Release: m.p.Put, ReleaseSaved: m.release, Costs: costs,
		Bytes:      func(x []float32) int64 { return int64(4 * len(x)) },
		SavedBytes: func(s rowSaved) int64 { return int64(4 * (len(s.y) + len(s.h))) },
	}
}

// run takes the gradients of ½|y|², and returns y and dx, what the parameters have, and the peak of memory.
func (m *rowMLP) run(t *testing.T, stage Stage[[]float32, rowSaved], x []float32, costs *Costs) (y, dx, params []float32, peak int64, rep Report) {
	c := m.chain(stage, costs)
	sizes := Costs{Stages: []Cost{{Output: int64(4 * len(x)), Saved: int64(4 * (len(x) + len(x)/width*hidden))}}, Input: int64(4 * len(x))}
	if costs != nil {
		sizes = *costs
	}
	plan, err := KeepAll(sizes)
	require.NoError(t, err)
	held := m.p.Held
	m.p.Peak = held
	dx, rep, err = c.Run(t.Context(), plan, x, func(out []float32) ([]float32, error) {
		y = append(y, out...)
		dy := m.p.Get(len(out))
		copy(dy, out)
		return dy, nil
	})
	require.NoError(t, err)
	peak = m.p.Peak - held
	dx = append([]float32(nil), dx...)
	params = append(append(params, m.dw...), m.dv...)
	clear(m.dw)
	clear(m.dv)
	return y, dx, params, peak, rep
}

func TestTiles(t *testing.T) {
	const rows = 30
	for _, size := range []int{1, 4, 10, 15, 29, 30, 31} {
		p := memtest.NewPool()
		m := newRowMLP(p)
		x := p.Get(rows * width)
		for i := range x {
			x[i] = float32(math.Sin(float64(i)))
		}
		y, dx, params, peak, _ := m.run(t, m, x, nil)
		for _, stage := range []Stage[[]float32, rowSaved]{m, resaver{m}} {
			n := (rows + size - 1) / size
			whole := Cost{Output: 4 * rows * width, Saved: 4 * rows * (width + hidden), ForwardTime: 1, BackwardTime: 2}
			cost, err := TiledCost(whole, n)
			require.NoError(t, err)
			require.Equal(t, 3.0, cost.BackwardTime)
			p.Live = map[*float32]int{&x[0]: len(x)}
			p.Held = int64(4 * len(x))
			tiledY, tiledX, sums, tiledPeak, rep := m.run(t, m.tiled(stage, size), x, &Costs{Input: 4 * rows * width, Stages: []Cost{cost}})
			require.Equal(t, y, tiledY, size)
			require.Equal(t, dx, tiledX, size)
			require.InDeltaSlice(t, params, sums, 1e-4)
			require.Len(t, p.Live, 2, "x and dx")
			require.Equal(t, tiledPeak, rep.Peak-int64(4*len(x)), "with the tile")
			if rows%size == 0 {
				require.Empty(t, rep.Mismatches)
				// The output, its gradient, and of a tile the saved set and the gradient.
				require.Equal(t, int64(4*(2*rows*width+size*(2*width+hidden))), tiledPeak)
				require.Equal(t, cost.Output+cost.Saved+cost.BackwardExtra, tiledPeak)
			}
			if n > 2 {
				require.Less(t, tiledPeak, peak)
			}
			p.Live = map[*float32]int{&x[0]: len(x)}
			p.Held = int64(4 * len(x))
			_, _, _, _, rep = m.run(t, m.tiled(stage, size), x, nil)
			require.Equal(t, tiledPeak, rep.Peak-int64(4*len(x)), "without costs")
		}
	}
}

// Whatever fails, by an error, a panic or the end of the goroutine, nothing is left but x.
func TestTilesFail(t *testing.T) {
	failed := errors.New("failed")
	for name, fail := range map[string]func() error{
		"error": func() error { return failed }, "panic": func() error { panic(failed) }, "exit": func() error { return memtest.Exit(nil) },
	} {
		t.Run(name, func(t *testing.T) {
			for at := 0; ; at++ {
				p := memtest.NewPool()
				m := newRowMLP(p)
				x := p.Get(5 * width)
				m.Fail = func(call int) error {
					if call == at {
						return fail()
					}
					return nil
				}
				stage := m.tiled(m, 2)
				cost := Costs{Input: 4 * 5 * width, Stages: []Cost{{Output: 4 * 5 * width, Saved: 4 * 5 * width}}}
				plan, err := KeepAll(cost)
				require.NoError(t, err)
				finished := make(chan bool)
				go func() {
					ok := false
					defer func() {
						if r := recover(); r != nil && r != failed {
							panic(r)
						}
						finished <- ok
					}()
					_, _, err := m.chain(stage, nil).Run(context.Background(), plan, x, func(y []float32) ([]float32, error) { return p.Get(len(y)), nil })
					ok = err == nil
				}()
				if <-finished {
					require.Greater(t, at, 10)
					break
				}
				for s := range p.Live {
					require.True(t, s == &x[0] || name != "error" && p.Live[s] <= 2*width, "%s at call %d leaves %d elements", name, at, p.Live[s])
				}
			}
		})
	}
}

func TestTilesErrors(t *testing.T) {
	m := newRowMLP(memtest.NewPool())
	x := m.p.Get(4 * width)
	good := func() *Tiles[[]float32, rowSaved] { return m.tiled(m, 2) }
	for i, spoil := range []func(s *Tiles[[]float32, rowSaved]){
		func(s *Tiles[[]float32, rowSaved]) { s.Stage = nil }, func(s *Tiles[[]float32, rowSaved]) { s.Count = nil },
		func(s *Tiles[[]float32, rowSaved]) { s.Part = nil }, func(s *Tiles[[]float32, rowSaved]) { s.Clone = nil },
		func(s *Tiles[[]float32, rowSaved]) { s.Output = nil }, func(s *Tiles[[]float32, rowSaved]) { s.Put = nil },
		func(s *Tiles[[]float32, rowSaved]) { s.Keep = nil },
		func(s *Tiles[[]float32, rowSaved]) { s.Count = func([]float32) int { return 0 } },
	} {
		s := good()
		spoil(s)
		_, err := s.Forward(t.Context(), x)
		require.ErrorIs(t, err, snug.ErrConfig, i)
		_, _, err = s.ForwardSave(t.Context(), x)
		require.ErrorIs(t, err, snug.ErrConfig, i)
		_, err = s.Backward(t.Context(), x, rowSaved{}, m.p.Get(len(x)))
		require.ErrorIs(t, err, snug.ErrConfig, i)
		require.Len(t, m.p.Live, 1, i)
	}
	for _, n := range []int{0, -1, math.MinInt} {
		_, err := TiledCost(Cost{}, n)
		require.ErrorIs(t, err, snug.ErrConfig)
	}
	c, err := TiledCost(Cost{Output: 10, Saved: 31, ForwardExtra: 7, BackwardExtra: 3}, math.MaxInt)
	require.NoError(t, err)
	require.Equal(t, Cost{Output: 10, Saved: 10, ForwardExtra: 2, BackwardExtra: 3}, c)

	stopped, stop := context.WithCancel(t.Context())
	stop()
	_, err = good().Forward(stopped, x)
	require.ErrorIs(t, err, context.Canceled)
}
