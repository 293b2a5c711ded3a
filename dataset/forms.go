package dataset

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/chat"
)

// form is one way in which people write a sample. Each form is one value in a file of its own; help, documentation,
// errors and the choice of a row's form ask the table.
type form struct {
	name    string // as Options.Format has it
	title   string // as it is printed
	fields  string // the fields of a row
	learned string // what the labels are
	pairs   bool   // a row has a chosen and a rejected answer
	classes bool   // a number as label is a class, as of texts to classify
	// asks says that fields with another question, and those with answers to choose from, must be in what the row says.
	asks bool
	// beside are further fields that must repeat what the row says, and so must those of spoken.
	beside []string
	// fits reports whether a row has the fields of the form.
	fits func(v *view) bool
	// read returns what a row says. It takes the fields that it uses.
	read func(f *rows, v *view) (content, error)
}

// forms is the table of all forms. The first that fits a row is the form of its file.
var forms = []*form{&messagesForm, &shareGPT, &glaive, &completionForm, &instructionForm, &textForm, &transcripts, &preferenceForm}

// Form describes one way in which people write a sample.
type Form struct {
	Name    string // as Options.Format has it, such as "messages"
	Title   string // as it is printed
	Fields  string // the fields of a row, in words
	Learned string // what the labels are, in words
	Pairs   bool   // it is for Options.Pairs
}

// Forms returns the forms of rows that [Open] knows, in the order in which it tries them. It allocates the list.
func Forms() (list []Form) {
	for _, f := range forms {
		list = append(list, Form{f.name, f.title, f.fields, f.learned, f.pairs})
	}
	return list
}

// formNamed returns a form of a kind, or nil.
func formNamed(name string, pairs bool) *form {
	for _, f := range forms {
		if f.name == name && f.pairs == pairs {
			return f
		}
	}
	return nil
}

// formNames returns the names of the forms of a kind.
func formNames(pairs bool) (names []string) {
	for _, f := range forms {
		if f.pairs == pairs {
			names = append(names, f.name)
		}
	}
	return names
}

// checkFormat returns an error unless the options name a form that they can have, or none.
func (o *Options) checkFormat() error {
	if o.Format == "" || o.Format == "auto" || formNamed(o.Format, o.Pairs) != nil {
		return nil
	}
	what := "rows without preferences"
	if o.Pairs {
		what = "preferences"
	}
	return fmt.Errorf("the format %.40q, want auto, or of %s: %s: %w", o.Format, what, strings.Join(formNames(o.Pairs), ", "), snug.ErrConfig)
}

// checkMap returns an error if the options read one field under two names.
func (o *Options) checkMap() error {
	names := map[string]string{}
	for _, to := range slices.Sorted(maps.Keys(o.Map)) {
		from := o.Map[to]
		if other, twice := names[from]; twice && from != "" {
			return fmt.Errorf("-map %s=%s and %s=%s read one field under two names: %w", other, from, to, from, snug.ErrConfig)
		}
		names[from] = to
	}
	return nil
}

// content is what a row says to the model: texts, or conversations for the chat template.
type content struct {
	prompt, answer, rejected string // texts; rejected is of a pair
	asked                    string // what the prompt is made of, where words were put around it
	// chats has one conversation, or of a pair that with the chosen answer and that with the rejected one. Nil: texts.
	chats []chat.Conversation
	// images are those of the conversation, in the order in which its contents have their marks.
	images []imageSource
}

