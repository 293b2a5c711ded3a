package dataset

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/snug-ml/snug"
)

const imageField, labelField = "image", "label"

// classFields are the fields of rows, by what they are.
var classFields = map[string][]string{
	imageField: {"image", "img", "file_name", "image_path", "path"},
	labelField: {"label", "labels", "class"},
}

// table reads the rows of a table.
func (r *classReader) table(path string) error {
	in, err := open(path)
	if err != nil {
		return err
	}
	defer in.file.Close()
	r.file = path
	rows := &reader{Set: newSet(Options{Memory: r.options.Memory, ImageFolder: r.options.ImageFolder}), other: &classRows{classReader: r}}
	rows.other.(*classRows).reader = rows
	if err := rows.contents(in); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// classRows takes the rows of a table.
type classRows struct {
	*classReader
	reader *reader
	label  string // the column whose values are numbers of a ClassLabel; empty: none
}

// fieldOf returns the name of a field, of those that a row has: the Map's, or the first that is usual.
func (r *classRows) fieldOf(what string, has func(name string) bool) string {
	if name := r.options.Map[what]; name != "" {
		return name
	}
	for _, name := range classFields[what] {
		if has(name) {
			return name
		}
	}
	return ""
}

// reads implements taker.
func (r *classRows) reads(column string) bool {
	for what, names := range classFields {
		if name := r.options.Map[what]; name == column || name == "" && slices.Contains(names, column) {
			return true
		}
	}
	return false
}

// begin implements taker: datasets of Hugging Face keeps the names of a ClassLabel under the key huggingface.
func (r *classRows) begin(note func(key string) (string, bool)) error {
	text, found := note("huggingface")
	if !found {
		return nil
	}
	var about struct {
		Info struct {
			Features map[string]json.RawMessage `json:"features"`
		} `json:"info"`
	}
	if err := json.Unmarshal([]byte(text), &about); err != nil {
		return fmt.Errorf("the note huggingface of the table: %w: %w", err, snug.ErrCorrupt)
	}
	var feature struct {
		Type  string   `json:"_type"`
		Names []string `json:"names"`
	}
	name := r.fieldOf(labelField, func(name string) bool { return about.Info.Features[name] != nil })
	if json.Unmarshal(about.Info.Features[name], &feature) != nil || feature.Type != "ClassLabel" || len(feature.Names) == 0 {
		return nil
	}
	for i, name := range feature.Names {
		if j := slices.Index(feature.Names, name); j < i {
			return fmt.Errorf("the classes %d and %d of the table are both %q: give one another name: %w", j, i, name, snug.ErrCorrupt)
		}
	}
	if r.names != nil && !slices.Equal(r.names, feature.Names) {
		return fmt.Errorf("the table has the classes %s, and one before %s: %w", listed(feature.Names), listed(r.names), snug.ErrConfig)
	}
	r.label, r.names = name, feature.Names
	return nil
}

// take implements taker.
func (r *classRows) take(x row) error {
	has := func(name string) bool {
		_, found := x.fields.Get(name)
		return found
	}
	at := map[string]value{}
	for what := range classFields {
		name := r.fieldOf(what, has)
		v, found := x.fields.Get(name)
		if !found {
			return fmt.Errorf("the row has no %s, want one of %s, or -map %s=FIELD; its fields are %s: %w", what, strings.Join(classFields[what], ", "), what, listed(namesOf(x.fields)), snug.ErrConfig)
		}
		if empty(v) {
			return fmt.Errorf("%s is empty: %w", name, snug.ErrConfig)
		}
		at[what] = v
	}
	class, err := r.class(at[labelField])
	if err != nil {
		return fmt.Errorf("%w: %w", err, snug.ErrConfig)
	}
	from, err := r.reader.rows.imageOf(at[imageField], false)
	if err != nil {
		return fmt.Errorf("%w: %w", err, snug.ErrConfig)
	}
	return r.add(from, r.file+" "+x.at, class)
}

// class returns the name of a class from the value of a row.
func (r *classRows) class(x value) (string, error) {
	switch x := x.(type) {
	case string:
		return x, nil
	case bool:
		return strconv.FormatBool(x), nil
	case json.Number:
		n, err := strconv.Atoi(x.String())
		switch {
		case err != nil:
			return "", fmt.Errorf("the label is %s, want a text or a whole number", x)
		case r.label == "" && n >= 0:
			return x.String(), nil
		case n >= 0 && n < len(r.names):
			return r.names[n], nil
		case n == -1:
			return "", fmt.Errorf("the label is -1, an image without a class: leave such rows out")
		}
		return "", fmt.Errorf("the label is %d, want 0 to %d", n, len(r.names)-1)
	}
	return "", fmt.Errorf("the label is %s, want a text or a whole number", kindOf(x))
}
