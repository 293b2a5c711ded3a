package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/snug-ml/snug/gguf"
	"github.com/snug-ml/snug/tokenizer"
	"github.com/snug-ml/snug/transformer"
)

func exportCommand() *command {
	return &command{
		name: "export", summary: "write a model for llama.cpp and Ollama, or its adapter for llama.cpp and mlx-lm",
		help: `Writes a model and its tokenizer as a GGUF file, which llama.cpp, Ollama and programs on top of them run.
An adapter is merged first, as snug merge does, or written alone with -lora or -mlx. What llama.cpp would
compute in another way is an error, and nothing is written then; where it differs in some texts alone, a
line says so. One matrix is in memory at a time. Until it is complete the file is FILE.gguf.unfinished; a
killed run leaves that, and the next removes it.
`,
		flags: new(exportFlags).table,
		closing: `  snug export -model Qwen3-0.6B -adapter tuned -gguf tuned.gguf -type q4_k_m -modelfile Modelfile
  ollama create tuned -f Modelfile
  snug export -model Qwen3-0.6B -adapter tuned -gguf lora.gguf -lora
  snug export -model Qwen3-0.6B -adapter tuned -mlx mlx
`,
		run: runExport,
	}
}

// exportFlags are the command line of export.
type exportFlags struct {
	model         string
	adapters      []string
	output, kind  string
	lora          bool   // write the adapter alone
	mlx           string // folder of mlx-lm to write the adapter to
	modelfile     string
	form, compute string
	from          string // folder of the tokenizer
	config        *transformer.Config
	tok           *tokenizer.Tokenizer
	ends          []int32     // tokens that end an answer
	vocabulary    []gguf.Pair // of the tokenizer
	metadata      []gguf.Pair
	memory        int64
	dryRun        bool
}

// table returns the flags, which write into f.
func (f *exportFlags) table() flagTable {
	adapter := &use{"-adapter", "there is none", func() bool { return len(f.adapters) > 0 }}
	whole := &use{"the whole model", "-lora and -mlx write the adapter alone", func() bool { return !f.alone() }}
	file := &use{"files of llama.cpp", "-mlx writes a folder of mlx-lm", func() bool { return f.mlx == "" }}
	return flagTable{
		modelFlag(&f.model, "the model: a folder as Hugging Face publishes it, with its tokenizer, or a GGUF file"),
		foldersFlag("adapter", &f.adapters, "folder of an adapter of it, as snug tune and PEFT write it, or a GGUF file as -lora writes it; several are merged in this order"),
		fileFlag("gguf", "FILE.gguf", &f.output, "new file to write").only(file),
		switchFlag("lora", &f.lora, "write the adapter alone to -gguf, which llama.cpp loads beside the file of the model, by --lora; -type is then "+
			either(transformer.AdapterGGUFTypes())+", f32 by default").only(file, adapter),
		fileFlag("mlx", "DIR", &f.mlx, "write the adapter alone to a new or empty folder, as mlx-lm loads it beside the model, by --adapter-path").only(adapter),
		wordFlag("type", "TYPE", &f.kind, transformer.GGUFTypes(), "type of the matrices: "+either(transformer.GGUFTypes())+
			"; default: the one that config.json names, or f32, and of a GGUF file its own types, with q8_0 for matrices of fewer bits that an adapter changes; q4_k_m and q5_k_m give some matrices more bits, mxfp4 is for experts, and the others are q8_0").only(file),
		fileFlag("modelfile", "FILE", &f.modelfile, "also write a new file for ollama create, with the chat template, stops and parameters of generation").only(whole),
		baseFlag("base", &f.form, lowForms, "merge into quantized weights, "+either(lowForms)+", on which the adapter was trained; default: into the published weights").only(adapter, whole),
		computeFlag(&f.compute, "type of the merged weights: "+either(floatTypes)+"; default: the model's type").only(adapter, whole),
		sizeFlag("memory", &f.memory, "limit of the resident memory of the process, such as 600MiB; default: none"),
		switchFlag("dry-run", &f.dryRun, "write nothing: say what the file takes, the memory, and the room on the disk"),
		configFlag(),
	}
}

