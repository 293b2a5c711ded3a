package tokenizer

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
)

// TestLongSpecialTokens: a special token is a name, and no text of megabytes that a chat template repeats.
func TestLongSpecialTokens(t *testing.T) {
	for text, fails := range map[string]bool{
		`{"eos_token": "` + strings.Repeat("x", maxSpecial) + `"}`:                     false,
		`{"eos_token": "` + strings.Repeat("x", maxSpecial+1) + `"}`:                   true,
		`{"eos_token": {"content": "` + strings.Repeat("x", maxSpecial+1) + `"}}`:      true,
		`{"extra_special_tokens": {"a": "` + strings.Repeat("x", maxSpecial+1) + `"}}`: true,
		`{"additional_special_tokens": ["` + strings.Repeat("x", maxSpecial+1) + `"]}`: true,
	} {
		t.Run(text, func(t *testing.T) {
			dir := t.TempDir()
			require.NoError(t, os.WriteFile(filepath.Join(dir, "tokenizer_config.json"), []byte(text), 0o600))
			_, _, err := readConfig(dir)
			if fails {
				require.ErrorIs(t, err, snug.ErrCorrupt)
				require.ErrorContains(t, err, "a token of 4097 bytes, want at most 4096")
				return
			}
			require.NoError(t, err)
		})
	}
}
