package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/chat"
	"github.com/snug-ml/snug/internal/console"
	"github.com/snug-ml/snug/internal/files"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/tokenizer"
	"github.com/snug-ml/snug/transformer"
	"github.com/snug-ml/snug/vision"
)

func generateCommand() *command {
	return &command{
		name: "generate", summary: "continue a text with a model",
		help: `Writes a model's answer to a prompt to the standard output, token by token, until the model's end
token. Then it writes its speed and its memory to the standard error.
Of a model that tells classes of images apart it writes the classes of the files of -image, the
most probable first.
`,
		flags: new(generateFlags).table,
		closing: `  snug generate -model Qwen3-0.6B -prompt 'Name three rivers.'
  snug generate -model Qwen3-0.6B -adapter tuned -temperature 0.7 -top-p 0.9 -prompt - < question.txt
  snug generate -model tuned-vit -image cat.jpg
`,
		run: runGenerate,
	}
}

// generateFlags are the command line of generate.
type generateFlags struct {
	dir, adapter   string
	prompt, system string
	plain          bool
	template       string
	tokens         int
	temperature    float64
	topK           int
	topP           float64
	seed           uint64
	device         string
	form, compute  string
	images         []string
	videos         []string
	pixels, frames int // the most of an image, and of a video
	fps            float64
	memory         int64
	options        transformer.Options
}

// table returns the flags, which write into f.
func (f *generateFlags) table() flagTable {
	template := &use{"the chat template", "-plain leaves that out", func() bool { return !f.plain }}
	videos := &use{"-video", "there is none", func() bool { return len(f.videos) > 0 }}
	draws := &use{"drawing a token", "-temperature 0 takes the most likely one", func() bool { return f.temperature > 0 }}
	return flagTable{
		modelFlag(&f.dir, "the model: a folder as Hugging Face publishes it, with its tokenizer, or a GGUF file"),
		adapterDirFlag(&f.adapter, "folder of an adapter of it, as snug tune and PEFT write it, or a GGUF file as snug export -lora writes it"),
		textFlag("prompt", "TEXT", &f.prompt, "message of the user; - reads it from the standard input"),
		imageFilesFlag(&f.images),
		videoFilesFlag(&f.videos),
		maxPixelsFlag(&f.pixels).only(&use{"-image or -video", "there is none", func() bool { return len(f.images)+len(f.videos) > 0 }}),
		maxFramesFlag(&f.frames).only(videos),
		numberFlag("fps", "N", &f.fps, 0, "0.001 to 1000000", func(x float64) bool { return x >= 1e-3 && x <= 1e6 },
			"frames of a second that the folders of -video have, default 2, and that are taken of an animated file, default: as the model's files say").only(videos),
		textFlag("system", "TEXT", &f.system, "system message before it, for models with a chat template").only(template),
		templateFlag(&f.template).only(template),
		switchFlag("plain", &f.plain, "continue the prompt as it is, without the chat template"),
		countFlag("tokens", "N", &f.tokens, 256, 1, math.MaxInt, "maximum number of tokens to write; default 256"),
		numberFlag("temperature", "T", &f.temperature, 0, "0 or more", func(x float64) bool { return x >= 0 && x < 1e6 },
			"divides the logits before a token is drawn; default 0: the most likely token"),
		countFlag("top-k", "N", &f.topK, 0, 1, math.MaxInt, "draw from the N most likely tokens only; default: all").only(draws),
		numberFlag("top-p", "P", &f.topP, 1, "more than 0, up to 1", func(x float64) bool { return x > 0 && x <= 1 },
			"draw from the fewest most likely tokens with the total probability P; default 1").only(draws),
		seedFlag("seed", "N", &f.seed, 1, "seed of the draws; default 1"),
		deviceFlag(&f.device, ""),
		sizeFlag("memory", &f.memory, "limit of the resident memory of the process, such as 600MiB: matrices that do not fit are read from the folder each time that they are used; default: none").only(
			&use{"prompts of text on the processor", "there is -image, -video or -device", func() bool {
				return len(f.images)+len(f.videos) == 0 && (f.device == "" || f.device == "cpu")
			}}),
		baseFlag("base", &f.form, baseForms, "form of the layers' matrices: "+either(baseForms)+"; default: as the folder has them, those in floats in the type of -compute"),
		computeFlag(&f.compute, "type of weights and activations: "+either(floatTypes)+"; default: the model's type"),
		configFlag(),
	}
}

