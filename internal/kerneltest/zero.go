package kerneltest

import (
	"errors"
	"io"
	"math"
	"path"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
)

// Zero calls every exported method of the values, and the values themselves that are
// functions, with zeros as arguments: nil pointers, slices and functions, zero structs.
// It requires that none panics, and that every error is one of package snug, see [Error].
func Zero(t *testing.T, values ...any) {
	t.Helper()
	for _, value := range values {
		v := reflect.ValueOf(value)
		if v.Kind() == reflect.Func && v.NumMethod() == 0 {
			name := runtime.FuncForPC(v.Pointer()).Name() // path/package.Function
			name = name[strings.LastIndex(name, "/")+1:]
			zero(t, name, v)
			continue
		}
		for i := range v.NumMethod() {
			m := v.Type().Method(i)
			if m.Name == "Unwrap" {
				continue // what an error of the package wraps
			}
			if v.Kind() == reflect.Pointer && v.IsNil() && byValue(v.Type(), m.Name) {
				continue // Go itself panics where a nil pointer stands for a value
			}
			of := v.Type()
			if of.Kind() == reflect.Pointer {
				of = of.Elem()
			}
			zero(t, path.Base(of.PkgPath())+"."+of.Name()+"."+m.Name, v.Method(i))
		}
	}
}

// byValue reports whether a pointer's method has a value receiver.
func byValue(pointer reflect.Type, name string) bool {
	_, found := pointer.Elem().MethodByName(name)
	return found
}

// NoPanics calls every exported method of the values with zeros as arguments, and again with the largest numbers and what
// can be written to. It requires that none panics.
func NoPanics(t *testing.T, values ...any) {
	t.Helper()
	for _, v := range values {
		value := reflect.ValueOf(v)
		for i := range value.NumMethod() {
			method, name := value.Method(i), value.Type().String()+"."+value.Type().Method(i).Name
			call := method.Call
			if method.Type().IsVariadic() {
				call = method.CallSlice
			}
			zeros, large := []reflect.Value(nil), []reflect.Value(nil)
			for i := range method.Type().NumIn() {
				in := method.Type().In(i)
				zeros, large = append(zeros, reflect.Zero(in)), append(large, reflect.Zero(in))
				switch {
				case zeros[i].CanInt():
					large[i] = reflect.New(in).Elem()
					large[i].SetInt(math.MaxInt32)
				case in == reflect.TypeFor[io.Writer]():
					large[i] = reflect.ValueOf(io.Discard)
				}
			}
			require.NotPanics(t, func() { call(zeros) }, name)
			require.NotPanics(t, func() { call(large) }, name)
		}
	}
}

func zero(t *testing.T, name string, f reflect.Value) {
	t.Helper()
	in := make([]reflect.Value, f.Type().NumIn())
	for i := range in {
		in[i] = reflect.Zero(f.Type().In(i))
	}
	call := f.Call
	if f.Type().IsVariadic() {
		call = f.CallSlice
	}
	var out []reflect.Value
	require.NotPanics(t, func() { out = call(in) }, name)
	for _, o := range out {
		if err, ok := o.Interface().(error); ok && o.Type() == reflect.TypeFor[error]() {
			Error(t, name, err)
		}
	}
}

// Error requires that err is an error as package.Function returns it: it wraps a sentinel
// of package snug, and is [Prefixed].
func Error(t testing.TB, function string, err error) {
	t.Helper()
	typed := false
	for _, sentinel := range []error{
		snug.ErrShape, snug.ErrDType, snug.ErrDevice, snug.ErrConfig, snug.ErrNonFinite, snug.ErrCorrupt, snug.ErrNoMemory, snug.ErrNotBuilt,
	} {
		typed = typed || errors.Is(err, sentinel)
	}
	require.True(t, typed, "%s: an error of its own: %v", function, err)
	Prefixed(t, function, err)
}

// Prefixed requires that the error of package.Function begins with the name of the package
// and a colon, once.
func Prefixed(t testing.TB, function string, err error) {
	t.Helper()
	pkg, _, _ := strings.Cut(function, ".")
	rest, prefixed := strings.CutPrefix(err.Error(), pkg+": ")
	require.True(t, prefixed, "%s: want the package's name first: %v", function, err)
	if pkg != "snug" { // which the text of a sentinel begins with
		require.NotContains(t, rest, pkg+": ", "%s: want the package's name once", function)
	}
}
