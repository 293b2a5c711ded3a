package ucd

import (
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"
)

func TestSets(t *testing.T) {
	letters := MustClass("L")
	others := letters.Complement()
	missing := 0
	for r := rune(0); r <= unicode.MaxRune; r++ {
		if unicode.IsLetter(r) && !letters.Contains(r) {
			missing++
		}
		if letters.Contains(r) == others.Contains(r) {
			t.Fatalf("%U", r)
		}
	}
	t.Logf("%d letters of Go that the peer does not know", missing)
	require.True(t, letters.Contains('x'))
	require.False(t, letters.Contains('1'))
	require.False(t, letters.Contains(-1))
	require.False(t, (*Set)(nil).Contains('x'))
	joined := Union(Range('a', 'c'), Range('d', 'f'), Range('b', 'e'), nil)
	require.Equal(t, []rune{'a', 'g'}, joined.edges)
	require.True(t, joined.Has('f', 'z'))
	require.False(t, joined.Has('g', 'z'))
	require.Equal(t, joined.edges, joined.Complement().Complement().edges)
	_, ok := Class("nfd")
	require.False(t, ok)
	_, ok = Class("Klingon")
	require.False(t, ok)
}

func TestForms(t *testing.T) {
	for _, test := range []struct {
		in   string
		want [4]string
	}{
		{"", [4]string{}},
		{"plain", [4]string{"plain", "plain", "plain", "plain"}},
		{"e\u0301x", [4]string{"\u00e9x", "e\u0301x", "\u00e9x", "e\u0301x"}},
		{"ab\u00e9", [4]string{"ab\u00e9", "abe\u0301", "ab\u00e9", "abe\u0301"}},
		{"\ufb01n", [4]string{"\ufb01n", "\ufb01n", "fin", "fin"}},
		{"\ud55c\uae00", [4]string{"\ud55c\uae00", "\u1112\u1161\u11ab\u1100\u1173\u11af", "\ud55c\uae00", "\u1112\u1161\u11ab\u1100\u1173\u11af"}},
		{"\u1112\u1161\u11ab", [4]string{"\ud55c", "\u1112\u1161\u11ab", "\ud55c", "\u1112\u1161\u11ab"}},
		{"q\u0323\u0307 q\u0307\u0323", [4]string{"q\u0323\u0307 q\u0323\u0307", "q\u0323\u0307 q\u0323\u0307", "q\u0323\u0307 q\u0323\u0307", "q\u0323\u0307 q\u0323\u0307"}},
		// Blocked by a mark of the same class, and by any mark before a starter.
		{"a\u0305\u0301", [4]string{"a\u0305\u0301", "a\u0305\u0301", "a\u0305\u0301", "a\u0305\u0301"}},
		{"\u1112\u0301\u1161", [4]string{"\u1112\u0301\u1161", "\u1112\u0301\u1161", "\u1112\u0301\u1161", "\u1112\u0301\u1161"}},
		{"a\u0323\u0305\u0301", [4]string{"\u1ea1\u0305\u0301", "a\u0323\u0305\u0301", "\u1ea1\u0305\u0301", "a\u0323\u0305\u0301"}},
		{"\u212b", [4]string{"\u00c5", "A\u030a", "\u00c5", "A\u030a"}},
		{"\u0958", [4]string{"\u0915\u093c", "\u0915\u093c", "\u0915\u093c", "\u0915\u093c"}},
		{"\u32ff", [4]string{"\u32ff", "\u32ff", "\u32ff", "\u32ff"}}, // of Unicode 12.1, unknown to the peer
	} {
		for f, want := range test.want {
			require.Equal(t, want, Form(f).String(test.in), "%+q, form %d", test.in, f)
		}
	}
	require.Equal(t, "aßi\u0307", Lower("Aẞİ"))
}
