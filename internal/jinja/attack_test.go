package jinja

import (
	"cmp"
	"iter"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// grow makes ns.l of something in each of 400 rounds.
func grow(what string) string {
	return "{% set ns = namespace(l=[]) %}{% for i in range(400) %}{% set ns.l = " + what + " %}{% endfor %}{{ ns.l|length }}"
}

// nested is a template with a list that is nested by a loop, as a and as b.
func nested(rounds, each, use string) string {
	return "{% set ns = namespace(a=1, b=1) %}{% for i in range(" + rounds + ") %}{% set ns.a = " + strings.ReplaceAll(each, "x", "ns.a") +
		" %}{% set ns.b = " + strings.ReplaceAll(each, "x", "ns.b") + " %}{% endfor %}" + use
}

// patience is how long a rendering may take: a second, or more on machines (or with detectors of races) on which the steps of
// plain loops take long.
var patience = sync.OnceValue(func() time.Duration {
	_, took, _, _ := measured("{% for i in range(60000) %}{% for j in range(60000) %}{{ i }}{% endfor %}{% endfor %}", nil)
	return max(time.Second, 6*took)
})

// bounded renders a template and checks what it takes. Other programs may take the processor: the best of three counts.
func bounded(t require.TestingT, template string, given map[string]any) (text string, err error) {
	var took time.Duration
	for range 3 {
		var used int64
		text, took, used, err = measured(template, given)
		require.Less(t, used, int64(100<<20), "%.600s", template)
		if took < patience() {
			break
		}
	}
	require.Less(t, took, patience(), "%.600s", template)
	if err != nil {
		require.Less(t, len(err.Error()), 300)
	}
	return text, err
}

// measured returns the time of a rendering and the most memory that it had.
func measured(template string, given map[string]any) (text string, took time.Duration, used int64, err error) {
	memory := func() int64 {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc + m.StackInuse)
	}
	runtime.GC()
	before := memory()
	stop, most := make(chan struct{}), make(chan int64)
	go func() {
		highest := memory()
		for {
			select {
			case <-stop:
				most <- highest
				return
			case <-time.After(5 * time.Millisecond):
				highest = max(highest, memory())
			}
		}
	}()
	began := time.Now()
	text, err = render(template, given)
	took = time.Since(began)
	after := memory()
	close(stop)
	return text, took, max(<-most, after) - before, err
}

