package dataset

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"iter"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/chat"
	"github.com/snug-ml/snug/internal/files"
	"github.com/snug-ml/snug/tokenizer"
	"github.com/snug-ml/snug/vision"
)

// While a row is read, the content of a message has its images as numbers between these noncharacters, which no text may have.
const (
	imageBegin = "\ufde8"
	imageEnd   = "\ufde9"
	partBorder = "\ufdea" // between the parts of a content
)

// textMark is what stands for an image in texts of LLaVA's and LLaMA-Factory's form.
const textMark = "<image>"

// imageFields are the fields of rows with images.
var imageFields = []string{"image", "images"}

// imageParts are the types of parts that are images.
var imageParts = []string{"image", "image_url", "input_image"}

// imageSource is where an image comes from. Neither a path nor data: the row has it in a field.
type imageSource struct {
	path  string // of a file
	data  []byte // of a file
	white bool   // alpha lies on white, as in a table's image, which is no file to transformers
}

func (x imageSource) missing() bool { return x.path == "" && x.data == nil }

// picture is an image of a sample. It takes about 250 bytes of memory.
type picture struct {
	path   string // of its file; empty: the set has the bytes
	at     int64  // where these are
	size   int
	white  bool
	sum    [sha256.Size]byte // of the file
	layout vision.Layout
	rows   int // in the text
}

// seesImages reports whether the model takes images.
func (f *rows) seesImages() bool { return f.reader.options.Images != nil }

// imagePart reads a part of a message that is an image, and returns the mark of it.
func (f *rows) imagePart(m *turn, o object) (string, error) {
	if m.Role == "assistant" {
		return "", fmt.Errorf("an image in a turn of the assistant, which writes only text")
	}
	var from imageSource
	for _, member := range o {
		if member.Name == "type" || empty(member.Value) {
			continue
		}
		switch member.Name {
		case "image", "image_url", "url", "path", "base64", "bytes":
		case "detail", "resized_height", "resized_width", "min_pixels", "max_pixels":
			f.ignore("messages.content." + member.Name)
			continue
		default:
			if _, is := member.Value.(string); is && slices.Contains(partNames, member.Name) {
				return "", fmt.Errorf("the part is an image and has the text %q: write it as a part of its own", shortened(member.Value.(string)))
			}
			f.ignore("messages.content." + member.Name)
			continue
		}
		x, err := f.imageOf(member.Value, member.Name == "base64")
		switch {
		case err != nil:
			return "", fmt.Errorf("%s: %w", member.Name, err)
		case !from.missing():
			return "", fmt.Errorf("the part has more than one image")
		}
		from = x
	}
	return f.mark(from), nil
}

// mark notes an image of the row and returns its mark.
func (f *rows) mark(x imageSource) string {
	f.images = append(f.images, x)
	return fmt.Sprint(imageBegin, len(f.images)-1, imageEnd)
}

// imageOf reads an image: the path of a file, a data: URL, or an object with path, url or bytes.
func (f *rows) imageOf(x value, encoded bool) (imageSource, error) {
	switch x := x.(type) {
	case blob:
		return imageSource{data: x, white: true}, nil
	case string:
		if encoded {
			return decoded(x)
		}
		return f.imageNamed(x)
	case object:
		if data, _ := x.Get("bytes"); !empty(data) {
			switch data := data.(type) {
			case blob:
				return imageSource{data: data, white: true}, nil
			case string:
				return decoded(data)
			}
			return imageSource{}, fmt.Errorf("bytes is %s, want those of a file, in base64 where the data is text", kindOf(data))
		}
		for _, name := range []string{"path", "url", "image", "image_url"} {
			if text, found := textOf(x, name); found && text != "" {
				return f.imageNamed(text)
			}
		}
		return imageSource{}, fmt.Errorf("an object with %s, want bytes or path", listed(namesOf(x)))
	}
	return imageSource{}, fmt.Errorf("%s, want the path of a file, a data: URL, or an object with bytes or path", kindOf(x))
}

func decoded(text string) (imageSource, error) {
	data, err := base64.StdEncoding.DecodeString(strings.Join(strings.Fields(text), ""))
	if err != nil || len(data) == 0 {
		return imageSource{}, fmt.Errorf("%s is no file in base64", shortJSON(text))
	}
	return imageSource{data: data}, nil
}

