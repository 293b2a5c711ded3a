package dataset

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// contentOf returns the member of a message that holds its content.
func contentOf(o object) (name string, x value) {
	for _, name := range contentNames {
		if x, found := o.Get(name); found && x != nil {
			return name, x
		}
	}
	return "", nil
}

// contents reads the content of a message: a string, null, or a list of parts, whose texts are joined.
func (f *rows) contents(m *turn, o object) error {
	name, x := contentOf(o)
	if other, found := o.Get("value"); found && name == "content" && other != nil && !reflect.DeepEqual(other, x) {
		return fmt.Errorf("both content and value")
	}
	switch x := x.(type) {
	case nil:
		m.NoContent = true
		return nil
	case string:
		m.Content = x
		return nil
	case list:
		var parts []string
		images := len(f.images)
		for i, part := range x {
			var b strings.Builder
			if err := f.part(m, &b, part); err != nil {
				return fmt.Errorf("part %d: %w", i, err)
			}
			if b.Len() > 0 {
				parts = append(parts, b.String())
			}
		}
		between := ""
		if len(f.images) > images {
			between = partBorder
		}
		m.Content = strings.Join(parts, between)
		m.NoContent = len(x) == 0
		return nil
	case object:
		if m.Role == "tool" {
			m.Content = jsonText(x)
			return nil
		}
	}
	return fmt.Errorf("content is %s, want a string, or a list of parts with texts", kindOf(x))
}

// part reads a part of a message.
func (f *rows) part(m *turn, b *strings.Builder, x value) error {
	o, ok := x.(object)
	if text, is := x.(string); is {
		b.WriteString(text)
		return nil
	}
	if !ok {
		return fmt.Errorf("%s, want an object with type and text", kindOf(x))
	}
	o = withoutNulls(o).(object)
	kind, _ := textOf(o, "type")
	if _, has := o.Get("image"); f.seesImages() && (slices.Contains(imageParts, kind) || kind == "" && has) {
		mark, err := f.imagePart(m, o)
		b.WriteString(mark)
		return err
	}
	if _, has := o.Get("video"); f.seesImages() && (slices.Contains(videoParts, kind) || kind == "" && has) {
		mark, err := f.videoPart(m, o)
		b.WriteString(mark)
		return err
	}
	text, found := "", false
	for _, member := range o {
		isText, err := f.partMember(kind, member)
		if err != nil {
			return err
		}
		if !isText {
			continue
		}
		t, _ := member.Value.(string)
		if found && t != text {
			return fmt.Errorf("both %q and %q are its text, want one", shortened(text), shortened(t))
		}
		text, found = t, true
	}
	switch kind {
	case "", "text", "input_text", "output_text", "thinking", "reasoning":
		switch {
		case !found:
			return fmt.Errorf("its type is %q and it has no text", kind)
		case kind == "thinking" || kind == "reasoning":
			return f.reason(m, "reasoning_content", text)
		}
		b.WriteString(text)
		return nil
	case "tool_call":
		v, _ := o.Get("value")
		return f.call(m, kind, v)
	}
	return fmt.Errorf("its type is %.40q, and only text is learned: remove the part, or leave out the row", kind)
}

// partMember reports whether a member of a part is its text. It lists those that change nothing, and returns an error for
// others.
func (f *rows) partMember(kind string, m member) (isText bool, err error) {
	if _, is := m.Value.(string); is && slices.Contains(partNames, m.Name) {
		return true, nil
	}
	small := usual(m.Name)
	yes, known := truth(m.Value)
	switch {
	case empty(m.Value), m.Name == "type", slices.Contains(partNames, m.Name), kind == "tool_call":
		return false, nil
	case decides(small), small == "learn", small == "ignore", small == "skip":
		if slices.Contains([]string{"train", "weight", "loss_weight", "loss"}, m.Name) && known && yes {
			return false, nil
		}
		return false, fmt.Errorf("%s is %s: a part cannot be left out, set it for the message", readable(m.Name), shortJSON(m.Value))
	case slices.Contains(partNames, small):
		return false, fmt.Errorf("%s: names are exact: write %s, or remove it", readable(m.Name), small)
	case !slices.Contains([]string{"", "text", "input_text", "output_text", "thinking", "reasoning"}, kind):
		return false, nil // an error of its own
	case strings.HasPrefix(small, "image"), strings.HasPrefix(small, "audio"), strings.HasPrefix(small, "video"):
		return false, fmt.Errorf("the part has %s, and only text is learned: remove it, or leave out the row", readable(m.Name))
	}
	f.ignore("messages.content." + m.Name)
	return false, nil
}
