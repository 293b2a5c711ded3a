package offload

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

// runnerModel is a store of layers of two weights, where the first and the last
// layer share one, and what the weights are.
func runnerModel(t testing.TB, s *Store, n, layers int) (model []Layer, want map[string][]float32) {
	want = map[string][]float32{}
	add := func(l int, name string, n int) {
		model[l].Weights = append(model[l].Weights, Weight{name, int64(4 * n)})
		if want[name] != nil {
			return
		}
		want[name] = normals(n, uint64(len(want)))
		x, err := Create[float32](s, name, n, 37)
		require.NoError(t, err)
		require.NoError(t, x.WriteAt(want[name], 0))
	}
	model = make([]Layer, layers)
	for l := range model {
		model[l].Name = fmt.Sprint("layer", l)
		add(l, fmt.Sprint("w", l), n+l)
		if l == 0 || l == layers-1 {
			add(l, "shared", 5)
		} else {
			add(l, fmt.Sprint("b", l), 3)
		}
	}
	return model, want
}

// seen returns what a runner shows, layer by layer, as float32.
func seen(t testing.TB, dev *snug.Device, pass func(context.Context, func(int, []snug.View) error) error) (order []int, got [][][]float32) {
	require.NoError(t, pass(context.Background(), func(layer int, weights []snug.View) error {
		var values [][]float32
		for _, w := range weights {
			require.Equal(t, dev, w.Device())
			host, _, err := snug.MakeView(snug.CPU(), w.DType(), w.Len())
			require.NoError(t, err)
			require.NoError(t, snug.Copy(host, w))
			x := make([]float32, w.Len())
			half.Load(x, host, 0)
			values = append(values, x)
		}
		order, got = append(order, layer), append(got, values)
		return nil
	}))
	return order, got
}

func deviceOf(p kerneltest.Backend) *snug.Device {
	if p.Dev == nil {
		return snug.CPU()
	}
	return p.Dev
}

// eachDevice runs a test on every backend, and on a device with copies beside its queue.
func eachDevice(t *testing.T, test func(t *testing.T, dev *snug.Device)) {
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) { test(t, deviceOf(p)) })
	t.Run("copier", func(t *testing.T) {
		dev, _ := openCopier(t)
		test(t, dev)
	})
}

func TestRunner(t *testing.T) {
	eachDevice(t, func(t *testing.T, dev *snug.Device) {
		s := memStore(t, Options{HostLimit: 5 * 192})
		model, want := runnerModel(t, s, 100, 6)
		for _, limit := range []int64{900, 1900, 2600, 0} {
			for _, dt := range []snug.DType{0, snug.BF16} {
				layers := model
				if dt == snug.BF16 {
					layers = halved(model)
				}
				m, err := Optimal(layers, []Tier{{dev.Name(), limit, 0}, {"cpu", 500, 10}, {"disk", 0, 1}})
				require.NoError(t, err)
				r, err := NewRunner(s, []*Mover{newMover(t, dev, 128, 3)}, layers, m, RunnerOptions{DType: dt})
				require.NoError(t, err)
				for range 2 {
					order, got := seen(t, dev, r.Forward)
					back, again := seen(t, dev, r.Backward)
					for i, layer := range order {
						require.Equal(t, i, layer)
						require.Equal(t, len(order)-1-i, back[i])
						require.Equal(t, got[i], again[len(order)-1-i])
						for k, w := range layers[layer].Weights {
							x := want[w.Name]
							if dt == snug.BF16 {
								x = rounded(x)
							}
							requireSameBits(t, x, got[i][k])
						}
					}
				}
				for i := range layers {
					require.Equal(t, m.Tier(i), r.Tier(i))
					_, stays := r.View(layers[i].Weights[0].Name)
					require.Equal(t, m.TierOf[i] == 0, stays)
				}
				require.Empty(t, r.Demoted())
				require.NoError(t, dev.Sync())
				require.NoError(t, r.Close())
				require.NoError(t, r.Close(), "closing twice does nothing")
			}
		}
	})
}

