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
// folders have. Weights of 8-bit floats are read, with a scale for each matrix, row or block, weight_scale, by which they are multiplied.
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

// The formats that have such weights, and the groups that a name stands for.
var (
	compressedFormats = []string{"float-quantized", "naive-quantized", "mixed-precision"}
	compressedPresets = map[string][]int{"FP8": nil, "FP8_DYNAMIC": nil, "FP8_BLOCK": {128, 128}}
)

func init() { registerStored(storedMethod{name: "compressed-tensors", read: readCompressed}) }

func readCompressed(raw json.RawMessage, _ *Config) (s storedAs, err error) {
	var q compressedStored
	if err := readMember(raw, &q); err != nil {
		return s, err
	}
	var sparsity struct {
		Format string `json:"format"`
	}
	_ = json.Unmarshal(q.Sparsity, &sparsity) // zeros that are not left out change nothing
	switch none := []string{"", "{}"}; {
	case !slices.Contains(compressedFormats, q.Format):
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
	for _, name := range slices.Sorted(maps.Keys(q.Groups)) {
		g := compressedGroup{}
		block, preset := compressedPresets[name]
		if preset && strings.HasPrefix(compact(q.Groups[name]), "[") {
			err = strictjson.Unmarshal(q.Groups[name], &g.Targets)
		} else if err = readMember(q.Groups[name], &g); err == nil {
			block, err = g.read(name)
		}
		if err != nil {
			return s, fmt.Errorf("%.40q: %w", name, err)
		}
		targets = append(targets, g.Targets...)
		if block != nil && s.block != nil && !slices.Equal(block, s.block) {
			return s, notStored("%s with blocks of %v and others of %v", name, block, s.block)
		}
		if block != nil {
			s.block = block
		}
	}
	if targets == nil {
		return s, notStored("without weights")
	}
	quantized, left := compressedModules(targets), compressedModules(q.Ignore)
	s.form, s.floats = qlora.FP8, func(_ *Config, modules []string) bool {
		return !slices.ContainsFunc(modules, quantized) || slices.ContainsFunc(modules, left)
	}
	return s, nil
}

// read returns the blocks of a group's weights, nil for another strategy. A group of activations alone has no targets then.
func (g *compressedGroup) read(name string) ([]int, error) {
	if g.Weights == nil {
		g.Targets = nil
		return nil, nil
	}
	w := compressedWeights{Bits: 8, Type: "int", Symmetric: true}
	if err := readMember(g.Weights, &w); err != nil {
		return nil, err
	}
	switch strategy := strings.ToLower(w.Strategy); {
	case g.Format != "" && !slices.Contains(compressedFormats, g.Format):
		return nil, notStored("%s with the format %.40q", name, g.Format)
	case strings.ToLower(w.Type) != "float" || w.Bits != 8:
		return nil, notStored("%s with weights of %d bits and the type %.40q, want 8 and float", name, w.Bits, w.Type)
	case !w.Symmetric:
		return nil, notStored("%s with zero points (symmetric is false)", name)
	case !slices.Contains([]string{"", "false"}, compact(w.Dynamic)):
		return nil, notStored("%s with dynamic weights", name)
	case strategy == "block":
		return w.Block, checkBlock("block_structure", w.Block)
	case strategy == "group" && w.Group > 0:
		return []int{1, w.Group}, checkBlock("group_size", []int{1, w.Group})
	case strategy != "" && strategy != "tensor" && strategy != "channel":
		return nil, notStored("%s with the strategy %.40q", name, w.Strategy)
	}
	return nil, nil
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
