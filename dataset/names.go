package dataset

import (
	"encoding/json"
	"slices"
	"strings"
	"unicode"
)

// lookalikes are letters of other alphabets that look like those of ASCII.
var lookalikes = func() map[rune]rune {
	letters := map[rune]rune{}
	for _, pair := range [][2]string{
		{"авеікмнорстухѕјһԁӏ", "abeikmhopctyxsjhdl"}, // Cyrillic
		{"αβεικνορτυχ", "abeikvoptux"},               // Greek
	} {
		latin := []rune(pair[1])
		for i, r := range []rune(pair[0]) {
			letters[r] = latin[i]
		}
	}
	for r := rune('!'); r <= '~'; r++ { // full width
		letters[r-'!'+'！'] = unicode.ToLower(r)
	}
	return letters
}()

// usual returns a name in small letters, without blanks around it or characters that are not seen, with underscores, and with
// the letters of ASCII that others look like.
func usual(name string) string {
	plain := true
	for i := range len(name) {
		plain = plain && (name[i] == '_' || name[i] >= 'a' && name[i] <= 'z' || name[i] >= '0' && name[i] <= '9')
	}
	if plain {
		return name
	}
	unseen := func(r rune) bool { return unicode.In(r, unicode.Cf, unicode.Cc, unicode.Z) }
	return strings.Map(func(r rune) rune {
		switch {
		case unicode.In(r, unicode.Cf, unicode.Cc) && !unicode.IsSpace(r):
			return -1
		case unicode.IsSpace(r), unicode.Is(unicode.Pd, r):
			return '_'
		}
		r = unicode.ToLower(r)
		if to, found := lookalikes[r]; found {
			return to
		}
		return r
	}, strings.TrimFunc(name, unseen))
}

// deciding are words in the names of fields that say what is learned.
var deciding = []string{"train", "training", "trainable", "trained", "loss", "mask", "masked", "weight", "weights"}

// decides reports whether a field may say by its name what is learned. A name such as in_gsm8k_train says of what something is a
// part.
func decides(name string) bool {
	words := strings.Split(usual(name), "_")
	return words[0] != "in" && slices.ContainsFunc(words, func(word string) bool { return slices.Contains(deciding, word) })
}

// isSwitch reports whether a value is one that switches something on or off: a boolean, 0 or 1.
func isSwitch(x value) bool {
	switch x.(type) {
	case bool, json.Number:
		_, known := truth(x)
		return known
	}
	return false
}
