//go:build unix

package main

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// hostileFiles are the files of a prepared folder.
var hostileFiles = []string{
	"model/config.json", "model/model.safetensors.index.json", "model/model-00001-of-00002.safetensors", "model/model-00002-of-00002.safetensors",
	"model/tokenizer.json", "model/tokenizer_config.json", "model/special_tokens_map.json", "model/added_tokens.json", "model/vocab.json", "model/merges.txt",
	"model/tokenizer.model", "model/tekken.json", "model/chat_template.jinja", "model/chat_template.json", "model/generation_config.json",
	"model/additional_chat_templates/tool_use.jinja", "adapter/adapter_config.json", "adapter/adapter_model.safetensors", "data/chats.jsonl",
}

// hostileMutations are all ways to change a folder.
func hostileMutations() (all []mutation) {
	add := func(name string, do func(g *ground, file string) string, files ...string) {
		for _, file := range files {
			all = append(all, mutation{name + " " + file, func(g *ground) string { return file + ": " + do(g, file) }})
		}
	}
	for name, do := range inAnyPlace() {
		add(name, do, hostileFiles...)
	}
	var texts, tensors []string
	for _, file := range hostileFiles {
		switch filepath.Ext(file) {
		case ".json":
			texts = append(texts, file)
		case ".safetensors":
			tensors = append(tensors, file)
		}
	}
	for name, do := range inJSON() {
		add(name, do, texts...)
	}
	for name, do := range inTensors() {
		add(name, do, tensors...)
	}
	for range 40 { // each with other numbers
		add("numbers", fields(hostileNumbers), "model/config.json", "adapter/adapter_config.json")
	}
	for range 10 {
		add("values", fields(hostileValues), texts...)
	}
	for name, do := range inConfig() {
		add(name, do, "model/config.json")
	}
	for name, do := range inIndex() {
		add(name, do, "model/model.safetensors.index.json")
	}
	for name, do := range inTokenizer() {
		add(name, do, "model/tokenizer.json")
	}
	for name, text := range hostileTemplates() {
		add(name, func(g *ground, file string) string { g.write(file, []byte(text)); return text }, "model/chat_template.jinja")
	}
	for name, do := range inAdapter() {
		add(name, do, "adapter/adapter_config.json")
	}
	for name, do := range inData() {
		add(name, do, "data/chats.jsonl")
	}
	return sorted(all)
}

func sorted(all []mutation) []mutation {
	list := append([]mutation{}, all...)
	// The order of maps is random: seeds must find the same mutations.
	for i := 1; i < len(list); i++ {
		for j := i; j > 0 && list[j].name < list[j-1].name; j-- {
			list[j], list[j-1] = list[j-1], list[j]
		}
	}
	return list
}

type mutator = func(g *ground, file string) string

