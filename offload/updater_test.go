package offload

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/files/filestest"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/quant8"
)

const updPage = 96 // elements

// updParams are the parameters of the tests.
var updParams = []struct {
	name string
	n    int
}{{"a", 1000}, {"b", 1}, {"c", 0}, {"d", 4 * updPage}}

// run is a training run: in memory, which is the definition, or paged.
type run struct {
	weights map[string][]float32 // in memory
	grads   map[string][]float32
	opt     *quant8.Optimizer
	model   map[string][]snug.BFloat16 // what the next gradients are taken of
}

func newRun(t testing.TB) *run {
	opt, err := adamW(nil, 0)
	require.NoError(t, err)
	r := &run{map[string][]float32{}, map[string][]float32{}, opt, map[string][]snug.BFloat16{}}
	for i, p := range updParams {
		r.weights[p.name] = normals(p.n, uint64(100+i))
		r.grads[p.name] = make([]float32, p.n)
		require.NoError(t, opt.Add(p.name, p.n))
		r.model[p.name] = make([]snug.BFloat16, p.n)
	}
	r.publish()
	return r
}

func (r *run) publish() {
	for name, w := range r.weights {
		half.Store(snug.ViewOf(r.model[name]), 0, w)
	}
}

// gradient is that of micro-batch number micro: it depends on what the model has.
func gradient(model []snug.BFloat16, micro int) []float32 {
	g := normals(len(model), uint64(micro))
	for i := range g {
		g[i] += model[i].Float32()
	}
	return g
}

func (r *run) accumulate(micro int, weight float32) {
	for name, acc := range r.grads {
		for i, g := range gradient(r.model[name], micro) {
			acc[i] = float32(weight*g) + acc[i]
		}
	}
}

func (r *run) norm() float64 {
	sum := 0.0
	for _, g := range r.grads {
		for _, x := range g {
			sum += float64(x) * float64(x)
		}
	}
	return math.Sqrt(sum)
}

func (r *run) step(t testing.TB, lr, scale float32) {
	r.opt.Advance(lr)
	for name, w := range r.weights {
		require.NoError(t, r.opt.Step(name, snug.ViewOf(w), snug.ViewOf(r.grads[name]), scale))
		clear(r.grads[name])
	}
}

// paged is an Updater with its model.
type paged struct {
	*Updater
	model map[string]*kerneltest.Floats
}

func newPaged(t testing.TB, s *Store, o UpdaterOptions, backend kerneltest.Backend) *paged {
	o.PageLen = updPage
	opt, err := adamW(s, updPage)
	require.NoError(t, err)
	u, err := NewUpdater(s, opt, o)
	require.NoError(t, err)
	p := &paged{u, map[string]*kerneltest.Floats{}}
	for i, q := range updParams {
		first := normals(q.n, uint64(100+i))
		require.NoError(t, u.Add(q.name, q.n, func(lo int, w []float32) error {
			copy(w, first[lo:])
			return nil
		}))
		p.model[q.name] = kerneltest.PutFloats(t, backend, snug.BF16, make([]float32, q.n))
	}
	_, err = u.Resume()
	require.NoError(t, err)
	for _, q := range updParams {
		require.NoError(t, u.Bind(q.name, p.model[q.name].View))
	}
	return p
}

// bf16 returns what the model has.
func (p *paged) bf16(name string) []snug.BFloat16 {
	x := make([]snug.BFloat16, len(p.model[name].Get()))
	half.Store(snug.ViewOf(x), 0, p.model[name].Get())
	return x
}

// accumulate adds the gradients of a micro-batch, in two pieces, the second first.
func (p *paged) accumulate(t testing.TB, backend kerneltest.Backend, micro int, weight float32) {
	for _, q := range updParams {
		g := gradient(p.bf16(q.name), micro)
		cut := q.n / 3
		for _, piece := range [][2]int{{cut, q.n}, {0, cut}} {
			v := kerneltest.PutFloats(t, backend, snug.F32, g[piece[0]:piece[1]])
			require.NoError(t, p.Accumulate(q.name, piece[0], v.View, weight))
		}
	}
}