// imageNamed returns the image of a path or a URL. A path begins in Options.ImageFolder, or in the folder of the data.
func (f *rows) imageNamed(name string) (imageSource, error) {
	scheme, rest, isURL := strings.Cut(name, ":")
	switch strings.ToLower(scheme) {
	case "data":
		kind, data, found := strings.Cut(rest, ",")
		if !found || !strings.HasSuffix(kind, ";base64") {
			return imageSource{}, fmt.Errorf("the URL %s, want data:image/png;base64, and the file", shortJSON(name))
		}
		return decoded(data)
	case "http", "https", "s3", "gs", "hf":
		if isURL && strings.HasPrefix(rest, "//") {
			return imageSource{}, fmt.Errorf("%s: nothing is downloaded here: save the image, and give its path", shortJSON(name))
		}
	case "file":
		if isURL {
			u, err := url.Parse(name)
			if err != nil {
				return imageSource{}, err
			}
			name = u.Path
		}
	}
	if strings.ContainsRune(name, 0) || len(name) > 1<<12 {
		return imageSource{}, fmt.Errorf("%s is no path", shortJSON(name))
	}
	if !filepath.IsAbs(name) {
		folder := f.reader.options.ImageFolder
		if folder == "" {
			folder = filepath.Dir(f.found.Path)
		}
		name = filepath.Join(folder, name)
	}
	return imageSource{path: name}, nil
}

// attach gives a conversation the images of the row's fields, each at a part without an image or at <image> in a text, in turn; without
// such places all come before the text of the first turn of the user, as in TRL. c gets the images that the conversation has.
func (f *rows) attach(v *view, c *content) error {
	if !f.seesImages() {
		return nil
	}
	given, err := f.rowImages(v)
	if err != nil {
		return err
	}
	switch {
	case c.chats != nil:
	case len(given) == 0:
		return nil
	case !f.reader.options.Images.Processor.WholePrompt():
		return fmt.Errorf("the row has images beside texts, which wants messages, or a question and its answer, and a model with a chat template")
	case c.asked != "" || strings.Contains(c.prompt, textMark):
		return fmt.Errorf("the model wants images before a text with prompt and completion, such as -map prompt=question,completion=answer")
	default:
		c.images = given
		return nil
	}
	messages := c.chats[0].Messages
	for i := range messages {
		m := &messages[i]
		if !strings.Contains(m.Content, textMark) {
			continue
		}
		if m.Role == "assistant" {
			return fmt.Errorf("message %d (assistant) has %s, and writes only text", i, textMark)
		}
		m.Content = f.markTexts(m.Content)
	}
	var places []int // of images without a source, in turn
	inline := 0
	for _, m := range messages {
		for _, n := range imagesIn(m.Content) {
			if f.images[n].missing() {
				places = append(places, n)
			} else {
				inline++
			}
		}
	}
	switch {
	case len(places) == 0 && len(given) > 0 && inline > 0:
		return fmt.Errorf("the row has images beside those in its messages, which have no place for them: write %s, or a part of type image without a path, where they belong", textMark)
	case len(places) == 0 && len(given) > 0:
		i := slices.IndexFunc(messages, func(m chat.Message) bool { return m.Role == "user" })
		if i < 0 {
			return fmt.Errorf("the row has images and no turn of the user to show them")
		}
		marks := ""
		for _, x := range given {
			marks += f.mark(x) + partBorder
		}
		messages[i].Content = marks + messages[i].Content
		f.maps("images", "the beginning of the first turn of user")
	case len(given) == 0 && len(places) > 0:
		return fmt.Errorf("the messages have places for %d images, each %s or part of type image without a path, and the row has none: give them in a field images, or remove the places", len(places), textMark)
	case len(places) != len(given):
		return fmt.Errorf("the messages have places for %d images, and the row has %d: each %s, or part of type image without a path, is one", len(places), len(given), textMark)
	}
	for i, n := range places {
		f.images[n] = given[i]
	}
	for _, m := range messages {
		for _, n := range imagesIn(m.Content) {
			c.images = append(c.images, f.images[n])
		}
	}
	return nil
}

// rowImages takes the fields of a row with images.
func (f *rows) rowImages(v *view) (images []imageSource, err error) {
	from := ""
	for _, name := range imageFields {
		x := v.take(name)
		if empty(x) {
			continue
		}
		if from != "" {
			return nil, fmt.Errorf("both %s and %s, want one of them: -map %s= leaves it out", from, name, name)
		}
		from = name
		items, isList := x.(list)
		if !isList {
			items = list{x}
		}
		for i, item := range items {
			one, err := f.imageOf(item, false)
			if err != nil {
				return nil, fmt.Errorf("%s: image %d: %w", name, i, err)
			}
			images = append(images, one)
		}
	}
	return images, nil
}

// markTexts puts marks in place of <image>, each as a part of its own, without the white space around it.
func (f *rows) markTexts(text string) string {
	var parts []string
	for i, piece := range strings.Split(text, textMark) {
		if i > 0 {
			parts = append(parts, f.mark(imageSource{}))
		}
		if piece = strings.TrimSpace(piece); piece != "" {
			parts = append(parts, piece)
		}
	}
	return strings.Join(parts, partBorder)
}

