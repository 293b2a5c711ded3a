package main

import (
	"fmt"
	"regexp"
	"strings"
)

// plainWord matches words that a POSIX shell takes as they are.
var plainWord = regexp.MustCompile(`^[A-Za-z0-9_@%+=:,./][A-Za-z0-9_@%+=:,./-]*$`)

// shellQuote writes a path as a word of a command line for a POSIX shell. A path that begins with a dash, which a flag
// does, gets a folder before it, and one with characters that control a terminal becomes a call of printf.
func shellQuote(path string) string {
	if strings.HasPrefix(path, "-") {
		path = "./" + path
	}
	switch {
	case plainWord.MatchString(path):
		return path
	case escaped(path) != path:
		var b strings.Builder
		for _, c := range []byte(path) {
			fmt.Fprintf(&b, `\%03o`, c)
		}
		return `"$(printf '` + b.String() + `')"`
	}
	return "'" + strings.ReplaceAll(path, "'", `'\''`) + "'"
}
