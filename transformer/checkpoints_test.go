package transformer

import (
	"context"
	"errors"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/offload"
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/qlora"
	"github.com/snug-ml/snug/remat"
	"github.com/stretchr/testify/require"
)

// shelf is a storage in memory. It overwrites what nobody holds.
type shelf struct {
	blobs, spare map[string][]byte
	held         map[string]int
	bytes, peak  int64
	calls, fail  int // the call with this number fails, from 1 on
	short        bool
}

func newShelf() *shelf {
	return &shelf{blobs: map[string][]byte{}, spare: map[string][]byte{}, held: map[string]int{}}
}

var errShelf = errors.New("the shelf broke")

func (s *shelf) call() error {
	if s.calls++; s.calls == s.fail {
		return errShelf
	}
	return nil
}

func (s *shelf) Acquire(key string, size int) ([]byte, error) {
	if err := s.call(); err != nil {
		return nil, err
	}
	b, found := s.blobs[key]
	if !found {
		if b = s.spare[key]; len(b) != size {
			b = make([]byte, size)
		}
		s.blobs[key] = b
		s.bytes += int64(size)
		s.peak = max(s.peak, s.bytes)
	}
	s.held[key]++
	if s.short {
		return b[:size-1], nil
	}
	return b, nil
}

func (s *shelf) Release(key string, dirty bool) error {
	if s.held[key]--; s.held[key] < 0 {
		return errors.New("released twice")
	}
	return s.call()
}

func (s *shelf) Delete(key string) error {
	b, found := s.blobs[key]
	if !found || s.held[key] > 0 {
		return errors.New(key + " is not there, or held")
	}
	for i := range b {
		b[i] = 0xff
	}
	s.bytes -= int64(len(b))
	s.spare[key] = b
	delete(s.blobs, key)
	return s.call()
}

// paged returns a plan that puts the input of each stage on disk.
func paged(t testing.TB, m *Model, sequences, tokens int) (remat.Plan, remat.Costs) {
	costs, err := m.Costs(sequences, tokens)
	require.NoError(t, err)
	costs.Disk = remat.Rates{Write: 1e12, Read: 1e12}
	p, err := remat.HRevolve(costs, 0, len(costs.Stages), remat.Disk)
	require.NoError(t, err)
	return p, costs
}

// TestCheckpoints: with checkpoints in a storage, on disk or in memory, a model has the same gradients bit for bit, and
// takes the bytes that the plan says.
//
//check:not bits32
func TestCheckpoints(t *testing.T) {
	for _, c := range []*Config{tiny(), tinyGemma(), tinyGPT2(GELU), wide()} {
		sequences := 9
		if c.Dim > 100 {
			sequences, c.Layers, c.Windows = 163, 2, []int{0, 0} // outputs of several pieces
		}
		for _, o := range []Options{
			{DType: snug.F32}, {DType: snug.BF16, Tiles: 2}, {DType: snug.F16},
			{DType: snug.BF16, Base: qlora.NF4, Adapter: &qlora.AdapterOptions{Rank: 3, Alpha: 8, Dropout: 0.1}},
		} {
			if c.Dim > 100 && o.DType != snug.F32 {
				continue
			}
			b := someBatch(7, c.Vocab, sequences, 13)
			want := gradients(t, newTiny(t, c, o), b)
			store, err := offload.Open(t.TempDir(), offload.Options{HostLimit: 4 * pieceBytes})
			require.NoError(t, err)
			inMemory := newShelf()
			for _, s := range []Checkpoints{inMemory, store} {
				o.Checkpoints = s
				m := newTiny(t, c, o)
				p, costs := paged(t, m, sequences, 13)
				require.NoError(t, m.SetPlan(p))
				predicted, err := p.Simulate(costs)
				require.NoError(t, err)
				for range 2 {
					require.Equal(t, want, gradients(t, m, b))
				}
				require.LessOrEqual(t, m.Memory().Peak, predicted.Peak+int64(8*len(b.Tokens)))
				require.Equal(t, predicted.Disk, inMemory.peak)
				require.Zero(t, m.pass.Used())
				again, err := remat.RecomputeAll(costs)
				require.NoError(t, err)
				smallest, err := again.Simulate(costs)
				require.NoError(t, err)
				require.LessOrEqual(t, predicted.Peak, smallest.Peak)
			}
			require.Empty(t, inMemory.blobs)
			require.Empty(t, store.Keys())
			require.NoError(t, store.Close())
		}
	}
}

