package main

import (
	"regexp"
	"strings"
)

var (
	head = regexp.MustCompile(`^\S+:\d+:\d+: (?:fatal )?(?:error|warning): (.*)$`)
	note = regexp.MustCompile(`^\S+:\d+:\d+: note: (.*)$`)

	copied = regexp.MustCompile(`^(no matching constructor for initialization of|no viable overloaded '=')`)
	// Clang's note on a candidate for a copy from constant memory.
	fromConstant = regexp.MustCompile(`cannot bind reference in address space '__constant' to object in address space '__generic'`)
	// Clang's other notes: positions, and unrelated candidates.
	aside = regexp.MustCompile(`^(in instantiation of|expanded from macro|passing argument to parameter|candidate constructor \(the implicit \w+ constructor\) not viable: requires)`)
)

// diagnostics returns the errors and warnings among what clang says, without
// those about structs that are copied from constant memory: Metal gives every
// struct a constructor for that, OpenCL does not.
func diagnostics(said string) []string {
	var problems []string
	lines := strings.Split(said, "\n")
	for i := 0; i < len(lines); i++ {
		match := head.FindStringSubmatch(lines[i])
		if match == nil {
			continue
		}
		group := []string{lines[i]}
		for i+1 < len(lines) && note.MatchString(lines[i+1]) {
			i++
			group = append(group, lines[i])
		}
		if !copied.MatchString(match[1]) || !allFromConstant(group[1:]) {
			problems = append(problems, strings.Join(group, "\n"))
		}
	}
	return problems
}

// allFromConstant says whether notes give no reason but constant memory.
func allFromConstant(notes []string) bool {
	found := false
	for _, line := range notes {
		text := note.FindStringSubmatch(line)[1]
		switch {
		case fromConstant.MatchString(text):
			found = true
		case !aside.MatchString(text):
			return false
		}
	}
	return found
}
