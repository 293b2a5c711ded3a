// Licences keeps the list of the modules that snug needs and their licences, docs/dependencies.md.
//
//	go run ./.ci/licences          writes the list
//	go run ./.ci/licences -check   fails if the file differs from what the builds need
//
// It asks go list for the packages of every system and build tag, and reads the licence files in the module cache. A licence
// that it does not know, or a module without one, is an error.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

const (
	core = "github.com/snug-ml/snug"
	list = "docs/dependencies.md"
)

// targets are builds which together have every file: of a system and processor, with tags.
var targets = []string{"linux/amd64/cuda,hip", "linux/arm64/emu", "darwin/arm64/metal", "windows/amd64/cuda", "linux/386/noasm"}

func main() {
	check := flag.Bool("check", false, "compare "+list+" with what the builds need")
	flag.Parse()
	if err := run(*check); err != nil {
		fmt.Fprintln(os.Stderr, "licences:", err)
		os.Exit(1)
	}
}

func run(check bool) error {
	text, err := document()
	if err != nil {
		return err
	}
	if !check {
		return os.WriteFile(list, text, 0o644)
	}
	have, err := os.ReadFile(list)
	if err != nil || !bytes.Equal(have, text) {
		return errors.Join(err, fmt.Errorf("%s is not what the builds need: run \"go run ./.ci/licences\" and look at what changed", list))
	}
	return nil
}

// document returns the text of the list.
func document() ([]byte, error) {
	integrations, err := filepath.Glob("integrations/*/go.mod")
	if err != nil {
		return nil, err
	}
	others := append(integrations, "bench/go.mod")
	packages, err := packagesOf(".")
	if err != nil {
		return nil, err
	}
	var library, programs []string
	for _, p := range packages {
		switch rest := strings.TrimPrefix(p, core); {
		case strings.HasPrefix(rest, "/cmd/"):
			programs = append(programs, p)
		case !regexp.MustCompile(`^/examples\b|/internal/|/\.ci/`).MatchString(rest): // what others can import
			library = append(library, p)
		}
	}
	text := bytes.NewBufferString(introduction)
	seen, ours := map[string]bool{}, map[string]bool(nil)
	for _, g := range []struct {
		title, dir string
		args       []string
	}{
		{"The packages", ".", library},
		{"The program `snug`, besides", ".", programs},
		{"Examples and tests, besides", ".", []string{"-test", "./..."}},
	} {
		if err := section(text, g.title, g.dir, g.args, seen); err != nil {
			return nil, err
		}
		if ours == nil {
			ours = maps.Clone(seen) // what the packages need
		}
	}
	for _, file := range others {
		dir := filepath.ToSlash(filepath.Dir(file))
		if err := section(text, "The module "+dir+", with its tests, besides the packages", dir, []string{"-test", "./..."}, maps.Clone(ours)); err != nil {
			return nil, err
		}
	}
	return bytes.TrimRight(text.Bytes(), "\n"), nil
}

const introduction = `# Modules that snug needs

A program that imports a package of snug compiles the modules that this package imports, and no others. This is all that there is,
over all systems and build tags, with the licences of the modules' files. The list is written by
` + "`go run ./.ci/licences`" + `, and CI compares it. snug itself has the [MIT License](../LICENSE).
`

// packagesOf returns the packages of a module.
func packagesOf(dir string) ([]string, error) {
	out, err := goList(dir, "", "./...")
	return strings.Fields(out), err
}

// goList runs go list in a folder for a target, or for this machine.
func goList(dir, target string, args ...string) (string, error) {
	c := exec.Command("go", append([]string{"list"}, args...)...)
	c.Dir, c.Env = dir, os.Environ()
	if parts := strings.Split(target, "/"); len(parts) == 3 {
		c.Args = slices.Insert(c.Args, 2, "-tags", parts[2])
		c.Env = append(c.Env, "CGO_ENABLED=0", "GOOS="+parts[0], "GOARCH="+parts[1])
	}
	var stderr bytes.Buffer
	c.Stderr = &stderr
	out, err := c.Output()
	if err != nil {
		return "", fmt.Errorf("%s in %s: %w: %s", strings.Join(c.Args, " "), dir, err, stderr.String())
	}
	return string(out), nil
}

