package dataset

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/chat"
)

// File is what [Open] found in a file.
type File struct {
	Path     string    `json:"path"`
	Kind     string    `json:"kind,omitempty"`    // JSON, CSV, Parquet or text
	Skipped  string    `json:"skipped,omitempty"` // why a file of a folder was not read; the other fields are then empty
	Form     string    `json:"form"`              // how its rows were read, such as "messages"; "text" for a text file
	Mapping  []string  `json:"mapping,omitempty"` // what was read as what, such as "human → user"
	Rows     int       `json:"rows"`              // rows that the file has, 0 for a text file
	Samples  int       `json:"samples"`           // samples that they became
	Ignored  []string  `json:"ignored,omitempty"` // fields that change nothing
	Warnings []Warning `json:"warnings,omitempty"`
}

// Warning says what is not learned as it was meant, once for all rows of a file.
type Warning struct {
	Text  string `json:"text"`  // of the first row, without a full stop
	Rows  int    `json:"rows"`  // how many rows it is about
	First string `json:"first"` // where the first of them is, such as "line 3"
}

// String returns the warning as a line, such as "12 rows, first line 3: the answer is empty".
func (w Warning) String() string {
	if w.Rows == 1 {
		return w.First + ": " + w.Text
	}
	return fmt.Sprintf("%d rows, first %s: %s", w.Rows, w.First, w.Text)
}

// Lines returns what a person should know about how a file was read, as lines: its form with the mapping, ignored fields,
// and warnings.
func (f File) Lines() (lines []string) {
	if f.Skipped != "" {
		return []string{"not read: " + f.Skipped}
	}
	if f.Form != "" {
		text := "read as " + f.Form
		if len(f.Mapping) > 0 {
			text += ": " + strings.Join(f.Mapping, ", ")
		}
		lines = append(lines, text)
	}
	if len(f.Ignored) > 0 {
		lines = append(lines, "ignored fields: "+listed(f.Ignored))
	}
	for _, w := range f.Warnings {
		lines = append(lines, w.String())
	}
	return lines
}

// Limits of what is kept about a file.
const (
	maxIgnored  = 200
	maxMapping  = 30
	maxWarnings = 30
)

// rows is what is known about the rows of a file while they are read.
type rows struct {
	parser
	reader  *reader
	at      string        // of the row that is read
	images  []imageSource // of the row, by the numbers of their marks
	form    *form
	told    bool            // Options.Format says the form
	chats   *bool           // of texts: whether they are conversations
	repeats map[string]bool // fields that repeat what others say
	members map[string]bool // members of messages, once it is known whether the template writes them
	obeyed  map[string]int  // fields for the template: in how many rows it was seen that they change nothing, -1 if they do
	found   File
	kinds   []string // of found.Warnings
	lasts   []int    // the last row of each
	earlier int      // samples of the files before
	first   error    // why the first row that has nothing to learn was left out
}

// begin starts a file.
func (r *reader) begin(path string) {
	r.rows = &rows{parser: parser(r.rowLimit()), reader: r, repeats: map[string]bool{}, members: map[string]bool{}, obeyed: map[string]int{}, found: File{Path: path}, earlier: r.list.n}
}

// finish ends a file.
func (r *reader) finish() {
	f := r.rows
	if f.form == nil { // a text file
		f.found.Samples = r.list.n - f.earlier
	}
	for _, name := range slices.Sorted(maps.Keys(f.obeyed)) {
		if f.obeyed[name] > 0 {
			f.ignore(name)
		}
	}
	r.origin(f.found.Path)
	if f.form != nil {
		f.found.Form = f.form.title
	}
	r.stats.Files = append(r.stats.Files, f.found)
	if r.unlearned == nil && f.first != nil {
		r.unlearned = fmt.Errorf("%s: %w", f.found.Path, f.first)
	}
}

// maps notes that one name is read as another.
func (f *rows) maps(from, to string) {
	if text := from + " → " + to; from != to && len(f.found.Mapping) < maxMapping && !slices.Contains(f.found.Mapping, text) {
		f.found.Mapping = append(f.found.Mapping, text)
	}
}

// ignore notes a field that changes nothing.
func (f *rows) ignore(name string) {
	if len(f.found.Ignored) < maxIgnored && !slices.Contains(f.found.Ignored, name) {
		f.found.Ignored = append(f.found.Ignored, name)
	}
}