func (p *paged) requireModel(t testing.TB, want map[string][]snug.BFloat16) {
	t.Helper()
	for _, q := range updParams {
		require.Equal(t, want[q.name], p.bf16(q.name), q.name)
	}
}

// clip returns the factor that clips a norm to 1.
func clip(norm float64) float32 { return float32(min(1, 1/norm)) }

// TestUpdater compares the bits with those of a run in memory: three micro-batches a
// step, clipped by the norm of the sum, bfloat16 parameters of float32 weights.
func TestUpdater(t *testing.T) {
	for _, pages := range []int64{4, 6, 0} {
		t.Run(fmt.Sprint(pages), func(t *testing.T) {
			backend := kerneltest.Backend{Name: "slice"}
			s := memStore(t, Options{HostLimit: pages * 4 * updPage})
			u, want := newPaged(t, s, UpdaterOptions{}, backend), newRun(t)
			u.requireModel(t, want.model)
			for step := 1; step <= 5; step++ {
				for micro := range 3 {
					want.accumulate(10*step+micro, 0.3)
					u.accumulate(t, backend, 10*step+micro, 0.3)
				}
				norm, err := u.Norm()
				require.NoError(t, err)
				require.InEpsilon(t, want.norm(), norm, 1e-12)
				want.step(t, 0.01, clip(norm))
				want.publish()
				require.NoError(t, u.Step(0.01, clip(norm)))
				require.Equal(t, step, u.Steps())
				u.requireModel(t, want.model)
			}
			w, err := u.Weights("a")
			require.NoError(t, err)
			got := make([]float32, w.Len())
			require.NoError(t, w.ReadAt(got, 0))
			requireSameBits(t, want.weights["a"], got)
			requireWithin(t, s)
			pages := s.objects["a"+gradSuffix].pages
			for i := range pages {
				p := &pages[i]
				require.True(t, p.buf == nil && p.slot.n == 0, "gradients are forgotten")
			}
		})
	}
}

// TestUpdaterDelayed compares with a run in memory that takes its gradients of the
// parameters before the last update.
func TestUpdaterDelayed(t *testing.T) {
	backend := kerneltest.Backend{Name: "slice"}
	s := memStore(t, Options{HostLimit: 6 * 4 * updPage})
	u, want := newPaged(t, s, UpdaterOptions{Delayed: true}, backend), newRun(t)
	for step := 1; step <= 6; step++ {
		want.accumulate(step, 1)
		u.accumulate(t, backend, step, 1)
		want.publish() // of the step before, whose update is done now
		want.step(t, 0.01, 0.5)
		require.NoError(t, u.Step(0.01, 0.5))
		u.requireModel(t, want.model)
	}
	require.NoError(t, u.Commit())
	want.publish()
	u.requireModel(t, want.model)
}

// TestUpdaterBindsTensors has the model's parameters in pages too.
func TestUpdaterBindsTensors(t *testing.T) {
	for _, delayed := range []bool{false, true} {
		backend := kerneltest.Backend{Name: "slice"}
		s := memStore(t, Options{HostLimit: 7 * 4 * updPage})
		u := newPaged(t, s, UpdaterOptions{Delayed: delayed}, backend)
		x, err := Create[snug.BFloat16](s, "copy", 1000, 77)
		require.NoError(t, err)
		require.NoError(t, u.BindTensor("a", "copy"))
		holds := func(want []snug.BFloat16) {
			got := make([]snug.BFloat16, x.Len())
			require.NoError(t, x.ReadAt(got, 0))
			require.Equal(t, want, got)
		}
		holds(u.bf16("a"))
		for step := range 3 {
			u.accumulate(t, backend, step, 1)
			require.NoError(t, u.Step(0.01, 1))
			holds(u.bf16("a"))
		}
		require.NoError(t, u.Wait())
		holds(u.bf16("a"))
		before := u.bf16("a")
		require.NoError(t, u.BindTensor("a", ""))
		u.accumulate(t, backend, 9, 1)
		require.NoError(t, u.Step(0.01, 1))
		require.NoError(t, u.Wait())
		require.NotEqual(t, before, u.bf16("a"))
		holds(before)

		_, err = Create[int32](s, "ints", 1000, 77)
		require.NoError(t, err)
		_, err = Attach[float32](s, "attached", &weights{}, "", 1000, 77)
		require.NoError(t, err)
		require.ErrorIs(t, u.BindTensor("x", "copy"), snug.ErrConfig)
		require.ErrorIs(t, u.BindTensor("a", "missing"), snug.ErrConfig)
		require.ErrorIs(t, u.BindTensor("a", "attached"), snug.ErrConfig)
		require.ErrorIs(t, u.BindTensor("a", "ints"), snug.ErrDType)
		require.ErrorIs(t, u.BindTensor("d", "copy"), snug.ErrShape)
	}
}

