//go:build cuda && linux && amd64

package main

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/snug-ml/snug/internal/gpu/images"
	"github.com/snug-ml/snug/internal/gpu/images/machine"
)

// What a kernel may take.
const (
	maxSpill  = 16       // bytes, of kernels that are not in spills: a few registers around the slow path of a division
	maxShared = 48 << 10 // bytes of a block that every device grants without being asked
)

// allowed are bytes of registers that a kernel may move to the stack, and why it is right.
type allowed struct {
	bytes int
	why   string
}

// spills are the kernels that may move more than maxSpill.
var spills = map[string]allowed{
	"attention_forward_bf16":           {64, "128 registers let two blocks run at once; what it costs was not measured"},
	"attention_forward_cached":         {64, "on sm_120 alone; what it costs was not measured"},
	"attention_forward_f16":            {64, "as attention_forward_bf16"},
	"attention_forward_f32":            {64, "as attention_forward_bf16"},
	"attention_mend_backward_key_bf16": {32, "only where a mask hides what is not finite"},
	"attention_mend_backward_key_f16":  {32, "as attention_mend_backward_key_bf16"},
	"attention_split_features":         {112, "on sm_120 alone; what it costs was not measured"},
	"fused_route_f32":                  {128, "on sm_120 alone; what it costs was not measured"},
	"quant8_rule4_2":                   {64, "on sm_80 and sm_86; what it costs was not measured"},
	"quant8_squares8":                  {24, "on sm_120 alone; what it costs was not measured"},
}

// kernels are what the functions of a module use, by name and then by
// architecture.
type kernels map[string]map[string]usage

func (k kernels) add(arch string, uses map[string]usage) {
	for name, u := range uses {
		if k[name] == nil {
			k[name] = map[string]usage{}
		}
		k[name][arch] = u
	}
}

// check returns the resources above a limit.
func (k kernels) check() []string {
	var above []string
	for _, name := range slices.Sorted(maps.Keys(k)) {
		spill := max(maxSpill, spills[name].bytes)
		for _, arch := range slices.Sorted(maps.Keys(k[name])) {
			u := k[name][arch]
			if u.spillStores > spill || u.spillLoads > spill {
				above = append(above, fmt.Sprintf("%s for sm_%s spills: %d bytes of stores and %d of loads, the limit is %d",
					name, arch, u.spillStores, u.spillLoads, spill))
			}
			if u.shared > maxShared {
				above = append(above, fmt.Sprintf("%s for sm_%s has %d bytes of shared memory, the limit is %d", name, arch, u.shared, maxShared))
			}
		}
	}
	return above
}

// result is a module's image and what its kernels use.
type result struct {
	module  images.Module
	image   []byte
	kernels kernels
}

// report returns the text of RESOURCES.md.
func report(results []result) string {
	var b strings.Builder
	archs := "sm_" + strings.Join(images.Archs, " / sm_")
	b.WriteString("# What the CUDA kernels use\n\n")
	b.WriteString("`build.sh` writes this file from what `ptxas -v` and the machine code say; `machine.sh` holds the instructions against\n")
	b.WriteString("it. Registers are those of a thread, shared memory that of a block; stack and spills are bytes of a thread. Where\n")
	fmt.Fprintf(&b, "the architectures differ the numbers are those of %s. Kernels of sm_90a share\n", archs)
	b.WriteString("registers out among the threads of a block when they start: the number is what a thread has before. They are given\n")
	b.WriteString("the memory of their blocks at launch.\n\n")
	b.WriteString("Occupancy is the blocks that a multiprocessor holds at a time × the warps of a block of the most threads, on\n")
	fmt.Fprintf(&b, "sm_%s: what its warps (64), blocks (32), registers (65,536) and shared memory (164, 228 and\n", strings.Join(occupied, " / sm_"))
	b.WriteString("228 KiB; every block takes one more than the table says) leave.\n")
	for _, r := range results {
		fmt.Fprintf(&b, "\n## %s: %s bytes\n\n", r.module.Name(), grouped(len(r.image)))
		b.WriteString("| kernel | registers | shared memory | stack | spill stores | spill loads | occupancy |\n|---|---|---|---|---|---|---|\n")
		for _, name := range slices.Sorted(maps.Keys(r.kernels)) {
			cell := func(of func(usage) int) string { return across(r.module.Archs(), r.kernels[name], of) }
			fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s |\n", name,
				cell(func(u usage) int { return u.registers }),
				cell(func(u usage) int { return u.shared }),
				cell(func(u usage) int { return u.stack }),
				cell(func(u usage) int { return u.spillStores }),
				cell(func(u usage) int { return u.spillLoads }),
				occupancy(r.module.Archs(), r.kernels[name]))
		}
	}
	if len(spills) > 0 {
		b.WriteString("\n## Spills that are allowed\n\n")
		for _, name := range slices.Sorted(maps.Keys(spills)) {
			fmt.Fprintf(&b, "- %s, %d bytes: %s\n", name, spills[name].bytes, spills[name].why)
		}
	}
	b.WriteString(bounds())
	return b.String()
}

// occupied are the architectures whose occupancy is in the table.
var occupied = []string{"80", "90", "100"}

// occupancy returns "8 × 8", or that for each of the architectures where they differ.
func occupancy(archs []string, uses map[string]usage) string {
	var cells []string
	for _, arch := range archs {
		u, ok := uses[arch]
		if !slices.Contains(occupied, arch) && len(archs) > 1 {
			continue
		}
		blocks, warps := machine.LimitsOf[arch].Occupancy(u.threads, u.registers, u.shared)
		if !ok || blocks == 0 {
			cells = append(cells, "-")
			continue
		}
		cells = append(cells, fmt.Sprintf("%d × %d", blocks, warps/blocks))
	}
	return oneOrAll(cells)
}

// across returns one number when the architectures agree, else all.
func across[U any](archs []string, uses map[string]U, of func(U) int) string {
	var cells []string
	for _, arch := range archs {
		u, ok := uses[arch]
		if !ok {
			cells = append(cells, "-")
			continue
		}
		cells = append(cells, strconv.Itoa(of(u)))
	}
	return oneOrAll(cells)
}

func oneOrAll(cells []string) string {
	if len(slices.Compact(slices.Clone(cells))) == 1 {
		return cells[0]
	}
	return strings.Join(cells, " / ")
}

// grouped writes 1234567 as 1,234,567.
func grouped(n int) string {
	if n < 1000 {
		return strconv.Itoa(n)
	}
	return fmt.Sprintf("%s,%03d", grouped(n/1000), n%1000)
}
