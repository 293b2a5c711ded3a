package main

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// The command at the end of a run has paths as a shell reads them back.
func TestShellQuote(t *testing.T) {
	for _, c := range []struct{ path, want string }{
		{"out/model-1_b.x", "out/model-1_b.x"},
		{"/tmp/a b", "'/tmp/a b'"},
		{"it's", `'it'\''s'`},
		{"-o", "./-o"},
		{"--a b", "'./--a b'"},
		{"$HOME/`x`", "'$HOME/`x`'"},
		{"a\nb", `"$(printf '\141\012\142')"`},
		{"~", "'~'"},
		{"größe", "'größe'"},
		{"", "''"},
	} {
		t.Run(c.path, func(t *testing.T) {
			require.Equal(t, c.want, shellQuote(c.path))
			shell, err := exec.LookPath("sh")
			if err != nil {
				return // only the shell itself says what it reads
			}
			read, err := exec.Command(shell, "-c", "printf %s "+c.want).Output()
			require.NoError(t, err)
			require.Equal(t, filepath.Clean(c.path), filepath.Clean(string(read)))
		})
	}
	one := &tuning{tuneFlags: tuneFlags{dir: "my model", output: "-out's", adapterFlags: adapterFlags{kindName: "loftq"}}}
	require.Equal(t, `the adapter is in -out's: snug generate -model 'my model' -adapter './-out'\''s' -base nf4`, one.howToUse())
	one.kindName, one.purpose = "lora", "llama.cpp"
	require.Equal(t, `the adapter is in -out's: snug generate -model 'my model' -adapter './-out'\''s'
for llama.cpp: snug export -model 'my model' -adapter './-out'\''s' -gguf ADAPTER.gguf -lora`, one.howToUse())
	one.full = true
	require.Equal(t, `the model is in -out's: snug generate -model './-out'\''s'`, one.howToUse())
}
