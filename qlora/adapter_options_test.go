package qlora

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
)

// rulesOfPEFT is what testdata/peft/rules.py found.
type rulesOfPEFT struct {
	Fields  map[string]json.RawMessage
	Names   []string
	Modules []struct {
		Config   map[string]json.RawMessage
		Selected []string
	}
	Ranks []struct {
		Config map[string]json.RawMessage
		Each   map[string][2]float32
	}
	Starts [][2]any
	Values [][3]json.RawMessage
}

func peftRules(t *testing.T) (rules rulesOfPEFT) {
	text, err := os.ReadFile(filepath.Join("testdata", "peft", "rules.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &rules))
	return rules
}

// config returns PEFT's defaults with other values of some fields.
func (r *rulesOfPEFT) config(t *testing.T, fields map[string]json.RawMessage) (AdapterOptions, error) {
	all := map[string]json.RawMessage{}
	for _, from := range []map[string]json.RawMessage{r.Fields, fields} {
		for name, value := range from {
			all[name] = value
		}
	}
	text, err := json.Marshal(all)
	require.NoError(t, err)
	c, err := parseAdapterConfig(text)
	if err == nil {
		_, err = c.check()
	}
	return c, err
}

// TestModulesOfPEFT: PEFT and this package give the same modules an adapter.
func TestModulesOfPEFT(t *testing.T) {
	rules := peftRules(t)
	require.Greater(t, len(rules.Modules), 40)
	for _, m := range rules.Modules {
		c, err := rules.config(t, m.Config)
		require.NoError(t, err, "%s", m.Config)
		text, err := c.encode()
		require.NoError(t, err)
		again, err := parseAdapterConfig(text)
		require.NoError(t, err)
		require.Equal(t, c, again)
		s, err := c.check()
		require.NoError(t, err)
		for i, name := range rules.Names {
			got, err := s.selects(name)
			if i == 0 { // which compiles the config
				got, err = c.Selects(name)
			}
			if name == "straße.q_proj" && err != nil { // with classes that are Unicode in Python
				require.ErrorIs(t, err, snug.ErrConfig)
				require.Regexp(t, `\\[bdw]|\(\?i`, c.Targets.Pattern+c.Exclude.Pattern)
				continue
			}
			require.NoError(t, err)
			require.Equal(t, slices.Contains(m.Selected, name), got, "%s: %s", m.Config, name)
		}
	}
}

// TestRanksOfPEFT: PEFT and this package give adapters the same ranks and scales.
//
//check:in race
func TestRanksOfPEFT(t *testing.T) {
	rules := peftRules(t)
	for _, r := range rules.Ranks {
		r.Config["r"], r.Config["lora_alpha"] = []byte("8"), []byte("16")
		c, err := rules.config(t, r.Config)
		require.NoError(t, err, "%s", r.Config)
		for _, name := range rules.Names {
			want, found := r.Each[name]
			if !found {
				want = [2]float32{8, 16}
			}
			rank, scale, err := c.RankOf(name)
			if name == "straße.q_proj" && err != nil {
				require.ErrorIs(t, err, snug.ErrConfig)
				continue
			}
			require.NoError(t, err)
			require.Equal(t, int(want[0]), rank, "%s: %s", r.Config, name)
			require.Equal(t, LoRAScale(want[1], rank, c.RSLoRA), scale, "%s: %s", r.Config, name)
		}
	}
	c := AdapterOptions{Rank: 1, Alpha: 1, Ranks: map[string]int{"up": 2, "mlp.up": 3}}
	_, _, err := c.RankOf("mlp.up")
	require.ErrorIs(t, err, snug.ErrConfig)
	require.ErrorContains(t, err, `rank_pattern has two values for "mlp.up", by the keys "mlp.up" and "up"`)
}

// TestStartsOfPEFT: adapters are refused when PEFT changed the base weight at their start.
func TestStartsOfPEFT(t *testing.T) {
	rules := peftRules(t)
	require.Greater(t, len(rules.Starts), 10)
	rules.Starts = append(rules.Starts, [2]any{"loftq", true}, [2]any{nil, false}, [2]any{"something", true}, [2]any{"", true}, [2]any{1, true}, [2]any{[]int{}, true})
	for _, s := range rules.Starts {
		value, err := json.Marshal(s[0])
		require.NoError(t, err)
		c, err := rules.config(t, map[string]json.RawMessage{"init_lora_weights": value})
		if s[1] == false {
			require.NoError(t, err, "%s", value)
			if s[0] != true {
				require.Equal(t, json.RawMessage(value), c.Other["init_lora_weights"])
			}
			continue
		}
		require.ErrorIs(t, err, snug.ErrConfig)
		require.ErrorContains(t, err, `"init_lora_weights"`)
		require.ErrorContains(t, err, string(value))
		if name, _ := s[0].(string); slices.Contains([]string{"pissa", "pissa_niter_4", "olora", "OLoRA", "corda", "lora_ga"}, name) {
			require.ErrorContains(t, err, "path_initial_model_for_weight_conversion")
		}
	}
}

// TestValuesOfPEFT: where PEFT makes an adapter with a value of a field, this package makes
// the same or refuses the field by name and value as one that is not supported. Where PEFT
// fails because of a number, the file is damaged.
func TestValuesOfPEFT(t *testing.T) {
	rules := peftRules(t)
	require.Greater(t, len(rules.Values), 300)
	loaded := 0
	for _, v := range rules.Values {
		var name, why string
		require.NoError(t, json.Unmarshal(v[0], &name))
		value := string(v[1])
		fields := map[string]json.RawMessage{"peft_type": []byte(`"LORA"`), "target_modules": []byte(`["up"]`), name: v[1]}
		if name == "layers_pattern" {
			fields["layers_to_transform"] = []byte("[1]")
		}
		text, err := json.Marshal(fields)
		require.NoError(t, err)
		c, s, err := readAdapterConfig(text)
		if json.Unmarshal(v[2], &why) == nil {
			if nothing := why == "NoAdapter" || why == "NoMatchingPeftModuleError"; !nothing && (err != nil || isNumber(name)) {
				require.ErrorIs(t, err, snug.ErrCorrupt, "%s %s", name, value)
				require.NotErrorIs(t, err, snug.ErrConfig, "%s %s", name, value)
				require.ErrorContains(t, err, name)
			}
			continue
		}
		if err != nil {
			require.ErrorIs(t, err, snug.ErrConfig, "%s %s", name, value)
			require.NotErrorIs(t, err, snug.ErrCorrupt, "%s %s", name, value)
			require.ErrorContains(t, err, "the field \""+name+"\" has the value ")
			require.ErrorContains(t, err, strings.ReplaceAll(value, ": ", ":"))
			continue
		}
		loaded++
		rank, scale, err := s.scale("model.layers.1.up", c.RSLoRA)
		require.NoError(t, err)
		got, err := json.Marshal([]any{rank, scale, c.Dropout, c.DoRA})
		require.NoError(t, err)
		var want [4]any
		require.NoError(t, json.Unmarshal(v[2], &want))
		var have [4]any
		require.NoError(t, json.Unmarshal(got, &have))
		require.InDelta(t, want[1], have[1], 1e-6, "%s %s", name, value)
		want[1], have[1] = nil, nil
		require.Equal(t, want, have, "%s %s", name, value)
	}
	require.Greater(t, loaded, 30)
	_, _, err := readAdapterConfig([]byte(`{"r":8}`))
	require.ErrorIs(t, err, snug.ErrConfig)
	require.ErrorContains(t, err, `the field "peft_type" is missing, want "LORA"`)
}

// TestFieldsOfPEFT goes through all fields of PEFT's LoraConfig: with its default each is
// accepted; another value is ours, kept, or refused by name.
func TestFieldsOfPEFT(t *testing.T) {
	rules := peftRules(t)
	for name := range rules.Fields {
		require.NotEqual(t, unknown, field(name), name)
	}
	c, err := rules.config(t, nil)
	require.NoError(t, err)
	require.Equal(t, AdapterOptions{Rank: 8, Alpha: 8, Other: c.Other}, c)
	for name := range c.Other {
		require.NotEqual(t, ours, field(name), name)
	}

	of := func(set func(c *AdapterOptions)) func(*AdapterOptions) { return set }
	supported := map[string]struct {
		value string
		set   func(*AdapterOptions)
	}{
		"r":                       {`3`, of(func(c *AdapterOptions) { c.Rank = 3 })},
		"lora_alpha":              {`2.5`, of(func(c *AdapterOptions) { c.Alpha = 2.5 })},
		"lora_dropout":            {`0.5`, of(func(c *AdapterOptions) { c.Dropout = 0.5 })},
		"use_rslora":              {`true`, of(func(c *AdapterOptions) { c.RSLoRA = true })},
		"use_dora":                {`true`, of(func(c *AdapterOptions) { c.DoRA = true })},
		"fan_in_fan_out":          {`true`, of(func(c *AdapterOptions) { c.FanInFanOut = true })},
		"target_modules":          {`["a","b"]`, of(func(c *AdapterOptions) { c.Targets.Names = []string{"a", "b"} })},
		"exclude_modules":         {`"a.*"`, of(func(c *AdapterOptions) { c.Exclude.Pattern = "a.*" })},
		"layers_to_transform":     {`[1,2]`, of(func(c *AdapterOptions) { c.Layers = []int{1, 2} })},
		"rank_pattern":            {`{"a":2}`, of(func(c *AdapterOptions) { c.Ranks = map[string]int{"a": 2} })},
		"modules_to_save":         {`["lm_head"]`, of(func(c *AdapterOptions) { c.ModulesToSave = []string{"lm_head"} })},
		"alpha_pattern":           {`{"a":0.5}`, of(func(c *AdapterOptions) { c.Alphas = map[string]float32{"a": 0.5} })},
		"base_model_name_or_path": {`"a/b"`, of(func(c *AdapterOptions) { c.BaseModel = "a/b" })},
	}
	for name, s := range supported {
		got, err := rules.config(t, map[string]json.RawMessage{name: json.RawMessage(s.value)})
		require.NoError(t, err, name)
		want := AdapterOptions{Rank: 8, Alpha: 8, Other: c.Other}
		s.set(&want)
		require.Equal(t, want, got, name)
	}
	got, err := rules.config(t, map[string]json.RawMessage{"layers_pattern": []byte(`"h"`), "layers_to_transform": []byte("3")})
	require.NoError(t, err)
	require.Equal(t, AdapterOptions{Rank: 8, Alpha: 8, Layers: []int{3}, LayersPattern: []string{"h"}, Other: c.Other}, got)

	keptValues := map[string]string{
		"auto_mapping": `{"base_model_class":"Model"}`, "inference_mode": `false`, "peft_version": `"9.0"`, "revision": `"main"`, "runtime_config": `{"ephemeral_gpu_offload":true}`,
		"task_type": `"CAUSAL_LM"`, "megatron_core": `"other"`, "qalora_group_size": `32`, "merge_weights": `true`,
		"corda_config": `{"a":1}`, "eva_config": `{"rho":2.0}`, "loftq_config": `{"loftq_bits":4}`, "lora_ga_config": `{"scale":"unit"}`,
	}
	for name, value := range keptValues {
		require.Equal(t, kept, field(name), name)
		got, err := rules.config(t, map[string]json.RawMessage{name: json.RawMessage(value)})
		require.NoError(t, err, name)
		text, err := got.encode()
		require.NoError(t, err)
		again, err := parseAdapterConfig(text)
		require.NoError(t, err)
		require.JSONEq(t, value, string(again.Other[name]), name)
	}

	refused := map[string]string{
		"bias": `"lora_only"`, "alora_invocation_tokens": `[1]`, "enable_lora": `[true,false]`, "ensure_weight_tying": `true`, "layer_replication": `[[0,4],[2,5]]`, "lora_bias": `true`,
		"megatron_config": `{"a":1}`, "target_parameters": `["experts"]`, "trainable_token_indices": `{"embed_tokens":[1]}`, "use_qalora": `true`,
		"arrow_config": `{}`, "kasa_config": `{"beta":1}`, "monteclora_config": `{}`, "use_bdlora": `{"nblocks":2}`, "velora_config": `{}`,
		"use_something_new": `true`, "Use_Dora": `true`, "R": `8`, "something_config": `{"a":1}`, "peft_type": `"IA3"`,
	}
	for name, value := range refused {
		_, err := rules.config(t, map[string]json.RawMessage{name: json.RawMessage(value)})
		require.ErrorIs(t, err, snug.ErrConfig, name)
		require.ErrorContains(t, err, `"`+name+`"`)
		require.ErrorContains(t, err, value)
		if name != "peft_type" {
			c := AdapterOptions{Rank: 2, Alpha: 4, Other: map[string]json.RawMessage{name: json.RawMessage(value)}}
			require.ErrorIs(t, SaveAdapters(t.TempDir(), c, someAdapters(c)), snug.ErrConfig, name)
		}
	}
	for _, value := range []string{"null", "false", "0", `""`, "[]", "{}"} {
		_, err := rules.config(t, map[string]json.RawMessage{"something_new": json.RawMessage(value)})
		require.NoError(t, err, value)
	}
	seen := map[string]bool{"init_lora_weights": true, "layers_pattern": true}
	for _, names := range []map[string]string{keptValues, refused} {
		for name := range names {
			seen[name] = true
		}
	}
	for name := range fields {
		require.True(t, seen[name] || supported[name].value != "", "%s is not tested", name)
	}
}

// TestPatternsOfPython: what Go's regexp does not have, or has with another meaning, is
// refused as an option, not as damage.
func TestPatternsOfPython(t *testing.T) {
	for _, pattern := range []string{`(?!a).*`, `.*(?<=a)b`, `(a)\1`, `a\Z`, `(?>a)b`, `a++`, `a{,3}`, `[[:alpha:]]`, `[:a]`, `\07`, `(`, `a)|(b`, `(?x) a`, `a{1001}`} {
		c := AdapterOptions{Rank: 1, Alpha: 1}
		for _, set := range []func(){
			func() { c.Targets.Pattern = pattern },
			func() { c.Targets.Pattern, c.Exclude.Pattern = "", pattern },
			func() { c.Exclude.Pattern, c.Layers, c.LayersPattern = "", []int{1}, []string{pattern} },
			func() { c.Layers, c.LayersPattern, c.Ranks = nil, nil, map[string]int{pattern: 1} },
			func() { c.Ranks, c.Alphas = nil, map[string]float32{pattern: 1} },
		} {
			set()
			_, err := c.Selects("a")
			require.ErrorIs(t, err, snug.ErrConfig, pattern)
			require.NotErrorIs(t, err, snug.ErrCorrupt)
			require.ErrorContains(t, err, "not supported")
		}
	}
	for _, c := range []AdapterOptions{
		{Targets: Modules{Names: []string{"a"}, Pattern: "a"}},
		{Targets: Modules{Pattern: "a"}, Layers: []int{1}},
		{Targets: Modules{Pattern: "a"}, LayersPattern: []string{"h"}},
		{LayersPattern: []string{"h"}},
		{Ranks: map[string]int{"a": 0}},
		{Alphas: map[string]float32{"a": -1}},
		{Other: map[string]json.RawMessage{"r": []byte("1")}},
		{Other: map[string]json.RawMessage{"task_type": []byte("{")}},
		{Other: map[string]json.RawMessage{"task_type": nil}},
		{Other: map[string]json.RawMessage{"auto_mapping": []byte(`{"a":1,"a":2}`)}},
		{Other: map[string]json.RawMessage{"\xff": []byte("null")}},
		{BaseModel: "\xff"},
		{Targets: Modules{Names: []string{"\xff"}}},
		{Ranks: map[string]int{"\xff": 1}},
	} {
		c.Rank, c.Alpha = 1, 1
		_, err := c.Selects("a")
		require.ErrorIs(t, err, snug.ErrConfig, "%+v", c)
		_, _, err = c.RankOf("a")
		require.ErrorIs(t, err, snug.ErrConfig, "%+v", c)
	}
	c := AdapterOptions{Rank: 1, Alpha: 1, Targets: Modules{Pattern: "All-Linear"}, Exclude: Modules{Names: []string{"b"}}}
	for name, want := range map[string]bool{"a": true, "x.a": true, "x.b": false} {
		t.Run(name, func(t *testing.T) {
			got, err := c.Selects(name)
			require.NoError(t, err)
			require.Equal(t, want, got, name)
		})
	}
}

// TestAdaptersOfModules: an adapter of a module that the config does not select, which
// PEFT would leave out, is neither saved nor loaded; configs with patterns are.
func TestAdaptersOfModules(t *testing.T) {
	dir := t.TempDir()
	c := AdapterOptions{Rank: 2, Alpha: 4, Ranks: map[string]int{"up": 3}, Alphas: map[string]float32{"down": 1}, Targets: Modules{Pattern: `layers\.\d\.(up|down)`}, FanInFanOut: true,
		Exclude: Modules{Names: []string{"layers.1.up"}}, Other: map[string]json.RawMessage{"task_type": []byte(`"CAUSAL_LM"`), "auto_mapping": []byte(`{"a":[1,2]}`)}}
	adapters := someAdapters(c)
	require.Equal(t, 3, adapters["layers.0.up"].Rank)
	require.Equal(t, float32(0.5), adapters["layers.0.down"].Scale)
	require.NoError(t, SaveAdapters(dir, c, adapters))
	got, loaded, err := LoadAdapters(dir, nil)
	require.NoError(t, err)
	require.Equal(t, c, got)
	require.Equal(t, 3, loaded["layers.0.up"].Rank)
	require.Equal(t, float32(0.5), loaded["layers.0.down"].Scale)

	foreign(t, dir)
	for _, change := range []func(c *AdapterOptions){
		func(c *AdapterOptions) { c.Targets.Pattern = `layers\.1\..*` },
		func(c *AdapterOptions) { c.Targets = Modules{Names: []string{"up"}} },
		func(c *AdapterOptions) { c.Targets = Modules{Names: []string{}} },
		func(c *AdapterOptions) { c.Exclude = Modules{Names: []string{"up"}} },
		func(c *AdapterOptions) { c.Targets, c.Layers = Modules{Names: []string{"up", "down"}}, []int{1} },
	} {
		other := c
		change(&other)
		require.ErrorIs(t, SaveAdapters(dir, other, adapters), snug.ErrConfig, "%+v", other)
		text, err := other.encode()
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, adapterConfigFile), text, 0o600))
		_, _, err = LoadAdapters(dir, nil)
		require.ErrorIs(t, err, snug.ErrConfig, "%+v", other)
		require.ErrorContains(t, err, "PEFT leaves it out")
	}

	c.Targets = Modules{}
	c.Exclude = Modules{}
	require.NoError(t, SaveAdapters(dir, c, adapters))
	got, _, err = LoadAdapters(dir, nil)
	require.NoError(t, err)
	require.Equal(t, []string{"layers.0.down", "layers.0.up"}, got.Targets.Names, "PEFT adapts nothing without")
}

