package dataset

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/url"
	"path/filepath"
	"slices"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/chat"
	"github.com/snug-ml/snug/tokenizer"
	"github.com/snug-ml/snug/vision"
)

// imageParts are the types of parts that are images.
var imageParts = []string{"image", "image_url", "input_image"}

// imageSource is where an image comes from. Neither a path nor data: the row has it in a field.
type imageSource struct {
	path  string // of a file
	data  []byte // of a file
	white bool   // alpha lies on white, as in a table's image, which is no file to transformers
	video *videoSource
}

func (x imageSource) missing() bool {
	return x.path == "" && x.data == nil && (x.video == nil || len(x.video.paths) == 0)
}

// medium is what the source is of.
func (x imageSource) medium() *medium {
	if x.video != nil {
		return media[1]
	}
	return media[0]
}

// picture is an image or a video of a sample. It takes about 300 bytes of memory, and a video a name for each frame.
type picture struct {
	video  *videoFrames
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
	return fmt.Sprint(x.medium().begin, len(f.images)-1, imageEnd)
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
			return imageSource{}, fmt.Errorf("%s: nothing is downloaded here: save the file, and give its path", shortJSON(name))
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

// pictures reads the headers of images, and notes where they are.
func (r *reader) pictures(list []imageSource) (out []picture, err error) {
	for i, x := range list {
		var p picture
		if x.video != nil {
			p, err = r.clip(x.video)
		} else {
			p, err = r.picture(x)
		}
		if err != nil {
			return nil, fmt.Errorf("%s %d: %w", strings.TrimSuffix(x.medium().plural, "s"), i, err)
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
	return append(ids, answer...), r.checkRows(ids, pictures, false)
}

func layoutsOf(pictures []picture) []vision.Layout {
	layouts := make([]vision.Layout, len(pictures))
	for i, p := range pictures {
		layouts[i] = p.layout
	}
	return layouts
}

// checkRows returns an error unless the tokens have a row of the text for each row of the images and videos. A text that was cut may have fewer.
func (r *reader) checkRows(ids []int32, pictures []picture, cut bool) error {
	var want [2]int
	for _, p := range pictures {
		if p.video != nil {
			want[1] += p.rows
		} else {
			want[0] += p.rows
		}
	}
	for kind, token := range []int32{r.options.Images.Token(), r.options.Images.VideoToken()} {
		if n := countToken(ids, token); n > want[kind] || n < want[kind] && !cut {
			name, _ := r.tok.Token(token)
			return fmt.Errorf("the text has %d times the token %q, and its %s have %d rows: the row's own text has it, or the files of the processor are not the model's: %w", n, name, media[kind].plural, want[kind], snug.ErrConfig)
		}
	}
	return nil
}

// rowsWanted returns how many rows of the text images and videos have.
func rowsWanted(pictures []picture) (n int) {
	for _, p := range pictures {
		n += p.rows
	}
	return n
}

// kindsOf says whether there are videos.
func kindsOf(pictures []picture) string {
	if slices.ContainsFunc(pictures, func(p picture) bool { return p.video != nil }) {
		return "images and videos"
	}
	return "images"
}

// rowsIn counts the placeholders of rows of images and videos.
func (r *reader) rowsIn(ids []int32) (n int) {
	return countToken(ids, r.options.Images.Token()) + countToken(ids, r.options.Images.VideoToken())
}

// countToken counts a token, also where it is not learned; none is below 0.
func countToken(ids []int32, token int32) (n int) {
	for _, id := range ids {
		if token >= 0 && (id == token || id == ^token) {
			n++
		}
	}
	return n
}
