package qlora

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/strictjson"
)

// AdapterOptions are the fields of adapter_config.json, PEFT's LoraConfig, for the adapters
// of a model. All adapters have one dropout. They have one rank and one scale,
// [LoRAScale](Alpha, Rank, RSLoRA), except where Ranks and Alphas override them.
type AdapterOptions struct {
	Rank    int
	Alpha   float32
	RSLoRA  bool
	Dropout float32
	DoRA    bool // all have magnitudes

	// Targets are the modules that have an adapter. Empty: SaveAdapters lists the
	// adapted modules; PEFT would choose by the type of the model.
	Targets Modules
	Exclude Modules // of Targets
	// Layers are the layers whose modules have an adapter, where Targets holds name ends;
	// empty selects all layers. The number of a layer is the first number in a name, or the
	// number after a match of LayersPattern, regular expressions such as "h".
	Layers        []int
	LayersPattern []string

	// Ranks and Alphas override Rank and Alpha for the modules that a key matches. A key is
	// a regular expression of the whole name or of the part after one of its dots.
	Ranks  map[string]int
	Alphas map[string]float32

	BaseModel string // name or path of the model that they adapt; may be empty
	// FanInFanOut says that the base model, such as GPT-2, stores its weights as [in, out].
	// The adapters stay the same: a Linear takes the weight as [out, in].
	FanInFanOut bool

	// ModulesToSave are the ends of the names of modules of the base model, such as "lm_head", that trained as a whole
	// beside the adapters. Their weights are in the folder, in place of the base model's: [LoadModules] reads them.
	ModulesToSave []string

	// VeRA, unless nil, makes all adapters those of a VeRA of rank Rank. Alpha, RSLoRA, DoRA, Ranks, Alphas, Init and
	// FrozenA are then zero. [SaveVeRA] and [LoadVeRA] have their folders.
	VeRA *VeRAOptions

	// Init says how A and B of fresh adapters begin: empty for a random A and a B of 0, or "pissa", "pissa_niter_N",
	// "olora" or "loftq", see [LoRA.Start] and [LoRA.StartLoftQ]. Adapters that began so are for another base weight,
	// and a folder does not tell: SaveAdapters wants an empty Init, and [LoRA.Less] converts adapters for it.
	Init string
	// FrozenA makes fresh adapters LoRA-FA, see LoRA.FrozenA. A folder does not tell, because adapters compute the same.
	FrozenA bool

	// Other are the fields of the file that do not change what adapters compute, such as
	// "task_type", by name. They are kept from loading to saving.
	Other map[string]json.RawMessage
}

// VeRAOptions are the fields of PEFT's VeraConfig that LoraConfig lacks.
type VeRAOptions struct {
	Key          uint64 // projection_prng_key, see NewVeRA
	NoProjection bool   // save_projection is false: a folder lacks A and B, which are drawn by the Key when it is loaded
}

// RankOf returns the rank and the scale of a module's adapter. Errors wrap
// [snug.ErrConfig]: the config is not valid, or two keys of Ranks or of Alphas match the
// name and differ.
func (c AdapterOptions) RankOf(module string) (rank int, scale float32, err error) {
	s, err := c.check()
	if err == nil {
		rank, scale, err = s.scale(module, c.RSLoRA)
	}
	if err != nil {
		return 0, 0, fmt.Errorf("qlora: adapters: %w", err)
	}
	return rank, scale, nil
}

func (s *selector) scale(module string, stabilized bool) (rank int, scale float32, err error) {
	rank, alpha, err := s.of(module)
	if err != nil {
		return 0, 0, err
	}
	return rank, LoRAScale(alpha, rank, stabilized), nil
}

// Selects reports whether the module of a full name has an adapter, by the rules of PEFT:
// Targets, less Exclude, in Layers. It compiles the regular expressions in every call.
// Errors wrap [snug.ErrConfig]: the config is not valid, or Python and Go may match a
// regular expression differently.
func (c AdapterOptions) Selects(module string) (bool, error) {
	s, err := c.check()
	selected := false
	if err == nil {
		selected, err = s.selects(module)
	}
	if err != nil {
		return false, fmt.Errorf("qlora: adapters: %w", err)
	}
	return selected, nil
}