// TestAttacks: templates that would take gigabytes, hours or the stack are stopped.
func TestAttacks(t *testing.T) {
	for template, want := range map[string]string{
		nested("3000", "[x]", "{{ ns.a == ns.b }}"):                          "line 1: more than 200 values within another",
		nested("3000", "[x]", "{{ ns.a == ns.a }}"):                          "",
		nested("3000", "[x]", "{{ ns.a < ns.b }}"):                           "values within another",
		nested("3000", "[x]", "{{ [ns.a, ns.b]|sort|length }}"):              "values within another",
		nested("3000", "(x,)", "{{ [ns.a, ns.b]|unique|list|length }}"):      "values within another",
		nested("3000", "[x]", "{{ [ns.a, ns.b]|min|length }}"):               "values within another",
		nested("3000", "[x]", "{{ ns.a in [ns.b] }}"):                        "values within another",
		nested("3000", "[x]", "{{ [ns.a].index(ns.b) }}"):                    "values within another",
		nested("3000", "[x]", "{{ [ns.a].count(ns.b) }}"):                    "values within another",
		nested("3000", "[x]", "{{ ns.a|tojson }}"):                           "values within another",
		nested("3000", "[x]", "{{ ns.a|join }}"):                             "values within another",
		nested("3000", "[x]", "{{ ns.a|string }}"):                           "values within another",
		nested("3000", "[x]", "{{ '%s' % (ns.a,) }}"):                        "values within another",
		nested("3000", "[x]", "{{ '{}'.format(ns.a) }}"):                     "values within another",
		nested("3000", "{'k': x}", "{{ ns.a == ns.b }}"):                     "values within another",
		nested("3000", "{'k': x}", "{{ ns.a is eq ns.b }}"):                  "values within another",
		nested("3000", "{'k': x}", "{{ [ns.a]|groupby('k')|length }}"):       "",
		nested("60", "[x, x]", "{{ ns.a == ns.b }}"):                         "steps",
		nested("60", "[x, x]", "{{ ns.a < ns.b }}"):                          "steps",
		nested("60", "(x, x)", "{{ [ns.a, ns.b]|unique|list|length }}"):      "steps",
		nested("60", "[x, x]", "{{ ns.a|tojson }}"):                          "steps",
		nested("60", "[x, x]", "{{ ns.a }}"):                                 "bytes of text",
		nested("60", "[[], x, x]", "{{ ns.a|tojson(separators=('', '')) }}"): "steps",
		nested("60", "{'': x, 'b': x}", "{{ ns.a == ns.b }}"):                "steps",
		grow("ns.l + ['x'*4000000]"):                                         "the values of the template take more than",
		grow("ns.l + ['x'|escape|center(4000000)]"):                          "the values of the template",
		grow("ns.l + ['x'.ljust(4000000)]"):                                  "the values of the template",
		grow("ns.l + ['x'.rjust(4000000)]"):                                  "the values of the template",
		grow("ns.l + ['x'.center(4000000)]"):                                 "the values of the template",
		grow("ns.l + ['1'.zfill(4000000)]"):                                  "the values of the template",
		grow("ns.l + [range(60000)]"):                                        "steps",
		grow("ns.l + [[[]]*60000]"):                                          "steps",
		grow("ns.l + ['x'*4000000 ~ i]"):                                     "the values of the template",
		grow("ns.l + [('x '*2000000).split(' ')[0] ~ '']"):                   "more than 65536 items",
		grow("ns.l + [('x'*4000000)[0:3000000]]"):                            "steps",
		grow("ns.l + [('x'*4000000)[1:3]]"):                                  "steps",
		grow("ns.l + [('x'*4000000 + ' ').strip()]"):                         "the values of the template",
		grow("ns.l + [('x'*4000000)|replace('x', 'y')]"):                     "steps",
		grow("ns.l + [('x'*4000000)|upper]"):                                 "steps",
		grow("ns.l + [('x'*400)|list]"):                                      "",
		grow("ns.l + [('x'*40000)|list]"):                                    "steps",
		grow("ns.l + [dict(zip=ns.l)]"):                                      "",
		grow("ns.l + [joiner('x'*4000000)]"):                                 "the values of the template",
		grow("ns.l + [('x'*4000000).strip]"):                                 "the values of the template",
		grow("ns.l + [cycler('x'*4000000)]"):                                 "the values of the template",
		grow("ns.l + [namespace(a='x'*4000000)]"):                            "the values of the template",
		"{% set ns = namespace(l=[]) %}{% macro g(x) %}{% macro h() %}{{ x }}{% endmacro %}{% set ns.l = ns.l + [h] %}{% endmacro %}{% for i in range(400) %}{{ g('x'*1000000) }}{% endfor %}": "the values of the template",
		"{% macro f(n) %}{% if n %}{{ ['x'*1000000, f(n - 1)]|length }}{% endif %}{% endmacro %}{{ f(150) }}":                                                                                  "the values of the template",
		"{% macro f(n) %}{% set a %}{{ 'x'*1000000 }}{{ f(n - 1) if n }}{% endset %}{% endmacro %}{{ f(150) }}":                                                                                "the values of the template",
		"{{ [" + strings.Repeat("'x'*2000000,", 1000) + "]|length }}":                                                                                                                          "the values of the template",
		"{{ range(65000)|unique|list|length }}":                                      "",
		"{{ range(65000)|map('string')|unique|list|length }}":                        "",
		"{% for i in range(60000) %}{% set a = 'x'*3000000 %}{% endfor %}":           "steps",
		"{% for i in range(60000) %}{{ ('x'*30000)|e|length }}{% endfor %}":          "steps",
		"{% for i in range(60000) %}{{ ('x'*30000) is upper }}{% endfor %}":          "steps",
		"{% for i in range(60000) %}{{ ('x'*30000).find('y') }}{% endfor %}":         "steps",
		"{% for i in range(60000) %}{{ 'y' in 'x'*30000 }}{% endfor %}":              "steps",
		"{% for i in range(60000) %}{{ ('x'*30000).count('y') }}{% endfor %}":        "steps",
		"{% for i in range(60000) %}{{ ('x'*30000)[29999] }}{% endfor %}":            "steps",
		"{% for i in range(60000) %}{{ ('x'*30000)|wordcount }}{% endfor %}":         "steps",
		"{% for i in range(60000) %}{{ 'x'*30000 == 'x'*30000 }}{% endfor %}":        "steps",
		"{{ ('x'*4000000).strip('y'*4000000 ~ 'x') }}":                               "",
		"{{ ('x'*1000000).strip('y'*1000000 ~ 'x') }}":                               "",
		"{{ 'x'|tojson(indent='y'*4000000) }}{{ [[1]]|tojson(indent='y'*4000000) }}": "bytes of text",
		"{{ ('<'*4000000)|e }}":                                                                 "bytes of text",
		"{{ ('\\x01'*4000000)|string|list }}":                                                   "items",
		"{{ [('\\x01'*4000000)] }}":                                                             "bytes of text",
		"{{ ('\\x01'*4000000)|tojson }}":                                                        "bytes of text",
		"{{ '%99999s' * 40000 % ((1,) * 40000) }}":                                              "bytes of text",
		"{{ ('\n'*4000000) | indent(4) }}":                                                      "items",
		"{{ ('\n'*60000)|indent(4000, true, true) }}":                                           "bytes of text",
		"{{ ('a,'*2000000).rsplit(',', 1000000)|length }}":                                      "items",
		"{{ (['x'*60000]*60000)|join }}":                                                        "bytes of text",
		"{{ (['x'*60]*60000)|sum(start='') }}":                                                  "steps",
		"{{ ([[1]]*60000)|sum(start=[]) }}":                                                     "steps",
		"{{ ([{'a': 1}]*60000)|sort(attribute='" + strings.Repeat("a.", 60000) + "')|length }}": "is undefined",
		"{{ " + strings.Repeat("-", 300) + "1 }}":                                               "parts within another",
		"{{ " + strings.Repeat("1+", 50000) + "1 }}":                                            "",
		"{{ 1" + strings.Repeat("|abs", 50000) + " }}":                                          "",
		"{{ " + strings.Repeat("0 or ", 50000) + "1 }}":                                         "",
		"{{ x" + strings.Repeat(" if x", 300) + " }}":                                           "parts within another",
		"{% set " + strings.Repeat("(", 300) + "a" + strings.Repeat(")", 300) + " = 1 %}":       "parts within another",
		"{{ " + strings.Repeat("'a' ", 100000) + "}}":                                           "",
		"{% macro m() %}" + strings.Repeat("{% if 1 %}", 60) + "{{ m() }}" + strings.Repeat("{% endif %}", 60) + "{% endmacro %}{{ m() }}": "within another in calls",
		"{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}":                                                                          "calls within another",
		"{% for x in [1] %}{{ loop([1]) }}{% endfor %}":                                                                                    "is not recursive",
		"{% for i in range(65000) if i < 64999 %}{% if loop.first %}{{ loop.length }}{% endif %}{% endfor %}":                              "",
		"{{ 'x'|map('map', 'map', 'map', 'upper')|list }}":                                                                                 "",
		strings.Repeat("{{ 1 }}", 1<<20):                                                                                                   "want 1048576 at most",
	} {
		t.Run("", func(t *testing.T) {
			have, err := bounded(t, template, nil)
			if want == "" {
				require.NoError(t, err, "%.200s", template)
				return
			}
			require.ErrorContains(t, err, want, "%.200s: %.80s", template, have)
		})
	}
}

