//go:build metal || emu

package gpu

import (
	"io/fs"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

func TestText(t *testing.T) {
	for _, c := range []struct {
		name  string
		files map[string]string
		want  string
		fails string
	}{
		{name: "plain", files: map[string]string{"k.metal": "one\r\ntwo"}, want: "#line 1 \"k.metal\"\none\ntwo\n"},
		{
			name: "nested",
			files: map[string]string{
				"k.metal": "#include <metal_stdlib>\n# include \"a.h\" // why\nlast\n",
				"a.h":     "a\n  #include \"sub/b.h\"\n",
				"sub/b.h": "b\n#include \"c.h\"\n",
				"sub/c.h": "c\n",
			},
			want: "#line 1 \"k.metal\"\n#include <metal_stdlib>\n" +
				"#line 1 \"a.h\"\na\n" +
				"#line 1 \"sub/b.h\"\nb\n" +
				"#line 1 \"sub/c.h\"\nc\n" +
				"#line 3 \"sub/b.h\"\n" +
				"#line 3 \"a.h\"\n" +
				"#line 3 \"k.metal\"\nlast\n",
		},
		{
			name:  "from the root",
			files: map[string]string{"k.metal": "#include \"sub/b.h\"\n", "sub/b.h": "#include \"a.h\"\n", "a.h": "a\n"},
			want: "#line 1 \"k.metal\"\n#line 1 \"sub/b.h\"\n#line 1 \"a.h\"\na\n" +
				"#line 2 \"sub/b.h\"\n#line 2 \"k.metal\"\n",
		},
		{
			name:  "once",
			files: map[string]string{"k.metal": "#include \"a.h\"\n#include \"a.h\"\n", "a.h": "#pragma once\na\n#include \"a.h\"\n"},
			want: "#line 1 \"k.metal\"\n" +
				"#ifndef SNUG_ONCE_a_h\n#define SNUG_ONCE_a_h\n#line 1 \"a.h\"\n\na\n#line 4 \"a.h\"\n#endif\n" +
				"#line 2 \"k.metal\"\n" +
				"#ifndef SNUG_ONCE_a_h\n#define SNUG_ONCE_a_h\n#line 1 \"a.h\"\n\na\n#line 4 \"a.h\"\n#endif\n" +
				"#line 3 \"k.metal\"\n",
		},
		{
			name:  "missing",
			files: map[string]string{"k.metal": "#if 0\n#include \"no.h\"\n#endif\n"},
			want: "#line 1 \"k.metal\"\n#if 0\n" +
				"#error \"k.metal includes no.h, which is neither in the module nor in the dialect\"\n" +
				"#line 3 \"k.metal\"\n#endif\n",
		},
		{
			name:  "outside",
			files: map[string]string{"k.metal": "#include \"../k.h\"\n", "k.h": "k"},
			want: "#line 1 \"k.metal\"\n" +
				"#error \"k.metal includes ../k.h, which is neither in the module nor in the dialect\"\n#line 2 \"k.metal\"\n",
		},
		{name: "loop", files: map[string]string{"k.metal": "#include \"a.h\"\n", "a.h": "#include \"k.metal\"\n"}, fails: "k.metal → a.h → k.metal"},
		{name: "no entry", files: map[string]string{}, fails: "k.metal"},
	} {
		t.Run(c.name, func(t *testing.T) {
			files := fstest.MapFS{}
			for name, text := range c.files {
				files[name] = &fstest.MapFile{Data: []byte(text)}
			}
			text, err := (&Module{Name: "k", Source: files}).Text("k.metal")
			if c.fails != "" {
				require.ErrorContains(t, err, c.fails)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.want, text)
		})
	}
}

func TestTextWithoutSource(t *testing.T) {
	_, err := (&Module{Name: "k"}).Text("k.metal")
	require.ErrorIs(t, err, fs.ErrNotExist)
}

// TestTextOfDialect resolves the dialect's own headers.
func TestTextOfDialect(t *testing.T) {
	files := fstest.MapFS{"k.metal": {Data: []byte("#include \"metal.h\"\n")}}
	text, err := (&Module{Source: files}).Text("k.metal")
	require.NoError(t, err)
	require.Contains(t, text, "#line 1 \"include/metal.h\"\n")
	require.Contains(t, text, "#ifndef SNUG_ONCE_include_snug_h\n")
	require.Contains(t, text, "#include <metal_stdlib>\n")
	require.NotContains(t, text, "#pragma once")
	require.NotContains(t, text, "#include \"")
}