// FuzzAdapterConfig reads any text as a config. What is accepted is written again, and is
// the same.
func FuzzAdapterConfig(f *testing.F) {
	for _, name := range []string{"lora", "turned-dora"} {
		text, err := os.ReadFile(filepath.Join("testdata", "peft", name, adapterConfigFile))
		require.NoError(f, err)
		f.Add(text)
	}
	f.Add([]byte(`{"peft_type":"LORA","r":1,"lora_alpha":1,"target_modules":"(a|b)\\.c","layers_pattern":["h"],"layers_to_transform":3,"rank_pattern":{"x":2}}`))
	f.Add([]byte(`{"peft_type":"LORA","r":-1,"lora_alpha":1e39,"exclude_modules":["",null],"layers_to_transform":[1.5]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		c, _, err := readAdapterConfig(text)
		if err != nil {
			require.True(t, errors.Is(err, snug.ErrCorrupt) || errors.Is(err, snug.ErrConfig), err)
			return
		}
		_, _ = c.Selects("model.layers.1.self_attn.q_proj")
		_, _, _ = c.RankOf("a")
		written, err := c.encode()
		require.NoError(t, err)
		again, _, err := readAdapterConfig(written)
		require.NoError(t, err, "%s", written)
		require.Equal(t, c, again)
	})
}
