package snug_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// documents are the pages that TestDocuments holds against the source.
func documents(t *testing.T) []string {
	t.Helper()
	pages, err := filepath.Glob("docs/*.md")
	require.NoError(t, err)
	require.NotEmpty(t, pages)
	return append(pages, "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "quant8/OPTIMIZERS.md")
}

// objects are the types of what the pages name without its package.
var objects = map[string]string{
	"window": "accum.Window", "scaler": "amp.Scaler", "chain": "remat.Chain", "opt": "quant8.Optimizer", "store": "offload.Store",
}

// others are packages of others whose Go names the pages mention.
var others = []string{"context", "encoding", "errors", "fs", "io", "iter", "os", "syscall", "testing", "require", "http", "runtime"}

// TestDocuments holds what the pages name against the source: names of packages, with
// their fields and methods, errors and their texts, links, paths, flags and variables of
// the environment.
//
//check:not race
func TestDocuments(t *testing.T) {
	s := readSource(t)
	for _, page := range documents(t) {
		t.Run(page, func(t *testing.T) {
			text, err := os.ReadFile(page)
			require.NoError(t, err)
			for _, complaint := range s.check(page, string(text)) {
				t.Error(complaint)
			}
		})
	}
}

// TestDocumentsAreHeld: the checks of TestDocuments find what is wrong.
func TestDocumentsAreHeld(t *testing.T) {
	s := readSource(t)
	const right = "[text](amp) [text](README.md#license) `amp.NewScaler`, `amp.Stats.Norm`, `quant8.Optimizer.Step`, `amp.MatMulOptions{M: 1}`,\n" +
		"`snug.ErrShape`, `ErrShape`, `snug.Array[float32].CopyIn`, `internal/driver.Job`, `torch.amp.GradScaler`, `iter.Seq2`,\n" +
		"`SNUG_CPU=go`, `scripts/gpu.sh`, `-preset`, `snug: invalid configuration`, `go run ./examples/gpt -steps 2`, `-o x`\n\n" +
		"```go\nerr := amp.Cast(low, full)\n```\n\n    go run -tags emu ./examples/gpt -steps 20 # -nothing\n    $ snug plan -model llama-7b\n"
	require.Empty(t, s.check("README.md", right))
	for _, wrong := range []string{
		"`amp.NewScalar`", "`amp.Stats.Norms`", "`quant8.Optimizer.Step.Step`", "`amp.MatMulOptions{Q: 1}`", "`snug.ErrShapes`", "`ErrShapes`", "`NewScalar`",
		"`snug.Array[float32].CopyAway`", "`ramp.Scaler`", "`SNUG_CPUS=go`", "`scripts/cpu.sh`", "`-presets`", "`snug: … in the wrong configuration`", "`… is bolted`", "`window.Outof`",
		"`go run ./examples/gpt -step 2`", "`go run ./examples/gtp`", "`snug plan -models x`", "`snug plans`", "[text](amped)", "[text](README.md#use)", "[text](#use)",
		"```go\nerr := amp.Casts(low, full)\n```", "    go run ./examples/gpt -step 20", "    $ snug plan -models llama-7b", "```\ngo run -C bench . -peer\n```",
	} {
		require.Len(t, s.check("README.md", "Text.\n\n"+wrong+"\n"), 1, wrong)
	}
}

// source is what the files of the module declare and say.
type source struct {
	packages map[string]map[string]*members // by a package's name and a name in it
	paths    map[string]string              // of public packages by their names
	flags    map[string][]string            // of programs, by folder, and of snug's commands, by cmd/snug/<command>
	shared   [][2]string                    // a command or a function, and a function whose flags it has
	texts    string                         // all string literals of Go, and of scripts all
}

// members are the fields and methods of a type, and the types that it embeds or is.
type members struct {
	names []string
	from  []string
}

func readSource(t *testing.T) *source {
	t.Helper()
	s := &source{packages: map[string]map[string]*members{}, paths: map[string]string{}, flags: map[string][]string{}}
	var texts strings.Builder
	set := token.NewFileSet()
	require.NoError(t, filepath.WalkDir(".", func(name string, entry fs.DirEntry, err error) error {
		base := path.Base(filepath.ToSlash(name))
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (base == "testdata" || base == "_gen" || strings.HasPrefix(base, ".") && base != "." && base != ".ci"):
			return fs.SkipDir
		case entry.IsDir():
			return nil
		case strings.HasSuffix(base, ".sh") || filepath.Dir(name) == ".ci" || name == "check":
			text, err := os.ReadFile(name)
			texts.Write(text)
			return err
		case !strings.HasSuffix(base, ".go") || strings.HasSuffix(base, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(set, name, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		s.read(filepath.ToSlash(name), file, &texts)
		return nil
	}))
	s.texts = texts.String()
	for range 2 { // a shared row may be made by another one
		for _, use := range s.shared {
			s.flags[use[0]] = append(s.flags[use[0]], s.flags[use[1]]...)
		}
	}
	return s
}

func (s *source) read(name string, file *ast.File, texts *strings.Builder) {
	dir := path.Dir(name)
	pkg := file.Name.Name
	if pkg == "main" {
		pkg = dir // which no page takes for a package
	} else if !strings.HasPrefix(dir, "internal/") {
		s.paths[pkg] = path.Join("github.com/snug-ml/snug", dir)
	}
	if s.packages[pkg] == nil {
		s.packages[pkg] = map[string]*members{}
	}
	for _, d := range file.Decls {
		s.declare(pkg, d)
		s.declareFlags(dir, path.Base(name), d)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BinaryExpr:
			if text, ok := literal(n); ok {
				fmt.Fprintln(texts, text)
				return false
			}
		case *ast.BasicLit:
			if text, ok := literal(n); ok {
				fmt.Fprintln(texts, text)
			}
		case *ast.CallExpr:
			if f, ok := n.Fun.(*ast.SelectorExpr); ok && flagFuncs.MatchString(f.Sel.Name) {
				for _, a := range n.Args[:min(2, len(n.Args))] {
					if text, ok := literal(a); ok {
						s.flags[dir] = append(s.flags[dir], text)
						s.flags[strings.TrimSuffix(name, ".go")] = append(s.flags[strings.TrimSuffix(name, ".go")], text)
						break
					}
				}
			}
		}
		return true
	})
}

// declareFlags notes the flags of snug's commands: rows of a table, in a file whose name begins with the command's, and
// functions of rows that tables of several commands share.
func (s *source) declareFlags(dir, base string, d ast.Decl) {
	f, ok := d.(*ast.FuncDecl)
	if !ok || dir != "cmd/snug" || f.Type.Results == nil {
		return
	}
	var result string
	switch t := f.Type.Results.List[0].Type.(type) {
	case *ast.StarExpr:
		result = fmt.Sprint(t.X)
	case *ast.Ident:
		result = t.Name
	}
	if result != "flagRow" && result != "flagTable" && result != "command" {
		return
	}
	to := "func " + f.Name.Name // of a row
	if result != "flagRow" {
		command, _, _ := strings.Cut(strings.TrimSuffix(base, ".go"), "_")
		to = path.Join(dir, command)
	}
	ast.Inspect(f, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		var name string
		switch f := call.Fun.(type) {
		case *ast.Ident:
			name = f.Name
		case *ast.IndexExpr: // of type parameters
			name = fmt.Sprint(f.X)
		case *ast.SelectorExpr:
			name = f.Sel.Name
		}
		if !strings.HasSuffix(name, "Flag") {
			return true
		}
		if len(call.Args) > 0 {
			if text, ok := literal(call.Args[0]); ok && text == strings.ToLower(text) { // others stand for values, such as DIR
				s.flags[to] = append(s.flags[to], text)
				return true
			}
		}
		s.shared = append(s.shared, [2]string{to, "func " + name})
		return true
	})
}

