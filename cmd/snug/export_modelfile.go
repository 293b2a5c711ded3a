package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/template"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/chat"
	"github.com/snug-ml/snug/internal/files"
	"github.com/snug-ml/snug/tokenizer"
)

// This file writes the file from which ollama create makes a model.

// page returns the text of the file: FROM, a template in Ollama's language if the chat template is one of turns alone, the
// texts that end an answer, and the parameters of generation_config.json. note says why there is no template.
func (f *exportFlags) page() (page, note string, err error) {
	from, err := filepath.Abs(f.output)
	if err != nil {
		return "", "", err
	}
	if at, err := filepath.Abs(f.modelfile); err == nil && filepath.Dir(at) == filepath.Dir(from) {
		from = "./" + filepath.Base(from)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "FROM %s\n", from)
	texts := []string{}
	for _, id := range f.ends {
		if text, known := f.tok.Token(id); known && !slices.Contains(texts, text) {
			texts = append(texts, text)
		}
	}
	text, note := f.turns(texts)
	switch {
	case note == "":
		fmt.Fprintf(&b, "TEMPLATE \"\"\"%s\"\"\"\n", text)
	case hasTemplate(f.tok):
		fmt.Fprintf(&b, "# No TEMPLATE: %s. Ollama then looks at the chat template in the file of the model.\n", note)
	default:
		fmt.Fprintf(&b, "# No TEMPLATE: %s.\n", note)
	}
	for _, text := range texts {
		fmt.Fprintf(&b, "PARAMETER stop %s\n", strconv.Quote(text))
	}
	parameters, err := generationParameters(f.model)
	b.WriteString(parameters)
	return b.String(), note, err
}

// endOfTurn returns the special token with which the chat template ends an answer, which need not be one of config.json's.
func (f *exportFlags) endOfTurn() (id int32, ends bool) {
	t, err := chat.Open(f.tok, chat.Options{})
	if err != nil {
		return 0, false
	}
	_, answer, _, err := (&rendering{template: t}).around()
	if err != nil {
		return 0, false
	}
	ids, err := f.tok.Encode(strings.TrimSpace(answer.end), tokenizer.EncodeOptions{NoSpecial: true})
	if err != nil || len(ids) == 0 || !f.tok.Special(ids[0]) {
		return 0, false
	}
	return ids[0], true
}

// generationParameters returns the lines of generation_config.json's values that Ollama has.
func generationParameters(dir string) (string, error) {
	name := filepath.Join(dir, "generation_config.json")
	text, err := files.ReadInput(name, files.Description)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	var values map[string]json.RawMessage
	if err := json.Unmarshal(text, &values); err != nil {
		return "", fmt.Errorf("%s: %w: %w", name, err, snug.ErrCorrupt)
	}
	if string(values["do_sample"]) == "false" {
		return "PARAMETER temperature 0\n", nil
	}
	var b strings.Builder
	for _, p := range []struct{ field, name string }{{"temperature", "temperature"}, {"top_k", "top_k"}, {"top_p", "top_p"}, {"min_p", "min_p"}, {"repetition_penalty", "repeat_penalty"}} {
		var x float64
		raw := values[p.field]
		if raw == nil || string(raw) == "null" {
			continue
		}
		if err := json.Unmarshal(raw, &x); err != nil {
			return "", fmt.Errorf("%s: %s is %.40s, want a number: %w", name, p.field, raw, snug.ErrCorrupt)
		}
		fmt.Fprintf(&b, "PARAMETER %s %s\n", p.name, strconv.FormatFloat(x, 'g', -1, 64))
	}
	return b.String(), nil
}

// turns returns the chat template in Ollama's language, or why there is none. It takes the texts around the messages from
// rendered conversations, and compares the results of both for further ones.
func (f *exportFlags) turns(ends []string) (text, why string) {
	t, err := chat.Open(f.tok, chat.Options{Ends: ends})
	switch {
	case err != nil && hasTemplate(f.tok):
		return "", "the chat template cannot be read: " + oneLine(err)
	case err != nil:
		return "", "the tokenizer has no chat template"
	case t.UsesTime():
		return "", "the chat template has the date, which Ollama's has not"
	}
	r := &rendering{template: t}
	if bos := f.tok.Config().BOS; bos != "" && f.addsBOS() {
		r.bos = bos // which Ollama adds
	}
	text, err = r.ollama()
	if err == nil {
		err = r.compare(text)
	}
	if err != nil {
		return "", "the chat template has more than turns one after another"
	}
	return text, ""
}