// inAnyPlace has what can be put in the place of any file.
func inAnyPlace() map[string]mutator {
	place := func(put func(path string) error) mutator {
		return func(g *ground, file string) string {
			_ = os.RemoveAll(g.path(file))
			if err := put(g.path(file)); err != nil {
				panic(err)
			}
			return ""
		}
	}
	link := func(to string) mutator { return place(func(path string) error { return os.Symlink(to, path) }) }
	return map[string]mutator{
		"link to a secret": func(g *ground, file string) string {
			_ = os.RemoveAll(g.path(file))
			if err := os.Symlink(g.secret, g.path(file)); err != nil {
				panic(err)
			}
			return ""
		},
		"link to itself outside": func(g *ground, file string) string {
			to := filepath.Join(g.root, "..", "moved")
			_ = os.RemoveAll(to)
			_ = os.Rename(g.path(file), to)
			if err := os.Symlink(to, g.path(file)); err != nil {
				panic(err)
			}
			return ""
		},
		"link inside": link("config.json"), "link up": link("../model/tokenizer.json"), "link to nothing": link("none"), "link in a circle": place(func(path string) error { return os.Symlink(filepath.Base(path), path) }),
		"link to zeros": link("/dev/zero"), "link to a full device": link("/dev/full"), "link to standard input": link("/dev/stdin"), "link to a folder": link("."), "link to memory": link("/proc/self/mem"),
		"link to kernel's file": link("/proc/self/environ"), "missing": place(func(string) error { return nil }),
		"pipe": place(func(path string) error { return syscall.Mkfifo(path, 0o600) }), "folder": place(func(path string) error { return os.Mkdir(path, 0o700) }),
		"sparse TB": place(func(path string) error { return sparse(path, 1<<40) }), "sparse at the limit": place(func(path string) error { return sparse(path, 4<<20) }),
		"sparse 64 MiB": place(func(path string) error { return sparse(path, 64<<20) }), "sparse 300 MB": place(func(path string) error { return sparse(path, 300<<20) }),
		"socket": place(func(path string) error {
			dir, err := os.MkdirTemp("", "s") // names of sockets are short
			if err != nil {
				return err
			}
			defer os.RemoveAll(dir)
			short := filepath.Join(dir, "s")
			l, err := net.ListenUnix("unix", &net.UnixAddr{Name: short})
			if err != nil {
				return err
			}
			l.SetUnlinkOnClose(false)
			return errors.Join(l.Close(), os.Rename(short, path))
		}),
		"empty": func(g *ground, file string) string { g.write(file, nil); return "" },
		"pointer": func(g *ground, file string) string {
			g.write(file, []byte("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"))
			return ""
		},
		"page": func(g *ground, file string) string { g.write(file, []byte("<!DOCTYPE html><html></html>")); return "" },
		"mark": func(g *ground, file string) string {
			g.write(file, append([]byte("\xef\xbb\xbf"), g.read(file)...))
			return ""
		},
		"twice": func(g *ground, file string) string { b := g.read(file); g.write(file, append(b, b...)); return "" },
		"cut": func(g *ground, file string) string {
			b := g.read(file)
			b = b[:g.rng.IntN(len(b)+1)]
			g.write(file, b)
			return fmt.Sprint(len(b))
		},
		"bits": func(g *ground, file string) string {
			b := g.read(file)
			at := []int{}
			for range 1 + g.rng.IntN(8) {
				if len(b) > 0 {
					n := g.rng.IntN(8 * len(b))
					b[n/8] ^= 1 << (n % 8)
					at = append(at, n)
				}
			}
			g.write(file, b)
			return fmt.Sprint(at)
		},
		"first bits": func(g *ground, file string) string {
			b := g.read(file)
			n := g.rng.IntN(8 * max(1, min(len(b), 400)))
			if len(b) > 0 {
				b[n/8] ^= 1 << (n % 8)
			}
			g.write(file, b)
			return fmt.Sprint(n)
		},
		"noise": func(g *ground, file string) string {
			b := make([]byte, 1+g.rng.IntN(5000))
			for i := range b {
				b[i] = byte(g.rng.Uint32())
			}
			g.write(file, b)
			return ""
		},
		"zeros in": func(g *ground, file string) string {
			b := g.read(file)
			at := g.rng.IntN(len(b) + 1)
			g.write(file, append(append(append([]byte{}, b[:at]...), make([]byte, 9)...), b[at:]...))
			return fmt.Sprint(at)
		},
	}
}

// inJSON has texts that are hard to read.
func inJSON() map[string]mutator {
	whole := func(text func() string) mutator {
		return func(g *ground, file string) string { g.write(file, []byte(text())); return "" }
	}
	field := func(text func() string) mutator {
		return func(g *ground, file string) string {
			keys := g.keysOf(file)
			key := "x"
			if len(keys) > 0 {
				key = keys[g.rng.IntN(len(keys))]
			}
			g.edit(file, func(doc map[string]any) { doc[key] = json.RawMessage(text()) })
			return key
		}
	}
	is := func(text string) func() string { return func() string { return text } }
	many := func(begin, part, end string, n int) func() string {
		return func() string { return begin + strings.Repeat(part, n) + end }
	}
	deep := func(open, inner, end string, n int) func() string {
		return func() string { return strings.Repeat(open, n) + inner + strings.Repeat(end, n) }
	}
	wide := func() string {
		var b strings.Builder
		for i := range 300_000 {
			fmt.Fprintf(&b, `"k%d":[%d,{}],`, i, i)
		}
		return "{" + b.String() + `"z":1}`
	}
	return map[string]mutator{
		"deep": whole(deep("[", "", "]", 2_000_000)), "deep and open": whole(many("", `{"a":`, "", 1_000_000)),
		"deep in a field": field(deep("[", "", "]", 9_000)), "objects in a field": field(deep(`{"a":`, "1", "}", 5_000)),
		"wide": whole(wide), "wide in a field": field(wide),
		"long list": field(many("[", "0,", "0]", 3_000_000)), "long list of lists": field(many("[", "[],", "[]]", 2_000_000)), "long list of texts": field(many("[", `"",`, `""]`, 2_000_000)),
		"long text": field(many(`"`, "x", `"`, 12<<20)), "long escapes": field(many(`"`, `\u0041`, `"`, 2<<20)), "long number": field(many("", "9", "", 1<<20)),
		"repeated key": whole(is(`{"model_type":"llama","model_type":"gpt2","a":1,"a":2}`)), "null": whole(is("null")), "list": whole(is("[{}]")), "nothing": whole(is("{}")),
		"spaces": whole(many("", " ", "{}", 10<<20)), "half surrogate": field(is(`"\ud83d"`)), "no UTF-8": field(is("\"\xff\xfe\"")), "controls": field(is(`"\u0000\u001b[2J\n../../x"`)),
	}
}

