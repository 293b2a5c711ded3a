package chat

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// To find in a text what each message wrote, the conversation is rendered again with marks in its strings. A mark is a
// number in noncharacters of Unicode, which no text has. Where the text without the marks is the text of the conversation,
// the places of the marks are the places of the strings.
const (
	markBegin = '\ufdd2'
	markEnd   = '\ufdd3'
	markZero  = '\ufdd4' // the digits of base 16 are this one to U+FDE3
	markTop   = '\ufde3'
)

// part is a string of a message.
type part struct {
	message int
	name    string // content, or the field that has the string
	text    string // without white space around it
	before  string // the white space in front of it
	after   string // the white space behind it
	mid     int    // the byte of text where the middle mark is
}

// isName reports whether the part is the name of a function that is called.
func (p part) isName() bool {
	return strings.HasSuffix(p.name, ".name") && !strings.Contains(p.name, ".arguments.")
}

// marking says where marks are put.
type marking int

const (
	atEnds    marking = iota // before and behind each string
	noNames                  // so, but not at names of functions, which templates compare
	inMiddles                // one in the middle of each string, which templates test at its ends
)

// marker puts marks into messages.
type marker struct {
	how   marking
	parts []part
	skip  func(message int) bool // nil for none
	at    int                    // the message
}

// isSpace reports whether Python's strip removes a character.
func isSpace(r rune) bool { return unicode.IsSpace(r) || r >= 0x1c && r <= 0x1f }

// mark returns a string with marks. A string without text has none.
func (m *marker) mark(name, s string) string {
	text := strings.TrimFunc(s, isSpace)
	if text == "" {
		return s
	}
	from := strings.Index(s, text)
	p := part{message: m.at, name: name, text: text, before: s[:from], after: s[from+len(text):], mid: middle(text)}
	m.parts = append(m.parts, p)
	if m.skip != nil && m.skip(m.at) {
		return s
	}
	n := 2 * (len(m.parts) - 1)
	if m.how == inMiddles {
		return s[:from+p.mid] + mark(n) + s[from+p.mid:]
	}
	return s[:from] + mark(n) + text + mark(n+1) + p.after
}

// mark returns the mark of a number.
func mark(n int) string {
	var b strings.Builder
	b.WriteRune(markBegin)
	for _, digit := range strconv.FormatInt(int64(n), 16) {
		b.WriteRune(markZero + rune(strings.IndexRune("0123456789abcdef", digit)))
	}
	b.WriteRune(markEnd)
	return b.String()
}

// middle returns the byte of the middle of what follows the reasoning in a text: between two letters, where no tag is.
func middle(text string) int {
	from := strings.LastIndex(text, "</think>")
	if from >= 0 && from+len("</think>") < len(text) {
		from += len("</think>")
	} else {
		from = 0
	}
	mid := from + (len(text)-from)/2
	for at := mid; at < len(text); at++ {
		before, _ := utf8.DecodeLastRuneInString(text[:at])
		after, _ := utf8.DecodeRuneInString(text[at:])
		if utf8.RuneStart(text[at]) && unicode.IsLetter(before) && unicode.IsLetter(after) && strings.LastIndexByte(text[:at], '<') <= strings.LastIndexByte(text[:at], '>') {
			return at
		}
	}
	for !utf8.RuneStart(text[mid]) {
		mid--
	}
	return mid
}

// calls are the fields with calls of functions.
var calls = []string{"tool_calls", "function_call"}

// callsFunctions reports whether the message has a field with calls.
func (m Message) callsFunctions() bool {
	return slices.ContainsFunc(m.Fields, func(f Field) bool { return slices.Contains(calls, f.Name) })
}

// messages returns the messages with marks.
func (m *marker) messages(list []Message) []Message {
	out := slices.Clone(list)
	for i := range out {
		m.at = i
		out[i].Content = m.mark("content", out[i].Content)
		out[i].Fields = slices.Clone(out[i].Fields)
		reasoning, _ := out[i].reasoning()
		for j, f := range out[i].Fields {
			text, isText := f.Value.(string)
			switch {
			case f.Name == reasoning && isText:
				out[i].Fields[j].Value = m.mark(f.Name, text)
			case slices.Contains(calls, f.Name):
				out[i].Fields[j].Value = m.call(f.Name, f.Value)
			case f.Name == "content":
				out[i].Fields[j].Value = m.pieces(f.Value)
			}
		}
	}
	return out
}

// pieces marks the texts of content in parts.
func (m *marker) pieces(v any) any {
	list, ok := v.([]any)
	if !ok {
		return v
	}
	out := slices.Clone(list)
	for i, item := range out {
		o, ok := item.(Object)
		if !ok {
			continue
		}
		o = slices.Clone(o)
		for j, f := range o {
			if text, ok := f.Value.(string); ok && f.Name == "text" {
				o[j].Value = m.mark("content", text)
			}
		}
		out[i] = o
	}
	return out
}

// call marks the names and arguments of calls.
func (m *marker) call(name string, v any) any {
	switch v := v.(type) {
	case []any:
		out := slices.Clone(v)
		for i := range out {
			out[i] = m.call(fmt.Sprintf("%s[%d]", name, i), out[i])
		}
		return out
	case Object:
		out := slices.Clone(v)
		for i, f := range out {
			text, isText := f.Value.(string)
			switch {
			case f.Name == "function":
				out[i].Value = m.call(name+".function", f.Value)
			case f.Name == "arguments":
				out[i].Value = m.strings(name+".arguments", f.Value)
			case f.Name == "name" && isText && m.how != noNames:
				out[i].Value = m.mark(name+".name", text)
			}
		}
		return out
	}
	return v
}

