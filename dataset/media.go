package dataset

import (
	"fmt"
	"slices"
	"strings"

	"github.com/snug-ml/snug/chat"
)

// While a row is read, the content of a message has its images and videos as numbers between these noncharacters, which no text may have.
const (
	imageBegin = "\ufde8"
	videoBegin = "\ufdeb"
	imageEnd   = "\ufde9"
	partBorder = "\ufdea" // between the parts of a content
)

// medium is a kind of what a model sees: images, or videos.
type medium struct {
	plural string
	fields []string // of rows
	mark   string   // what stands for one in texts of LLaVA's and LLaMA-Factory's form
	begin  string   // of its number in a content
}

// media are all of them. Where a conversation has no places for them, they come in this order.
var media = []*medium{
	{"images", []string{"image", "images"}, "<image>", imageBegin},
	{"videos", []string{"video", "videos"}, "<video>", videoBegin},
}

// attach gives a conversation the images and videos of the row's fields, each at a part without one or at <image> or <video> in a text, in turn; without
// such places all come before the text of the first turn of the user, as in TRL. c gets those that the conversation has.
func (f *rows) attach(v *view, c *content) error {
	if !f.seesImages() {
		return nil
	}
	given, all := make([][]imageSource, len(media)), []imageSource(nil)
	for i, of := range media {
		list, err := f.rowMedia(v, of)
		if err != nil {
			return err
		}
		given[i], all = list, append(all, list...)
	}
	switch {
	case c.chats != nil:
	case len(all) == 0:
		return nil
	case !f.reader.options.Images.Processor.WholePrompt():
		return fmt.Errorf("the row has %s beside texts, which wants messages, or a question and its answer, and a model with a chat template", all[0].medium().plural)
	case c.asked != "" || strings.Contains(c.prompt, media[0].mark):
		return fmt.Errorf("the model wants images before a text with prompt and completion, such as -map prompt=question,completion=answer")
	default:
		c.images = all
		return nil
	}
	messages := c.chats[0].Messages
	if err := f.markMessages(messages, len(given[1]) > 0); err != nil {
		return err
	}
	first := "" // marks before the first turn of the user
	for i, of := range media {
		marks, err := f.fill(messages, given[i], of)
		if err != nil {
			return err
		}
		first += marks
	}
	if first != "" {
		i := slices.IndexFunc(messages, func(m chat.Message) bool { return m.Role == "user" })
		if i < 0 {
			return fmt.Errorf("the row has %s and no turn of the user to show them", all[0].medium().plural)
		}
		messages[i].Content = first + messages[i].Content
	}
	for _, m := range messages {
		for _, n := range imagesIn(m.Content) {
			c.images = append(c.images, f.images[n])
		}
	}
	return nil
}

// fill gives the places of a medium in messages what the row's fields have, in turn, and returns marks for those without a place.
func (f *rows) fill(messages []chat.Message, given []imageSource, of *medium) (marks string, err error) {
	var places []int // without a source, in turn
	inline := 0
	for _, m := range messages {
		for _, n := range imagesIn(m.Content) {
			switch x := f.images[n]; {
			case x.medium() != of:
			case x.missing():
				places = append(places, n)
			default:
				inline++
			}
		}
	}
	kind := strings.TrimSuffix(of.plural, "s")
	switch {
	case len(places) == 0 && len(given) > 0 && inline > 0:
		return "", fmt.Errorf("the row has %s beside those in its messages, which have no place for them: write %s, or a part of type %s without a path, where they belong", of.plural, of.mark, kind)
	case len(places) == 0 && len(given) > 0:
		for _, x := range given {
			marks += f.mark(x) + partBorder
		}
		f.maps(of.plural, "the beginning of the first turn of user")
		return marks, nil
	case len(given) == 0 && len(places) > 0:
		return "", fmt.Errorf("the messages have places for %d %s, each %s or part of type %s without a path, and the row has none: give them in a field %s, or remove the places", len(places), of.plural, of.mark, kind, of.plural)
	case len(places) != len(given):
		return "", fmt.Errorf("the messages have places for %d %s, and the row has %d: each %s, or part of type %s without a path, is one", len(places), of.plural, len(given), of.mark, kind)
	}
	for i, n := range places {
		f.images[n] = given[i]
	}
	return "", nil
}