var (
	hostileNumbers = []string{"0", "-1", "1", "2", "3", "7", "1000000000", "2147483647", "2147483648", "4294967296", "4611686018427387904", "9223372036854775807", "9223372036854775808", "1e308", "1e999", "-0.0", "0.5", "1e-320", "123456789012345678901234567890"}
	hostileValues  = []string{"null", "true", "[]", "{}", `""`, `"x"`, `[null]`, `[[[]]]`, `{"":""}`, `[{}]`, `["a","a"]`, `"../../secret"`, `"\u0000"`, "-1", "1e9", `{"a":{"b":{"c":[1]}}}`}
)

// fields gives one to three fields of an object other values.
func fields(values []string) mutator {
	return func(g *ground, file string) string {
		keys := g.keysOf(file)
		var did []string
		for range 1 + g.rng.IntN(3) {
			if len(keys) == 0 {
				break
			}
			key, value := keys[g.rng.IntN(len(keys))], values[g.rng.IntN(len(values))]
			text := g.read(file)
			doc := map[string]json.RawMessage{}
			if json.Unmarshal(text, &doc) != nil {
				break
			}
			doc[key] = json.RawMessage(value)
			did = append(did, key+"="+value)
			out, err := json.Marshal(doc)
			if err != nil {
				break
			}
			g.write(file, out)
		}
		return strings.Join(did, " ")
	}
}