// strings marks all strings in a value that are no names of fields.
func (m *marker) strings(name string, v any) any {
	switch v := v.(type) {
	case string:
		return m.mark(name, v)
	case []any:
		out := slices.Clone(v)
		for i := range out {
			out[i] = m.strings(name, out[i])
		}
		return out
	case Object:
		out := slices.Clone(v)
		for i, f := range out {
			out[i].Value = m.strings(name+"."+f.Name, f.Value)
		}
		return out
	}
	return v
}

// hit is a mark in a text.
type hit struct {
	number, at int // at is the byte of the text without marks
}

// unmarked returns the text of a conversation with marks, without them, and the marks in their order.
func (t *Template) unmarked(c Conversation, prompt bool) (plain string, hits []hit, err error) {
	text, err := t.plain(c, prompt)
	if err == nil {
		plain, hits = unmark(text)
	}
	return plain, hits, err
}

// unmark returns a text without marks, and the marks in their order. JSON and Python may have escaped them.
func unmark(text string) (plain string, hits []hit) {
	var b strings.Builder
	b.Grow(len(text))
	signs := []string{string(markBegin), `\ufdd2`}
	for {
		at := -1
		for i := 0; i < len(signs); i++ {
			switch j := strings.Index(text, signs[i]); {
			case j < 0: // there is none in the rest, which is not searched again
				signs = append(signs[:i:i], signs[i+1:]...)
				i--
			case at < 0 || j < at:
				at = j
			}
		}
		if at < 0 {
			b.WriteString(text)
			return b.String(), hits
		}
		b.WriteString(text[:at])
		number, size := readMark(text[at:])
		if size > 0 {
			hits = append(hits, hit{number, b.Len()})
		} else {
			size = 1
			b.WriteByte(text[at])
		}
		text = text[at+size:]
	}
}

// readMark reads the mark at the front of a text. Its size is 0 if there is none.
func readMark(text string) (number, size int) {
	for i := 0; ; i++ {
		r, n := utf8.DecodeRuneInString(text[size:])
		if r == '\\' && len(text) >= size+6 && text[size+1] == 'u' {
			code, err := strconv.ParseUint(text[size+2:size+6], 16, 32)
			if err != nil {
				return 0, 0
			}
			r, n = rune(code), 6
		}
		size += n
		switch {
		case i == 0 && r == markBegin:
		case i > 1 && r == markEnd:
			return number, size
		case i > 0 && i < 9 && r >= markZero && r <= markTop:
			number = 16*number + int(r-markZero)
		default:
			return 0, 0
		}
	}
}

// place is where a text has a part, or what it has of it.
type place struct {
	part       int
	begin, end int
	lost       string // what of the part the text does not have here
}

// places returns where the text has the parts.
func places(text string, hits []hit, parts []part, how marking) (list []place) {
	open := map[int]int{} // by part: the place that its end is looked for
	for _, h := range hits {
		n := h.number / 2
		if n >= len(parts) {
			continue
		}
		p := parts[n]
		switch {
		case how == inMiddles:
			begin, end := h.at-commonSuffix(text[:h.at], p.text[:p.mid]), h.at+commonPrefix(text[h.at:], p.text[p.mid:])
			list = append(list, place{n, begin, end, p.text[:p.mid-(h.at-begin)] + p.text[p.mid+end-h.at:]})
		case h.number%2 == 0:
			size := commonPrefix(text[h.at:], p.text)
			open[n] = len(list)
			list = append(list, place{n, h.at, h.at + size, p.text[size:]})
		default:
			if i, found := open[n]; found {
				list[i].end, list[i].lost = h.at, ""
				delete(open, n)
				continue
			}
			size := commonSuffix(text[:h.at], p.text)
			if lost := p.text[:len(p.text)-size]; strings.LastIndexByte(lost, '<') > strings.LastIndexByte(lost, '>') { // a tag is lost as a whole
				size -= strings.IndexByte(p.text[len(lost):], '>') + 1
			}
			list = append(list, place{n, h.at - size, h.at, p.text[:len(p.text)-size]})
		}
	}
	for i := range list { // the white space behind a part belongs to it where the text has it
		if after := parts[list[i].part].after; strings.HasPrefix(text[list[i].end:], after) {
			list[i].end += len(after)
		}
	}
	slices.SortStableFunc(list, func(a, b place) int { return a.begin - b.begin })
	return list
}

// commonPrefix returns how many bytes at the front of two texts are equal, in whole characters.
func commonPrefix(a, b string) (n int) {
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	for n > 0 && n < len(b) && !utf8.RuneStart(b[n]) {
		n--
	}
	return n
}

// commonSuffix returns how many bytes at the end of two texts are equal, in whole characters.
func commonSuffix(a, b string) (n int) {
	for n < min(len(a), len(b)) && a[len(a)-1-n] == b[len(b)-1-n] {
		n++
	}
	for n > 0 && !utf8.RuneStart(b[len(b)-n]) {
		n--
	}
	return n
}