// choose returns the form of a row: that of the file, or the first that fits.
func (f *rows) choose(v *view) (*form, error) {
	o := &f.reader.options
	if f.form == nil && o.Format != "" && o.Format != "auto" {
		f.form, f.told = formNamed(o.Format, o.Pairs), true
	}
	if f.form != nil && f.form.fits(v) {
		return f.form, nil
	}
	var found *form
	for _, other := range forms {
		if other.fits(v) && (found == nil || found.pairs != o.Pairs && other.pairs == o.Pairs) {
			found = other
		}
	}
	has := "the fields " + v.list() + ", which are of no form"
	if nulls := v.nulls(o.Pairs); len(nulls) > 0 && found == nil {
		return nil, unlearnable(isNull(nulls))
	}
	if found != nil {
		has = found.title
	}
	switch {
	case f.told:
		return nil, fmt.Errorf("the fields of the row are %s, and the format %s wants %s: %w", v.list(), f.form.name, f.form.fields, snug.ErrConfig)
	case f.form != nil:
		if found == nil {
			if err := v.hint(o.Pairs); err != nil {
				return nil, fmt.Errorf("the first row has %s: %w", f.form.title, err)
			}
		}
		return nil, fmt.Errorf("the row has %s, and the first has %s: divide the file, one form each, and give both files: %w", has, f.form.title, snug.ErrConfig)
	case found != nil && found.pairs == o.Pairs:
		return found, nil
	case o.Pairs:
		if err := v.hint(true); err != nil {
			return nil, err
		}
		return nil, fmt.Errorf("the row has no chosen and rejected answers; its fields are %s: %w", v.list(), snug.ErrConfig)
	case found != nil:
		return nil, fmt.Errorf("the row has chosen and rejected answers, which are for preferences: tune -dpo: %w", snug.ErrConfig)
	}
	if err := v.hint(o.Pairs); err != nil {
		return nil, err
	}
	return nil, v.unknown(o.Template != nil)
}

// unknown is the error of a row that has no form. It names the fields of a question, which a chat template writes as turns.
func (v *view) unknown(template bool) error {
	if v.has("input_ids") {
		return fmt.Errorf("the row has tokens (input_ids), want text: give the text from which they were made: %w", snug.ErrConfig)
	}
	var known []string
	for _, f := range forms {
		if !f.pairs {
			known = append(known, f.fields)
		}
	}
	fields := "prompt=FIELD,completion=FIELD"
	if template {
		fields = "question=FIELD,answer=FIELD"
	}
	return fmt.Errorf("the fields of the row are %s, want those of a form: %s; name them with -map, such as -map %s: %w",
		v.list(), strings.Join(known, "; "), fields, snug.ErrConfig)
}

// spoken are the fields that hold what a row says in some form. Beside another form they must repeat what it says.
var spoken = append([]string{"text", "prompt", "completion", "messages", "conversations", "conversation"}, preferred...)

// preferred are the fields with the two answers of preferences.
var preferred = func() (names []string) {
	for _, pair := range answerNames {
		names = append(names, pair[:]...)
	}
	return names
}()

// choiceName matches the names of fields with answers to choose from.
var choiceName = regexp.MustCompile(`^(choices|options|[A-Fa-f]|op[a-f]|(option|choice|opt)_?[A-Fa-f1-6])$`)

// isChoice reports whether a field of this name may have answers to choose from.
func isChoice(name string) bool { return choiceName.MatchString(name) }

// hasChoices reports whether a field has answers to choose from: a list, or a text beside others such as A and B.
func (v *view) hasChoices(name string) bool {
	switch v.values[name].(type) {
	case list, object:
		return name == "choices" || name == "options"
	case string:
		n := 0
		for _, other := range v.names {
			if isChoice(other) {
				n++
			}
		}
		return n > 1 || name == "choices" || name == "options"
	}
	return false
}

// isQuestion reports whether a field of this name holds what is asked in some form.
func isQuestion(name string) bool {
	return slices.ContainsFunc(questions, func(q question) bool { return q.ask == name && name != "input" })
}

// besideText are the fields of rows that are more than their text: a question or an answer, the target of a task, or a
// message of a tree.
var besideText = append([]string{"target", "summary", "highlights", "translation", "role", "parent_id"}, exchanged...)

// exchanged are the fields of rows that hold what is asked or answered in some form.
var exchanged = func() (names []string) {
	for _, q := range questions {
		names = append(append(names, q.ask), q.answers...)
	}
	return names
}()

// reads reports whether a form or a rule may read a field of this name. Readers of tables leave out other columns.
func (o *Options) reads(name string) bool {
	for to, from := range o.Map {
		if from == name && to != "" {
			return true
		}
	}
	if to, mapped := o.Map[name]; mapped && to != name {
		return false
	}
	return isKnown(name) || isKnown(usual(name)) || decides(name) || isChoice(name)
}

