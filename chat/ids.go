package chat

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math/big"
	"reflect"
)

// idSize is how many letters and digits the id of a call has in the templates that test it, those of Mistral.
const idSize = 9

// numbered returns the conversation with ids of nine letters and digits for calls of functions and their results, where
// they have others or none. A result has the id of the call that it names, or else of the first call without a result.
// The ids are made of the calls, so that the same conversation has the same ids.
func numbered(c Conversation) (Conversation, bool) {
	messages := append([]Message(nil), c.Messages...)
	named := map[string]string{} // by the ids that are given
	var open []string            // ids of calls without a result
	made := 0
	id := func(given string, of any) string {
		if isID(given) {
			return given
		}
		made++
		text, _ := json.Marshal(of) // of what cannot be written, the number makes the id
		return idOf(fmt.Sprint(made, string(text)))
	}
	for i, m := range messages {
		if calls, ok := fieldOf[[]any](m.Fields, "tool_calls"); ok {
			calls = append([]any(nil), calls...)
			for k, call := range calls {
				o, ok := call.(Object)
				if !ok {
					continue
				}
				given, _ := fieldOf[string](o, "id")
				text := id(given, o)
				o = append(Object(nil), o...)
				o.set("id", text)
				calls[k], open = o, append(open, text)
				if given != "" {
					named[given] = text
				}
			}
			messages[i].Fields = append(Object(nil), m.Fields...)
			messages[i].Fields.set("tool_calls", calls)
		}
		if m.Role != "tool" {
			continue
		}
		given, _ := fieldOf[string](m.Fields, "tool_call_id")
		text, known := named[given]
		if !known && len(open) > 0 {
			text, known = open[0], true
		}
		if !known {
			text = id(given, m.Content)
		}
		for k, other := range open {
			if other == text {
				open = append(open[:k:k], open[k+1:]...)
				break
			}
		}
		messages[i].Fields = append(Object(nil), m.Fields...)
		messages[i].Fields.set("tool_call_id", text)
	}
	changed := !reflect.DeepEqual(messages, c.Messages)
	c.Messages = messages
	return c, changed
}

// fieldOf returns the value of a key, if it has this type.
func fieldOf[T any](o Object, name string) (x T, ok bool) {
	v, _ := o.Get(name)
	x, ok = v.(T)
	return x, ok
}

// isID reports whether a text is an id as templates want it.
func isID(text string) bool {
	for _, c := range []byte(text) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') {
			return false
		}
	}
	return len(text) == idSize
}

// idOf makes an id of a text.
func idOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return new(big.Int).SetBytes(sum[:]).Text(62)[:idSize]
}