// TestLongConversations: bounds grow with what is given, and lists of messages may be made anew.
func TestLongConversations(t *testing.T) {
	var list []any
	text := strings.Repeat("word and word\n", 540)
	for i := range 4000 {
		list = append(list, Dict("role", []string{"user", "assistant"}[i%2], "content", "<think>\na\n</think>\n"+text))
	}
	began := time.Now()
	out, err := render(`{%- set ns = namespace(l=[], last='') -%}
{%- for m in messages[::-1] -%}{%- if m.role == 'user' and not ns.last -%}{%- set ns.last = m.content -%}{%- endif -%}{%- endfor -%}
{%- for m in messages -%}
  {%- set ns.l = ns.l + [m] -%}
  {%- set content = m.content.split('</think>')[-1].lstrip('\n') -%}
  {%- if '<tool_response>' in content or content.startswith('<tool_response>') -%}tool{%- endif -%}
  {{- '<|im_start|>' + m['role'] + '\n' + content | trim + '<|im_end|>' + '\n' -}}
  {%- if loop.last -%}{{ messages[loop.index0 - 1]['role'] }}{{ ns.l|length }}{%- endif -%}
{%- endfor -%}`, map[string]any{"messages": List(list...)})
	require.NoError(t, err)
	require.Greater(t, len(out), 30_000_000)
	require.True(t, strings.HasSuffix(out, "<|im_end|>\nuser4000"), out[len(out)-40:])
	require.Less(t, time.Since(began), 20*patience())
}

// nasty draws templates of loops, macros and every filter, test and method, over values that grow.
type nasty struct {
	*rapid.T
	methods, filters, tests []string
}

func (n nasty) pick(label string, from ...string) string {
	return rapid.SampledFrom(from).Draw(n.T, label)
}