// isKnown reports whether a form or a rule reads a field of this name.
func isKnown(name string) bool {
	_, ruled := rowRules[name]
	return ruled || slices.Contains(spoken, name) || slices.Contains(conversationFields, name) || slices.Contains(reasoningNames, name) ||
		name == "chat" || slices.Contains(besideText, name)
}

// rest decides about the fields that the form has not taken: each is known, harmless, or refused.
func (f *rows) rest(v *view, c content) error {
	for _, name := range v.names {
		x := v.values[name]
		if v.taken[name] || empty(x) {
			continue
		}
		if rule, known := rowRules[name]; known {
			obeyed, err := rule.check(f, name, x)
			if err != nil {
				return fmt.Errorf("%w: %w", err, snug.ErrConfig)
			}
			if obeyed {
				continue
			}
		} else if err := f.named(v, name, c); err != nil {
			return fmt.Errorf("%w: %w", err, snug.ErrConfig)
		}
		// The rejected answer of a row whose messages are read, as ultrafeedback_binarized has it.
		rejected := slices.Index(preferred, name)%2 == 1 && v.taken["messages"]
		text, isText := x.(string) // a number beside a text is a class
		repeats := c.says(x) || f.form == &textForm && isText && strings.Contains(words(c.answer), words(text))
		asks := f.form.asks && (isText && isQuestion(name) || isChoice(name) && v.hasChoices(name))
		repeats = repeats || asks && c.contains(x)
		says := slices.Contains(spoken, name) || isText && slices.Contains(f.form.beside, name) || asks
		if !f.told && says && !f.repeats[name] {
			if !repeats && !rejected {
				return fmt.Errorf("%w: %w", f.beside(v, name), snug.ErrConfig)
			}
			f.repeats[name] = true
		} else if f.repeats[name] && !repeats && !rejected {
			f.warn(v.at, "differs "+name, "the field %s, which is ignored, says something else than the %s", name, f.form.title)
		}
		f.ignore(name)
	}
	return nil
}

// named returns an error if a field would change what is said or learned under the name that its own is like, or if its name
// is one of those that say what is learned.
func (f *rows) named(v *view, name string, c content) error {
	x, small := v.values[name], usual(name)
	if small == name {
		if _, is := x.(bool); is && decides(name) {
			return fmt.Errorf("%s is %s, and may say whether the row is learned: write train, which is true for what is learned, or remove such rows; -map %s= leaves it out", name, shortJSON(x), name)
		}
		return nil
	}
	if _, there := v.values[small]; !f.decides(small, x) && (there || c.says(x) || !f.takes(v, name, small) && (f.told || !slices.Contains(spoken, small) && !slices.Contains(f.form.beside, small))) {
		return nil // where both are there, the one with the exact name is read
	}
	return fmt.Errorf("the row has %s, which differs only in case, blanks or letters that look alike from %s, a field that is known: %s reads it so, %s leaves it out",
		readable(name), small, mapping([]string{small + "=" + name}), mapping([]string{name + "="}))
}

// takes reports whether the form of a row would read a field under another name.
func (f *rows) takes(v *view, name, small string) bool {
	if !isKnown(small) {
		return false
	}
	w := v.replaced(func(n string, x value) (string, value) {
		if n == name {
			return small, x
		}
		return n, x
	})
	scratch := *f // whose notes are dropped
	scratch.found.Mapping, scratch.found.Ignored, scratch.found.Warnings = nil, nil, nil
	scratch.kinds, scratch.lasts = nil, nil
	_, _ = f.form.read(&scratch, w)
	return w.taken[small]
}

// decides reports whether a value would be refused as a field of this name.
func (f *rows) decides(name string, x value) bool {
	rule, known := rowRules[name]
	if !known {
		return false
	}
	_, err := rule.check(f, name, x)
	return err != nil
}

