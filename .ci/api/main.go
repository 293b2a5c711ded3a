// Api keeps the list of everything that the module exports, .ci/api/testdata/api.txt.
//
//	go run ./.ci/api          writes the list
//	go run ./.ci/api -check   fails if .ci/api/testdata/api.txt differs from what the source exports
//	go run ./.ci/api -since F fails if a line of F, the list of a release, is gone, unless CHANGELOG.md
//	                          names it among what is unreleased
//
// It reads the syntax of the files of a build without tags. Names of parameters, values and comments are not
// part of it.
package main

import (
	"bytes"
	"cmp"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/build"
	"go/parser"
	"go/printer"
	"go/token"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

const (
	module = "github.com/snug-ml/snug"
	list   = ".ci/api/testdata/api.txt"
)

func main() {
	check := flag.Bool("check", false, "compare "+list+" with the source")
	since := flag.String("since", "", "compare the list of a release with the source")
	flag.Parse()
	if err := run(*check, *since); err != nil {
		fmt.Fprintln(os.Stderr, "api:", err)
		os.Exit(1)
	}
}

func run(check bool, since string) error {
	out, err := exec.Command("go", "list", "-f", "{{.ImportPath}} {{.Dir}}", "./...").Output()
	if err != nil {
		return fmt.Errorf("go list: %w", err)
	}
	var lines []string
	for line := range strings.Lines(string(out)) {
		name, dir, _ := strings.Cut(strings.TrimSpace(line), " ")
		if public(name) {
			more, err := exported(name, dir)
			if err != nil {
				return err
			}
			lines = append(lines, more...)
		}
	}
	slices.Sort(lines)
	text := []byte(strings.Join(lines, "\n") + "\n")
	switch {
	case since != "":
		return compare(since, lines)
	case check:
		have, err := os.ReadFile(list)
		if err != nil || !bytes.Equal(have, text) {
			return errors.Join(err, fmt.Errorf("%s is not what the source exports: run \"go run ./.ci/api\" and look at what changed", list))
		}
		return nil
	}
	return os.WriteFile(list, text, 0o644)
}

// public reports whether programs can import a package and are meant to.
func public(name string) bool {
	rest, _ := strings.CutPrefix(name, module)
	for part := range strings.SplitSeq(rest, "/") {
		if slices.Contains([]string{"internal", "examples", "cmd"}, part) {
			return false
		}
	}
	return true
}

// compare fails for lines of a release that are gone and that the changelog does not name.
func compare(since string, lines []string) error {
	old, err := os.ReadFile(since)
	if err != nil {
		return err
	}
	log, err := os.ReadFile("CHANGELOG.md")
	if err != nil {
		return err
	}
	return errors.Join(gone(strings.Split(strings.TrimSpace(string(old)), "\n"), lines, unreleased(string(log)))...)
}

// unreleased returns what a changelog says under "## [Unreleased]".
func unreleased(log string) string {
	_, rest, _ := strings.Cut(log, "## [Unreleased]")
	rest, _, _ = strings.Cut(rest, "\n## ")
	return rest
}

// gone returns an error for each old line that is no longer there and whose name the text does not have. lines are sorted.
func gone(old, lines []string, text string) (errs []error) {
	for _, line := range old {
		if _, found := slices.BinarySearch(lines, line); found {
			continue
		}
		if name := nameOf(line); !regexp.MustCompile(`\b` + regexp.QuoteMeta(name) + `\b`).MatchString(text) {
			errs = append(errs, fmt.Errorf("gone or changed, and CHANGELOG.md does not name %s under Unreleased: %s", name, line))
		}
	}
	return errs
}

// nameOf returns the name of a line: "Caster" of "amp: type Caster struct", "N" of "amp: field Caster.N int".
func nameOf(line string) string {
	_, rest, _ := strings.Cut(line, ": ")
	_, rest, _ = strings.Cut(rest, " ")
	name := rest[:strings.IndexFunc(rest+" ", func(r rune) bool { return strings.ContainsRune(" ([", r) })]
	return name[strings.LastIndexByte(name, '.')+1:]
}

// exported returns a line for each exported declaration of a package.
func exported(name, dir string) (lines []string, err error) {
	p, err := build.Default.ImportDir(dir, 0)
	if err != nil {
		return nil, err
	}
	short := cmp.Or(strings.TrimPrefix(strings.TrimPrefix(name, module), "/"), path.Base(module))
	fset := token.NewFileSet()
	e := &exporter{fset: fset}
	for _, file := range p.GoFiles {
		f, err := parser.ParseFile(fset, filepath.Join(dir, file), nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		for _, d := range f.Decls {
			e.declaration(d)
		}
	}
	for i, line := range e.lines {
		e.lines[i] = short + ": " + line
	}
	return e.lines, nil
}

type exporter struct {
	fset  *token.FileSet
	lines []string
}

func (e *exporter) add(format string, args ...any) {
	e.lines = append(e.lines, fmt.Sprintf(format, args...))
}

// text returns a node on one line.
func (e *exporter) text(n ast.Node) string {
	var b bytes.Buffer
	if err := printer.Fprint(&b, e.fset, n); err != nil {
		panic(err) // of a node that the parser made
	}
	return strings.Join(strings.Fields(b.String()), " ")
}

// types returns the types of a list, one for each name.
func (e *exporter) types(l *ast.FieldList) string {
	var all []string
	if l != nil {
		for _, f := range l.List {
			for range max(1, len(f.Names)) {
				all = append(all, e.text(f.Type))
			}
		}
	}
	return strings.Join(all, ", ")
}

// signature returns the parameters and results of a function.
func (e *exporter) signature(t *ast.FuncType) string {
	s := ""
	if t.TypeParams != nil {
		s = "[" + e.named(t.TypeParams) + "]"
	}
	s += "(" + e.types(t.Params) + ")"
	switch results := e.types(t.Results); {
	case t.Results.NumFields() > 1:
		s += " (" + results + ")"
	case results != "":
		s += " " + results
	}
	return s
}

// named returns a list of type parameters with their names.
func (e *exporter) named(l *ast.FieldList) string {
	var all []string
	for _, f := range l.List {
		for _, n := range f.Names {
			all = append(all, n.Name+" "+e.text(f.Type))
		}
	}
	return strings.Join(all, ", ")
}

func (e *exporter) declaration(d ast.Decl) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		switch {
		case !d.Name.IsExported():
		case d.Recv == nil:
			e.add("func %s%s", d.Name.Name, e.signature(d.Type))
		default:
			of, pointer := d.Recv.List[0].Type, ""
			if star, ok := of.(*ast.StarExpr); ok {
				of, pointer = star.X, "*"
			}
			if name := base(of); ast.IsExported(name) {
				e.add("method %s%s.%s%s", pointer, name, d.Name.Name, e.signature(d.Type))
			}
		}
	case *ast.GenDecl:
		for _, s := range d.Specs {
			switch s := s.(type) {
			case *ast.ValueSpec:
				for _, n := range s.Names {
					if n.IsExported() && s.Type != nil {
						e.add("%s %s %s", d.Tok, n.Name, e.text(s.Type))
					} else if n.IsExported() {
						e.add("%s %s", d.Tok, n.Name)
					}
				}
			case *ast.TypeSpec:
				if s.Name.IsExported() {
					e.typeOf(s)
				}
			}
		}
	}
}