func (f *exportFlags) check() error {
	switch {
	case f.model == "":
		return usagef("export: want -model: a folder as Hugging Face publishes it")
	case f.output == "" && f.mlx == "" && !f.dryRun:
		return usagef("export: want -gguf: the file to write")
	}
	for _, o := range []struct{ flag, path string }{{"gguf", f.output}, {"modelfile", f.modelfile}} {
		if o.path == "" {
			continue
		}
		if _, err := os.Lstat(o.path); err == nil {
			return usagef("export: -%s: %s exists, and nothing is overwritten", o.flag, o.path)
		} else if !errors.Is(err, fs.ErrNotExist) {
			return usagef("export: -%s: %w", o.flag, err)
		}
		if _, err := os.Stat(filepath.Dir(o.path)); err != nil {
			return usagef("export: -%s: %w", o.flag, err)
		}
	}
	if f.alone() {
		if err := f.checkAlone(); err != nil {
			return err
		}
	}
	if f.modelfile != "" && f.output != "" && filepath.Clean(f.modelfile) == filepath.Clean(f.output) {
		return usagef("export: -gguf and -modelfile: both are %s", f.output)
	}
	for _, adapter := range f.adapters {
		if err := wantFolders("export", f.model, adapter); err != nil {
			return err
		}
	}
	return wantFolders("export", f.model, "")
}

// copies reports whether what no adapter changes is copied from a file of llama.cpp's, with the tokenizer.
func (f *exportFlags) copies() bool { return f.kind == "" && f.from == f.model && gguf.IsFile(f.model) }

// ggufMetadata returns the metadata of a file.
func ggufMetadata(path string) ([]gguf.Pair, error) {
	f, err := gguf.Open(path)
	if err != nil {
		return nil, err
	}
	return f.Metadata(), f.Close()
}

// describe reads all but the weights, and checks that the file can hold it.
func (f *exportFlags) describe(c *call) (err error) {
	if f.config, err = transformer.ReadConfig(f.model); err != nil {
		return err
	}
	fmt.Fprint(c.stderr, unreadFields(f.config))
	rows := f.config.Vocab
	f.from = f.model
	for _, adapter := range f.adapters {
		from, more, note, err := tokenizerOf(f.model, adapter, f.config, "the file gets")
		if err != nil {
			return err
		}
		if rows = max(rows, more); from != f.model {
			f.from = from
		}
		fmt.Fprint(c.stderr, note)
	}
	shape, err := f.config.GGUF(f.kind)
	if err != nil {
		return err
	}
	if f.tok, err = tokenizer.Open(f.from); err != nil {
		return err
	}
	if f.ends, err = endTokens(f.model, f.config, f.tok); err != nil {
		return err
	}
	if id, ends := f.endOfTurn(); ends && !slices.Contains(f.ends, id) {
		f.ends = append(f.ends, id)
	}
	eos := -1
	if len(f.config.EOS) > 0 {
		eos = f.config.EOS[0]
	}
	var notes []string
	if f.copies() {
		shape.Notes = nil // which the file that is copied has met
		f.vocabulary, err = ggufMetadata(f.model)
	} else {
		f.vocabulary, notes, err = f.tok.GGUF(tokenizer.GGUFOptions{Rows: rows, BOS: f.config.BOS, EOS: eos, Pad: f.config.Pad, Ends: f.ends})
	}
	if err != nil {
		return err
	}
	for _, note := range append(shape.Notes, notes...) {
		fmt.Fprintf(c.stderr, "snug: %s\n", escaped(note))
	}
	name := f.model
	if n := len(f.adapters); n > 0 {
		name = f.adapters[n-1]
	}
	if absolute, err := filepath.Abs(name); err == nil {
		name = absolute
	}
	if f.copies() && len(f.adapters) == 0 {
		return nil
	}
	f.metadata = []gguf.Pair{{Key: "general.name", Value: filepath.Base(name)}}
	if !f.copies() {
		f.metadata = append(f.metadata, f.vocabulary...)
	}
	return nil
}
