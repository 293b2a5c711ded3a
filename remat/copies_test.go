package remat

import (
	"context"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// fakeCopy is a copy in a tier of what has a size and transfers. Packed copies are
// in the heap of device memory.
type fakeCopy[V comparable] struct {
	h        *heap
	tier     Tier
	packed   *byte // key of the copy in device memory
	size     int64
	original *transfer
	loaded   *transfer // of the value that was loaded last
	load     func() (v V, size int64, t *transfer)
}

func newFakeCopy[V comparable](h *heap, tier Tier, size int64, original *transfer, load func() (V, int64, *transfer)) (Copy[V], error) {
	h.Expect(!original.storing && !original.loading, "copied within another transfer")
	if err := h.Call(); err != nil {
		return nil, err
	}
	f := &fakeCopy[V]{h: h, tier: tier, size: size, original: original, load: load}
	if tier == Packed {
		f.packed = new(byte)
		h.alloc(f.packed, size)
	} else {
		h.tiers[tier] += size
	}
	original.storing = true
	return f, nil
}

func (f *fakeCopy[V]) Bytes() int64 { f.h.MustCall(); return f.size }

func (f *fakeCopy[V]) Stored(context.Context) error {
	f.original.storing = false
	return f.h.Call()
}

func (f *fakeCopy[V]) Load(context.Context) (v V, err error) {
	f.h.Expect(!f.original.storing, "loaded before it is stored")
	if err := f.h.Call(); err != nil {
		return v, err
	}
	v, size, t := f.load()
	f.h.alloc(v, size)
	f.loaded, t.loading = t, true
	return v, nil
}

func (f *fakeCopy[V]) Loaded(context.Context) error {
	f.loaded.loading = false
	return f.h.Call()
}

func (f *fakeCopy[V]) Release() {
	f.original.storing = false
	if f.loaded != nil {
		f.loaded.loading = false
	}
	if f.tier == Packed {
		f.h.free(f.packed)
	} else {
		f.h.tiers[f.tier] -= f.size
	}
	f.h.MustCall()
}

// fakeStores gives a chain of fake stages the functions that copy.
func fakeStores(chain *Chain[*block, *set], h *heap, c Costs) {
	chain.Output = func(s *set) *block { h.MustCall(); return s.y }
	chain.Store = func(_ context.Context, tier Tier, y *block) (Copy[*block], error) {
		h.borrow(y, y.index)
		return newFakeCopy(h, tier, y.size, &y.transfer, func() (*block, int64, *transfer) {
			v := &block{index: y.index, size: y.size}
			return v, v.size, &v.transfer
		})
	}
	chain.StoreSaved = func(_ context.Context, tier Tier, s *set) (Copy[*set], error) {
		h.Expect(h.holds(s), "s_%d is copied but not held", s.stage)
		size := s.size
		if tier == Packed {
			size = c.Stages[s.stage].Packed
		}
		return newFakeCopy(h, tier, size, &s.transfer, func() (*set, int64, *transfer) {
			v := &set{stage: s.stage, size: s.size}
			v.y = &block{index: s.stage + 1, size: s.y.size, within: v}
			return v, v.size, &v.transfer
		})
	}
}

// TestCopiesByHand follows bytes and time through a plan that pages a saved set to
// disk and an output to host memory, and packs another saved set.
func TestCopiesByHand(t *testing.T) {
	c := Costs{Input: 10, Host: Rates{Write: 2, Read: 4}, Disk: Rates{Write: 1, Read: 0.5}, Stages: []Cost{
		{Output: 4, Saved: 8, ForwardTime: 1, BackwardTime: 1},
		{Output: 4, Saved: 4, ForwardTime: 1, BackwardTime: 1},
		{Output: 4, Saved: 12, Packed: 3, PackTime: 2, UnpackTime: 0.5, ForwardTime: 1, BackwardTime: 1},
		{Output: 2, Saved: 2, ForwardTime: 1, BackwardTime: 1},
	}}
	p := Plan{Stages: 4, Ops: parsed(t, "S0 D0 F1 -S0 H1 S2 P2 -F1 S3 -S2 L2 B3 L1 B2 L0 S1 B1 B0")}
	r, err := p.Simulate(c)
	require.NoError(t, err)
	require.Equal(t, Report{
		// S0 ends at 1 and is on disk at 9; F1 ends at 2, -S0 waits until 9. a_2
		// goes out from 9 to 11; S2 ends at 10, P2 at 12; S3 at 13. Unpacked at 13.5;
		// B3 ends at 14.5. L1 takes 1, and B2 waits for a_2 until 15.5 and ends at
		// 16.5; L0 takes 16, and S1, which needs a_1, waits until 32.5. The rest
		// takes 3.
		Time: 35.5, Waited: 7 + 1 + 16,
		Peak: 33, PeakOp: 12, Extra: 1, Again: 1, Packed: 1, Host: 4, Disk: 8,
		Timeline: []Bytes{
			{20, 20, 0, 0}, {20, 20, 0, 8}, {24, 24, 0, 8}, {16, 16, 0, 8}, {16, 16, 4, 8}, {28, 28, 4, 8}, {31, 31, 4, 8},
			{27, 27, 4, 8}, {29, 29, 4, 8}, {17, 17, 4, 8}, {29, 29, 4, 8}, {31, 29, 4, 8}, {33, 33, 4, 8},
			{33, 18, 4, 8}, {26, 26, 4, 8}, {26, 26, 4, 8}, {26, 22, 0, 8}, {28, 20, 0, 0},
		},
	}, r)
}

func TestSimulateTiersThatAreMissing(t *testing.T) {
	c := uniform(2)
	for _, text := range []string{"S0 H0 S1 B1 B0", "S0 D0 S1 B1 B0", "S0 P0 S1 B1 B0"} {
		_, err := Plan{Stages: 2, Ops: parsed(t, text)}.Simulate(c)
		require.ErrorIs(t, err, snug.ErrConfig)
		require.ErrorContains(t, err, "the costs have no such tier")
	}
	for _, r := range []Rates{{-1, 1}, {1, 0}, {0, 1}} {
		c.Disk = r
		require.ErrorIs(t, c.Validate(), snug.ErrConfig)
	}
}

// TestCopiesWant: a chain without the functions cannot run plans that copy.
func TestCopiesWant(t *testing.T) {
	c := uniform(2)
	h := newHeap()
	chain := fakeChain(h, c)
	chain.Store, chain.Output = nil, nil
	for text, want := range map[string]string{
		"F0 H0 S1 B1 S0 B0":  "operation 1 (H0): the chain has no function Store:",
		"S0 D0 S1 B1 B0":     "operation 1 (D0): the chain has no functions StoreSaved and Output",
		"S0 -C0 S1 D0 B1 B0": "there is no copy",
	} {
		t.Run(text, func(t *testing.T) {
			_, err := chain.NewRunner(Plan{Stages: 2, Ops: parsed(t, text)})
			require.ErrorIs(t, err, snug.ErrConfig)
			require.ErrorContains(t, err, want)
		})
	}
}

// copiesRunAsSimulated runs walks with copies.
func copiesRunAsSimulated(t *rapid.T) {
	c := drawCosts(t, 5)
	p := drawWalk(t, len(c.Stages), DropCopy)
	h := newHeap()
	x := fakeInput(h, c)
	want, err := p.Simulate(c)
	require.NoError(t, err)
	dx, got, err := fakeChain(h, c).Run(t.Context(), p, x, fakeLoss(h, c, nil))
	require.NoError(t, err)
	require.Empty(t, h.Problems)
	require.Equal(t, map[any]int64{x: x.size, dx: dx.size}, h.live)
	require.Zero(t, h.tiers)
	got.Time, got.Again, got.Waited = want.Time, want.Again, want.Waited
	require.Equal(t, want, got)
	require.LessOrEqual(t, want.Waited, want.Time)
}

func TestCopiesRunAsSimulated(t *testing.T) { rapid.Check(t, copiesRunAsSimulated) }

func FuzzCopies(f *testing.F) { f.Fuzz(rapid.MakeFuzz(copiesRunAsSimulated)) }

// resaving is a stage that stops early.
type resaving struct {
	fake
	resaved *[]int
}

func (r resaving) Resave(ctx context.Context, x *block) (*set, error) {
	*r.resaved = append(*r.resaved, r.i)
	_, s, err := r.ForwardSave(ctx, x)
	if err != nil {
		return nil, err
	}
	s.y.index = -1 // not to be used
	return s, nil
}

// TestResave: only outputs that nothing uses are left out, and only in recomputations.
func TestResave(t *testing.T) {
	c := withTiers(mixed())
	for _, tc := range []struct {
		plan Plan
		want []int
	}{
		{must(KeepAll(c)), nil},
		{must(RecomputeAll(c)), []int{4, 3, 2, 1, 0}},
		{must(Every(c, 3)), []int{4}},
		{Plan{Stages: 6, Ops: parsed(t, "S0 H0 -S0 L0 S1 -S1 S1 S2 S3 S4 F5 -F5 S5 B5 B4 B3 B2 -S1 S1 B1 B0")}, []int{5, 1}},
	} {
		h := newHeap()
		x := fakeInput(h, c)
		chain := fakeChain(h, c)
		var resaved []int
		for i, s := range chain.Stages {
			chain.Stages[i] = resaving{s.(fake), &resaved}
		}
		_, rep, err := chain.Run(t.Context(), tc.plan, x, fakeLoss(h, c, nil))
		require.NoError(t, err)
		require.Empty(t, h.Problems)
		require.Equal(t, tc.want, resaved)
		want, err := tc.plan.Simulate(c)
		require.NoError(t, err)
		require.Equal(t, want.Peak, rep.Peak)
		require.Empty(t, rep.Mismatches)
	}
}

// withTiers returns c with rates, and sizes of packed saved sets.
func withTiers(c Costs) Costs {
	c.Host, c.Disk = Rates{4, 5}, Rates{2, 1}
	for i := range c.Stages {
		c.Stages[i].Packed = 1 + c.Stages[i].Saved/4
	}
	return c
}
