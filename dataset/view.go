package dataset

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"

	"github.com/snug-ml/snug"
)

// view is a row as a form sees it: with the names that Options.Map gives, and a note of the fields that the form takes.
type view struct {
	parser
	at     string
	names  []string
	values map[string]value
	taken  map[string]bool
	behind []string // fields of the row in whose place the map reads others
}

// newView returns the view of a row. An error is a field of the map that the row does not have.
func newView(p parser, x row, names map[string]string) (*view, error) {
	v := &view{parser: p, at: x.at, values: map[string]value{}, taken: map[string]bool{}}
	from := map[string]bool{}
	for _, name := range names {
		from[name] = true
	}
	for _, m := range x.fields {
		other, replaced := names[m.Name]
		switch {
		case !replaced && !from[m.Name]:
			v.names = append(v.names, m.Name)
			v.values[m.Name] = m.Value
		case other != "" && other != m.Name && !from[m.Name] && !empty(m.Value):
			v.behind = append(v.behind, m.Name)
		}
	}
	for _, to := range slices.Sorted(maps.Keys(names)) {
		name := names[to]
		if name == "" {
			continue
		}
		field, found := x.fields.Get(name)
		if !found {
			return nil, fmt.Errorf("-map %s=%s: the row has no field %s, its fields are %s: %w", to, name, name, listed(namesOf(x.fields)), snug.ErrConfig)
		}
		v.names = append(v.names, to)
		v.values[to] = field
	}
	return v, nil
}

// listed writes names, the first of many.
func listed(names []string) string {
	const most = 20
	if len(names) == 0 {
		return "none"
	}
	var b strings.Builder
	for i, n := range names {
		if i == most {
			fmt.Fprintf(&b, " and %d more", len(names)-most)
			break
		}
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(readable(n))
	}
	return b.String()
}

// readable writes a name for an error: in quotes unless it is a word.
func readable(name string) string {
	switch {
	case name == "":
		return `"" (a column without a name, such as the index that pandas writes)`
	case strings.ContainsFunc(name, func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("_-.", r)
	}):
		return fmt.Sprintf("%.40q", name)
	}
	return shortened(name)
}

// list writes the names of the fields.
func (v *view) list() string { return listed(v.names) }

// has reports whether the row has all of these fields, and none of them is null.
func (v *view) has(names ...string) bool {
	for _, n := range names {
		if v.values[n] == nil {
			return false
		}
	}
	return true
}

// first returns the first of some fields that the row has, which is empty if it has none.
func (v *view) first(names ...string) string {
	for _, n := range names {
		if v.has(n) {
			return n
		}
	}
	return ""
}

// converses reports whether the row has a field that conversations obey, even if it is null.
func (v *view) converses() bool {
	return slices.ContainsFunc(conversationFields, func(name string) bool { _, there := v.values[name]; return there })
}

// take returns the value of a field, which is nil where there is none, and notes that it is used.
func (v *view) take(name string) value {
	v.taken[name] = true
	return v.values[name]
}

// text takes a field that is a string; null is an empty string.
func (v *view) text(name string) (string, error) {
	switch x := v.take(name).(type) {
	case nil:
		return "", nil
	case string:
		return x, nil
	default:
		return "", fmt.Errorf("%s is %s, want a string: %w", shortened(name), kindOf(x), snug.ErrConfig)
	}
}

// items takes a field that is a list, or a string with a list of JSON, as tables without lists have it.
func (v *view) items(name string) (list, error) { return v.listOf(shortened(name), v.take(name)) }

// transposed turns an object of lists into a list of objects, as some tables store a list of structs.
func transposed(o object) (l list, ok bool) {
	for i, m := range o {
		column, ok := m.Value.(list)
		if !ok || i > 0 && len(column) != len(l) {
			return nil, false
		}
		if i == 0 {
			l = make(list, len(column))
		}
		for j, x := range column {
			inner, _ := l[j].(object)
			l[j] = append(inner, member{Name: m.Name, Value: x})
		}
	}
	return l, len(l) > 0
}

// listOf returns a list, that of a text of JSON, or that of an object of lists.
func (p parser) listOf(name string, x value) (list, error) {
	if text, ok := x.(string); ok && strings.TrimSpace(text) == "" {
		return nil, nil
	} else if ok {
		parsed, err := p.parse(text)
		if err != nil {
			return nil, fmt.Errorf("%s is a string, want a list, or its JSON: %w: %w", name, err, snug.ErrConfig)
		}
		x = parsed
	}
	switch x := x.(type) {
	case nil:
		return nil, nil
	case list:
		return x, nil
	case object:
		if l, ok := transposed(x); ok {
			return l, nil
		}
	}
	return nil, fmt.Errorf("%s is %s, want a list: %w", name, kindOf(x), snug.ErrConfig)
}

// parser reads texts of JSON in the fields of a row. It is how many bytes a value may take.
type parser int64

// parse reads a text that is one value of JSON.
func (p parser) parse(text string) (value, error) {
	d := newDecoder(strings.NewReader(text), int64(p))
	x, err := d.next()
	if err == nil {
		err = d.space()
	}
	if err == nil && d.peek() >= 0 {
		err = fmt.Errorf("more than one value: %w", snug.ErrCorrupt)
	}
	if err != nil { // a text that is no JSON is no damage
		return nil, errors.New(strings.TrimSuffix(err.Error(), ": "+snug.ErrCorrupt.Error()))
	}
	return x, nil
}

// textOf returns a member that is a string.
func textOf(o object, name string) (string, bool) {
	x, _ := o.Get(name)
	text, ok := x.(string)
	return text, ok
}

// empty reports whether a value is null or has nothing in it. A string is also empty if it is the JSON of nothing, as
// columns of text have it.
func empty(x value) bool {
	switch x := x.(type) {
	case nil:
		return true
	case string:
		switch strings.TrimSpace(x) {
		case "", "null", "[]", "{}":
			return true
		}
	case list:
		return len(x) == 0
	case object:
		for _, m := range x {
			if m.Value != nil { // a column of structs has an object of nulls for none
				return false
			}
		}
		return true
	}
	return false
}

// truth returns whether a value says yes or no: a boolean, 0 or 1, or the word that a column of text has for it.
func truth(x value) (yes, known bool) {
	switch x := x.(type) {
	case bool:
		return x, true
	case json.Number:
		n, err := x.Float64()
		return n != 0, err == nil && (n == 0 || n == 1)
	case string:
		switch strings.ToLower(strings.TrimSpace(x)) {
		case "true", "1", "1.0":
			return true, true
		case "false", "0", "0.0":
			return false, true
		}
	}
	return false, false
}
