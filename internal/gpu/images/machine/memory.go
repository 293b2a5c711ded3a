package machine

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Stated is what RESOURCES.md says of a kernel on one architecture.
type Stated struct{ Registers, Shared, Stack, SpillStores, SpillLoads int }

// columns are the headings of RESOURCES.md.
var columns = map[string]func(*Stated) *int{
	"registers":     func(s *Stated) *int { return &s.Registers },
	"shared memory": func(s *Stated) *int { return &s.Shared },
	"stack":         func(s *Stated) *int { return &s.Stack },
	"spill stores":  func(s *Stated) *int { return &s.SpillStores },
	"spill loads":   func(s *Stated) *int { return &s.SpillLoads },
}

// ReadStated reads RESOURCES.md: kernels by name, and what each takes on the architectures in the
// table's order, which is one for all where they agree.
func ReadStated(text string) (map[string][]Stated, error) {
	all := map[string][]Stated{}
	var heading []string
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "|") {
			heading = nil
			continue
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		switch {
		case heading == nil:
			heading = cells
			continue
		case heading[0] != "kernel" || strings.HasPrefix(cells[0], "-") || len(cells) != len(heading):
			continue
		}
		var row []Stated
		for i, name := range heading {
			field, ok := columns[name]
			if !ok {
				continue
			}
			parts := strings.Split(cells[i], " / ")
			for len(row) < len(parts) {
				row = append(row, last(row))
			}
			for k := range row {
				if parts[min(k, len(parts)-1)] == "-" { // no such kernel there
					continue
				}
				n, err := strconv.Atoi(parts[min(k, len(parts)-1)])
				if err != nil {
					return nil, fmt.Errorf("%s: %s: %w", cells[0], name, err)
				}
				*field(&row[k]) = n
			}
		}
		all[cells[0]] = row
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("no table of kernels")
	}
	return all, nil
}

func last(row []Stated) Stated {
	if len(row) == 0 {
		return Stated{}
	}
	return row[len(row)-1]
}

// CheckStated returns how a kernel differs from what is stated: by the cubin, and by the bytes that
// its instructions move to and from the stack.
func (f *Function) CheckStated(k Kernel, s Stated) []string {
	got := Stated{Registers: k.Registers, Shared: k.Shared, Stack: k.Frame}
	for i := range f.Code {
		switch c := &f.Code[i]; {
		case c.is("STL"):
			got.SpillStores += c.bytes()
		case c.is("LDL"):
			got.SpillLoads += c.bytes()
		}
	}
	if got == s {
		return nil
	}
	return []string{fmt.Sprintf("it has %+v, RESOURCES.md says %+v", got, s)}
}

// bytes is what an access to memory moves.
func (i *Instruction) bytes() int {
	for _, w := range []struct {
		modifier string
		bytes    int
	}{{"128", 16}, {"64", 8}, {"U16", 2}, {"S16", 2}, {"16", 2}, {"U8", 1}, {"S8", 1}, {"8", 1}} {
		if i.has(w.modifier) {
			return w.bytes
		}
	}
	return 4
}

// Access is which accesses of a kernel move 16 bytes.
type Access struct{ Loads, Stores, Moves bool }