// section writes the table of the modules that some packages of a folder need and that are not seen yet.
func section(text *bytes.Buffer, title, dir string, args []string, seen map[string]bool) error {
	found := map[string]string{} // folders by path and version
	for _, target := range targets {
		query := append([]string{"-deps", "-f", "{{with .Module}}{{if .Version}}{{.Path}} {{.Version}}\t{{.Dir}}{{end}}{{end}}"}, args...)
		out, err := goList(dir, target, query...)
		if err != nil {
			return err
		}
		for line := range strings.Lines(out) {
			name, folder, ok := strings.Cut(strings.TrimSpace(line), "\t")
			if ok && !strings.HasPrefix(name, core+" ") && !strings.HasPrefix(name, core+"/") {
				found[name] = folder
			}
		}
	}
	var rows []string
	for name, folder := range found {
		if seen[name] {
			continue
		}
		seen[name] = true
		licence, err := licenceOf(folder)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		path, version, _ := strings.Cut(name, " ")
		rows = append(rows, fmt.Sprintf("| `%s` | %s | %s |\n", path, version, licence))
	}
	slices.Sort(rows)
	fmt.Fprintf(text, "\n## %s\n\n", title)
	if len(rows) == 0 {
		text.WriteString("None.\n")
		return nil
	}
	text.WriteString("| module | version | licence |\n|---|---|---|\n" + strings.Join(rows, ""))
	return nil
}

// licences are words of their texts, in the order in which they are looked for.
var licences = []struct{ name, words string }{
	{"Apache-2.0", "apache license version 2.0"},
	{"MPL-2.0", "mozilla public license version 2.0"},
	{"BSD-3-Clause", "neither the name of"},
	{"BSD-2-Clause", "redistributions in binary form must reproduce the above copyright notice"},
	{"ISC", "permission to use, copy, modify, and/or distribute this software for any purpose with or without fee"},
	{"MIT", "permission is hereby granted, free of charge, to any person obtaining a copy of this software"},
	{"FTL or GPL-2.0", "use of the freetype-go software is subject to your choice of"},
	{"OFL-1.1", "sil open font license version 1.1"},
	{"Unlicense", "this is free and unencumbered software released into the public domain"},
	{"CC0-1.0", "cc0 1.0 universal"},
	{"CC-BY-4.0", "creative commons attribution 4.0 international"},
}

var (
	file  = regexp.MustCompile(`(?i)^(unlicense|licen[cs]es?|copying)([-.].*)?$`)
	blank = regexp.MustCompile(`[\s,#*]+`)
)

// licenceOf returns the licences of the files in a module's folder.
func licenceOf(folder string) (string, error) {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return "", err
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() || !file.MatchString(e.Name()) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(folder, e.Name()))
		if err != nil {
			return "", err
		}
		name, err := recognise(string(text))
		if err != nil {
			return "", fmt.Errorf("%s: %w", e.Name(), err)
		}
		names = append(names, name...)
	}
	slices.Sort(names)
	if names = slices.Compact(names); len(names) == 0 {
		return "", fmt.Errorf("no licence file in %s", folder)
	}
	return strings.Join(names, ", "), nil
}

// recognise returns the licences whose words are in a text.
func recognise(text string) ([]string, error) {
	text = blank.ReplaceAllString(strings.ToLower(text), " ")
	var names []string
	for _, l := range licences {
		if strings.Contains(text, blank.ReplaceAllString(l.words, " ")) && !(l.name == "BSD-2-Clause" && slices.Contains(names, "BSD-3-Clause")) {
			names = append(names, l.name)
		}
	}
	if len(names) == 0 {
		return nil, errors.New("a licence that is not known here")
	}
	return names, nil
}
