package chat

import (
	"fmt"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/jinja"
)

// Labeled is a rendered conversation with what is learned of it.
type Labeled struct {
	Text  string
	Turns []Turn // in the order of Text; they do not overlap
	Notes []Note // what the template leaves out, rewrites or cannot express
}

// Turn is what an assistant's message adds to the text: all that the model writes after the generation prompt, through
// the token that ends the turn.
type Turn struct {
	Message    int  // its number, from 0
	Begin, End int  // bytes of Text
	Ended      bool // its last bytes are a token that ends the turn
}

// Note says that the text does not have what the conversation has, or not in a form from which the model learns to stop.
type Note struct {
	Message int // its number, or -1 for the conversation
	Kind    NoteKind
	Text    string // a sentence without its full stop, such as "the chat template leaves out message 0 (system)"
}

// NoteKind says what a Note is about.
type NoteKind int

// The kinds of notes.
const (
	LeftOut   NoteKind = iota // a message, a part of one, or the tools are not in the text
	Rewritten                 // the text has a message in other words
	NoEnd                     // a turn, or every turn, has no token that ends it
	AddedEnd                  // the last turn had no end, and got the one that the template writes after others
	NoTurn                    // nothing of an assistant's message can be learned
)

// Label renders a conversation and finds what the assistant writes in it. Errors wrap [snug.ErrConfig].
func (t *Template) Label(c Conversation) (l Labeled, err error) {
	if t.parsed.Marks() {
		return t.labelMarked(c)
	}
	messages := c.Messages
	if l.Text, err = t.Render(c, false); err != nil {
		return Labeled{}, err
	}
	for i, m := range messages {
		if m.Role != "assistant" || m.Untrained {
			continue
		}
		before, after := "", l.Text
		if i > 0 {
			c.Messages = messages[:i]
			if before, err = t.Render(c, true); err != nil {
				return Labeled{}, err
			}
		}
		if i+1 < len(messages) {
			c.Messages = messages[:i+1]
			if after, err = t.Render(c, false); err != nil {
				return Labeled{}, err
			}
		}
		if !strings.HasPrefix(l.Text, before) || !strings.HasPrefix(l.Text, after) || len(after) < len(before) {
			return Labeled{}, fmt.Errorf("the chat template writes message %d otherwise when others follow, so its tokens cannot be told apart; "+
				"use a template with {%% generation %%}, or end the conversation there: %w", i, snug.ErrConfig)
		}
		l.Turns = append(l.Turns, Turn{Message: i, Begin: len(before), End: len(after)})
	}
	return l, nil
}

// labelMarked takes the turns from {% generation %}.
func (t *Template) labelMarked(c Conversation) (l Labeled, err error) {
	marked, err := t.render(c, false)
	if err != nil {
		return Labeled{}, fmt.Errorf("chat: %w", err)
	}
	var b strings.Builder
	open := -1
	for {
		i := strings.IndexAny(marked, jinja.BeginMark+jinja.EndMark)
		if i < 0 {
			break
		}
		b.WriteString(marked[:i])
		if strings.HasPrefix(marked[i:], jinja.BeginMark) {
			open = b.Len()
		} else if open >= 0 {
			l.Turns, open = append(l.Turns, Turn{Begin: open, End: b.Len()}), -1
		}
		marked = marked[i+len(jinja.BeginMark):]
	}
	b.WriteString(marked)
	l.Text = b.String()
	return l, nil
}