var flagFuncs = regexp.MustCompile(`^(String|Bool|Int|Uint|Float|Duration|Text|Func|Var)[a-zA-Z0-9]*$`)

// literal returns a string constant that may be written in parts.
func literal(e ast.Expr) (string, bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		text, err := strconv.Unquote(e.Value)
		return text, err == nil && e.Kind == token.STRING
	case *ast.BinaryExpr:
		x, ok := literal(e.X)
		y, also := literal(e.Y)
		return x + y, ok && also
	}
	return "", false
}

// declare takes up what a declaration adds to a package.
func (s *source) declare(pkg string, d ast.Decl) {
	of := func(name string) *members {
		if s.packages[pkg][name] == nil {
			s.packages[pkg][name] = &members{}
		}
		return s.packages[pkg][name]
	}
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Recv == nil {
			of(d.Name.Name)
		} else if m := of(typeName(d.Recv.List[0].Type)); m != nil {
			m.names = append(m.names, d.Name.Name)
		}
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			switch spec := spec.(type) {
			case *ast.ValueSpec:
				for _, n := range spec.Names {
					of(n.Name)
				}
			case *ast.TypeSpec:
				m := of(spec.Name.Name)
				var fields *ast.FieldList
				switch t := spec.Type.(type) {
				case *ast.StructType:
					fields = t.Fields
				case *ast.InterfaceType:
					fields = t.Methods
				default:
					m.from = append(m.from, typeName(t))
					continue
				}
				for _, f := range fields.List {
					for _, n := range f.Names {
						m.names = append(m.names, n.Name)
					}
					if len(f.Names) == 0 {
						m.names, m.from = append(m.names, path.Ext("." + typeName(f.Type))[1:]), append(m.from, typeName(f.Type))
					}
				}
			}
		}
	}
}

