//go:build (cuda || hip) && linux && (amd64 || arm64)

package cuda

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
	"unsafe"

	"github.com/ebitengine/purego"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/stretchr/testify/require"
)

// stub is testdata/stub.c as a shared library.
type stub struct {
	library uintptr
	name    func() string
	count   func() int32
	arg     func(i int32) uint64
	answer  func(r int32) // what calls return from now on
}

// buildStub compiles the stub library of CUDA, where loadLt finds it too.
func buildStub(t testing.TB) *stub {
	t.Helper()
	home := t.TempDir()
	t.Setenv("CUDA_HOME", home)
	return compileStub(t, "stub.c", filepath.Join(home, "lib64", "libcublasLt.so.12"))
}

// compileStub compiles a stub library of testdata.
func compileStub(t testing.TB, source, path string) *stub {
	t.Helper()
	cc, err := exec.LookPath("gcc")
	if errors.Is(err, exec.ErrNotFound) && os.Getenv("CI") == "" {
		t.Skip("no C compiler, gcc, to build the stub driver with")
	}
	require.NoError(t, err)
	require.NoError(t, os.Mkdir(filepath.Dir(path), 0o755))
	out, err := exec.Command(cc, "-shared", "-fPIC", "-O1", "-o", path, filepath.Join("testdata", source)).CombinedOutput()
	require.NoError(t, err, "%s", out)
	s := &stub{}
	s.library, err = openLibrary(path)
	require.NoError(t, err)
	for name, fn := range map[string]any{"stub_name": &s.name, "stub_count": &s.count, "stub_arg": &s.arg, "stub_answer": &s.answer} {
		addr, err := lookUp(s.library, name)
		require.NoError(t, err)
		purego.RegisterFunc(fn, addr)
	}
	return s
}

func (s *stub) open(t testing.TB) *Device {
	t.Helper()
	a := &api{}
	require.Empty(t, bind(s.library, a.symbols()))
	d, err := newBackend(&nvidia, func() (*api, error) { return a, nil }, noLt).Open(0)
	require.NoError(t, err)
	return d.(*Device)
}

// Every function gets its arguments as C declares them: their number, their
// order, all their bits and their sign; and its result comes back.
func TestCallingConvention(t *testing.T) {
	s := buildStub(t)
	a, lt := &api{}, &ltAPI{vendor: &cublasLt}
	require.Empty(t, bind(s.library, a.symbols()))
	require.Empty(t, bind(s.library, a.optional()))
	require.Empty(t, bind(s.library, lt.symbols()))
	testConvention(t, s, slices.Concat(a.symbols(), a.optional(), lt.symbols()))
}

func testConvention(t *testing.T, s *stub, symbols []Symbol) {
	s.answer(999)
	for _, symbol := range symbols {
		t.Run(symbol.Name, func(t *testing.T) {
			fn := reflect.ValueOf(symbol.Fn).Elem()
			var in []reflect.Value
			var want []uint64
			for i := range fn.Type().NumIn() {
				v, w := sample(fn.Type().In(i), i)
				in, want = append(in, v), append(want, w)
			}
			results := fn.Call(in)
			require.EqualValues(t, 999, results[len(results)-1].Uint())
			require.Equal(t, symbol.Name, s.name())
			var got []uint64
			for i := range s.count() {
				got = append(got, s.arg(i))
			}
			if symbol.Name == "cuCtxPopCurrent_v2" || symbol.Name == "hipGetDevice" { // its argument is the binding's
				require.Len(t, got, 1)
				require.NotZero(t, got[0])
				return
			}
			require.Equal(t, want, got)
		})
	}
}

// sample returns argument i of a type, and as C sees it.
func sample(typ reflect.Type, i int) (reflect.Value, uint64) {
	v := reflect.New(typ).Elem()
	switch typ.Kind() {
	case reflect.Int32, reflect.Int64:
		v.SetInt(-1000 - int64(i))
		return v, uint64(v.Int())
	case reflect.Uint8, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		v.SetUint((1<<(8*typ.Size()-1) + uint64(i)))
		return v, v.Uint()
	case reflect.String:
		v.SetString("a name")
		return v, uint64(v.Len())
	case reflect.Pointer:
		v = reflect.New(typ.Elem())
		return v, uint64(v.Pointer())
	default: // unsafe.Pointer
		p := unsafe.Pointer(new([16]byte))
		return reflect.ValueOf(p), uint64(uintptr(p))
	}
}

func TestMissingFunctions(t *testing.T) {
	s := buildStub(t)
	var fn func() Result
	require.Equal(t, []string{"cuNotThere"}, bind(s.library, []Symbol{{"cuNotThere", &fn}}))
	var found []string
	loadLt(func(lt *ltAPI) bool { found = append(found, lt.name); return true })
	require.Contains(t, found, filepath.Join(os.Getenv("CUDA_HOME"), "lib64", "libcublasLt.so.12"), "the stub")
	_, _, err := openFirst([]string{"libnothere.so.1", "libnothere.so.2"})
	require.ErrorContains(t, err, "libnothere.so.2")
}

// A whole session through the real calling convention.
func TestLibrary(t *testing.T) {
	s := buildStub(t)
	d := s.open(t)
	m, err := d.Alloc(4)
	require.NoError(t, err)
	require.EqualValues(t, 0x5678, m.Addr)
	require.NoError(t, d.CopyIn(m, []byte{1, 2, 3, 4}))
	require.NoError(t, d.LaunchGrid(grid("k", []byte{1, 2, 3, 4}, m)))
	g, err := d.Capture(func() error { return d.LaunchGrid(grid("k", nil, m)) })
	require.NoError(t, err)
	require.NoError(t, g.Launch())
	require.NoError(t, d.Free(m))

	s.answer(int32(errIllegalAddress))
	err = d.Sync()
	s.answer(0)
	require.ErrorIs(t, err, driver.ErrDevice)
	require.ErrorContains(t, err, "CUDA_ERROR_ILLEGAL_ADDRESS (700)")
	require.ErrorIs(t, d.Close(), err)
}

// BenchmarkLaunchLibrary times LaunchGrid with the calls into a library that
// does nothing.
func BenchmarkLaunchLibrary(b *testing.B) {
	d := buildStub(b).open(b)
	l := grid("k", make([]byte, 40), driver.Mem{Addr: 1, Size: 1}, driver.Mem{Addr: 2, Size: 1}, driver.Mem{Addr: 3, Size: 1})
	b.ReportAllocs()
	for b.Loop() {
		if err := d.LaunchGrid(l); err != nil {
			b.Fatal(err)
		}
	}
	require.NoError(b, d.Close())
}
