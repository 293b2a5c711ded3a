package main

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// sample is a table with a flag of each kind.
type sample struct {
	on                     bool
	text, file, word       string
	count, odd             int
	seed                   uint64
	number                 float64
	size                   int64
	wait                   time.Duration
	list                   []int
	table                  flagTable
	needsOn, needsNoNumber *use
}

func newSample() *sample {
	s := &sample{}
	s.needsOn = &use{"-on", "it is off", func() bool { return s.on }}
	s.needsNoNumber = &use{"runs without a number", "there is one", func() bool { return s.number == 0.5 }}
	s.table = flagTable{
		switchFlag("on", &s.on, "a switch"),
		textFlag("text", "TEXT", &s.text, "a text"),
		fileFlag("file", "FILE", &s.file, "a file"),
		wordFlag("word", "WORD", &s.word, []string{"red", "green", "blue"}, "a word"),
		countFlag("count", "N", &s.count, 7, 1, 9, "a count").only(s.needsOn),
		countFlag("odd", "N", &s.odd, 0, 1, math.MaxInt, "another").only(s.needsOn, s.needsNoNumber),
		seedFlag("seed", "N", &s.seed, 1, "a seed"),
		numberFlag("number", "X", &s.number, 0.5, "0 to 1", func(x float64) bool { return x >= 0 && x <= 1 }, "a number"),
		sizeFlag("size", &s.size, "a size"),
		durationFlag("wait", &s.wait, "a time"),
		listFlag("list", &s.list, nil, parseBits, "a list").under("Lists:"),
		configFlag(),
	}
	return s
}

// TestFlags: values of every kind, from the command line and from a file, and what is wrong with others.
func TestFlags(t *testing.T) {
	for _, row := range []struct {
		name   string
		args   []string
		config string
		want   string // an error
		has    func(s *sample) any
		is     any
	}{
		{name: "defaults", has: func(s *sample) any { return []any{s.count, s.seed, s.number} }, is: []any{7, uint64(1), 0.5}},
		{name: "switch", args: []string{"-on"}, has: func(s *sample) any { return s.on && s.table.given("on") }, is: true},
		{name: "a switch that is off is not given", args: []string{"-on=false"}, has: func(s *sample) any { return s.on || s.table.given("on") }, is: false},
		{name: "two dashes", args: []string{"--count", "3", "-on"}, has: func(s *sample) any { return s.count }, is: 3},
		{name: "the last one counts", args: []string{"-text", "a", "-text=b"}, has: func(s *sample) any { return s.text }, is: "b"},
		{name: "list", args: []string{"-list", "8, 4"}, has: func(s *sample) any { return s.list }, is: []int{8, 4}},
		{name: "time", args: []string{"-wait", "20us"}, has: func(s *sample) any { return s.wait }, is: 20 * time.Microsecond},
		{name: "size", args: []string{"-size", "1.5KiB"}, has: func(s *sample) any { return s.size }, is: int64(1536)},
		{name: "not a switch", args: []string{"-on=perhaps"}, want: `-on "perhaps": want true or false`},
		{name: "empty file", args: []string{"-file", ""}, want: `-file "": want a name`},
		{name: "word", args: []string{"-word", "grey"}, want: `-word "grey": want red, green or blue`},
		{name: "count", args: []string{"-count", "10", "-on"}, want: "-count 10: want 1 to 9"},
		{name: "no count", args: []string{"-count", "ten", "-on"}, want: `-count "ten": want 1 to 9`},
		{name: "open count", args: []string{"-odd", "0", "-on"}, want: "-odd 0: want 1 or more"},
		{name: "seed", args: []string{"-seed", "-1"}, want: "-seed -1: want a whole number from 0 to 2^64-1"},
		{name: "NaN", args: []string{"-number", "NaN"}, want: "-number NaN: want 0 to 1"},
		{name: "no size", args: []string{"-size", "-4"}, want: "-size -4: want a size such as"},
		{name: "no time", args: []string{"-wait", "0s"}, want: `-wait "0s": want a time above 0`},
		{name: "a wrong part", args: []string{"-list", "8,x"}, want: `-list "8,x": want some of 32,16,8,4`},
		{name: "the first error", args: []string{"-count", "10", "-seed", "x"}, want: "-count 10"},
		{name: "unknown", args: []string{"-colour"}, want: "flag provided but not defined: -colour"},
		{name: "no use", args: []string{"-count", "3"}, want: "-count is for -on, and it is off"},
		{name: "no use for two", args: []string{"-count", "3", "-odd", "3"}, want: "-count and -odd are for -on, and it is off"},
		{name: "the second use", args: []string{"-odd", "3", "-on", "-number", "0"}, want: "-odd is for runs without a number, and there is one"},

		{name: "YAML", config: "on: true\nword: blue\nsize: 2KiB\nlist: [8, 4]\nnumber: 1e-1\n", has: func(s *sample) any { return []any{s.on, s.word, s.size, s.list, s.number} }, is: []any{true, "blue", int64(2048), []int{8, 4}, 0.1}},
		{name: "JSON", config: `{"count": 4, "on": true, "text": "a: b"}`, has: func(s *sample) any { return []any{s.count, s.text} }, is: []any{4, "a: b"}},
		{name: "list of lines", config: "list:\n- 16\n- 8\n", has: func(s *sample) any { return s.list }, is: []int{16, 8}},
		{name: "command line first", args: []string{"-number", "0.25"}, config: "number: 1\nseed: 9", has: func(s *sample) any { return []any{s.number, s.seed} }, is: []any{0.25, uint64(9)}},
		{name: "a large seed stays exact", config: "seed: 18446744073709551615", has: func(s *sample) any { return s.seed }, is: uint64(math.MaxUint64)},
		{name: "words that YAML knows", config: "text: no\nword: \"red\"", has: func(s *sample) any { return s.text }, is: "no"},
		{name: "empty", config: "# nothing\n", has: func(s *sample) any { return s.count }, is: 7},
		{name: "unknown key", config: "on: true\ncolour: red\n", want: "line 2: there is no flag \"colour\", want some of on, text, file,"},
		{name: "a dash", config: "-on: true\n", want: `there is no flag "-on"`},
		{name: "config in config", config: "config: x\n", want: `there is no flag "config"`},
		{name: "twice", config: "seed: 1\nseed: 2\n", want: `line 2: "seed" a second time`},
		{name: "null", config: "text:\n", want: "line 1: text has no value"},
		{name: "object", config: "text: {a: 1}\n", want: "line 1: text has no value"},
		{name: "nested list", config: "list: [[1]]\n", want: "line 1: list has no value"},
		{name: "alias", config: "text: &a x\nfile: *a\n", want: "line 2: file has no value"},
		{name: "no object", config: "- on\n", want: "line 1: want an object of flags"},
		{name: "no YAML", config: "on: [\n", want: "line 1: did not find"},
		{name: "two documents", config: "on: true\n---\nseed: 2\n", want: "want one document"},
		{name: "value", config: "count: 0\n", want: "-count 0: want 1 to 9"},
		{name: "no use in a file", config: "count: 3\n", want: "-count is for -on"},
		{name: "too long", config: "text: " + strings.Repeat("x", maxConfigBytes), want: "want at most 1048576"},
	} {
		t.Run(row.name, func(t *testing.T) {
			args := row.args
			if row.config != "" {
				path := filepath.Join(t.TempDir(), "run.yaml")
				require.NoError(t, os.WriteFile(path, []byte(row.config), 0o600))
				args = append(args, "-config", path)
			}
			s := newSample()
			_, err := s.table.parse(args)
			if err == nil {
				err = s.table.check()
			}
			if row.want != "" {
				require.ErrorContains(t, err, row.want)
				require.NotContains(t, err.Error(), "\n")
				return
			}
			require.NoError(t, err)
			if row.has != nil {
				require.Equal(t, row.is, row.has(s))
			}
		})
	}
	_, err := newSample().table.parse([]string{"-config", filepath.Join(t.TempDir(), "none")})
	require.ErrorIs(t, err, os.ErrNotExist)
	operands, err := newSample().table.parse([]string{"-on", "a", "-b"})
	require.NoError(t, err)
	require.Equal(t, []string{"a", "-b"}, operands)
}

