package attention

import (
	"fmt"
	"reflect"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

// headerFor returns the header of a rank with some Options.
func headerFor(c Options) header {
	g := group{whole: c, dtype: snug.F32}
	return g.header(ringForwards, false, false)
}

// flips returns copies of x with one number in it changed, which is at a path of fields.
func flips(x Options) map[string]Options {
	all := map[string]Options{}
	var walk func(path string, at func(root reflect.Value) reflect.Value)
	walk = func(path string, at func(root reflect.Value) reflect.Value) {
		changed := x
		v := at(reflect.ValueOf(&changed).Elem())
		switch v.Kind() {
		case reflect.Struct:
			if v.Type() == reflect.TypeFor[snug.View]() {
				v.Set(reflect.ValueOf(snug.ViewOf(make([]float32, 1))))
				break
			}
			for i := range v.NumField() {
				if f := v.Type().Field(i); f.IsExported() {
					walk(path+"."+f.Name, func(root reflect.Value) reflect.Value { return at(root).Field(i) })
				}
			}
			return
		case reflect.Array:
			for i := range v.Len() {
				walk(fmt.Sprint(path, i), func(root reflect.Value) reflect.Value { return at(root).Index(i) })
			}
			return
		case reflect.Slice:
			v.Set(reflect.ValueOf([]int{1}))
		case reflect.Pointer:
			v.Set(reflect.New(v.Type().Elem()))
		case reflect.Func:
			v.Set(reflect.ValueOf(ScoreFunc(func(s float32, _, _, _, _ int) (float32, float32) { return s, 1 })))
		case reflect.Bool:
			v.SetBool(!v.Bool())
		case reflect.Float32:
			v.SetFloat(v.Float() + 0.25)
		case reflect.Uint64:
			v.SetUint(v.Uint() + 1)
		default:
			v.SetInt(v.Int() + 1)
		}
		all[path[1:]] = changed
	}
	walk("", func(root reflect.Value) reflect.Value { return root })
	return all
}

// Every field of Options is compared, except those that are a rank's own.
func TestHeaderFields(t *testing.T) {
	own := map[string]bool{"GradLSE": true, "Sinks.Grad": true, "Bias.Grad": true}
	for _, v := range []string{"Q", "K", "V", "Out"} {
		for _, n := range []string{".Batch", ".Head", ".Row"} {
			own[v+n] = true
		}
	}
	base := Options{Dropout: Dropout{P: 0.25}}
	seen := map[header]string{headerFor(base): "nothing"}
	for field, c := range flips(base) {
		h := headerFor(c)
		if own[field] {
			require.Equal(t, headerFor(base), h, field)
			delete(own, field)
			continue
		}
		other, is := seen[h]
		require.False(t, is, "changes of %s and of %s have one header", field, other)
		seen[h] = field
	}
	require.Empty(t, own)
	require.Greater(t, len(seen), 25)
}

// Numbers that pass from one list to the next, or change places, change a checksum.
func TestHeaderLists(t *testing.T) {
	seen := map[header]int{}
	for i, c := range []Options{
		{}, {QStarts: []int{0}}, {QStarts: []int{0, 0}}, {KStarts: []int{0}}, {KLens: []int{0}}, {KStarts: []int{0, 0}},
		{QStarts: []int{0}, KStarts: []int{0}}, {QStarts: []int{1, 2}}, {QStarts: []int{2, 1}}, {QStarts: []int{1}, KStarts: []int{2}},
	} {
		h := headerFor(c)
		other, is := seen[h]
		require.False(t, is, "%d and %d", i, other)
		seen[h] = i
	}
}

// A header takes no memory, if a large list is in it too.
func TestHeaderAllocations(t *testing.T) {
	if kerneltest.Race {
		t.Skip("the race detector allocates")
	}
	c := Options{QStarts: make([]int, 1000), KStarts: make([]int, 1000)}
	ws := snug.ViewOf(make([]float32, headersLen(3)))
	require.Zero(t, testing.AllocsPerRun(100, func() {
		h := headerFor(c)
		told, err := h.tell(ws, func(dst, src snug.View) error { return snug.Copy(dst, src) })
		require.NoError(t, err)
		for i := range 3 {
			require.NoError(t, differ(0, i, h, headerOf(told, i)))
		}
	}))
}