// value draws an expression.
func (n nasty) value(depth int) string {
	if depth == 0 {
		return n.pick("leaf", "ns.a", "ns.b", "ns.l", "x", "i", "'<a b\n\x01é'", "'xy,'*100000", "1", "-2", "3000000", "1e300", "range(60000)", "{'k': ns.a, 'j': 1}",
			"[ns.a, ns.b]", "(ns.l, 1)", "loop", "joiner()", "namespace(a=1)", "'k'", "none", "true", "''")
	}
	a, b := func() string { return n.value(depth - 1) }, func() string { return n.value(rapid.IntRange(0, depth-1).Draw(n.T, "depth")) }
	arguments := func() string {
		return n.pick("arguments", "", "", "(3000000)", "('a', 'b')", "(attribute='k')", "("+b()+")", "("+b()+", "+b()+")", "(*"+b()+")", "(**"+b()+")", "(2, true, true)",
			"('map', 'list')", "(by='value')", "(start="+b()+")", "(indent="+b()+")", "(case_sensitive=true)", "('equalto', "+b()+")", "(k="+b()+")")
	}
	switch n.pick("kind", "operator", "filter", "filter", "method", "method", "test", "compare", "list", "if", "subscript", "call") {
	case "operator":
		return "(" + a() + n.pick("operator", " + ", " * ", " ~ ", " - ", " // ", " % ", " ** ", " / ") + b() + ")"
	case "filter":
		return "(" + a() + ")|" + n.pick("filter", n.filters...) + arguments()
	case "method":
		called := arguments()
		if called == "" {
			called = "()"
		}
		return "(" + a() + ")." + n.pick("method", n.methods...) + called
	case "test":
		return "(" + a() + ") is " + n.pick("test", n.tests...) + arguments()
	case "compare":
		return "(" + a() + n.pick("comparison", " == ", " < ", " in ", " != ", " >= ", " not in ", " and ", " or ") + b() + ")"
	case "list":
		return n.pick("list", "["+a()+", "+b()+"]", "["+a()+"] * 3000", "(["+a()+"] + ns.l)", "{'k': "+a()+", 'j': "+b()+"}", "dict(k="+a()+")", "cycler("+a()+", "+b()+").next()")
	case "if":
		return "(" + a() + " if " + b() + " else " + b() + ")"
	case "call":
		return n.pick("call", "m("+a()+")", "m("+a()+", "+b()+")", "range("+a()+")", "joiner("+a()+")")
	}
	return "(" + a() + ")[" + n.pick("subscript", b(), "1:", ":-1", "::-1", "::2", b()+":"+b()) + "]"
}

// body draws tags.
func (n nasty) body(depth int) string {
	var b strings.Builder
	for range rapid.IntRange(1, 3).Draw(n.T, "tags") {
		value := n.value(rapid.IntRange(0, 4).Draw(n.T, "depth"))
		if depth == 0 {
			b.WriteString(n.pick("tag", "{{ "+value+" }}", "{% set ns.a = "+value+" %}", "{% set ns.b = "+value+" %}", "{% set ns.l = ns.l + ["+value+"] %}"))
			continue
		}
		inner := n.body(depth - 1)
		b.WriteString(n.pick("tag", "{{ "+value+" }}", "{% set ns.a = "+value+" %}", "{% set ns.b = "+value+" %}",
			"{% for i in "+value+" %}"+inner+"{% endfor %}", "{% for i in range(3000) %}"+inner+"{% endfor %}", "{% for i in "+value+" if i recursive %}{{ loop(ns.a) }}"+inner+"{% endfor %}",
			"{% macro m(x) %}"+inner+"{% endmacro %}", "{% macro m(x) %}"+inner+"{{ m(ns.a) }}{% endmacro %}", "{% set x %}"+inner+"{% endset %}", "{% call(x) m("+value+") %}"+inner+"{% endcall %}",
			"{% filter upper %}"+inner+"{% endfilter %}", "{% if "+value+" %}"+inner+"{% endif %}", "{% with x = "+value+" %}"+inner+"{% endwith %}"))
	}
	return b.String()
}

func nastyTemplate(t *rapid.T) {
	keys := func(all ...[]string) (names []string) {
		for _, some := range all {
			names = append(names, some...)
		}
		slices.Sort(names)
		return names
	}
	n := nasty{t, keys(slices.Collect(maps.Keys(textMethods)), slices.Collect(maps.Keys(dictMethods)), []string{"k", "a", "index", "count"}),
		keys(slices.Collect(maps.Keys(filters))), keys(slices.Collect(maps.Keys(tests)))}
	_, _ = bounded(t, "{% set ns = namespace(a='ab', b=['x'], l=[]) %}{% macro m(x, y=1) %}{{ x }}{% endmacro %}"+n.body(3)+"{{ ns.a }}", nil)
}

