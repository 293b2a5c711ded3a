// Select runs "go test" with the tests that their marks choose:
//
//	select RUN [flags of go test] PACKAGE...
//	select -list RUN [flags of go test] PACKAGE...   prints their names instead
//
// A mark is a line of the comment above a test, an example or a fuzz target. It names runs, which are in the table below:
//
//	//check:in tiers arm64   these runs take, of the test's package, only tests with such a mark
//	//check:not bits32       this run takes all tests of the package, except for those with such a mark
//
// Packages are ".", or begin with "./" or the module's path. Select fails when no test of the packages has a mark of the run.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// runs has what each run of ./check is for, by the name in marks.
var runs = map[string]string{
	"tiers":    "each CPU tier, and pure Go: results against a definition or another program",
	"arm64":    "NEON under QEMU, which is slow and starts no processes",
	"arm64-go": "pure Go under QEMU: results of other programs",
	"bits32":   "an int of 32 bits, in pure Go: no whole trainings",
	"race":     "the race detector: where goroutines meet",
	"ranks":    "ranks in processes, with MPICH",
	"drivers":  "images against what launches ask for, without a GPU",
	"emulated": "GPU kernels in the emulator",
	"checked":  "GPU kernels with races, bounds and undefined memory checked, which is slow: each kernel once",
	"ordered":  "GPU kernels with the order of launches checked: what the run checked leaves out",
	"metal24":  "GPU kernels as Metal 2.4, without bfloat",
	"late":     "GPU kernels with stores that others see late",
	"nan":      "GPU kernels with the NaNs of NVIDIA",
	"flush":    "GPU kernels without subnormal numbers",
}

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "select:", err)
		os.Exit(1)
	}
}

// tested is a package as "go list -json" describes it.
type tested struct {
	Dir, ImportPath           string
	TestGoFiles, XTestGoFiles []string

	in, not, all []string // its tests, by their marks for the run
}

func run(args []string, out io.Writer) error {
	list := len(args) > 0 && args[0] == "-list"
	if list {
		args = args[1:]
	}
	if len(args) == 0 {
		return errors.New("want a run, flags of go test and packages")
	}
	name := args[0]
	if _, known := runs[name]; !known {
		return fmt.Errorf("no run is called %s, want one of %q", name, slices.Sorted(maps.Keys(runs)))
	}
	flags, packages := parse(args[1:])
	if len(packages) == 0 {
		return errors.New("want packages")
	}
	found, err := load(name, flags, packages)
	if err != nil {
		return err
	}
	if list {
		for _, p := range found {
			for _, test := range p.chosen() {
				fmt.Fprintln(out, p.ImportPath, test)
			}
		}
		return nil
	}
	return test(flags, found, out)
}

// parse tells packages from flags of "go test" and their values.
func parse(args []string) (flags, packages []string) {
	for _, arg := range args {
		if arg == "." || strings.HasPrefix(arg, "./") || strings.HasPrefix(arg, "github.com/snug-ml/snug") {
			packages = append(packages, arg)
		} else {
			flags = append(flags, arg)
		}
	}
	return flags, packages
}

// load returns the packages with their tests, for the build tags of the flags.
func load(name string, flags, packages []string) ([]*tested, error) {
	args := []string{"list", "-json=Dir,ImportPath,TestGoFiles,XTestGoFiles"}
	if slices.Contains(flags, "-race") {
		args = append(args, "-race")
	}
	if i := slices.Index(flags, "-tags"); i >= 0 && i+1 < len(flags) {
		args = append(args, flags[i:i+2]...)
	}
	command := exec.Command("go", append(args, packages...)...)
	command.Stderr = os.Stderr
	out, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("%v: %w", command, err)
	}
	var found []*tested
	marked := false
	for d := json.NewDecoder(bytes.NewReader(out)); d.More(); {
		p := &tested{}
		if err := d.Decode(p); err != nil {
			return nil, err
		}
		for _, file := range slices.Concat(p.TestGoFiles, p.XTestGoFiles) {
			if err := p.read(filepath.Join(p.Dir, file), name); err != nil {
				return nil, err
			}
		}
		marked = marked || len(p.in)+len(p.not) > 0
		found = append(found, p)
	}
	if !marked {
		return nil, fmt.Errorf("no test of %s has a mark of the run %s", strings.Join(packages, " "), name)
	}
	return found, nil
}

