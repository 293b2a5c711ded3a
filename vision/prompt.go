package vision

import (
	"fmt"
	"slices"
	"strings"

	"github.com/snug-ml/snug"
)

// prompt is how the text of a model has images, a processor class of transformers, beside the family that most of its models have.
type prompt struct {
	classes  []string // processor_class
	models   []string // model_type of config.json where no class is given
	defaults texts
	read     func(t *texts, c *config) error           // nil if there is nothing to check
	mark     func(t *texts) string                     // what stands for an image in a rendered prompt
	tokens   func(t *texts, l Layout, from size) int   // how many of them, for an image of a size
	text     func(t *texts, l Layout) string           // what replaces the mark
	whole    func(t *texts, text string, n int) string // what is done with the prompt before; nil for nothing
	video    *videoPrompt                              // nil for a class without videos
}

// videoPrompt is how the text of a model has videos.
type videoPrompt struct {
	mark   func(t *texts) string
	tokens func(t *texts, l Layout) int
	text   func(t *texts, l Layout) string
}

// prompts are all of them.
var prompts = []*prompt{&qwenPrompt, &qwen3Prompt, &gemma3Prompt, &llavaPrompt, &llavaNextPrompt, &idefics3Prompt, &smolvlmPrompt, &paligemmaPrompt}

// texts are the tokens and numbers that prompts are made of.
type texts struct {
	image, begin, end  string // image_token, boi_token, eoi_token
	fake, global       string // fake_image_token, global_image_token
	video, start, stop string // video_token, vision_start_token, vision_end_token
	bos                string // bos_token
	length             int    // tokens of an image or a tile
	patch, extra, drop int    // LLaVA: pixels of a patch, tokens besides patches, tokens left out
}

// textFields are the keys of processor_config.json about the text.
type textFields struct {
	Class    *string `json:"processor_class"`
	Length   any     `json:"image_seq_length"`
	Len      any     `json:"image_seq_len"`
	Patch    any     `json:"patch_size"`
	Extra    any     `json:"num_additional_image_tokens"`
	Strategy *string `json:"vision_feature_select_strategy"`
	Image    any     `json:"image_token"`
}

// tokenFields are the keys of tokenizer_config.json about images. A token is a string or an object with "content".
type tokenFields struct {
	Class  *string `json:"processor_class"`
	Image  any     `json:"image_token"`
	Begin  any     `json:"boi_token"`
	End    any     `json:"eoi_token"`
	Fake   any     `json:"fake_image_token"`
	Global any     `json:"global_image_token"`
	Video  any     `json:"video_token"`
	Start  any     `json:"vision_start_token"`
	Stop   any     `json:"vision_end_token"`
	BOS    any     `json:"bos_token"`
	Extra  any     `json:"extra_special_tokens"`
	Model  any     `json:"model_specific_special_tokens"`
}

// readTexts finds the prompt by the class of the processor, which the files name in the order in which AutoProcessor asks them.
func (p *Processor) readTexts(dir folder, f *fields, model *string) error {
	var outer textFields
	var tokens tokenFields
	if _, err := dir.read("processor_config.json", &outer); err != nil {
		return err
	}
	if _, err := dir.read("tokenizer_config.json", &tokens); err != nil {
		return err
	}
	for _, class := range []*string{outer.Class, f.Class, tokens.Class} {
		if class != nil {
			p.prompt = promptOf(func(q *prompt) bool { return slices.Contains(q.classes, *class) })
			model = nil
			break
		}
	}
	if model != nil {
		p.prompt = promptOf(func(q *prompt) bool { return slices.Contains(q.models, *model) })
	}
	if p.prompt == nil {
		return nil
	}
	t := p.prompt.defaults
	r := reader{}
	r.count("image_seq_len", outer.Len, &t.length)
	r.count("image_seq_length", outer.Length, &t.length)
	r.count("patch_size", outer.Patch, &t.patch)
	if n, ok := whole(outer.Extra); ok && n >= 0 {
		t.extra = n
	} else if outer.Extra != nil {
		r.fail("num_additional_image_tokens", outer.Extra, "a number from 0")
	}
	if outer.Strategy != nil && *outer.Strategy == "default" {
		t.drop = 1
	}
	tokenOf(outer.Image, &t.image)
	tokens.apply(&t)
	if t.length > mostTokens || t.extra > mostTokens {
		r.fail("image_seq_len, image_seq_length or num_additional_image_tokens", max(t.length, t.extra), fmt.Sprintf("at most %d", mostTokens))
	}
	if r.err != nil {
		return fmt.Errorf("processor_config.json: %w", r.err)
	}
	p.texts = t
	if p.prompt.read != nil {
		if err := p.prompt.read(&p.texts, &p.config); err != nil {
			return err
		}
	}
	return nil
}

