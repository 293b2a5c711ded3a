package machine

import (
	"fmt"
	"regexp"
	"strings"
)

// Text is what a kernel's portable text, PTX, has of some instructions.
type Text struct {
	Fused, Double        int // fma.rn.f32 and fma.rn.f64
	Loose                int // products and sums without .rn, which the assembler may join to one fused instruction
	Loads, Stores, Moves int // of 16 bytes: from global memory, to it, and from there to a block's
}

var (
	textEntry = regexp.MustCompile(`^\.visible \.entry (\w+)\(`)
	looseOp   = regexp.MustCompile(`\b(mul|add|sub|mad)(\.ftz)?\.f(32|64)\b`)
	wideOp    = regexp.MustCompile(`\b(ld|st)\.global[.\w]*\.(v4\.[bfsu]32|v2\.[bfsu]64)\b`)
)

// ReadText adds what the kernels of a part of a module's PTX have.
func ReadText(ptx string, into map[string]Text) {
	name := ""
	for line := range strings.Lines(ptx) {
		if m := textEntry.FindStringSubmatch(line); m != nil {
			name = m[1]
		}
		if name == "" {
			continue
		}
		t := into[name]
		switch m := wideOp.FindStringSubmatch(line); {
		case m != nil && m[1] == "ld":
			t.Loads++
		case m != nil:
			t.Stores++
		case strings.Contains(line, "cp.async.cg."):
			t.Moves++
		case strings.Contains(line, "fma.rn.f32"):
			t.Fused++
		case strings.Contains(line, "fma.rn.f64"):
			t.Double++
		case looseOp.MatchString(line):
			t.Loose++
		}
		into[name] = t
	}
}

// exact are kernels with the bits of the CPU: their sources have no fused_mul_add. The DFMA of
// amp and accum add squares of float32, which are exact.
var exact = regexp.MustCompile(`^(accum_|amp_|quant8_|ortho_|pack_|unpack_|apply_|` +
	`qlora_(quantize|dequantize|double|octets|blend)_|fused_(add|add_rows|add_scores|bias_add|dropout|embedding)_(f32|f16|bf16)$)`)

// CheckText returns what the assembler may round in another way than the source says.
func CheckText(name string, t Text) []string {
	var wrong []string
	if t.Loose > 0 {
		wrong = append(wrong, fmt.Sprintf("%d instructions of its PTX may be joined by the assembler", t.Loose))
	}
	if t.Fused > 0 && exact.MatchString(name) {
		wrong = append(wrong, fmt.Sprintf("%d fma.rn.f32 in its PTX: it is to have the CPU's bits", t.Fused))
	}
	return wrong
}