// wide are the kernels whose sources move 16 bytes at a time: runs of elements, Wide16, Quad and
// copy_async. Those of 16-bit elements that take four of them move 8, and are not here.
var wide = []struct {
	kernels *regexp.Regexp
	Access
}{
	{regexp.MustCompile(`^accum_(accumulate_|decay$|measured_(f32|f16|bf16)$|rounded_|sums$)`), Access{Loads: true, Stores: true}},
	{regexp.MustCompile(`^accum_measured_many$`), Access{Loads: true}}, // its stores are generic, ST
	{regexp.MustCompile(`^amp_(cast_(f16|bf16)_(f16|bf16)|cast_f32_f32|random_\w+|join|join24|split|split24|split24_random|sweeps|sweep_\w+)$`), Access{Loads: true, Stores: true}},
	{regexp.MustCompile(`^amp_cast_(f16|bf16)_f32$`), Access{Stores: true}},
	{regexp.MustCompile(`^amp_cast_f32_(f16|bf16)$`), Access{Loads: true}},
	{regexp.MustCompile(`^attention_(forward|backward_key|backward_query)_unit\d+_`), Access{Moves: true}},
	{regexp.MustCompile(`^attention_mend_`), Access{Loads: true}},
	{regexp.MustCompile(`^fused_(add|add_rows|add_rows_backward|bias_add|bias_gelu|bias_gelu_erf|embedding)_(f32|f16|bf16)$`), Access{Loads: true, Stores: true}},
	{regexp.MustCompile(`^fused_(clamped_swiglu|geglu|swiglu|layernorm|rmsnorm)(_backward)?_(f32|f16|bf16)$`), Access{Loads: true, Stores: true}},
	{regexp.MustCompile(`^fused_dropout_f32$`), Access{Loads: true, Stores: true}},
	{regexp.MustCompile(`^fused_(bias_gelu_backward|bias_gelu_erf_backward|layernorm_grads|rmsnorm_grads)_(f32|f16|bf16)$`), Access{Loads: true, Stores: true}},
	{regexp.MustCompile(`^fused_embedding_backward_(f32|f16|bf16)$`), Access{Loads: true, Stores: true}},
	{regexp.MustCompile(`^fused_(bias|layernorm|rmsnorm)_sums_(f32|f16|bf16)$`), Access{Loads: true}},
	{regexp.MustCompile(`^(gemm_|qlora_product_)(plain|thin)$`), Access{Loads: true}},
	{regexp.MustCompile(`^(gemm_units|qlora_product)\d+_`), Access{Moves: true}},
	{regexp.MustCompile(`^apply_bits_`), Access{Loads: true, Stores: true}},
	{regexp.MustCompile(`^pack_bits_`), Access{Loads: true}},
	{regexp.MustCompile(`^unpack_(bits|int8)_`), Access{Stores: true}},
	{regexp.MustCompile(`^qlora_(dequantize|double|octets)_`), Access{Stores: true}},
	{regexp.MustCompile(`^qlora_(few\d|quantize)_f32$|^qlora_few\d_`), Access{Loads: true}},
	{regexp.MustCompile(`^quant8_dequantize_`), Access{Stores: true}},
	{regexp.MustCompile(`^quant8_(quantize_f32$|matrix_squares|scan_|squares)`), Access{Loads: true}},
	{regexp.MustCompile(`^quant8_(factored|rule|step|subtract)`), Access{Loads: true, Stores: true}},
}

// Unlisted returns the patterns of the list of 16-byte accesses that no kernel has.
func Unlisted(names []string) []string {
	var none []string
	for _, w := range wide {
		if !slices.ContainsFunc(names, w.kernels.MatchString) {
			none = append(none, w.kernels.String())
		}
	}
	return none
}

// CheckWide returns the accesses of 16 bytes that the source or the portable text has and the
// kernel has not.
func (f *Function) CheckWide(t Text) []string {
	want := Access{t.Loads > 0, t.Stores > 0, t.Moves > 0}
	for _, w := range wide {
		if w.kernels.MatchString(f.Name) {
			want.Loads = want.Loads || w.Loads
			want.Stores = want.Stores || w.Stores
			want.Moves = want.Moves || w.Moves
		}
	}
	var got Access
	for i := range f.Code {
		c := &f.Code[i]
		if !c.has("128") {
			continue
		}
		got.Loads = got.Loads || c.is("LDG")
		got.Stores = got.Stores || c.is("STG")
		got.Moves = got.Moves || c.is("LDGSTS")
	}
	var wrong []string
	for _, kind := range []struct {
		name      string
		want, got bool
	}{{"LDG.128", want.Loads, got.Loads}, {"STG.128", want.Stores, got.Stores}, {"LDGSTS.128", want.Moves, got.Moves}} {
		if kind.want && !kind.got {
			wrong = append(wrong, "no "+kind.name)
		}
	}
	return wrong
}