// halved returns layers with weights of half the bytes.
func halved(layers []Layer) []Layer {
	half := make([]Layer, len(layers))
	for i, l := range layers {
		half[i] = Layer{Name: l.Name, Uses: l.Uses}
		for _, w := range l.Weights {
			half[i].Weights = append(half[i].Weights, Weight{w.Name, w.Bytes / 2})
		}
	}
	return half
}

// rounded returns x as bfloat16 has it.
func rounded(x []float32) []float32 {
	low, y := make([]snug.BFloat16, len(x)), make([]float32, len(x))
	half.Store(snug.ViewOf(low), 0, x)
	half.Load(y, snug.ViewOf(low), 0)
	return y
}

// TestRunnerTrains trains a product of layers, whose weights, gradients and state are
// pages, forward and backward through a runner, and compares the bits with all in
// memory.
func TestRunnerTrains(t *testing.T) {
	const n, layers, steps, pageLen = 128, 5, 4, 32
	eachDevice(t, func(t *testing.T, dev *snug.Device) {
		s := memStore(t, Options{HostLimit: 12 * 4 * pageLen})
		opt, err := adamW(s, pageLen)
		require.NoError(t, err)
		u, err := NewUpdater(s, opt, UpdaterOptions{PageLen: pageLen})
		require.NoError(t, err)
		want := make([][]float32, layers)
		model := make([]Layer, layers)
		for l := range layers {
			name := fmt.Sprint(l)
			want[l] = normals(n, uint64(l))
			model[l] = Layer{Name: name, Weights: []Weight{{name + weightsSuffix, 4 * n}}}
			require.NoError(t, u.Add(name, n, func(lo int, w []float32) error {
				copy(w, want[l][lo:])
				return nil
			}))
		}
		m, err := Greedy(model, []Tier{{dev.Name(), 4*4*n + 64, 0}, {"store", 0, 1}})
		require.NoError(t, err)
		require.Equal(t, []int{0, 0, 1, 1, 1}, m.TierOf)
		r, err := NewRunner(s, []*Mover{newMover(t, dev, 128, 3)}, model, m, RunnerOptions{})
		require.NoError(t, err)
		for l := range layers {
			if v, ok := r.View(model[l].Weights[0].Name); ok {
				require.NoError(t, u.Bind(model[l].Name, v))
			}
		}
		inMemory, err := adamW(nil, 0)
		require.NoError(t, err)
		for l, w := range want {
			require.NoError(t, inMemory.Add(model[l].Name, len(w)))
		}
		weightsOf := func(w []snug.View) []float32 {
			x := make([]float32, n)
			require.NoError(t, snug.Copy(x, w[0]))
			return x
		}
		for range steps {
			var grads [layers][]float32
			chainRule(want, func(l int, g []float32) { grads[l] = g })
			inMemory.Advance(0.01)
			for l, w := range want {
				require.NoError(t, inMemory.Step(model[l].Name, snug.ViewOf(w), snug.ViewOf(grads[l]), 1))
			}

			acts := [][]float32{ones(n)}
			require.NoError(t, r.Forward(context.Background(), func(l int, w []snug.View) error {
				acts = append(acts, times(acts[l], weightsOf(w)))
				return nil
			}))
			d := minusOne(acts[layers])
			require.NoError(t, r.Backward(context.Background(), func(l int, w []snug.View) error {
				if err := u.Accumulate(model[l].Name, 0, snug.ViewOf(times(d, acts[l])), 1); err != nil {
					return err
				}
				d = times(d, weightsOf(w))
				return nil
			}))
			require.NoError(t, u.Step(0.01, 1))
		}
		_, got := seen(t, dev, r.Forward)
		for l := range layers {
			requireSameBits(t, want[l], got[l][0])
		}
		require.NoError(t, dev.Sync())
		require.NoError(t, r.Close())
		requireWithin(t, s)
	})
}

// chainRule computes the gradients of ½Σ(Πw-1)² by the chain rule.
func chainRule(w [][]float32, grad func(l int, g []float32)) {
	acts := [][]float32{ones(len(w[0]))}
	for l := range w {
		acts = append(acts, times(acts[l], w[l]))
	}
	d := minusOne(acts[len(w)])
	for l := len(w) - 1; l >= 0; l-- {
		grad(l, times(d, acts[l]))
		d = times(d, w[l])
	}
}

