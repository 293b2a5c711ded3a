package vision

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/strictjson"
)

// TowerConfig says what a vision transformer computes. Fields that it does not have are those of the family.
type TowerConfig struct {
	Family     string  // model_type of the model for classification: vit, deit, clip, siglip, dinov2 or dinov2_with_registers; idefics3_vision or smolvlm_vision
	Image      int     // pixels of the side of an image
	Positions  int     // of the images that the table of positions is of, which is interpolated to Image; 0: Image
	Patch      int     // pixels of the side of a patch; a rest of the image that is smaller is not seen
	Channels   int     // of a pixel
	Width      int     // elements of a row
	Hidden     int     // of an MLP
	Layers     int     // blocks of attention and MLP
	Heads      int     // of attention, which divide Width
	Activation string  // of MLPs, as hidden_act calls it: gelu, gelu_pytorch_tanh, quick_gelu, relu or silu
	Eps        float64 // of norms
	QKVBias    bool    // the matrices of queries, keys and values have biases; clip, siglip and those of Idefics3 and SmolVLM want true
	Registers  int     // rows of an image behind the class token that are no patches, of dinov2_with_registers
	Gated      bool    // MLPs are SwiGLU, of dinov2 and dinov2_with_registers; Activation does not count
	Labels     []string
	// Labels are the classes that the head tells apart; without them the model is a tower, whose output are its rows.
}

// Rows returns the rows of an image: its patches, its registers, and one for each class token of a family that has them.
func (c TowerConfig) Rows() int {
	if c.Patch < 1 || c.Image < c.Patch {
		return 0
	}
	n := c.Image / c.Patch
	return n*n + c.Registers + c.class()
}

// class returns the rows of class tokens.
func (c *TowerConfig) class() int {
	f, _ := byType(c.Family)
	switch {
	case f == nil || !f.class:
		return 0
	case f.spellings[0].distillation != "":
		return 2
	}
	return 1
}

// see sets the side of images, unless 0, whose positions are then interpolated.
func (c *TowerConfig) see(image int) {
	if image != 0 && image != c.Image {
		c.Image, c.Positions = image, cmp.Or(c.Positions, c.Image)
	}
}

// grid returns the side of the square of patches that the table of positions is of, and of an image.
func (c *TowerConfig) grid() (table, image int) {
	return cmp.Or(c.Positions, c.Image) / c.Patch, c.Image / c.Patch
}

// table returns the rows of the table of positions.
func (c *TowerConfig) table() int {
	n, _ := c.grid()
	return n*n + c.class()
}

// most is the largest size of a model: of the table of positions it is far above what memory has.
const most = 1 << 24

// mostLayers is more blocks than any tower has.
const mostLayers = 1 << 10