func promptOf(is func(*prompt) bool) *prompt {
	if i := slices.IndexFunc(prompts, is); i >= 0 {
		return prompts[i]
	}
	return nil
}

// apply overwrites the tokens that the tokenizer names.
func (f *tokenFields) apply(t *texts) {
	named := map[string]*string{
		"image_token": &t.image, "boi_token": &t.begin, "eoi_token": &t.end, "fake_image_token": &t.fake, "global_image_token": &t.global,
		"video_token": &t.video, "vision_start_token": &t.start, "vision_end_token": &t.stop,
	}
	for _, extra := range []any{f.Model, f.Extra} {
		if m, ok := extra.(map[string]any); ok {
			for name, to := range named {
				tokenOf(m[name], to)
			}
		}
	}
	for name, value := range map[string]any{
		"image_token": f.Image, "boi_token": f.Begin, "eoi_token": f.End, "fake_image_token": f.Fake, "global_image_token": f.Global,
		"video_token": f.Video, "vision_start_token": f.Start, "vision_end_token": f.Stop,
	} {
		tokenOf(value, named[name])
	}
	tokenOf(f.BOS, &t.bos)
}

// tokenOf sets a token if there is one.
func tokenOf(value any, to *string) {
	if m, ok := value.(map[string]any); ok {
		value = m["content"]
	}
	if s, ok := value.(string); ok && s != "" {
		*to = s
	}
}

// errNoPrompt is what a processor without a text has for prompts.
func (p *Processor) errNoPrompt() error {
	return fmt.Errorf("vision: %s: the files name no processor_class whose text has images, as Qwen2VLProcessor: %w", p.kind, snug.ErrConfig)
}

// Placeholder returns what stands for an image in a prompt that a chat template has rendered, as "<|image_pad|>", and "" for a
// model without text.
func (p *Processor) Placeholder() string {
	if !p.made() || p.prompt == nil {
		return ""
	}
	return p.prompt.mark(&p.texts)
}

// VideoPlaceholder is Placeholder for a video, as "<|video_pad|>", and "" for a model whose text has no videos.
func (p *Processor) VideoPlaceholder() string {
	if !p.made() || p.prompt == nil || p.prompt.video == nil {
		return ""
	}
	return p.prompt.video.mark(&p.texts)
}

// Text returns what the text has in place of one placeholder, for an image or a video of a layout: Layout.Tokens tokens, and the marks
// around and between them. The error wraps [snug.ErrConfig] for a model without text.
func (p *Processor) Text(l Layout) (string, error) {
	if !p.made() {
		return "", errNoProcessor
	}
	if p.prompt == nil {
		return "", p.errNoPrompt()
	}
	if err := l.check(); err != nil {
		return "", err
	}
	if tiles := int64(l.Rows)*int64(l.Columns) + 1; tiles*int64(p.texts.length) > mostTokens {
		return "", fmt.Errorf("vision: layout of %d tiles with %d tokens each, want at most %d tokens: %w", tiles, p.texts.length, mostTokens, snug.ErrShape)
	}
	if l.Frames == 0 {
		return p.prompt.text(&p.texts, l), nil
	}
	if p.prompt.video == nil {
		return "", p.errNoVideo()
	}
	if len(l.Times) != l.Grid[0] {
		return "", fmt.Errorf("vision: layout of a video with %d patches along time, and the times of %d: %w", l.Grid[0], len(l.Times), snug.ErrShape)
	}
	return p.prompt.video.text(&p.texts, l), nil
}

// mostTokens is the most tokens or tiles that an image has in a text.
const mostTokens = 1 << 20

