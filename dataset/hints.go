package dataset

import (
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/snug-ml/snug"
)

// fitted returns the first form of a kind that fits the row, nil if there is none.
func (v *view) fitted(pairs bool) *form {
	for _, f := range forms {
		if f.pairs == pairs && f.fits(v) {
			return f
		}
	}
	return nil
}

// replaced returns the view with other names and values. An empty name stays as it is.
func (v *view) replaced(change func(name string, x value) (string, value)) *view {
	w := &view{parser: v.parser, at: v.at, values: map[string]value{}, taken: map[string]bool{}}
	for _, name := range v.names {
		to, x := change(name, v.values[name])
		w.names = append(w.names, to)
		w.values[to] = x
	}
	return w
}

// nulls returns the names of the fields whose null keeps the row from a form.
func (v *view) nulls(pairs bool) (names []string) {
	filled := func(but string) *view {
		return v.replaced(func(name string, x value) (string, value) {
			if x == nil && name != but {
				x = ""
			}
			return name, x
		})
	}
	if v.fitted(pairs) != nil || filled("").fitted(pairs) == nil {
		return nil
	}
	for _, name := range v.names {
		if v.values[name] == nil && name != "" && filled(name).fitted(pairs) == nil {
			names = append(names, name)
		}
	}
	return names
}

// isNull says that fields are null.
func isNull(names []string) string {
	verb := "is"
	if len(names) > 1 {
		verb = "are"
	}
	return fmt.Sprintf("%s %s null, want a text or messages", truncatedList(names), verb)
}

// renamed returns the words for -map that make the row one of a form, where names differ only in case, blanks and
// hyphens from the form's.
func (v *view) renamed(pairs bool) (list []string) {
	w := v.replaced(func(name string, x value) (string, value) {
		if to := usual(name); to != name && isFormField(to) && !slices.Contains(v.names, to) {
			list = append(list, to+"="+name)
			name = to
		}
		if x == nil { // only the name of the column is known
			x = ""
		}
		return name, x
	})
	if len(list) == 0 || w.fitted(pairs) == nil {
		return nil
	}
	return list
}

// mapping writes words for -map as a shell takes them.
func mapping(list []string) string {
	text := strings.Join(list, ",")
	if strings.ContainsAny(text, "'\"$&|;<>()*?!") || strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) || unicode.IsSpace(r) }) {
		text = "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
	}
	return "-map " + text
}

// isFormField reports whether a form reads a field of this name.
func isFormField(name string) bool {
	return isTextField(name) || slices.Contains(spoken, name) || name == "chat"
}

// isTextField reports whether a form reads a field of this name as a text of the user or of the model. Those of preferences
// may be scores.
func isTextField(name string) bool {
	return slices.Contains([]string{"text", "prompt", "completion", "input"}, name) || slices.Contains(exchanged, name)
}

// inner returns where rows lie within a field, as a path of jq, and whether they are messages.
func inner(name string, x value) (path string, messages bool) {
	switch x := x.(type) {
	case list:
		if len(x) == 0 {
			return "", false
		}
		o, ok := x[0].(object)
		if !ok {
			return "", false
		}
		_, err := roleOf(o)
		_, said := contentOf(o)
		return jqPath(name) + "[]", err == nil && said != nil
	case object:
		for _, m := range x {
			if path, messages := inner(m.Name, m.Value); path != "" && !messages {
				return jqPath(name) + path, false
			}
		}
	}
	return "", false
}

// jqPath writes a step of a path as jq does.
func jqPath(name string) string {
	if usual(name) == name && name != "" && !strings.ContainsAny(name, `."'$`) {
		return "." + name
	}
	return fmt.Sprintf(".[%q]", name)
}

// exchanges are the members of an object that is a question with its answer, in place of two messages.
var exchanges = [][2]string{{"input", "output"}, {"question", "answer"}, {"prompt", "response"}, {"instruction", "output"}, {"instruction", "response"}, {"user", "assistant"}, {"human", "assistant"}, {"human", "gpt"}}

// shape returns an error if a list has texts or pairs in place of messages, with the words that make messages of them.
func (f *rows) shape(name string, l list) error {
	if from := f.reader.options.Map[name]; from != "" { // as the file has it
		name = from
	}
	path := jqPath(name)
	if name == inputMessages {
		path = "." + name
	}
	turns := func(what, filter string) error {
		return fmt.Errorf("%s is a list of %s, want messages: jq -c '%s |= [%s]' FILE > rows.jsonl makes them turns of user and assistant", readable(name), what, path, filter)
	}
	if len(l) == 0 {
		return nil
	}
	switch x := l[0].(type) {
	case string:
		if y, err := f.parse(x); err == nil {
			if _, ok := y.(object); ok { // a column of texts
				return nil
			}
		}
		return turns("texts", `to_entries[] | {role: (if .key % 2 == 0 then "user" else "assistant" end), content: .value}`)
	case object:
		for _, pair := range exchanges {
			_, asked := textOf(x, pair[0])
			_, answered := textOf(x, pair[1])
			if _, err := roleOf(x); err != nil && asked && answered {
				return turns("questions with their answers", fmt.Sprintf(`.[] | {role: "user", content: .%s}, {role: "assistant", content: .%s}`, pair[0], pair[1]))
			}
		}
	}
	return nil
}

// hasParts reports whether a value is a conversation as Gemini has it.
func hasParts(x value) bool {
	l, _ := x.(list)
	if len(l) == 0 {
		return false
	}
	o, _ := l[0].(object)
	parts, found := o.Get("parts")
	_, isList := parts.(list)
	return found && isList
}

// isMessage reports whether the fields of a row are those of a message.
func (v *view) isMessage() bool {
	for i := range roleNames {
		role, isText := v.values[roleNames[i]].(string)
		if _, known := otherRoles[strings.ToLower(role)]; isText && known && v.has(contentNames[i]) {
			return true
		}
	}
	return false
}

// hint is the error of a row that has no form, if it is known what helps.
func (v *view) hint(pairs bool) error {
	fields := "the fields of the row are " + v.list()
	if nulls := v.nulls(pairs); len(nulls) > 0 {
		return fmt.Errorf("%s: %w", isNull(nulls), snug.ErrConfig)
	}
	if v.isMessage() {
		return fmt.Errorf("%s, which are those of one message, and a row is a whole conversation: write {\"messages\": [...]} around the messages of each; if each line is an array of them, jq -c '{messages: .}' FILE > rows.jsonl does so: %w", fields, snug.ErrConfig)
	}
	if list := v.renamed(pairs); len(list) > 0 {
		return fmt.Errorf("%s, whose names differ only in case or blanks from those of a form: %s: %w", fields, mapping(list), snug.ErrConfig)
	}
	for _, name := range v.names {
		if path := jqPath(name); hasParts(v.values[name]) {
			return fmt.Errorf("%s, and %s has messages of parts: jq -c '.messages = [%s[] | {role: (if .role == \"model\" then \"assistant\" else .role end), content: ([.parts[].text] | join(\"\"))}] | del(%[3]s)' FILE > rows.jsonl makes rows of them: %w", fields, shortened(name), path, snug.ErrConfig)
		}
		switch path, messages := inner(name, v.values[name]); {
		case messages && !pairs:
			return fmt.Errorf("%s, and %s has messages: %s: %w", fields, shortened(name), mapping([]string{"messages=" + name}), snug.ErrConfig)
		case path != "" && !messages:
			return fmt.Errorf("%s, and rows lie within %s, want one row an object: jq -c '%s' FILE > rows.jsonl takes them out: %w", fields, shortened(name), path, snug.ErrConfig)
		}
	}
	return nil
}
