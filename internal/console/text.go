package console

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/snug-ml/snug"
)

// MiB writes a number of bytes in MiB.
func MiB(n int64) string { return fmt.Sprintf("%.2f MiB", float64(n)/(1<<20)) }

// Count writes a number with its noun in the singular or plural: "1 step", "4 micro-batches".
func Count(n int, one string) string {
	switch {
	case n == 1:
		return "1 " + one
	case strings.HasSuffix(one, "ch"):
		return fmt.Sprintf("%d %ses", n, one)
	}
	return fmt.Sprintf("%d %ss", n, one)
}

// Percent writes a as a share of b.
func Percent(a, b int64) string {
	if b == 0 {
		return "–"
	}
	return fmt.Sprintf("%.1f %%", 100*float64(a)/float64(b))
}

// Sentence returns the text of an error without the texts of snug's sentinels, which follow what happened and tell a
// reader nothing new.
func Sentence(err error) string {
	text := err.Error()
	for _, kind := range []error{snug.ErrConfig, snug.ErrShape, snug.ErrDType, snug.ErrDevice, snug.ErrNotBuilt, snug.ErrNoMemory, snug.ErrNonFinite, snug.ErrCorrupt} {
		text = strings.ReplaceAll(strings.TrimSuffix(text, ": "+kind.Error()), ": "+kind.Error()+"; ", "; ")
	}
	return text
}

// Table returns a writer that aligns columns to the right. A tab ends a cell; Flush writes the table.
func Table(w io.Writer) *tabwriter.Writer {
	return tabwriter.NewWriter(w, 0, 0, 3, ' ', tabwriter.AlignRight)
}