// imagesIn returns the numbers of the marks in a content.
func imagesIn(content string) (list []int) {
	for {
		_, after, found := strings.Cut(content, imageBegin)
		if !found {
			return list
		}
		number := 0
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
		return strings.ContainsAny(x, imageBegin+imageEnd+partBorder)
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
			case part != "":
				parts = append(parts, chat.Object{{Name: "type", Value: "text"}, {Name: "text", Value: part}})
			}
		}
		messages[i].Content, messages[i].Fields = "", append(chat.Object{{Name: "content", Value: parts}}, m.Fields...)
	}
	c.Messages = messages
	return c
}

// pictures reads the headers of images, and notes where they are.
func (r *reader) pictures(list []imageSource) (out []picture, err error) {
	for i, x := range list {
		p, err := r.picture(x)
		if err != nil {
			return nil, fmt.Errorf("image %d: %w", i, err)
		}
		out = append(out, p)
	}
	return out, nil
}

func (r *reader) picture(x imageSource) (p picture, err error) {
	data := x.data
	p.white = x.white
	if p.path = x.path; p.path != "" {
		if data, err = r.readImage(p.path); err != nil {
			return p, err
		}
	}
	p.sum, p.size = sha256.Sum256(data), len(data)
	width, height, err := vision.DecodeSize(data, r.decoding(&p))
	if err == nil {
		p.layout, err = r.options.Images.Processor.Layout(width, height)
	}
	if err == nil {
		p.rows, err = r.options.Images.Rows(p.layout)
	}
	switch {
	case err != nil && p.path != "":
		return p, fmt.Errorf("%s: %w", p.path, err)
	case err != nil || p.path != "":
		return p, err
	}
	p.at = r.blobs.written
	return p, r.blobs.write(data, "images in rows", "images")
}

// expand puts the tokens of images in place of their placeholders in a labeled text.
func (r *reader) expand(l *chat.Labeled, pictures []picture) error {
	places, err := r.options.Images.Processor.Places(l.Text, layoutsOf(pictures)...)
	if err != nil {
		return fmt.Errorf("the chat template does not write the images of the row: %w", err)
	}
	var b strings.Builder
	from, grown, turn := 0, 0, 0
	for _, x := range places {
		for ; turn < len(l.Turns) && l.Turns[turn].Begin <= x.Begin; turn++ {
			l.Turns[turn].Begin, l.Turns[turn].End = l.Turns[turn].Begin+grown, l.Turns[turn].End+grown
		}
		b.WriteString(l.Text[from:x.Begin])
		b.WriteString(x.Text)
		from, grown = x.End, grown+len(x.Text)-(x.End-x.Begin)
	}
	for ; turn < len(l.Turns); turn++ {
		l.Turns[turn].Begin, l.Turns[turn].End = l.Turns[turn].Begin+grown, l.Turns[turn].End+grown
	}
	b.WriteString(l.Text[from:])
	l.Text = b.String()
	return nil
}

// labelPrompt returns the tokens of images, a prompt and its answer, which the model sees as a prefix and what follows it, as
// transformers' PaliGemmaProcessor makes them of text and suffix.
func (r *reader) labelPrompt(c content, pictures []picture) ([]int32, error) {
	prompt, err := r.options.Images.Processor.Expand(c.prompt, layoutsOf(pictures)...)
	if err != nil {
		return nil, err
	}
	end, err := r.ending()
	if err != nil {
		return nil, err
	}
	o := tokenizer.EncodeOptions{NoSpecial: true}
	ids, err := labels(r.tok, prompt, nil, -1, o)
	if err != nil {
		return nil, err
	}
	answer, err := labels(r.tok, c.answer, []span{{End: len(c.answer)}}, end, o)
	if err != nil {
		return nil, err
	}
	return append(ids, answer...), r.checkRows(ids, pictures)
}

func layoutsOf(pictures []picture) []vision.Layout {
	layouts := make([]vision.Layout, len(pictures))
	for i, p := range pictures {
		layouts[i] = p.layout
	}
	return layouts
}

// checkRows returns an error unless the tokens have a row of the text for each row of the images.
func (r *reader) checkRows(ids []int32, pictures []picture) error {
	want := 0
	for _, p := range pictures {
		want += p.rows
	}
	if n := r.rowsIn(ids); n != want {
		name, _ := r.tok.Token(r.options.Images.Token())
		return fmt.Errorf("the text has %d times the token %q, and its images have %d rows: the row's own text has it, or the files of the processor are not the model's: %w", n, name, want, snug.ErrConfig)
	}
	return nil
}

// rowsIn counts the placeholders of rows of images.
func (r *reader) rowsIn(ids []int32) (n int) {
	token := r.options.Images.Token()
	for _, id := range ids {
		if id == token || id == ^token {
			n++
		}
	}
	return n
}