// TestUpdaterOverlaps checks that a delayed update leaves the program free, and that
// gradients of the next step go elsewhere meanwhile.
func TestUpdaterOverlaps(t *testing.T) {
	s := memStore(t, Options{})
	held := &heldStepper{entered: make(chan struct{}), leave: make(chan struct{})}
	u, err := NewUpdater(s, held, UpdaterOptions{PageLen: 4, Delayed: true})
	require.NoError(t, err)
	require.NoError(t, u.Add("w", 4, nil))
	require.NoError(t, u.Accumulate("w", 0, snug.ViewOf([]float32{1, 1, 1, 1}), 1))
	require.NoError(t, u.Step(1, 1))
	<-held.entered
	require.NoError(t, u.Accumulate("w", 0, snug.ViewOf([]float32{2, 2, 2, 2}), 1), "beside the update")
	close(held.leave)
	require.NoError(t, u.Step(1, 1))
	<-held.entered
	require.NoError(t, u.Wait())
	require.Equal(t, [][]float32{{1, 1, 1, 1}, {2, 2, 2, 2}}, held.seen)
}

// heldStepper waits in every step.
type heldStepper struct {
	entered, leave chan struct{}
	seen           [][]float32
	fail           error
}

func (h *heldStepper) Add(string, int) error { return h.fail }
func (h *heldStepper) Advance(float32)       {}
func (h *heldStepper) StepRange(_ string, _ int, _, g snug.View, _ float32) error {
	h.seen = append(h.seen, slices.Clone(g.Float32s()))
	h.entered <- struct{}{}
	<-h.leave
	return h.fail
}

// TestUpdaterResumes commits in the middle of a window, drops what comes after it, and
// goes on from the commit with the bits of a run that was not interrupted.
func TestUpdaterResumes(t *testing.T) {
	for _, delayed := range []bool{false, true} {
		t.Run(fmt.Sprint(delayed), func(t *testing.T) {
			backend := kerneltest.Backend{Name: "slice"}
			o, limit := UpdaterOptions{Delayed: delayed}, Options{HostLimit: 6 * 4 * updPage}
			dir := filestest.New()
			s, err := open(dir, limit)
			require.NoError(t, err)
			whole := newPaged(t, memStore(t, limit), o, backend)
			u := newPaged(t, s, o, backend)
			for step := 1; step <= 6; step++ {
				for _, p := range []*paged{whole, u} {
					p.accumulate(t, backend, 2*step, 0.5)
				}
				require.NoError(t, whole.Commit())
				require.NoError(t, u.Commit())
				if step%2 == 0 {
					u.accumulate(t, backend, 99, 1) // lost
					require.NoError(t, u.Step(1, 1))
					_ = u.Wait()
					require.NoError(t, s.Close())
					s, err = open(dir, limit)
					require.NoError(t, err)
					u = newPaged(t, s, o, backend)
					require.Equal(t, step-1, u.Steps())
				}
				for _, p := range []*paged{whole, u} {
					p.accumulate(t, backend, 2*step+1, 0.5)
					require.NoError(t, p.Step(0.01, 1))
				}
			}
			require.NoError(t, whole.Commit())
			require.NoError(t, u.Commit())
			u.requireModel(t, map[string][]snug.BFloat16{"a": whole.bf16("a"), "b": whole.bf16("b"), "c": whole.bf16("c"), "d": whole.bf16("d")})
			_, err = u.Resume()
			require.ErrorIs(t, err, snug.ErrConfig)
			require.NoError(t, s.Close())
		})
	}
}

