package vision

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/files"
	"github.com/snug-ml/snug/internal/strictjson"
)

// family is an image processor of transformers, in one file each.
type family struct {
	types    []string // image_processor_type, without "Fast"
	models   []string // model_type of config.json whose processor it is where no type is given
	defaults config
	read     func(c *config, f *fields) error // fields of its own; nil if there are none
	plan     func(c *config, from size) (plan, error)
	limit    func(c *config, pixels int) // sets the most pixels of an image; nil where the files say the size of all images
}

// families are all of them.
var families = []*family{&clipFamily, &siglipFamily, &vitFamily, &deitFamily, &bitFamily, &qwenFamily, &gemma3Family, &llavaFamily, &llavaNextFamily, &idefics3Family, &samFamily}

// Processor turns images into the values that a model takes. It does not change, and serves any number of goroutines.
type Processor struct {
	kind    string
	family  *family
	config  config
	prompt  *prompt // nil for a model without text
	texts   texts
	backend Backend
	video   *video // nil without videos
	noVideo error  // why, where the files should say more
}

// Pixels is an image as the model takes it: float32 values in the order of their shape.
type Pixels struct {
	Layout
	Values []float32
}

// OpenProcessor reads how a model wants its images: preprocessor_config.json, or processor_config.json where that has
// "image_processor", and of the text from processor_config.json, tokenizer_config.json and config.json. It knows the image
// processors CLIP, SigLIP, ViT, DeiT, Bit (DINOv2), Qwen2VL (also of Qwen2.5-VL, Qwen3-VL and Qwen3.5), Gemma3, Llava, LlavaNext, Idefics3, SmolVLM and Sam.
//
// It computes what AutoImageProcessor computes, with the backend [Torchvision]; see [Processor.Using] for the other one. Fields that
// transformers reads are honoured, and fields that it passes over are passed over.
//
// Errors wrap [snug.ErrConfig] for what cannot be done as the files say, with the field's name, [snug.ErrCorrupt] for files that are
// damaged, and the error of the operating system.
func OpenProcessor(dir string) (*Processor, error) {
	if dir == "" {
		return nil, fmt.Errorf("vision: no folder of a model: %w", snug.ErrConfig)
	}
	p, err := processor(func(name string) ([]byte, error) { return files.ReadInput(filepath.Join(dir, name), files.Description) })
	if err != nil {
		return nil, fmt.Errorf("vision: %s: %w", dir, err)
	}
	return p, nil
}

// processorFields are the keys of processor_config.json about images; textFields has those about the text.
type processorFields struct {
	Image *fields `json:"image_processor"`
}

// folder reads JSON files of a model's folder.
type folder func(name string) ([]byte, error)

