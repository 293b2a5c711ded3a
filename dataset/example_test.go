package dataset_test

import (
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/snug-ml/snug/chat"
	"github.com/snug-ml/snug/dataset"
	"github.com/snug-ml/snug/tokenizer"
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// open returns a tokenizer of the tests.
func open() *tokenizer.Tokenizer {
	f, err := os.Open("../tokenizer/testdata/qwen/tokenizer.json.gz")
	check(err)
	defer f.Close()
	z, err := gzip.NewReader(f)
	check(err)
	text, err := io.ReadAll(z)
	check(err)
	tok, err := tokenizer.Parse(text)
	check(err)
	return tok
}

// A file of ShareGPT becomes conversations, of which the turns of gpt are learned.
func Example() {
	folder, err := os.MkdirTemp("", "")
	check(err)
	defer os.RemoveAll(folder)
	path := filepath.Join(folder, "chats.jsonl")
	check(os.WriteFile(path, []byte(`{"id": 1, "conversations": [{"from": "human", "value": "Name a tree."}, {"from": "gpt", "value": "Oak."}]}`), 0o600))

	tok := open()
	template, err := chat.Parse(tokenizer.Config{EOS: "<|im_end|>", ChatTemplate: "{% for m in messages %}<|im_start|>{{ m.role }}: {{ m.content }}<|im_end|>{% endfor %}" +
		"{% if add_generation_prompt %}<|im_start|>assistant: {% endif %}"}, chat.Options{})
	check(err)
	data, err := dataset.Open([]string{path}, tok, dataset.Options{Context: 64, Template: template})
	check(err)
	defer data.Close()
	for _, line := range data.Stats().Files[0].Lines() {
		fmt.Println(line)
	}
	for sample, err := range data.Show(tok) {
		check(err)
		fmt.Println(sample.Texts[0])
	}
	// Output:
	// read as ShareGPT: human → user, gpt → assistant
	// ignored fields: id
	// <|im_start|>user: Name a tree.<|im_end|><|im_start|>assistant:⟦ Oak.<|im_end|>⟧
}