// addsBOS reports whether the file says that a text begins with BOS.
func (f *exportFlags) addsBOS() bool {
	for _, p := range f.vocabulary {
		if p.Key == "tokenizer.ggml.add_bos_token" {
			return p.Value == true
		}
	}
	return false
}

// rendering renders conversations with a chat template.
type rendering struct {
	template *chat.Template
	bos      string // cut off in front
}

// A conversation is written as letters, one a message: s, u or a for its role. The texts of messages are marks.
func (r *rendering) render(roles string, prompt bool) (string, error) {
	text, err := r.template.Render(conversationOf(roles), prompt)
	return strings.TrimPrefix(text, r.bos), err
}

var roleNames = map[rune]string{'s': "system", 'u': "user", 'a': "assistant"}

func markOf(i int) string { return fmt.Sprintf("Mark%dOfText", i) }

func conversationOf(roles string) (c chat.Conversation) {
	for i, role := range roles {
		c.Messages = append(c.Messages, chat.Message{Role: roleNames[role], Content: markOf(i)})
	}
	return c
}

var errTurns = errors.New("the template has no turns")

// ollama makes the template of the texts around the messages of rendered conversations. The text between two messages ends one
// turn and begins the next.
func (r *rendering) ollama() (string, error) {
	user, answer, first, err := r.around()
	if err != nil {
		return "", err
	}
	turn := func(role string, t around) string {
		return fmt.Sprintf("{{ if eq .Role %q }}%s{{ .Content }}%s{{ end }}", role, t.begin, t.end)
	}
	turns := turn("user", user) + turn("assistant", answer)
	if withSystem, refused := r.render("su", false); refused == nil {
		s := cutAt(withSystem, 2)
		if s == nil || !strings.HasSuffix(s[1], user.begin) {
			return "", errTurns
		}
		turns = turn("system", around{s[0], strings.TrimSuffix(s[1], user.begin)}) + turns
		if first != "" {
			first = "{{ if not .System }}" + first + "{{ end }}"
		}
	}
	return first + "{{ range .Messages }}" + turns + "{{ end }}" + answer.begin, nil
}

// around returns the texts around a user's message and around an answer, and what is in front of the first turn.
func (r *rendering) around() (user, answer around, first string, err error) {
	var parts [3][]string
	for i, c := range []struct {
		roles  string
		prompt bool
	}{{"uaua", false}, {"uau", false}, {"uau", true}} {
		text, err := r.render(c.roles, c.prompt)
		if err != nil {
			return user, answer, "", err
		}
		if parts[i] = cutAt(text, len(c.roles)); parts[i] == nil || strings.Contains(text, "{{") || strings.Contains(text, `"""`) {
			return user, answer, "", errTurns
		}
	}
	whole, asked, prompted := parts[0], parts[1], parts[2]
	user.end, answer.end = asked[3], whole[4]
	if !strings.HasPrefix(prompted[3], user.end) || !strings.HasPrefix(whole[2], answer.end) {
		return user, answer, "", errTurns
	}
	answer.begin, user.begin = prompted[3][len(user.end):], whole[2][len(answer.end):]
	if !strings.HasSuffix(whole[0], user.begin) {
		return user, answer, "", errTurns
	}
	return user, answer, strings.TrimSuffix(whole[0], user.begin), nil
}

// around is the text in front of a message, and behind it.
type around struct{ begin, end string }

// cutAt returns the texts around the marks of n messages, nil if they are not all there once and in order.
func cutAt(text string, n int) (parts []string) {
	for i := range n {
		before, after, found := strings.Cut(text, markOf(i))
		if !found || strings.Contains(after, markOf(i)) {
			return nil
		}
		parts, text = append(parts, before), after
	}
	return append(parts, text)
}

// compare renders conversations with both templates.
func (r *rendering) compare(text string) error {
	t, err := template.New("").Parse(text)
	if err != nil {
		return err
	}
	type message struct{ Role, Content string }
	for _, roles := range []string{"u", "uau", "uauau", "su", "suau", "suauau"} {
		want, err := r.render(roles, true)
		if err != nil && roles[0] == 's' {
			continue // the template refuses it, and Ollama does not
		}
		if err != nil {
			return err
		}
		var data struct {
			System   string
			Messages []message
		}
		for i, role := range roles {
			data.Messages = append(data.Messages, message{roleNames[role], markOf(i)})
			if role == 's' {
				data.System = markOf(i)
			}
		}
		var have strings.Builder
		if err := t.Execute(&have, data); err != nil || have.String() != want {
			return errTurns
		}
	}
	return nil
}