// inTensors has headers of safetensors that lie.
func inTensors() map[string]mutator {
	header := func(change func(rng *rand.Rand, doc map[string]any, names []string)) mutator {
		return func(g *ground, file string) string {
			b := g.read(file)
			n := 0
			if len(b) >= 8 {
				n = int(min(binary.LittleEndian.Uint64(b), uint64(len(b)-8)))
			}
			doc := map[string]any{}
			if n == 0 || json.Unmarshal(b[8:8+n], &doc) != nil {
				return "no header"
			}
			var names []string
			for name := range doc {
				names = append(names, name)
			}
			change(g.rng, doc, names)
			text, err := json.Marshal(doc)
			if err != nil {
				panic(err)
			}
			g.write(file, append(append(binary.LittleEndian.AppendUint64(nil, uint64(len(text))), text...), b[8+n:]...))
			return ""
		}
	}
	each := func(change func(rng *rand.Rand, t map[string]any)) mutator {
		return header(func(rng *rand.Rand, doc map[string]any, names []string) {
			for _, name := range names {
				if t, ok := doc[name].(map[string]any); ok && rng.IntN(3) == 0 && t["dtype"] != nil {
					change(rng, t)
				}
			}
		})
	}
	length := func(n uint64) mutator {
		return func(g *ground, file string) string {
			b := g.read(file)
			if len(b) >= 8 {
				binary.LittleEndian.PutUint64(b, n)
			}
			g.write(file, b)
			return ""
		}
	}
	name := func(to string) mutator {
		return header(func(_ *rand.Rand, doc map[string]any, names []string) {
			if len(names) > 0 {
				doc[to] = doc[names[0]]
				delete(doc, names[0])
			}
		})
	}
	return map[string]mutator{
		"length 0": length(0), "length 2^63": length(1 << 63), "length of 2^64": length(math.MaxUint64), "length of 100 MB": length(100_000_000), "length 99 MB": length(99_999_999), "length 2^40": length(1 << 40),
		"shapes near the end of int": each(func(rng *rand.Rand, t map[string]any) {
			t["shape"] = [][]any{{uint64(1) << 62, 2}, {uint64(math.MaxInt64)}, {uint64(math.MaxInt64), 0}, {uint64(1) << 32, uint64(1) << 32}, {-1}, {int64(1) << 31, int64(1) << 31, 4}, {3.5}}[rng.IntN(7)]
		}),
		"offsets": each(func(rng *rand.Rand, t map[string]any) {
			t["data_offsets"] = [][]any{{0, uint64(math.MaxInt64)}, {uint64(math.MaxInt64), uint64(math.MaxInt64)}, {8, 4}, {-4, 4}, {0, 4}, {0}, {}}[rng.IntN(7)]
		}),
		"types": each(func(rng *rand.Rand, t map[string]any) {
			t["dtype"] = []string{"F64", "I64", "F16", "U8", "F8_E4M3", "BOOL", "F4", "C64", "X", ""}[rng.IntN(10)]
		}),
		"scalars":         each(func(_ *rand.Rand, t map[string]any) { t["shape"] = []any{} }),
		"many dimensions": each(func(_ *rand.Rand, t map[string]any) { t["shape"] = make([]int, 500_000) }),
		"overlaps": header(func(_ *rand.Rand, doc map[string]any, names []string) {
			for i := range names {
				doc[fmt.Sprintf("again.%d", i)] = doc[names[i]]
			}
		}),
		"no tensors": header(func(_ *rand.Rand, doc map[string]any, names []string) { clear(doc) }),
		"metadata":   header(func(_ *rand.Rand, doc map[string]any, names []string) { doc["__metadata__"] = map[string]any{"a": 1} }),
		"much metadata": header(func(_ *rand.Rand, doc map[string]any, names []string) {
			doc["__metadata__"] = map[string]any{"a": strings.Repeat("\x1b[2J", 1<<20), "format": "\x00"}
		}),
		"many empty tensors": header(func(_ *rand.Rand, doc map[string]any, names []string) {
			for i := range 200_000 {
				doc[fmt.Sprint(i)] = map[string]any{"dtype": "F32", "shape": []int{0}, "data_offsets": []int{0, 0}}
			}
		}),
		"name with NUL": name("model\x00embed"), "name with lines": name("a\nb\x1b[31m"), "name that leads out": name("../../../x"), "long name": name(strings.Repeat("n", 5<<20)), "no name": name(""),
		"not finite": func(g *ground, file string) string {
			b := g.read(file)
			for range 40 {
				if at := len(b)/2 + g.rng.IntN(len(b)/2+1); at+4 < len(b) {
					copy(b[at&^3:], []byte{0, 0, 0xc0, 0x7f})
				}
			}
			g.write(file, b)
			return ""
		},
		"a TB of data": func(g *ground, file string) string {
			b := g.read(file)
			text := `{"model.embed_tokens.weight":{"dtype":"BF16","shape":[17179869184,32],"data_offsets":[0,1099511627776]}}`
			g.write(file, append(binary.LittleEndian.AppendUint64(nil, uint64(len(text))), text...))
			_ = b
			if err := os.Truncate(g.path(file), int64(8+len(text))+1<<40); err != nil {
				panic(err)
			}
			return ""
		},
		"a header of 60 MB": func(g *ground, file string) string {
			g.writeBig(file, func(w *bufio.Writer) {
				var n [8]byte
				binary.LittleEndian.PutUint64(n[:], 60<<20)
				w.Write(n[:])
				w.WriteString("{")
				for range 60<<20 - 2 {
					w.WriteByte(' ')
				}
				w.WriteString("}")
			})
			return ""
		},
	}
}