// TestCheckpointsFail: whatever call of the storage fails, the error arrives and the model can go on.
//
//check:in race
func TestCheckpointsFail(t *testing.T) {
	c := tiny()
	s := newShelf()
	m := newTiny(t, c, Options{Checkpoints: s})
	b := someBatch(7, c.Vocab, 3, 9)
	want := gradients(t, m, b)
	p, _ := paged(t, m, 3, 9)
	require.NoError(t, m.SetPlan(p))
	for at := 1; ; at++ {
		s.calls, s.fail = 0, at
		w := newWindow(t, m)
		require.NoError(t, w.Begin(1))
		_, err := m.Backprop(context.Background(), b, 1, w)
		if s.calls < at {
			require.NoError(t, err)
			require.Greater(t, at, 9)
			break
		}
		require.ErrorIs(t, err, errShelf, at)
		require.Zero(t, m.pass.Used())
		for _, n := range s.held {
			require.Zero(t, n)
		}
	}
	s.fail = 0
	require.Equal(t, want, gradients(t, m, b))

	s.short = true
	_, err := m.Backprop(context.Background(), b, 1, sums{m, map[string]snug.View{}})
	require.ErrorIs(t, err, snug.ErrCorrupt)
}

// TestCheckpointsFailWhole: a call that failed leaves nothing in the storage, also where a blob was there already, so
// that a batch of another length can follow.
//
//check:in race
func TestCheckpointsFailWhole(t *testing.T) {
	c := tiny()
	s := newShelf()
	m := newTiny(t, c, Options{Checkpoints: s})
	p, _ := paged(t, m, 3, 9)
	require.NoError(t, m.SetPlan(p))
	for at := 1; ; at++ {
		s.calls, s.fail = 0, at
		_, err := m.Backprop(context.Background(), someBatch(7, c.Vocab, 5, 9), 1, sums{m, map[string]snug.View{}})
		if s.calls < at {
			require.NoError(t, err)
			break
		}
		require.ErrorIs(t, err, errShelf, at)
		require.Empty(t, s.blobs, at)
		s.fail = 0
		gradients(t, m, someBatch(7, c.Vocab, 3, 9))
	}
}

// nested is a window that calls a function once, in the middle of a backward pass.
type nested struct {
	sums
	do func()
}

func (w *nested) Into(name string) (snug.View, snug.Into, error) {
	if do := w.do; do != nil {
		w.do = nil
		do()
	}
	return w.sums.Into(name)
}

// TestModelsShareCheckpoints: models do not overwrite each other's outputs in one storage.
//
//check:in race
func TestModelsShareCheckpoints(t *testing.T) {
	c, s := tiny(), newShelf()
	b := someBatch(7, c.Vocab, 3, 9)
	var models [2]*Model
	var want [2]map[string][]float32
	for i := range models {
		o := Options{Seed: uint64(i + 1)}
		want[i] = gradients(t, newTiny(t, c, o), b)
		o.Checkpoints = s
		models[i] = newTiny(t, c, o)
		p, _ := paged(t, models[i], 3, 9)
		require.NoError(t, models[i].SetPlan(p))
	}
	w := &nested{sums{models[0], map[string]snug.View{}}, func() { require.Equal(t, want[1], gradients(t, models[1], b)) }}
	_, err := models[0].Backprop(context.Background(), b, 1, w)
	require.NoError(t, err)
	for name, v := range w.acc {
		require.Equal(t, want[0][name], snug.Host[float32](v), name)
	}
	require.Empty(t, s.blobs)
}

// TestCheckpointsPanic: a panic of a window ends Backprop with nothing in the storage, and the model can go on.
//
//check:in race
func TestCheckpointsPanic(t *testing.T) {
	s := newShelf()
	m := newTiny(t, tiny(), Options{Checkpoints: s, Tiles: 2})
	p, _ := paged(t, m, 158, 13)
	require.NoError(t, m.SetPlan(p))
	b := someBatch(7, 11, 158, 13)
	want := gradients(t, m, b)
	w := &nested{sums{m, map[string]snug.View{}}, func() { panic("of the window") }}
	require.Panics(t, func() { _, _ = m.Backprop(context.Background(), b, 1, w) })
	require.Empty(t, s.blobs)
	require.Zero(t, m.pass.Used())
	require.Equal(t, want, gradients(t, m, b))
}