// beside is the error of a field that says something else than the form's fields.
func (f *rows) beside(v *view, name string) error {
	chosen, rejected, pair := answersOf(v)
	switch o := f.reader.options; {
	case !o.Pairs && pair && slices.Contains(preferred, name):
		return fmt.Errorf("the row has chosen and rejected answers, which are for preferences: tune -dpo; -map %s=,%s= leaves them out, and the row is then %s", chosen, rejected, f.form.title)
	case f.form.asks && isChoice(name):
		return fmt.Errorf("the row has answers to choose from (%s), which the question does not name: write them into the question; -map %s= leaves them out", name, name)
	case f.form.asks && isQuestion(name):
		return fmt.Errorf("the row has %s besides, which is not in what is asked: -format %s leaves it out, and -map %s= too", name, f.form.name, name)
	case f.form == &textForm && (name == "role" || name == "parent_id"):
		return fmt.Errorf("the row has %s beside text, as one message of a conversation has it: join the messages of each conversation to messages; -format text learns each text alone", name)
	case f.form == &textForm && !slices.Contains(spoken, name):
		return fmt.Errorf("the row is read as text, all of which is learned, and has the field %s besides, which says something else: -map question=FIELD,answer=FIELD "+
			"learns an answer, -format text learns the text alone", name)
	}
	return fmt.Errorf("the row is read as %s, and has the field %s besides, which says something else; -format %s leaves it out, and -map %s= too",
		f.form.title, name, f.form.name, name)
}

// contains reports whether all texts in a value are parts of what the content says.
func (c *content) contains(x value) bool {
	switch x := x.(type) {
	case string:
		all := []string{c.prompt, c.answer}
		for _, conversation := range c.chats {
			all = append(all, texts(conversation.Messages)...)
		}
		return strings.Contains(words(strings.Join(all, " ")), words(x))
	case list:
		return !slices.ContainsFunc(x, func(e value) bool { return !c.contains(e) })
	case object:
		return !slices.ContainsFunc(x, func(m member) bool { return !c.contains(m.Value) })
	}
	return true
}

// texts returns the contents of messages.
func texts(messages []chat.Message) (list []string) {
	for _, m := range messages {
		list = append(list, m.Content)
	}
	return list
}

// says reports whether a value has only texts that the content has.
func (c *content) says(x value) bool {
	switch x := x.(type) {
	case nil:
		return true
	case string:
		return c.saysText(x)
	case list:
		return !slices.ContainsFunc(x, func(e value) bool { return !c.says(e) })
	case object:
		for _, name := range contentNames {
			if text, ok := textOf(x, name); ok {
				return c.saysText(text)
			}
		}
		if _, found := x.Get("content"); found { // of a message without content, or with parts
			return true
		}
		return len(x) > 0 && !slices.ContainsFunc(x, func(m member) bool { return !c.says(m.Value) }) // such as input and output
	}
	return false
}

// saysText reports whether a text is one of those of the content, or has all of them in their order.
func (c *content) saysText(text string) bool {
	text = words(text)
	if text == "" {
		return true
	}
	for _, conversation := range c.chats {
		if has(text, texts(conversation.Messages)) {
			return true
		}
	}
	return has(text, []string{c.prompt, c.answer}) || c.asked != "" && has(text, []string{c.asked, c.answer, c.rejected})
}

// has reports whether a text is one of the parts, or contains those that are not empty in their order.
func has(text string, parts []string) bool {
	at, some := 0, false
	all := true
	for _, part := range parts {
		p := words(part)
		switch {
		case p == "":
			continue
		case p == text:
			return true
		}
		some = true
		for _, line := range linesIn(text[at:], p, part) {
			i := strings.Index(text[at:], line)
			if i < 0 {
				all = false
				break
			}
			at += i + len(line)
		}
	}
	return some && all
}

// linesIn returns a part of a text as it is in the text: whole, or as lines between which there may be others, such as an
// instruction and its input under headings of their own.
func linesIn(text, whole, part string) (list []string) {
	if strings.Contains(text, whole) {
		return []string{whole}
	}
	for line := range strings.Lines(part) {
		list = append(list, words(line))
	}
	return list
}

// words returns a text with one blank for each run of white space.
func words(text string) string { return strings.Join(strings.Fields(text), " ") }
