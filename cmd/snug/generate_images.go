package main

import (
	"context"
	"fmt"
	"os"
	"slices"

	"github.com/snug-ml/snug/chat"
	"github.com/snug-ml/snug/tokenizer"
	"github.com/snug-ml/snug/transformer"
	"github.com/snug-ml/snug/vision"
)

// imagePrompt is a prompt with images.
type imagePrompt struct {
	model  *vision.Model
	pixels []vision.Pixels
}

// imageFilesFlag is the flag of images before a prompt.
func imageFilesFlag(to *[]string) *flagRow {
	return ofFiles(listFlag("image", to, nil, fileName, "files of images (PNG, JPEG, WebP, GIF, BMP, TIFF), with commas, before the prompt in the user's message, for a model that sees images. With -plain the prompt has the model's placeholder of each"))
}

// videoFilesFlag is the flag of videos before a prompt.
func videoFilesFlag(to *[]string) *flagRow {
	return ofFiles(listFlag("video", to, nil, fileName, "folders of frames, or animated GIFs, with commas, behind the images, for Qwen2-VL, Qwen2.5-VL and Qwen3-VL"))
}

// ofFiles says that the words of a list are files.
func ofFiles(r *flagRow) *flagRow {
	r.arg, r.file = "FILES", true
	return r.inOne(withCommas)
}

func fileName(name string) (string, error) {
	if name == "" {
		return "", fmt.Errorf("one of the names is empty")
	}
	return name, nil
}

// readImages reads the images and the videos of the prompt.
func (f *generateFlags) readImages() (in *vision.Input, pixels []vision.Pixels, err error) {
	if in, err = openInput(f.dir, f.pixels); err != nil {
		return nil, nil, err
	}
	for _, name := range f.images {
		file, err := os.Open(name)
		if err != nil {
			return nil, nil, err
		}
		m, err := vision.Decode(file, vision.DecodeOptions{})
		_ = file.Close() // which was only read
		var x vision.Pixels
		if err == nil {
			x, err = in.Processor.Process(m)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", name, err)
		}
		pixels = append(pixels, x)
	}
	if err := checkFrames(in, f.frames); err != nil {
		return nil, nil, usagef("generate: %w", err)
	}
	for _, name := range f.videos {
		var t vision.Timing
		c, err := vision.OpenClip(name, vision.DecodeOptions{})
		if err == nil {
			t, err = in.Processor.SampleClip(c, f.fps, f.frames)
		}
		var x vision.Pixels
		if err == nil {
			x, _, err = in.Processor.ProcessClip(c, t)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", name, err)
		}
		pixels = append(pixels, x)
	}
	return in, pixels, nil
}

// encodeWithImages returns the tokens of a prompt that begins with the images.
func (f *generateFlags) encodeWithImages(tok *tokenizer.Tokenizer, prompt string) (ids []int32, l *imagePrompt, err error) {
	in, pixels, err := f.readImages()
	if err != nil {
		return nil, nil, err
	}
	l = &imagePrompt{pixels: pixels}
	var layouts []vision.Layout
	for _, x := range pixels {
		layouts = append(layouts, x.Layout)
	}
	switch whole := in.Processor.WholePrompt(); {
	case f.plain || whole:
	case !hasTemplate(tok) && f.template == "":
		return nil, nil, usagef("generate: -image: %s has no chat template: give -plain, and a prompt with %q for each image", f.dir, in.Processor.Placeholder())
	default:
		template, err := chat.Open(tok, chat.Options{Name: f.template})
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w; -plain continues the prompt without a template", f.dir, err)
		}
		if prompt, err = template.Render(f.conversation(prompt), true); err != nil {
			return nil, nil, err
		}
	}
	if prompt, err = in.Processor.Expand(prompt, layouts...); err == nil {
		whole := in.Processor.WholePrompt() // which has its first token already
		ids, err = tok.Encode(prompt, tokenizer.EncodeOptions{NoSpecial: whole || !f.plain && !in.AddsSpecial(tok.Config().BOS, prompt)})
	}
	return ids, l, err
}

// conversation returns a message of the user that begins with the images and the videos, after the system's.
func (f *generateFlags) conversation(prompt string) (c chat.Conversation) {
	parts := func(role, text string, images, videos int) chat.Message {
		list := slices.Repeat([]any{chat.Object{{Name: "type", Value: "image"}}}, images)
		list = append(list, slices.Repeat([]any{chat.Object{{Name: "type", Value: "video"}}}, videos)...)
		list = append(list, chat.Object{{Name: "type", Value: "text"}, {Name: "text", Value: text}})
		return chat.Message{Role: role, Fields: chat.Object{{Name: "content", Value: list}}}
	}
	if f.system != "" {
		c.Messages = append(c.Messages, parts("system", f.system, 0, 0))
	}
	c.Messages = append(c.Messages, parts("user", prompt, len(f.images), len(f.videos)))
	return c
}

// open opens the model with its tower.
func (l *imagePrompt) open(dir string, o transformer.Options) (m *transformer.Model, err error) {
	if l.model, err = vision.OpenModel(dir, vision.ModelOptions{Text: o}); err != nil {
		return nil, err
	}
	return l.model.Text, nil
}

// begin gives the prompt to the generator.
func (w *writer) begin(ctx context.Context) error {
	if w.imagePrompt == nil {
		return w.Prompt(ctx, w.prompt)
	}
	return w.imagePrompt.model.Prompt(ctx, w.Generator, vision.Batch{Text: transformer.Batch{Tokens: w.prompt}, Images: w.imagePrompt.pixels})
}

// close closes the model.
func (w *writer) close() error {
	if w.restore != nil {
		w.restore()
	}
	if w.imagePrompt != nil {
		return w.imagePrompt.model.Close()
	}
	return w.model.Close()
}
