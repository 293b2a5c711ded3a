package vision

import (
	"encoding/json"
	"fmt"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/strictjson"
)

// fields are the keys of preprocessor_config.json, or of "image_processor" in processor_config.json, that change what an image
// processor of transformers computes. null is as if the key were not there. Other keys are passed over, as transformers does.
type fields struct {
	Type       *string `json:"image_processor_type"`
	Extractor  *string `json:"feature_extractor_type"`
	Class      *string `json:"processor_class"`
	Resize     *bool   `json:"do_resize"`
	Size       any     `json:"size"`
	Square     *bool   `json:"default_to_square"`
	Resample   any     `json:"resample"`
	CenterCrop *bool   `json:"do_center_crop"`
	CropSize   any     `json:"crop_size"`
	Rescale    *bool   `json:"do_rescale"`
	Factor     any     `json:"rescale_factor"`
	Normalize  *bool   `json:"do_normalize"`
	Mean       any     `json:"image_mean"`
	Std        any     `json:"image_std"`
	ConvertRGB *bool   `json:"do_convert_rgb"` // images are RGB already
	Pad        *bool   `json:"do_pad"`
	PadSize    any     `json:"pad_size"`
	SeqLength  any     `json:"image_seq_length"`
	MinPixels  any     `json:"min_pixels"`
	MaxPixels  any     `json:"max_pixels"`
	Patch      any     `json:"patch_size"`
	Temporal   any     `json:"temporal_patch_size"`
	Merge      any     `json:"merge_size"`
	Split      *bool   `json:"do_image_splitting"`
	TileSize   any     `json:"max_image_size"`
	PanAndScan *bool   `json:"do_pan_and_scan"`
	Pinpoints  any     `json:"image_grid_pinpoints"`
	SquareSize *bool   `json:"use_square_size"`
}

// lenient reads a file of a model's folder: unknown keys are passed over.
var lenient = strictjson.Options{Open: true}

// size is a number of rows and columns.
type size struct{ height, width int }

// sizes is a field of a size in one of its forms; what is not given is 0.
type sizes struct{ height, width, shortest, longest, maxHeight, maxWidth, minPixels, maxPixels int }

// config is what a processor does, with the defaults of its class.
type config struct {
	resize, crop, rescale, normalize, pad bool

	size            sizes
	square          bool // a number for size is height and width, not the shortest edge
	filter          Filter
	cropSize        size
	factor          float64
	mean, std       [3]float64
	padSize         size
	seqLength       int // image_seq_length: tokens of an image, 0 if not given
	patch, temporal int
	merge           int
	split           bool
	tile            int // max_image_size.longest_edge
	background      [3]byte
	resolutions     []size // image_grid_pinpoints
}

// The means and standard deviations of image_utils.py.
var (
	imagenetMean = [3]float64{0.485, 0.456, 0.406}
	imagenetStd  = [3]float64{0.229, 0.224, 0.225}
	half         = [3]float64{0.5, 0.5, 0.5}
	clipMean     = [3]float64{0.48145466, 0.4578275, 0.40821073}
	clipStd      = [3]float64{0.26862954, 0.26130258, 0.27577711}
)

// usual returns the attributes that most classes have.
func usual(s sizes, f Filter, mean, std [3]float64) config {
	return config{resize: true, rescale: true, normalize: true, size: s, filter: f, factor: 1.0 / 255, mean: mean, std: std}
}

// read changes the defaults by the fields that all classes have.
func (c *config) read(f *fields) error {
	for _, b := range []struct {
		given *bool
		to    *bool
	}{
		{f.Resize, &c.resize}, {f.CenterCrop, &c.crop}, {f.Rescale, &c.rescale}, {f.Normalize, &c.normalize}, {f.Pad, &c.pad},
		{f.Square, &c.square}, {f.Split, &c.split},
	} {
		if b.given != nil {
			*b.to = *b.given
		}
	}
	r := reader{}
	r.sizes("size", f.Size, &c.size, c.square)
	r.size("crop_size", f.CropSize, &c.cropSize)
	r.size("pad_size", f.PadSize, &c.padSize)
	r.filter("resample", f.Resample, &c.filter)
	r.float("rescale_factor", f.Factor, &c.factor)
	r.channels("image_mean", f.Mean, &c.mean)
	r.channels("image_std", f.Std, &c.std)
	r.count("image_seq_length", f.SeqLength, &c.seqLength)
	switch {
	case r.err != nil:
		return r.err
	case c.rescale && c.factor == 0:
		return fmt.Errorf("rescale_factor is 0: %w", snug.ErrConfig)
	case c.normalize && (c.std[0] == 0 || c.std[1] == 0 || c.std[2] == 0):
		return fmt.Errorf("image_std has a 0: %w", snug.ErrConfig)
	case c.crop && c.cropSize == size{}:
		return fmt.Errorf("do_center_crop without crop_size: %w", snug.ErrConfig)
	}
	return nil
}