func (c *TowerConfig) check() (*towerFamily, error) {
	f, _ := byType(c.Family)
	if f == nil {
		return nil, fmt.Errorf("the Family is %.40q, want one of %q: %w", c.Family, modelTypes(), snug.ErrConfig)
	}
	for _, n := range []struct {
		name string
		of   int
	}{{"Image", c.Image}, {"Positions", cmp.Or(c.Positions, c.Image)}, {"Patch", c.Patch}, {"Channels", c.Channels}, {"Width", c.Width}, {"Hidden", c.Hidden}, {"Layers", c.Layers}, {"Heads", c.Heads}} {
		if n.of < 1 || n.of > most {
			return nil, fmt.Errorf("the field %s is %d, want 1 to 2^24: %w", n.name, n.of, snug.ErrConfig)
		}
	}
	_, known := activations[c.Activation]
	switch {
	case c.Patch > c.Image || c.Positions > 0 && c.Patch > c.Positions:
		return nil, fmt.Errorf("patches of %d pixels in images of %d: %w", c.Patch, cmp.Or(c.Positions, c.Image), snug.ErrConfig)
	case f.buckets && c.Positions != 0:
		return nil, fmt.Errorf("images of %d pixels, and the Family %q has positions for %d, which are not interpolated: %w", c.Image, c.Family, c.Positions, snug.ErrConfig)
	case len(c.Labels) > 0 && f.classifier == "":
		return nil, fmt.Errorf("there are Labels, and the Family %q has no model for classification: %w", c.Family, snug.ErrConfig)
	case c.Gated && f.spellings[0].gated[0] == "" || c.Registers != 0 && f.spellings[0].registers == "":
		return nil, fmt.Errorf("the fields Gated or Registers, which the Family %q does not have: %w", c.Family, snug.ErrConfig)
	case f.spellings[0].registers != "" && (c.Registers < 1 || c.Registers > most):
		return nil, fmt.Errorf("the field Registers is %d, want 1 to 2^24: %w", c.Registers, snug.ErrConfig)
	case 4*float64(c.Width)*float64(c.Width)+2*float64(c.Width)*float64(c.Hidden) > math.MaxInt32 || c.Layers > mostLayers:
		return nil, fmt.Errorf("%d Layers of a Width of %d and a Hidden of %d, want at most %d, of 2^31 elements each: %w", c.Layers, c.Width, c.Hidden, mostLayers, snug.ErrConfig)
	case c.Width%c.Heads != 0:
		return nil, fmt.Errorf("a Width of %d and %d Heads, want heads that divide it: %w", c.Width, c.Heads, snug.ErrConfig)
	case !known:
		return nil, fmt.Errorf("the Activation is %.40q, want one of %q: %w", c.Activation, slices.Sorted(maps.Keys(activations)), snug.ErrConfig)
	case !c.QKVBias && f.biased:
		return nil, fmt.Errorf("no QKVBias, which models of the Family %q have: %w", c.Family, snug.ErrConfig)
	case !(c.Eps > 0) || c.Eps > 1:
		return nil, fmt.Errorf("the Eps is %v, want above 0, and 1 at most: %w", c.Eps, snug.ErrConfig)
	case float64(max(c.Rows(), c.table()))*float64(c.Width) > math.MaxInt32 || float64(c.Patch)*float64(c.Patch)*float64(c.Channels) > most:
		return nil, fmt.Errorf("%d rows of %d elements, of patches of %d pixels: want at most 2^31 elements, and 2^24 a patch: %w", max(c.Rows(), c.table()), c.Width, c.Patch, snug.ErrConfig)
	}
	if f.write != nil {
		if _, err := f.write(c); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// towerFields are those of config.json that a tower is made of.
type towerFields struct {
	ModelType  string          `json:"model_type"`
	Width      int             `json:"hidden_size"`
	Hidden     int             `json:"intermediate_size"`
	Layers     int             `json:"num_hidden_layers"`
	Heads      int             `json:"num_attention_heads"`
	Channels   int             `json:"num_channels"`
	Image      json.RawMessage `json:"image_size"`
	Patch      json.RawMessage `json:"patch_size"`
	Activation string          `json:"hidden_act"`
	Eps        float64         `json:"layer_norm_eps"`
	QKVBias    bool            `json:"qkv_bias"`
}

var lenientJSON = strictjson.Options{Open: true, MaxBytes: 16 << 20}

// parseConfig reads a config.json. alone says that it is of a tower.
func parseConfig(text []byte) (c TowerConfig, alone bool, err error) {
	var top struct {
		ModelType string                     `json:"model_type"`
		Classes   map[string]json.RawMessage `json:"id2label"`
	}
	text = strictjson.Python(text)
	if err = lenientJSON.Unmarshal(text, &top); err != nil {
		return c, false, fmt.Errorf("%w: %w", err, snug.ErrCorrupt)
	}
	f, alone := byType(top.ModelType)
	if f == nil {
		return c, false, fmt.Errorf("model_type is %.40q, want one of %q: %w", top.ModelType, modelTypes(), snug.ErrConfig)
	}
	path := ""
	if !alone {
		var whole map[string]json.RawMessage
		if err = lenientJSON.Unmarshal(text, &whole); err != nil {
			return c, false, fmt.Errorf("%w: %w", err, snug.ErrCorrupt)
		}
		if text, path = whole[f.nested], f.nested+"."; text == nil {
			text = []byte("{}")
		}
		if older := whole[f.older]; f.older != "" && older != nil && string(older) != "null" {
			text, path = older, f.older+"."
		}
	}
	c = f.standard
	in := towerFields{
		Width: c.Width, Hidden: c.Hidden, Layers: c.Layers, Heads: c.Heads, Channels: c.Channels, Image: json.RawMessage(strconv.Itoa(c.Image)), Patch: json.RawMessage(strconv.Itoa(c.Patch)),
		Activation: c.Activation, Eps: c.Eps, QKVBias: c.QKVBias,
	}
	if err = lenientJSON.Unmarshal(text, &in); err != nil {
		return c, false, fmt.Errorf("%s%w: %w", path, err, snug.ErrCorrupt)
	}
	c = TowerConfig{Family: f.modelType, Width: in.Width, Hidden: in.Hidden, Layers: in.Layers, Heads: in.Heads, Channels: in.Channels, Activation: in.Activation, Eps: in.Eps, QKVBias: in.QKVBias || f.biased, Registers: c.Registers}
	if c.Image, err = side(in.Image); err != nil {
		return c, false, fmt.Errorf("%simage_size: %w", path, err)
	}
	if c.Patch, err = side(in.Patch); err != nil {
		return c, false, fmt.Errorf("%spatch_size: %w", path, err)
	}
	if f.read != nil {
		if err = f.read(&c, text); err != nil {
			return c, false, fmt.Errorf("%s%w", path, err)
		}
	}
	if f.classifier == "" {
		top.Classes = nil
	}
	if c.Labels, err = labels(top.Classes); err != nil {
		return c, false, fmt.Errorf("id2label: %w", err)
	}
	if _, err = c.check(); err != nil {
		return c, false, err
	}
	return c, alone, nil
}

// side reads the side of a square: a number, or a list with it twice.
func side(text json.RawMessage) (n int, err error) {
	if json.Unmarshal(text, &n) == nil {
		return n, nil
	}
	var both [2]int
	if err := strictjson.Unmarshal(text, &both); err != nil || both[0] != both[1] {
		return 0, fmt.Errorf("%.40s, want a number, or the same number twice: %w", text, snug.ErrConfig)
	}
	return both[0], nil
}

// labels returns the classes in the order of their numbers. Labels that are numbers are their text.
func labels(of map[string]json.RawMessage) ([]string, error) {
	if len(of) == 0 {
		return nil, nil
	}
	list, seen := make([]string, len(of)), make([]bool, len(of))
	for name, text := range of {
		i, err := strconv.Atoi(name)
		if err != nil || i < 0 || i >= len(list) || seen[i] {
			return nil, fmt.Errorf("the class %.40q, want numbers from 0 to %d: %w", name, len(list)-1, snug.ErrConfig)
		}
		var digits json.Number
		if seen[i] = true; strictjson.Unmarshal(text, &list[i]) == nil {
			continue
		}
		if err := strictjson.Unmarshal(text, &digits); err != nil {
			return nil, fmt.Errorf("the class %s is %.40s, want a string: %w", name, text, snug.ErrConfig)
		}
		list[i] = digits.String()
	}
	return list, nil
}

// headLabels returns the classes of a head that a folder has, of which config.json may not have names: transformers writes none for two
// classes without names. It refuses heads whose loss is not the cross-entropy of one class.
func headLabels(text []byte, named []string, head []int) ([]string, error) {
	in := struct {
		Problem *string `json:"problem_type"`
		Number  *int    `json:"num_labels"`
	}{}
	if err := lenientJSON.Unmarshal(text, &in); err != nil {
		return nil, fmt.Errorf("%w: %w", err, snug.ErrCorrupt)
	}
	n := 2
	switch {
	case named != nil:
		n = len(named)
	case in.Number != nil:
		n = *in.Number
	}
	const single = "single_label_classification"
	switch {
	case in.Problem != nil && *in.Problem != single:
		return nil, fmt.Errorf("problem_type is %.40q, want %q, or a new head by Options.Labels: %w", *in.Problem, single, snug.ErrConfig)
	case n == 1 && in.Problem == nil:
		return nil, fmt.Errorf("id2label has 1 class, which is a regression: want 2 or more, or a new head by Options.Labels: %w", snug.ErrConfig)
	case len(head) != 2 || head[0] != n:
		return nil, fmt.Errorf("classifier.weight has the shape %v, want one of %d classes by id2label or num_labels: %w", head, n, snug.ErrShape)
	case named != nil:
		return named, nil
	}
	for i := range n {
		named = append(named, fmt.Sprintf("LABEL_%d", i))
	}
	return named, nil
}

// text returns the config.json of a model whose weights have a type. old, unless nil, is that of the folder which the model was
// opened from; fields that the model does not know stay.
func (c *TowerConfig) text(old []byte, dt snug.DType) ([]byte, error) {
	f, err := c.check()
	if err != nil {
		return nil, err
	}
	m := map[string]json.RawMessage{}
	if old != nil {
		if err := lenientJSON.Unmarshal(old, &m); err != nil {
			return nil, err
		}
	}
	set := func(m map[string]json.RawMessage, name string, v any) {
		text, e := json.Marshal(v)
		if m[name] = text; err == nil {
			err = e
		}
	}
	var was string
	_ = json.Unmarshal(m["model_type"], &was) // absent in a new model
	tower := m
	switch {
	case f.nested == "":
		set(m, "model_type", f.modelType)
	case len(c.Labels) == 0:
		if was == f.modelType { // the rest of a model of images and text is not written
			if m = map[string]json.RawMessage{}; tower[f.nested] != nil {
				if err := lenientJSON.Unmarshal(tower[f.nested], &m); err != nil {
					return nil, err
				}
			}
			tower = m
		}
		set(m, "model_type", f.tower)
	case was == f.modelType:
		if tower = map[string]json.RawMessage{}; m[f.nested] != nil {
			if err := lenientJSON.Unmarshal(m[f.nested], &tower); err != nil {
				return nil, err
			}
		}
	default: // a tower gets a head: the fields move into a model of images and text
		m = map[string]json.RawMessage{}
		set(m, "model_type", f.modelType)
		set(tower, "model_type", f.tower)
	}
	for name, v := range map[string]any{
		"hidden_size": c.Width, "intermediate_size": c.Hidden, "num_hidden_layers": c.Layers, "num_attention_heads": c.Heads, "num_channels": c.Channels,
		"image_size": cmp.Or(c.Positions, c.Image), "patch_size": c.Patch, "hidden_act": c.Activation, "layer_norm_eps": strictjson.Float(c.Eps),
	} {
		set(tower, name, v)
	}
	if old == nil {
		for name, v := range f.fresh {
			set(tower, name, v)
		}
	}
	if f.write != nil {
		own, err := f.write(c)
		if err != nil {
			return nil, err
		}
		for name, v := range own {
			if set(tower, name, v); v == nil {
				delete(tower, name)
			}
		}
	}
	if !f.biased {
		set(tower, "qkv_bias", c.QKVBias)
	}
	if _, alone := byType(typeOf(m)); f.nested != "" && !alone {
		set(m, f.nested, tower)
	}
	class := f.towerClass
	delete(m, "id2label")
	delete(m, "label2id")
	delete(m, "num_labels")
	delete(m, "problem_type") // which follows from the labels
	delete(m, "quantization_config")
	delete(m, f.older)
	if len(c.Labels) > 0 {
		class = f.classifier
		id2label, label2id := map[string]string{}, map[string]int{}
		for i, label := range c.Labels {
			id2label[strconv.Itoa(i)], label2id[label] = label, i
		}
		set(m, "id2label", id2label)
		set(m, "label2id", label2id)
	}
	set(m, "architectures", []string{class})
	delete(m, "torch_dtype")
	set(m, "dtype", map[snug.DType]string{snug.F32: "float32", snug.F16: "float16", snug.BF16: "bfloat16"}[dt])
	if err != nil {
		return nil, err
	}
	return json.MarshalIndent(m, "", "  ")
}

func typeOf(m map[string]json.RawMessage) (name string) {
	_ = json.Unmarshal(m["model_type"], &name) // no string is no type
	return name
}