// read decodes a file, if it is there.
func (f folder) read(name string, into any) (found bool, err error) {
	data, err := f(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if err := lenient.Unmarshal(strictjson.Python(data), into); err != nil {
		return true, fmt.Errorf("%s: %w: %w", name, err, snug.ErrCorrupt)
	}
	return true, nil
}

// errNoPixels says that a folder has no image processor.
var errNoPixels = fmt.Errorf("no %s, and no image_processor in processor_config.json: %w", pixelsName, snug.ErrConfig)

// processor reads the files of a folder.
func processor(dir folder) (*Processor, error) {
	const nested, own = "processor_config.json", pixelsName
	var outer processorFields
	if _, err := dir.read(nested, &outer); err != nil {
		return nil, err
	}
	f, name := outer.Image, nested
	if f == nil {
		f, name = &fields{}, own
		found, err := dir.read(own, f)
		if err != nil {
			return nil, err
		}
		if !found {
			return nil, errNoPixels
		}
	}
	var model struct {
		Type *string `json:"model_type"`
	}
	if _, err := dir.read("config.json", &model); err != nil {
		return nil, err
	}
	p := &Processor{}
	if err := p.find(f, model.Type); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	p.config = p.family.defaults
	if err := p.config.read(f); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if p.family.read != nil {
		if err := p.family.read(&p.config, f); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	if err := p.checkFilter(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if err := p.readTexts(dir, f, model.Type); err != nil {
		return nil, err
	}
	p.readVideo(dir, model.Type)
	return p, nil
}

// find chooses the family by the type, or by the model where the file has none.
func (p *Processor) find(f *fields, model *string) error {
	kind := ""
	switch {
	case f.Type != nil:
		kind = *f.Type
	case f.Extractor != nil:
		kind = strings.ReplaceAll(*f.Extractor, "FeatureExtractor", "ImageProcessor")
	}
	p.kind = strings.TrimSuffix(kind, "Fast")
	for _, family := range families {
		if kind == "" && model != nil && slices.Contains(family.models, *model) {
			p.family, p.kind = family, family.types[0]
			return nil
		}
		if slices.Contains(family.types, p.kind) {
			p.family = family
			return nil
		}
	}
	if kind == "" {
		return fmt.Errorf("no image_processor_type, and no model_type in config.json whose processor is known: %w", snug.ErrConfig)
	}
	return fmt.Errorf("image_processor_type %.60q, want one of %s: %w", kind, strings.Join(Types(), ", "), snug.ErrConfig)
}

// checkFilter knows that a processor that does not resize needs no filter.
func (p *Processor) checkFilter() error {
	if !p.config.resize && p.config.tile == 0 {
		return nil
	}
	return p.backend.check(p.config.filter)
}

// Types returns the values of image_processor_type that are known.
func Types() []string {
	var out []string
	for _, f := range families {
		out = append(out, f.types...)
	}
	return out
}

var errNoProcessor = fmt.Errorf("vision: processor that OpenProcessor did not make: %w", snug.ErrConfig)

func (p *Processor) made() bool { return p != nil && p.family != nil }

// Type returns the image_processor_type, without "Fast".
func (p *Processor) Type() string {
	if !p.made() {
		return ""
	}
	return p.kind
}

// Using returns the processor with the arithmetic of another backend.
func (p *Processor) Using(b Backend) (*Processor, error) {
	if !p.made() {
		return nil, errNoProcessor
	}
	other := *p
	other.backend = b
	if !b.known() {
		return nil, fmt.Errorf("vision: %w", b.check(p.config.filter))
	}
	if err := other.checkFilter(); err != nil {
		return nil, fmt.Errorf("vision: %w", err)
	}
	return &other, nil
}

// MaxPixels returns the processor with another limit of the pixels of an image, or of a frame of a video, which is made smaller if it has more: longest_edge of
// size, for processors of images of any size, Qwen's. The error wraps [snug.ErrConfig] for others, and for fewer pixels than one token has.
func (p *Processor) MaxPixels(pixels int) (*Processor, error) {
	if !p.made() {
		return nil, errNoProcessor
	}
	least := p.config.patch * p.config.merge * p.config.patch * p.config.merge
	switch {
	case p.family.limit == nil:
		return nil, fmt.Errorf("vision: %s: the size of images is that of the model: %w", p.kind, snug.ErrConfig)
	case pixels < least:
		return nil, fmt.Errorf("vision: %s: %d pixels, want at least the %d of a token: %w", p.kind, pixels, least, snug.ErrConfig)
	}
	other := *p
	p.family.limit(&other.config, pixels)
	other.video = p.video.limit(pixels)
	return &other, nil
}

// Layout returns what Process makes of an image of a size in pixels, without one. Errors wrap [snug.ErrShape], [snug.ErrNoMemory] and [snug.ErrConfig].
func (p *Processor) Layout(width, height int) (Layout, error) {
	_, l, err := p.plan(width, height)
	return l, err
}

func (p *Processor) plan(width, height int) (plan, Layout, error) {
	if !p.made() {
		return plan{}, Layout{}, errNoProcessor
	}
	if width < 1 || height < 1 {
		return plan{}, Layout{}, fmt.Errorf("vision: image of %d x %d pixels, want at least 1 x 1: %w", width, height, snug.ErrShape)
	}
	from := size{height, width}
	way, err := p.family.plan(&p.config, from)
	if err == nil {
		err = way.check(from)
	}
	if err != nil {
		return plan{}, Layout{}, fmt.Errorf("vision: %s: %w", p.kind, err)
	}
	l := way.layout(from, p.config.filter)
	if p.prompt != nil {
		l.Tokens = p.prompt.tokens(&p.texts, l, from)
	}
	return way, l, nil
}

// Process returns the values of an image: resized, cropped, split and padded as the model's files say, as (x/255 - mean)/std, in planes
// of a channel or in patches. They have the same bits for any GOMAXPROCS. It allocates at most [Layout].Bytes. Errors are those of
// [Processor.Layout].
func (p *Processor) Process(m *Image) (Pixels, error) {
	if err := m.check(); err != nil {
		return Pixels{}, fmt.Errorf("vision: %w", err)
	}
	way, l, err := p.plan(m.Width, m.Height)
	if err != nil {
		return Pixels{}, err
	}
	return Pixels{l, way.run(m, &p.config, backends[p.backend])}, nil
}