func ones(n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = 1
	}
	return x
}

func times(a, b []float32) []float32 {
	x := make([]float32, len(a))
	for i := range x {
		x[i] = a[i] * b[i]
	}
	return x
}

func minusOne(a []float32) []float32 {
	x := make([]float32, len(a))
	for i := range x {
		x[i] = a[i] - 1
	}
	return x
}

// TestRunnerTwoDevices has layers that stay on two devices, and pages the rest in on
// the first.
func TestRunnerTwoDevices(t *testing.T) {
	first, _ := openCopier(t)
	s := memStore(t, Options{HostLimit: 8 * 192})
	layers, want := runnerModel(t, s, 100, 6)
	m, err := Greedy(layers, []Tier{{first.Name(), 1730, 0}, {"cpu", 460, 0}, {"disk", 0, 1}})
	require.NoError(t, err)
	require.Equal(t, []int{0, 1, 2, 2, 2, 0}, m.TierOf)
	r, err := NewRunner(s, []*Mover{newMover(t, first, 128, 3), newMover(t, snug.CPU(), 128, 1)}, layers, m, RunnerOptions{})
	require.NoError(t, err)
	devices := []*snug.Device{first, snug.CPU(), first, first, first, first}
	require.NoError(t, r.Backward(context.Background(), func(l int, weights []snug.View) error {
		for k, w := range weights {
			require.Equal(t, devices[l], w.Device())
			requireSameBits(t, want[layers[l].Weights[k].Name], read(t, w))
		}
		return nil
	}))
	require.NoError(t, r.Reload())
	require.NoError(t, first.Sync())
	require.NoError(t, r.Close())
}

// TestRunnerDemotes gives a device less memory than the map says.
func TestRunnerDemotes(t *testing.T) {
	const frame = 448 + 64 // of layer 5: 105 and 5 elements
	for name, test := range map[string]struct {
		memory, demoted, frames int
	}{
		"enough":    {6 * 512, 0, 2},
		"less":      {4 * 512, 5, 2},
		"one frame": {frame, 6, 1},
	} {
		t.Run(name, func(t *testing.T) {
			dev, c := openCopier(t)
			c.memory = test.memory
			s := memStore(t, Options{})
			layers, want := runnerModel(t, s, 100, 6)
			m, err := Greedy(layers, []Tier{{dev.Name(), 0, 0}, {"cpu", 0, 1}})
			require.NoError(t, err)
			r, err := NewRunner(s, []*Mover{newMover(t, dev, 128, 3)}, layers, m, RunnerOptions{})
			require.NoError(t, err)
			require.Len(t, r.Demoted(), test.demoted)
			require.Len(t, r.frames, test.frames)
			for _, d := range r.Demoted() {
				require.Equal(t, "copier:0", d.From)
				require.Equal(t, "cpu", d.To)
				require.ErrorIs(t, d.Err, snug.ErrNoMemory)
			}
			for _, pass := range []func(context.Context, func(int, []snug.View) error) error{r.Forward, r.Backward} {
				order, got := seen(t, dev, pass)
				for i, l := range order {
					for k, w := range layers[l].Weights {
						requireSameBits(t, want[w.Name], got[i][k])
					}
				}
			}
			require.LessOrEqual(t, c.used, test.memory)
			require.NoError(t, r.Close())
			require.Zero(t, c.used)
		})
	}
	dev, c := openCopier(t)
	c.memory = frame - 1
	s := memStore(t, Options{})
	layers, _ := runnerModel(t, s, 100, 6)
	mover := newMover(t, dev, 128, 3)
	for _, tiers := range [][]Tier{{{dev.Name(), 0, 0}, {"cpu", 0, 1}}, {{dev.Name(), 0, 0}}} {
		m, err := Greedy(layers, tiers)
		require.NoError(t, err)
		_, err = NewRunner(s, []*Mover{mover}, layers, m, RunnerOptions{})
		require.ErrorIs(t, err, snug.ErrNoMemory)
		require.Zero(t, c.used)
	}
}

