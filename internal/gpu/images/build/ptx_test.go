//go:build cuda && linux && amd64

package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSplitPTX(t *testing.T) {
	const header, table = "//\n// Generated\n//\n\n.version 8.0\n.target sm_80\n", ".const .align 4 .b8 table[8];\n"
	entry := func(name string) string {
		return ".visible .entry " + name + "(\n\t.param .u64 a\n)\n.maxntid 32, 1, 1\n{\n\t{\n\tret;\n\t}\n}\n\t// .globl\tnext\n"
	}
	body := func(name string) string {
		return ".visible .entry " + name + "(\n\t.param .u64 a\n)\n.maxntid 32, 1, 1\n{\n\t{\n\tret;\n\t}\n}\n"
	}
	whole := header + entry("toy_a") + table + entry("toy_b")
	require.Equal(t, []string{whole}, splitPTX(whole), "one part")

	text := header + entry("toy_a") + entry("toy_a_unit64_f16") + table + entry("toy_b_unit128_f16") + entry("toy_c_unit64_bf16") + entry("toy_b")
	common := "\n.version 8.0\n.target sm_80\n" + table
	require.Equal(t, []string{
		common + body("toy_a") + body("toy_b"),
		common + body("toy_b_unit128_f16"),
		common + body("toy_a_unit64_f16") + body("toy_c_unit64_bf16"),
	}, splitPTX(text))
}
