// Select runs "go test" with its arguments, after it has checked that they select what
// they name. "go test -run 'Golden|Torch' ./a ./b" passes when nothing is called Torch any
// more; select fails when
//
//   - an alternative of -run or -skip matches no test, fuzz target or example of the packages
//   - a package has no test that -run matches
//
// A pattern is a list of alternatives, Golden|Torch, or ^Test(Golden|Torch)$.
package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strings"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "select:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	s, err := parse(args)
	if err != nil {
		return err
	}
	list := exec.Command("go", slices.Concat([]string{"test", "-list", "."}, s.build, s.packages)...)
	list.Stderr = os.Stderr
	out, err := list.Output()
	if err != nil {
		return fmt.Errorf("%v: %w\n%s", list, err, out)
	}
	tests := byPackage(string(out))
	if err := errors.Join(s.check("-run", s.run, tests), s.check("-skip", s.skip, tests)); err != nil {
		return fmt.Errorf("go test %s\n%w", strings.Join(args, " "), err)
	}
	test := exec.Command("go", append([]string{"test"}, args...)...)
	test.Stdout, test.Stderr = os.Stdout, os.Stderr
	return test.Run()
}

// selection is what the arguments of "go test" say.
type selection struct {
	run, skip string
	build     []string // what changes the binary, and how to run one for another machine
	packages  []string
}

func parse(args []string) (s selection, err error) {
	for len(args) > 0 {
		flag := args[0]
		args = args[1:]
		switch flag {
		case "-short":
			continue
		case "-race":
			s.build = append(s.build, flag)
			continue
		case "-run", "-skip", "-tags", "-exec", "-cpu", "-count":
		default:
			if strings.HasPrefix(flag, "-") {
				return s, fmt.Errorf("unknown flag %s", flag)
			}
			s.packages = append(s.packages, flag)
			continue
		}
		if len(args) == 0 {
			return s, fmt.Errorf("%s wants a value", flag)
		}
		value := args[0]
		args = args[1:]
		foreign := os.Getenv("GOARCH") != "" && os.Getenv("GOARCH") != runtime.GOARCH
		switch {
		case flag == "-run":
			s.run = value
		case flag == "-skip":
			s.skip = value
		case flag == "-tags" || flag == "-exec" && foreign:
			s.build = append(s.build, flag, value)
		}
	}
	if len(s.packages) == 0 || s.run == "" && s.skip == "" {
		return s, errors.New("want packages, and -run or -skip")
	}
	return s, nil
}

// byPackage reads what "go test -list" prints: names, one a line, then a line with the name
// of their package.
func byPackage(out string) map[string][]string {
	tests := map[string][]string{}
	var names []string
	for line := range strings.Lines(out) {
		switch fields := strings.Fields(line); {
		case len(fields) == 0 || strings.HasPrefix(fields[0], "Benchmark"):
		case len(fields) == 1:
			names = append(names, fields[0])
		default: // "ok" or "?"
			tests[fields[1]], names = names, nil
		}
	}
	return tests
}

// check returns an error for each alternative of a pattern that matches nothing, and, for
// -run, for each package in which -run matches nothing.
func (s selection) check(flag, pattern string, tests map[string][]string) error {
	if pattern == "" {
		return nil
	}
	var errs []error
	found := map[string]bool{}
	for _, a := range alternatives(pattern) {
		match, err := regexp.Compile(a)
		if err != nil {
			return fmt.Errorf("%s %s: %w", flag, a, err)
		}
		some := false
		for p, names := range tests {
			if slices.ContainsFunc(names, match.MatchString) {
				some, found[p] = true, true
			}
		}
		if !some {
			errs = append(errs, fmt.Errorf("%s: %s matches no test", flag, a))
		}
	}
	for p := range tests {
		if flag == "-run" && !found[p] {
			errs = append(errs, fmt.Errorf("%s selects no test of %s", flag, p))
		}
	}
	return errors.Join(errs...)
}

// alternatives splits a|b|c, and b(c|d)e into bce and bde.
func alternatives(pattern string) []string {
	before, rest, grouped := strings.Cut(pattern, "(")
	inner, after, closed := strings.Cut(rest, ")")
	if !grouped || !closed || strings.ContainsAny(before+after, "(|)") {
		return strings.Split(pattern, "|")
	}
	all := strings.Split(inner, "|")
	for i, a := range all {
		all[i] = before + a + after
	}
	return all
}
