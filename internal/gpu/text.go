//go:build metal || emu

package gpu

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"
)

var (
	includeLine = regexp.MustCompile(`^\s*#\s*include\s*"([^"]+)"`)
	onceLine    = regexp.MustCompile(`^\s*#\s*pragma\s+once\b`)
)

// Text returns a file of m.Source, such as "amp.metal", as one text for a
// compiler that has no files. The text of every file that it includes with
// quotes, from the file's folder, from the root of m.Source or from Include,
// stands in place of the directive; includes with angle brackets stay. #line
// directives keep the compiler's positions right. A file that no folder has
// becomes an #error, since its include may be under a condition that is not
// met.
func (m *Module) Text(entry string) (string, error) {
	if m.Source == nil {
		return "", fmt.Errorf("the sources of %s are not in this build: %w", m.Name, fs.ErrNotExist)
	}
	t := texter{source: m.Source}
	text, err := fs.ReadFile(m.Source, entry)
	if err != nil {
		return "", err
	}
	if err := t.add(entry, string(text)); err != nil {
		return "", err
	}
	return t.out.String(), nil
}

// texter writes a file with its includes to out.
type texter struct {
	source fs.FS
	out    strings.Builder
	open   []string // files that are being written, the entry first
}

func (t *texter) add(name, text string) error {
	if slices.Contains(t.open, name) {
		return fmt.Errorf("%s includes itself: %s", name, strings.Join(append(t.open, name), " → "))
	}
	t.open = append(t.open, name)
	fmt.Fprintf(&t.out, "#line 1 %q\n", name)
	number := 0
	for line := range strings.Lines(text) {
		number++
		line = strings.TrimRight(line, "\r\n")
		switch match := includeLine.FindStringSubmatch(line); {
		case match != nil:
			if err := t.include(name, match[1]); err != nil {
				return err
			}
			fmt.Fprintf(&t.out, "#line %d %q\n", number+1, name)
		case onceLine.MatchString(line):
			t.out.WriteString("\n") // the guard around the text does it
		default:
			t.out.WriteString(line + "\n")
		}
	}
	t.open = t.open[:len(t.open)-1]
	return nil
}

// include writes a file that another includes. A guard makes #pragma once work
// also where an include under a condition comes first.
func (t *texter) include(from, name string) error {
	file, text, err := t.find(from, name)
	if errors.Is(err, fs.ErrNotExist) {
		fmt.Fprintf(&t.out, "#error \"%s includes %s, which is neither in the module nor in the dialect\"\n", from, name)
		return nil
	}
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(strings.Split(text, "\n"), onceLine.MatchString) {
		return t.add(file, text)
	}
	if slices.Contains(t.open, file) {
		return nil // its guard is set
	}
	guard := "SNUG_ONCE_" + strings.Map(wordRune, file)
	fmt.Fprintf(&t.out, "#ifndef %s\n#define %s\n", guard, guard)
	if err := t.add(file, text); err != nil {
		return err
	}
	t.out.WriteString("#endif\n")
	return nil
}

// find returns an included file under the name that identifies it.
func (t *texter) find(from, name string) (file, text string, err error) {
	for _, candidate := range []struct {
		files fs.FS
		name  string
	}{
		{t.source, path.Join(path.Dir(from), name)},
		{t.source, path.Clean(name)},
		{Include, path.Join("include", name)},
	} {
		if !fs.ValidPath(candidate.name) {
			continue
		}
		data, err := fs.ReadFile(candidate.files, candidate.name)
		if err == nil {
			return candidate.name, string(data), nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return "", "", err
		}
	}
	return "", "", fs.ErrNotExist
}

// wordRune makes a character of a name one of an identifier.
func wordRune(r rune) rune {
	if r >= '0' && r <= '9' || r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z' {
		return r
	}
	return '_'
}