func (f *generateFlags) check() (err error) {
	switch {
	case f.dir == "":
		return usagef("generate: want -model: a folder as Hugging Face publishes it")
	case f.prompt == "":
		return usagef("generate: want -prompt: a text, or - for the standard input")
	}
	if err := wantFolders("generate", f.dir, f.adapter); err != nil {
		return err
	}
	f.options.AdapterDir = f.adapter
	if err := setForms(&f.options, f.form, f.compute); err != nil || f.form != "bf16" {
		return err
	}
	if f.compute != "" && f.options.DType != snug.BF16 {
		return usagef("generate: -base bf16 and -compute %s: matrices that are not quantized have the type of activations", f.compute)
	}
	f.options.DType = snug.BF16
	return nil
}

// setForms sets the form of the matrices, below 16 bits, and the type of weights that flags name.
func setForms(o *transformer.Options, form, compute string) (err error) {
	if compute != "" {
		if o.DType, err = snug.ParseDType(compute); err != nil {
			return err
		}
	}
	if o.Decode = form == "bf16"; form != "" && !o.Decode {
		o.Base, err = parseBase(form)
	}
	return err
}

func runGenerate(c *call) (err error) {
	var f generateFlags
	flags := f.table()
	if _, err := c.parse(flags, 0, 0); err != nil {
		return err
	}
	if isClasses(f.dir) {
		return f.classify(c, flags)
	}
	if err := f.check(); err != nil {
		return err
	}
	stop, release := console.OnSignals(console.Options{Name: "snug", Stderr: c.stderr})
	defer release()
	if f.options.Device, err = openDevice("generate", f.device); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.options.Device.Close()) }()
	noteLinks(c.stderr, f.dir, f.adapter)
	g, err := f.open(c)
	if err != nil {
		return usageError{err}
	}
	defer func() { err = errors.Join(err, g.Generator.Close(), g.close()) }()
	err = g.write(stop.After, c)
	if stop.Asked() {
		return console.Interruption{Text: "interrupted", Status: stop.Status()}
	}
	return err
}

// writer writes the tokens of a model as text.
type writer struct {
	*transformer.Generator
	model        *transformer.Model
	tok          *tokenizer.Tokenizer
	prompt       []int32
	*imagePrompt // of a prompt with images, else nil
	ends         []int32
	most         int    // maximum number of tokens to write
	restore      func() // the limits of Go's memory, unless nil
}

// open reads the prompt and opens the model.
func (f *generateFlags) open(c *call) (w *writer, err error) {
	w = &writer{}
	config, err := transformer.ReadConfig(f.dir)
	if err != nil {
		return nil, err
	}
	fmt.Fprint(c.stderr, unreadFields(config))
	config = config.Held(f.options)
	from, rows, note, err := tokenizerOf(f.dir, f.adapter, config, "the prompt and the answer are written with")
	if err != nil {
		return nil, err
	}
	fmt.Fprint(c.stderr, note)
	if w.tok, err = tokenizer.Open(from); err != nil {
		return nil, err
	}
	w.tok = w.tok.Limit(rows)
	if note := templateNote(w.tok, f.template); note != "" && !f.plain {
		fmt.Fprintf(c.stderr, "snug: %s\n", escaped(note))
	}
	text, err := f.text(c.stdin)
	if err != nil {
		return nil, err
	}
	if len(f.images)+len(f.videos) > 0 {
		w.prompt, w.imagePrompt, err = f.encodeWithImages(w.tok, text)
	} else {
		w.prompt, err = f.encode(w.tok, text)
	}
	if err != nil {
		return nil, err
	}
	if len(w.prompt) > config.Context {
		return nil, usagef("generate: the prompt has %d tokens, and the model is made for %d positions", len(w.prompt), config.Context)
	}
	tokens := len(w.prompt) + f.tokens
	if config.LearnedPositions {
		tokens = min(tokens, config.Context)
	}
	if w.most = tokens - len(w.prompt); w.most < 1 {
		return nil, usagef("generate: the prompt has %d tokens, and the model has no position for another", len(w.prompt))
	}
	if w.ends, err = endTokens(f.dir, config, w.tok); err != nil {
		return nil, err
	}
	o := transformer.GenerateOptions{Context: tokens, Sampling: transformer.Sampling{
		Temperature: float32(f.temperature), TopK: f.topK, TopP: float32(f.topP), Seed: f.seed}}
	if f.memory > 0 {
		return w, f.openWithin(w, config, o)
	}
	if err := fitsHost("generate", f.dir, config, f.options, hostMemory(os.DirFS("/"))); err != nil {
		return nil, err
	}
	if w.imagePrompt != nil {
		w.model, err = w.imagePrompt.open(f.dir, f.options)
	} else {
		w.model, err = transformer.Open(f.dir, f.options)
	}
	if err != nil {
		return nil, err
	}
	w.Generator, err = w.model.Generate(o)
	if err != nil {
		return nil, errors.Join(err, w.close())
	}
	return w, nil
}

