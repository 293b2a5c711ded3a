package console

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/snug-ml/snug/meter"
)

// Peak is the peak memory of a run, predicted and measured, in bytes.
type Peak struct {
	Predicted, Measured meter.Bytes // peak of each component
	Total               int64       // measured peak of the sum of the components
	Resident            int64       // predicted peak of the process's resident memory, 0 if nothing predicts it
	RSS                 int64       // measured peak of the process's resident memory, 0 if the system does not report it
}

// Rows returns the cells of a table that compares the two, after its head: a row for each component, or, unless all is
// set, for each that is not 0; and rows for the total and the process. format writes a number of bytes.
func (p Peak) Rows(format func(int64) string, all bool) [][]string {
	rows := [][]string{{"", "predicted", "measured", "measured/predicted"}}
	row := func(name string, predicted, measured int64) {
		rows = append(rows, []string{name, format(predicted), format(measured), Percent(measured, predicted)})
	}
	for c := range meter.Allowance {
		if all || p.Predicted[c] > 0 || p.Measured[c] > 0 {
			row(c.String(), p.Predicted[c], p.Measured[c])
		}
	}
	row("total", p.Predicted.Total(), p.Total)
	switch name := "process (peak RSS)"; {
	case p.RSS > 0 && p.Resident > 0:
		row(name, p.Resident, p.RSS)
	case p.RSS > 0:
		rows = append(rows, []string{name, "–", format(p.RSS), "–"})
	}
	return rows
}

// Write writes the table of Rows.
func (p Peak) Write(w io.Writer, format func(int64) string, all bool) error {
	fmt.Fprintf(w, "\npeak memory\n")
	t := Table(w)
	for _, cells := range p.Rows(format, all) {
		fmt.Fprintf(t, "%s\t\n", strings.Join(cells, "\t"))
	}
	return t.Flush()
}

// Ends checks that the extension of a file's name is one of ends.
func Ends(name string, ends ...string) error {
	if !slices.Contains(ends, filepath.Ext(name)) {
		return fmt.Errorf("%s: want a name that ends in %s", name, strings.Join(ends, " or "))
	}
	return nil
}

// Writable checks that a file can be written, without changing it, and that its extension is one of ends.
func Writable(name string, ends ...string) error {
	if err := Ends(name, ends...); err != nil {
		return err
	}
	if info, err := os.Stat(name); err == nil && !info.Mode().IsRegular() {
		return fmt.Errorf("%s is not a regular file", name) // a pipe would wait for its other end
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	return f.Close()
}

// WriteFile makes a file, or replaces its contents, with what write writes.
func WriteFile(name string, write func(w io.Writer) error) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	return errors.Join(write(f), f.Close())
}
