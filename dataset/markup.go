package dataset

import (
	"fmt"
	"slices"
	"strings"
)

// markups are what begins a turn in the chat templates of ChatML, Llama 2 and Mistral, Llama 3, Gemma, Zephyr and gpt-oss.
var markups = []string{"<|im_start|>", "[INST]", "<|start_header_id|>", "<start_of_turn>", "<|user|>", "<|start|>user"}

// ends are tokens that end a text or a turn: those of GPT-2, Qwen, Llama 2, 3 and 4, ChatML, Gemma, Phi and gpt-oss.
var ends = []string{"<|endoftext|>", "</s>", "<|end_of_text|>", "<|eot_id|>", "<|eot|>", "<|im_end|>", "<eos>", "<end_of_turn>", "<|end|>", "<|return|>"}

// endOfTexts takes the token that ends a text once, where white space follows it, and warns of other tokens that end one, in
// front of that which is learned.
func (f *rows) endOfTexts(at string, c *content) {
	end := f.reader.knows().end
	if c.chats == nil {
		end = ""
		if f.reader.eos != nil {
			end, _ = f.reader.tok.Token(*f.reader.eos)
		}
		for _, text := range []*string{&c.answer, &c.rejected} {
			if cut := strings.TrimRight(*text, " \t\r\n"); end != "" && cut != *text && strings.HasSuffix(cut, end) {
				*text = cut
				f.warn(at, "end", "white space behind %q, which ends the text, is left out", end)
			}
			f.otherEnd(at, *text, end)
		}
		return
	}
	for _, conversation := range c.chats {
		for _, m := range conversation.Messages {
			if m.Role == "assistant" && !m.Untrained {
				f.otherEnd(at, m.Content, end)
			}
		}
	}
}

// otherEnd warns of a token at the end of a text that ends texts of another model, or ends them otherwise.
func (f *rows) otherEnd(at, text, end string) {
	text = strings.TrimRight(text, " \t\r\n")
	for _, other := range ends {
		if other != end && strings.HasSuffix(text, other) {
			learned := ""
			if end != "" {
				learned = fmt.Sprintf(", and %q is learned behind it", end)
			}
			f.warn(at, "other end", "a text ends with %q, which ends the texts of some models%s: remove it", other, learned)
			return
		}
	}
}

// opening returns the mark in angle brackets with which a text begins, such as <tool_response>.
func opening(text string) string {
	text = strings.TrimSpace(text)
	n := strings.IndexAny(text, "> \n")
	if !strings.HasPrefix(text, "<") || n < 2 || n > 40 || text[n] != '>' || text[1] == '/' {
		return ""
	}
	return text[:n+1]
}

// markup warns of texts that have the markup of a chat template already.
func (f *rows) markup(at string, c content) {
	for _, mark := range markups {
		where := ", and the chat template writes its own around it"
		said := []string{c.prompt, c.answer, c.rejected}
		for _, conversation := range c.chats {
			said = append(said, texts(conversation.Messages)...)
		}
		has := slices.ContainsFunc(said, func(text string) bool { return strings.Contains(text, mark) })
		if c.chats == nil {
			where = ", which is learned as text; messages are written by the model's own template, and only the answers are learned"
			if f.form != &textForm {
				where = ", and strings are learned as they are; messages are written by the model's own template"
			}
		}
		id, known := f.reader.tok.ID(mark)
		if !has || c.chats != nil && known && f.reader.tok.Special(id) { // special says so
			continue
		}
		if !known {
			where = ", which is no token of this tokenizer" + where
		}
		f.warn(at, "markup", "a text has %q, the markup of a chat template%s", mark, where)
		return
	}
	header, _, _ := strings.Cut(f.reader.knows().header, "\n")
	if !strings.ContainsAny(header, "<[:#|") || f.reader.specialIn(header) != "" { // a common word, or special says so
		return
	}
	for _, conversation := range c.chats {
		for i, m := range conversation.Messages {
			if strings.HasPrefix(m.Content, header) || strings.Contains(m.Content, "\n"+header) {
				f.warn(at, "markup", "a line of message %d (%.40s) begins with %q, as the chat template begins an answer: the model reads another turn there", i, m.Role, header)
				return
			}
		}
	}
}