// rowMedia takes the fields of a row with images, or with videos.
func (f *rows) rowMedia(v *view, of *medium) (images []imageSource, err error) {
	from := ""
	for _, name := range of.fields {
		x := v.take(name)
		if empty(x) {
			continue
		}
		if from != "" {
			return nil, fmt.Errorf("both %s and %s, want one of them: -map %s= leaves it out", from, name, name)
		}
		from = name
		items, isList := x.(list)
		if !isList || of == media[1] && name == "video" { // a list of frames
			items = list{x}
		}
		for i, item := range items {
			var one imageSource
			if of == media[1] {
				one, err = f.videoOf(item)
			} else {
				one, err = f.imageOf(item, false)
			}
			if err != nil {
				return nil, fmt.Errorf("%s: %s %d: %w", name, strings.TrimSuffix(of.plural, "s"), i, err)
			}
			images = append(images, one)
		}
	}
	return images, nil
}

// markMessages puts marks in place of <image>, and of <video> if the model takes videos or the row has any.
func (f *rows) markMessages(messages []chat.Message, videos bool) error {
	known := media[:1]
	if videos || f.reader.options.Images.Processor.Videos() {
		known = media
	}
	for i := range messages {
		m := &messages[i]
		for _, of := range known {
			if !strings.Contains(m.Content, of.mark) {
				continue
			}
			if m.Role == "assistant" {
				return fmt.Errorf("message %d (assistant) has %s, and writes only text", i, of.mark)
			}
			m.Content = f.markTexts(m.Content, of)
		}
	}
	return nil
}

// markTexts puts marks in place of <image> or <video>, each as a part of its own, without the white space around it.
func (f *rows) markTexts(text string, of *medium) string {
	source := imageSource{}
	if of == media[1] {
		source.video = &videoSource{}
	}
	var parts []string
	for i, piece := range strings.Split(text, of.mark) {
		if i > 0 {
			parts = append(parts, f.mark(source))
		}
		if piece = strings.TrimSpace(piece); piece != "" {
			parts = append(parts, strings.Trim(piece, partBorder))
		}
	}
	return strings.Join(parts, partBorder)
}

// imagesIn returns the numbers of the marks in a content.
func imagesIn(content string) (list []int) {
	for {
		at := strings.IndexAny(content, imageBegin+videoBegin)
		if at < 0 {
			return list
		}
		number, after := 0, content[at+len(imageBegin):]
		for _, r := range after {
			if r < '0' || r > '9' {
				break
			}
			number = 10*number + int(r-'0')
		}
		list, content = append(list, number), after
	}
}

// marked reports whether a text of a value has what marks of images are made of.
func marked(x value) bool {
	switch x := x.(type) {
	case string:
		return strings.ContainsAny(x, imageBegin+videoBegin+imageEnd+partBorder)
	case list:
		return slices.ContainsFunc(x, marked)
	case object:
		return slices.ContainsFunc(x, func(m member) bool { return marked(m.Value) })
	}
	return false
}

// inParts returns a conversation with images as chat templates take it: contents are lists of parts.
func inParts(c chat.Conversation) chat.Conversation {
	messages := slices.Clone(c.Messages)
	for i, m := range messages {
		if m.NoContent {
			continue
		}
		var parts []any
		for part := range strings.SplitSeq(m.Content, partBorder) {
			switch {
			case strings.HasPrefix(part, imageBegin):
				parts = append(parts, chat.Object{{Name: "type", Value: "image"}})
			case strings.HasPrefix(part, videoBegin):
				parts = append(parts, chat.Object{{Name: "type", Value: "video"}})
			case part != "":
				parts = append(parts, chat.Object{{Name: "type", Value: "text"}, {Name: "text", Value: part}})
			}
		}
		messages[i].Content, messages[i].Fields = "", append(chat.Object{{Name: "content", Value: parts}}, m.Fields...)
	}
	c.Messages = messages
	return c
}
