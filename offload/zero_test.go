package offload

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/files/filestest"
	"github.com/snug-ml/snug/internal/kerneltest"
)

// exported is every exported function.
var exported = map[string]any{
	"Open": Open, "Contents": Contents, "Verify": Verify, "MeasurePages": MeasurePages,
	"Create": Create[float32], "Lookup": Lookup[float32], "Attach": Attach[float32],
	"NewUpdater": NewUpdater, "NewMover": NewMover, "NewDeviceTier": NewDeviceTier, "NewRunner": NewRunner,
	"Greedy": Greedy, "Optimal": Optimal,
}

// withMethods is zero and nil values of every exported type that has methods.
var withMethods = map[string][]any{
	"Store": {&Store{}, (*Store)(nil)}, "Tensor": {&Tensor[float32]{}, (*Tensor[float32])(nil)},
	"Page": {Page[float32]{}}, "DevicePage": {DevicePage{}}, "Move": {Move{}}, "Commit": {Commit{}},
	"Mover": {&Mover{}, (*Mover)(nil)}, "DeviceTier": {&DeviceTier{}, (*DeviceTier)(nil)},
	"Updater": {&Updater{}, (*Updater)(nil)}, "Runner": {&Runner{}, (*Runner)(nil)},
	"DeviceMap": {DeviceMap{}, DeviceMap{TierOf: []int{7}}}, "Layer": {Layer{}}, "Stats": {Stats{}}, "PageError": {&PageError{}},
}

// TestEverythingIsListed compares the lists above with the source.
func TestEverythingIsListed(t *testing.T) {
	files, err := fs.Glob(os.DirFS("."), "*.go")
	require.NoError(t, err)
	functions, receivers := map[string]bool{}, map[string]bool{}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		for _, decl := range file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			switch {
			case !ok || !f.Name.IsExported():
			case f.Recv == nil:
				functions[f.Name.Name] = true
			default:
				of := f.Recv.List[0].Type
				if p, ok := of.(*ast.StarExpr); ok {
					of = p.X
				}
				if g, ok := of.(*ast.IndexExpr); ok {
					of = g.X
				}
				if id := of.(*ast.Ident); id.IsExported() {
					receivers[id.Name] = true
				}
			}
		}
	}
	for name := range functions {
		require.Contains(t, exported, name)
	}
	for name := range receivers {
		require.Contains(t, withMethods, name)
	}
}

// values returns what to call a parameter with: what nobody filled in, and numbers from
// one end to the other.
func values(param reflect.Type) []any {
	switch param {
	case reflect.TypeFor[int]():
		return []any{0, 1, 3, -1, math.MaxInt, math.MaxInt - 1, math.MaxInt/2 + 1, math.MaxInt / 4, math.MinInt}
	case reflect.TypeFor[int64]():
		return []any{int64(0), int64(1), int64(-1), int64(math.MaxInt64), int64(math.MaxInt64 - 1), int64(math.MaxInt64/2 + 1), int64(math.MinInt64)}
	case reflect.TypeFor[float32]():
		return []any{float32(0), float32(1), float32(-1), float32(math.NaN()), float32(math.Inf(1))}
	case reflect.TypeFor[string]():
		return []any{"", "x", "w", "\xff", strings.Repeat("x", maxKey+1)}
	case reflect.TypeFor[context.Context]():
		done, cancel := context.WithCancel(context.Background())
		cancel()
		return []any{nil, context.Background(), done}
	case reflect.TypeFor[snug.View]():
		return []any{snug.View{}, snug.ViewOf(make([]float32, 3)), snug.SliceView(make([]int32, 3))}
	case reflect.TypeFor[[]float32]():
		return []any{[]float32(nil), make([]float32, 3), make([]float32, 100)}
	case reflect.TypeFor[*Store]():
		return []any{(*Store)(nil), &Store{}}
	case reflect.TypeFor[*Mover]():
		return []any{(*Mover)(nil), &Mover{}}
	case reflect.TypeFor[*DeviceTier]():
		return []any{(*DeviceTier)(nil), &DeviceTier{}}
	case reflect.TypeFor[Stepper]():
		return []any{nil, &counting{}}
	case reflect.TypeFor[[]*Mover]():
		return []any{[]*Mover(nil), []*Mover{nil}, []*Mover{{}}}
	case reflect.TypeFor[[]Tier]():
		return []any{[]Tier(nil), []Tier{{}}, []Tier{{Limit: math.MaxInt64}, {Limit: math.MaxInt64, Rate: 1}}, []Tier{{Rate: math.NaN()}}, []Tier{{Limit: math.MinInt64}}}
	case reflect.TypeFor[[]Layer]():
		huge := Weight{"w", math.MaxInt64}
		return []any{[]Layer(nil), []Layer{{}}, []Layer{{Uses: math.MinInt}}, []Layer{{Weights: []Weight{huge}}}, []Layer{{Uses: math.MaxInt, Weights: []Weight{{"w", 1}}}}}
	case reflect.TypeFor[DeviceMap]():
		return []any{DeviceMap{}, DeviceMap{Tiers: []Tier{{}}}, DeviceMap{Tiers: []Tier{{}}, TierOf: []int{-1}}}
	case reflect.TypeFor[Options]():
		return []any{Options{HostLimit: 1000}, Options{HostLimit: math.MaxInt64, DiskLimit: math.MaxInt64}, Options{HostLimit: math.MinInt64}, Options{Workers: math.MaxInt}, Options{NoPrefetch: true}, Options{PrefetchDepth: math.MinInt}}
	}
	return []any{reflect.Zero(param).Interface()}
}

