//go:build unix

package main

import (
	"bufio"
	"compress/gzip"
	"fmt"
	"os"
	"strings"

	"github.com/klauspost/compress/zstd"
)

// inTokenizer has tokenizers that take much memory or time.
func inTokenizer() map[string]mutator {
	part := func(key string, value func() any) mutator {
		return func(g *ground, file string) string {
			g.edit(file, func(doc map[string]any) { doc[key] = value() })
			return key
		}
	}
	type object = map[string]any
	nest := func(kind, list string, depth int, leaf any) any {
		v := leaf
		for range depth {
			v = object{"type": kind, list: []any{v}}
		}
		return v
	}
	pattern := func(p string) mutator {
		return part("pre_tokenizer", func() any {
			return object{"type": "Split", "pattern": object{"Regex": p}, "behavior": "Isolated", "invert": false}
		})
	}
	template := func(ids, places int) mutator {
		return part("post_processor", func() any {
			list, single := make([]int, ids), make([]any, places)
			for i := range single {
				single[i] = object{"SpecialToken": object{"id": "x", "type_id": 0}}
			}
			return object{"type": "TemplateProcessing", "single": append(single, object{"Sequence": object{"id": "A", "type_id": 0}}), "pair": []any{object{"Sequence": object{"id": "A", "type_id": 0}}, object{"Sequence": object{"id": "B", "type_id": 1}}},
				"special_tokens": object{"x": object{"id": "x", "ids": list, "tokens": make([]string, ids)}}}
		})
	}
	vocabulary := func(change func(vocab object, model object)) mutator {
		return func(g *ground, file string) string {
			g.edit(file, func(doc map[string]any) {
				if model, ok := doc["model"].(map[string]any); ok {
					if vocab, ok := model["vocab"].(map[string]any); ok {
						change(vocab, model)
					}
				}
			})
			return ""
		}
	}
	return map[string]mutator{
		"an id of 2^31-1": vocabulary(func(v, _ object) { v["zz"] = 1<<31 - 1 }), "an id of 2^27": vocabulary(func(v, _ object) { v["zz"] = 1 << 27 }), "an id of 2^40": vocabulary(func(v, _ object) { v["zz"] = int64(1) << 40 }),
		"a negative id": vocabulary(func(v, _ object) { v["zz"] = -1 }), "one id twice": vocabulary(func(v, _ object) { v["zz"] = 5 }), "merges of nothing": vocabulary(func(_, m object) { m["merges"] = []string{"q", "a b c", "", "zz zz"} }),
		"long merges": vocabulary(func(v, m object) {
			s := "a"
			var merges []any
			for i := range 20 {
				v[s+s] = 100 + i
				merges = append(merges, []string{s, s})
				s += s
			}
			m["merges"] = merges
		}),
		"an added id of 2^31-1": part("added_tokens", func() any {
			return []any{object{"id": 1<<31 - 1, "content": "</s>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}}
		}),
		"many added tokens": part("added_tokens", func() any {
			var list []any
			for i := range 50_000 {
				list = append(list, object{"id": 100 + i, "content": strings.Repeat("a", 1+i%200) + fmt.Sprint(i), "single_word": i%2 == 0, "lstrip": true, "rstrip": true, "normalized": i%3 == 0, "special": false})
			}
			return list
		}),
		"ids and places": template(30_000, 30_000), "nested sequences": part("pre_tokenizer", func() any { return nest("Sequence", "pretokenizers", 3_000, object{"type": "Whitespace"}) }),
		"nested normalizers": part("normalizer", func() any { return nest("Sequence", "normalizers", 3_000, object{"type": "NFC"}) }), "nested decoders": part("decoder", func() any { return nest("Sequence", "decoders", 3_000, object{"type": "Fuse"}) }),
		"nested processors": part("post_processor", func() any { return nest("Sequence", "processors", 3_000, object{"type": "ByteLevel"}) }),
		"growing texts": part("normalizer", func() any {
			var list []any
			for range 40 {
				list = append(list, object{"type": "Replace", "pattern": object{"String": "a"}, "content": "aaaa"})
			}
			return object{"type": "Sequence", "normalizers": list}
		}),
		"an empty pattern": part("normalizer", func() any {
			return object{"type": "Replace", "pattern": object{"String": ""}, "content": strings.Repeat("x", 1<<20)}
		}),
		"many patterns": part("pre_tokenizer", func() any {
			var list []any
			for i := range 5_000 {
				list = append(list, object{"type": "Split", "pattern": object{"Regex": fmt.Sprintf(`[^%c\p{L}\p{N}]+|\p{L}{1,%d}`, 'a'+i%26, 10+i%90)}, "behavior": "Isolated", "invert": false})
			}
			return object{"type": "Sequence", "pretokenizers": list}
		}),
		"big patterns": part("pre_tokenizer", func() any {
			var list []any
			for range 60 {
				list = append(list, object{"type": "Split", "pattern": object{"Regex": `(?:\p{L}{1,200}\p{N}{1,200}){1,50}|[\p{L}\p{M}\p{S}]{1,900}x`}, "behavior": "Isolated", "invert": false})
			}
			return object{"type": "Sequence", "pretokenizers": list}
		}),
		"a slow pattern": pattern(`(a+)+$`), "a slower pattern": pattern(`(?:(?:a|aa)+)+b`), "a deep pattern": pattern(strings.Repeat("(", 20_000) + strings.Repeat(")", 20_000)), "a repeated pattern": pattern(`((a{0,999}){0,999}){0,999}`),
		"a broken pattern": pattern(`[`), "a pattern that looks back": pattern(`(?<=a.*)b`), "a long class": pattern("[" + strings.Repeat("a-z", 100_000) + "]"),
		"padding": part("padding", func() any {
			return object{"strategy": object{"Fixed": int64(1) << 40}, "direction": "Right", "pad_to_multiple_of": int64(1) << 40, "pad_id": 0, "pad_type_id": 0, "pad_token": "x"}
		}),
		"truncation": part("truncation", func() any {
			return object{"max_length": int64(1) << 40, "strategy": "LongestFirst", "stride": int64(1) << 40, "direction": "Right"}
		}),
	}
}

// hostileTemplates have no end, or grow.
func hostileTemplates() map[string]string {
	return map[string]string{
		"texts double":        `{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s|length }}`,
		"lists of texts":      `{% set ns = namespace(l=[]) %}{% for i in range(9999) %}{% set ns.l = ns.l + ['x'*16000000] %}{% endfor %}`,
		"lists double":        `{% set ns = namespace(l=[1]) %}{% for i in range(99) %}{% set ns.l = ns.l + ns.l %}{% endfor %}`,
		"shared lists":        `{% set ns = namespace(l=[1]) %}{% for i in range(60) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l == ns.l }}`,
		"compared lists":      `{% set ns = namespace(a=[1],b=[1]) %}{% for i in range(60) %}{% set ns.a = [ns.a, ns.a] %}{% set ns.b = [ns.b, ns.b] %}{% endfor %}{{ ns.a == ns.b }}{{ ns.a < ns.b }}`,
		"deep lists":          `{% set ns = namespace(l=[]) %}{% for i in range(99999) %}{% for j in range(999) %}{% set ns.l = [ns.l] %}{% endfor %}{% endfor %}{{ ns.l == ns.l }}`,
		"deep lists as text":  `{% set ns = namespace(l=[]) %}{% for i in range(99999) %}{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l }}{{ ns.l|tojson }}{{ ns.l|string|length }}`,
		"deep lists sorted":   `{% set ns = namespace(l=[]) %}{% for i in range(99999) %}{% set ns.l = [ns.l] %}{% endfor %}{{ [ns.l, ns.l]|sort|length }}{{ [ns.l, ns.l]|unique|list|length }}`,
		"nested loops":        `{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}{% endfor %}{% endfor %}{% endfor %}`,
		"a long range":        `{{ range(9223372036854775807)|length }}`,
		"unique":              `{{ range(65000)|unique|list|length }}`,
		"products":            `{{ ('x' * 9999999) * 9999999 }}`,
		"products in loops":   `{% for i in range(99999) %}{% set s = 'x' * 9999999 %}{% endfor %}`,
		"justified":           `{{ 'x'.ljust(999999999) }}`,
		"centred":             `{{ 'x'|center(999999999) }}`,
		"zeros":               `{{ 'x'.zfill(999999999) }}`,
		"escapes":             `{% set s = '<'*9999999 %}{% for i in range(99) %}{% set s = s|escape %}{% endfor %}{{ s|e|e|e|e|e|length }}`,
		"replacing":           `{{ ('x'*9999999).replace('x', 'y'*9999999)|length }}`,
		"joined":              `{{ range(65000)|join('x'*9999999)|length }}`,
		"indented":            `{{ ('\n'*999999)|indent(999999)|length }}`,
		"formatted":           `{{ '%999999999d' % 1 }}{{ '{:999999999}'.format(1) }}`,
		"macros":              `{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}`,
		"many brackets":       `{{ ` + strings.Repeat("(", 100_000) + "1" + strings.Repeat(")", 100_000) + ` }}`,
		"many tags":           strings.Repeat(`{% if 1 %}`, 50_000),
		"many nots":           `{{ ` + strings.Repeat("not ", 200_000) + `1 }}`,
		"many filters":        `{{ 'x'` + strings.Repeat("|upper", 200_000) + ` }}`,
		"a million prints":    strings.Repeat(`{{ 'x' * 1000 }}`, 200_000),
		"powers":              `{{ 9999999 ** 9999999 }}{{ 2 ** 9223372036854775807 }}`,
		"splits":              `{% for i in range(9999) %}{{ ('x,'*999999).split(',')|length }}{% endfor %}`,
		"slices":              `{{ ('x'*9999999)[::-1][::-1]|length }}{{ ([1]*9999999)[::-1]|length }}`,
		"dictionaries":        `{% set ns = namespace(d={}) %}{% for i in range(999999) %}{% set _ = ns.d.update({i: 'x'*99999}) %}{% endfor %}`,
		"the secret, named":   `{% include '../../secret' %}`,
		"attributes of types": `{{ ''.__class__.__mro__ }}{{ messages.__init__.__globals__ }}`,
	}
}

// inData has data that grow when they are read. What takes long because there is much to learn from is small enough.
func inData() map[string]mutator {
	lines := func(write func(w *bufio.Writer)) mutator {
		return func(g *ground, file string) string { g.writeBig(file, write); return "" }
	}
	packed := func(name string, line string, times int, zs bool) mutator {
		return func(g *ground, file string) string {
			_ = os.RemoveAll(g.path(file))
			g.writeBig(name, func(w *bufio.Writer) {
				var out interface {
					Write([]byte) (int, error)
					Close() error
				} = gzip.NewWriter(w)
				if zs {
					z, err := zstd.NewWriter(w, zstd.WithEncoderConcurrency(1))
					if err != nil {
						panic(err)
					}
					out = z
				}
				part := []byte(strings.Repeat(line, max(1, 1<<20/len(line))))
				for n := 0; n < times; n += len(part) {
					if _, err := out.Write(part); err != nil {
						panic(err)
					}
				}
				if err := out.Close(); err != nil {
					panic(err)
				}
			})
			return name
		}
	}
	repeat := func(begin, text, end string, n int) mutator {
		return lines(func(w *bufio.Writer) {
			w.WriteString(begin)
			for range n {
				w.WriteString(text)
			}
			w.WriteString(end)
		})
	}
	return map[string]mutator{
		"a bomb of one word": packed("data/x.txt.gz", "a", 24<<20, false), "a bomb of zstd": packed("data/x.txt.zst", "a", 24<<20, true), "a bomb of one line": packed("data/x.jsonl.gz", " ", 256<<20, false),
		"a bomb of brackets": packed("data/x.jsonl.gz", "[", 64<<20, false), "a bomb of lines": packed("data/x.jsonl.gz", "{\"text\":\"ab\"}\n", 20<<20, false), "a bomb of nothing": packed("data/x.jsonl.gz", "\n", 200<<20, false),
		"a bomb of CSV": packed("data/x.csv.gz", ",", 64<<20, false), "a long line": repeat(`{"text":"`, "ab ", `"}`, 10<<20), "a long word": repeat(`{"text":"`, "a", `"}`, 20<<20), "many lines of nothing": repeat("", "\n", "", 20<<20),
		"many messages": repeat(`{"messages":[`, `{"role":"user","content":"a"},{"role":"assistant","content":"b"},`, `{"role":"user","content":"a"},{"role":"assistant","content":"b"}]}`, 2_000),
		"deep lines":    repeat(`{"x":`, "[", "", 5<<20), "deep parts": repeat(`{"messages":[{"role":"user","content":`, "[", "]}]}", 100_000), "many fields": repeat(`{"text":"a"`, `,"k":1`, "}", 500_000),
		"many columns": repeat("", `{"text":"ab"} `, "", 100_000), "an open array": repeat("[", `{"text":"ab"},`, "", 100_000), "numbers": repeat(`{"text":"ab","n":`, "9", "}", 2<<20),
		"a table cut short": func(g *ground, file string) string {
			_ = os.RemoveAll(g.path(file))
			g.write("data/x.parquet", []byte("PAR1\xff\xff\xff\x7fPAR1"))
			return ""
		},
		"a table of noise": func(g *ground, file string) string {
			b := []byte("PAR1")
			for range 3000 {
				b = append(b, byte(g.rng.Uint32()))
			}
			b = append(b, 0xb8, 0x0b, 0, 0)
			g.write("data/x.parquet", append(b, "PAR1"...))
			return ""
		},
	}
}