// check checks the config and returns its selection of modules.
func (c *AdapterOptions) check() (*selector, error) {
	if c.VeRA != nil {
		if c.Alpha != 0 || c.RSLoRA || c.DoRA || c.Ranks != nil || c.Alphas != nil || c.Init != "" || c.FrozenA {
			return nil, fmt.Errorf("adapters of VeRA with Alpha %g, RSLoRA %t, DoRA %t, %d Ranks, %d Alphas, Init %q and FrozenA %t, want none of these: %w",
				c.Alpha, c.RSLoRA, c.DoRA, len(c.Ranks), len(c.Alphas), c.Init, c.FrozenA, snug.ErrConfig)
		}
		plain := *c
		plain.VeRA, plain.Alpha = nil, float32(c.Rank) // a scale of 1
		return plain.check()
	}
	for _, name := range []string{"r", "lora_alpha", "lora_dropout", "rank_pattern", "alpha_pattern"} {
		if err := c.checkNumbers(name); err != nil {
			return nil, fmt.Errorf("%w: %w", err, snug.ErrConfig)
		}
	}
	if start, err := parseInit(c.Init); err != nil {
		return nil, err
	} else if c.DoRA && (start.Name != "" || c.FrozenA) {
		return nil, fmt.Errorf("magnitudes do not go with the initial values %q and with FrozenA %t, want neither: %w", c.Init, c.FrozenA, snug.ErrConfig)
	}
	texts := slices.Concat([]string{c.BaseModel, c.Targets.Pattern, c.Exclude.Pattern}, c.Targets.Names, c.Exclude.Names, c.LayersPattern,
		slices.Collect(maps.Keys(c.Ranks)), slices.Collect(maps.Keys(c.Alphas)), slices.Collect(maps.Keys(c.Other)))
	for _, text := range texts {
		if !utf8.ValidString(text) {
			return nil, fmt.Errorf("%.100q is not UTF-8: %w", text, snug.ErrConfig)
		}
	}
	if err := c.checkSaved(); err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(c.Other)) {
		if field(name) == ours {
			return nil, fmt.Errorf("the field %q is one of the config and in Other: %w", name, snug.ErrConfig)
		}
		if err := checkField(name, c.Other[name]); err != nil {
			return nil, err
		}
	}
	return c.selector()
}

// checkNumbers returns an error unless the numbers of a field are in their range.
func (c *AdapterOptions) checkNumbers(field string) error {
	switch {
	case field == "r" && c.Rank < 1:
		return fmt.Errorf("rank %d, want 1 or more", c.Rank)
	case field == "lora_alpha" && !isPositive(c.Alpha):
		return fmt.Errorf("alpha %g, want a finite number above 0", c.Alpha)
	case field == "lora_dropout" && !(c.Dropout >= 0 && c.Dropout < 1):
		return fmt.Errorf("dropout %g, want at least 0 and less than 1", c.Dropout)
	case field == "rank_pattern":
		for _, key := range slices.Sorted(maps.Keys(c.Ranks)) {
			if r := c.Ranks[key]; r < 1 {
				return fmt.Errorf("rank_pattern gives %q the rank %d, want 1 or more", key, r)
			}
		}
	case field == "alpha_pattern":
		for _, key := range slices.Sorted(maps.Keys(c.Alphas)) {
			if a := c.Alphas[key]; !isPositive(a) {
				return fmt.Errorf("alpha_pattern gives %q the alpha %g, want a finite number above 0", key, a)
			}
		}
	}
	return nil
}

func isPositive(x float32) bool { return x > 0 && x-x == 0 }

// use says what this package does with a field of adapter_config.json.
type use int

const (
	unknown   use = iota // refused unless it is null, false, 0 or empty
	ours                 // a field of AdapterOptions
	kept                 // changes nothing in what adapters compute
	empty                // like unknown: the setting is not supported
	null                 // like empty, but an empty object asks for the setting as well
	beginning            // start of the training, see checkStart
	biases               // "none" or null
)

