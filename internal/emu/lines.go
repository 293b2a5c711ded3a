//go:build emu

package emu

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// code is how the host names an instruction: the module and the offset in it.
var code = regexp.MustCompile(`\(code (\S+) (0x[0-9a-f]+)\)`)

// withLines puts lines of the source for instructions, where addr2line is there
// and the module has them.
func withLines(text string) string {
	m := code.FindStringSubmatch(text)
	if m == nil {
		return text
	}
	out, err := exec.Command("addr2line", "-e", m[1], m[2]).Output()
	line := strings.TrimSpace(string(out))
	if err != nil || strings.HasPrefix(line, "?") {
		return text
	}
	return strings.Replace(text, m[0], "("+filepath.Base(line)+")", 1)
}