// inConfig has models that cannot be.
func inConfig() map[string]mutator {
	set := func(text string) mutator {
		return func(g *ground, file string) string {
			more := map[string]any{}
			if err := json.Unmarshal([]byte(text), &more); err != nil {
				panic(err)
			}
			g.edit(file, func(doc map[string]any) {
				for key, value := range more {
					doc[key] = value
				}
			})
			return text
		}
	}
	all := map[string]mutator{
		"vocabulary of 2^62": set(`{"vocab_size": 4611686018427387904}`), "vocabulary of 2^27": set(`{"vocab_size": 134217728}`), "a wide model": set(`{"hidden_size": 268435456}`), "a TB of MLP": set(`{"intermediate_size": 268435456}`),
		"10^9 layers": set(`{"num_hidden_layers": 1000000000}`), "4096 layers": set(`{"num_hidden_layers": 4096}`), "no heads": set(`{"num_attention_heads": 0}`), "no KV heads": set(`{"num_key_value_heads": 0}`), "2^28 positions": set(`{"max_position_embeddings": 268435456}`),
		"a small number": set(`{"rms_norm_eps": 5e-324}`), "a negative norm": set(`{"rms_norm_eps": -1}`), "theta 0": set(`{"rope_parameters": {"rope_theta": 0, "rope_type": "default"}}`),
		"yarn":         set(`{"rope_parameters": {"rope_theta": 1e4, "rope_type": "yarn", "factor": 1e300, "original_max_position_embeddings": 9223372036854775807}}`),
		"llama3":       set(`{"rope_parameters": {"rope_theta": 1e4, "rope_type": "llama3", "factor": 0, "low_freq_factor": 0, "high_freq_factor": 0, "original_max_position_embeddings": 0}}`),
		"longrope":     set(`{"rope_parameters": {"rope_theta": 1e4, "rope_type": "longrope", "short_factor": [], "long_factor": []}}`),
		"quantization": set(`{"quantization_config": {"quant_method": "fp8", "weight_block_size": [0, -1]}}`), "int8": set(`{"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": true}}`),
		"ends": set(`{"eos_token_id": [9223372036854775807, -5]}`), "code": set(`{"auto_map": {"AutoModelForCausalLM": "modeling.Model"}}`),
		"experts": set(`{"model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "num_local_experts": 1000000, "num_experts_per_tok": 1000000}`), "windows": set(`{"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": -1}`),
	}
	for _, family := range []string{"gpt2", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "gemma2", "gemma3_text", "gemma3", "gpt_oss", "phi3", "smollm3", "glm4", "ernie4_5", "bert", ""} {
		all["as "+family] = set(fmt.Sprintf(`{"model_type": %q, "architectures": null}`, family))
	}
	return all
}

// inIndex has shards that are not the folder's.
func inIndex() map[string]mutator {
	all := map[string]mutator{
		"many shards": func(g *ground, file string) string {
			g.edit(file, func(doc map[string]any) {
				shards := map[string]any{}
				for i := range 100_000 {
					shards[fmt.Sprint(i)] = fmt.Sprintf("%d.safetensors", i)
				}
				doc["weight_map"] = shards
			})
			return ""
		},
	}
	for _, to := range []string{"../secret", "../../secret.safetensors", "/etc/passwd", "/dev/zero.safetensors", "config.json", "", ".", "..", "x\x00.safetensors", "a\nb.safetensors", "model/../model-00001-of-00002.safetensors", "none.safetensors", "..\\x.safetensors", strings.Repeat("n", 5000) + ".safetensors"} {
		all[fmt.Sprintf("shard %.30q", to)] = func(g *ground, file string) string {
			g.edit(file, func(doc map[string]any) {
				if shards, ok := doc["weight_map"].(map[string]any); ok {
					for name := range shards {
						if g.rng.IntN(4) == 0 {
							shards[name] = to
						}
					}
				}
			})
			return to
		}
	}
	return all
}

// inAdapter has adapters that cannot be.
func inAdapter() map[string]mutator {
	all := map[string]mutator{}
	for _, text := range []string{
		`{"r": 1000000000}`, `{"r": 0}`, `{"r": -1}`, `{"lora_alpha": 1e308}`, `{"lora_alpha": "x"}`, `{"target_modules": "(a+)+$"}`, `{"target_modules": "(.*){1000}"}`, `{"target_modules": "((a{1,1000}){1,1000}){1,1000}"}`,
		`{"target_modules": []}`, `{"target_modules": ["", "."]}`, `{"modules_to_save": ["embed_tokens", "lm_head", "norm"]}`, `{"modules_to_save": ["."]}`, `{"layers_to_transform": [1000000000]}`, `{"layers_to_transform": -1}`,
		`{"rank_pattern": {"(a+)+": 1000000000}}`, `{"rank_pattern": {"q_proj": 0}}`, `{"alpha_pattern": {".*": -1}}`, `{"peft_type": "VERA", "r": 1000000000, "projection_prng_key": 9223372036854775807}`, `{"use_dora": true}`, `{"use_rslora": true}`,
		`{"layer_replication": [[0, 1000000000]]}`, `{"base_model_name_or_path": "../../secret"}`, `{"init_lora_weights": "pissa"}`, `{"init_lora_weights": "loftq"}`, `{"fan_in_fan_out": true}`, `{"bias": "all"}`, `{"trainable_token_indices": [1000000000]}`,
	} {
		all[fmt.Sprintf("adapter %.50s", text)] = func(g *ground, file string) string {
			more := map[string]any{}
			if err := json.Unmarshal([]byte(text), &more); err != nil {
				panic(err)
			}
			g.edit(file, func(doc map[string]any) {
				for key, value := range more {
					doc[key] = value
				}
			})
			return text
		}
	}
	return all
}
