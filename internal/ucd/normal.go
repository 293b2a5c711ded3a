package ucd

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"
)

// Form is a normalization form of Unicode Standard Annex 15.
type Form int

// The forms.
const (
	NFC Form = iota
	NFD
	NFKC
	NFKD
)

func (f Form) compatible() bool { return f == NFKC || f == NFKD }

func (f Form) composes() bool { return f == NFC || f == NFKC }

// String returns s, which is UTF-8, in the form.
func (f Form) String(s string) string {
	n := normalTables()
	calm := n.calm[f]
	if strings.IndexFunc(s, func(r rune) bool { return !calm.Contains(r) }) < 0 {
		return s
	}
	out := make([]byte, 0, len(s)+len(s)/8)
	var segment []rune
	dirty, calmBefore := false, false
	flush := func() {
		if dirty {
			segment = n.normalize(segment, f)
		}
		for _, r := range segment {
			out = utf8.AppendRune(out, r)
		}
		segment, dirty = segment[:0], false
	}
	for _, r := range s {
		isCalm := calm.Contains(r)
		if isCalm && calmBefore { // nothing joins or moves between the two
			flush()
		}
		segment = append(segment, r)
		dirty, calmBefore = dirty || !isCalm, isCalm
	}
	flush()
	return string(out)
}

// normal is the data of the forms.
type normal struct {
	canonical, compatible map[rune][]rune
	class                 map[rune][]rune // of one element, the combining class
	pairs                 map[[2]rune]rune
	// calm are the code points that a form leaves alone where only others of them are
	// around: they do not decompose, have class 0 and are no second half of a pair.
	calm [4]*Set
}

var normalTables = sync.OnceValue(func() *normal {
	n := &normal{
		canonical: mapping("nfd"), compatible: mapping("nfkd"), class: mapping("ccc"), pairs: map[[2]rune]rune{},
	}
	composed := map[rune]bool{}
	joining := []*Set{Range(vowelFirst, vowelFirst+vowels-1), Range(tailFirst, tailFirst+tails-1)}
	var seconds []rune
	for one, pair := range mapping("compose") {
		n.pairs[[2]rune(pair)] = one
		composed[one] = true
		seconds = append(seconds, pair[1])
	}
	joining = append(joining, of(seconds), of(slices.Collect(maps.Keys(n.class))))
	var changing, changingK []rune
	for r := range n.canonical {
		if !composed[r] {
			changing = append(changing, r)
		}
	}
	for r := range n.compatible {
		if !composed[r] || !slices.Equal(n.canonical[r], n.compatible[r]) {
			changingK = append(changingK, r)
		}
	}
	n.calm[NFC] = Union(append(joining, of(changing))...).Complement()
	n.calm[NFKC] = Union(append(joining, of(changingK))...).Complement()
	marks, hangul := of(slices.Collect(maps.Keys(n.class))), Range(hangulFirst, hangulLast)
	n.calm[NFD] = Union(marks, hangul, of(slices.Collect(maps.Keys(n.canonical)))).Complement()
	n.calm[NFKD] = Union(marks, hangul, of(slices.Collect(maps.Keys(n.compatible)))).Complement()
	return n
})

// Hangul syllables are arithmetic: The Unicode Standard, section 3.12.
const (
	hangulFirst, hangulLast = 0xAC00, 0xD7A3
	leadFirst, leads        = 0x1100, 19
	vowelFirst, vowels      = 0x1161, 21
	tailFirst, tails        = 0x11A7, 28 // the first one is no tail
)

func (n *normal) ccc(r rune) rune {
	if r < 0x300 {
		return 0
	}
	if c := n.class[r]; c != nil {
		return c[0]
	}
	return 0
}

// normalize returns the form of text: decomposed, put in order, and joined.
func (n *normal) normalize(text []rune, f Form) []rune {
	table := n.canonical
	if f.compatible() {
		table = n.compatible
	}
	var out []rune
	for _, r := range text {
		if hangulFirst <= r && r <= hangulLast {
			i := r - hangulFirst
			out = append(out, leadFirst+i/(vowels*tails), vowelFirst+i/tails%vowels)
			if t := i % tails; t != 0 {
				out = append(out, tailFirst+t)
			}
		} else if d, ok := table[r]; ok {
			out = append(out, d...)
		} else {
			out = append(out, r)
		}
	}
	for i := 0; i < len(out); {
		if n.ccc(out[i]) == 0 {
			i++
			continue
		}
		end := i
		for end < len(out) && n.ccc(out[end]) != 0 {
			end++
		}
		slices.SortStableFunc(out[i:end], func(a, b rune) int { return int(n.ccc(a) - n.ccc(b)) })
		i = end
	}
	if f.composes() {
		out = n.compose(out)
	}
	return out
}

// compose joins starters with what follows them and is not blocked, in place.
func (n *normal) compose(text []rune) []rune {
	starter, last := -1, rune(-1) // its place in out, and the class of what was kept after it
	out := text[:0]
	for _, r := range text {
		class := n.ccc(r)
		if starter >= 0 && last < class {
			if one, ok := n.join(out[starter], r); ok {
				out[starter] = one
				continue
			}
		}
		if class == 0 {
			starter, last = len(out), -1
		} else {
			last = class
		}
		out = append(out, r)
	}
	return out
}

// join returns the code point that a and b make.
func (n *normal) join(a, b rune) (rune, bool) {
	if leadFirst <= a && a < leadFirst+leads && vowelFirst <= b && b < vowelFirst+vowels {
		return hangulFirst + ((a-leadFirst)*vowels+b-vowelFirst)*tails, true
	}
	if hangulFirst <= a && a <= hangulLast && (a-hangulFirst)%tails == 0 && tailFirst < b && b < tailFirst+tails {
		return a + b - tailFirst, true
	}
	one, ok := n.pairs[[2]rune{a, b}]
	return one, ok
}
