package tape

import (
	"context"
	"fmt"
	"math"
	"testing"

	"github.com/snug-ml/snug/remat/internal/memtest"
	"github.com/stretchr/testify/require"
)

// world is what surrounds a Tape of float32 slices: memory that counts and
// that is NaN after its release, an Offloader, and calls that can fail.
type world struct {
	*memtest.Faults
	p      *memtest.Pool
	copies map[int][]float32
	check  func() // called within every operation, when its result exists
}

func newWorld() *world {
	return &world{Faults: new(memtest.Faults), p: memtest.NewPool(), copies: map[int][]float32{}, check: func() {}}
}

func (w *world) options() Options[[]float32] {
	return Options[[]float32]{
		Bytes:     func(v []float32) int64 { w.MustCall(); return int64(4 * len(v)) },
		Release:   func(v []float32) { w.p.Put(v); w.MustCall() },
		Offloader: w,
	}
}

func (w *world) Store(_ context.Context, key int, v []float32) error {
	w.Expect(w.copies[key] == nil, "key %d stored twice", key)
	if err := w.Call(); err != nil {
		return err
	}
	w.copies[key] = append([]float32{}, v...)
	return nil
}

func (w *world) Load(_ context.Context, key int) ([]float32, error) {
	w.Expect(w.copies[key] != nil, "key %d loaded, but not stored", key)
	if err := w.Call(); err != nil {
		return nil, err
	}
	v := w.p.Get(len(w.copies[key]))
	copy(v, w.copies[key])
	return v, nil
}

func (w *world) Discard(key int) {
	w.Expect(w.copies[key] != nil, "key %d discarded, but not stored", key)
	delete(w.copies, key)
	w.MustCall()
}

// blend writes a function of the operands and of seed to dst.
func blend(dst []float32, seed int, in ...[]float32) {
	for i := range dst {
		sum := float32(seed%7+1)/4 + float32(i)/8
		for k, x := range in {
			sum += float32(x[i%len(x)] * float32(k+1))
		}
		dst[i] = float32(math.Sin(float64(sum)))
	}
}

// blended returns an operation that blends its operands into n elements and takes
// op.Extra bytes while it does.
func (w *world) blended(op Op, n, seed int) func(context.Context, [][]float32) ([]float32, error) {
	return func(_ context.Context, in [][]float32) ([]float32, error) {
		if err := w.Call(); err != nil {
			return nil, err
		}
		y := w.p.Get(n)
		blend(y, seed, in...)
		w.transient(op.Extra)
		return y, nil
	}
}

// overBlended is blended for an operation that overwrites its first operand.
func (w *world) overBlended(op Op, seed int) func(context.Context, []float32, [][]float32) error {
	return func(_ context.Context, dst []float32, in [][]float32) error {
		old := append([]float32{}, dst...)
		dst[0] = float32(math.NaN()) // half done, should it fail
		if err := w.Call(); err != nil {
			return err
		}
		blend(dst, seed, append([][]float32{old}, in...)...)
		w.transient(op.Extra)
		return nil
	}
}

// transient takes bytes, a multiple of 4, for an instant.
func (w *world) transient(bytes int64) {
	if bytes > 0 {
		defer w.p.Put(w.p.Get(int(bytes / 4)))
	}
	w.check()
}

// tester runs a Tape beside plain slices that are what its values must be.
type tester struct {
	t      require.TestingT
	ctx    context.Context
	w      *world
	tape   *Tape[[]float32]
	values []*tested
}

// tested is a value and what it must be.
type tested struct {
	*Value[[]float32]
	want []float32
}

func newTester(t require.TestingT, ctx context.Context, o func(*Options[[]float32])) *tester {
	w := newWorld()
	options := w.options()
	if o != nil {
		o(&options)
	}
	tape, err := New(options)
	require.NoError(t, err)
	return &tester{t: t, ctx: ctx, w: w, tape: tape}
}

// add keeps y, if it was made, with a name that tells it apart.
func (s *tester) add(y *Value[[]float32], err error, want []float32) (*tested, error) {
	if err != nil {
		require.Nil(s.t, y)
		return nil, err
	}
	v := &tested{y, want}
	s.values = append(s.values, v)
	return v, nil
}

func (s *tester) input(n int) (*tested, error) {
	v := make([]float32, n)
	blend(v, len(s.values))
	y, err := s.tape.Input(s.ctx, fmt.Sprint("input ", len(s.values)), v)
	return s.add(y, err, v)
}