// TestNasty: whatever a template does, it takes less than a second and 100 MiB.
func TestNasty(t *testing.T) { rapid.Check(t, nastyTemplate) }

func FuzzNasty(f *testing.F) { f.Fuzz(rapid.MakeFuzz(nastyTemplate)) }

// hotTemplate draws one operation on one large value, in a loop that keeps its results or not.
func hotTemplate(t *rapid.T) {
	pick := func(label string, from ...string) string { return rapid.SampledFrom(from).Draw(t, label) }
	sorted := func(names iter.Seq[string]) []string { return slices.Sorted(names) }
	value := pick("value", "t", "t[:3000]", "('ab '*20000)", "'<\\n'*20000", "'\\x01'*30000", "'é'*9999", "'a{}%s'*10000", "l", "l[:300]", "['t', 'u']*20000", "[[1], [2]]*20000", "ns.a", "[ns.a, ns.b]",
		"d", "d.items()", "[d]*3000", "[t]*3000", "(t, t)", "7", "-2.5", "range(60000)", "none", "u")
	args := pick("args", "", "()", "(3)", "(3000000)", "('a')", "(' ')", "('', 'y'*3000)", "(t)", "('a', 'b')", "(l)", "(ns.b)", "(u)", "(none, 5)", "(' ', 30000)", "((t, t))", "(*(['x']*30000))",
		"(attribute='k')", "(attribute=0)", "(0)", "('k', 'eq', ns.a)", "('string')", "('tojson')", "('center', 60000)", "('upper')", "('list')", "(start='')", "(start=[])", "(true, 'value', true)", "(indent=4000)", "(separators=(t, t))",
		"(3, 'x')", "(1, false, t)", "(4000, true, true)", "(ensure_ascii=true)", "(case_sensitive=true)", "('eq', ns.a)", "('in', l)")
	use := map[string]string{
		"filter":   "(" + value + ")|" + pick("filter", sorted(maps.Keys(filters))...) + strings.TrimSuffix(args, "()"),
		"method":   "(" + value + ")." + pick("method", append(slices.Concat(sorted(maps.Keys(textMethods)), sorted(maps.Keys(dictMethods))), "index", "count")...) + cmp.Or(args, "()"),
		"test":     "(" + value + ") is " + pick("test", sorted(maps.Keys(tests))...) + strings.TrimSuffix(args, "()"),
		"global":   pick("global", sorted(maps.Keys(globals))...) + cmp.Or(args, "()"),
		"operator": "(" + value + ")" + pick("operator", "+", "~", "*", "%", "==", "<", " in ", "!=", " not in ", ">=", "//", "**") + "(" + pick("right", "t", "l", "u", "ns.a", "ns.b", "d", "300", "30000", "2.5", "('x',)*10000", "'a'") + ")",
		"part":     "(" + value + ")[" + pick("part", "9999", "-9999", "1:", "::-1", "::2", "5:-5:3", "'k'", "ns.a", "0") + "]",
		"macro":    "m(" + value + ")",
	}[pick("use", "filter", "filter", "filter", "method", "method", "method", "test", "operator", "part", "global", "macro")]
	round := pick("round", "{% set ns.x = "+use+" %}", "{% set ns.l = ns.l + ["+use+"] %}", "{{ "+use+" }}", "{% for j in "+use+" %}{% endfor %}", "{% set x %}{{ "+use+" }}{% endset %}", "{% set ns.x = ("+use+")|list %}",
		"{% set ns.l = ns.l + [("+use+")|string] %}", "{% if "+use+" == "+use+" %}{% endif %}")
	_, _ = bounded(t, "{% set ns = namespace(a=[], b=[], l=[], x=0) %}{% for i in range(40) %}{% set ns.a = [ns.a, ns.a] %}{% set ns.b = [ns.b, ns.b] %}{% endfor %}"+
		"{% set t = 'abc '*15000 %}{% set u = 'abc '*15000 %}{% set l = t|list %}{% set d = dict(l|batch(2)|list) %}{% macro m(x) %}{{ x }}{{ x }}{% endmacro %}"+
		"{% for i in range(60000) %}"+round+"{% endfor %}", nil)
}

// TestHot: an operation that a template repeats takes less than a second and 100 MiB in all.
func TestHot(t *testing.T) { rapid.Check(t, hotTemplate) }

func FuzzHot(f *testing.F) { f.Fuzz(rapid.MakeFuzz(hotTemplate)) }