// TestRunnerOverlaps checks that the next layer is read while one is computed, which
// waits for that.
func TestRunnerOverlaps(t *testing.T) {
	s := memStore(t, Options{})
	layers := layersOf(400, 400, 400)
	src := &announced{read: make(chan string, 3)}
	for _, l := range layers {
		_, err := Attach[float32](s, l.Name, src, l.Name, 100, 100)
		require.NoError(t, err)
	}
	m, err := Greedy(layers, []Tier{{"cpu", 800, 0}, {"disk", 0, 1}})
	require.NoError(t, err)
	require.Equal(t, []int{1, 1, 1}, m.TierOf)
	r, err := NewRunner(s, []*Mover{newMover(t, snug.CPU(), 128, 1)}, layers, m, RunnerOptions{})
	require.NoError(t, err)
	require.NoError(t, r.Forward(context.Background(), func(layer int, _ []snug.View) error {
		if layer == 0 {
			require.Equal(t, "layer0", <-src.read)
		}
		if layer < 2 {
			require.Equal(t, layers[layer+1].Name, <-src.read)
		}
		return nil
	}))
	require.NoError(t, r.Close())
}

// announced is a Source that says what is read.
type announced struct{ read chan string }

func (a *announced) LoadAt(name string, _ int, _ snug.View) error {
	a.read <- name
	return nil
}

func TestRunnerErrors(t *testing.T) {
	s := memStore(t, Options{})
	layers, _ := runnerModel(t, s, 10, 3)
	tiers := []Tier{{"cpu", 2 * layers[2].Bytes(), 0}, {"disk", 0, 1}}
	m, err := Greedy(layers, tiers)
	require.NoError(t, err)
	movers := []*Mover{newMover(t, snug.CPU(), 128, 1)}
	apart := m
	apart.TierOf = []int{0, 1, 1}
	less := m
	less.TierOf = m.TierOf[:2]
	short := append([]Layer(nil), layers...)
	short[1] = Layer{Name: "short", Weights: []Weight{{"w1", 3}}}
	missing := append([]Layer(nil), layers...)
	missing[1] = Layer{Name: "missing", Weights: []Weight{{"none", 3}}}
	for name, test := range map[string]struct {
		movers []*Mover
		layers []Layer
		m      DeviceMap
		o      RunnerOptions
		want   error
	}{
		"no movers": {nil, layers, m, RunnerOptions{}, snug.ErrConfig},
		"apart":     {movers, layers, apart, RunnerOptions{}, snug.ErrConfig},
		"less":      {movers, layers, less, RunnerOptions{}, snug.ErrConfig},
		"bytes":     {movers, short, m, RunnerOptions{}, snug.ErrShape},
		"missing":   {movers, missing, m, RunnerOptions{}, snug.ErrConfig},
		"dtype":     {movers, layers, m, RunnerOptions{DType: snug.I32}, snug.ErrDType},
		"map":       {movers, layers, DeviceMap{TierOf: m.TierOf}, RunnerOptions{}, snug.ErrConfig},
	} {
		_, err := NewRunner(s, test.movers, test.layers, test.m, test.o)
		require.ErrorIs(t, err, test.want, name)
	}

	r, err := NewRunner(s, movers, layers, m, RunnerOptions{})
	require.NoError(t, err)
	broken := errors.New("a layer failed")
	require.ErrorIs(t, r.Forward(context.Background(), func(int, []snug.View) error { return broken }), broken)
	ctx, cancel := context.WithCancel(context.Background())
	ran := 0
	require.ErrorIs(t, r.Backward(ctx, func(int, []snug.View) error {
		ran++
		cancel()
		return nil
	}), context.Canceled)
	require.Equal(t, 1, ran)
	require.NoError(t, s.Delete("w1"))
	require.Error(t, r.Forward(context.Background(), func(int, []snug.View) error { return nil }))
	require.NoError(t, r.Close())
}
