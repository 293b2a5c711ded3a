package main

import (
	"fmt"
	"io"
	"strings"
)

var shells = []string{"bash", "zsh", "fish"}

func completionCommand() *command {
	return &command{
		name: "completion", args: "SHELL", summary: "print completion for bash, zsh or fish", operands: strings.Join(shells, " "),
		help: `Prints a script that completes commands, flags, presets and files.

  bash   source <(snug completion bash)
  zsh    source <(snug completion zsh)
  fish   snug completion fish | source
`,
		run: func(c *call) error {
			args, err := c.parse(nil, 1, 1)
			if err != nil {
				return err
			}
			script := map[string]func() string{"bash": bash, "zsh": zsh, "fish": fish}[args[0]]
			if script == nil {
				return usagef("completion: unknown shell %.40q, want one of %s", args[0], strings.Join(shells, ", "))
			}
			_, err = io.WriteString(c.stdout, script())
			return err
		},
	}
}

// completes returns the words that complete the value of a flag, or "file".
func (r *flagRow) completes() string {
	if r.file {
		return "file"
	}
	return strings.Join(r.words, " ")
}

// completed returns what a script has for words that complete a value: none, file for a file, and words, in which WORDS stands for
// them, for others.
func completed(by, none, file, words string) string {
	switch by {
	case "":
		return none
	case "file":
		return file
	}
	return strings.ReplaceAll(words, "WORDS", by)
}

func bash() string {
	var b strings.Builder
	fmt.Fprintf(&b, `_snug() {
	local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} values=
	COMPREPLY=()
	if [ "$COMP_CWORD" -eq 1 ]; then
		COMPREPLY=($(compgen -W "%s help" -- "$word"))
		return
	fi
	case "${COMP_WORDS[1]} $before" in
`, strings.Join(commandNames(), " "))
	for _, c := range commands() {
		for _, f := range c.table() {
			if how := completed(f.completes(), "", "-f", `-W "WORDS"`); how != "" {
				fmt.Fprintf(&b, "\t\"%s -%s\") COMPREPLY=($(compgen %s -- \"$word\")); return ;;\n", c.name, f.name, how)
			}
		}
	}
	b.WriteString("\tesac\n\tcase \"${COMP_WORDS[1]}\" in\n")
	for _, c := range commands() {
		var words []string
		for _, f := range c.table() {
			words = append(words, "-"+f.name)
		}
		files := ""
		if c.operands == "file" {
			files = ` $(compgen -f -- "$word")`
		} else if c.operands != "" {
			words = append(words, c.operands)
		}
		fmt.Fprintf(&b, "\t%s) COMPREPLY=($(compgen -W \"%s\" -- \"$word\")%s) ;;\n", c.name, strings.Join(words, " "), files)
	}
	fmt.Fprintf(&b, "\thelp) COMPREPLY=($(compgen -W \"%s\" -- \"$word\")) ;;\n\tesac\n}\ncomplete -F _snug snug\n", strings.Join(commandNames(), " "))
	return b.String()
}

func zsh() string {
	var b strings.Builder
	b.WriteString("#compdef snug\n_snug() {\n\tlocal -a commands\n\tcommands=(\n")
	for _, c := range commands() {
		fmt.Fprintf(&b, "\t\t'%s:%s'\n", c.name, c.summary)
	}
	b.WriteString("\t\t'help:what a command does'\n\t)\n\tif (( CURRENT == 2 )); then\n\t\t_describe command commands\n\t\treturn\n\tfi\n\tcase $words[2] in\n")
	for _, c := range commands() {
		fmt.Fprintf(&b, "\t%s) shift words; (( CURRENT-- )); _arguments", c.name)
		for _, f := range c.table() {
			fmt.Fprintf(&b, " '-%s%s'", f.name, completed(f.completes(), "", ":file:_files", ":value:(WORDS)"))
		}
		b.WriteString(completed(c.operands, "", " '*:file:_files'", " '1:value:(WORDS)'") + " ;;\n")
	}
	fmt.Fprintf(&b, "\thelp) compadd %s ;;\n\tesac\n}\ncompdef _snug snug\n", strings.Join(commandNames(), " "))
	return b.String()
}

func fish() string {
	var b strings.Builder
	b.WriteString("complete -c snug -f\n")
	for _, c := range commands() {
		fmt.Fprintf(&b, "complete -c snug -n __fish_use_subcommand -a %s -d '%s'\n", c.name, c.summary)
		when := fmt.Sprintf("complete -c snug -n '__fish_seen_subcommand_from %s'", c.name)
		for _, f := range c.table() {
			fmt.Fprintf(&b, "%s -o %s%s\n", when, f.name, completed(f.completes(), "", " -r -F", " -x -a 'WORDS'"))
		}
		if c.operands != "" {
			fmt.Fprintf(&b, "%s%s\n", when, completed(c.operands, "", " -F", " -a 'WORDS'"))
		}
	}
	fmt.Fprintf(&b, "complete -c snug -n __fish_use_subcommand -a help -d 'what a command does'\ncomplete -c snug -n '__fish_seen_subcommand_from help' -a '%s'\n", strings.Join(commandNames(), " "))
	return b.String()
}
