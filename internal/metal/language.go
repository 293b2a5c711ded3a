//go:build metal

package metal

import (
	"fmt"
	"strconv"
	"strings"
)

// language is a version of the Metal shading language, as MTLLanguageVersion has it: the major
// number in the upper 16 bits.
//
// The driver asks for a version, because Metal derives its default from the system that the
// program was linked for. Go's linker names macOS 12, whose language, 2.4, has no bfloat: with
// it products of bfloat16 matrices would run without the matrix units on every Mac.
type language uintptr

const (
	language24 language = 2<<16 | 4 // macOS 12, the oldest system that Go's programs run on
	language31 language = 3<<16 | 1 // macOS 14: the first with bfloat
)

// languageOf returns the language of a release of macOS, "14.5". Of one that it cannot read it
// returns the language that all of them have.
func languageOf(system string) language {
	major, _, _ := strings.Cut(system, ".")
	if n, err := strconv.Atoi(major); err == nil && n >= 14 {
		return language31
	}
	return language24
}

func (l language) String() string { return fmt.Sprintf("%d.%d", l>>16, l&0xffff) }
