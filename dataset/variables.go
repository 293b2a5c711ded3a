package dataset

import (
	"slices"

	"github.com/snug-ml/snug/chat"
)

// maxTried is in how many rows it is looked whether a template obeys a field.
const maxTried = 16

// obeys notes which of a conversation's variables the template obeys. The others are listed as ignored.
func (f *rows) obeys(c chat.Conversation) {
	for i, v := range c.Values {
		if n := f.obeyed[v.Name]; n < 0 || n >= maxTried || len(f.obeyed) >= maxIgnored {
			continue
		}
		f.obeyed[v.Name]++
		without := c
		without.Values = slices.Delete(slices.Clone(c.Values), i, i+1)
		others := []chat.Conversation{without}
		if yes, is := v.Value.(bool); is { // true may be what a template does without it
			otherwise := c
			otherwise.Values = slices.Clone(c.Values)
			otherwise.Values[i].Value = !yes
			others = append(others, otherwise)
		}
		for _, other := range others {
			if !f.alike(c, other) {
				f.obeyed[v.Name] = -1
			}
		}
	}
}

// alike reports whether the template writes two conversations alike, with and without its generation prompt.
func (f *rows) alike(a, b chat.Conversation) bool {
	for _, prompt := range []bool{false, true} {
		one, err := f.reader.options.Template.Render(a, prompt)
		two, other := f.reader.options.Template.Render(b, prompt)
		if one != two || (err == nil) != (other == nil) {
			return false
		}
	}
	return true
}
