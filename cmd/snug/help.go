package main

import (
	"fmt"
	"io"
	"strings"
)

const about = `snug fine-tunes models in the memory that there is, predicts what training takes, and checks files.

usage: snug COMMAND [flags] [arguments]

`

const closing = `
snug help COMMAND describes a command. Write sizes as 512KiB, 1.5GiB or 24GB:
KiB, MiB, GiB count in powers of 1024, KB, MB, GB in powers of 1000.
The exit status is 0 for success, 1 for failure, such as when nothing fits or verify finds
damage, and 2 for a wrong command line, or a model or data that cannot be read.
`

// help writes the text of all commands, or of one.
func help(args []string, w io.Writer) error {
	switch len(args) {
	case 0:
		var b strings.Builder
		b.WriteString(about)
		for _, c := range commands() {
			fmt.Fprintf(&b, "  snug %-38s %s\n", strings.TrimSpace(c.name+" "+c.args), c.summary)
		}
		b.WriteString(closing)
		_, err := io.WriteString(w, b.String())
		return err
	case 1:
		c := commandNamed(args[0])
		if c == nil {
			return usagef("help: unknown command %.40q, want one of %s", args[0], strings.Join(commandNames(), ", "))
		}
		text := "usage: snug " + strings.TrimSpace(c.name+" [flags] "+c.args) + "\n"
		for _, part := range []string{c.help, c.table().help(), c.closing} {
			if part != "" {
				text += "\n" + part
			}
		}
		_, err := io.WriteString(w, text)
		return err
	}
	return usagef("help: unexpected argument %.40q", args[1])
}
