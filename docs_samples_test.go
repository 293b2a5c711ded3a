package snug_test

import (
	"bytes"
	"context"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/accum"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/offload"
	"github.com/snug-ml/snug/qlora"
	"github.com/snug-ml/snug/quant8"
	"github.com/snug-ml/snug/remat"
	"github.com/snug-ml/snug/vision"
	"github.com/stretchr/testify/require"
)

// samplePages are the pages whose Go samples docs_program_test.go holds, to compile them.
var samplePages = []string{"docs/from-pytorch.md", "docs/troubleshooting.md", "docs/backends.md", "docs/images.md"}

// standard are the packages of the standard library that samples use, with their paths.
var standard = map[string]string{"fmt": "fmt", "io": "io", "os": "os", "filepath": "path/filepath"}

// sample has what the samples use and do not show.
type sample struct {
	steps, rows, in, out, vocab int
	targets                     float64
	scale                       float32
	clip                        float32
	ctx                         context.Context
	dir                         string

	h, x, y, w, gamma, dx, dh, dy, table, low, u, merged, attn, dattn, q, k, v, dq, dk, dv []snug.BFloat16
	rstd, dw, dgamma, ws, logits, w32, x0                                                  []float32
	labels, tokens                                                                         []int32
	images                                                                                 [][]float32
	pixels                                                                                 []vision.Pixels
	mask                                                                                   []float32

	backward func(scale float32) error
	step     func(clip float32) error
	loss     func([]float32) ([]float32, error)
	try      func(accum.Batch) error

	chain   *remat.Chain[[]float32, []float32]
	window  *accum.Window
	head    fused.CrossEntropy
	master  *amp.Master
	opt     *quant8.Optimizer
	weights map[string]snug.View
	params  []accum.Param
	rank    accum.Reducer
	lora    *qlora.LoRA
	modules []offload.Layer
	tiers   []offload.Tier
	dev     *snug.Device
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// TestSamplesAreTheDocs: docs_program_test.go is what the pages show.
//
//check:not race
func TestSamplesAreTheDocs(t *testing.T) {
	var fields []string
	for i := range reflect.TypeFor[sample]().NumField() {
		fields = append(fields, reflect.TypeFor[sample]().Field(i).Name)
	}
	s, imports, fromStandard, used := readSource(t), map[string]string{}, map[string]string{}, map[string]bool{}
	var functions, list strings.Builder
	for _, page := range samplePages {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		for i, m := range fence.FindAllStringSubmatch(string(text), -1) {
			if m[1] != "go" {
				continue
			}
			formatted, err := format.Source([]byte(m[2]))
			require.NoError(t, err, "sample %d of %s", i, page)
			require.Equal(t, string(formatted), m[2], "sample %d of %s is not formatted", i, page)
			name := strings.ReplaceAll(strings.TrimSuffix(filepath.Base(page), ".md"), "-", "") + fmt.Sprint(i)
			file, err := parser.ParseFile(token.NewFileSet(), page, "package p\nfunc _() {\n"+m[2]+"\n}", parser.SkipObjectResolution)
			require.NoError(t, err, "sample %d of %s", i, page)
			names := identifiers(file.Decls[0].(*ast.FuncDecl).Body)
			fmt.Fprintf(&list, "\tsample.%s,\n", name)
			fmt.Fprintf(&functions, "\nfunc (s sample) %s() {\n", name)
			given := slices.DeleteFunc(slices.Clone(fields), func(f string) bool { return !names.used[f] || names.declared[f] })
			for _, f := range given {
				used[f], names.declared[f] = true, true
			}
			if len(given) > 0 {
				fmt.Fprintf(&functions, "%s := s.%s\n\n", strings.Join(given, ", "), strings.Join(given, ", s."))
			}
			all := slices.Sorted(maps.Keys(names.declared))
			fmt.Fprintf(&functions, "%s\n%s = %s\n}\n", m[2], strings.Join(slices.Repeat([]string{"_"}, len(all)), ", "), strings.Join(all, ", "))
			for n := range names.used {
				if names.declared[n] { // a variable, not the package of its name
					continue
				}
				if at, ok := s.paths[n]; ok {
					imports[n] = at
				} else if at, ok := standard[n]; ok {
					fromStandard[n] = at
				}
			}
		}
	}
	for _, f := range fields {
		require.True(t, used[f], "no sample uses %s", f)
	}
	var b bytes.Buffer
	b.WriteString("// Code generated from docs by \"rm docs_program_test.go; UPDATE=1 go test -run TestSamplesAreTheDocs .\"; DO NOT EDIT.\n\npackage snug_test\n\nimport (\n")
	for _, group := range []map[string]string{fromStandard, imports} {
		for _, n := range slices.Sorted(maps.Keys(group)) {
			require.Equal(t, n, path.Base(group[n]))
			fmt.Fprintf(&b, "%q\n", group[n])
		}
		b.WriteString("\n")
	}
	fmt.Fprintf(&b, ")\n\nvar _ = []func(sample){\n%s}\n%s", list.String(), functions.String())
	want, err := format.Source(b.Bytes())
	require.NoError(t, err)
	const file = "docs_program_test.go"
	if os.Getenv("UPDATE") != "" {
		require.NoError(t, os.WriteFile(file, want, 0o666))
	}
	program, err := os.ReadFile(file)
	require.NoError(t, err)
	require.True(t, bytes.Equal(want, program), "docs have changed: rm docs_program_test.go; UPDATE=1 go test -run TestSamplesAreTheDocs .")
}

// names are the identifiers of a sample that are not selected from another, and those that
// its own block declares.
type names struct{ used, declared map[string]bool }

func identifiers(body *ast.BlockStmt) names {
	n := names{map[string]bool{}, map[string]bool{}}
	for _, s := range body.List {
		if a, ok := s.(*ast.AssignStmt); ok && a.Tok == token.DEFINE {
			for _, x := range a.Lhs {
				if name := x.(*ast.Ident).Name; name != "_" {
					n.declared[name] = true
				}
			}
		}
	}
	ast.Inspect(body, func(node ast.Node) bool {
		switch node := node.(type) {
		case *ast.SelectorExpr:
			ast.Inspect(node.X, func(x ast.Node) bool {
				if id, ok := x.(*ast.Ident); ok {
					n.used[id.Name] = true
				}
				return true
			})
			return false
		case *ast.KeyValueExpr:
			ast.Inspect(node.Value, func(x ast.Node) bool {
				if id, ok := x.(*ast.Ident); ok {
					n.used[id.Name] = true
				}
				return true
			})
			return false
		case *ast.Ident:
			n.used[node.Name] = true
		}
		return true
	})
	return n
}