// warn counts a warning of a kind. The kind's first text is kept.
func (f *rows) warn(at, kind, format string, args ...any) {
	i := slices.Index(f.kinds, kind)
	if i < 0 {
		if len(f.kinds) >= maxWarnings {
			kind = "more"
			if i = slices.Index(f.kinds, kind); i < 0 {
				i, format, args = len(f.kinds), "more warnings of other kinds", nil
			}
		} else {
			i = len(f.kinds)
		}
	}
	if i < len(f.lasts) && f.lasts[i] == f.found.Rows && kind != "more" { // a row counts once
		return
	}
	if i == len(f.kinds) {
		f.kinds, f.lasts = append(f.kinds, kind), append(f.lasts, 0)
		f.found.Warnings = append(f.found.Warnings, Warning{Text: fmt.Sprintf(format, args...), First: at})
	}
	f.lasts[i] = f.found.Rows
	f.found.Warnings[i].Rows++
}

// leftOut begins the warnings about rows that are left out.
const leftOut = "left out: "

// toldLeft returns how many rows were said to be left out.
func (f *rows) toldLeft() (n int) {
	for _, w := range f.found.Warnings {
		if strings.HasPrefix(w.Text, leftOut) {
			n += w.Rows
		}
	}
	return n
}

// written returns an error if a text that a row is to teach is empty. The row is then left out.
func written(name, text string) error {
	if blank(text) {
		return unlearnable(name + " is empty")
	}
	return nil
}

// blank reports whether nothing of a text is seen.
func blank(text string) bool {
	return strings.IndexFunc(text, func(r rune) bool { return !unicode.IsSpace(r) && !unicode.Is(unicode.Cf, r) }) < 0
}

// drop leaves out a row from which nothing can be learned.
func (f *rows) drop(at string, why error) {
	if f.first == nil {
		f.first = fmt.Errorf("%s: %w", at, why)
	}
	f.reader.stats.Dropped++
	text := strings.TrimPrefix(strings.TrimSuffix(why.Error(), ": "+snug.ErrConfig.Error()), "chat: ")
	f.warn(at, leftOut+kindOfText(text), leftOut+"%s", text)
}

// quoted is a part of a warning that quotes the row, or a number.
var quoted = regexp.MustCompile(`"(\\.|[^"\\])*"|[0-9]+`)

// kindOfText returns a text without its numbers and what it quotes, so that texts that differ only in them are one kind.
func kindOfText(text string) string { return quoted.ReplaceAllString(text, "#") }

// texts makes numbers, true and false in fields of texts the texts that the file has for them, as tables of CSV have them.
func (f *rows) texts(v *view) {
	for _, name := range v.names {
		switch x := v.values[name].(type) {
		case json.Number, bool:
			if isTextField(name) {
				v.values[name] = jsonText(x)
				f.warn(v.at, "as text "+name, "%s is %s, and is read as the text %s", readable(name), kindOf(x), shortJSON(x))
			}
		}
	}
}

// take makes a sample of a row.
func (r *reader) take(x row) error {
	f := r.rows
	f.found.Rows++
	if r.other != nil {
		return r.other.take(x)
	}
	f.at, f.images = x.at, nil
	if f.seesImages() && marked(x.fields) {
		return fmt.Errorf("a text has one of the noncharacters U+FDE8 to U+FDEB, which stand for images and videos here: %w", snug.ErrConfig)
	}
	v, err := newView(f.parser, x, r.options.Map)
	if err != nil {
		return err
	}
	for _, name := range v.behind {
		f.ignore(name)
	}
	f.texts(v)
	chosen, err := f.choose(v)
	var left unlearnable
	var c content
	if err == nil {
		f.form = chosen
		if c, err = chosen.read(f, v); err == nil {
			err = f.attach(v, &c)
		}
	} else if !errors.As(err, &left) {
		f.form = nil
		return err
	}
	switch {
	case errors.As(err, &left):
		f.drop(x.at, fmt.Errorf("%w: %w", left, snug.ErrConfig))
		return nil
	case err == nil:
		f.endOfTexts(x.at, &c)
		f.markup(x.at, c)
		f.special(x.at, c)
		err = f.rest(v, c)
	}
	if err != nil {
		if !errors.Is(err, snug.ErrConfig) && !errors.Is(err, snug.ErrCorrupt) {
			err = fmt.Errorf("%w: %w", err, snug.ErrConfig)
		}
		return err
	}
	return f.add(x.at, c)
}

// add makes a sample of what a row says.
func (f *rows) add(at string, c content) error {
	r := f.reader
	samples, cut, dropped, told := r.list.n, r.stats.Truncated, r.stats.Dropped, f.toldLeft()
	err := r.sample(f, at, c)
	f.found.Samples += r.list.n - samples
	r.origin(f.found.Path + " " + at)
	switch left := r.stats.Dropped > dropped && r.list.n == samples; {
	case left && f.toldLeft() > told: // the row says why
	case left && r.stats.Truncated > cut:
		f.warn(at, "nothing left", leftOut+"none of its first %d tokens is learned (-context)", r.options.Context)
	case left:
		f.without(at)
	case r.stats.Truncated > cut:
		f.warn(at, "cut", "cut to %d tokens (-context)", r.options.Context)
	}
	return err
}

