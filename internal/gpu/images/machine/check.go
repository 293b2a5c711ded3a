package machine

import (
	"fmt"
	"slices"

	"github.com/snug-ml/snug/internal/gpu"
)

// Rules are what machine code is held against.
type Rules struct {
	Texts  map[string]Text
	Stated map[string][]Stated
	Splits map[string]Split // of the kernels of sm_90a
	Archs  []string         // in the order of Stated
}

// Check returns what is wrong with a module's machine code for one architecture, and the
// names of its kernels. The listing is what `nvdisasm -c` says of it.
func (r *Rules) Check(code gpu.Code, listing string) (names, wrong []string, err error) {
	kernels, err := Kernels(code.Data, code.Capability)
	if err != nil {
		return nil, nil, err
	}
	functions, err := Parse(listing)
	if err != nil {
		return nil, nil, err
	}
	if len(functions) != len(kernels) || len(kernels) == 0 {
		return nil, nil, fmt.Errorf("the listing has %d kernels, the cubin %d", len(functions), len(kernels))
	}
	for _, k := range kernels {
		at := slices.IndexFunc(functions, func(f *Function) bool { return f.Name == k.Name })
		if at < 0 {
			return nil, nil, fmt.Errorf("%s is not in the listing", k.Name)
		}
		names = append(names, k.Name)
		for _, w := range r.kernel(code.Arch, functions[at], k) {
			wrong = append(wrong, fmt.Sprintf("%s for %v: %s", k.Name, code, w))
		}
	}
	return names, wrong, nil
}

func (r *Rules) kernel(arch gpu.Arch, f *Function, k Kernel) []string {
	var wrong []string
	stated := r.Stated[f.Name]
	at := 0
	if len(stated) > 1 {
		at = slices.Index(r.Archs, arch.String())
	}
	if at < 0 || at >= len(stated) {
		wrong = append(wrong, "it is not in RESOURCES.md")
	} else {
		wrong = append(wrong, f.CheckStated(k, stated[at])...)
	}
	text := r.Texts[f.Name]
	wrong = append(wrong, f.CheckWide(text)...)
	if arch.Alone {
		split, ok := r.Splits[f.Name]
		if !ok {
			return append(wrong, "the source does not say how it shares out registers")
		}
		wrong = append(wrong, f.CheckSplit(k, split)...)
		wrong = append(wrong, f.CheckProducts()...)
		return append(wrong, f.CheckMaps(k)...)
	}
	wrong = append(wrong, f.CheckFused(text)...)
	return append(wrong, CheckText(f.Name, text)...)
}
