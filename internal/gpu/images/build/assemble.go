//go:build cuda && linux && amd64

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/snug-ml/snug/internal/gpu/images"
)

// assemble returns the machine code of PTX and what ptxas says about it.
func (t *toolkit) assemble(arch, ptx string) (cubin []byte, said string, err error) {
	dir, err := os.MkdirTemp("", "images-")
	if err != nil {
		return nil, "", err
	}
	defer os.RemoveAll(dir)
	in, out := filepath.Join(dir, "in.ptx"), filepath.Join(dir, "out.cubin")
	if err := os.WriteFile(in, []byte(ptx), 0o600); err != nil {
		return nil, "", err
	}
	cmd := exec.Command(t.ptxas, slices.Concat(images.AssemblerOptions, []string{"-v", "-arch", "sm_" + arch, "-o", out, in})...)
	text, err := cmd.CombinedOutput()
	if err != nil {
		return nil, "", fmt.Errorf("ptxas: %w\n%s", err, text)
	}
	cubin, err = os.ReadFile(out)
	return cubin, string(text), err
}

// productAdvice are the messages of ptxas about products of warpgroups: that it serializes them, or
// adds a wait or an arrival where it does not see that the text is right.
var productAdvice = regexp.MustCompile(`\(C75\d\d\)`)

// usage is what a function takes on one architecture: registers of a thread,
// and bytes: of a block, of a thread's stack, and of registers moved to and from
// the stack. threads are those of a block, at most.
type usage struct {
	registers, shared, stack, spillStores, spillLoads int

	threads int
}

// parseUsage reads what ptxas -v says. Functions that are not inlined have a
// stack and spills of their own and no registers.
func parseUsage(text string) (map[string]usage, error) {
	uses := map[string]usage{}
	var entry, function string
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		info, isInfo := strings.CutPrefix(line, "ptxas info    : ")
		switch {
		case strings.Contains(info, "Performance Loss") || productAdvice.MatchString(line): // products that cannot overlap
			return nil, errors.New(info)
		case strings.HasPrefix(info, "Compile time = "):
		case strings.HasPrefix(info, "Compiling entry function "):
			entry = strings.Split(info, "'")[1]
		case strings.HasPrefix(info, "Function properties for "):
			function = strings.TrimPrefix(info, "Function properties for ")
		case strings.HasSuffix(line, "bytes spill loads"):
			n, err := numbers(line)
			if err != nil {
				return nil, err
			}
			u := uses[function]
			u.stack, u.spillStores, u.spillLoads = n["bytes stack frame"], n["bytes spill stores"], n["bytes spill loads"]
			uses[function] = u
		case strings.HasPrefix(info, "Used "):
			n, err := numbers(strings.TrimPrefix(info, "Used "))
			if err != nil {
				return nil, err
			}
			u := uses[entry]
			u.registers, u.shared = n["registers"], n["bytes smem"]
			uses[entry] = u
		case !isInfo && line != "":
			return nil, fmt.Errorf("unexpected line: %s", line)
		}
	}
	return uses, nil
}

// numbers reads "24 registers, 128 bytes smem".
func numbers(text string) (map[string]int, error) {
	numbers := map[string]int{}
	for part := range strings.SplitSeq(text, ", ") {
		number, unit, _ := strings.Cut(strings.TrimPrefix(part, "used "), " ") // of barriers
		n, err := strconv.Atoi(number)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", text, err)
		}
		numbers[unit] = n
	}
	return numbers, nil
}