// base returns the name of a receiver's type.
func base(x ast.Expr) string {
	switch x := x.(type) {
	case *ast.StarExpr:
		return base(x.X)
	case *ast.IndexExpr:
		return base(x.X)
	case *ast.IndexListExpr:
		return base(x.X)
	case *ast.Ident:
		return x.Name
	}
	return ""
}

func (e *exporter) typeOf(s *ast.TypeSpec) {
	params := ""
	if s.TypeParams != nil {
		params = "[" + e.named(s.TypeParams) + "]"
	}
	if s.Assign.IsValid() {
		params += " ="
	}
	switch t := s.Type.(type) {
	case *ast.StructType:
		e.add("type %s%s struct", s.Name.Name, params)
		for _, f := range t.Fields.List {
			if len(f.Names) == 0 && ast.IsExported(last(f.Type)) {
				e.add("embedded %s.%s %s", s.Name.Name, last(f.Type), e.text(f.Type))
			}
			for _, n := range f.Names {
				if n.IsExported() {
					e.add("field %s.%s %s", s.Name.Name, n.Name, e.text(f.Type))
				}
			}
		}
	case *ast.InterfaceType:
		e.add("type %s%s interface", s.Name.Name, params)
		for _, f := range t.Methods.List {
			method, ok := f.Type.(*ast.FuncType)
			if !ok {
				e.add("embedded %s.%s", s.Name.Name, e.text(f.Type))
				continue
			}
			for _, n := range f.Names {
				e.add("method %s.%s%s", s.Name.Name, n.Name, e.signature(method))
			}
		}
	default:
		e.add("type %s%s %s", s.Name.Name, params, e.text(s.Type))
	}
}

// last returns the name of an embedded type without its package.
func last(x ast.Expr) string {
	if s, ok := x.(*ast.SelectorExpr); ok {
		return s.Sel.Name
	}
	if s, ok := x.(*ast.StarExpr); ok {
		return last(s.X)
	}
	return base(x)
}
