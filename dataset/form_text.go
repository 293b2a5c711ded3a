package dataset

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// textForm is a plain text, which is learned whole.
var textForm = form{
	name: "text", title: "text", fields: "text", learned: "all of the text, and its end", classes: true, beside: besideText,
	fits: func(v *view) bool { return v.has("text") },
	read: func(f *rows, v *view) (c content, err error) {
		c.answer, err = v.text("text")
		if err == nil {
			err = written("text", c.answer)
		}
		return c, err
	},
}

// completionForm is a prompt with its completion, both texts or both messages, as in TRL.
var completionForm = form{
	name: "completion", title: "prompt and completion", fields: "prompt and completion",
	learned: "the completion and its end; of messages, the assistant's turns in completion", asks: true, beside: []string{"suffix"},
	fits: func(v *view) bool { return v.has("prompt") && v.has("completion") },
	read: func(f *rows, v *view) (c content, err error) {
		prompt, isText := v.values["prompt"].(string)
		completion, alsoText := v.values["completion"].(string)
		if isText && alsoText && repeats(prompt, completion) {
			f.warn(v.at, "prompt twice", "completion begins with the prompt, which is then there twice: cut it off, or -map text=completion,prompt= reads the completion as a text")
		}
		chats := !(isText && alsoText) || v.isList(prompt) && v.isList(completion)
		if f.chats == nil {
			chats = chats || v.converses() && f.reader.options.Template != nil
			f.chats = &chats
		}
		if !*f.chats {
			if chats {
				return c, fmt.Errorf("prompt and completion are messages, and in the first row they are texts")
			}
			v.take("prompt")
			v.take("completion")
			if err := written("completion", completion); err != nil {
				return c, err
			}
			f.untemplated(v.at, "completion", prompt, completion)
			return content{prompt: prompt, answer: completion}, nil
		}
		one, err := f.answered(v, "prompt", "completion")
		if err != nil {
			return c, err
		}
		return f.chat(v, one)
	},
}

// untemplated says that strings are learned without the chat template, if there is one, and warns of a prompt and an answer
// that join without white space.
func (f *rows) untemplated(at, name, prompt, answer string) {
	if f.reader.options.Template != nil {
		f.maps("strings", "one text without the chat template")
	}
	if strings.TrimSpace(prompt) == "" {
		f.warn(at, "no prompt", "prompt is empty, and what is learned of %s has nothing before it", name)
	}
	if images := f.reader.options.Images; images != nil && images.Processor.WholePrompt() {
		return // a line feed is between them
	}
	before, _ := utf8.DecodeLastRuneInString(prompt)
	after, _ := utf8.DecodeRuneInString(answer)
	if prompt == "" || answer == "" || unicode.IsSpace(before) || unicode.IsSpace(after) || unspaced(before) || unspaced(after) {
		return
	}
	remedy := ""
	if f.reader.options.Template != nil && !f.form.pairs {
		remedy = "; -map question=prompt,answer=completion writes them as turns"
	}
	f.warn(at, "joined", "prompt and %s join without white space%s", name, remedy)
}

// unspaced reports whether a character is of a script that writes words without blanks.
func unspaced(r rune) bool {
	return unicode.In(r, unicode.Han, unicode.Hiragana, unicode.Katakana, unicode.Thai, unicode.Lao, unicode.Khmer, unicode.Myanmar) || r >= 0x3000 && r <= 0x303f || r >= 0xff00 && r <= 0xffef
}
