package tokenizer

import (
	"cmp"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/snug-ml/snug"
)

// form is a kind of files that hold a tokenizer in the place of tokenizer.json.
type form struct {
	order int        // the first form whose files are there is read
	files [][]string // each list is of files that must all be there; the first such list counts
	// suits reports whether the form can be read of a folder that has the files; nil is always.
	suits func(folder string, f configFile) bool
	// open reads the files, and adds to c what they say beside the other files of the folder.
	open func(folder string, files []string, c *Config, f configFile) (*Tokenizer, error)
}

// folderForms are the forms by their order. The file of a form adds it.
var folderForms []form

func addForm(f form) {
	at, _ := slices.BinarySearchFunc(folderForms, f, func(a, b form) int { return cmp.Compare(a.order, b.order) })
	folderForms = slices.Insert(folderForms, at, f)
}

// others are files that hold a tokenizer in forms that are not read here.
var others = []string{"sentencepiece.bpe.model", "spiece.model", "spm.model", "tiktoken.model", "vocab.json", "vocab.txt"}

// convert is the command that writes tokenizer.json of the other files of a folder.
func convert(folder string) string {
	return fmt.Sprintf(`pip install transformers sentencepiece tiktoken protobuf && python -c 'from transformers import AutoTokenizer; import sys; AutoTokenizer.from_pretrained(sys.argv[1]).save_pretrained(sys.argv[1])' '%s'`, strings.ReplaceAll(folder, "'", `'\''`))
}

// openForm builds the tokenizer of a folder without tokenizer.json.
func openForm(folder string, c *Config, f configFile) (*Tokenizer, error) {
	missing := func(name string) bool {
		_, err := os.Stat(filepath.Join(folder, name))
		return err != nil
	}
	for _, form := range folderForms {
		for _, names := range form.files {
			if slices.ContainsFunc(names, missing) || form.suits != nil && !form.suits(folder, f) {
				continue
			}
			t, err := form.open(folder, names, c, f)
			if err != nil {
				return nil, err
			}
			return t, t.ends(*c)
		}
	}
	for _, other := range others {
		if missing(other) {
			continue
		}
		what := ""
		if name := f.classOf(folder); name != "" {
			what = fmt.Sprintf(", of the class %.60s", name)
		}
		return nil, fmt.Errorf("tokenizer: %s has no tokenizer.json, and %s%s is not read: write tokenizer.json by: %s: %w", folder, other, what, convert(folder), snug.ErrConfig)
	}
	return nil, fmt.Errorf("tokenizer: %s has no tokenizer.json: download it with the model: %w: %w", folder, snug.ErrConfig, fs.ErrNotExist)
}