// TestFlagHelp: the texts begin in one column, and a paragraph opens a part.
func TestFlagHelp(t *testing.T) {
	text := newSample().table.help()
	require.Contains(t, text, "  -on                a switch\n")
	require.Contains(t, text, "  -word WORD         a word\n")
	require.Contains(t, text, "\nLists:\n\n  -list LIST         a list\n")
	long := flagTable{textFlag("long-name-of-a-flag", "VALUE", new(string), "word word\n- one\n- two")}
	require.Equal(t, "  -long-name-of-a-flag VALUE\n                     word word\n                     - one\n                     - two\n", long.help())
}

// TestTuneConfig: a file gives what the command line would.
//
//check:not bits32
func TestTuneConfig(t *testing.T) {
	config := filepath.Join(t.TempDir(), "run.yaml")
	require.NoError(t, os.WriteFile(config, []byte("model: "+publish(t)+"\ndata: ["+chats(t, 12)+"]\nlora: 4\nsteps: 2\nadapter: dora\nmodules-to-save: [lm_head]\ndry-run: true\njson: true\n"), 0o600))
	status, out, errs := snugged("tune", "-config", config, "-steps", "3")
	require.Zero(t, status, errs)
	require.Contains(t, out, "19040 parameters and 4160 of adapters")
	status, _, errs = snugged("tune", "-config", config, "-full")
	require.Equal(t, 2, status)
	require.Contains(t, errs, "-lora, -adapter and -modules-to-save are for adapters, and -full trains none")
}

// TestInputsTwice: two inputs of a flag that takes one value are an error that shows both; of a setting the last one counts.
func TestInputsTwice(t *testing.T) {
	for want, args := range map[string][]string{
		`generate: -adapter is there twice, as "a" and "b": want it once, or snug merge, which merges several`: {"generate", "-model", "x", "-prompt", "q", "-adapter", "a", "-adapter", "b"},
		`generate: -image is there twice, as "a" and "b": want it once, with commas between them`:              {"generate", "-model", "x", "-prompt", "q", "-image", "a", "-image=b"},
		`generate: -video is there twice, as "a" and "b": want it once, with commas between them`:              {"generate", "-model", "x", "-prompt", "q", "-video", "a", "-video", "b"},
		`tune: -data is there twice, as "a" and "b": want it once, with commas between them`:                   {"tune", "-data", "a", "-data", "b"},
		`tune: -modules-to-save is there twice, as "a" and "b": want it once, with commas between them`:        {"tune", "-modules-to-save", "a", "-modules-to-save", "b"},
	} {
		status, _, errs := snugged(args...)
		require.Equal(t, 2, status)
		require.Equal(t, "snug: "+want+"\n", errs)
	}
	status, _, errs := snugged("generate", "-model", "x", "-adapter", "a", "-adapter", "a", "-tokens", "1", "-tokens", "2")
	require.Equal(t, 2, status)
	require.Contains(t, errs, "want -prompt")
}
