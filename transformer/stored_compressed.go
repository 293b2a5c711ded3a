package transformer

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/snug-ml/snug/internal/strictjson"
	"github.com/snug-ml/snug/qlora"
)

// compressedStored is the quantization_config of compressed-tensors, which llm-compressor writes, and Red Hat's and Neural Magic's
// folders have. Weights of 8-bit floats are read, with a scale for each matrix, row or block, weight_scale, by which they are multiplied, and
// integers of 4 and 8 bits with a scale, and maybe a zero point, for each matrix, row or group.
type compressedStored struct {
	Method     string                     `json:"quant_method"`
	Format     string                     `json:"format"`
	Groups     map[string]json.RawMessage `json:"config_groups"`
	Ignore     []string                   `json:"ignore"`
	Status     string                     `json:"quantization_status"`
	Cache      json.RawMessage            `json:"kv_cache_scheme"`
	Ratio      json.RawMessage            `json:"global_compression_ratio"`
	Version    json.RawMessage            `json:"version"`
	Transforms json.RawMessage            `json:"transform_config"`
	Sparsity   json.RawMessage            `json:"sparsity_config"`
	Experts    json.RawMessage            `json:"moe_sparsity_config"`
	Decode     json.RawMessage            `json:"dequantize"`
	Run        json.RawMessage            `json:"run_compressed"`
	Optimized  json.RawMessage            `json:"use_optimized_inference"`
}

// compressedGroup is a group of modules that are quantized alike.
type compressedGroup struct {
	Targets []string        `json:"targets"`
	Weights json.RawMessage `json:"weights"`
	Inputs  json.RawMessage `json:"input_activations"`
	Outputs json.RawMessage `json:"output_activations"`
	Format  string          `json:"format"`
}

type compressedWeights struct {
	Bits       int             `json:"num_bits"`
	Type       string          `json:"type"`
	Symmetric  bool            `json:"symmetric"`
	Strategy   string          `json:"strategy"`
	Group      int             `json:"group_size"`
	Block      []int           `json:"block_structure"`
	Dynamic    json.RawMessage `json:"dynamic"`
	Order      json.RawMessage `json:"actorder"`
	Observer   json.RawMessage `json:"observer"`
	More       json.RawMessage `json:"observer_kwargs"`
	ScaleDType json.RawMessage `json:"scale_dtype"`
	ZeroDType  json.RawMessage `json:"zp_dtype"`
}

// compressedForm is how a format has weights.
type compressedForm struct {
	floats bool
	ints   map[int]qlora.Layout // by their bits
}

// compressedIntegers are integers that are not packed.
var compressedIntegers = map[int]qlora.Layout{8: qlora.Integers}

// The formats that are read, and the groups that a name stands for. In a mix each group has a format.
var (
	compressedFormats = map[string]compressedForm{
		"float-quantized": {floats: true}, "naive-quantized": {floats: true, ints: compressedIntegers}, "int-quantized": {ints: compressedIntegers},
		"pack-quantized": {ints: map[int]qlora.Layout{4: qlora.Packed, 8: qlora.Packed}}, "mixed-precision": {floats: true},
	}
	compressedPresets = map[string][]int{"FP8": nil, "FP8_DYNAMIC": nil, "FP8_BLOCK": {128, 128}}
)

// compressedAs is what a group says of its weights.
type compressedAs struct {
	block  []int // of floats, nil for another strategy
	groups qlora.Groups
}

func init() { registerStored(storedMethod{name: "compressed-tensors", read: readCompressed}) }

func readCompressed(raw json.RawMessage, c *Config) (s storedAs, err error) {
	var q compressedStored
	if err := readMember(raw, &q); err != nil {
		return s, err
	}
	var sparsity struct {
		Format string `json:"format"`
	}
	_ = json.Unmarshal(q.Sparsity, &sparsity) // zeros that are not left out change nothing
	switch none := []string{"", "{}"}; {
	case !knownFormat(q.Format):
		return s, notStored("format %.40q", q.Format)
	case sparsity.Format != "" && sparsity.Format != "dense":
		return s, notStored("sparsity_config with the format %.40q", sparsity.Format)
	case !slices.Contains(none, compact(q.Transforms)):
		return s, notStored("transform_config %.40s", q.Transforms)
	case !slices.Contains(none, compact(q.Experts)):
		return s, notStored("moe_sparsity_config %.40s", q.Experts)
	case q.Status != "" && q.Status != "compressed" && q.Status != "frozen":
		return s, notStored("quantization_status %.40q", q.Status)
	case len(q.Groups) == 0:
		return s, notStored("without config_groups")
	}
	var targets []string
	var first *compressedAs
	for _, name := range slices.Sorted(maps.Keys(q.Groups)) {
		g, as := compressedGroup{Format: q.Format}, compressedAs{}
		block, preset := compressedPresets[name]
		as.block = block
		if preset && strings.HasPrefix(compact(q.Groups[name]), "[") {
			err = strictjson.Unmarshal(q.Groups[name], &g.Targets)
		} else if err = readMember(q.Groups[name], &g); err == nil {
			as, err = g.read(name)
		}
		if err != nil {
			return s, fmt.Errorf("%.40q: %w", name, err)
		}
		targets = append(targets, g.Targets...)
		if g.Targets == nil {
			continue
		}
		if first == nil {
			first = &as
		}
		if as.groups != first.groups {
			return s, notStored("%s with weights in another form than those of other groups", name)
		}
		if as.block != nil && s.block != nil && !slices.Equal(as.block, s.block) {
			return s, notStored("%s with blocks of %v and others of %v", name, as.block, s.block)
		}
		if as.block != nil {
			s.block = as.block
		}
	}
	if targets == nil {
		return s, notStored("without weights")
	}
	quantized, left := compressedModules(targets), compressedModules(q.Ignore)
	floats := func(_ *Config, modules []string) bool {
		return !slices.ContainsFunc(modules, quantized) || slices.ContainsFunc(modules, left)
	}
	if first != nil && first.groups.Layout != 0 {
		return groupedAs(c, first.groups, !first.groups.Zeroed, floats)
	}
	s.form, s.floats = qlora.FP8, floats
	return s, nil
}

