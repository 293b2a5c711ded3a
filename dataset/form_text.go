package dataset

import "fmt"

// textForm is a plain text, all of which is learned.
var textForm = form{
	name: "text", title: "text", fields: "text", learned: "all of the text, and its end", classes: true,
	fits: func(v *view) bool { return v.has("text") },
	read: func(f *rows, v *view) (c content, err error) {
		c.answer, err = v.text("text")
		if err == nil && c.answer == "" {
			f.warn(v.at, "empty", "an empty text, of which only the end is learned")
		}
		return c, err
	},
}

// completionForm is a prompt with its completion, both texts or both messages, as in TRL.
var completionForm = form{
	name: "completion", title: "prompt and completion", fields: "prompt and completion",
	learned: "the completion and its end; of messages, the assistant's turns in completion",
	fits:    func(v *view) bool { return v.has("prompt") && v.has("completion") },
	read: func(f *rows, v *view) (c content, err error) {
		prompt, isText := v.values["prompt"].(string)
		completion, alsoText := v.values["completion"].(string)
		chats := !(isText && alsoText) || v.isList(prompt) && v.isList(completion)
		if f.chats == nil {
			asked := false // for the chat template
			for _, name := range conversationFields {
				_, there := v.values[name]
				asked = asked || there
			}
			chats = chats || asked && f.reader.options.Template != nil
			f.chats = &chats
		}
		if !*f.chats {
			if chats {
				return c, fmt.Errorf("prompt and completion are messages, and in the first row they are texts")
			}
			v.take("prompt")
			v.take("completion")
			f.empty(v.at, "completion", completion)
			return content{prompt: prompt, answer: completion}, nil
		}
		one, err := f.answered(v, "prompt", "completion")
		if err != nil {
			return c, err
		}
		return f.chat(v, one)
	},
}
