package transformer

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/internal/fault"
	"github.com/snug-ml/snug/internal/strictjson"
	"github.com/snug-ml/snug/qlora"
)

// This file has folders whose matrices are quantized: what config.json says of them, and which they are.

// mxfp4 is the quant_method of experts that share a tensor.
const mxfp4 = "mxfp4"

// maxUnconverted is the longest list of modules that were not converted that is read.
const maxUnconverted = 4096

// storedConfig is the member quantization_config. Members about activations are of no account: products here take
// activations as they are.
type storedConfig struct {
	Method string `json:"quant_method"`

	// Of quant_method "fp8".
	Format     string          `json:"fmt"`
	Block      []int           `json:"weight_block_size"`
	Activation string          `json:"activation_scheme"`
	ScaleForm  string          `json:"scale_fmt"`
	Float      json.RawMessage `json:"modules_to_not_convert"`
	Ignored    json.RawMessage `json:"ignored_layers"`
	More       json.RawMessage `json:"modules_to_convert"`
	Experts    string          `json:"expert_dtype"` // the families here have none
	Decode     bool            `json:"dequantize"`

	// Of bitsandbytes.
	Int8          bool            `json:"load_in_8bit"`
	Int4          bool            `json:"load_in_4bit"`
	OwnInt8       bool            `json:"_load_in_8bit"`
	OwnInt4       bool            `json:"_load_in_4bit"`
	Threshold     float64         `json:"llm_int8_threshold"`
	Skip          json.RawMessage `json:"llm_int8_skip_modules"`
	Offload       bool            `json:"llm_int8_enable_fp32_cpu_offload"`
	Half          bool            `json:"llm_int8_has_fp16_weight"`
	Compute4      json.RawMessage `json:"bnb_4bit_compute_dtype"`
	Storage4      json.RawMessage `json:"bnb_4bit_quant_storage"`
	Type4         json.RawMessage `json:"bnb_4bit_quant_type"`
	DoubleQuants4 json.RawMessage `json:"bnb_4bit_use_double_quant"`
}

// readStored reads quantization_config.
func (c *Config) readStored(f *fields) error {
	const name = "quantization_config"
	if !f.has(name) {
		f.only(name)
		return nil
	}
	f.taken[name] = true
	raw := f.raw[name]
	var method struct {
		Method string `json:"quant_method"`
	}
	_ = json.Unmarshal(raw, &method) // a method that cannot be read is none
	q := storedConfig{}
	wrong := func(format string, args ...any) error { return bad(f.path+name, format, args...) }
	switch method.Method {
	case "fp8", "bitsandbytes", mxfp4:
		if err := strictjson.Unmarshal(raw, &q); err != nil {
			return wrong("%s", plain(err))
		}
	}
	switch {
	case c.names().conv && q.Method != "":
		return wrong("matrices of %s that are stored quantized are not supported", c.Family)
	case q.Method == "fp8" && len(q.Block) > 0 && !slices.Equal(q.Block, []int{128, 128}):
		return wrong("weight_block_size is %v, want null or [128, 128]", q.Block)
	case q.Method == "fp8" && (q.Format == "" || q.Format == "e4m3" || q.Format == "float8_e4m3fn"):
		c.Stored = qlora.FP8
	case q.Method == "fp8" && (q.Format == "e5m2" || q.Format == "float8_e5m2"):
		c.Stored = qlora.FP8E5M2
	case q.Method == "fp8":
		return wrong("fmt is %.40q, want e4m3 or e5m2", q.Format)
	case q.Method == mxfp4 && c.names().experts.joined:
		c.Stored = qlora.MXFP4
	case (q.Int8 || q.OwnInt8) && !q.Int4 && !q.OwnInt4 && !q.Half:
		c.Stored = qlora.INT8
	default:
		return wrong("the weights are stored quantized (%s); take the folder of the unquantized model, "+
			"which is quantized while it is loaded", quantizedBy(method.Method))
	}
	for _, list := range []json.RawMessage{q.Float, q.Ignored, q.Skip} {
		var modules []string
		if json.Unmarshal(list, &modules) == nil && len(modules) <= maxUnconverted { // else the files alone say what is in floats
			f.unconverted = append(f.unconverted, modules...)
		}
	}
	return nil
}

