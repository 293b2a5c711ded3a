// Command check holds the machine code of the committed images against what the sources promise:
// see package machine. machine.sh installs the disassembler and runs it.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/snug-ml/snug/internal/gpu"
	"github.com/snug-ml/snug/internal/gpu/images"
	"github.com/snug-ml/snug/internal/gpu/images/machine"
)

const (
	resources = "internal/gpu/images/RESOURCES.md"
	groups    = "attention/kernels/attention_sm90a.cu"
)

func main() {
	disassembler := flag.String("nvdisasm", "nvdisasm", "the `program` that disassembles")
	root := flag.String("root", ".", "the root of the repository")
	flag.Parse()
	if err := run(*root, *disassembler); err != nil {
		fmt.Fprintln(os.Stderr, "machine code:", err)
		os.Exit(1)
	}
}

func run(root, disassembler string) error {
	rules, codes, err := read(root)
	if err != nil {
		return err
	}
	var mu sync.Mutex
	var names, wrong []string
	var failed []error
	var wg sync.WaitGroup
	next := make(chan gpu.Code)
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for code := range next {
				listing, err := disassemble(disassembler, code)
				var has, is []string
				if err == nil {
					has, is, err = rules.Check(code, listing)
				}
				mu.Lock()
				names, wrong = append(names, has...), append(wrong, is...)
				if err != nil {
					failed = append(failed, fmt.Errorf("%v: %w", code, err))
				}
				mu.Unlock()
			}
		})
	}
	for _, code := range codes {
		next <- code
	}
	close(next)
	wg.Wait()
	if err := errors.Join(failed...); err != nil {
		return err
	}
	for _, pattern := range machine.Unlisted(names) {
		wrong = append(wrong, "no kernel is named "+pattern)
	}
	if len(wrong) > 0 {
		slices.Sort(wrong)
		return fmt.Errorf("%d times other than the sources promise:\n%s", len(wrong), strings.Join(wrong, "\n"))
	}
	fmt.Printf("machine code: %d kernels in %d cubins are as the sources promise\n", len(names), len(codes))
	return nil
}

// read returns the rules and the machine code of all images, the longest first.
func read(root string) (*machine.Rules, []gpu.Code, error) {
	rules := &machine.Rules{Texts: map[string]machine.Text{}, Archs: images.Archs}
	stated, err := os.ReadFile(filepath.Join(root, resources))
	if err != nil {
		return nil, nil, err
	}
	if rules.Stated, err = machine.ReadStated(string(stated)); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", resources, err)
	}
	source, err := os.ReadFile(filepath.Join(root, groups))
	if err != nil {
		return nil, nil, err
	}
	if rules.Splits, err = machine.Splits(string(source)); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", groups, err)
	}
	modules, err := images.Find(root)
	if err != nil {
		return nil, nil, err
	}
	var all []gpu.Code
	for _, m := range modules {
		image, err := os.ReadFile(filepath.Join(root, m.Image()))
		if err != nil {
			return nil, nil, err
		}
		codes, err := gpu.UnpackAll(image)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", m.Image(), err)
		}
		for _, c := range codes {
			if c.PTX {
				machine.ReadText(string(c.Data), rules.Texts)
			} else {
				all = append(all, c)
			}
		}
	}
	slices.SortStableFunc(all, func(a, b gpu.Code) int { return len(b.Data) - len(a.Data) })
	return rules, all, nil
}

// disassemble returns the listing of a cubin's instructions, with the branches as they are in it.
func disassemble(program string, code gpu.Code) (string, error) {
	file, err := os.CreateTemp("", "*.cubin")
	if err != nil {
		return "", err
	}
	defer os.Remove(file.Name())
	_, err = file.Write(code.Data)
	if err := errors.Join(err, file.Close()); err != nil {
		return "", err
	}
	var said strings.Builder
	cmd := exec.Command(program, "-c", "-ndf", file.Name())
	cmd.Stderr = &said
	listing, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("nvdisasm: %w\n%s", err, said.String())
	}
	return string(listing), nil
}
