// Command metalcheck checks kernels in the Metal shading language with clang, on
// machines that have no Metal: as C++14, for the language, and as C++ for OpenCL,
// which has Metal's address spaces under other names. It adds the rules that
// clang has no option for, and checks all of it for both versions of the language
// that the driver asks for. metal.sh runs it.
//
// It takes paths of .metal files, prints the errors in the form of a compiler
// and fails if anything is. It cannot show that Metal's compiler takes a file.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"sync"
)

func main() {
	c := checker{}
	flag.StringVar(&c.clang, "clang", "clang-19", "the compiler")
	flag.StringVar(&c.shim, "shim", "internal/gpu/images/metalcheck/shim", "the `folder` of metal_stdlib")
	flag.StringVar(&c.include, "include", "internal/gpu/include", "the `folder` of the dialect's headers")
	flag.Parse()
	failed := false
	for _, file := range flag.Args() {
		fmt.Println("metal:", file)
		problems, err := c.check(file)
		if err != nil {
			problems = append(problems, err.Error())
		}
		for _, p := range problems {
			fmt.Fprintln(os.Stderr, p)
			failed = true
		}
	}
	if failed {
		os.Exit(1)
	}
}

type checker struct{ clang, shim, include string }

// versions are the values of __METAL_VERSION__ for macOS 14 and later, and for systems before it.
var versions = [...]string{"310", "240"}

// check returns the errors of a file, each once.
func (c *checker) check(file string) ([]string, error) {
	var found [len(versions)][]string
	var errs [len(versions)]error
	var wait sync.WaitGroup
	for i, version := range versions {
		wait.Go(func() { found[i], errs[i] = c.checkAs(version, file) })
	}
	wait.Wait()
	var all []string
	for _, p := range slices.Concat(found[:]...) {
		if !slices.Contains(all, p) {
			all = append(all, p)
		}
	}
	return all, errors.Join(errs[:]...)
}

// checkAs returns the errors of a file in one version of the language.
func (c *checker) checkAs(version, file string) ([]string, error) {
	said, tree, err := c.compile(file, version, "-x", "c++", "-std=c++14", "-fno-exceptions", "-fno-rtti")
	if err != nil {
		return nil, err
	}
	problems := diagnostics(said)
	rules, err := language(tree)
	if err != nil {
		return nil, err
	}
	said, tree, err = c.compile(file, version, "-x", "clcpp", "-cl-std=clc++2021", "-cl-no-stdinc")
	if err != nil {
		return nil, err
	}
	spaces, err := unspaced(tree)
	return slices.Concat(problems, rules, diagnostics(said), spaces), err
}

// compile returns what clang says about a file and its syntax tree in JSON. An
// error of the file's is not one of compile's.
func (c *checker) compile(file, version string, language ...string) (said string, tree []byte, err error) {
	args := slices.Concat(language, []string{
		"-fsyntax-only", "-Xclang", "-ast-dump=json",
		"-Wall", "-Wextra", "-Wno-unused-parameter", "-Wno-unused-function", "-Wno-unknown-pragmas",
		"-fno-caret-diagnostics", "-ferror-limit=0", "-ftemplate-backtrace-limit=0",
		"-D__METAL_VERSION__=" + version, "-isystem", c.shim, "-I", c.include, file,
	})
	cmd := exec.Command(c.clang, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		return "", nil, err
	}
	if out.Len() == 0 {
		return "", nil, fmt.Errorf("%s: no syntax tree from %s:\n%s", file, c.clang, errs.Bytes())
	}
	return errs.String(), out.Bytes(), nil
}