// maxPrompt is the maximum number of bytes of a prompt on the standard input.
const maxPrompt = 64 << 20

// text returns the prompt.
func (f *generateFlags) text(stdin io.Reader) (string, error) {
	if f.prompt != "-" {
		return f.prompt, nil
	}
	text, err := io.ReadAll(io.LimitReader(stdin, maxPrompt+1))
	if err == nil && len(text) > maxPrompt {
		err = usagef("generate: the prompt on the standard input has more than %s", meter.FormatBytes(maxPrompt))
	}
	return string(text), err
}

// encode returns the tokens of the prompt.
func (f *generateFlags) encode(tok *tokenizer.Tokenizer, prompt string) ([]int32, error) {
	o := tokenizer.EncodeOptions{}
	switch {
	case (hasTemplate(tok) || f.template != "") && !f.plain:
		template, err := chat.Open(tok, chat.Options{Name: f.template})
		if err != nil {
			return nil, fmt.Errorf("%s: %w; -plain continues the prompt without a template", f.dir, err)
		}
		var messages []chat.Message
		if f.system != "" {
			messages = append(messages, chat.Message{Role: "system", Content: f.system})
		}
		if prompt, err = template.Render(chat.Conversation{Messages: append(messages, chat.Message{Role: "user", Content: prompt})}, true); err != nil {
			return nil, err
		}
		in, err := vision.OpenInput(f.dir)
		o.NoSpecial = err != nil || !in.AddsSpecial(tok.Config().BOS, prompt) // the template adds the special tokens, but of some models that see images
	case f.system != "":
		return nil, usagef("generate: -system: the model has no chat template")
	}
	ids, err := tok.Encode(prompt, o)
	if err == nil && len(ids) == 0 {
		err = usagef("generate: the prompt has no tokens")
	}
	return ids, err
}

// endTokens returns the tokens that end a text, according to the model, the tokenizer and generation_config.json.
func endTokens(dir string, config *transformer.Config, tok *tokenizer.Tokenizer) (ends []int32, err error) {
	for _, id := range config.EOS {
		ends = append(ends, int32(id))
	}
	if id, known := tok.ID(tok.Config().EOS); known {
		ends = append(ends, id)
	}
	const name = "generation_config.json"
	text, err := files.ReadInput(filepath.Join(dir, name), files.Description)
	if errors.Is(err, fs.ErrNotExist) {
		return ends, nil
	}
	if err != nil {
		return nil, err
	}
	var file struct {
		EOS json.RawMessage `json:"eos_token_id"`
	}
	if err := json.Unmarshal(text, &file); err != nil {
		return nil, fmt.Errorf("%s: %w: %w", filepath.Join(dir, name), err, snug.ErrCorrupt)
	}
	var one int32
	var several []int32
	switch {
	case file.EOS == nil || string(file.EOS) == "null":
	case json.Unmarshal(file.EOS, &one) == nil:
		several = []int32{one}
	case json.Unmarshal(file.EOS, &several) != nil:
		return nil, fmt.Errorf("%s: eos_token_id is %.40s, want a token or a list of them: %w", filepath.Join(dir, name), file.EOS, snug.ErrCorrupt)
	}
	return append(ends, several...), nil
}

// write generates tokens and writes their text.
func (w *writer) write(ctx context.Context, c *call) error {
	began := time.Now()
	if err := w.begin(ctx); err != nil {
		return err
	}
	prompt := time.Since(began)
	stream := w.tok.Stream(tokenizer.DecodeOptions{SkipSpecial: true})
	began, n := time.Now(), 0
	for context := w.model.Config().Context; n < w.most; {
		if len(w.Tokens()) == context {
			fmt.Fprintf(c.stderr, "\nsnug: generate: the text goes beyond the %d positions that the model is made for\n", context)
		}
		token, err := w.Next(ctx)
		if err != nil {
			return err
		}
		n++
		if slices.Contains(w.ends, token) {
			break
		}
		if _, err := io.WriteString(c.stdout, stream.Next(token)); err != nil {
			return err
		}
	}
	if _, err := fmt.Fprintln(c.stdout, stream.Flush()); err != nil {
		return err
	}
	_, peak := meter.Resident()
	fmt.Fprintf(c.stderr, "\n%s of a prompt, %.1f/s; %s, %.1f/s; weights %s, cache %s, peak RSS %s\n",
		console.Count(len(w.prompt), "token"), float64(len(w.prompt))/prompt.Seconds(), console.Count(n, "token"), float64(n)/time.Since(began).Seconds(),
		meter.FormatBytes(w.model.Memory().Weights), meter.FormatBytes(w.Bytes()), meter.FormatBytes(peak))
	return nil
}