// Images returns the number of images of all samples. Their numbers are 0 to Images-1.
func (s *Set) Images() int { return len(s.pictures) }

// Layout returns the layout of an image, whose number is one of a [Batch].
func (s *Set) Layout(image int) vision.Layout { return s.pictures[image].layout }

// Pixels reads and processes an image, whose number is one of a [Batch]. It takes the file, its pixels and what
// [vision.Layout].Bytes says. The error wraps [snug.ErrCorrupt] for a file that is damaged, or has changed since [Open].
func (s *Set) Pixels(image int) (vision.Pixels, error) {
	p := &s.pictures[image]
	data, err := s.file(p)
	var m *vision.Image
	if err == nil {
		m, err = vision.Decode(bytes.NewReader(data), s.decoding(p))
	}
	var x vision.Pixels
	if err == nil {
		x, err = s.options.Images.Processor.Process(m)
	}
	if err != nil && p.path != "" && !strings.Contains(err.Error(), p.path) {
		err = fmt.Errorf("%s: %w", p.path, err)
	}
	if err != nil {
		return x, fmt.Errorf("dataset: image %d: %w", image, err)
	}
	return x, nil
}

// file returns the file of an image.
func (s *Set) file(p *picture) ([]byte, error) {
	if p.path == "" {
		data := make([]byte, p.size)
		return data, s.blobs.readAt(data, p.at, "images")
	}
	data, err := s.readImage(p.path)
	if err == nil && sha256.Sum256(data) != p.sum {
		err = fmt.Errorf("the file has changed since the data was read: %w", snug.ErrCorrupt)
	}
	return data, err
}

// ImagesEach yields for every sample, in the order of the files, its number and how many tokens of the text its images have.
func (s *Set) ImagesEach() iter.Seq2[int, int] {
	return func(yield func(int, int) bool) {
		for n := range s.list.n {
			x, rows := s.list.get(n), 0
			for i := x.images[0]; i < x.images[1]; i++ {
				rows += s.pictures[i].rows
			}
			if !yield(n, rows) {
				return
			}
		}
	}
}

// ImageSum tells what [Set.Pixels] decodes: the SHA-256 of an image's file, and of how it is decoded.
func (s *Set) ImageSum(image int) [sha256.Size]byte {
	p := &s.pictures[image]
	if p.white {
		return sha256.Sum256(append(p.sum[:len(p.sum):len(p.sum)], "on white"...))
	}
	return p.sum
}

// DecodeBytes returns about how much memory [Set.Pixels] takes for an image beside what [vision.Layout].Bytes says: the file, and its pixels as the
// decoder has them and in RGB.
func (s *Set) DecodeBytes(image int) int64 {
	p := &s.pictures[image]
	return int64(p.size) + pixelBytes*int64(p.layout.OriginalWidth)*int64(p.layout.OriginalHeight)
}

// pixelBytes is about the most that a pixel takes while a file is decoded.
const pixelBytes = 11

// decoding returns the limits of an image, which with Options.Memory has no more pixels than fit in it.
func (s *Set) decoding(p *picture) vision.DecodeOptions {
	o := vision.DecodeOptions{OnWhite: p.white}
	if s.options.Memory > 0 {
		o.Pixels = int(min(vision.DefaultPixels, max(s.options.Memory, leastMemory)/pixelBytes))
	}
	return o
}

// readImage reads the file of an image. A file larger than Options.Memory is an error.
func (s *Set) readImage(path string) ([]byte, error) {
	most := max(s.options.Memory, leastMemory)
	if info, err := os.Stat(path); err == nil && s.options.Memory > 0 && info.Size() > most {
		return nil, fmt.Errorf("%s: the file has %d bytes, and %d may be read: %w", path, info.Size(), most, snug.ErrNoMemory)
	}
	return files.ReadInput(path, files.Image)
}

// ImagesOf returns the numbers of the images on which steps first to last-1 of so many samples train, see [Set.Batch], and of those that are held
// out, in rising order.
func (s *Set) ImagesOf(first, last, samples int) (list []int) {
	needed := make([]bool, len(s.pictures))
	need := func(x sample) {
		for i := x.images[0]; i < x.images[1]; i++ {
			needed[i] = true
		}
	}
	n, begun := int64(s.training()), s.epoch
	for i := range min(int64(last-first)*int64(samples), 2*n) { // 2·n in a row contain a whole epoch
		need(s.sample(s.number(int64(first)*int64(samples) + i)))
	}
	if begun >= 0 {
		s.enter(begun)
	}
	for k := range s.held {
		need(s.sample(int(n) + k))
	}
	for i, is := range needed {
		if is {
			list = append(list, i)
		}
	}
	return list
}