// callAll calls a function with the combinations of values of its parameters, or many of
// them: it must not panic or hang, and its errors must be of kinds that callers can tell.
func callAll(t *testing.T, name string, f reflect.Value) {
	kinds := []error{
		snug.ErrShape, snug.ErrDType, snug.ErrDevice, snug.ErrConfig, snug.ErrCorrupt, snug.ErrNoMemory,
		context.Canceled,
	}
	rng := rand.New(rand.NewPCG(1, 2))
	most := 1
	for i := range f.Type().NumIn() {
		most *= len(values(f.Type().In(i)))
	}
	for range min(4*most, 200) {
		args := make([]reflect.Value, f.Type().NumIn())
		var said []any
		for i := range args {
			param := f.Type().In(i)
			list := values(param)
			args[i] = reflect.New(param).Elem()
			if v := list[rng.IntN(len(list))]; v != nil {
				args[i].Set(reflect.ValueOf(v))
			}
			said = append(said, args[i].Interface())
		}
		call := f.Call
		if f.Type().IsVariadic() {
			call = f.CallSlice
		}
		var results []reflect.Value
		end := endingOf(t, func() error {
			results = call(args)
			return nil
		})
		require.Equal(t, ending{}, end, "%s(%.200v)", name, said)
		for _, r := range results {
			if err, ok := r.Interface().(error); ok {
				known := slices.ContainsFunc(kinds, func(kind error) bool { return errors.Is(err, kind) })
				var system *fs.PathError
				require.True(t, known || errors.As(err, &system), "%s: %v", name, err)
				if !strings.HasSuffix(name, ".Unwrap") {
					kerneltest.Prefixed(t, "offload."+name, err)
				}
			}
			if made, ok := r.Interface().(io.Closer); ok && !r.IsNil() {
				require.NoError(t, made.Close())
			}
		}
	}
}

// callMethods calls all methods of a value but those named.
func callMethods(t *testing.T, v any, but ...string) {
	of := reflect.ValueOf(v)
	for i := range of.NumMethod() {
		name := of.Type().Method(i).Name
		if of.Kind() == reflect.Pointer && of.IsNil() {
			if _, ok := of.Type().Elem().MethodByName(name); ok {
				continue // of the value, which is not there
			}
		}
		if slices.Contains(but, name) {
			continue
		}
		callAll(t, fmt.Sprintf("%T.%s", v, name), of.Method(i))
	}
}

// TestZeroValues calls every exported function and every method of zero and nil values.
func TestZeroValues(t *testing.T) {
	t.Chdir(t.TempDir())
	for name, f := range exported {
		callAll(t, name, reflect.ValueOf(f))
	}
	for _, list := range withMethods {
		for _, v := range list {
			callMethods(t, v)
		}
	}
}

// live returns a value of every type with methods, and what closes all.
func live(t *testing.T) (all []any, closeAll func()) {
	o, err := Options{HostLimit: 1 << 12}.check()
	require.NoError(t, err)
	s, err := open(filestest.New(), o)
	require.NoError(t, err)
	x, err := Create[float32](s, "x", 100, 7)
	require.NoError(t, err)
	m, err := NewMover(snug.CPU(), 64, 2)
	require.NoError(t, err)
	d, err := NewDeviceTier(s, m, 1<<12)
	require.NoError(t, err)
	u, err := NewUpdater(s, &counting{}, UpdaterOptions{PageLen: 7})
	require.NoError(t, err)
	require.NoError(t, u.Add("w", 3, nil))
	layers := []Layer{{Weights: []Weight{{"x", 400}}}}
	at, err := Greedy(layers, []Tier{{}})
	require.NoError(t, err)
	r, err := NewRunner(s, []*Mover{m}, layers, at, RunnerOptions{})
	require.NoError(t, err)
	c, err := s.BeginCommit()
	require.NoError(t, err)
	all = []any{x, u, at, layers[0], r, c, d, m, s}
	return all, func() {
		require.NoError(t, r.Close())
		require.NoError(t, d.Close())
		require.NoError(t, m.Close())
		require.NoError(t, s.Close())
	}
}

// TestSizes calls the methods of values in use with sizes, offsets and numbers from one end
// to the other, and once more after all were closed.
func TestSizes(t *testing.T) {
	all, closeAll := live(t)
	for _, v := range all {
		callMethods(t, v, "Close")
	}
	s := all[len(all)-1].(*Store)
	for name, f := range map[string]any{
		"Create": func(name string, n, pageLen int) error { return second(Create[int32](s, name, n, pageLen)) },
		"Attach": func(name string, n, pageLen int) error {
			return second(Attach[uint8](s, name, &weights{}, "", n, pageLen))
		},
		"NewMover":      func(pageBytes, pages int) (*Mover, error) { return NewMover(snug.CPU(), pageBytes, pages) },
		"NewDeviceTier": func(limit int64) error { return second(NewDeviceTier(s, all[len(all)-2].(*Mover), limit)) },
		"NewUpdater": func(pageLen, n int) error {
			u, err := NewUpdater(s, &heldStepper{}, UpdaterOptions{PageLen: pageLen})
			if err != nil {
				return err
			}
			return u.Add("u", n, nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			callAll(t, name, reflect.ValueOf(f))
		})
	}
	all, closeAgain := live(t)
	closeAgain()
	for _, v := range all {
		callMethods(t, v)
	}
	closeAll()
}