// reader reads values of fields that come in several forms. The first error stays.
type reader struct{ err error }

func (r *reader) fail(name string, value any, want string) {
	if r.err == nil {
		text, _ := json.Marshal(value)
		r.err = fmt.Errorf("%s is %.60s, want %s: %w", name, text, want, snug.ErrConfig)
	}
}

// mostCount is the largest number of pixels, patches or tokens that a field may have.
const mostCount = 1 << 28

// count reads a number above 0.
func (r *reader) count(name string, value any, to *int) {
	if value == nil {
		return
	}
	if n, ok := whole(value); ok && n >= 1 && n <= mostCount {
		*to = n
		return
	}
	r.fail(name, value, fmt.Sprintf("a number from 1 to %d", mostCount))
}

func whole(value any) (int, bool) {
	n, ok := value.(json.Number)
	if !ok {
		return 0, false
	}
	f, err := n.Float64() // 224.0 is 224
	if err != nil || f != math.Trunc(f) || math.Abs(f) > mostCount {
		return 0, false
	}
	return int(f), true
}

func (r *reader) float(name string, value any, to *float64) {
	if value == nil {
		return
	}
	n, ok := value.(json.Number)
	f, err := n.Float64()
	if !ok || err != nil {
		r.fail(name, value, "a number")
		return
	}
	*to = f
}

// channels reads a number for all channels, or one for each.
func (r *reader) channels(name string, value any, to *[3]float64) {
	list, ok := value.([]any)
	switch {
	case value == nil:
	case !ok:
		r.float(name, value, &to[0])
		to[1], to[2] = to[0], to[0]
	case len(list) == 1:
		r.channels(name, list[0], to)
	case len(list) != 3:
		r.fail(name, value, "3 numbers")
	default:
		for i, v := range list {
			if v == nil {
				r.fail(name, value, "3 numbers")
			}
			r.float(name, v, &to[i])
		}
	}
}

func (r *reader) filter(name string, value any, to *Filter) {
	if value == nil {
		return
	}
	n, ok := whole(value)
	if !ok || !Filter(n).known() {
		r.fail(name, value, fmt.Sprintf("a number from 0 to %d", len(kernels)-1))
		return
	}
	*to = Filter(n)
}

// forms are the sets of keys that a size may have: VALID_SIZE_DICT_KEYS.
var forms = [][]string{
	{"height", "width"}, {"shortest_edge"}, {"shortest_edge", "longest_edge"}, {"longest_edge"}, {"max_height", "max_width"}, {"min_pixels", "max_pixels"},
}

// sizes reads a size: a number, [height, width], or an object in one of its forms.
func (r *reader) sizes(name string, value any, to *sizes, square bool) {
	s := sizes{}
	parts := map[string]*int{
		"height": &s.height, "width": &s.width, "shortest_edge": &s.shortest, "longest_edge": &s.longest,
		"max_height": &s.maxHeight, "max_width": &s.maxWidth, "min_pixels": &s.minPixels, "max_pixels": &s.maxPixels,
	}
	switch v := value.(type) {
	case nil:
		return
	case json.Number:
		r.count(name, v, &s.shortest)
		if square {
			s = sizes{height: s.shortest, width: s.shortest}
		}
	case []any:
		if len(v) != 2 || v[0] == nil || v[1] == nil {
			r.fail(name, value, "[height, width]")
			return
		}
		r.count(name, v[0], &s.height)
		r.count(name, v[1], &s.width)
	case map[string]any:
		if !isForm(v) {
			r.fail(name, value, "the keys height and width, shortest_edge, longest_edge, both of these, or max_height and max_width")
			return
		}
		for key, n := range v {
			r.count(name+"."+key, n, parts[key])
		}
	default:
		r.fail(name, value, "a number, a list or an object")
		return
	}
	*to = s
}

func isForm(v map[string]any) bool {
	for _, form := range forms {
		if len(form) != len(v) {
			continue
		}
		n := 0
		for _, key := range form {
			if v[key] != nil {
				n++
			}
		}
		if n == len(v) {
			return true
		}
	}
	return false
}

// size reads a size that has height and width.
func (r *reader) size(name string, value any, to *size) {
	if value == nil {
		return
	}
	var s sizes
	r.sizes(name, value, &s, true)
	if r.err == nil && (s.height == 0 || s.width == 0) {
		r.fail(name, value, "height and width")
	}
	*to = size{s.height, s.width}
}
