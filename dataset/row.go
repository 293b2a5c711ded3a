package dataset

import (
	"encoding/json"
	"fmt"
)

// row is what a file has for one sample: an object of JSON, or the columns of a table's row. Readers of all kinds of
// files give rows, and [reader.take] makes samples of them.
type row struct {
	at     string // where the row is in its file, such as "line 3" or "row 7"
	fields object
}

// object is an object of JSON, with its members in their order. Names are exact, and no two are equal.
type object []member

// member is a name and its value.
type member struct {
	name  string
	value value
}

// value is a value of JSON: nil, bool, [json.Number], string, list, object, or literal; or of a table one that is foreign.
// Strings are UTF-8.
type value any

// list is an array of JSON.
type list []value

// literal is a word that programs write for a number and that is not JSON: NaN, Infinity or -Infinity. It may be in
// fields that are not used.
type literal string

// get returns the value of a name, which is nil for null and where the name is missing (found is false).
func (o object) get(name string) (v value, found bool) {
	for _, m := range o {
		if m.name == name {
			return m.value, true
		}
	}
	return nil, false
}

// names returns the names of an object in their order.
func (o object) names() (names []string) {
	for _, m := range o {
		names = append(names, m.name)
	}
	return names
}

// kindOf names the kind of a value, for errors such as "content is a number, want a string".
func kindOf(v value) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case bool:
		return fmt.Sprint(v)
	case json.Number:
		return "a number"
	case string:
		return "a string"
	case list:
		return "an array"
	case object:
		return "an object"
	case literal:
		return string(v) + ", which is not JSON: write null"
	case foreign:
		return string(v) + ", about whose text programs differ: store the column as strings"
	}
	return fmt.Sprintf("%T", v)
}

// MarshalJSON implements [json.Marshaler]: it writes the members in their order.
func (o object) MarshalJSON() ([]byte, error) {
	b := []byte{'{'}
	for i, m := range o {
		if i > 0 {
			b = append(b, ',')
		}
		name, err := json.Marshal(m.name)
		if err != nil {
			return nil, err
		}
		b = append(append(b, name...), ':')
		v, err := json.Marshal(m.value)
		if err != nil {
			return nil, err
		}
		b = append(b, v...)
	}
	return append(b, '}'), nil
}

// MarshalJSON implements [json.Marshaler] by an error: the word is not JSON.
func (l literal) MarshalJSON() ([]byte, error) { return nil, fmt.Errorf("%s is not JSON", string(l)) }