// fields are the fields of LoraConfig in PEFT 0.21 and in older versions.
var fields = map[string]struct {
	use   use
	means string // what a refused field asks for
}{
	"peft_type":               {ours, ""},
	"r":                       {ours, ""},
	"lora_alpha":              {ours, ""},
	"lora_dropout":            {ours, ""},
	"use_rslora":              {ours, ""},
	"use_dora":                {ours, ""},
	"fan_in_fan_out":          {ours, ""},
	"target_modules":          {ours, ""},
	"exclude_modules":         {ours, ""},
	"layers_to_transform":     {ours, ""},
	"layers_pattern":          {ours, ""},
	"rank_pattern":            {ours, ""},
	"alpha_pattern":           {ours, ""},
	"base_model_name_or_path": {ours, ""},
	"modules_to_save":         {ours, ""},

	"auto_mapping":      {kept, ""}, // classes of Python
	"inference_mode":    {kept, ""}, // whether PEFT loads for training
	"peft_version":      {kept, ""},
	"revision":          {kept, ""}, // of the base model
	"runtime_config":    {kept, ""}, // where PEFT computes
	"task_type":         {kept, ""},
	"megatron_core":     {kept, ""}, // what megatron_config is for
	"qalora_group_size": {kept, ""}, // what use_qalora is for
	"merge_weights":     {kept, ""}, // of PEFT 0.2: when PEFT merges
	// Whether tied weights stay so, for modules_to_save; checkSaved refuses it for adapters.
	"ensure_weight_tying": {kept, ""},
	// PEFT uses the following fields only at the start of the training, for the values of
	// init_lora_weights that they belong to.
	"corda_config":   {kept, ""},
	"eva_config":     {kept, ""},
	"loftq_config":   {kept, ""},
	"lora_ga_config": {kept, ""},

	"init_lora_weights": {beginning, ""},
	"bias":              {biases, "biases that are trained"},

	"alora_invocation_tokens": {empty, "adapters that begin at certain tokens"},
	"enable_lora":             {empty, "adapters of parts of a weight"}, // of PEFT 0.2
	"layer_replication":       {empty, "layers of the model that come several times"},
	"lora_bias":               {empty, "a bias of B"},
	"megatron_config":         {empty, "weights that are split among processes"},
	"target_parameters":       {empty, "adapters of parameters that are no linear layers"},
	"trainable_token_indices": {empty, "rows of the embedding in addition to the adapters"},
	"use_qalora":              {empty, "inputs that are pooled"},

	"arrow_config":      {null, "routing among adapters"},
	"kasa_config":       {null, "a base weight of lower rank, and a diagonal between A and B"},
	"monteclora_config": {null, "adapters that are drawn at random"},
	"use_bdlora":        {null, "matrices of blocks on the diagonal"},
	"velora_config":     {null, "gradients of inputs in fewer numbers"},
}

func field(name string) use { return fields[name].use }

// checkField returns an error unless this package computes like PEFT with a field that
// AdapterOptions does not have.
func checkField(name string, value json.RawMessage) error {
	f := fields[name]
	if err := strictjson.Unmarshal(value, new(any)); err != nil {
		return fmt.Errorf("the field %q: %w: %w", name, err, snug.ErrConfig)
	}
	switch {
	case f.use == ours || f.use == kept:
		return nil
	case f.use == beginning:
		return checkStart(value)
	case isNull(value), f.use == biases && string(value) == `"none"`:
		return nil
	case f.use != null && isEmpty(value):
		return nil
	case f.use == unknown:
		return fmt.Errorf("the field %q, with the value %.100s, is not known, and may change what adapters compute; "+
			"remove it if it does not: %w", name, value, snug.ErrConfig)
	}
	return fmt.Errorf("the field %q has the value %.100s, which asks for %s: not supported: %w", name, value, f.means, snug.ErrConfig)
}

func isNull(value json.RawMessage) bool { return string(bytes.TrimSpace(value)) == "null" }

// isEmpty reports whether Python treats a value as false.
func isEmpty(value json.RawMessage) bool {
	var v any
	if json.Unmarshal(value, &v) != nil {
		return false
	}
	switch v := v.(type) {
	case bool:
		return !v
	case float64:
		return v == 0
	case string:
		return v == ""
	case []any:
		return len(v) == 0
	case map[string]any:
		return len(v) == 0
	}
	return true // null
}

// checkStart returns an error unless PEFT leaves the base weight unchanged when it starts with the A and B of an
// init_lora_weights: a boolean, null, or one of starts.
func checkStart(value json.RawMessage) error {
	var v any
	_ = json.Unmarshal(value, &v) // which checkField has read
	switch v := v.(type) {
	case nil, bool:
		return nil
	case string:
		name, _, numbered := strings.Cut(strings.ToLower(v), niter)
		if s, known := starts[name]; !known || numbered && !s.iterates {
			return fmt.Errorf(`the field "init_lora_weights" has the value %q, which is not known: %w`, v, snug.ErrConfig)
		} else if s.refused != "" {
			return fmt.Errorf(`the field "init_lora_weights" has the value %q: %s: %w`, v, s.refused, snug.ErrConfig)
		}
		return nil
	}
	return fmt.Errorf(`the field "init_lora_weights" has the value %.100s, want a boolean or a string: %w`, value, snug.ErrConfig)
}