func knownFormat(name string) bool {
	_, known := compressedFormats[name]
	return known
}

// read returns how a group has its weights. A group of activations alone has no targets then.
func (g *compressedGroup) read(name string) (as compressedAs, err error) {
	if g.Weights == nil {
		g.Targets = nil
		return as, nil
	}
	w := compressedWeights{Bits: 8, Type: "int", Symmetric: true}
	if err := readMember(g.Weights, &w); err != nil {
		return as, err
	}
	form, known := compressedFormats[g.Format]
	layout, integers := form.ints[w.Bits]
	strategy, kind := strings.ToLower(w.Strategy), strings.ToLower(w.Type)
	switch {
	case !known:
		return as, notStored("%s with the format %.40q", name, g.Format)
	case !slices.Contains([]string{"", "false"}, compact(w.Dynamic)):
		return as, notStored("%s with dynamic weights", name)
	case kind == "int" && integers:
		return w.integers(name, strategy, layout)
	case kind != "float" || w.Bits != 8 || !form.floats:
		return as, notStored("%s with weights of %d bits, the type %.40q and the format %.40q, want 8 and float, 8 and int, or 4 and int in pack-quantized", name, w.Bits, w.Type, g.Format)
	case !w.Symmetric:
		return as, notStored("%s with zero points of floats (symmetric is false)", name)
	case strategy == "block":
		as.block, err = w.Block, checkBlock("block_structure", w.Block)
	case strategy == "group" && w.Group > 0:
		as.block, err = []int{1, w.Group}, checkBlock("group_size", []int{1, w.Group})
	case strategy != "" && strategy != "tensor" && strategy != "channel":
		return as, notStored("%s with the strategy %.40q", name, w.Strategy)
	}
	return as, err
}

// integers returns how integers lie. With the order "group", files say which group an input is of; with "weight" inputs are in order.
func (w *compressedWeights) integers(name, strategy string, layout qlora.Layout) (as compressedAs, err error) {
	order := strings.Trim(strings.ToLower(compact(w.Order)), `"`)
	as.groups = qlora.Groups{
		Bits: w.Bits, Size: -1, Layout: layout, Ordered: slices.Contains([]string{"group", "dynamic", "true"}, order), Zeroed: !w.Symmetric,
	}
	switch {
	case !as.groups.Ordered && !slices.Contains([]string{"", "false", "weight", "static"}, order):
		return as, notStored("%s with the actorder %.40s", name, w.Order)
	case strategy == "group" && w.Group > 0:
		as.groups.Size = w.Group
	case strategy != "" && strategy != "tensor" && strategy != "channel":
		return as, notStored("%s with the strategy %.40q", name, w.Strategy)
	}
	return as, nil
}

// compressedModules returns whether an entry of a list names a linear module, as compressed-tensors' match_name does: by its name, by its class,
// or after "re:" by a regular expression for the beginning of its name. An expression that Go does not have names none.
func compressedModules(list []string) func(module string) bool {
	exact, begins := map[string]bool{}, []*regexp.Regexp{}
	for _, entry := range list[:min(len(list), maxUnconverted)] {
		if pattern, is := strings.CutPrefix(entry, "re:"); !is {
			exact[entry] = true
		} else if re, err := regexp.Compile(`^(?:` + pattern + `)`); err == nil {
			begins = append(begins, re)
		}
	}
	return func(module string) bool {
		return exact["Linear"] || exact[module] || slices.ContainsFunc(begins, func(re *regexp.Regexp) bool { return re.MatchString(module) })
	}
}