// TestUpdaterOnDevices has gradients and parameters on every backend, with a Mover and
// without.
func TestUpdaterOnDevices(t *testing.T) {
	test := func(t *testing.T, backend kerneltest.Backend) {
		for _, mover := range []*snug.Device{nil, snug.CPU(), backend.Dev} { // none, one of another device, its own
			for _, delayed := range []bool{false, true} {
				o := UpdaterOptions{Delayed: delayed}
				if mover != nil {
					o.Mover = newMover(t, mover, 128, 3)
				}
				u, want := newPaged(t, memStore(t, Options{HostLimit: 6 * 4 * updPage}), o, backend), newRun(t)
				for step := 1; step <= 3; step++ {
					want.accumulate(step, 1)
					u.accumulate(t, backend, step, 1)
					want.step(t, 0.01, 1)
					want.publish()
					require.NoError(t, u.Step(0.01, 1))
					require.NoError(t, u.Wait())
					u.requireModel(t, want.model)
				}
			}
		}
	}
	kerneltest.Each(t, test)
	t.Run("copier", func(t *testing.T) {
		dev, _ := openCopier(t)
		test(t, kerneltest.Backend{Name: "copier", Dev: dev})
	})
}

// TestUpdaterConcurrent accumulates from many goroutines, as a backward pass does.
func TestUpdaterConcurrent(t *testing.T) {
	const n, pieces = 64 * updPage, 16
	s := memStore(t, Options{HostLimit: (pieces + 4) * 4 * updPage})
	opt, err := adamW(s, updPage)
	require.NoError(t, err)
	u, err := NewUpdater(s, opt, UpdaterOptions{PageLen: updPage, Delayed: true})
	require.NoError(t, err)
	require.NoError(t, u.Add("w", n, nil))
	for step := range 4 {
		g := normals(n, uint64(step))
		var wg sync.WaitGroup
		errs := make([]error, pieces)
		for i := range pieces {
			wg.Go(func() {
				lo := i * n / pieces
				errs[i] = u.Accumulate("w", lo, snug.ViewOf(g[lo:lo+n/pieces]), 1)
			})
		}
		wg.Wait()
		require.NoError(t, errors.Join(errs...))
		got := make([]float32, n)
		require.NoError(t, u.byName["w"].grads[u.set].ReadAt(got, 0))
		requireSameBits(t, g, got)
		require.NoError(t, u.Step(0.01, 1))
	}
	require.NoError(t, u.Wait())
	requireWithin(t, s)
}

// TestUpdaterDrop skips a step whose gradient is not finite.
func TestUpdaterDrop(t *testing.T) {
	backend := kerneltest.Backend{Name: "slice"}
	u, want := newPaged(t, memStore(t, Options{}), UpdaterOptions{}, backend), newRun(t)
	require.NoError(t, u.Accumulate("d", 7, snug.ViewOf([]float32{float32(math.Inf(1))}), 1))
	norm, err := u.Norm()
	require.NoError(t, err)
	require.True(t, math.IsInf(norm, 1))
	require.NoError(t, u.Drop())
	norm, err = u.Norm()
	require.NoError(t, err)
	require.Zero(t, norm)
	want.accumulate(1, 1)
	u.accumulate(t, backend, 1, 1)
	want.step(t, 0.01, 1)
	want.publish()
	require.NoError(t, u.Step(0.01, 1))
	u.requireModel(t, want.model)
}
