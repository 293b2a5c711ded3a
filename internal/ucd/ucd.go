// Package ucd holds what Hugging Face's tokenizers know of Unicode, which is neither one
// version of Unicode nor the version of Go's package unicode. Token ids depend on it.
//
//	letters, ok := ucd.Class("L")        // a class of its pattern engine
//	digits, ok := ucd.Class("peer:numeric")
//	text = ucd.NFC.String(text)
//
// make.py wrote tables.lzma by questions to the library itself. The tables are unpacked at
// first use.
package ucd

import (
	"bytes"
	_ "embed"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"

	"github.com/ulikunitz/xz/lzma"
)

//go:embed tables.lzma
var packed []byte

// tables are the lines of tables.lzma by their names.
var tables = sync.OnceValue(func() map[string]string {
	z, err := lzma.NewReader(bytes.NewReader(packed))
	if err != nil {
		panic(err) // the file is part of the program
	}
	text, err := io.ReadAll(z)
	if err != nil {
		panic(err)
	}
	lines := map[string]string{}
	for line := range strings.Lines(string(text)) {
		name, data, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		lines[name] = data
	}
	return lines
})

// sets are the classes that were asked for, by name.
var sets sync.Map

// Class returns a class of code points. Names are those of properties in patterns, such as
// L, Lu or Han, the escapes \s, \w and \d, and
//
//	peer:numeric  what Digits takes for digits
//	peer:space    white space of WhitespaceSplit and Strip
//	peer:punct    what Punctuation splits off
//	peer:word     characters of words for Whitespace and for single words
func Class(name string) (*Set, bool) {
	if s, ok := sets.Load(name); ok {
		return s.(*Set), true
	}
	data, ok := tables()[name]
	if !ok || strings.Contains(data, "=") {
		return nil, false
	}
	var edges []rune
	at := 0
	for field := range strings.FieldsSeq(data) {
		n, err := strconv.Atoi(field)
		if err != nil {
			panic(err)
		}
		at += n
		edges = append(edges, rune(at))
	}
	s, _ := sets.LoadOrStore(name, build(edges))
	return s.(*Set), true
}

// MustClass is Class for names that are known to exist.
func MustClass(name string) *Set {
	s, ok := Class(name)
	if !ok {
		panic(fmt.Sprintf("ucd: no class %q", name))
	}
	return s
}

// mapping returns the table with a name, from code points to code points.
func mapping(name string) map[rune][]rune {
	m := map[rune][]rune{}
	for field := range strings.FieldsSeq(tables()[name]) {
		key, values, _ := strings.Cut(field, "=")
		k := hex(key)
		for v := range strings.SplitSeq(values, ",") {
			m[k] = append(m[k], hex(v))
		}
	}
	return m
}

func hex(s string) rune {
	n, err := strconv.ParseUint(s, 16, 32)
	if err != nil {
		panic(err)
	}
	return rune(n)
}

var lower = sync.OnceValue(func() map[rune][]rune { return mapping("lower") })

// Lower returns s in lower case, each code point by itself.
func Lower(s string) string {
	var b strings.Builder
	b.Grow(len(s))
	for _, r := range s {
		if r < 0x80 {
			if 'A' <= r && r <= 'Z' {
				r += 'a' - 'A'
			}
			b.WriteByte(byte(r))
			continue
		}
		to, ok := lower()[r]
		if !ok {
			to = []rune{r}
		}
		for _, r := range to {
			b.WriteRune(r)
		}
	}
	return b.String()
}
