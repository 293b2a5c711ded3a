package onig

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// all returns the matches of a pattern, with | between them.
func all(t *testing.T, pattern, text string) string {
	t.Helper()
	p, err := Compile(pattern)
	require.NoError(t, err, pattern)
	var found []string
	require.NoError(t, p.Each(text, func(from, to int) error {
		found = append(found, text[from:to])
		return nil
	}))
	return strings.Join(found, "|")
}

// TestMatches has what differs between engines. package tokenizer compares thousands of
// patterns with Oniguruma itself.
func TestMatches(t *testing.T) {
	for _, test := range []struct{ pattern, text, want string }{
		{`a|ab`, "abab", "a|a"}, // the first alternative, not the longest
		{`a*`, "aab", "aa|"},    // no empty match right after a match, one at the end
		{`a*?b`, "aab", "aab"},
		{`(?>a+)ab`, "aaab", ""},
		{`a++b`, "aab", "aab"},
		{`\s+(?!\S)`, "  x ", " | "},
		{`(?<=a)b|(?<!a)c`, "abcac", "b|c"},
		{`^a$`, "a\na\nb", "a|a"}, // lines, as in Ruby
		{`\Aa|b\z`, "a\nab\nb", "a|b"},
		{`.`, "a\nb", "a|b"},
		{`(?i:'S|k)`, "'s'S'ſkK\u212a", "'s|'S|'ſ|k|K|\u212a"},
		{`[^\s\p{L}]+`, "a1.b 2", "1.|2"},
		{`[\d-]{1,2}`, "1-23", "1-|23"},
		{`\x41\u00e9\x{1F600}`, "Aé😀", "Aé😀"},
		{`a{,2}b`, "aaab", "aab"},
		{`(?:ab|a)(?:bc|c)`, "abc", "abc"},
		{`\P{L}|\p{^L}`, "a1", "1"},
		{`\w+`, "a¼²_ ´", "a¼²_"}, // numbers of Latin 1 are in words, but not in classes of them
		{`[\w]+`, "a¼b² ´", "a|b"},
		{`[^\w\s]+`, "a¼b ´½", "¼|´½"},
		{`[\W]`, "a¹_", "¹"},
	} {
		require.Equal(t, test.want, all(t, test.pattern, test.text), "%s in %q", test.pattern, test.text)
	}
}

// TestRefused has patterns that this package does not know, or whose meaning differs.
func TestRefused(t *testing.T) {
	for _, pattern := range []string{
		`(`, `)`, `[`, `[]`, `[a`, `a**`, `*a`, `{`, `a{2}?`, `a{3,2}`, `a{5000}`, `(?<n>a)`, `(?m:a)`, `(?P<n>a)`, `\1`, `\b`, `\h`, `\k<n>`, `[a&&b]`, `[[:alpha:]]`,
		`[\d-z]`, `[z-a]`, `\p{Nope}`, `\p{\s}`, `\pL`, `(?i:[a])`, `(?i:é)`, `(?i:ss)`, `(?:a*)+`, `(?=a)*`, `(?<=a+)`, `\xE9`, `\x{110000}`, `\uD800`, "a\xff", `\`,
		strings.Repeat("(", 100), strings.Repeat("a", 1<<17), `(?:(?:(?:a{1000}b){1000}c){1000}d){1000}`,
	} {
		_, err := Compile(pattern)
		require.Error(t, err, pattern)
	}
}

// TestSteps: a pattern that would take exponential or quadratic time is stopped.
func TestSteps(t *testing.T) {
	p, err := Compile(`(?:a|a)*b`)
	require.NoError(t, err)
	require.ErrorContains(t, p.Each(strings.Repeat("a", 100), func(int, int) error { return nil }), "steps")
	p, err = Compile(`a*b`)
	require.NoError(t, err)
	require.ErrorContains(t, p.Each(strings.Repeat("a", 1<<16), func(int, int) error { return nil }), "steps")
}

func FuzzCompile(f *testing.F) {
	f.Add(`(?i:'s)|[^\r\n\p{L}]?\p{L}+|\s+(?!\S)`, "it's a\n b")
	f.Fuzz(func(t *testing.T, pattern, text string) {
		p, err := Compile(pattern)
		if err != nil {
			return
		}
		last := 0
		_ = p.Each(strings.ToValidUTF8(text, "?"), func(from, to int) error {
			require.True(t, last <= from && from <= to)
			last = to
			return nil
		})
	})
}

// TestBounds: patterns that would take much memory or time to compile are errors, and so are searches.
func TestBounds(t *testing.T) {
	for _, c := range []struct{ name, pattern, want string }{
		{"repeated repetitions", `(?:(?:a{1,9}|bc){1000}){1000}`, "a program of more than 1048576 bytes"},
		{"many classes", strings.Repeat(`[^\p{L}x]`, 10) + manyClasses(200), "take more than 1048576 bytes of memory"},
		{"a class many times", `(?:` + strings.Repeat(`[^\p{L}x]`, 5000) + `)`, ""},
		{"choices in choices", strings.Repeat("(?:", 60) + "a" + strings.Repeat("|b)", 60), ""},
		{"many branches", `(?:(?:` + strings.Repeat(`a|`, 2000) + `b)|c)`, ""},
		{"too long", strings.Repeat("a", 1<<16+1), "want 65536 at most"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, err := Compile(c.pattern)
			if c.want != "" {
				require.ErrorContains(t, err, c.want)
				return
			}
			require.NoError(t, err)
			require.LessOrEqual(t, p.memory, maxMemory+1<<10)
		})
	}
	p, err := Compile(`(?:a|b)+`)
	require.NoError(t, err)
	require.ErrorContains(t, p.Each(strings.Repeat("ab", 1<<20), func(int, int) error { return nil }), "open choices")
	p, err = Compile(`(?:a|a)*c`)
	require.NoError(t, err)
	require.ErrorContains(t, p.Each(strings.Repeat("a", 20), func(int, int) error { return nil }), "takes more than 22432 steps")
}

// manyClasses are different classes of letters.
func manyClasses(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `[^\p{L}\x{%x}]`, 0x2190+i)
	}
	return b.String()
}
