package strictjson

import (
	"bytes"
	"encoding"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// checker walks through a document of valid syntax together with the type that it decodes
// into.
type checker struct {
	Options
	dec   *json.Decoder
	path  []step
	known map[reflect.Type]fields
	walks bool // values that are passed over are walked through, too
}

// step is one key or index of the path to a value.
type step struct {
	key   string
	index int // of an array's element, -1 for a key
}

var (
	unmarshaler     = reflect.TypeFor[json.Unmarshaler]()
	textUnmarshaler = reflect.TypeFor[encoding.TextUnmarshaler]()
	number          = reflect.TypeFor[json.Number]()
)

// value takes one value for type t. Any value suits no type at all, which is nil. Where
// quoted is set, a string holds the value.
func (c *checker) value(t reflect.Type, quoted bool) error {
	if t == nil && !c.walks {
		return c.pass()
	}
	token, err := c.dec.Token()
	if err != nil {
		return c.errorf("%w", err)
	}
	if token == nil {
		return c.null(t)
	}
	for t != nil && t.Kind() == reflect.Pointer && !t.Implements(unmarshaler) && !t.Implements(textUnmarshaler) {
		t = t.Elem()
	}
	switch {
	case t == nil || t.Kind() == reflect.Interface || implements(t, unmarshaler):
		return c.any(token)
	case quoted || implements(t, textUnmarshaler):
		return want[string](c, token, "a string")
	case t == number:
		return want[json.Number](c, token, "a number")
	}
	switch t.Kind() {
	case reflect.Bool:
		return want[bool](c, token, "true or false")
	case reflect.String:
		return want[string](c, token, "a string")
	case reflect.Struct:
		return c.object(token, t, nil)
	case reflect.Map:
		if t.Key().Kind() != reflect.String || implements(t.Key(), textUnmarshaler) {
			return c.errorf("keys of type %v, want strings", t.Key())
		}
		return c.object(token, nil, t.Elem())
	case reflect.Slice:
		if e := t.Elem(); e.Kind() == reflect.Uint8 && !implements(e, unmarshaler) && !implements(e, textUnmarshaler) {
			return want[string](c, token, "a string of base64")
		}
		return c.array(token, t.Elem(), -1)
	case reflect.Array:
		return c.array(token, t.Elem(), t.Len())
	}
	return c.number(token, t)
}

// pass reads a value that no field takes. It walks through the value only if it has an object, whose keys must differ, or nested arrays,
// whose depth is limited.
func (c *checker) pass() error {
	var raw json.RawMessage
	if err := c.dec.Decode(&raw); err != nil {
		return c.errorf("%w", err)
	}
	arrays := bytes.Count(raw, []byte("["))
	if bytes.IndexByte(raw, '{') < 0 && (arrays == 0 || arrays == 1 && len(c.path) < c.MaxDepth) {
		return nil
	}
	walker := *c
	walker.dec, walker.walks = decoder(raw), true
	return walker.value(nil, false)
}

func implements(t, what reflect.Type) bool {
	return t.Implements(what) || reflect.PointerTo(t).Implements(what)
}

// null says whether a value of type t can be null.
func (c *checker) null(t reflect.Type) error {
	if t == nil || slices.Contains([]reflect.Kind{reflect.Pointer, reflect.Slice, reflect.Map, reflect.Interface}, t.Kind()) {
		return nil
	}
	return c.errorf("null, want a value")
}

func want[T any](c *checker, token json.Token, what string) error {
	if _, ok := token.(T); !ok {
		return c.wrongKind(token, what)
	}
	return nil
}

// number says whether a number fits in type t.
func (c *checker) number(token json.Token, t reflect.Type) error {
	n, isNumber := token.(json.Number)
	var err error
	what := "an integer"
	switch {
	case t.Kind() >= reflect.Int && t.Kind() <= reflect.Int64:
		_, err = strconv.ParseInt(string(n), 10, t.Bits())
	case t.Kind() >= reflect.Uint && t.Kind() <= reflect.Uintptr:
		what = "an integer of 0 or more"
		_, err = strconv.ParseUint(string(n), 10, t.Bits())
	case t.Kind() == reflect.Float32 || t.Kind() == reflect.Float64:
		what = "a number"
		_, err = strconv.ParseFloat(string(n), t.Bits())
	default:
		return c.errorf("a value of type %v, which JSON cannot hold", t)
	}
	if !isNumber || err != nil {
		return c.wrongKind(token, what+" that fits in "+t.Kind().String())
	}
	return nil
}

// any takes the rest of a value that begins with token, of any kind.
func (c *checker) any(token json.Token) error {
	switch token {
	case json.Delim('{'):
		return c.object(token, nil, nil)
	case json.Delim('['):
		return c.array(token, nil, -1)
	}
	return nil
}

// array takes an array of n elements, any number if n < 0.
func (c *checker) array(token json.Token, elem reflect.Type, n int) error {
	if token != json.Delim('[') {
		return c.wrongKind(token, "an array")
	}
	if err := c.enter(step{}); err != nil {
		return err
	}
	last := len(c.path) - 1
	count := 0
	for ; c.dec.More(); count++ {
		c.path[last].index = count
		if err := c.value(elem, false); err != nil {
			return err
		}
	}
	c.path = c.path[:last]
	if n >= 0 && count != n {
		return c.errorf("%d elements, want %d", count, n)
	}
	return c.end()
}

// object takes an object for a struct, or, where that is nil, for a map of elem.
func (c *checker) object(token json.Token, t, elem reflect.Type) error {
	if token != json.Delim('{') {
		return c.wrongKind(token, "an object")
	}
	if err := c.enter(step{index: -1}); err != nil {
		return err
	}
	var known fields
	if t != nil {
		known = c.fields(t)
	}
	last := len(c.path) - 1
	seen := map[string]bool{}
	for c.dec.More() {
		token, err := c.dec.Token()
		if err != nil {
			return c.errorf("%w", err)
		}
		key, _ := token.(string) // the syntax grants it
		c.path[last].key = key
		if seen[key] {
			return c.errorf("the key comes twice")
		}
		seen[key] = true
		f := field{typ: elem}
		if t != nil {
			found := false
			if f, found = known[key]; !found {
				if err := c.unknown(key, known); err != nil {
					return err
				}
			}
		}
		if err := c.value(f.typ, f.quoted); err != nil {
			return err
		}
	}
	c.path = c.path[:last]
	if c.Complete {
		for _, key := range slices.Sorted(maps.Keys(known)) {
			if f := known[key]; !f.optional && !seen[key] {
				return c.errorf("there is no key %q", key)
			}
		}
	}
	return c.end()
}

// unknown says whether a key that a struct does not have may be there.
func (c *checker) unknown(key string, known fields) error {
	keys := slices.Sorted(maps.Keys(known))
	for _, k := range keys {
		if strings.EqualFold(k, key) {
			return c.errorf("the key in another case, want %q", k)
		}
	}
	if c.Open {
		return nil
	}
	return c.errorf("unknown key, want one of %s", strings.Join(keys, ", "))
}

// enter goes one level down.
func (c *checker) enter(s step) error {
	if len(c.path) == c.MaxDepth {
		return c.errorf("nested deeper than %d levels", c.MaxDepth)
	}
	c.path = append(c.path, s)
	return nil
}

// end takes the end of an object or array.
func (c *checker) end() error {
	_, err := c.dec.Token()
	return err
}

func (c *checker) wrongKind(token json.Token, what string) error {
	switch x := token.(type) {
	case json.Delim:
		kind := "an array"
		if x == '{' {
			kind = "an object"
		}
		return c.errorf("%s, want %s", kind, what)
	case string:
		return c.errorf("%.40q, want %s", x, what)
	}
	return c.errorf("%.40s, want %s", fmt.Sprint(token), what)
}

// errorf returns an error at the path, which it writes as Go and JavaScript do.
func (c *checker) errorf(format string, args ...any) error {
	var b strings.Builder
	for _, s := range c.path {
		switch {
		case s.index >= 0:
			fmt.Fprintf(&b, "[%d]", s.index)
		case !plain(s.key):
			fmt.Fprintf(&b, "[%.100q]", s.key)
		case b.Len() > 0:
			b.WriteString("." + s.key)
		default:
			b.WriteString(s.key)
		}
	}
	if b.Len() == 0 {
		b.WriteString("the JSON document")
	}
	return fmt.Errorf("%s: %w", b.String(), fmt.Errorf(format, args...))
}

// plain reports whether a key needs no quotes.
func plain(key string) bool {
	for _, r := range key {
		if r != '_' && (r < '0' || r > '9') && (r|0x20 < 'a' || r|0x20 > 'z') {
			return false
		}
	}
	return key != "" && len(key) <= 100
}
