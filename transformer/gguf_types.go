package transformer

import (
	"fmt"
	"slices"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/gguf"
)

// ggufType is a kind of file, as llama.cpp's programs name it.
type ggufType struct {
	name   string
	number int       // general.file_type
	base   gguf.Type // of matrices that get no other
	// head is the type of the head, and of an embedding that is the head; rows are whole blocks of base. 0 is base.
	head gguf.Type
	// better is the type of v and of down in the layers at both ends and in every third between them. 0 is base.
	better gguf.Type
	// experts is the type of the matrices of experts. 0 is base.
	experts gguf.Type
	// out is the type of attention's output in models with eight experts. 0 is base.
	out gguf.Type
}

// ggufTypes are the kinds of files, those with more bits first. What gets which type is as in llama-quantize without an
// importance matrix; f32, f16, bf16 and q8_0 are also as in llama.cpp's converter.
var ggufTypes = []ggufType{
	{name: "f32", number: 0, base: gguf.F32},
	{name: "f16", number: 1, base: gguf.F16},
	{name: "bf16", number: 32, base: gguf.BF16},
	{name: "q8_0", number: 7, base: gguf.Q8_0},
	{name: "q6_k", number: 18, base: gguf.Q6_K},
	{name: "q5_k_m", number: 17, base: gguf.Q5_K, head: gguf.Q6_K, better: gguf.Q6_K},
	{name: "q4_k_m", number: 15, base: gguf.Q4_K, head: gguf.Q6_K, better: gguf.Q6_K, out: gguf.Q5_K},
	{name: "q4_0", number: 2, base: gguf.Q4_0, head: gguf.Q6_K},
	{name: "mxfp4", number: 38, base: gguf.Q8_0, experts: gguf.MXFP4},
}

// GGUFTypes returns the names of the kinds of files that [Model.SaveGGUF] writes.
func GGUFTypes() (names []string) {
	for _, t := range ggufTypes {
		names = append(names, t.name)
	}
	return names
}

// ggufTypeOf returns the kind of a name.
func ggufTypeOf(name string) (ggufType, error) {
	for _, t := range ggufTypes {
		if strings.EqualFold(t.name, name) {
			return t, nil
		}
	}
	return ggufType{}, fmt.Errorf("the type %.40q, want one of %s: %w", name, strings.Join(GGUFTypes(), ", "), snug.ErrConfig)
}

// smaller are the types with blocks of 32 that stand in for those with blocks of 256 where rows are no whole blocks.
var smaller = map[gguf.Type]gguf.Type{gguf.Q4_K: gguf.Q5_0, gguf.Q5_K: gguf.Q5_1, gguf.Q6_K: gguf.Q8_0}

// fits returns a type whose blocks divide rows of cols elements: t, or one with smaller blocks, or F16.
func fits(t gguf.Type, cols int) gguf.Type {
	for _, t := range []gguf.Type{t, smaller[t]} {
		if n, _ := t.Block(); cols%n == 0 && t != gguf.F32 {
			return t
		}
	}
	return gguf.F16
}

// ggufRole is what the choice of a type depends on.
type ggufRole int

const (
	ggufMatrix  ggufRole = iota // of no other role
	ggufPlain                   // stays in float32: vectors, routers, positions
	ggufHead                    // the head, or an embedding that is the head
	ggufValues                  // v, or q, k and v in one
	ggufKeys                    // k
	ggufOutput                  // the output of attention
	ggufDown                    // the last matrix of an MLP
	ggufExperts                 // of experts, but not down
	ggufExpertsDown
)

// moreBits reports whether a layer is one of those in which llama-quantize gives v and down more bits.
func moreBits(layer, layers int) bool {
	return layer < layers/8 || layer >= 7*layers/8 || (layer-layers/8)%3 == 2
}

// choose returns the type of a tensor with rows of cols elements, and the one that it would have if its blocks divided them.
func (t ggufType) choose(c *Config, form *ggufForm, role ggufRole, layer, cols int) (chosen, wanted gguf.Type) {
	or := func(x gguf.Type) gguf.Type {
		if x == 0 {
			return t.base
		}
		return x
	}
	if role == ggufPlain || t.base == gguf.F32 {
		return gguf.F32, gguf.F32
	}
	if t.base == gguf.F16 || t.base == gguf.BF16 {
		return t.base, t.base
	}
	chosen = t.base
	switch role {
	case ggufHead:
		chosen = or(t.head)
		if n, _ := t.base.Block(); cols%n != 0 {
			return fits(gguf.Q8_0, cols), chosen
		}
	case ggufExperts:
		chosen = or(t.experts)
	case ggufDown, ggufExpertsDown:
		if moreBits(layer, c.Layers) {
			chosen = or(t.better)
		}
		if role == ggufExpertsDown && t.experts != 0 {
			chosen = t.experts
		}
	case ggufValues:
		if moreBits(layer, c.Layers) {
			chosen = or(t.better)
		}
		if form.many != nil && form.many(c) && chosen == gguf.Q4_K {
			chosen = gguf.Q5_K
		}
	case ggufOutput:
		if c.Experts.Count == 8 {
			chosen = or(t.out)
		}
	}
	if c.Experts.Count == 8 && (role == ggufValues || role == ggufKeys) {
		chosen = gguf.Q8_0
	}
	return fits(chosen, cols), chosen
}

// ggufMisfit is a type that matrices have in place of the one that their kind of file gives them.
type ggufMisfit struct{ wanted, got gguf.Type }

// ggufCounts counts the matrices that a kind of file quantizes, and those with another type because of their rows.
type ggufCounts struct {
	matrices int
	misfits  map[ggufMisfit]int
}

func (n *ggufCounts) add(got, wanted gguf.Type) {
	if size, _ := wanted.Block(); size == 1 {
		return
	}
	if n.matrices++; got != wanted {
		if n.misfits == nil {
			n.misfits = map[ggufMisfit]int{}
		}
		n.misfits[ggufMisfit{wanted, got}]++
	}
}

// notes says which matrices have another type than the kind's name says.
func (n *ggufCounts) notes(c *Config, t ggufType) (notes []string) {
	if t.experts != 0 && c.Experts.Count == 0 {
		notes = append(notes, fmt.Sprintf("%s is for the matrices of experts, and the model has none: its matrices are %s", t.name, t.base))
	}
	if len(n.misfits) == 0 {
		return notes
	}
	var list []string
	total := 0
	for m, count := range n.misfits {
		total += count
		list = append(list, fmt.Sprintf("%d %s for %s", count, m.got, m.wanted))
	}
	slices.Sort(list)
	return append(notes, fmt.Sprintf("%d of %d matrices have another type than %s gives them, because its blocks do not divide their rows: %s",
		total, n.matrices, t.name, strings.Join(list, ", ")))
}