// unconverted returns the matrices of the layers that are in floats according to a list of modules, by the rules of
// transformers' should_convert_module: an entry is a regular expression for the beginning of a module's name, up to a
// dot or its end, or the end of the name.
func (c *Config) unconverted(modules []string) (floats []string) {
	if c.Stored == 0 {
		return nil
	}
	var begins []string
	for _, m := range modules {
		m = `(?:` + strings.TrimSuffix(strings.TrimSuffix(m, "."), `\`) + `)`
		if _, err := regexp.Compile(m); err == nil {
			begins = append(begins, m)
		}
	}
	begin, err := regexp.Compile(`^(?:` + strings.Join(begins, "|") + `)(?:\.|$)`)
	if err != nil || begins == nil {
		begin = nil
	}
	for _, t := range c.tensors(c.layout()) {
		module, isWeight := strings.CutSuffix(t.Name, ".weight")
		if !isWeight || !c.isMatrix(t) {
			continue
		}
		if c.Stored == qlora.MXFP4 {
			if _, joined := c.slot(t.Name); !joined {
				floats = append(floats, t.Name)
			}
			continue
		}
		if slices.ContainsFunc(modules, func(m string) bool { return strings.HasSuffix(module, m) }) ||
			begin != nil && begin.MatchString(module) {
			floats = append(floats, t.Name)
		}
	}
	return floats
}

// FloatsIn returns the matrices of the layers that an opened folder has in floats, for Config.Floats, nil if Config.Stored
// is 0. Errors are those of [Config.Check].
func (c *Config) FloatsIn(w *amp.Weights) (floats []string, err error) {
	defer fault.Named(&err, "transformer: FloatsIn")
	if err := c.check(); err != nil {
		return nil, err
	}
	if c.Stored == 0 {
		return nil, nil
	}
	names, err := c.compare(w)
	if err != nil {
		return nil, err
	}
	for _, t := range c.tensors(c.layout()) {
		if c.isMatrix(t) && !c.isStoredAs(w, names[t.Name], t) {
			floats = append(floats, t.Name)
		}
	}
	return floats, nil
}

// isStoredAs reports whether a folder has a parameter quantized, under a name.
func (c *Config) isStoredAs(w *amp.Weights, name string, want amp.Tensor) bool {
	have, _ := w.Tensor(name)
	_, blocks := w.Tensor(name + blocksEnd)
	return c.isStored(have, want) || c.Stored == qlora.MXFP4 && blocks && len(want.Shape) == 2
}

func quantizedBy(method string) string {
	if method == "" {
		return "by a method that it does not name"
	}
	return fmt.Sprintf("quant_method %.40q", method)
}

// storedTypes are the element types of stored matrices in files.
var storedTypes = map[qlora.Type]string{qlora.FP8: "F8_E4M3", qlora.FP8E5M2: "F8_E5M2", qlora.INT8: "I8"}

// isStored reports whether a tensor of a file is a matrix in the form of Stored. want is the parameter.
func (c *Config) isStored(have, want amp.Tensor) bool {
	dt := storedTypes[c.Stored]
	return dt != "" && have.DType == dt && len(want.Shape) == 2
}

// describesStored reports whether a tensor belongs to a matrix that is stored quantized: its scales, their layout, and
// the scale of activations, which a matrix of floats may have too. known are the parameters in the folder, true those
// that are stored quantized.
func (c *Config) describesStored(name string, known map[string]bool) bool {
	if c.Stored == 0 {
		return false
	}
	for _, end := range []string{"weight_scale_inv", "weight_scale", "SCB", "weight_format", "input_scale", "activation_scale"} {
		if module, found := strings.CutSuffix(name, end); found {
			if stored, parameter := known[module+"weight"]; stored || parameter && (end == "input_scale" || end == "activation_scale") {
				return true
			}
		}
	}
	return false
}

// storedIn returns the names of the matrices that a folder has quantized. It compares the folder's weights with the config,
// before there is memory for parameters of its shapes.
func (c *Config) storedIn(dir string) (_ map[string]bool, err error) {
	w, err := amp.OpenWeights(dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	names, err := c.compare(w)
	if err != nil || c.Stored == 0 {
		return nil, err
	}
	stored, own, published := map[string]bool{}, *c, c.tensors(c.layout())
	own.Whole = ""
	for i, t := range own.tensors(own.layout()) {
		if c.isStoredAs(w, names[published[i].Name], t) {
			stored[t.Name] = true
		}
	}
	return stored, nil
}