// without leaves out a row whose text has nothing that is learned. What the template has done to it is the reason, if it is
// the first row to which that was done.
func (f *rows) without(at string) {
	const why = "nothing of it is learned"
	f.warn(at, "no label", leftOut+why)
	if f.first != nil {
		return
	}
	reasons := []string{why}
	for _, w := range f.found.Warnings {
		if w.First == at && !strings.HasPrefix(w.Text, leftOut) {
			reasons = append(reasons, w.Text)
		}
	}
	f.first = fmt.Errorf("%s: %s: %w", at, strings.Join(reasons, "; "), snug.ErrConfig)
}

// sample encodes what a row says, and adds it to the set.
func (r *reader) sample(f *rows, at string, c content) error {
	answers := []string{c.answer}
	if r.options.Pairs {
		answers = append(answers, c.rejected)
	}
	tokens, seen := make([][]int32, len(answers)), map[string]bool{}
	pictures, err := r.pictures(c.images)
	if err != nil {
		return err
	}
	for i, answer := range answers {
		if c.chats == nil && len(pictures) > 0 {
			if tokens[i], err = r.labelPrompt(c, pictures); err != nil {
				return err
			}
			continue
		}
		if c.chats == nil {
			text := c.prompt + answer
			if tokens[i], err = r.labelText(text, span{Begin: len(c.prompt), End: len(text)}); err != nil {
				return err
			}
			if c.prompt != "" && firstLabel(tokens[i]) == 0 && !seen["joint"] {
				seen["joint"] = true
				f.warn(at, "joint", "the prompt and the beginning of the answer are one token, the first of the text, which is not learned: begin the answer with a blank, or use a longer prompt")
			}
			continue
		}
		var l chat.Labeled
		if tokens[i], l, err = r.labelChat(c.chats[i], pictures); err != nil {
			break
		}
		f.notes(at, c.chats[i], l, seen)
	}
	if err == nil && r.options.Pairs {
		err = labelPair(tokens[0], tokens[1])
	}
	var text *encodeError
	switch {
	case errors.As(err, &text): // as for other forms
		return text.error
	case c.chats != nil && errors.Is(err, snug.ErrConfig): // the template refuses the row, or cannot express it
		f.drop(at, err)
		return nil
	case err != nil:
		return err
	case r.options.Pairs && slices.Equal(r.cut(tokens[0]), r.cut(tokens[1])):
		if len(r.cut(tokens[0])) < max(len(tokens[0]), len(tokens[1])) {
			r.stats.Truncated++
			f.warn(at, "equal", leftOut+"chosen and rejected are equal in their first %d tokens (-context)", r.options.Context)
		} else {
			f.drop(at, fmt.Errorf("chosen and rejected have equal tokens: %w", snug.ErrConfig))
			return nil
		}
		r.stats.Dropped++
		return nil
	}
	if n := len(pictures); n > 0 && r.rowsIn(r.cut(tokens[0])) < rowsWanted(pictures) {
		r.stats.Truncated++
		f.drop(at, fmt.Errorf("its %d %s do not end within %d tokens (-context): %w", n, kindsOf(pictures), r.options.Context, snug.ErrConfig))
		return nil
	}
	return r.add(pictures, tokens...)
}

// notes takes up what a template has done to a conversation. seen has the kinds of notes of the row so far.
func (f *rows) notes(at string, c chat.Conversation, l chat.Labeled, seen map[string]bool) {
	once := func(kind, text string) {
		if !seen[kind] {
			seen[kind] = true
			f.warn(at, kind, "%s", text)
		}
	}
	for _, n := range l.Notes {
		once(fmt.Sprint(n.Kind, " ", kindOfText(n.Text)), n.Text)
	}
	for i, m := range c.Messages {
		if mark := opening(m.Content); mark != "" {
			before, _, found := strings.Cut(l.Text, strings.TrimSpace(m.Content))
			if found && strings.HasSuffix(strings.TrimRight(before, " \t\r\n"), mark) {
				once("twice", fmt.Sprintf("message %d (%s) begins with %q, which the chat template writes, too: it is there twice", i, m.Role, mark))
			}
		}
		if slices.ContainsFunc(m.Fields, func(x chat.Field) bool { return slices.Contains(reasoningNames, x.Name) }) && strings.Contains(m.Content, "<think>") {
			once("thoughts", fmt.Sprintf("message %d (%s) has reasoning beside its content, which has %q, too", i, m.Role, "<think>"))
		}
	}
	header := f.reader.knows().header
	for _, t := range l.Turns {
		if header != "" && strings.Contains(l.Text[t.Begin:t.End], header) && !strings.Contains(c.Messages[t.Message].Content, header) {
			once("header", fmt.Sprintf("what is learned of message %d has %q, which begins a turn", t.Message, header))
		}
	}
}