// check returns an error if a layout has sizes that no image has.
func (l Layout) check() error {
	for _, n := range append([]int{l.Tokens, l.Rows, l.Columns, l.Merge, l.Frames}, l.Grid[:]...) {
		if n < 0 || n > mostTokens {
			return fmt.Errorf("vision: layout has %d tokens, tiles or patches, want from 0 to %d: %w", n, mostTokens, snug.ErrShape)
		}
	}
	if int64(l.Rows)*int64(l.Columns) > mostTokens {
		return fmt.Errorf("vision: layout of %d x %d tiles, want at most %d: %w", l.Columns, l.Rows, mostTokens, snug.ErrShape)
	}
	return nil
}

// Expand returns a rendered prompt with the text of each image in place of its placeholder, in turn, as the processor's call makes it
// before the tokenizer sees it. There are as many images as placeholders, otherwise the error wraps [snug.ErrShape].
func (p *Processor) Expand(text string, images ...Layout) (string, error) {
	if !p.made() {
		return "", errNoProcessor
	}
	if p.prompt == nil {
		return "", p.errNoPrompt()
	}
	if p.prompt.whole != nil {
		text = p.prompt.whole(&p.texts, text, len(images))
	}
	list, err := p.places(text, images)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	from := 0
	for _, x := range list {
		b.WriteString(text[from:x.Begin])
		b.WriteString(x.Text)
		from = x.End
	}
	b.WriteString(text[from:])
	return b.String(), nil
}

// WholePrompt reports whether the processor makes the whole text of a prompt: images, a beginning, what is asked and a line feed, as PaliGemma's
// does, for which there is no chat template.
func (p *Processor) WholePrompt() bool { return p.made() && p.prompt != nil && p.prompt.whole != nil }

// Place is where a rendered prompt has the placeholder of an image, and what stands in its place.
type Place struct {
	Begin, End int // bytes of the prompt
	Text       string
}

// Places returns what Expand puts into a rendered prompt and where, for a caller that must know which bytes of the text are where. Errors
// are those of [Processor.Expand], and wrap [snug.ErrConfig] for a processor that writes more than images, PaliGemma's.
func (p *Processor) Places(text string, images ...Layout) ([]Place, error) {
	if !p.made() {
		return nil, errNoProcessor
	}
	if p.prompt == nil {
		return nil, p.errNoPrompt()
	}
	if p.prompt.whole != nil {
		return nil, fmt.Errorf("vision: %s: the processor writes more into a prompt than its images: %w", p.kind, snug.ErrConfig)
	}
	return p.places(text, images)
}

func (p *Processor) places(text string, images []Layout) (list []Place, err error) {
	marks := [2]string{p.prompt.mark(&p.texts), p.VideoPlaceholder()} // of images, of videos
	for kind, name := range []string{"images", "videos"} {
		if n, want := count(text, marks[kind]), countKind(images, kind); n != want {
			if kind == 1 && p.prompt.video == nil {
				return nil, p.errNoVideo()
			}
			return nil, fmt.Errorf("vision: %d times %q in the text, want one for each of %d %s: %w", n, marks[kind], want, name, snug.ErrShape)
		}
	}
	at := 0
	for i, l := range images {
		kind, next := 0, strings.Index(text[at:], marks[0])
		if n := strings.Index(text[at:], marks[1]); marks[1] != "" && n >= 0 && (next < 0 || n < next) {
			kind, next = 1, n
		}
		if kind != kindOf(l) {
			return nil, fmt.Errorf("vision: the text has %q where layout %d is of an image or a video otherwise, want layouts in the order of the text: %w", marks[kind], i, snug.ErrShape)
		}
		at += next
		x := Place{Begin: at, End: at + len(marks[kind])}
		if x.Text, err = p.Text(l); err != nil {
			return nil, err
		}
		list, at = append(list, x), x.End
	}
	return list, nil
}

// kindOf returns 0 for an image and 1 for a video.
func kindOf(l Layout) int { return min(max(l.Frames, 0), 1) }

func countKind(list []Layout, kind int) (n int) {
	for _, l := range list {
		if kindOf(l) == kind {
			n++
		}
	}
	return n
}

func count(text, mark string) int {
	if mark == "" {
		return 0
	}
	return strings.Count(text, mark)
}