func TestCheckpointErrors(t *testing.T) {
	without := newTiny(t, tiny(), Options{})
	p, costs := paged(t, without, 3, 9)
	require.ErrorIs(t, without.SetPlan(p), snug.ErrConfig)
	m := newTiny(t, tiny(), Options{Checkpoints: newShelf()})
	require.NoError(t, m.SetPlan(p))
	costs.Host = costs.Disk
	host, err := remat.HRevolve(costs, 0, len(costs.Stages), remat.Host)
	require.NoError(t, err)
	require.ErrorIs(t, m.SetPlan(host), snug.ErrConfig)
	saved := remat.Plan{Stages: 4, Ops: []remat.Op{{Kind: remat.ForwardSave}, {Kind: remat.PageDisk}, {Kind: remat.ForwardSave, Stage: 1}, {Kind: remat.ForwardSave, Stage: 2},
		{Kind: remat.ForwardSave, Stage: 3}, {Kind: remat.Backward, Stage: 3}, {Kind: remat.Backward, Stage: 2}, {Kind: remat.Backward, Stage: 1}, {Kind: remat.Backward}}}
	require.NoError(t, saved.Validate())
	require.ErrorIs(t, m.SetPlan(saved), snug.ErrConfig)
}

// TestCheckpointAllocations: a warm step with checkpoints allocates nothing of its own.
func TestCheckpointAllocations(t *testing.T) {
	s := newShelf()
	m := newTiny(t, tiny(), Options{DType: snug.BF16, Checkpoints: s, Tiles: 2})
	p, _ := paged(t, m, 3, 9)
	require.NoError(t, m.SetPlan(p))
	b, w := someBatch(7, 11, 3, 9), newWindow(t, m)
	var err error
	kerneltest.NoAllocs(t, func() {
		if err = w.Begin(1); err == nil {
			_, err = m.Backprop(context.Background(), b, 1, w)
		}
		w.Reset()
	})
	require.NoError(t, err)
}

// TestCheckpointsOfPlan: package plan finds a plan with checkpoints on disk where memory lacks, and predicts its bytes.
func TestCheckpointsOfPlan(t *testing.T) {
	c := tiny()
	c.Layers, c.Windows = 9, make([]int, 9)
	const sequences, tokens, more = 20, 16, 5000 // a batch of so many times the sequences takes more than the pages on their way
	model, err := c.Plan(tokens)
	require.NoError(t, err)
	d := plan.Device{Name: "d", Unified: true, Memory: 1 << 40, Disk: 1 << 40, F32: 1e3, F16: 1e3, Bandwidth: 1e9, HostF32: 1e9, HostBandwidth: 1e9, Link: 1e9, DiskRate: 1e9}
	task := plan.Task{Model: model, Device: d, Batch: more * sequences, Micro: more * sequences, Compute: []snug.DType{snug.F32}}
	_, err = plan.Best(task.Fit(1))
	var miss *plan.MissError
	require.ErrorAs(t, err, &miss)
	limit := miss.Minimum + miss.Minimum/20 + plan.CheckpointBytes
	p, err := plan.Best(task.Fit(limit))
	require.NoError(t, err)
	require.Positive(t, p.Peak[meter.OnDisk][meter.Activations])
	s := newShelf()
	m := newTiny(t, c, Options{Checkpoints: s})
	b := someBatch(7, c.Vocab, sequences, tokens)
	want := gradients(t, m, b)
	require.NoError(t, m.SetPlan(p.Run.Remat))
	require.Equal(t, want, gradients(t, m, b))
	require.Equal(t, p.Peak[meter.OnDisk][meter.Activations], more*s.peak)
	require.LessOrEqual(t, more*m.Memory().Peak, p.Peak[meter.OnDevice][meter.Activations]-plan.CheckpointBytes)

	task.Device.Disk = more * s.peak / 2
	less, err := plan.Best(task.Fit(limit))
	require.NoError(t, err)
	require.LessOrEqual(t, less.Peak[meter.OnDisk].Total(), task.Device.Disk)
	task.Device.Disk = 0
	none, err := plan.Best(task.Fit(limit))
	require.NoError(t, err)
	require.Zero(t, none.Peak[meter.OnDisk][meter.Activations])
	require.Greater(t, none.Seconds, p.Seconds)
}
