// Package strictjson reads JSON documents of a known form, and takes nothing else.
// [encoding/json] matches keys in any case, lets the last of two equal keys win,
// passes over null, over surplus elements of fixed arrays and over missing keys, and
// replaces what is not Unicode. A damaged document is then read as another one.
//
//	var h struct {
//		Step  int64            `json:"step"`
//		Files map[string]int64 `json:"files"`
//	}
//	if err := strictjson.Unmarshal(text, &h); err != nil {
//		return fmt.Errorf("run.json: %w: %w", err, snug.ErrCorrupt)
//	}
//
// Errors say the path of the key, such as files["a.bin"], and wrap nothing of package
// snug: the caller knows whether the document is saved state or somebody's settings.
package strictjson

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// The limits of a document where Options names none.
const (
	DefaultBytes = 64 << 20
	DefaultDepth = 64
)

// Options says what a document may be. The zero Options is the strictest except for
// missing keys.
type Options struct {
	// Open lets objects have keys that their struct does not have; they are passed
	// over. A key that is one of the struct's in another case is still an error.
	Open bool
	// Complete makes a missing key an error, unless its field has the tag omitempty
	// or omitzero: what [json.Marshal] always writes must be there.
	Complete bool
	// MaxBytes is the longest document, DefaultBytes if 0.
	MaxBytes int
	// MaxDepth is how deep objects and arrays nest, DefaultDepth if 0.
	MaxDepth int
}

// Unmarshal reads a document with the zero [Options].
func Unmarshal(data []byte, into any) error { return Options{}.Unmarshal(data, into) }

// Unmarshal reads one document into the value that into points to, by the rules of
// [json.Unmarshal] where these leave no choice:
//
//   - Every key is one of the struct's, in the same case, and comes once, also in maps
//     and in values that are passed over.
//   - null is for pointers, slices, maps and interfaces only.
//   - A fixed array has as many elements as its type. []byte is a base64 string.
//   - Integers have no fraction and no exponent and fit in their type, floats in theirs;
//     in an interface a number is a [json.Number].
//   - The text is UTF-8 without halves of surrogate pairs, and ends after the document.
//
// Keys of maps are strings. Keys that are not there keep what the value had. After an
// error it is as before, except for maps and pointers that it had. The memory is a few
// times the document's.
func (o Options) Unmarshal(data []byte, into any) error {
	v := reflect.ValueOf(into)
	if v.Kind() != reflect.Pointer || v.IsNil() {
		return fmt.Errorf("JSON into %T, want a pointer that is not nil", into)
	}
	if o.MaxBytes <= 0 {
		o.MaxBytes = DefaultBytes
	}
	if o.MaxDepth <= 0 {
		o.MaxDepth = DefaultDepth
	}
	if err := o.text(data); err != nil {
		return err
	}
	c := checker{Options: o, dec: decoder(data), known: map[reflect.Type]fields{}}
	if err := c.value(v.Type().Elem(), false); err != nil {
		return err
	}
	fresh := reflect.New(v.Type().Elem())
	fresh.Elem().Set(v.Elem())
	dec := decoder(data)
	if !o.Open {
		dec.DisallowUnknownFields()
	}
	if err := dec.Decode(fresh.Interface()); err != nil {
		return err
	}
	v.Elem().Set(fresh.Elem())
	return nil
}

func decoder(data []byte) *json.Decoder {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	return dec
}

// text checks length, encoding and syntax.
func (o Options) text(data []byte) error {
	if len(data) > o.MaxBytes {
		return fmt.Errorf("JSON of %d bytes, want %d at most", len(data), o.MaxBytes)
	}
	if !utf8.Valid(data) {
		return errors.New("JSON that is not UTF-8")
	}
	if err := json.Unmarshal(data, new(anything)); err != nil {
		if syntax, ok := err.(*json.SyntaxError); ok {
			return fmt.Errorf("JSON at byte %d: %w", syntax.Offset, err)
		}
		return err
	}
	return surrogates(data)
}

// anything is a value that is not looked at.
type anything struct{}

func (*anything) UnmarshalJSON([]byte) error { return nil }

// surrogates refuses halves of surrogate pairs, which encoding/json replaces, so that
// different keys become equal. data is valid: backslashes are in strings.
func surrogates(data []byte) error {
	for i := 0; i < len(data); i++ {
		if data[i] != '\\' {
			continue
		}
		i++
		r := escape(data[i:])
		if !utf16.IsSurrogate(r) {
			continue
		}
		rest := data[i+5:]
		if rest[0] != '\\' || utf16.DecodeRune(r, escape(rest[1:])) == utf8.RuneError {
			return fmt.Errorf("JSON at byte %d: half of a surrogate pair", i)
		}
		i += 6 // to the u of the second half
	}
	return nil
}

// escape returns the rune of the escape u1234 at the front of b, 0 for other escapes.
func escape(b []byte) rune {
	if b[0] != 'u' {
		return 0
	}
	r, _ := strconv.ParseUint(string(b[1:5]), 16, 16)
	return rune(r)
}
