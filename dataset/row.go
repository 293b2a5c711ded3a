package dataset

import (
	"encoding/json"
	"fmt"

	"github.com/snug-ml/snug/chat"
)

// row is what a file has for one sample: an object of JSON, or the columns of a table's row. Readers of all kinds of
// files give rows, and [reader.take] makes samples of them.
type row struct {
	at     string // where the row is in its file, such as "line 3" or "row 7"
	fields object
}

// object is an object of JSON, with its members in their order. Names are exact, and no two are equal.
type object = chat.Object

// member is a name and its value, of which [value] says what it may be.
type member = chat.Field

// value is a value of JSON: nil, bool, [json.Number], string, list, object, or literal; or of a table a blob or one that is foreign.
// Strings are UTF-8.
type value = any

// list is an array of JSON.
type list []value

// blob is bytes of a table that are no text, such as the file of an image.
type blob []byte

// literal is a word that programs write for a number and that is not JSON: NaN, Infinity or -Infinity. It may be in
// fields that are not used.
type literal string

// namesOf returns the names of an object in their order.
func namesOf(o object) (names []string) {
	for _, m := range o {
		names = append(names, m.Name)
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
	case blob:
		return "bytes"
	case foreign:
		return string(v) + ", about whose text programs differ: store the column as strings"
	}
	return fmt.Sprintf("%T", v)
}

// MarshalJSON implements [json.Marshaler] by an error: bytes are no JSON.
func (b blob) MarshalJSON() ([]byte, error) { return nil, fmt.Errorf("%d bytes are not JSON", len(b)) }

// MarshalJSON implements [json.Marshaler] by an error: the word is not JSON.
func (l literal) MarshalJSON() ([]byte, error) { return nil, fmt.Errorf("%s is not JSON", string(l)) }