// typeName is the name of a type without pointer and parameters, "" if it has none.
func typeName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.StarExpr:
		return typeName(e.X)
	case *ast.IndexExpr:
		return typeName(e.X)
	case *ast.IndexListExpr:
		return typeName(e.X)
	case *ast.SelectorExpr:
		return typeName(e.X) + "." + e.Sel.Name
	}
	return ""
}

// has reports whether a type has a field or method, if need be one that it embeds.
func (s *source) has(pkg, typ, name string) bool {
	if p, t, ok := strings.Cut(typ, "."); ok {
		pkg, typ = p, t
	}
	m := s.packages[pkg][typ]
	return m != nil && (slices.Contains(m.names, name) || slices.ContainsFunc(m.from, func(from string) bool { return s.has(pkg, from, name) }))
}

var (
	fence     = regexp.MustCompile("(?ms)^```(\\w*)\n(.*?)^```$")
	span      = regexp.MustCompile("`([^`]+)`")
	link      = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	selector  = regexp.MustCompile(`(^|[^.\w])([a-z]\w*)\.([A-Z]\w*)(\[[^\]]*\])?((?:\.[A-Z]\w*)*)(\{[^}]*\})?`)
	key       = regexp.MustCompile(`(\w+):`)
	bare      = regexp.MustCompile(`^(Err|New)[A-Z]\w*$`)
	variable  = regexp.MustCompile(`\bSNUG_\w+`)
	command   = regexp.MustCompile(`(?m)^(?:\$ )?(?:go run (?:(?:-\w+ \w+ )?\./|-C )([\w/]+)(?: -tags \w+)?|snug ([a-z]+))(.*)$`)
	option    = regexp.MustCompile(`(?:^|\s)-([a-z][\w-]*)`)
	message   = regexp.MustCompile(`^(\w+): .`)
	varies    = regexp.MustCompile(`^\w+: |…|"[^"]*"`)
	inFolder  = regexp.MustCompile(`^(?:\./)?([\w.-]+)/[\w./-]+$`)
	heading   = regexp.MustCompile(`(?m)^#+ (.*)$`)
	goFlags   = []string{"tags", "race", "run", "skip", "bench", "short", "fuzz", "count", "exec", "v", "h"}
	notInSlug = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// check returns what of a page is not in the source.
func (s *source) check(page, text string) (complaints []string) {
	no := func(format string, args ...any) { complaints = append(complaints, fmt.Sprintf(format, args...)) }
	for _, m := range fence.FindAllStringSubmatch(text, -1) {
		if m[1] == "go" {
			s.selectors(m[2], false, no)
		} else {
			s.commands(m[2], no)
		}
	}
	prose := fence.ReplaceAllString(text, "")
	for line := range strings.Lines(prose) {
		if code, ok := strings.CutPrefix(line, "    "); ok {
			s.commands(code, no)
		}
	}
	for _, m := range span.FindAllStringSubmatch(prose, -1) {
		s.span(strings.Join(strings.Fields(m[1]), " "), no)
	}
	for _, m := range link.FindAllStringSubmatch(prose, -1) {
		file, anchor, _ := strings.Cut(m[1], "#")
		if strings.Contains(file, ":") {
			continue
		}
		target := page
		if file != "" {
			target = path.Join(path.Dir(page), file)
		}
		if _, err := os.Stat(target); err != nil {
			no("link to %s, which is not there", m[1])
		} else if anchor != "" && !slices.Contains(anchors(target), anchor) {
			no("link to %s, which has no such heading", m[1])
		}
	}
	return complaints
}

// anchors are the anchors of a page's headings.
func anchors(page string) (list []string) {
	text, err := os.ReadFile(page)
	if err != nil {
		return nil
	}
	for _, m := range heading.FindAllStringSubmatch(fence.ReplaceAllString(string(text), ""), -1) {
		list = append(list, strings.ReplaceAll(notInSlug.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-"))
	}
	return list
}

type complain = func(format string, args ...any)

// span checks code within a sentence.
func (s *source) span(code string, no complain) {
	for _, v := range variable.FindAllString(code, -1) {
		if !strings.Contains(s.texts, v) {
			no("variable %s, which nothing reads", v)
		}
	}
	m := inFolder.FindStringSubmatch(code)
	switch {
	case bare.MatchString(code) && !slices.ContainsFunc(slices.Collect(maps.Values(s.packages)), func(names map[string]*members) bool { return names[code] != nil }):
		no("%s, which no package has", code)
	case command.MatchString(code):
		s.commands(code, no)
	case strings.HasPrefix(code, "-"):
		for _, f := range option.FindAllStringSubmatch(code, -1) {
			if !slices.Contains(goFlags, f[1]) && !slices.ContainsFunc(slices.Collect(maps.Values(s.flags)), func(flags []string) bool { return slices.Contains(flags, f[1]) }) {
				no("flag %s, which no program has", f[0])
			}
		}
	case s.isMessage(code):
		for _, part := range varies.Split(code, -1) {
			if part = strings.Trim(part, " :,;"); len(part) > 3 && !strings.Contains(s.texts, part) {
				no("message with %q, which nothing says", part)
			}
		}
	case m != nil && !strings.ContainsAny(code, "<*") && selector.FindString(code) == "":
		if _, err := os.Stat(m[1]); err == nil {
			if _, err := os.Stat(code); err != nil {
				no("path %s, which is not there", code)
			}
		}
	default:
		s.selectors(code, true, no)
	}
}

// isMessage reports whether code is the text of an error, in which "…" stands for what varies.
func (s *source) isMessage(code string) bool {
	m := message.FindStringSubmatch(code)
	return m != nil && s.packages[m[1]] != nil || strings.Contains(code, "…") && strings.Contains(code, " ")
}

// selectors checks names of packages. In a span every package is one of the module or foreign.
func (s *source) selectors(code string, inSpan bool, no complain) {
	for _, m := range selector.FindAllStringSubmatch(code, -1) {
		pkg, name, rest, fields := m[2], m[3], m[5], m[6]
		names, known := s.packages[pkg]
		if typ, ok := objects[pkg]; ok && inSpan {
			if !s.has("", typ, name) {
				no("%s has no %s", typ, name)
			}
			continue
		}
		switch {
		case known && names[name] == nil:
			no("%s.%s, which is not there", pkg, name)
		case !known && inSpan && !slices.Contains(others, pkg):
			no("%s.%s: no package has this name", pkg, name)
		case known && rest != "" && (strings.Count(rest, ".") > 1 || !s.has(pkg, name, rest[1:])):
			no("%s.%s%s, which is not there", pkg, name, rest)
		case known && rest == "" && inSpan:
			for _, k := range key.FindAllStringSubmatch(fields, -1) {
				if !s.has(pkg, name, k[1]) {
					no("%s.%s has no %s", pkg, name, k[1])
				}
			}
		}
	}
}

// commands checks the programs and their flags.
func (s *source) commands(code string, no complain) {
	for _, m := range command.FindAllStringSubmatch(code, -1) {
		program := m[1]
		if program == "" || program == "cmd/snug" {
			sub := m[2]
			if sub == "" {
				sub, _, _ = strings.Cut(strings.TrimSpace(m[3]), " ")
			}
			program = "cmd/snug/" + sub
			if !strings.Contains(s.texts, "\n"+sub+"\n") {
				no("snug %s: no such command", sub)
			}
		} else if _, err := os.Stat(program); err != nil {
			no("./%s, which is not there", program)
		}
		args, _, _ := strings.Cut(m[3], " #")
		for _, f := range option.FindAllStringSubmatch(args, -1) {
			if f[1] != "h" && !slices.Contains(s.flags[program], f[1]) && s.flags[program] != nil {
				no("%s has no flag -%s", program, f[1])
			}
		}
	}
}
