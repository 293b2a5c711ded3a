package dataset

import (
	"strings"

	"github.com/snug-ml/snug/chat"
)

// markups are what begins a turn in the chat templates of ChatML, Llama 2 and Mistral, Llama 3, Gemma, Zephyr and gpt-oss.
var markups = []string{"<|im_start|>", "[INST]", "<|start_header_id|>", "<start_of_turn>", "<|user|>", "<|start|>user"}

// markup warns of texts that have the markup of a chat template already.
func (f *rows) markup(at string, c content) {
	for _, mark := range markups {
		where := ", and the chat template writes its own around it"
		found := func(m chat.Message) bool { return strings.Contains(m.Content, mark) }
		has := false
		for _, conversation := range c.chats {
			for _, m := range conversation.Messages {
				has = has || found(m)
			}
		}
		if c.chats == nil {
			has = strings.Contains(c.prompt, mark) || strings.Contains(c.answer, mark) || strings.Contains(c.rejected, mark)
			where = ", which is learned as text; messages are written by the model's own template, and only the answers are learned"
			if f.form != &textForm {
				where = ", and strings are learned as they are; messages are written by the model's own template"
			}
		}
		if !has {
			continue
		}
		if _, known := f.reader.tok.ID(mark); !known {
			where = ", which is no token of this tokenizer" + where
		}
		f.warn(at, "markup", "a text has %q, the markup of a chat template%s", mark, where)
		return
	}
}
