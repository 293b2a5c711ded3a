package main

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// finding collects the errors, each once: a template is in the tree many
// times.
type finding struct {
	problems []string
}

func (f *finding) add(n *node, format string, args ...any) {
	if filepath.Base(n.at.file) == "metal_stdlib" {
		return
	}
	text := fmt.Sprintf("%s:%d: error: %s", n.at.file, n.at.line, fmt.Sprintf(format, args...))
	if !slices.Contains(f.problems, text) {
		f.problems = append(f.problems, text)
	}
}

var (
	spaceName = regexp.MustCompile(`__(global|local|constant|private)\b`)
	ownSpace  = regexp.MustCompile(`([*&])(const )?__private\b`) // of the pointer itself
)

// unspaced finds declarations and casts with a pointer or reference whose
// address space is not written, which Metal refuses.
func unspaced(tree []byte) ([]string, error) {
	root, err := parse(tree)
	if err != nil {
		return nil, err
	}
	var f finding
	var walk func(n *node)
	walk = func(n *node) {
		if n.IsImplicit {
			return
		}
		switch n.Kind {
		case "ParmVarDecl", "VarDecl", "FieldDecl", "TypedefDecl", "TypeAliasDecl", "CStyleCastExpr", "CXXStaticCastExpr", "CXXReinterpretCastExpr":
			kind := ownSpace.ReplaceAllString(n.Type.QualType, "$1")
			if strings.Count(kind, "*")+strings.Count(strings.ReplaceAll(kind, "&&", "&"), "&") > len(spaceName.FindAllString(kind, -1)) {
				f.add(n, "no address space is written in %s", strings.TrimSpace(strings.ReplaceAll(kind, "__generic ", "")+" "+n.Name))
			}
		}
		for _, child := range n.Inner {
			walk(child)
		}
	}
	walk(root)
	return f.problems, nil
}

// forbiddenKinds are nodes that Metal's language does not have.
var forbiddenKinds = map[string]string{
	"LambdaExpr": "lambdas", "GotoStmt": "goto", "CXXNewExpr": "new", "CXXDeleteExpr": "delete",
	"CXXDynamicCastExpr": "dynamic_cast", "AddrLabelExpr": "addresses of labels",
}

// forbiddenType matches types that it does not have.
var forbiddenType = regexp.MustCompile(`\b(long )?double\b|\blong long\b|\(\*\)`)

// language finds what Metal's language does not have and clang's C++ does:
// kinds of expressions and types, recursion, block memory outside of kernels.
func language(tree []byte) ([]string, error) {
	root, err := parse(tree)
	if err != nil {
		return nil, err
	}
	l := languageRules{calls: map[string][]string{}, functions: map[string]*node{}, first: map[string]string{}}
	for _, n := range root.Inner {
		l.walk(n, nil)
	}
	l.recursion()
	return l.problems, nil
}

type languageRules struct {
	finding
	calls     map[string][]string // functions by the functions that name them
	functions map[string]*node
	first     map[string]string // declarations of functions to their first one
}

// walk goes through what a function, or none, contains.
func (l *languageRules) walk(n, function *node) {
	if n.IsImplicit {
		return
	}
	if what, ok := forbiddenKinds[n.Kind]; ok {
		l.add(n, "Metal has no %s", what)
	}
	switch n.Kind {
	case "FunctionDecl", "CXXMethodDecl":
		function = n
		l.first[n.ID] = n.ID
		if n.PreviousDecl != "" {
			l.first[n.ID] = l.first[n.PreviousDecl]
		}
		l.functions[n.ID] = n
		if n.Virtual {
			l.add(n, "Metal has no virtual functions: %s", n.Name)
		}
	case "VarDecl", "ParmVarDecl", "FieldDecl", "FloatingLiteral", "BinaryOperator", "CStyleCastExpr":
		l.typed(n)
	case "DeclRefExpr":
		l.reference(n, function)
	}
	for _, child := range n.Inner {
		l.walk(child, function)
	}
}

func (l *languageRules) typed(n *node) {
	switch bad := forbiddenType.FindString(n.Type.QualType); bad {
	case "":
	case "(*)":
		l.add(n, "Metal has no pointers to functions: %s", n.Type.QualType)
	case "double":
		l.add(n, "Metal has no double; write f after a number: %s", strings.TrimSpace(n.Kind+" "+n.Name))
	default:
		l.add(n, "Metal has no %s", bad)
	}
}

func isKernel(function *node) bool {
	return slices.ContainsFunc(function.Inner, func(n *node) bool { return n.Kind == "AnnotateAttr" })
}

func (l *languageRules) reference(n, function *node) {
	to := n.ReferencedDecl
	if to == nil || (to.Kind != "FunctionDecl" && to.Kind != "CXXMethodDecl") {
		return
	}
	if strings.HasPrefix(to.Name, "__builtin_") {
		l.add(n, "%s is a name of clang's", to.Name)
	}
	if to.Name == "snug_shared" && (function == nil || !isKernel(function)) {
		l.add(n, "block memory is declared in a kernel only")
	}
	if function != nil {
		from := l.first[function.ID]
		l.calls[from] = append(l.calls[from], to.ID)
	}
}

// recursion finds functions that reach themselves.
func (l *languageRules) recursion() {
	for id, function := range l.functions {
		seen := map[string]bool{}
		var reaches func(from string) bool
		reaches = func(from string) bool {
			for _, to := range l.calls[from] {
				to = l.first[to]
				if to == id {
					return true
				}
				if !seen[to] {
					seen[to] = true
					if reaches(to) {
						return true
					}
				}
			}
			return false
		}
		if l.first[id] == id && reaches(id) {
			l.add(function, "Metal has no recursion: %s", function.Name)
		}
	}
	slices.Sort(l.problems)
}
