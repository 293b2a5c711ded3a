//go:build unix

package report

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug/internal/browsertest"
)

// TestBrowser: a browser shows all cases, in two widths and two color schemes, without a fault.
func TestBrowser(t *testing.T) {
	b := browsertest.Open(t)
	dir := t.TempDir()
	for name, d := range cases() {
		if len(d.Bars) == 0 { // and there is nothing to see
			continue
		}
		path := filepath.Join(dir, strings.ReplaceAll(name, " ", "-")+".html")
		f, err := os.Create(path)
		require.NoError(t, err)
		require.NoError(t, d.Write(f))
		require.NoError(t, f.Close())
		b.Check(path)
		var title string
		b.Eval(`document.querySelector("h1").textContent`, &title)
		require.Equal(t, strings.TrimSpace(d.Title), strings.TrimSpace(title))
	}
}