// read adds the tests of a file.
func (p *tested) read(path, name string) error {
	tests, err := marks(path)
	if err != nil {
		return err
	}
	for _, t := range tests {
		p.all = append(p.all, t.name)
		if slices.Contains(t.in, name) {
			p.in = append(p.in, t.name)
		}
		if slices.Contains(t.not, name) {
			p.not = append(p.not, t.name)
		}
	}
	return nil
}

// marked is a test and the runs that its marks name.
type marked struct {
	name    string
	in, not []string
}

// marks returns the tests of a file in their order.
func marks(path string) (tests []marked, err error) {
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, path, nil, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok {
			continue
		}
		t := marked{name: f.Name.Name}
		if f.Doc != nil {
			for _, c := range f.Doc.List {
				text, found := strings.CutPrefix(c.Text, "//check:")
				if !found {
					continue
				}
				words := strings.Fields(text)
				if len(words) < 2 || !isTest(f) {
					return nil, fmt.Errorf("%s: %s: want //check:in or //check:not and runs, above a test", set.Position(c.Pos()), c.Text)
				}
				switch words[0] {
				case "in":
					t.in = append(t.in, words[1:]...)
				case "not":
					t.not = append(t.not, words[1:]...)
				default:
					return nil, fmt.Errorf("%s: %s: want //check:in or //check:not", set.Position(c.Pos()), c.Text)
				}
				for _, word := range words[1:] {
					if _, known := runs[word]; !known {
						return nil, fmt.Errorf("%s: %s: no run is called %s, want one of %q", set.Position(c.Pos()), c.Text, word, slices.Sorted(maps.Keys(runs)))
					}
				}
			}
		}
		if isTest(f) {
			tests = append(tests, t)
		}
	}
	return tests, nil
}

// isTest is the rule of "go test", except for benchmarks.
func isTest(f *ast.FuncDecl) bool {
	if f.Recv != nil || f.Name.Name == "TestMain" {
		return false
	}
	for _, kind := range []string{"Test", "Example", "Fuzz"} {
		if after, found := strings.CutPrefix(f.Name.Name, kind); found {
			r, _ := utf8.DecodeRuneInString(after)
			return !unicode.IsLower(r)
		}
	}
	return false
}

// chosen returns the tests that the run takes.
func (p *tested) chosen() []string {
	if len(p.in) > 0 {
		return p.in
	}
	return slices.DeleteFunc(slices.Clone(p.all), func(name string) bool { return slices.Contains(p.not, name) })
}

// test runs the packages, as many at a time as there are processors: those without marks in one "go test".
func test(flags []string, found []*tested, out io.Writer) error {
	var commands [][]string
	var whole []string
	for _, p := range found {
		switch {
		case len(p.in) > 0:
			commands = append(commands, []string{"-run", pattern(p.in), p.ImportPath})
		case len(p.not) > 0:
			commands = append(commands, []string{"-skip", pattern(p.not), p.ImportPath})
		default:
			whole = append(whole, p.ImportPath)
		}
	}
	if len(whole) > 0 {
		commands = append(commands, whole)
	}
	type result struct {
		out []byte
		err error
	}
	results := make(chan result)
	free := make(chan struct{}, runtime.NumCPU())
	for _, c := range commands {
		go func() {
			free <- struct{}{}
			out, err := exec.Command("go", slices.Concat([]string{"test"}, flags, c)...).CombinedOutput()
			<-free
			results <- result{out, err}
		}()
	}
	var errs []error
	for range commands {
		r := <-results
		errs = append(errs, r.err)
		if _, err := out.Write(r.out); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func pattern(names []string) string { return "^(" + strings.Join(names, "|") + ")$" }