// do declares the size in op.Bytes, which is 4·n, unless op.Bytes is negative.
func (s *tester) do(op Op, n int, operands ...*tested) (*tested, error) {
	seed := len(s.values)
	op.Bytes = max(0, int64(4*n)+min(op.Bytes, 0))
	in, want := operandsOf(operands)
	y, err := s.tape.Do(s.ctx, op, s.w.blended(op, n, seed), in...)
	result := make([]float32, n)
	blend(result, seed, want...)
	return s.add(y, err, result)
}

// save is do with a saved set of twice the elements, whose Op is the second one.
func (s *tester) save(op, saved Op, n int, operands ...*tested) (y, set *tested, err error) {
	seed := len(s.values)
	sizes, declared := [2]int{n, 2 * n}, min(op.Bytes, 0)
	op.Bytes, saved.Bytes = max(0, int64(4*n)+declared), max(0, int64(8*n)+declared)
	in, want := operandsOf(operands)
	a, b, err := s.tape.DoSave(s.ctx, op, saved, func(ctx context.Context, in [][]float32) (y, set []float32, err error) {
		if err := s.w.Call(); err != nil {
			return nil, nil, err
		}
		y, set = s.w.p.Get(sizes[0]), s.w.p.Get(sizes[1])
		blend(y, seed, in...)
		blend(set, -seed, in...)
		s.w.transient(op.Extra)
		return y, set, nil
	}, in...)
	results := [2][]float32{make([]float32, sizes[0]), make([]float32, sizes[1])}
	blend(results[0], seed, want...)
	blend(results[1], -seed, want...)
	if y, err = s.add(a, err, results[0]); err != nil {
		require.Nil(s.t, b)
		return nil, nil, err
	}
	set, err = s.add(b, nil, results[1])
	return y, set, err
}

func (s *tester) overwrite(op Op, y *tested, operands ...*tested) (*tested, error) {
	seed := len(s.values)
	in, want := operandsOf(operands)
	op.Bytes = int64(4 * len(y.want))
	z, err := s.tape.Overwrite(s.ctx, op, s.w.overBlended(op, seed), y.Value, in...)
	result := make([]float32, len(y.want))
	blend(result, seed, append([][]float32{y.want}, want...)...)
	return s.add(z, err, result)
}

// alias is the second half of y.
func (s *tester) alias(y *tested) (*tested, error) {
	half := func(v []float32) []float32 { s.w.MustCall(); return v[len(v)/2:] }
	a, err := s.tape.Alias("half", y.Value, half)
	return s.add(a, err, y.want[len(y.want)/2:])
}

func (s *tester) get(y *tested) error {
	v, done, err := s.tape.Get(s.ctx, y.Value)
	if err != nil {
		require.Nil(s.t, done)
		return err
	}
	require.Equal(s.t, y.want, v)
	done()
	done()
	return nil
}

func (s *tester) take(y *tested) error {
	v, err := s.tape.Take(s.ctx, y.Value)
	if err != nil {
		return err
	}
	require.Equal(s.t, y.want, v)
	s.w.p.Put(v)
	return nil
}

func (s *tester) free(y *tested) error   { return s.tape.Free(y.Value) }
func (s *tester) banish(y *tested) error { return s.tape.Banish(s.ctx, y.Value) }

// checkAccount compares the Tape's account with what is really held, and that
// nothing is that nobody needs.
func (s *tester) checkAccount() {
	require.Empty(s.t, s.w.Problems)
	held := s.w.p.Held
	for _, v := range s.tape.live {
		require.False(s.t, v.idle(), v.op.Name)
		if v.run == nil {
			held += v.bytes
		}
	}
	require.Equal(s.t, held, s.tape.Stats().Held)
	require.LessOrEqual(s.t, held, s.tape.budget)
}

// finish checks that all values are what they must be, if they fit, and that
// nothing is left in the end.
func (s *tester) finish() {
	for _, y := range s.values {
		if !y.freed && !s.tape.closed {
			if err := s.get(y); err != nil {
				require.IsType(s.t, &BudgetError{}, err)
			}
			s.checkAccount()
		}
	}
	require.NoError(s.t, s.tape.Close())
	require.Empty(s.t, s.w.Problems)
	require.Empty(s.t, s.w.p.Live)
	require.Empty(s.t, s.w.copies)
}

func operandsOf(operands []*tested) (in []*Value[[]float32], want [][]float32) {
	for _, y := range operands {
		in, want = append(in, y.Value), append(want, y.want)
	}
	return in, want
}

// newTestTape is newTester for a scenario that goes well.
func newTestTape(t *testing.T, budget int64, policy Policy) *tester {
	return newTester(t, t.Context(), func(o *Options[[]float32]) { o.Budget, o.Policy = budget, policy })
}
